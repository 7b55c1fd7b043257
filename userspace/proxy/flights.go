// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"slices"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/userspace/gate"
	"github.com/egressd/egressd/userspace/sniff"
)

// paced is a TLS connection whose requests are paced although nobody reads
// them: what the client sends after an answer goes to its gate as a request
// would. The connection's own admission has paid for the first.
//
// What was not let through waits in the client's buffer. What the server sends
// goes on all the while, and is spliced where it comes in bulk.
type paced struct {
	f     sniff.Flights
	lanes []*policy.Lane // of the flight under way
	held  bool           // it waits in its gate
}

// pace begins to pace the flights of a TLS connection that was let through, if
// any of its lanes counts requests.
func (c *conn) pace() {
	if !c.isTLS || c.paced != nil || !c.unpaid && !slices.ContainsFunc(c.lanes, byFlights) {
		return
	}
	c.paced = &paced{f: sniff.Flights{H2: c.offersH2}}
}

// byFlights reports whether a lane counts the requests of connections that it
// does not see into.
func byFlights(l *policy.Lane) bool {
	b := l.Budget()
	return b.Unit == policy.Requests && b.Flights
}

// relayPaced moves what the client may send.
func (c *conn) relayPaced() (moved bool) {
	p, from, to := c.paced, &c.client, &c.up
	if to.fd < 0 || !c.connected || to.broken {
		return false
	}
	for !p.held && from.pending() > from.ok {
		n, flight := p.f.Client(from.buf[from.r+from.ok : from.w])
		from.ok += n
		if flight && (c.unpaid || p.f.Count() > 0) {
			c.enterFlight()
			if c.closed {
				return true
			}
		}
		if !flight && n == 0 { // less than the header of a record
			if from.eof {
				from.ok = from.pending()
			}
			break
		}
	}
	if p.f.Lost() {
		c.paced = nil // what it is, it has no requests to tell apart
	}
	return c.moveClient(p.held)
}

// moveClient sends what the client may send, and reads more unless something of
// it is held.
func (c *conn) moveClient(held bool) (moved bool) {
	from, to := &c.client, &c.up
	if from.ok > 0 {
		m, errno := c.drain(from, to, &c.sent)
		if errno != 0 {
			c.writeBroke(to, errno)
			return false
		}
		moved = m
	}
	if held && from.hup && !c.stillThere() {
		c.end(false, false)
		return true
	}
	if held || from.ok > 0 || !from.readable || from.eof {
		return moved
	}
	return c.refill(from) || moved
}

// enterFlight takes the flight that begins to its gate.
func (c *conn) enterFlight() {
	p := c.paced
	c.unpaid = false
	f := c.factsWithin(c.host, "", "")
	p.lanes = c.l.p.cfg.Engine.Select(p.lanes[:0], &f, policy.ForOpaque, c.l.now)
	p.lanes = slices.DeleteFunc(p.lanes, func(l *policy.Lane) bool { return !byFlights(l) })
	if len(p.lanes) == 0 {
		return
	}
	c.unhold() // its places are those of a request that was answered
	if c.admitted {
		c.admitted = false
		c.l.p.cfg.Gate.Abort(&c.waiter, false, c.l.p.cfg.Now())
	}
	c.countBy()
	switch out := c.l.p.cfg.Gate.Enter(&c.waiter, p.lanes, c.l.p.cfg.Now()); out.State {
	case gate.Granted:
		c.flightGoes()
	case gate.Queued:
		p.held = true
	case gate.Refused:
		c.end(true, true)
	}
}

// flightDecided is called on the loop after the gate notified the waiter of a
// flight.
func (c *conn) flightDecided() {
	out := c.waiter.Outcome()
	c.paced.held = false
	switch out.State {
	case gate.Granted:
		c.flightGoes()
	case gate.Refused:
		c.end(true, true)
		return
	}
	if c.reading != nil && c.reading.ready {
		c.keysCame()
		return
	}
	c.advance()
}

// flightGoes notes that a flight was let go.
func (c *conn) flightGoes() {
	c.admitted = true
	c.unseen()
	c.exchanged()
	c.x.open = true
	c.outcomeIs(policy.Unseen)
}

// unseen reports what was let go and whose answer will not be seen, which could
// be a verdict. The places that it took are those of the connection. Where a
// probe will show the answer, it stays unreported until then, or until the next
// flight.
func (c *conn) unseen() {
	if c.enrolled && c.l.p.cfg.Probes.Shows(c.flow.PID) {
		c.hold(false)
		c.wrote = true
		return
	}
	c.hold(true)
	c.admitted = false
	c.l.p.cfg.Gate.Abort(&c.waiter, false, c.l.p.cfg.Now())
}

// heard notes that the server has sent something.
func (c *conn) heard() {
	if c.paced != nil {
		c.paced.f.Server()
	}
}
