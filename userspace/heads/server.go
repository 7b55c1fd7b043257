// SPDX-License-Identifier: Apache-2.0

package heads

import (
	"github.com/egressd/egressd/userspace/h2"
	"github.com/egressd/egressd/userspace/http1"
)

// maxExpected is the number of requests that an HTTP/1 client may send ahead of
// their answers.
const maxExpected = 1024

// Server reads the server's direction of a connection. The zero value is ready,
// at the start of the connection.
type Server struct {
	speaks   protocol
	late     bool
	one      one
	two      *two
	expected []http1.Kind // of requests without an answer yet, in order
	kind     http1.Kind   // of the request whose answer is being read
	reading  bool         // kind was taken
	open     streams      // HTTP/2, late: streams whose head has come
	response Response
	parsed   http1.ResponseHead
	err      error
}

// HTTP2 reports whether the server speaks HTTP/2.
func (s *Server) HTTP2() bool { return s.speaks == http2 }

// Expect says that an HTTP/1 request of kind k was sent, in the order of the
// requests and before its answer is read. An answer that none was expected for
// is read as one to GET.
func (s *Server) Expect(k http1.Kind) {
	if len(s.expected) == maxExpected {
		if s.err == nil {
			s.err = doubt(errPipeline)
		}
		return
	}
	s.expected = append(s.expected, k)
}

// Next looks at b, the next bytes of the stream. It consumes n of them, all if
// there is no event, and stops after at most one event. The kinds of events are:
//
// ResponseHead: the head ended at n; interim ones too, and in HTTP/2 those of
// pushed responses, which have even streams. End: the response ended at n, and
// its head was not its end. Reset, GoAway: the server sent such a frame.
//
// A body that ends with the connection has no End; EndsAtEOF tells of it. After
// a head with Tunnel, everything is passed over.
//
// An error wraps ErrDoubt and stays.
func (s *Server) Next(b []byte) (n int, ev Event, err error) {
	if s.err != nil {
		return 0, Event{}, s.err
	}
	if len(b) == 0 {
		return 0, Event{}, nil
	}
	if s.speaks == undecided {
		n, err = s.decide(b)
		if err == nil && s.speaks == undecided {
			return n, Event{}, nil
		}
	}
	switch {
	case err != nil:
	case s.speaks == http2:
		n, ev, err = s.next2(b)
	default:
		n, ev, err = s.next1(b)
	}
	if err != nil {
		s.err = doubt(err)
		return 0, Event{}, s.err
	}
	return n, ev, nil
}

// decide tells the protocol by the first byte: HTTP/1 starts with a letter or an
// empty line, HTTP/2 with the length of a SETTINGS frame, which has no more than
// 16 bits.
func (s *Server) decide(b []byte) (n int, err error) {
	if s.late {
		return s.resync(b), nil
	}
	switch b[0] {
	case 'H', 'h', '\r', '\n':
		s.speaks = http1x
	case 0:
		s.start2(false)
	default:
		return 0, errNotHTTP
	}
	return 0, nil
}

func (s *Server) start2(late bool) {
	s.speaks, s.two = http2, new(two)
	s.two.init(late)
}

func (s *Server) next1(b []byte) (n int, ev Event, err error) {
	o := &s.one
	switch {
	case o.tunnel:
		return len(b), ev, nil
	case o.inBody:
		n, done, err := o.scan(b)
		if done {
			ev.Kind = End
		}
		return n, ev, err
	case !o.begun:
		o.drop()
		o.begun = true
		if !s.reading {
			s.kind, s.reading = 0, true
			if len(s.expected) > 0 {
				s.kind = s.expected[0]
				s.expected = s.expected[:copy(s.expected, s.expected[1:])]
			}
		}
	}
	head, n, err := o.gather(b, func(p []byte, seen int) (int, error) {
		return http1.ParseResponse(&s.parsed, p, seen, s.kind)
	})
	if err != nil || head == nil {
		return n, ev, err
	}
	h := &s.parsed
	o.begun = false
	o.body = h.Body
	o.inBody = !o.body.Done()
	o.tunnel = h.Tunnel
	s.reading = h.Interim // the same request has another answer yet
	s.response = Response{
		Status:  h.Status,
		Interim: h.Interim,
		End:     !h.Interim && !h.Tunnel && o.body.Done(),
		Tunnel:  h.Tunnel,
		Close:   h.Close,
		list:    fieldList{head: head},
	}
	return n, Event{Kind: ResponseHead, Response: &s.response}, nil
}

func (s *Server) next2(b []byte) (n int, ev Event, err error) {
	for n < len(b) {
		k, what, err := s.two.step(b[n:])
		if err != nil {
			return 0, ev, err
		}
		n += k
		stream := s.two.framer.Frame().Stream
		switch what {
		case headers:
			if ev, ok := s.read2(); ok {
				return n, ev, nil
			}
		case dataEnd:
			s.open.remove(stream)
			return n, Event{Kind: End, Stream: stream}, nil
		case resetFrame:
			s.open.remove(stream)
			return n, s.two.reset(), nil
		case goAway:
			return n, s.two.away(), nil
		}
	}
	return n, ev, nil
}

// read2 makes the event of a complete header block: a head, or trailers.
func (s *Server) read2() (ev Event, ok bool) {
	frame := s.two.headers.Block().Frame
	fields, partial := s.two.fields.Fields, s.two.fields.Partial
	stream, end := frame.Stream, frame.EndsStream()
	status := statusOf(fields)
	if status == 0 && !(len(fields) > 0 && fields[0].Unknown && !(end && s.open.has(stream))) {
		s.open.remove(stream)
		return Event{Kind: End, Stream: stream}, end
	}
	interim := status >= 100 && status < 200
	if s.late && !interim {
		if end {
			s.open.remove(stream)
		} else {
			s.open.add(stream)
		}
	}
	s.response = Response{
		Stream:  stream,
		Status:  status,
		Interim: interim,
		Partial: partial,
		End:     end && !interim,
		list:    fieldList{block: fields},
	}
	return Event{Kind: ResponseHead, Stream: stream, Response: &s.response}, true
}

// statusOf returns the status that a block begins with (RFC 9113 §8.3.2), or 0.
func statusOf(fields []h2.Field) int {
	if len(fields) == 0 || string(fields[0].Name) != ":status" || len(fields[0].Value) != 3 {
		return 0
	}
	status := 0
	for _, c := range fields[0].Value {
		if c < '0' || c > '9' {
			return 0
		}
		status = status*10 + int(c-'0')
	}
	if status < 100 {
		return 0
	}
	return status
}

// EndsAtEOF reports whether no message is cut short if the stream ends here.
func (s *Server) EndsAtEOF() bool {
	switch {
	case s.speaks == undecided || s.err != nil || s.one.tunnel:
		return true
	case s.speaks == http2:
		return s.two.framer.Between() && !s.two.framer.InBlock()
	case s.one.inBody:
		return s.one.body.EndsAtEOF()
	}
	return !s.one.begun && !s.reading
}

// Skippable returns how many bytes from here on are part of a body, or of a
// frame that nothing is read from, and carry no event; math.MaxInt64 for a body
// that ends with the connection and in a tunnel; 0 if none are known.
func (s *Server) Skippable() int64 { return skippable(s.err, s.speaks, &s.one, s.two) }

// Skip says that n bytes, at most Skippable, went by unseen.
func (s *Server) Skip(n int64) { skip(n, s.speaks, &s.one, s.two) }
