// SPDX-License-Identifier: Apache-2.0

package http1

import "math"

// BodyKind says how the end of a body is found (RFC 9112 §6.3).
type BodyKind uint8

// Kinds of bodies.
const (
	BodyNone       BodyKind = iota // no body
	BodyLength                     // Content-Length
	BodyChunked                    // Transfer-Encoding with chunked last
	BodyUntilClose                 // ends with the connection; responses only
)

// maxChunkLine is the size in bytes of the extensions of one chunk.
const maxChunkLine = 4 << 10

// maxChunkDigits is the number of hexadecimal digits of a chunk size.
const maxChunkDigits = 16

// Body follows a message body through the stream. It is a value without
// pointers into buffers: copying one copies the position. The zero Body is the
// end of a message without a body.
type Body struct {
	left   uint64 // bytes of the body or chunk still to come
	line   uint32 // bytes of the chunk extension or the trailer section so far
	digits uint8  // digits of the chunk size so far
	kind   BodyKind
	state  bodyState
	strict bool // a request: CRLF only, no tolerance
	failed reason
}

type bodyState uint8

const (
	bodyDone     bodyState = iota
	bodyBytes              // left bytes, then done
	bodyForever            // all bytes
	chunkSize              // digits of the size
	chunkSpace             // white space after the size; responses only
	chunkExt               // extensions
	chunkSizeLF            // LF after the size line's CR
	chunkData              // left bytes
	chunkEnd               // CR after the data
	chunkEndLF             // LF after the data
	trailerStart           // start of a trailer line, or CR of the last
	trailerName            // field name
	trailerValue           // after the colon
	trailerLF              // LF after a trailer line's CR
	trailerEndLF           // LF after the CR of the last line
	bodyFailed
)

func chunkedBody(strict bool) Body {
	return Body{kind: BodyChunked, state: chunkSize, strict: strict}
}

func lengthBody(n uint64, strict bool) Body {
	b := Body{kind: BodyLength, state: bodyBytes, left: n, strict: strict}
	if n == 0 {
		b.state = bodyDone
	}
	return b
}

func untilCloseBody() Body {
	return Body{kind: BodyUntilClose, state: bodyForever}
}

// Kind returns how the end of the body is found.
func (b *Body) Kind() BodyKind { return b.kind }

// Done reports whether the message has ended.
func (b *Body) Done() bool { return b.state == bodyDone }

// EndsAtEOF reports whether the message is complete if the stream ends here.
func (b *Body) EndsAtEOF() bool { return b.state == bodyDone || b.state == bodyForever }

// Remaining returns how many bytes certainly belong to the body and need not
// be looked at: the rest of a body of known length or of a chunk's data, and
// math.MaxUint64 for a body until close. They may be moved by splice and then
// be reported to Skip.
func (b *Body) Remaining() uint64 {
	switch b.state {
	case bodyBytes, chunkData:
		return b.left
	case bodyForever:
		return math.MaxUint64
	}
	return 0
}

// Skip says that n bytes, at most Remaining, went by unseen. It reports
// whether the message has ended.
func (b *Body) Skip(n uint64) (done bool) {
	n = min(n, b.Remaining())
	switch b.state {
	case bodyBytes:
		if b.left -= n; b.left == 0 {
			b.state = bodyDone
		}
	case chunkData:
		if b.left -= n; b.left == 0 {
			b.state = chunkEnd
		}
	}
	return b.state == bodyDone
}

// Scan follows the body through p, the next bytes of the stream, and returns
// how many of them belong to it. If done, the message ended after p[:n] and
// the rest of p is the next message. Runs of known length cost constant time,
// however long. An error, always an *Error, is found at p[n] and stays.
//
// In requests, chunk sizes have 1 to 16 digits (and fit 63 bits) and are
// followed by CRLF or ";" without white space, extensions have at most 4 KiB
// per chunk, every line ends with CRLF, and trailer lines keep the rules of
// field lines. In responses, white space after the size and LF for CRLF pass,
// the latter not after an extension: there readers differ on where it ends.
// The trailer section has at most MaxHead bytes in both.
func (b *Body) Scan(p []byte) (n int, done bool, err error) {
	for n < len(p) {
		switch b.state {
		case bodyDone:
			return n, true, nil
		case bodyFailed:
			return n, false, b.fail(b.failed)
		case bodyForever:
			return len(p), false, nil
		case bodyBytes, chunkData:
			k := min(b.left, uint64(len(p)-n))
			n += int(k)
			b.Skip(k)
		default:
			if r := b.step(p[n]); r != numReasons {
				return n, false, b.fail(r)
			}
			n++
		}
	}
	if b.state == bodyFailed {
		return n, false, b.fail(b.failed)
	}
	return n, b.state == bodyDone, nil
}

func (b *Body) fail(r reason) error {
	b.state, b.failed = bodyFailed, r
	if b.strict {
		return inRequest(r)
	}
	return inResponse(r)
}

// step takes one byte of the chunked framing. It returns numReasons if the
// byte has its place.
func (b *Body) step(c byte) reason {
	switch b.state {
	case chunkSize:
		if d, ok := hexDigit(c); ok {
			if b.digits++; b.digits > maxChunkDigits || b.left > math.MaxInt64>>4 {
				return invalidChunkSize
			}
			b.left = b.left<<4 | uint64(d)
			return numReasons
		}
		if b.digits == 0 {
			return invalidChunkSize
		}
		if !b.strict && (c == ' ' || c == '\t') {
			b.line = 1
			b.state = chunkSpace
			return numReasons
		}
		return b.afterSize(c)
	case chunkSpace:
		if c == ' ' || c == '\t' {
			if b.line++; b.line > maxChunkLine {
				return chunkExtensionTooLong
			}
			return numReasons
		}
		return b.afterSize(c)
	case chunkExt:
		switch {
		case c == '\r':
			b.state = chunkSizeLF
		case c == '\n':
			return bareLF
		case class[c]&isValue == 0:
			return invalidChunkExtension
		default:
			if b.line++; b.line > maxChunkLine {
				return chunkExtensionTooLong
			}
		}
	case chunkSizeLF:
		if c != '\n' {
			return bareCR
		}
		b.startChunk()
	case chunkEnd:
		switch {
		case c == '\r':
			b.state = chunkEndLF
		case c == '\n' && !b.strict:
			b.nextChunk()
		default:
			return invalidChunkEnd
		}
	case chunkEndLF:
		if c != '\n' {
			return invalidChunkEnd
		}
		b.nextChunk()
	default:
		return b.stepTrailer(c)
	}
	return numReasons
}

// afterSize takes the byte after a chunk's size and white space.
func (b *Body) afterSize(c byte) reason {
	switch {
	case c == '\r':
		b.state = chunkSizeLF
	case c == ';':
		b.state, b.line = chunkExt, 1
	case c == '\n' && !b.strict:
		b.startChunk()
	case c == '\n':
		return bareLF
	default:
		return invalidChunkSize
	}
	return numReasons
}

// startChunk follows a chunk's size line.
func (b *Body) startChunk() {
	b.line = 0
	b.state = chunkData
	if b.left == 0 {
		b.state = trailerStart
	}
}

// nextChunk follows a chunk's data.
func (b *Body) nextChunk() {
	b.state, b.digits, b.left = chunkSize, 0, 0
}

// stepTrailer takes one byte of the trailer section.
func (b *Body) stepTrailer(c byte) reason {
	first := b.line == 0
	if b.line++; b.line > MaxHead {
		return trailersTooLarge
	}
	if c == '\n' && !b.strict && b.state != trailerLF && b.state != trailerEndLF {
		if b.state == trailerStart {
			b.state = bodyDone
		} else {
			b.state = trailerStart
		}
		return numReasons
	}
	switch b.state {
	case trailerStart:
		switch {
		case c == '\r':
			b.state = trailerEndLF
		case c == '\n':
			return bareLF
		case (c == ' ' || c == '\t') && (b.strict || first):
			return obsFold
		case c == ' ' || c == '\t':
			b.state = trailerValue
		case class[c]&isToken == 0 && (b.strict || c == 0):
			return invalidFieldName
		default:
			b.state = trailerName
		}
	case trailerName:
		switch {
		case c == ':':
			b.state = trailerValue
		case class[c]&isToken != 0:
		case c == '\r' && !b.strict:
			b.state = trailerLF
		case c == 0 || b.strict:
			if c == ' ' || c == '\t' {
				return spaceBeforeColon
			}
			return invalidFieldName
		}
	case trailerValue:
		switch {
		case c == '\r':
			b.state = trailerLF
		case c == '\n':
			return bareLF
		case class[c]&isValue == 0 && (b.strict || c == 0):
			return invalidFieldValue
		}
	case trailerLF, trailerEndLF:
		if c != '\n' {
			return bareCR
		}
		if b.state == trailerEndLF {
			b.state = bodyDone
		} else {
			b.state = trailerStart
		}
	}
	return numReasons
}

func hexDigit(c byte) (byte, bool) {
	if c-'0' <= 9 {
		return c - '0', true
	}
	if l := lower[c] - 'a'; l < 6 {
		return l + 10, true
	}
	return 0, false
}
