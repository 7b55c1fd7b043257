// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/verdict"
)

// metered is an exchange: what passes an exit for one request, or for a connection whose
// inside is not seen, and what came of it. What it takes to open a tunnel counts
// for what goes through it first.
type metered struct {
	open           bool
	tally          *policy.Tally // where it is counted once it began, whatever exit the next attempt goes by
	outcome        policy.Outcome
	known          bool  // outcome is
	sent, received int64 // bytes that are not accounted yet
}

// outcomeIs notes what comes of the exchange.
func (c *conn) outcomeIs(o policy.Outcome) { c.x.outcome, c.x.known = o, true }

// answeredWith notes what comes of the exchange by the answer to it.
func (c *conn) answeredWith(v *verdict.Verdict) {
	o := policy.OutcomeOf(v.Kind, c.resp.Status)
	if c.resp.Tunnel {
		o = policy.Unseen
	}
	c.outcomeIs(o)
}

// note adds the bytes moved since the last note to the counters.
func (c *conn) note() {
	if c.sent|c.received|c.x.received == 0 {
		return
	}
	t := c.exchangeTally()
	t.AddBytes(policy.Sent, uint64(c.sent))
	t.AddBytes(policy.Received, uint64(c.received))
	c.x.sent += c.sent
	c.sent, c.received = 0, 0
	if c.x.known {
		t.AddPart(c.x.outcome, uint64(c.x.sent), uint64(c.x.received))
		c.x.sent, c.x.received = 0, 0
	}
}

// exchangeTally is where the exchange is counted.
func (c *conn) exchangeTally() *policy.Tally {
	if c.x.tally != nil {
		return c.x.tally
	}
	return c.tally()
}

// exchanged ends the exchange.
func (c *conn) exchanged() {
	c.note()
	x, t := c.x, c.exchangeTally()
	c.x = metered{}
	if !x.known {
		x.outcome = policy.Failed
	}
	switch {
	case x.open:
		t.AddExchange(x.outcome, uint64(x.sent), uint64(x.received))
	case x.sent|x.received != 0: // of a handshake that came to nothing
		t.AddPart(x.outcome, uint64(x.sent), uint64(x.received))
	}
}
