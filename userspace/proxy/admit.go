// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
	"github.com/egressd/egressd/userspace/gate"
	"github.com/egressd/egressd/userspace/http1"
	"github.com/egressd/egressd/userspace/sniff"
)

// admitRequest takes the pending request to its gate.
func (c *conn) admitRequest() {
	e := c.l.p.cfg.Engine
	if c.barsUDP() && c.asksForUDP() {
		c.refuseUDP()
		return
	}
	switch {
	case c.pooled():
		if !c.takesPart() {
			return
		}
	case c.outside():
		c.throughRequest(c.client.buf[c.client.r : c.client.r+c.req.Len])
	}
	if !c.knowHost() {
		c.badRequest(http1.ErrInvalidHost)
		return
	}
	f := c.facts()
	if c.pooled() {
		c.choose(&f)
		c.turnToExit()
	}
	if c.via == nil && c.first && c.toItself() && !e.Wants(f.Host, f.Dest) {
		// No budget wants anything that this connection could carry.
		c.opaque = true
		c.lanes = c.lanes[:0]
		c.goAhead()
		return
	}
	c.selectLanes(&f)
	c.waiter.Job = c.job()
	if c.inside() {
		c.enterInside()
		return
	}
	c.enter()
}

// selectLanes finds the lanes of the pending request.
func (c *conn) selectLanes(f *policy.Facts) {
	e := c.l.p.cfg.Engine
	if c.tunnels() {
		c.lanes = e.Select(c.lanes[:0], f, policy.ForOpaque, c.l.now)
		return
	}
	c.lanes = e.Select(c.lanes[:0], f, policy.ForRequest, c.l.now)
	if c.first {
		c.lanes = e.Select(c.lanes, f, policy.ForHTTPConnection, c.l.now)
	}
}

// toItself says that the pending request is for the server that it goes to.
func (c *conn) toItself() bool { return c.req.Form == http1.Origin || c.req.Form == http1.Asterisk }

// admitOpaque takes a connection whose inside is not seen to its gate. What goes
// to a proxy has that for its host; what goes through a tunnel has been there.
func (c *conn) admitOpaque(host string) {
	if c.pooled() {
		c.foreign()
		return
	}
	c.opaque = true
	if c.inside() {
		c.goAhead()
		return
	}
	f := policy.Facts{Host: host, Dest: c.flow.Dest, Exit: c.flow.Exit}
	if c.via != nil {
		c.calm()
		f.Host = c.via.exit.Proxy.Host
		c.through("")
		c.via.asFacts(&f)
	}
	f.Site = c.siteOf(f.Host)
	c.host = f.Host
	as := policy.ForOpaque
	if c.unpaid = c.plan != nil || c.willRead(); c.unpaid {
		as = policy.ForHTTPConnection
	}
	c.lanes = c.l.p.cfg.Engine.Select(c.lanes[:0], &f, as, c.l.now)
	c.enter()
}

// onlyConnects reports whether budgets want the connection, by its address, as
// one connection and no more: then it waits for its turn before the origin sees
// it, although nobody knows yet what it carries.
func (c *conn) onlyConnects() bool {
	if c.via != nil || c.outside() {
		return false
	}
	f := policy.Facts{Host: c.flow.Dest.Addr().String(), Dest: c.flow.Dest, Exit: c.flow.Exit}
	f.Site = c.siteOf(f.Host)
	c.lanes = c.l.p.cfg.Engine.Select(c.lanes[:0], &f, policy.ForOpaque, c.l.now)
	for _, lane := range c.lanes {
		if lane.Budget().Unit != policy.Connections {
			return false
		}
	}
	return len(c.lanes) > 0
}

func (c *conn) enter() {
	c.wrote = false
	c.arrived = c.l.p.cfg.Now()
	c.waiter.Since = 0
	c.pending = &c.waiter
	c.countBy()
	if len(c.lanes) == 0 {
		c.goAhead()
		return
	}
	c.tellName(c.lanes)
	c.pass(c.arrived)
}

// pass takes the waiter to the gate of its lanes.
func (c *conn) pass(now ledger.Time) {
	switch out := c.l.p.cfg.Gate.Enter(&c.waiter, c.lanes, now); out.State {
	case gate.Granted:
		c.admitted = true
		c.goAhead()
	case gate.Queued:
		c.rq = rqHeld
	case gate.Refused:
		c.refuse(out)
	}
}

// tellName tells which label the destination showed with its first request.
func (c *conn) tellName(lanes []*policy.Lane) {
	if named := c.l.p.cfg.Named; named != nil && c.requests == 0 && c.via == nil && len(lanes) > 0 {
		named(c.flow.Dest, lanes[0].Label)
	}
}

// decided is called on the loop after the gate notified the waiter.
func (c *conn) decided() {
	if w := c.stale; w != nil {
		c.stale = nil
		if w.Outcome().State == gate.Granted {
			c.l.p.cfg.Gate.Abort(w, true, c.l.p.cfg.Now())
		}
		return
	}
	switch {
	case c.closed:
	case c.reading != nil && c.reading.held != nil:
		c.readDecided()
		return
	case c.paced != nil && c.paced.held:
		c.flightDecided()
		return
	case c.h2 != nil && c.h2.held != nil:
		c.h2.decide()
		return
	}
	out := c.pending.Outcome()
	if c.closed || c.rq != rqHeld {
		// The client left between the decision and its delivery.
		if out.State == gate.Granted {
			c.l.p.cfg.Gate.Abort(c.pending, true, c.l.p.cfg.Now())
		}
		return
	}
	switch out.State {
	case gate.Granted:
		c.admitted = true
		if c.pending != &c.waiter {
			c.joined()
		}
		if c.client.hup && !c.stillThere() {
			c.end(false, false) // it closed after a half-close, of which no event tells
			return
		}
		c.goAhead()
	case gate.Refused:
		c.pending = &c.waiter
		switch {
		case c.pooled() && out.Lane.Key.Exit != "" && c.elsewhere():
		case c.owed():
			c.fallBack()
		default:
			c.refuse(out)
		}
	}
	if !c.closed {
		c.advance()
	}
}

// refuse answers in the origin's place.
func (c *conn) refuse(out gate.Outcome) {
	switch {
	case c.opaque || out.Drop:
		c.end(true, true)
		return
	case c.rs == rsSOCKS:
		c.refuseSOCKS()
		return
	}
	keep := !c.req.Close && !c.req.Expect100
	c.answer(http1.AppendRefusal(nil, &http1.Refusal{
		Status:     429,
		RetryAfter: out.RetryAfter,
		Error:      "http_request_denied",
		Details:    out.Reason.String() + "; lane " + out.Lane.ID(),
		Date:       time.Now(),
		Body:       "egressd: this request would exceed budget " + out.Lane.Key.Budget + " of this host; retry after " + out.RetryAfter.Round(time.Millisecond).String() + "\n",
		ToHEAD:     c.kind&http1.ForHEAD != 0,
		Close:      !keep,
	}), keep)
}

// badRequest refuses a message whose end nobody can be sure of. What was sent
// of it cannot be taken back: then the connection breaks.
func (c *conn) badRequest(err error) {
	p := c.l.p
	var e *http1.Error
	if !errors.As(err, &e) {
		e = &http1.Error{Reason: err.Error(), Status: 400}
	}
	c.tally().CountRefused(policy.RefusedFraming)
	p.event(policy.Event{At: c.l.now, Kind: policy.EventRefused, Lane: c.laneID(), Detail: "request from pid " + strconv.FormatUint(uint64(c.flow.PID), 10) + ": " + e.Reason})
	if c.rq == rqSend {
		c.abort()
		return
	}
	c.answer(http1.AppendRefusal(nil, &http1.Refusal{
		Status:  e.Status,
		Error:   "http_request_error",
		Details: e.Reason,
		Date:    time.Now(),
		Body:    "egressd: request refused: " + e.Reason + "\n",
		Close:   true,
	}), false)
}

// answered tells the gate what the origin said, and returns what that means.
// head is the response head, or nil if it could not be read.
func (c *conn) answered(head []byte) (v verdict.Verdict) {
	t := c.tally()
	if head == nil {
		t.CountError()
		if c.admitted {
			c.hold(false)
		}
		c.forsake()
		return v
	}
	t.CountCode(c.resp.Status)
	if !c.admitted {
		c.answeredWith(&v)
		return v
	}
	c.admitted = false
	if c.resp.Status >= 300 || c.believes() {
		v = c.judge(head)
	}
	c.answeredWith(&v)
	if v.HasDelay {
		c.waiter.Meter.NoteDelay(v.Delay)
	}
	g, now := c.l.p.cfg.Gate, c.l.p.cfg.Now()
	switch {
	case c.outside() && c.resp.Status == 407 && !c.via.login:
		// The client will come again with a password. The origin heard nothing.
		g.Abort(&c.waiter, true, now)
	case c.tunnels() && v.Kind != verdict.ExitTrouble:
		g.Abort(&c.waiter, false, now) // the exit said it, not the origin
	default:
		if !c.tunnels() {
			c.hold(c.resp.Tunnel)
		}
		g.Done(&c.waiter, v, rand.Float64(), now)
	}
	if v.Kind == verdict.Limited && c.waiter.Rotating {
		c.resp.Close = true // the next connection has another address
	}
	return v
}

// believes reports whether fields of a success say anything to the lanes of the
// pending request.
func (c *conn) believes() bool {
	for _, l := range c.lanes {
		b := l.Budget()
		if l.Enforced() && b.Name != policy.ExitBudget && (!b.HeadersOff || b.Cost.Header != "") {
			return true
		}
	}
	return false
}

// judge makes a verdict of a response head.
func (c *conn) judge(head []byte) verdict.Verdict {
	h := verdict.Head{Status: c.resp.Status, Connect: c.kind&http1.ForCONNECT != 0, At: time.Now()}
	if c.outside() && c.resp.Status == 407 {
		h.Connect = true // no origin asks for the proxy's password
	}
	statuses := c.heed(&h, c.lanes)
	http1.Fields(head, func(name, value []byte) bool {
		h.Field(name, value)
		return true
	})
	return conclude(&h, statuses, c.waiter.Rotating)
}

// heed tells h which fields the budgets of the lanes believe, and returns the
// statuses that are limits to them.
func (c *conn) heed(h *verdict.Head, lanes []*policy.Lane) (statuses []int) {
	if l := policy.Target(lanes); l != nil {
		rule := l.Budget()
		statuses = rule.Cooldown.Statuses
		h.RetryAfterOnly = rule.HeadersOff
		if h.Only = rule.Dialect; h.Only == nil {
			h.Dialects = c.l.p.cfg.Engine.Policy().Dialects
		}
	}
	for _, l := range lanes {
		if h.CostField == "" {
			h.CostField = l.Budget().Cost.Header
		}
	}
	return statuses
}

// conclude makes a verdict of a head whose fields were all taken.
func conclude(h *verdict.Head, statuses []int, rotating bool) verdict.Verdict {
	v := h.Verdict(statuses)
	if v.Kind == verdict.ExitTrouble && rotating && h.Status >= 500 && !v.HasDelay {
		v.Kind = verdict.Error // of one address among many
	}
	return v
}

// hold has lanes that bound what is under way at once count the connection
// until it ends, not until its first answer: those that count connections, and
// all of one whose inside is not seen (all). It comes before the waiter is
// reported, so that the count never dips.
func (c *conn) hold(all bool) {
	for _, l := range c.lanes {
		if l.Counts() && (all || l.Budget().Unit == policy.Connections) && !slices.Contains(c.holds, l) {
			l.Hold()
			c.holds = append(c.holds, l)
		}
	}
}

// unhold ends what hold began.
func (c *conn) unhold() {
	for _, l := range c.holds {
		l.Release()
		c.l.p.cfg.Gate.Wake(l)
	}
	c.holds = c.holds[:0]
}

// forsake leaves the gate: a held connection gives up its place, a dispatched
// one has no answer to report.
func (c *conn) forsake() {
	if c.h2 != nil {
		c.h2.leave()
	}
	g := c.l.p.cfg.Gate
	if c.rq == rqHeld && len(c.lanes) > 0 || c.paced != nil && c.paced.held {
		g.Leave(c.pending) // if it was just decided, decided sees that c is closed
	}
	if c.admitted {
		c.admitted = false
		g.Abort(&c.waiter, !c.wrote, c.l.p.cfg.Now())
	}
}

// tally is where the pending request is counted: by the most specific of its
// lanes and by its exit.
func (c *conn) tally() *policy.Tally {
	if c.via != nil {
		label := policy.OtherLabel
		for _, l := range c.lanes {
			if l.Key.Budget != policy.ExitBudget {
				label = l.Label
				break
			}
		}
		return c.tallyOf(label)
	}
	label := policy.OtherLabel
	if len(c.lanes) > 0 {
		if t := c.lanes[0].Tally; t.Exit != policy.AllExits {
			return t
		}
		label = c.lanes[0].Label // its budget does not tell exits apart, but counts do
	}
	return c.l.p.cfg.Engine.Tally(label, c.flow.Exit)
}

func (c *conn) laneID() string {
	if len(c.lanes) > 0 {
		return c.lanes[0].ID()
	}
	return ""
}

// facts says what is known of the pending request. Method and path are views
// of the client's buffer.
func (c *conn) facts() policy.Facts {
	f := policy.Facts{
		Host:   c.host,
		Dest:   c.flow.Dest,
		Method: view(c.req.Method),
		Path:   view(c.req.Path),
		Exit:   c.flow.Exit,
		Site:   c.siteOf(c.host),
	}
	if c.via != nil {
		c.via.asFacts(&f)
	}
	switch {
	case !c.toItself():
		// To a forward proxy: the destination is the authority asked for, not
		// the proxy that the connection goes to.
		f.Dest = destOf(f.Host, c.targetPort())
		if c.via == nil && !f.Dest.Addr().IsValid() {
			f.Dest = netip.AddrPortFrom(c.flow.Dest.Addr(), f.Dest.Port())
		}
	case c.inside():
		f.Dest = c.via.dest
	}
	return f
}

// factsWithin says what is known of a request that was read inside a connection
// of another protocol than HTTP/1, or of that connection. Method and path are
// empty where they are not known.
func (c *conn) factsWithin(host, method, path string) policy.Facts {
	f := policy.Facts{Host: host, Dest: c.flow.Dest, Exit: c.flow.Exit, Method: method, Path: path, Site: c.siteOf(host)}
	if c.via != nil {
		c.via.asFacts(&f)
		if c.inside() {
			f.Dest = c.via.dest
		}
	}
	return f
}

func (c *conn) targetPort() uint16 {
	switch {
	case c.req.Port != 0:
		return c.req.Port
	case c.req.Form == http1.Authority, http1.EqualFold(c.req.Scheme, "https"):
		return 443
	}
	return 80
}

// knowHost sets c.host to the host of the request in canonical form, or to the
// address that the connection goes to if the request names none. It reports
// false if what it names is no host. The last one is kept, since a connection
// rarely asks for two.
func (c *conn) knowHost() bool {
	raw := c.req.Host
	if c.outside() && c.toItself() {
		c.hostRaw = c.hostRaw[:0]
		c.host = c.via.exit.Proxy.Host
		return true
	}
	if c.host != "" && string(raw) == string(c.hostRaw) {
		return true
	}
	c.hostRaw = append(c.hostRaw[:0], raw...)
	if len(raw) == 0 {
		c.host = c.flow.Dest.Addr().String()
		if c.inside() {
			c.host = c.via.host
		}
		return true
	}
	host, _, ok := sniff.CanonicalHost(string(raw))
	c.host = host
	return ok
}
