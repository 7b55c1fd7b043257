// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"math"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
)

// How a waiter with several lanes queues.
//
// It is a member of each of its lanes: it counts for queue.max, and a cooldown
// of any of them concerns it. It stands in line in some of them: first in its
// slowest lane only; first in that line, and with the lane ready, it has its
// turn there, keeps it, and joins the line of the next slower; and so on. With
// its turn in the last line, and every lane ready, it takes its units.
//
// Keeping a turn is not keeping a unit. It makes those behind wait a little,
// but only for a lane that is faster, and without it a waiter that needs two
// busy lanes would never find both ready.
//
// A lane that waits for more than its pace is another matter: nobody may keep
// a turn elsewhere for it, or one exit in cooldown would hold up a destination
// for all others. Who needs such a lane is parked: it stands in that line
// alone. When the lane opens, those who are parked are tried in order. Who
// finds all slower lanes free and ready takes its turns there and goes. Of the
// others, one of each slowest lane goes back to the line there as well, at its
// old place; when that one went, the next.
//
// Where only answers open a lane, for one at a time, or a window does, that is
// not enough: the moments at which the lanes of a waiter are ready may never
// meet, as others take what is free at once. Two things make them meet.
// Who is first in line of a lane in which as much is under way as may be keeps
// its turns elsewhere for an eighth of the pace there, before it is parked.
// And who was parked, and is the first for whom a place is free, keeps that
// place's turn, and takes those in its slower lanes, which it had before, for
// as long at most as it was parked by then. So nobody holds others up for
// longer than an eighth of their pace, or than it waited itself.
//
// There is no circle of waiters who keep turns for each other. Turns are
// kept for lanes later in one order (pace, then specificity); whom a lane
// picks from its line does not matter for that, so each may be fair in its own
// way. Only who was parked keeps one for a lane that is earlier: but it takes
// all those turns together or none, and only where nobody has them. From then
// on it waits for nobody's turn there, only for time, or for an answer, and
// gives up in the end.

// bar is what keeps a lane from giving.
type bar uint8

const (
	paces bar = iota // nothing, or no more than its pace
	full             // as much is under way as may be: an answer opens it
	shut             // a cooldown, a probe, a window
)

func (q *queue) bar(now ledger.Time) bar {
	l := q.lane
	if !l.Enforced() || !l.Blocked(now) {
		return paces
	}
	if l.Cell.Probing() || l.Cut(now) {
		return shut
	}
	if wait, _ := l.Peek(now); wait > l.Pace() {
		return shut
	}
	if l.Full() {
		return full
	}
	return paces
}

// cools reports whether the lane is in a cooldown or probes.
func (q *queue) cools(now ledger.Time) bool {
	c := q.lane.Cell
	return now < ledger.Time(c.OpenUntil.Load()) || c.Probing()
}

// peek reports whether the lane has a unit now. A lane that is not enforced
// always has.
func (q *queue) peek(now ledger.Time) (wait time.Duration, ready bool) {
	if !q.lane.Enforced() {
		return 0, true
	}
	return q.lane.Peek(now)
}

// mark has a queue looked at before the lock is released.
func (g *Gate) mark(q *queue) {
	if !q.dirty {
		q.dirty = true
		q.next, g.dirty = g.dirty, q
	}
}

// join puts t in line at i, if it does not stand there.
func (g *Gate) join(t *ticket, i int) {
	if s := &t.spots[i]; !s.inLine {
		s.inLine = true
		s.queue.stand(s, s.queue.quantum())
		g.mark(s.queue)
	}
}

// quit takes t out of the line at i, and its turn there.
func (g *Gate) quit(t *ticket, i int) {
	s := &t.spots[i]
	if !s.inLine {
		return
	}
	g.yield(s)
	s.inLine = false
	s.queue.step(s)
	g.mark(s.queue)
}

// yield ends what s has in its line besides its place.
func (g *Gate) yield(s *spot) {
	if s.queue.turn == s {
		s.queue.turn = nil
		g.mark(s.queue)
	}
	if s.keeps {
		s.keeps = false
		s.queue.keepers.remove(s)
	}
}

// stand has t, which has its turns in all lanes before i, wait in the line at
// i.
func (g *Gate) stand(t *ticket, i int) {
	if s := &t.spots[t.stage]; s.keeps {
		s.keeps = false
		s.queue.keepers.remove(s)
	}
	t.stage = i
	g.join(t, i)
	s := &t.spots[i]
	g.mark(s.queue) // also where it stood already
	if i > 0 && !s.keeps {
		s.keeps = true
		s.queue.keepers.insert(s)
	}
}

// retreat takes t out of the lines after i, which it waits for now.
func (g *Gate) retreat(t *ticket, i int) {
	for k := i + 1; k <= t.stage; k++ {
		g.quit(t, k)
	}
	t.patience, t.hold = 0, 0
	g.yield(&t.spots[i])
	g.stand(t, i)
}

// park has t stand in the line at i only, for a lane that is no faster than
// that.
func (g *Gate) park(t *ticket, i int, now ledger.Time) {
	for k := range t.spots[:t.n] {
		if k != i {
			g.quit(t, k)
		}
	}
	s := &t.spots[i]
	g.join(t, i)
	g.yield(s)
	t.stage, t.parked, t.patience, t.hold = i, true, 0, 0
	if !s.queue.cools(now) {
		t.since = now
	}
}

// unpark ends that t is parked.
func (t *ticket) unpark(now ledger.Time) {
	t.parked = false
	t.waited = t.parkedFor(now)
	t.since = 0
}

// parkedFor is how long t was parked in front of lanes that only answers or
// windows opened.
func (t *ticket) parkedFor(now ledger.Time) time.Duration {
	if t.since == 0 {
		return t.waited
	}
	return t.waited + max(now.Sub(t.since), 0)
}

// seize gives t, which stands in line at s, its turns in all lanes before.
func (g *Gate) seize(t *ticket, s *spot, now ledger.Time) {
	t.unpark(now)
	t.stage = s.i
	for i := range t.spots[:s.i] {
		g.join(t, i)
		t.spots[i].queue.turn = &t.spots[i]
	}
	s.keeps = true
	s.queue.keepers.insert(s)
}

// settle looks at all queues that something happened to, until nothing more
// can go.
func (g *Gate) settle() {
	for q := g.dirty; q != nil; q = g.dirty {
		g.dirty, q.next, q.dirty = q.next, nil, false
		g.advance(q)
	}
}

// never is the deadline of a queue that only others can wake.
const never = ledger.Time(math.MaxUint64)

// advance lets go from q's line who can, refuses whose time is over, and sets
// q's timer to when there is more to do.
func (g *Gate) advance(q *queue) {
	q.dirty = true // what happens to q in here, it sees
	at := never
	for moved := true; moved; {
		moved, at = false, never
		for q.lined > 0 {
			next, again := g.step(q, g.cfg.Now())
			if !again {
				at = next
				break
			}
		}
		now := g.cfg.Now()
		for s := q.due.head; s != nil && s.ticket.deadline <= now; s = q.due.head {
			if s.ticket.pardon(now) {
				continue
			}
			slow, after := s.ticket.expect(now)
			g.refuse(s.ticket, policy.RefusedMaxWait, slow.queue.lane, after, slow.queue.before(slow))
			moved = true
		}
	}
	if q.lined == 0 {
		q.probe = 0
		q.forget()
	}
	if q.lane.Shared() != nil { // the clock is not read for nothing
		q.lane.Want(q.lined, g.cfg.Now())
	}
	if s := q.due.head; s != nil {
		at = min(at, s.ticket.deadline)
	}
	g.timers.set(q, at)
	q.dirty = false
}

// expect is the wait of a ticket with nobody before it, and its place in the
// lane that makes it.
func (t *ticket) expect(now ledger.Time) (slow *spot, after time.Duration) {
	for i := range t.spots[:t.n] {
		s := &t.spots[i]
		if d := s.queue.lane.After(now, 0); slow == nil || d > after {
			slow, after = s, d
		}
	}
	return slow, after
}

// step tries to bring someone in q's line one step further. If that changed
// the line, it is to be called again; else at is when it may, as far as q
// knows.
func (g *Gate) step(q *queue, now ledger.Time) (at ledger.Time, again bool) {
	if wait, ready := q.peek(now); !ready {
		return g.wait(q, wait, now)
	}
	q.probe = 0
	s := q.turn
	if s == nil {
		if s = g.choose(q, now); s == nil {
			return never, false
		}
		q.turn = s
	}
	t := s.ticket
	if t.stage > s.i {
		return g.keep(q, t, now)
	}
	// It has its turn here, and in all slower lanes; those had a unit.
	for i := range t.spots[:s.i] {
		wait, ready := t.spots[i].queue.peek(now)
		if ready {
			continue
		}
		if now >= t.hold { // it was closed since, or someone in the kernel was quicker
			g.retreat(t, i)
			return 0, true
		}
		if wait == 0 {
			return t.hold, false
		}
		return min(now.Add(wait), t.hold), false
	}
	if s.i+1 < t.n {
		t.hold = 0
		if next := t.spots[s.i+1].queue; next.bar(now) == shut {
			g.park(t, s.i+1, now)
			return 0, true
		}
		g.stand(t, s.i+1) // which is looked at next
		return g.keep(q, t, now)
	}
	if t.w.take(now) {
		g.grant(t, now)
		return 0, true
	}
	if _, ready := q.peek(now); !ready {
		return 0, true
	}
	return now.Add(time.Millisecond), false // two lanes that are never ready together
}

// keep is step for who keeps its turn in q and waits in the line of a faster
// lane.
func (g *Gate) keep(q *queue, t *ticket, now ledger.Time) (at ledger.Time, again bool) {
	here := &t.spots[t.stage]
	if t.hold != 0 {
		g.mark(here.queue) // it waits there for this lane
	}
	switch here.queue.bar(now) {
	case paces:
		t.patience = 0
		return never, false
	case full:
		if t.patience == 0 {
			t.patience = now.Add(q.lane.Pace() / 8)
		}
		if now < t.patience && here.queue.first() == here {
			return t.patience, false
		}
	}
	g.park(t, t.stage, now)
	return 0, true
}

// choose is who in q's line can use a lane that is ready, in order; nil if
// nobody can. Of those parked who cannot, one of each slowest lane goes back to
// its line there; those behind it would only wait for its turn. When it went,
// or was parked elsewhere, q is looked at again.
func (g *Gate) choose(q *queue, now ledger.Time) *spot {
	head := q.first()
	if t := head.ticket; !t.parked && t.stage == head.i {
		return head
	}
	g.round++
	for _, r := range [...]*ring{&q.fresh, &q.old} {
		for f := r.head; f != nil; f = f.next {
			for s := f.line.head; s != nil; s = s.links[lineLinks].next {
				t := s.ticket
				if !t.parked && t.stage == s.i {
					return s
				}
				slowest := t.spots[0].queue
				switch {
				case !t.parked: // it stands there, or has come further from there
					slowest.tried = g.round
				case g.clear(t, s.i, now):
					g.seize(t, s, now)
					return s
				case s == head && t.holds(s.i, now):
					g.seize(t, s, now)
					t.hold = now.Add(t.waited)
					return s
				case slowest.tried != g.round:
					slowest.tried = g.round
					t.unpark(now)
					g.stand(t, 0)
				}
			}
		}
	}
	return nil
}

// clear reports whether all of t's lanes before i have a unit and nobody keeps
// a turn there. What is in someone's way is asked once a round.
func (g *Gate) clear(t *ticket, i int, now ledger.Time) bool {
	for k := range t.spots[:i] {
		q := t.spots[k].queue
		if q.blocked == g.round {
			return false
		}
		if _, ready := q.peek(now); !ready || q.turn != nil {
			q.blocked = g.round
			return false
		}
	}
	return true
}

// holds reports whether t, which is parked at i and the first there, may keep
// the turn there until the lanes before are ready.
func (t *ticket) holds(i int, now ledger.Time) bool {
	most := t.parkedFor(now)
	if t.since == 0 || most == 0 {
		return false
	}
	for k := range t.spots[:i] {
		q := t.spots[k].queue
		wait, ready := q.peek(now)
		if q.turn != nil || wait > most || !ready && q.bar(now) == shut {
			return false
		}
	}
	return true
}

// free has nobody keep turns for q, which has no unit, for longer than it
// may.
func (g *Gate) free(q *queue, now ledger.Time) {
	switch q.bar(now) {
	case shut:
		if s := q.turn; s != nil {
			g.retreat(s.ticket, s.i)
		}
		for s := q.keepers.head; s != nil; s = q.keepers.head {
			g.park(s.ticket, s.i, now)
		}
	case full:
		for s := q.keepers.head; s != nil; s = s.links[keeperLinks].next {
			if t := s.ticket; t.patience == 0 {
				g.mark(t.spots[s.i-1].queue) // where it is decided for how long it may
			}
		}
	}
}

// wait is step for a lane that has no unit.
func (g *Gate) wait(q *queue, wait time.Duration, now ledger.Time) (at ledger.Time, again bool) {
	if q.turn != nil || q.keepers.n > 0 {
		g.free(q, now)
	}
	switch {
	case q.lane.Cell.Probing():
		if q.probe == 0 {
			q.probe = now
		}
		if until := max(now.Add(wait), q.probe.Add(g.cfg.ProbeTimeout)); now < until {
			return until, false
		}
		q.probe = 0
		q.lane.Cell.EndProbe()
		g.cfg.Logger.Warn("probe got no answer, sending another", "lane", q.lane.ID())
		return 0, true
	case wait > 0:
		q.probe = 0
		return now.Add(wait), false
	case q.lane.Full(), q.lane.Awaits(now):
		q.probe = 0
		return never, false // until Release, or Follow
	}
	return 0, true // it was, until just now
}
