// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/userspace/terminate"
)

// How TLS is ended here.
//
// A connection that the policy allows to be ended, and whose ClientHello can be
// made again, is let through and dialled like any other. Then both sockets go
// to the terminator, which makes the handshakes, and come back as the ends of
// two socket pairs with what is inside. From there on it is a connection like
// those without TLS, but that its upstream connection cannot be replaced.
//
// Where the origin does not take the handshake, nothing was said to the client
// yet: its connection comes back and is passed through.

// planEnding finds out whether TLS can be ended for a connection to host that
// begins with first.
func (c *conn) planEnding(host string, first []byte) {
	var t *terminate.Terminator
	if c.l.p.cfg.Terminator != nil {
		t = c.l.p.cfg.Terminator()
	}
	if t == nil {
		c.l.p.insight.Doubt(policy.DoubtNoAuthority)
		return
	}
	first = bytes.Clone(first)
	plan, why := t.Plan(first, host)
	if plan == nil {
		c.l.p.insight.Doubt(doubtOf(why))
		return
	}
	c.terminator, c.plan, c.hello = t, plan, first
}

// doubtOf is the doubt that a reason not to end TLS stands for.
func doubtOf(why string) policy.Doubt {
	switch why {
	case terminate.WhyNoAuthority, terminate.WhyName:
		return policy.DoubtNoAuthority
	case terminate.WhyUntrusted:
		return policy.DoubtUntrusted
	case terminate.WhyClientCert, terminate.WhyOrigin:
		return policy.DoubtUpstream
	}
	return policy.DoubtShape
}

// startEnding gives both sockets to the terminator.
func (c *conn) startEnding() {
	plan, first := c.plan, c.hello
	c.plan, c.hello = nil, nil
	c.local, _ = localAddr(c.client.fd) // an error leaves it invalid: see stillThere
	client, up := c.client.fd, c.up.fd
	c.l.unwatch(&c.client)
	c.l.unwatch(&c.up)
	c.client.fd, c.up.fd, c.connected = -1, -1, false
	c.rq, c.rs = rqEnding, rsIdle
	c.wrote = true
	l := c.l
	c.terminator.Start(plan, client, up, first, func(r terminate.Result) {
		if !l.post(func() { c.ended(r) }) {
			closeResult(&r)
		}
	})
}

// closeResult closes what nobody wants any more.
func closeResult(r *terminate.Result) {
	for _, fd := range []int{r.Client, r.Up, r.ClientRaw} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// ended goes on with what became of the handshakes.
func (c *conn) ended(r terminate.Result) {
	if c.closed {
		closeResult(&r)
		return
	}
	switch r.Kind {
	case terminate.OK:
		c.lookInto(&r)
	case terminate.ShapeLost, terminate.UpstreamFailed:
		c.l.p.insight.Doubt(policy.DoubtUpstream)
		c.passThrough(r.ClientRaw)
	case terminate.BadCertificate:
		// The client has been told, in the words of TLS.
		c.l.p.event(policy.Event{
			At: c.l.now, Kind: policy.EventRefused, Lane: c.laneID(),
			Detail: "certificate of " + c.host + " at " + c.goalName() + ": " + r.Err.Error(),
		})
		c.tally().CountError()
		c.end(false, false)
	default:
		if r.Kind == terminate.ClientFailed {
			c.l.p.insight.Doubt(policy.DoubtUntrusted)
		}
		c.tally().CountError()
		c.end(false, false)
	}
}

// lookInto goes on with the inside of a connection whose TLS ends here.
func (c *conn) lookInto(r *terminate.Result) {
	c.session = r.Session
	c.takeSocket(&c.client, r.Client)
	c.takeSocket(&c.up, r.Up)
	for which, s := range []*side{sideClient: &c.client, sideUpstream: &c.up} {
		if err := c.l.watchSide(s, which, c.slot); err != nil {
			c.abort()
			return
		}
	}
	c.connected = true
	c.opaque, c.isTLS, c.unpaid = false, false, false
	c.setSight(policy.SightTerminate)
	if c.admitted && !c.inside() {
		// What counts connections counts it until it ends; its requests come
		// to the gate one by one.
		c.hold(false)
		c.admitted = false
		c.l.p.cfg.Gate.Abort(&c.waiter, false, c.l.p.cfg.Now())
	}
	c.rq, c.rs, c.seen, c.kind = rqSniff, rsIdle, 0, 0
	c.first = c.inside()
	c.advance()
}

// takeSocket makes s of a new socket.
func (c *conn) takeSocket(s *side, fd int) {
	s.r, s.ok = s.w, 0
	c.release(s)
	*s = side{fd: fd, readable: true, writable: true}
}

// passThrough goes on with a client to which nothing was said: on a new
// connection to the origin, where there can be one.
func (c *conn) passThrough(fd int) {
	c.client.fd = fd
	if err := c.l.watchSide(&c.client, sideClient, c.slot); err != nil {
		c.abort()
		return
	}
	if c.inside() {
		c.abort() // the tunnel is spent
		return
	}
	c.enrol()
	c.goAhead()
	if !c.closed {
		c.advance()
	}
}

// resetSession has TLS ended without a word of peace where a socket would be
// reset.
func (c *conn) resetSession(client, up bool) {
	if client {
		c.session.ResetClient()
	}
	if up {
		c.session.ResetOrigin()
	}
}
