// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/userspace/http1"
	"github.com/egressd/egressd/userspace/sniff"
)

// fromClient reads from the client where its bytes are wanted, and looks at
// what is there.
func (c *conn) fromClient() (moved bool) {
	s := &c.client
	switch c.rq {
	case rqEnding:
		return false
	case rqHeld, rqDial, rqReplay:
		// Bytes beyond the request wait in the kernel. Only whether the client
		// is there is of interest: one that left costs nothing yet. If it ended
		// its sending first, no event tells when it does.
		if s.hup && s.readable {
			if !c.stillThere() {
				c.end(false, false)
			} else if c.timer.index == 0 {
				c.l.timers.start(&c.timer, c.l.now.Add(watchTime))
			}
		}
		return false
	case rqDone:
		// The same, but the origin shall see the end of the stream, which
		// shows behind those bytes.
		if !s.hup {
			return false
		}
	case rqTunnel:
		if c.h2 != nil {
			return c.h2.fromClient()
		}
		if c.reading != nil {
			return c.relayRead()
		}
		if c.paced != nil {
			return c.relayPaced()
		}
		return c.relay(s, &c.up, &c.sent)
	}
	if s.readable && !s.eof {
		var errno unix.Errno
		if moved, errno = c.fill(s); errno != 0 {
			c.clientBroke()
			return false
		}
	}
	return c.look() || moved
}

// look interprets the client's bytes as far as the state allows.
func (c *conn) look() (moved bool) {
	s := &c.client
	for !c.closed && s.pending() > s.ok {
		fresh := s.buf[s.r+s.ok : s.w]
		switch c.rq {
		case rqSniff:
			if !c.sniff(fresh) {
				return grow(c.l, s) || moved
			}
		case rqSOCKS:
			if !c.socksClient(fresh) {
				return moved
			}
		case rqHead:
			// One at a time: a refusal must not land in the middle of the
			// answer before, nor what nobody asked for be taken for the next.
			if s.ok > 0 || c.up.pending() > 0 {
				return moved
			}
			if !c.head(fresh) {
				return grow(c.l, s) || moved
			}
		case rqSend:
			n, done, err := c.reqBody.Scan(fresh)
			s.ok += n
			if err != nil {
				c.badRequest(err)
				return true
			}
			if done {
				c.rq = rqDone
			} else if n == 0 {
				return moved
			}
			c.copyRequest(fresh[:n])
		case rqDiscard:
			n, done, err := c.reqBody.Scan(fresh)
			s.r += n
			if err != nil {
				c.linger()
			} else if done {
				c.nextRequest()
			}
			c.release(s)
		case rqLinger:
			s.r = s.w
			c.release(s)
		default:
			return moved
		}
		moved = true
	}
	return moved
}

// sniff decides what the connection carries. It reports whether it did.
func (c *conn) sniff(b []byte) bool {
	switch sniff.First(b) {
	case sniff.NeedMore:
		if !c.client.eof {
			c.undecided()
			return false
		}
		c.admitOpaque(c.flow.Dest.Addr().String())
	case sniff.HTTP1:
		c.calm()
		c.rq = rqHead
	case sniff.HTTP2:
		c.admitH2()
	case sniff.SOCKS4, sniff.SOCKS5:
		if c.outside() && !c.pooled() {
			c.startSOCKS()
			return true
		}
		c.admitOpaque(c.flow.Dest.Addr().String())
	case sniff.TLS:
		if c.outside() {
			c.admitOpaque("") // the proxy's own: it says nothing of the inside
			break
		}
		hello, status := sniff.ClientHello(b)
		if status == sniff.Incomplete && !c.client.eof {
			c.undecided()
			return false
		}
		c.isTLS, c.offersH2, c.random = status == sniff.Complete, slices.Contains(hello.ALPN, "h2"), hello.Random
		c.knowMode(hello.SNI, b)
		if c.inside() {
			c.admitHello(hello.SNI)
			break
		}
		host := hello.SNI
		if host == "" {
			host = c.flow.Dest.Addr().String()
		}
		c.admitOpaque(host)
	default:
		c.admitOpaque(c.flow.Dest.Addr().String())
	}
	c.l.timers.stop(&c.timer)
	return true
}

// undecided makes sure that bytes which could become a protocol that we know
// are not waited for without end.
func (c *conn) undecided() {
	if c.outside() {
		c.hurry()
		return
	}
	if c.timer.index == 0 {
		c.l.timers.start(&c.timer, c.l.now.Add(undecidedTime))
	}
}

// grow makes room for a head longer than the usual buffer. It reports whether
// it did: then there may be more to read that made the buffer's old end the end
// of reading.
func grow(l *loop, s *side) bool {
	if s.w < len(s.buf) || s.r > 0 || len(s.buf) >= headSpace {
		return false
	}
	long := make([]byte, headSpace)
	copy(long, s.buf[:s.w])
	l.buffers.put(s.buf)
	s.buf = long
	return true
}

// head reads a request head. It reports whether one was complete.
func (c *conn) head(b []byte) bool {
	n, err := http1.ParseRequest(&c.req, b, c.seen)
	if err != nil {
		c.badRequest(err)
		return true
	}
	if n == 0 {
		c.seen = len(b)
		if c.outside() && connects(b) {
			c.hurry()
		}
		return false
	}
	c.calm()
	c.seen = 0
	c.reqBody = c.req.Body
	c.kind = c.req.Kind()
	c.admitRequest()
	return true
}

// answer sends a response of our own. The client's request is dropped with its
// body; if it keeps the connection (keep) the next request may follow.
func (c *conn) answer(response []byte, keep bool) {
	u := &c.up
	if u.pending() > 0 {
		c.forgetUpstream() // said while the request was held
		keep = keep && !c.fixed()
	}
	if u.buf == nil {
		u.buf = c.l.buffers.get()
	}
	u.r, u.w, u.ok = 0, copy(u.buf, response), len(response)
	c.own = len(response)
	if !keep {
		c.linger()
		return
	}
	c.client.r += c.req.Len
	c.rq = rqDiscard
	if c.reqBody.Done() {
		c.nextRequest()
	}
	c.release(&c.client)
}

// nextRequest makes the connection ready for another exchange.
func (c *conn) nextRequest() {
	c.forget()
	c.rq, c.rs, c.seen = rqHead, rsIdle, 0
}

// linger drops whatever the client still sends, for a while, so that it can
// read the answer: closing with unread bytes would reset the connection.
func (c *conn) linger() {
	c.forsake()
	c.forget()
	c.rq = rqLinger
	c.discard()
	c.dropUpstream()
	c.l.timers.start(&c.timer, c.l.now.Add(lingerTime))
}

// discard drops what was read from the client.
func (c *conn) discard() {
	s := &c.client
	s.r, s.ok = s.w, 0
	c.release(s)
	if s.pipe != nil {
		c.l.pipes.put(s.pipe)
		s.pipe = nil
	}
}
