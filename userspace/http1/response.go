// SPDX-License-Identifier: Apache-2.0

package http1

import "bytes"

// ResponseHead is what a response head says. It may be reused for any number
// of heads.
type ResponseHead struct {
	Status int
	Minor  uint8 // of HTTP/1.Minor, 0 or 1; later minor versions count as 1

	// Interim says that this is a 1xx response before the final one
	// (RFC 9110 §15.2); another head follows.
	Interim bool
	// Tunnel says that both directions are opaque from the end of this head
	// on: 101, or 2xx to CONNECT.
	Tunnel bool
	// Close says that the connection must not carry another request. An interim
	// response leaves that to the final one.
	Close bool

	Body Body // framing of the body that follows the head
	Len  int  // bytes of the head with the final empty line and any empty lines before it
}

// responseFields is what the fields say about framing.
type responseFields struct {
	connection connection

	length    uint64
	hasLength bool
	badLength reason // numReasons: none

	coded   bool // a transfer coding other than identity
	chunked bool // the last coding is chunked
	twice   bool // chunked is there more than once
}

// ParseResponse reads the head of a response at the start of b into h and
// returns its length; k is the Kind of its request. It returns 0 and no error
// if b does not hold the whole head yet; seen is as in ParseRequest. Every
// error is an *Error with status 502. It never allocates.
//
// Lines may end with LF alone, reasons may be missing, lines without a colon
// and folded lines pass as long as they are no part of the framing. With
// Transfer-Encoding, Content-Length is ignored and the connection is not
// reused; a coding other than chunked at the end, or any in HTTP/1.0, means a
// body until close (RFC 9112 §6.3). Refused are: differing or unreadable
// Content-Length, chunked twice, NUL, bare CR, and a 101 that nobody asked for.
func ParseResponse(h *ResponseHead, b []byte, seen int, k Kind) (int, error) {
	*h = ResponseHead{}
	full := len(b) >= MaxHead
	if full {
		b = b[:MaxHead]
	}
	n, e := 0, (*Error)(nil)
	if seen <= 0 || seen >= len(b) || bytes.IndexByte(b[seen:], '\n') >= 0 {
		n, e = h.parse(b, k)
	}
	switch {
	case e != nil:
		*h = ResponseHead{}
		return 0, e
	case n == 0 && full:
		*h = ResponseHead{}
		return 0, inResponse(headTooLarge)
	case n == 0:
		*h = ResponseHead{}
	}
	return n, nil
}

func (h *ResponseHead) parse(b []byte, k Kind) (int, *Error) {
	at, returns := 0, 0
	var line []byte
	for range maxLeading + 1 {
		end, next := anyLine(b, at)
		if next == 0 {
			return 0, nil
		}
		line = b[at:end]
		returns += next - end - 1
		at = next
		if len(line) > 0 {
			break
		}
	}
	if !h.statusLine(line) {
		return 0, inResponse(malformedStatusLine)
	}
	f := responseFields{badLength: numReasons}
	framing, first := false, true
	for range MaxFields + 1 {
		end, next := anyLine(b, at)
		if next == 0 {
			return 0, nil
		}
		line := b[at:end]
		returns += next - end - 1
		at = next
		switch {
		case len(line) == 0:
			head := b[:at]
			if bytes.Count(head, crByte) != returns {
				return 0, inResponse(bareCR)
			}
			if bytes.IndexByte(head, 0) >= 0 {
				return 0, inResponse(invalidFieldValue)
			}
			h.Len = at
			if e := h.conclude(&f, k); e != nil {
				return 0, e
			}
			return at, nil
		case line[0] == ' ' || line[0] == '\t':
			if framing || first {
				return 0, inResponse(obsFold)
			}
		case mayFrame[line[0]]:
			var e *Error
			if framing, e = f.field(line); e != nil {
				return 0, e
			}
		default:
			framing = false
		}
		first = false
	}
	return 0, inResponse(tooManyFields)
}

var crByte = []byte{'\r'}

// anyLine returns where the line of b that starts at at ends, without its LF or
// CRLF, and where the next one starts: 0 if the line is not complete.
func anyLine(b []byte, at int) (end, next int) {
	i := bytes.IndexByte(b[at:], '\n')
	if i < 0 {
		return 0, 0
	}
	end = at + i
	if i > 0 && b[end-1] == '\r' {
		return end - 1, end + 1
	}
	return end, end + 1
}

// statusLine reads "HTTP/1.x SP status [SP reason]".
func (h *ResponseHead) statusLine(line []byte) bool {
	const least = "HTTP/1.1 200"
	if len(line) < len(least) || !equalFold(line[:len("http/1.")], "http/1.") || !digit(line[7]) {
		return false
	}
	h.Minor = min(line[7]-'0', 1)
	rest := line[8:]
	i := 0
	for i < len(rest) && rest[i] == ' ' {
		i++
	}
	digits := rest[i:]
	if i == 0 || len(digits) < 3 || len(digits) > 3 && digits[3] != ' ' && digits[3] != '\t' {
		return false
	}
	status, ok := decimal(digits[:3])
	h.Status = int(status)
	return ok && status >= 100
}

// field reads one field line. framing says that the line belongs to the
// framing of the message, so that it must not go on in a folded line.
func (f *responseFields) field(line []byte) (framing bool, e *Error) {
	i := bytes.IndexByte(line, ':')
	if i <= 0 {
		return false, nil
	}
	name, value := line[:i], line[i+1:]
	if class[name[0]]&class[name[i-1]]&isToken == 0 {
		// Some readers cut odd bytes off a name, some do not.
		if name = trimName(name); equalFold(name, "content-length") || equalFold(name, "transfer-encoding") {
			return true, inResponse(spaceBeforeColon)
		}
		return false, nil
	}
	switch len(name) {
	case len("connection"):
		if equalFold(name, "connection") {
			f.connection.add(value)
			return true, nil
		}
	case len("content-length"):
		if equalFold(name, "content-length") {
			f.addLength(value)
			return true, nil
		}
	case len("transfer-encoding"):
		if equalFold(name, "transfer-encoding") {
			f.addCodings(value)
			return true, nil
		}
	}
	return false, nil
}

// mayFrame has the first bytes of lines that field must see: the letters that
// the names it knows start with, and bytes that a reader may cut off a name.
var mayFrame = func() (t [256]bool) {
	for c := range 256 {
		t[c] = class[c]&isToken == 0 || lower[c] == 'c' || lower[c] == 't'
	}
	return t
}()

// trimName cuts bytes that no name may have off both ends.
func trimName(b []byte) []byte {
	for len(b) > 0 && class[b[0]]&isToken == 0 {
		b = b[1:]
	}
	for len(b) > 0 && class[b[len(b)-1]]&isToken == 0 {
		b = b[:len(b)-1]
	}
	return b
}

// addLength reads one Content-Length field; a list of equal values passes.
func (f *responseFields) addLength(list []byte) {
	for more := true; more; {
		more = bytes.IndexByte(list, ',') >= 0
		var element []byte
		element, list = nextElement(list)
		n, ok := decimal(element)
		switch {
		case !ok:
			f.badLength = invalidLength
		case f.hasLength && n != f.length && f.badLength == numReasons:
			f.badLength = differingLengths
		}
		f.length, f.hasLength = n, true
	}
}

// addCodings reads one Transfer-Encoding field.
func (f *responseFields) addCodings(list []byte) {
	for len(list) > 0 {
		var coding []byte
		coding, list = nextElement(list)
		if i := bytes.IndexByte(coding, ';'); i >= 0 {
			coding = trim(coding[:i])
		}
		switch {
		case len(coding) == 0, equalFold(coding, "identity"):
		case equalFold(coding, "chunked"):
			f.twice = f.twice || f.chunked
			f.coded, f.chunked = true, true
		default:
			f.coded, f.chunked = true, false
		}
	}
}

// conclude draws the conclusions that need the whole head: RFC 9112 §6.3, in
// its order.
func (h *ResponseHead) conclude(f *responseFields, k Kind) *Error {
	h.Close = f.connection.closes(h.Minor)
	switch {
	case h.Status == 101:
		if k&ForUpgrade == 0 {
			return inResponse(unexpectedUpgrade)
		}
		h.Tunnel = true
	case h.Status < 200:
		h.Interim, h.Close = true, false
	case k&ForCONNECT != 0 && h.Status < 300:
		h.Tunnel = true
	case k&ForHEAD != 0, h.Status == 204, h.Status == 304:
	case f.twice:
		return inResponse(repeatedCoding)
	case f.coded && f.chunked && h.Minor >= 1:
		h.Body = chunkedBody(false)
		h.Close = h.Close || f.hasLength
	case f.coded:
		h.Body = untilCloseBody()
		h.Close = true
	case f.badLength != numReasons:
		return inResponse(f.badLength)
	case f.hasLength:
		h.Body = lengthBody(f.length, false)
	default:
		h.Body = untilCloseBody()
		h.Close = true
	}
	return nil
}
