// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/userspace/dial"
)

// negativeTime is how long connections to a destination that could not be
// reached go untouched, so that clients that try again see why.
const negativeTime = 5 * time.Second

// goAhead continues once the connection or request may go.
func (c *conn) goAhead() {
	if u := &c.up; !c.opaque && c.connected && c.rs == rsIdle && (u.hup || u.eof || u.broken || u.pending() > 0) {
		// It ended while the request was held, or is about to: what was said
		// on it is no answer to this request.
		if c.fixed() {
			c.lost()
			return
		}
		c.forgetUpstream()
	}
	if c.up.fd < 0 {
		if c.fixed() {
			c.lost()
			return
		}
		if !c.dial() {
			return
		}
	}
	if !c.connected {
		c.rq = rqDial
		return
	}
	c.begin()
}

// begin forwards what was let through, over the connection that stands.
func (c *conn) begin() {
	opening := c.first && !c.inside()
	c.first = false
	c.x.open, c.x.tally = true, c.tally()
	if c.h2 != nil {
		c.h2.begin()
		return
	}
	if c.opaque && c.plan != nil {
		if c.up.pending() == 0 {
			c.startEnding()
			return
		}
		c.plan = nil // the server spoke first
	}
	if c.opaque {
		read := c.startReading()
		if !read {
			c.outcomeIs(policy.Unseen)
		}
		if c.admitted && !read {
			c.unseen()
		}
		c.rq, c.rs = rqTunnel, rsTunnel
		c.up.ok = c.up.pending()
		if c.pace(); c.paced == nil && !read {
			c.client.ok = c.client.pending()
		}
		return
	}
	if c.rs == rsSOCKS {
		c.ask()
		return
	}
	c.requests++
	c.rs = rsHead
	if c.again != nil {
		c.resend()
		return
	}
	c.rq = rqSend
	if c.reqBody.Done() {
		c.rq = rqDone
	}
	n := c.req.Len
	c.remember(opening)
	if c.pooled() {
		n = c.logIn(n)
	}
	c.client.ok = n
}

// dial starts the upstream connection. It reports false when the connection
// had to be given up.
func (c *conn) dial() bool {
	flow, err := c.upstreamFlow()
	fd := -1
	if err == nil {
		fd, err = dial.Start(&flow, c.ns)
	}
	if err != nil {
		c.unreachable(err)
		return false
	}
	c.up = side{fd: fd, buf: c.up.buf, r: c.up.r, w: c.up.w, ok: c.up.ok}
	c.connected = false
	if err := c.l.watchSide(&c.up, sideUpstream, c.slot); err != nil {
		c.unreachable(err)
		return false
	}
	c.dialing()
	return true
}

// dialed is called when the upstream connection is decided.
func (c *conn) dialed() {
	if err := dial.Err(c.up.fd); err != nil {
		if err != unix.EINPROGRESS {
			c.unreachable(err)
		}
		return
	}
	if err := c.checkExit(); err != nil {
		c.unreachable(err)
		return
	}
	c.connected = true
	c.dialDone()
	if c.rq == rqDial && !c.enterAgain() {
		c.begin()
	}
}

// enterAgain takes to the gate once more what was let go so long ago, as it took
// that long to connect, that it must not be written any more. It reports whether
// that was so.
func (c *conn) enterAgain() bool {
	g, now := c.l.p.cfg.Gate, c.l.p.cfg.Now()
	if !c.admitted || c.owed() || !g.Late(&c.waiter, now) {
		return false
	}
	g.Abort(&c.waiter, true, now)
	c.admitted = false
	c.waiter.Since = c.arrived
	c.pass(now)
	return true
}

// unreachable tells the client as honestly as is left: it believes to be
// connected, so it gets a reset, and its next connect() goes untouched and
// shows the kernel's own error. Of a pool nobody else could show anything.
func (c *conn) unreachable(err error) {
	p := c.l.p
	kind := policy.EventUnreachable
	if errors.Is(err, dial.ErrExit) {
		kind = policy.EventExitMismatch
	}
	p.event(policy.Event{At: c.l.now, Kind: kind, Lane: c.laneID(), Detail: c.goalName() + ": " + err.Error()})
	if c.pooled() && kind == policy.EventUnreachable {
		c.exitFailed(err)
		return
	}
	if c.owed() {
		c.fallBack()
		return
	}
	if c.pooled() {
		c.abort()
		return
	}
	if e := p.cfg.Kernel.Negative(c.flow.Netns, c.flow.Dest, c.l.now.Add(negativeTime)); e != nil {
		p.cfg.Logger.Warn("next connection cannot go untouched", "dest", c.flow.Dest, "err", e)
	}
	c.abort()
}

// forgetUpstream gives the upstream connection up with all that was read from
// it.
func (c *conn) forgetUpstream() {
	c.dropUpstream()
	u := &c.up
	u.r, u.ok = u.w, 0
	c.release(u)
}

// dropUpstream gives the upstream connection up, but not what was read from
// it.
func (c *conn) dropUpstream() {
	u := &c.up
	if u.fd < 0 {
		return
	}
	c.dialDone()
	if u.pipe != nil {
		c.l.pipes.put(u.pipe)
	}
	unix.Close(u.fd)
	*u = side{fd: -1, buf: u.buf, r: u.r, w: u.w, ok: u.ok}
	c.connected = false
}
