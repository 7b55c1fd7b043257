// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/verdict"
	"github.com/egressd/egressd/userspace/gate"
	"github.com/egressd/egressd/userspace/heads"
	"github.com/egressd/egressd/userspace/http1"
	"github.com/egressd/egressd/userspace/sniff"
)

// maxStreams is how many requests of one connection may wait for their answers
// before no more is told apart on it. Servers allow 100 to 256 as a rule.
const maxStreams = 4096

// stream is a request on a connection where requests may overlap.
type stream struct {
	c        *conn
	id       uint32 // that of HTTP/2; of HTTP/1 the number of the request
	waiter   *gate.Waiter
	own      gate.Waiter
	lanes    []*policy.Lane
	rest     []*policy.Lane // of which the connection has not spent
	tally    *policy.Tally
	kind     http1.Kind
	path     string // without its query
	admitted bool   // dispatched, and not answered yet
}

// streams are the requests of a connection that have no answer yet. At most
// one of them is held at a time: those behind it on the connection cannot pass.
type streams struct {
	open   map[uint32]*stream
	held   *stream
	sight  policy.Sight
	paid   []*policy.Lane // what the connection's own admission spent in, for its first request
	number uint32         // of the last request of HTTP/1
	next   uint32         // of the request of HTTP/1 that is answered next
}

// newStream makes a stream of the request that was read, and finds its lanes.
// false says that its host is none.
func (c *conn) newStream(ss *streams, req *heads.Request) (*stream, bool) {
	s := &stream{c: c, id: req.Stream, kind: req.Kind}
	if s.id == 0 {
		ss.number++
		s.id = ss.number
	}
	host := c.host
	if req.Host != "" {
		canonical, _, ok := sniff.CanonicalHost(req.Host)
		if !ok {
			return nil, false
		}
		host = canonical
	}
	c.host = host
	s.path = req.Path
	f := c.factsWithin(host, req.Method, req.Path)
	e := c.l.p.cfg.Engine
	s.lanes = e.Select(nil, &f, policy.ForRequest, c.l.now)
	c.lanes = append(c.lanes[:0], s.lanes...)
	s.tally = c.tally()
	s.own.Notify = func() { c.l.postGranted(c) }
	s.own.Client = c.waiter.Client
	s.own.Tally, s.own.Meter = s.tally, c.waiter.Meter
	if c.via != nil {
		s.own.Meter, s.own.Rotating = e.Meter(c.via.Exit), c.via.Rotating
	}
	s.waiter = &s.own
	return s, true
}

// enterStream takes a stream to its gate. The first request of a connection
// spends only in those lanes that the connection did not.
func (c *conn) enterStream(ss *streams, s *stream) gate.Outcome {
	g, now := c.l.p.cfg.Gate, c.l.p.cfg.Now()
	c.tellName(s.lanes)
	c.requests++
	lanes := s.lanes
	if c.admitted {
		if slices.ContainsFunc(ss.paid, func(l *policy.Lane) bool { return closedNow(l, now) }) {
			c.admitted = false // a leave from before the cooldown is none
			g.Abort(&c.waiter, false, now)
		} else {
			for _, l := range s.lanes {
				if !slices.Contains(ss.paid, l) {
					s.rest = append(s.rest, l)
				}
			}
			lanes = s.rest
		}
	}
	c.countStream(s)
	if len(lanes) == 0 {
		c.streamGoes(ss, s)
		return gate.Outcome{State: gate.Granted}
	}
	out := g.Enter(s.waiter, lanes, now)
	switch out.State {
	case gate.Granted:
		s.admitted = true
		c.streamGoes(ss, s)
	case gate.Queued:
		ss.held, c.pending = s, s.waiter
	}
	return out
}

// sendAlong lets a stream go together with the one before it, which it cannot be
// parted from.
func (c *conn) sendAlong(ss *streams, s *stream) {
	c.requests++
	c.countStream(s)
	if len(s.lanes) > 0 {
		c.l.p.cfg.Gate.Along(&s.own, s.lanes, c.l.p.cfg.Now())
		s.admitted = true
	}
	c.streamGoes(ss, s)
}

// countStream begins to count what passes for a stream.
func (c *conn) countStream(s *stream) {
	if c.x.open && c.x.known {
		c.exchanged()
	}
	c.x.open, c.x.tally = true, s.tally
}

// streamGoes notes that a stream may be sent.
func (c *conn) streamGoes(ss *streams, s *stream) {
	if c.admitted {
		g := c.l.p.cfg.Gate
		var more *gate.Waiter
		if s.admitted {
			more = &s.own
		}
		if c.hold(false); len(s.lanes) > 0 {
			g.Join(&c.waiter, more, s.lanes)
			s.waiter, s.admitted = &c.waiter, true
			c.waiter.Tally = s.tally
		} else {
			g.Abort(&c.waiter, false, c.l.p.cfg.Now())
		}
		c.admitted = false
	}
	if ss.open == nil {
		ss.open = map[uint32]*stream{}
	}
	ss.open[s.id] = s
}

// streamDecided is called on the loop after the gate notified the waiter of the
// stream that is held.
func (c *conn) streamDecided(ss *streams) (s *stream, out gate.Outcome) {
	s, ss.held = ss.held, nil
	out = s.waiter.Outcome()
	if out.State == gate.Granted {
		s.admitted = true
		c.streamGoes(ss, s)
	}
	return s, out
}

// streamAnswered tells the gate what the origin said to a request of HTTP/2, or
// to that of HTTP/1 that is next. fields are those of the head.
func (c *conn) streamAnswered(ss *streams, a *answer) {
	s := ss.open[a.stream]
	if a.stream == 0 {
		s = ss.open[ss.next+1]
	}
	if a.interim {
		return // the final answer follows
	}
	if ss.sight != policy.SightNone {
		c.l.p.insight.Answer(ss.sight)
	}
	if s == nil {
		return // it was reset, or is an answer that nobody asked for
	}
	if a.stream == 0 {
		ss.next++
	}
	delete(ss.open, s.id)
	c.lanes = append(c.lanes[:0], s.lanes...)
	if a.status == 0 {
		s.tally.CountError()
	} else {
		s.tally.CountCode(a.status)
	}
	h := verdict.Head{Status: a.status, At: a.at}
	statuses := c.heed(&h, s.lanes)
	for name, value := range a.fields {
		h.Field(name, value)
	}
	v := conclude(&h, statuses, s.waiter.Rotating)
	if a.status == 0 {
		v.Kind = verdict.Error // of which nobody can say more
	}
	o := policy.OutcomeOf(v.Kind, a.status)
	if a.tunnel {
		o = policy.Unseen
	}
	if c.x.known {
		c.exchanged()
		c.x.open, c.x.tally = true, s.tally
	}
	c.outcomeIs(o)
	if log := c.l.p.cfg.Events; log.Dispatches() {
		log.Emit(policy.Event{At: c.l.now, Kind: policy.EventObserved, Lane: c.laneID(), Detail: a.detail(c, s, ss.sight)})
	}
	if v.HasDelay {
		s.waiter.Meter.NoteDelay(v.Delay)
	}
	if !s.admitted {
		// It left before it could be read, as a flight.
		c.l.p.cfg.Gate.Heard(s.lanes, s.waiter.Rotating, v, rand.Float64(), c.l.p.cfg.Now())
		return
	}
	s.admitted = false
	if a.tunnel && a.stream == 0 { // in HTTP/2 it ends without the connection
		c.holdStream(s)
	}
	c.l.p.cfg.Gate.Done(s.waiter, v, rand.Float64(), c.l.p.cfg.Now())
}

// holdStream has the lanes of a stream count the connection until it ends.
func (c *conn) holdStream(s *stream) {
	c.lanes = append(c.lanes[:0], s.lanes...)
	c.hold(true)
}

// streamEnded notes that a stream will have no answer, as either side reset
// it.
func (c *conn) streamEnded(ss *streams, id uint32) {
	if s := ss.open[id]; s != nil {
		delete(ss.open, id)
		s.tally.CountError()
		c.leaveStream(s)
	}
}

// leaveStream reports that a stream that was let go will have no answer.
func (c *conn) leaveStream(s *stream) {
	if s.admitted {
		s.admitted = false
		c.l.p.cfg.Gate.Abort(s.waiter, false, c.l.p.cfg.Now())
	}
}

// leaveHeld leaves the gate with the stream that is held.
func (c *conn) leaveHeld(ss *streams) {
	if ss.held == nil {
		return
	}
	if !c.l.p.cfg.Gate.Leave(ss.held.waiter) {
		c.stale = ss.held.waiter // was just decided: decided will be called for it
	}
	c.pending, ss.held = &c.waiter, nil
}

// leaveStreams leaves the gate with all streams of the connection.
func (c *conn) leaveStreams(ss *streams) {
	c.leaveHeld(ss)
	for id, s := range ss.open {
		delete(ss.open, id)
		c.leaveStream(s)
	}
}

// answer is the head of an answer as the reader of a copy found it.
type answer struct {
	stream  uint32
	status  int // 0: not known
	interim bool
	partial bool
	tunnel  bool
	ended   bool // no head: the stream was reset
	at      time.Time
	names   []byte // all names and values in one, …
	cuts    []int  // … and where each ends
}

// maxValue is the length in bytes of the values that are copied: none that says
// something of a limit is as long.
const maxValue = 512

// newAnswer copies what may be needed of a head until it is judged: not what it
// sets in the client.
func newAnswer(r *heads.Response, at time.Time) answer {
	a := answer{stream: r.Stream, status: r.Status, interim: r.Interim, partial: r.Partial, tunnel: r.Tunnel, at: at}
	r.Fields(func(name, value []byte) bool {
		if len(value) <= maxValue && !http1.EqualFold(name, "set-cookie") {
			a.names = append(a.names, name...)
			a.cuts = append(a.cuts, len(a.names))
			a.names = append(a.names, value...)
			a.cuts = append(a.cuts, len(a.names))
		}
		return true
	})
	return a
}

// fields yields the fields that were copied.
func (a *answer) fields(yield func(name, value []byte) bool) {
	from := 0
	for i := 0; i+1 < len(a.cuts); i += 2 {
		if !yield(a.names[from:a.cuts[i]], a.names[a.cuts[i]:a.cuts[i+1]]) {
			return
		}
		from = a.cuts[i+1]
	}
}

// detail says what was seen, for people and tests.
func (a *answer) detail(c *conn, s *stream, sight policy.Sight) string {
	var b strings.Builder
	b.WriteString("status=" + strconv.Itoa(a.status) + " by=" + sight.String() + " pid=" + strconv.FormatUint(uint64(c.flow.PID), 10))
	a.fields(func(name, value []byte) bool {
		if strings.EqualFold(string(name), "retry-after") {
			b.WriteString(" retry-after=" + strconv.Quote(string(value)))
		}
		return true
	})
	if a.partial {
		b.WriteString(" partial")
	}
	b.WriteString(" path=" + strconv.Quote(s.path))
	return b.String()
}
