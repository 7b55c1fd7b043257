// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"github.com/egressd/egressd/userspace/http1"
	"golang.org/x/sys/unix"
)

// toUpstream hands on what the origin may have.
func (c *conn) toUpstream() (moved bool) {
	cl := &c.client
	switch {
	case c.rq == rqReplay:
		return c.sendAgain()
	case cl.ok == 0:
		return false
	case c.again != nil && (c.up.broken || c.up.fd < 0): // only the copy is still wanted
		cl.r += cl.ok
		cl.ok = 0
		c.release(cl)
		return true
	case !c.connected || c.up.fd < 0:
		return false
	}
	moved, errno := c.drain(&c.client, &c.up, &c.sent)
	if moved {
		c.wrote = true
	}
	if errno != 0 {
		c.upstreamWriteFailed(errno)
	}
	return moved
}

// upstreamWriteFailed: the origin takes no more. It may have answered before,
// and that answer must still reach the client.
func (c *conn) upstreamWriteFailed(errno unix.Errno) {
	u := &c.up
	u.readable, u.shut, u.broken = true, true, true
	u.reset = errno != unix.EPIPE // that is: it came behind a FIN
	switch {
	case c.rq == rqReplay:
		c.again.left, c.again.body = nil, nil
		c.rq = rqDone
		if c.rs != rsHead && !c.keeping() {
			c.forget()
		}
	case c.rq == rqDone, c.again != nil && (c.rs == rsHead || c.keeping()):
		// What follows are other requests, or it is the rest of one that may be
		// repeated.
		c.client.r += c.client.ok
		c.client.ok = 0
		c.release(&c.client)
	default:
		c.nowhere()
	}
}

// nowhere drops the rest of a request's body, which has nowhere to go.
func (c *conn) nowhere() {
	c.discard()
	if c.rq == rqSend {
		c.rq = rqLinger
		c.l.timers.start(&c.timer, c.l.now.Add(lingerTime))
	}
}

// fromUpstream reads from the origin and looks at what is there.
func (c *conn) fromUpstream() (moved bool) {
	s := &c.up
	if s.fd < 0 || !c.connected {
		return false
	}
	if c.rs == rsTunnel && c.rq == rqTunnel {
		if c.h2 != nil {
			return c.h2.fromServer()
		}
		return c.relay(s, &c.client, &c.received)
	}
	if s.readable && !s.eof {
		var errno unix.Errno
		if moved, errno = c.fill(s); errno != 0 {
			c.upstreamBroke()
			return false
		}
	}
	moved = c.lookBack() || moved
	return !c.closed && c.keepOn() || moved
}

// lookBack interprets the origin's bytes.
func (c *conn) lookBack() (moved bool) {
	s := &c.up
	for !c.closed && s.pending() > s.ok+c.kept {
		fresh := s.buf[s.r+s.ok+c.kept : s.w]
		switch c.rs {
		case rsSOCKS:
			if !c.socksServer(fresh) {
				if s.eof {
					c.hungUp() // in the middle of it
				}
				return s.eof || moved
			}
		case rsHead:
			if !c.responseHead(fresh) {
				if !s.eof {
					return grow(c.l, s) || moved // ParseResponse itself refuses a head that is too long
				}
				if !c.unanswered() {
					c.unframed()
				}
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
		case rsKeep:
			n, done, err := c.resBody.Scan(fresh)
			c.kept += n
			if err != nil {
				c.passOn()
			} else if done {
				c.rs = rsKept
			}
		case rsKept:
			return moved
		case rsTunnel:
			s.ok = s.pending()
		case rsIdle:
			switch c.rq {
			case rqSniff:
				if greets(fresh) && !s.eof && !c.outside() {
					return moved // in HTTP/2 it may; the client's bytes tell
				}
				// The server speaks first.
				c.l.timers.stop(&c.timer)
				c.admitOpaque(c.flow.Dest.Addr().String())
				return true
			case rqHead:
				// An answer that nobody asked for, like a 408 before the
				// connection closes. It goes on as it is, and is the last.
				if c.idleEnded() {
					return true
				}
				c.unframed()
			case rqHeld:
				if c.opaque || !c.fixed() {
					return moved
				}
				c.lost() // whatever it is, it is the last word
			default:
				return moved
			}
		default: // rsDone: the next answer, if ever, belongs to the next request
			if !c.resp.Close && !s.eof {
				return moved
			}
			c.unframed() // there will be none
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
		if !c.unanswered() {
			c.unframed()
		}
		return true
	}
	if n == 0 {
		c.seen = len(b)
		if c.tunnels() {
			c.hurry()
		}
		return false
	}
	c.calm()
	c.seen = 0
	switch {
	case c.resp.Tunnel && c.tunnels():
		c.up.ok += n
		c.lookInside(c.host, c.targetPort())
	case c.resp.Tunnel:
		c.up.ok += n
		c.answered(b[:n])
		c.rs = rsTunnel
		c.rq = rqTunnel
		c.client.ok = c.client.pending()
	case c.resp.Interim:
		c.up.ok += n // the final answer follows
		if c.again != nil {
			c.again.reused = false
		}
	case c.absorbs(c.answered(b[:n]), b[:n]):
		c.keep(n)
	default:
		c.up.ok += n
		c.resBody = c.resp.Body
		c.rs = rsBody
		if c.resBody.Done() {
			c.rs = rsDone
		}
		c.answering()
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
	if up.ok > 0 && c.rq != rqTunnel {
		return false // the client has bytes to come first
	}
	switch {
	case c.torn:
		return c.tear()
	case c.rq == rqSOCKS && c.via.refused && c.via.ready:
		c.refuseSOCKS()
		return true
	case c.rs == rsKept && (c.rq == rqDone || c.rq == rqReplay):
		c.repeat()
		return true
	case c.rs == rsDone && c.rq == rqDone && !c.resp.Close && !c.l.draining:
		c.exchanged()
		c.nextRequest()
		return true // there may be one already, which comes before any end
	case c.rs == rsDone && c.rq == rqDone:
		// The last answer of this connection is with the client.
		c.part()
		return true
	case c.rs == rsDone && (c.rq == rqSend || c.rq == rqReplay) && c.resp.Close:
		c.linger()
		return true
	case c.rq == rqLinger && up.fd < 0 && !cl.shut:
		c.shutdown(cl)
		c.l.timers.start(&c.timer, c.l.now.Add(lingerTime))
		moved = true
	case c.rq == rqLinger && up.fd < 0 && cl.eof:
		c.finish()
		return true
	}
	if up.eof && up.pending() == 0 && up.pipe == nil && !c.h2.owes() {
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
	cl, up := &c.client, &c.up
	switch {
	case c.rs == rsSOCKS:
		c.hungUp()
		return true
	case c.idleEnded():
		return true
	case c.rs == rsIdle && c.rq == rqHeld:
		// The origin gave up an idle connection while the next request is
		// held here. The client had no share in that: a new one is made when
		// the request may go.
		if c.fixed() {
			c.lost()
			return true
		}
		c.dropUpstream()
		return true
	case c.rq == rqTunnel:
		if !cl.shut {
			c.shutdown(cl)
			return true
		}
		if up.broken {
			c.breakOff() // nor is there a way for what the client sends
			return true
		}
		if cl.eof && cl.pending() == 0 && cl.pipe == nil {
			c.finish()
			return true
		}
		return false
	case (c.rq == rqSend || c.rq == rqReplay) && (c.rs == rsDone || c.rs == rsBody || c.rs == rsTunnel):
		// Answered early, and gone.
		c.linger()
		return true
	case c.rq == rqLinger && c.rs != rsHead:
		c.dropUpstream()
		return true
	default:
		if c.rs == rsHead && c.unanswered() {
			return true
		}
		c.part()
		return true
	}
}

// clientEnded passes the end of the client's stream on. It reports whether
// something changed.
func (c *conn) clientEnded() bool {
	up := &c.up
	switch c.rq {
	case rqHead:
		if c.look() {
			return true
		}
		c.finish() // in the middle of a head, which cannot go on ungated
		return true
	case rqDiscard:
		c.finish()
		return true
	case rqSniff:
		if c.client.pending() > 0 {
			return false
		}
		if !c.stillThere() {
			c.finish()
			return true
		}
		// It has nothing to say, and waits for what the server has.
		c.l.timers.stop(&c.timer)
		c.admitOpaque(c.flow.Dest.Addr().String())
		return true
	case rqHeld, rqDial, rqReplay:
		return false // the end comes after the request
	case rqSOCKS:
		switch {
		case !c.via.asked:
			c.finish() // in the middle of the handshake
			return true
		case c.client.pending() > 0:
			return false // it comes after what waits for the reply
		}
	case rqDone:
		if c.client.pending() > 0 {
			return false // as more requests do
		}
	case rqSend:
		// The body is cut short. What the origin makes of that is for it to
		// say.
		c.rq = rqDone
		c.resp.Close = true
		c.giveUp()
	case rqTunnel:
		if c.client.pending() > 0 || c.h2.keeps() {
			return false
		}
		if up.shut && up.eof && up.pending() == 0 && up.pipe == nil {
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
		c.l.timers.start(&c.timer, c.l.now.Add(watchTime))
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
	switch {
	case c.fixed() && c.owed():
		c.fallBack()
	case c.idleEnded():
	case c.rs == rsIdle && c.rq == rqHeld && !c.fixed() && !(c.opaque && c.up.pending() > 0):
		c.forgetUpstream()
	case c.rs == rsKept:
		c.dropUpstream() // the answer is whole
	case c.rs == rsKeep && c.owed():
		c.fallBack()
	default:
		c.breakOff()
	}
}

// breakOff resets the client's connection once it has what came before.
func (c *conn) breakOff() {
	if c.rs == rsHead && c.unanswered() {
		return
	}
	c.forsake()
	c.forget()
	c.kept = 0
	c.up.ok = c.up.pending()
	c.torn, c.rq = true, rqLinger
	c.discard()
	c.dropUpstream()
}

// tear resets the client's connection as soon as the kernel has sent what it
// was given: a reset drops the rest. It reports whether it did.
func (c *conn) tear() bool {
	unsent, err := unix.IoctlGetInt(c.client.fd, unix.SIOCOUTQNSD)
	if c.tearBy == 0 {
		c.tearBy = c.l.now.Add(lingerTime)
	}
	if err == nil && unsent > 0 && c.l.now < c.tearBy {
		c.l.timers.start(&c.timer, c.l.now.Add(tick))
		return false
	}
	c.end(true, false)
	return true
}
