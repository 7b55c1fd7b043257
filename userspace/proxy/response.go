// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"github.com/egressd/egressd/userspace/http1"
	"golang.org/x/sys/unix"
)

// toUpstream hands on what the origin may have.
func (c *conn) toUpstream() (moved bool) {
	if c.client.ok == 0 || !c.connected || c.up.fd < 0 {
		return false
	}
	moved, errno := c.drain(&c.client, &c.up, &c.sent)
	if moved {
		c.wrote = true
	}
	if errno != 0 {
		c.upstreamWriteFailed()
	}
	return moved
}

// upstreamWriteFailed: the origin takes no more. It may have answered before,
// and that answer must still reach the client.
func (c *conn) upstreamWriteFailed() {
	c.up.readable = true
	c.up.shut = true
	c.client.r += c.client.ok
	c.client.ok = 0
	if c.rq == rqSend {
		// The rest of the body has nowhere to go.
		c.rq = rqLinger
		c.client.r = c.client.w
		c.l.timers.start(&c.timer, c.l.now.Add(lingerTime))
	}
	c.release(&c.client)
}

// fromUpstream reads from the origin and looks at what is there.
func (c *conn) fromUpstream() (moved bool) {
	s := &c.up
	if s.fd < 0 || !c.connected {
		return false
	}
	if c.rs == rsTunnel && c.rq == rqTunnel {
		return c.relay(s, &c.client, &c.received)
	}
	if s.readable && !s.eof {
		var errno unix.Errno
		if moved, errno = c.fill(s); errno != 0 {
			c.upstreamBroke()
			return false
		}
	}
	return c.lookBack() || moved
}

// lookBack interprets the origin's bytes.
func (c *conn) lookBack() (moved bool) {
	s := &c.up
	for !c.closed && s.pending() > s.ok {
		fresh := s.buf[s.r+s.ok : s.w]
		switch c.rs {
		case rsHead:
			if !c.responseHead(fresh) {
				return moved
			}
		case rsBody:
			n, done, err := c.resBody.Scan(fresh)
			s.ok += n
			if err != nil {
				// Framing that cannot be followed: the client decides what it
				// makes of the bytes, and no further request shares the
				// connection.
				c.unframed()
			} else if done {
				c.rs = rsDone
			} else if n == 0 {
				return moved
			}
		case rsTunnel:
			s.ok = s.pending()
		case rsIdle:
			switch c.rq {
			case rqSniff:
				// The server speaks first.
				c.l.timers.stop(&c.timer)
				c.admitOpaque(c.flow.Dest.Addr().String())
				return true
			case rqHead:
				// An answer that nobody asked for, like a 408 before the
				// connection closes. It goes on as it is, and is the last.
				c.unframed()
			default:
				return moved
			}
		default: // rsDone: the next answer, if ever, belongs to the next request
			return moved
		}
		moved = true
	}
	return moved
}

// unframed forwards the rest of the origin's bytes as they come, until it
// closes; no further request is taken from the client.
func (c *conn) unframed() {
	c.rs = rsTunnel
	if c.rq == rqHead || c.rq == rqDone {
		c.rq = rqLinger
	}
}

// responseHead reads a response head. It reports whether one was complete.
func (c *conn) responseHead(b []byte) bool {
	n, err := http1.ParseResponse(&c.resp, b, c.seen, c.kind)
	if err != nil {
		c.answered(nil)
		c.unframed()
		return true
	}
	if n == 0 {
		c.seen = len(b)
		grow(c.l, &c.up) // ParseResponse itself refuses a head that is too long
		return false
	}
	c.seen = 0
	c.up.ok += n
	switch {
	case c.resp.Tunnel:
		c.answered(b[:n])
		c.rs = rsTunnel
		c.rq = rqTunnel
		c.client.ok = c.client.pending()
	case c.resp.Interim:
		// The final answer follows.
	default:
		c.answered(b[:n])
		c.resBody = c.resp.Body
		c.rs = rsBody
		if c.resBody.Done() {
			c.rs = rsDone
		}
	}
	return true
}

// toClient hands on what the client may have.
func (c *conn) toClient() (moved bool) {
	if c.up.ok == 0 {
		return false
	}
	moved, errno := c.deliver()
	if errno != 0 {
		c.clientBroke()
	}
	return moved
}

// deliver writes what the client may have, and counts what of it the origin
// sent.
func (c *conn) deliver() (moved bool, errno unix.Errno) {
	var n int64
	moved, errno = c.drain(&c.up, &c.client, &n)
	own := min(int64(c.own), n)
	c.own -= int(own)
	c.received += n - own
	return moved, errno
}

// turn makes the transitions that depend on both directions: the end of an
// exchange, and ends of streams that must be passed on.
func (c *conn) turn() (moved bool) {
	cl, up := &c.client, &c.up
	if c.rs == rsDone && c.rq == rqDone && !c.resp.Close {
		c.note()
		c.nextRequest()
		moved = true
	}
	if up.pending() > 0 && !(c.rq == rqTunnel && cl.eof) {
		return moved // the client has bytes to come first
	}
	switch {
	case c.rs == rsDone && c.resp.Close:
		// The last answer of this connection is with the client.
		if c.rq == rqDone {
			c.finish()
			return true
		}
		if c.rq == rqSend {
			c.linger()
			return true
		}
	case c.rq == rqLinger && up.fd < 0 && !cl.shut:
		c.shutdown(cl)
		moved = true
	case c.rq == rqLinger && up.fd < 0 && cl.eof:
		c.finish()
		return true
	}
	if up.eof && up.pipe == nil {
		if c.upstreamEnded() {
			return true
		}
	}
	if cl.eof && cl.ok == 0 && cl.pipe == nil {
		if c.clientEnded() {
			return true
		}
	}
	return moved
}

// upstreamEnded passes the end of the origin's stream on. It reports whether
// something changed.
func (c *conn) upstreamEnded() bool {
	cl := &c.client
	switch {
	case c.rs == rsIdle && (c.rq == rqHeld || c.rq == rqDial):
		// The origin gave up an idle connection while the next request is
		// held here. The client had no share in that: a new one is made when
		// the request may go.
		c.dropUpstream()
		return true
	case c.rq == rqTunnel:
		if !cl.shut {
			c.shutdown(cl)
			return true
		}
		if cl.eof {
			c.finish()
			return true
		}
		return false
	case c.rq == rqSend && (c.rs == rsDone || c.rs == rsBody || c.rs == rsTunnel):
		// Answered early, and gone.
		c.linger()
		return true
	case c.rq == rqLinger && c.rs != rsHead:
		c.dropUpstream()
		return true
	default:
		c.finish()
		return true
	}
}

// clientEnded passes the end of the client's stream on. It reports whether
// something changed.
func (c *conn) clientEnded() bool {
	up := &c.up
	switch c.rq {
	case rqHead, rqDiscard:
		c.finish()
		return true
	case rqSniff:
		if c.client.pending() == 0 {
			c.finish()
			return true
		}
		return false
	case rqSend:
		// The body is cut short. What the origin makes of that is for it to
		// say.
		c.rq = rqDone
		c.resp.Close = true
	case rqTunnel:
		if up.shut && up.eof {
			c.finish()
			return true
		}
	case rqLinger:
		if up.fd < 0 {
			c.finish()
			return true
		}
	}
	if up.fd >= 0 && c.connected && !up.shut {
		c.shutdown(up)
		return true
	}
	return false
}

// clientBroke: the client reset its connection, and so do we towards the
// origin.
func (c *conn) clientBroke() { c.end(false, true) }

// upstreamBroke: the origin reset its connection. The client sees the same,
// after the bytes that came before.
func (c *conn) upstreamBroke() {
	if c.rs == rsIdle && (c.rq == rqHeld || c.rq == rqDial) {
		c.dropUpstream()
		return
	}
	c.deliver()
	c.end(true, false)
}
