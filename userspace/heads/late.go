// SPDX-License-Identifier: Apache-2.0

package heads

import (
	"bytes"

	"github.com/egressd/egressd/userspace/h2"
)

// NewLateClient returns a Client for a connection that is joined in its middle.
// What a call of Next is given may then begin anywhere; bytes are passed over
// until a call whose first bytes are a request line of HTTP/1, or the header of
// a frame of HTTP/2, after which nothing may be missing. The caller sees to it
// that a call begins where a message or frame may begin: with what one read or
// write of the process was given.
//
// What HPACK's table held before is not known, which makes heads Partial.
// Trailers of a request whose head was not seen give Begin and End.
func NewLateClient() *Client { return &Client{late: true} }

// NewLateServer returns a Server for a connection that is joined in its middle,
// as NewLateClient does, at a status line or at a frame.
func NewLateServer() *Server { return &Server{late: true} }

// resync starts at b if a message may start there, and consumes it otherwise.
func (c *Client) resync(b []byte) (n int) {
	switch {
	case bytes.HasPrefix(b, []byte(h2.Preface)):
		c.late, c.preface = false, len(h2.Preface)
		c.start2(false)
		return len(h2.Preface)
	case startsRequest(b):
		c.speaks = http1x
	case startsFrames(b):
		c.start2(true)
	default:
		return len(b)
	}
	return 0
}

func (s *Server) resync(b []byte) (n int) {
	switch {
	case bytes.HasPrefix(b, []byte("HTTP/1.")):
		s.speaks = http1x
	case startsFrames(b):
		s.start2(true)
	default:
		return len(b)
	}
	return 0
}

// methods are what a request line is known by.
var methods = [][]byte{
	[]byte("GET "), []byte("POST "), []byte("HEAD "), []byte("PUT "), []byte("PATCH "),
	[]byte("DELETE "), []byte("OPTIONS "), []byte("CONNECT "), []byte("TRACE "),
}

func startsRequest(b []byte) bool {
	for _, m := range methods {
		if bytes.HasPrefix(b, m) {
			return true
		}
	}
	return false
}

// startsFrames reports whether b looks like frames from its first byte on: each
// header that it holds has a known type, flags that this type has, and a size
// that needs no permission.
func startsFrames(b []byte) bool {
	var f h2.Framer
	if len(b) < h2.FrameHeaderLen {
		return false
	}
	for len(b) > 0 {
		if h, ok := f.Peek(b); ok && !usual(h) {
			return false
		}
		n, _, err := f.Next(b)
		if err != nil {
			return false
		}
		b = b[n:]
	}
	return true
}

// usualFlags are the flags that a type of frame has.
var usualFlags = [...]h2.Flags{
	h2.Data:         h2.EndStream | h2.Padded,
	h2.Headers:      h2.EndStream | h2.EndHeaders | h2.Padded | h2.PriorityFlag,
	h2.Priority:     0,
	h2.RSTStream:    0,
	h2.Settings:     h2.Ack,
	h2.PushPromise:  h2.EndHeaders | h2.Padded,
	h2.Ping:         h2.Ack,
	h2.GoAway:       0,
	h2.WindowUpdate: 0,
	h2.Continuation: h2.EndHeaders,
}

func usual(h h2.FrameHeader) bool {
	return int(h.Type) < len(usualFlags) && h.Flags&^usualFlags[h.Type] == 0
}

// streams is a small set of open streams, the oldest of which go when it is
// full: what a client gave up is never closed by the server.
type streams struct{ list []uint32 }

// maxStreams is more than servers let a client have open at once.
const maxStreams = 256

func (s *streams) has(stream uint32) bool { return s.index(stream) >= 0 }

func (s *streams) index(stream uint32) int {
	for i, v := range s.list {
		if v == stream {
			return i
		}
	}
	return -1
}

func (s *streams) add(stream uint32) {
	if s.has(stream) {
		return
	}
	if len(s.list) == maxStreams {
		s.list = s.list[:copy(s.list, s.list[1:])]
	}
	s.list = append(s.list, stream)
}

func (s *streams) remove(stream uint32) {
	if i := s.index(stream); i >= 0 {
		s.list = append(s.list[:i], s.list[i+1:]...)
	}
}
