// SPDX-License-Identifier: Apache-2.0

package heads

import (
	"math"

	"github.com/egressd/egressd/userspace/h2"
	"github.com/egressd/egressd/userspace/http1"
)

const forever = math.MaxInt64

// protocol is what a direction speaks.
type protocol uint8

const (
	undecided protocol = iota
	http1x
	http2
)

// Client reads the client's direction of a connection. The zero value is ready,
// at the start of the connection.
type Client struct {
	speaks  protocol
	late    bool
	preface int // bytes of the preface so far
	one     one
	two     *two
	last    uint32 // HTTP/2: the highest stream so far
	begun   bool   // HTTP/2: Begin was told for the frame that comes
	request Request
	text    text
	parsed  http1.RequestHead
	err     error
}

// HTTP2 reports whether the client sent the preface of HTTP/2.
func (c *Client) HTTP2() bool { return c.speaks == http2 }

// Tunnel says that an HTTP/1 connection became a tunnel, by a 101 or by a 2xx to
// CONNECT: everything from here on is opaque and is passed over without events
// or errors.
func (c *Client) Tunnel() {
	if c.speaks != http2 {
		c.speaks, c.one.tunnel, c.err = http1x, true, nil
	}
}

// Next looks at b, the next bytes of the stream. It consumes n of them, all if
// there is no event, and stops after at most one event. The kinds of events are:
//
// Begin: b[n:] starts a request. n may be 0; the next call goes on with the same
// bytes. In HTTP/1 it comes before the first byte of the request line, in HTTP/2
// before the Headers frame of a new stream. Where the bytes at hand do not tell
// yet (a start of HTTP/2's preface, less than a frame's header) they are consumed
// before it; nobody can act on these.
//
// RequestHead: the head ended at n. End: the request ended at n, and its head was
// not its end. Reset, GoAway: the client sent such a frame.
//
// An error wraps ErrDoubt and stays.
func (c *Client) Next(b []byte) (n int, ev Event, err error) {
	if c.err != nil {
		return 0, Event{}, c.err
	}
	if len(b) == 0 {
		return 0, Event{}, nil
	}
	if c.speaks == undecided {
		n, err = c.decide(b)
		if err == nil && c.speaks == undecided {
			return n, Event{}, nil
		}
	}
	k := 0
	switch {
	case err != nil:
	case c.speaks == http2:
		k, ev, err = c.next2(b[n:])
	default:
		k, ev, err = c.next1(b[n:])
	}
	if err != nil {
		c.err = doubt(err)
		return 0, Event{}, c.err
	}
	return n + k, ev, nil
}

// decide tells the protocol by the first bytes and consumes the preface.
func (c *Client) decide(b []byte) (n int, err error) {
	if c.late {
		return c.resync(b), nil
	}
	for n < len(b) && c.preface < len(h2.Preface) && b[n] == h2.Preface[c.preface] {
		n++
		c.preface++
	}
	switch {
	case c.preface == len(h2.Preface):
		c.start2(false)
		return n, nil
	case n == len(b):
		return n, nil
	}
	// What was consumed in earlier calls is the start of a request line.
	c.speaks = http1x
	c.one.head = append(c.one.head, h2.Preface[:c.preface-n]...)
	return 0, nil
}

func (c *Client) start2(late bool) {
	c.speaks, c.two = http2, new(two)
	c.two.init(late)
}

func (c *Client) next1(b []byte) (n int, ev Event, err error) {
	o := &c.one
	switch {
	case o.tunnel:
		return len(b), Event{}, nil
	case o.inBody:
		n, done, err := o.scan(b)
		if done {
			ev.Kind = End
		}
		return n, ev, err
	case !o.begun:
		if len(o.head) > 0 && c.preface == 0 {
			o.drop()
		}
		for n < len(b) && len(o.head) == 0 && (b[n] == '\r' || b[n] == '\n') {
			if o.leading++; o.leading > maxLeading {
				return 0, ev, errLeading
			}
			n++
		}
		if n == len(b) {
			return n, ev, nil
		}
		o.begun, o.leading, c.preface = true, 0, 0
		return n, Event{Kind: Begin}, nil
	}
	head, n, err := o.gather(b, func(p []byte, seen int) (int, error) {
		return http1.ParseRequest(&c.parsed, p, seen)
	})
	if err != nil || head == nil {
		return n, ev, err
	}
	o.begun = false
	o.body = c.parsed.Body
	o.inBody = !o.body.Done()
	c.read1(head)
	return n, Event{Kind: RequestHead, Request: &c.request}, nil
}

func (c *Client) next2(b []byte) (n int, ev Event, err error) {
	for n < len(b) {
		if !c.begun {
			if h, ok := c.two.framer.Peek(b[n:]); ok && h.Type == h2.Headers && h.Stream > c.last {
				if h.Stream%2 == 0 {
					return 0, ev, errStream
				}
				c.begun = true
				return n, Event{Kind: Begin, Stream: h.Stream}, nil
			}
		}
		k, what, err := c.two.step(b[n:])
		if err != nil {
			return 0, ev, err
		}
		n += k
		stream := c.two.framer.Frame().Stream
		switch what {
		case headers:
			block := c.two.headers.Block()
			if c.begun {
				c.begun, c.last = false, stream
				if !c.late || !trailers(c.two.fields.Fields) {
					c.read2(block)
					return n, Event{Kind: RequestHead, Stream: stream, Request: &c.request}, nil
				}
			}
			if block.Frame.EndsStream() {
				return n, Event{Kind: End, Stream: stream}, nil
			}
		case promise:
			return 0, ev, errStream // only servers push
		case dataEnd:
			return n, Event{Kind: End, Stream: stream}, nil
		case resetFrame:
			return n, c.two.reset(), nil
		case goAway:
			return n, c.two.away(), nil
		}
	}
	return n, ev, nil
}

// trailers reports whether a block is certainly no head: pseudo-header fields
// come first (RFC 9113 §8.3).
func trailers(fields []h2.Field) bool {
	return len(fields) > 0 && !fields[0].Unknown && (len(fields[0].Name) == 0 || fields[0].Name[0] != ':')
}

// Skippable returns how many bytes from here on are part of a body, or of a
// frame that nothing is read from, and carry no event; 0 if none are known.
func (c *Client) Skippable() int64 { return skippable(c.err, c.speaks, &c.one, c.two) }

// Skip says that n bytes, at most Skippable, went by unseen.
func (c *Client) Skip(n int64) { skip(n, c.speaks, &c.one, c.two) }

func skippable(err error, speaks protocol, o *one, t *two) int64 {
	switch {
	case err != nil || speaks == undecided:
		return 0
	case speaks == http2:
		return t.skippable()
	}
	return o.skippable()
}

func skip(n int64, speaks protocol, o *one, t *two) {
	switch {
	case speaks == http2:
		t.framer.Skip(uint32(n))
	case !o.tunnel:
		o.body.Skip(uint64(n))
	}
}
