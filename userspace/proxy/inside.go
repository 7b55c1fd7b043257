// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"slices"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/userspace/gate"
	"github.com/egressd/egressd/userspace/http1"
)

// tunnels says that the pending request asks the proxy for a tunnel.
func (c *conn) tunnels() bool { return c.outside() && c.kind&http1.ForCONNECT != 0 }

// lookInside follows the proxy's word that the tunnel to host and dest stands. It
// is the word of the exit, so the origin's lanes hear nothing of it: the waiter
// stays for the first answer from inside.
func (c *conn) lookInside(host string, port uint16) {
	v := c.via
	c.calm()
	v.bound, v.inside, v.host, v.dest = true, true, host, destOf(host, port)
	v.paid = v.paid[:0]
	if c.admitted {
		v.paid = append(v.paid, c.lanes...)
	}
	c.rq, c.rs, c.seen, c.kind = rqSniff, rsIdle, 0, 0
	c.first = true
	c.hostRaw = c.hostRaw[:0]
	c.l.timers.stop(&c.timer)
}

// enterInside takes what goes through a tunnel, with the lanes that it falls
// into, to its gate. It spends in those that the tunnel did not spend in. What
// was spent before a lane closed is no leave to send while it is closed: then
// it spends anew.
func (c *conn) enterInside() {
	v, g := c.via, c.l.p.cfg.Gate
	now := c.l.p.cfg.Now()
	if c.admitted && slices.ContainsFunc(v.paid, func(l *policy.Lane) bool { return closedNow(l, now) }) {
		c.admitted = false
		g.Abort(&c.waiter, false, now)
	}
	if !c.admitted {
		c.enter()
		return
	}
	v.rest = v.rest[:0]
	for _, l := range c.lanes {
		if !slices.Contains(v.paid, l) {
			v.rest = append(v.rest, l)
		}
	}
	c.countBy()
	c.arrived = now
	if len(v.rest) == 0 {
		g.Join(&c.waiter, nil, c.lanes)
		c.goAhead()
		return
	}
	c.pending = &v.more
	switch out := g.Enter(&v.more, v.rest, now); out.State {
	case gate.Granted:
		c.joined()
		c.goAhead()
	case gate.Queued:
		c.rq = rqHeld
	case gate.Refused:
		c.pending = &c.waiter
		c.refuse(out)
	}
}

// joined makes one of what the tunnel spent and what its first request did.
func (c *conn) joined() {
	c.pending = &c.waiter
	c.l.p.cfg.Gate.Join(&c.waiter, &c.via.more, c.lanes)
}

// admitHello takes the ClientHello in a tunnel to its gate, if the tunnel leads
// to an address and the name of the host is news. It spends only where the
// tunnel did not, and gives nothing back.
func (c *conn) admitHello(name string) {
	v := c.via
	c.opaque = true
	if name != "" && v.dest.Addr().IsValid() && name != v.host {
		c.host = name
		f := policy.Facts{Host: name, Dest: v.dest, Site: c.siteOf(name)}
		v.asFacts(&f)
		lanes := c.l.p.cfg.Engine.Select(nil, &f, policy.ForOpaque, c.l.now)
		if !slices.Equal(lanes, c.lanes) {
			// The lanes of the address hold for the connection, too.
			for _, l := range v.paid {
				if !slices.Contains(lanes, l) {
					lanes = append(lanes, l)
				}
			}
			c.lanes = lanes
			c.enterInside()
			return
		}
	}
	c.goAhead()
}
