// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"encoding/binary"
	"strconv"
)

// AppendStatus appends the field :status to a header block: its index if the
// static table has that status, else a literal without indexing. No table is
// changed by it.
func AppendStatus(dst []byte, status int) []byte {
	if i := staticStatuses[status]; i != 0 {
		return append(dst, 0x80|i)
	}
	dst = appendInteger(dst, 0, 4, 8)
	return appendString(dst, strconv.AppendInt(nil, int64(status), 10), false)
}

// AppendField appends a field to a header block, as a literal without indexing,
// so that no table is changed by it. The name is in lower case.
func AppendField(dst, name, value []byte) []byte {
	if i := staticNames[string(name)]; i != 0 {
		dst = appendInteger(dst, 0, 4, uint64(i))
	} else {
		dst = appendString(append(dst, 0), name, false)
	}
	return appendString(dst, value, false)
}

// AppendHeaders appends a header block as a Headers frame and, if it is longer
// than maxFrame bytes, Continuation frames. flags may be EndStream.
func AppendHeaders(dst []byte, stream uint32, flags Flags, block []byte, maxFrame int) []byte {
	for t := Headers; ; t = Continuation {
		n := min(len(block), maxFrame)
		h := FrameHeader{Length: uint32(n), Type: t, Stream: stream}
		if t == Headers {
			h.Flags = flags & EndStream
		}
		if n == len(block) {
			h.Flags |= EndHeaders
		}
		dst = append(AppendFrameHeader(dst, h), block[:n]...)
		if block = block[n:]; len(block) == 0 {
			return dst
		}
	}
}

// AppendData appends p as Data frames of at most maxFrame bytes, at least one.
// end sets EndStream on the last.
func AppendData(dst []byte, stream uint32, p []byte, end bool, maxFrame int) []byte {
	for {
		n := min(len(p), maxFrame)
		h := FrameHeader{Length: uint32(n), Type: Data, Stream: stream}
		if n == len(p) && end {
			h.Flags = EndStream
		}
		dst = append(AppendFrameHeader(dst, h), p[:n]...)
		if p = p[n:]; len(p) == 0 {
			return dst
		}
	}
}

// Code is why a stream or a connection is ended (RFC 9113 §7).
type Code uint32

// Codes that egressd sends or looks for.
const (
	NoError         Code = 0x0
	ProtocolError   Code = 0x1
	InternalError   Code = 0x2
	StreamClosed    Code = 0x5
	RefusedStream   Code = 0x7 // the request was not looked at and may be sent again
	Cancel          Code = 0x8
	EnhanceYourCalm Code = 0xb
)

// AppendReset appends an RSTStream frame.
func AppendReset(dst []byte, stream uint32, code Code) []byte {
	dst = AppendFrameHeader(dst, FrameHeader{Length: 4, Type: RSTStream, Stream: stream})
	return binary.BigEndian.AppendUint32(dst, uint32(code))
}

// AppendWindowUpdate appends a WindowUpdate frame of n bytes, 1 to 2^31-1, for a
// stream or, if that is 0, the connection.
func AppendWindowUpdate(dst []byte, stream, n uint32) []byte {
	dst = AppendFrameHeader(dst, FrameHeader{Length: 4, Type: WindowUpdate, Stream: stream})
	return binary.BigEndian.AppendUint32(dst, n)
}

// AppendGoAway appends a GoAway frame: last is the highest stream of the peer
// that was or may be looked at.
func AppendGoAway(dst []byte, last uint32, code Code) []byte {
	dst = AppendFrameHeader(dst, FrameHeader{Length: 8, Type: GoAway})
	dst = binary.BigEndian.AppendUint32(dst, last)
	return binary.BigEndian.AppendUint32(dst, uint32(code))
}
