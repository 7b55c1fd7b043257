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
// slowest lane only; at the head of that line, and with the lane ready, it
// keeps its turn there and joins the line of the next slower; and so on. At
// the head of its last line, with every lane ready, it takes its units.
//
// Keeping a turn is not keeping a unit. It makes those behind wait a little,
// but only for a lane that is faster, and without it a waiter that needs two
// busy lanes would never find both ready. As all take their turns in one order
// (base interval, then specificity, then number), there is no circle.
//
// A closed lane is another matter: nobody may keep a turn elsewhere for it, or
// one exit in cooldown would hold up a destination for all others. Who needs a
// closed lane stands in its line alone: it is parked. When that line moves, it
// begins anew. Lines are kept in order of arrival, so that it finds its place
// again.

// ticket is a waiter in the queue. Tickets are kept and used again.
type ticket struct {
	w        *Waiter
	seq      uint64 // order of arrival
	deadline ledger.Time
	grace    time.Duration // by which it may go later, if it is about to go
	n        int
	stage    int  // spots[stage] is the line whose turn it waits for
	parked   bool // it stands in that line only
	entering bool // Enter has not returned: its decision is no notification
	spots    [policy.MaxLanes]spot
	next     *ticket
}

// spot is a ticket's place in the queue of one lane.
type spot struct {
	ticket *ticket
	queue  *queue
	i      int // ticket.spots[i] is this
	inLine bool
	links  [2]struct{ prev, next *spot }
}

const (
	memberLinks = iota
	lineLinks
)

// list is a list of spots in order of arrival.
type list struct {
	head, tail *spot
	links      int
	n          int
}

// insert puts s in its place. Nearly always that is the end.
func (l *list) insert(s *spot) {
	after := l.tail
	if after != nil && after.ticket.seq > s.ticket.seq {
		after = nil
		for at := l.head; at.ticket.seq < s.ticket.seq; at = at.links[l.links].next {
			after = at
		}
	}
	before := l.head
	if after != nil {
		before = after.links[l.links].next
		after.links[l.links].next = s
	} else {
		l.head = s
	}
	if before != nil {
		before.links[l.links].prev = s
	} else {
		l.tail = s
	}
	s.links[l.links].prev, s.links[l.links].next = after, before
	l.n++
}

func (l *list) remove(s *spot) {
	at := &s.links[l.links]
	if at.prev != nil {
		at.prev.links[l.links].next = at.next
	} else {
		l.head = at.next
	}
	if at.next != nil {
		at.next.links[l.links].prev = at.prev
	} else {
		l.tail = at.prev
	}
	at.prev, at.next = nil, nil
	l.n--
}

// queue is what the gate knows of a lane.
type queue struct {
	lane    *policy.Lane
	members list        // all who need the lane
	line    list        // those of them who stand in its line
	shut    bool        // nobody in line keeps a turn elsewhere, as the lane is closed
	probe   ledger.Time // when the probe under way was first seen; 0 if there is none
	at      ledger.Time // deadline in the gate's timers
	slot    int         // place there, -1 if none
	dirty   bool
	next    *queue // in the gate's list of dirty queues
}

func queueOf(l *policy.Lane) *queue {
	if q, ok := l.Queue.(*queue); ok {
		return q
	}
	q := &queue{lane: l, slot: -1, members: list{links: memberLinks}, line: list{links: lineLinks}}
	l.Queue = q
	return q
}

// peek reports whether the lane has a unit now. A lane that is not enforced
// always has.
func (q *queue) peek(now ledger.Time) (wait time.Duration, ready bool) {
	if !q.lane.Enforced() {
		return 0, true
	}
	return q.lane.Peek(now)
}

// isClosed reports whether the lane waits for more than its pace.
func (q *queue) isClosed(now ledger.Time) bool {
	return q.lane.Enforced() && q.lane.Blocked(now)
}

// enqueue is Enter where w cannot simply go.
func (g *Gate) enqueue(w *Waiter, now ledger.Time) Outcome {
	g.mu.Lock()
	empty := true
	for i, l := range w.lanes[:w.n] {
		empty = empty && (!w.held(i) || queueOf(l).line.n == 0)
	}
	if empty && w.take(now) { // who waits in these lanes waits for others
		g.mu.Unlock()
		g.dispatch(w, now)
		return w.outcome
	}
	if reason, lane, after, ok := g.foresee(w, now); !ok {
		g.mu.Unlock()
		g.setRefused(w, reason, lane, after, now)
		return w.outcome
	}
	t := g.ticket(w)
	t.entering = true
	w.phase = queued
	w.outcome.State = Queued
	g.admit(t)
	// Only now that the lanes show someone waiting is what Done or Abort
	// change certain to reach the queue; so the ledger is asked once more.
	g.settle()
	t.entering = false
	out := w.outcome
	if out.State != Queued {
		g.recycle(t)
	}
	g.unlock()
	return out
}

// foresee tells whether w may queue: no if a queue is full, or if, from how
// many are before it and from the state of the lanes, it would wait too long.
func (g *Gate) foresee(w *Waiter, now ledger.Time) (reason policy.Refusal, lane *policy.Lane, after time.Duration, ok bool) {
	var full, slow *policy.Lane
	most := time.Duration(math.MaxInt64)
	for i, l := range w.lanes[:w.n] {
		if !w.held(i) {
			continue
		}
		ahead := l.Waiting.Load()
		limits := l.Budget().Queue
		if full == nil && ahead >= int64(limits.Max) {
			full = l
		}
		most = min(most, limits.MaxWait)
		if d := l.After(now, uint64(ahead)); slow == nil || d > after {
			slow, after = l, d
		}
	}
	switch {
	case g.closed:
		return policy.RefusedShutdown, slow, after, false
	case full != nil:
		return policy.RefusedQueueFull, full, after, false
	case after > most:
		return policy.RefusedMaxWait, slow, after, false
	}
	slow.Cell.Held.Add(1)
	return 0, nil, 0, true
}

// ticket makes a ticket for w, with its lanes in the order of turns.
func (g *Gate) ticket(w *Waiter) *ticket {
	t := g.spare
	if t == nil {
		t = new(ticket)
	} else {
		g.spare = t.next
	}
	g.seq++
	*t = ticket{w: w, seq: g.seq}
	g.arrange(t)
	return t
}

// arrange fills in the spots and the deadline of a ticket that stands nowhere.
func (g *Gate) arrange(t *ticket) {
	most := time.Duration(math.MaxInt64)
	t.n = 0
	for k, l := range t.w.lanes[:t.w.n] {
		if !t.w.held(k) {
			continue
		}
		i := t.n
		for ; i > 0 && slower(l, t.spots[i-1].queue.lane); i-- {
			t.spots[i].queue = t.spots[i-1].queue
		}
		t.spots[i].queue = queueOf(l)
		t.n++
		most = min(most, l.Budget().Queue.MaxWait)
	}
	for i := range t.spots[:t.n] {
		t.spots[i].ticket, t.spots[i].i = t, i
	}
	since := t.w.entered
	if t.w.Since != 0 {
		since = t.w.Since
	}
	t.deadline = since.Add(most)
	t.grace = most / 8
}

// pardon puts the deadline of a ticket off, once, if it is about to go: what
// was foreseen when it came is late by no more than the timer, and by what the
// lane keeps from the answers before it. To refuse it now would have made its
// client wait for nothing.
func (t *ticket) pardon(now ledger.Time) bool {
	if t.grace == 0 {
		return false
	}
	for i := range t.spots[:t.n] {
		l := t.spots[i].queue.lane
		if l.Stuck() || l.After(now, 0) > t.grace {
			return false
		}
	}
	t.deadline, t.grace = now.Add(t.grace), 0
	return true
}

// slower is the order of turns. It must not change while anyone waits, which
// is why it is the base interval that counts.
func slower(a, b *policy.Lane) bool {
	return a.Pace() > b.Pace()
}

func (g *Gate) recycle(t *ticket) {
	t.w = nil
	t.next, g.spare = g.spare, t
}

// admit makes t a member of its lanes, in line for the first.
func (g *Gate) admit(t *ticket) {
	for i := range t.spots[:t.n] {
		s := &t.spots[i]
		s.queue.members.insert(s)
		s.queue.lane.Waiting.Add(1)
	}
	if tally := t.w.tally(); tally != nil {
		tally.Waiting.Add(1)
	}
	t.w.ticket = t
	t.parked = false
	g.join(t, 0)
}

// mark has a queue looked at before the lock is released.
func (g *Gate) mark(q *queue) {
	if !q.dirty {
		q.dirty = true
		q.next, g.dirty = g.dirty, q
	}
}

// join puts t in the line at stage i.
func (g *Gate) join(t *ticket, i int) *spot {
	s := &t.spots[i]
	t.stage = i
	s.inLine = true
	s.queue.line.insert(s)
	g.mark(s.queue)
	return s
}

// quit takes t out of the line at stage i.
func (g *Gate) quit(t *ticket, i int) {
	if s := &t.spots[i]; s.inLine {
		s.inLine = false
		s.queue.line.remove(s)
		g.mark(s.queue)
	}
}

// retreat takes t out of the lines after stage i, which it waits for now.
func (g *Gate) retreat(t *ticket, i int) {
	for k := i + 1; k <= t.stage; k++ {
		g.quit(t, k)
	}
	t.stage = i
}

// park has t stand in the line at stage i only.
func (g *Gate) park(t *ticket, i int) {
	for k := range t.spots[:t.n] {
		if k != i {
			g.quit(t, k)
		}
	}
	t.stage, t.parked = i, i > 0
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

// advance lets go from the head of q's line who can, refuses whose time is
// over, and sets q's timer to when there is more to do.
func (g *Gate) advance(q *queue) {
	q.dirty = true // what happens to q in here, it sees
	at := never
	for moved := true; moved; {
		moved, at = false, never
		for q.line.head != nil {
			next, again := g.step(q, q.line.head, g.cfg.Now())
			if !again {
				at = next
				break
			}
		}
		now := g.cfg.Now()
		for s := q.members.head; s != nil && s.ticket.deadline <= now; s = q.members.head {
			if s.ticket.pardon(now) {
				continue
			}
			lane, after := s.ticket.expect(now)
			g.refuse(s.ticket, policy.RefusedMaxWait, lane, after)
			moved = true
		}
	}
	if q.line.head == nil {
		q.shut, q.probe = false, 0
	}
	if s := q.members.head; s != nil {
		at = min(at, s.ticket.deadline)
	}
	g.timers.set(q, at)
	q.dirty = false
}

// expect is the wait of a ticket with nobody before it, and the lane that
// makes it.
func (t *ticket) expect(now ledger.Time) (lane *policy.Lane, after time.Duration) {
	for i := range t.spots[:t.n] {
		l := t.spots[i].queue.lane
		if d := l.After(now, 0); lane == nil || d > after {
			lane, after = l, d
		}
	}
	return lane, after
}

// step tries to bring the head of q's line one step further. If that changed
// the line, it is to be called again; else at is when it may, as far as q
// knows.
func (g *Gate) step(q *queue, s *spot, now ledger.Time) (at ledger.Time, again bool) {
	t := s.ticket
	if wait, ready := q.peek(now); !ready {
		return g.blocked(q, wait, now)
	}
	q.shut, q.probe = false, 0
	switch {
	case t.stage > s.i:
		return never, false // it keeps its turn and waits in another line
	case t.parked:
		t.parked = false
		g.quit(t, s.i)
		g.join(t, 0)
		return 0, true
	}
	for t.stage+1 < t.n {
		next := t.spots[t.stage+1].queue
		if next.isClosed(now) {
			g.join(t, t.stage+1)
			g.park(t, t.stage)
			return 0, true // q has another head
		}
		here := g.join(t, t.stage+1)
		if next.line.head != here {
			return never, false
		}
		if _, ready := next.peek(now); !ready {
			return never, false // it is marked, and will set its own timer
		}
	}
	if t.w.take(now) {
		g.grant(t, now)
		return 0, true
	}
	for i := range t.spots[:t.n] { // one was closed since, or someone in the kernel was quicker
		busy := t.spots[i].queue
		if _, ready := busy.peek(now); !ready {
			g.retreat(t, i)
			g.mark(busy)
			return 0, true
		}
	}
	return now.Add(time.Millisecond), false
}

// blocked is step for a lane that has no unit.
func (g *Gate) blocked(q *queue, wait time.Duration, now ledger.Time) (at ledger.Time, again bool) {
	switch closed := q.isClosed(now); {
	case !closed:
		q.shut = false
	case !q.shut:
		q.shut = true
		for at := q.line.head; at != nil; at = at.links[lineLinks].next {
			if at.i > 0 && !at.ticket.parked {
				g.park(at.ticket, at.i)
			}
		}
	}
	if !q.lane.Cell.Probing() {
		q.probe = 0
		if wait == 0 { // it was, until just now
			return 0, true
		}
		return now.Add(wait), false
	}
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
}

// leave takes t out of all queues.
func (g *Gate) leave(t *ticket) {
	for i := range t.spots[:t.n] {
		g.quit(t, i)
		s := &t.spots[i]
		s.queue.members.remove(s)
		s.queue.lane.Waiting.Add(-1)
		g.mark(s.queue)
	}
	if tally := t.w.tally(); tally != nil {
		tally.Waiting.Add(-1)
	}
	t.w.ticket = nil
}

// grant ends t: its units were taken at now.
func (g *Gate) grant(t *ticket, now ledger.Time) {
	g.leave(t)
	g.dispatch(t.w, now)
	g.decide(t)
}

// refuse ends t without units.
func (g *Gate) refuse(t *ticket, reason policy.Refusal, lane *policy.Lane, after time.Duration) {
	g.leave(t)
	g.setRefused(t.w, reason, lane, after, g.cfg.Now())
	g.decide(t)
}

func (g *Gate) setRefused(w *Waiter, reason policy.Refusal, lane *policy.Lane, after time.Duration, now ledger.Time) {
	w.phase = idle
	w.outcome = Outcome{State: Refused, Reason: reason, Lane: lane, RetryAfter: after, Drop: lane.Budget().OnFull == policy.Drop}
	lane.Cell.Refused.Add(1)
	if tally := w.tally(); tally != nil {
		tally.CountRefused(reason)
	}
	g.emit(policy.Event{At: now, Kind: policy.EventRefused, Lane: lane.ID(), Wait: after, Detail: reason.String()})
}

// decide has the waiter of t notified once the lock is released.
func (g *Gate) decide(t *ticket) {
	if t.entering {
		return
	}
	if g.decided == nil {
		g.decided = t
	} else {
		g.last.next = t
	}
	g.last, t.next = t, nil
}

// unlock ends every critical section that may have changed a queue: it
// settles, sets the alarm, and notifies.
func (g *Gate) unlock() {
	g.settle()
	if first := g.timers.first(); !g.closed && first != never && (g.armed == 0 || first < g.armed) {
		// An alarm that is set too early is left alone: to be woken once for
		// nothing is cheaper than a system call for each change.
		g.armed = first
		g.alarm.Set(first)
	}
	t := g.decided
	g.decided, g.last = nil, nil
	if t == nil {
		g.mu.Unlock()
		return
	}
	// A waiter that is notified may be gone, or enter again, at once: nothing
	// of it may be touched after that, and its ticket only under the lock.
	for {
		notify, next := t.w.Notify, t.next
		g.recycle(t)
		g.mu.Unlock()
		notify()
		if next == nil {
			return
		}
		t = next
		g.mu.Lock()
	}
}

// tick is called by the alarm.
func (g *Gate) tick() {
	g.mu.Lock()
	g.armed = 0
	for now := g.cfg.Now(); g.timers.first() <= now; {
		q := g.timers.pop()
		g.mark(q)
	}
	g.unlock()
}

// Leave takes a queued waiter out, at no cost to anyone. It reports false if
// the decision has fallen: then Notify was or will be called, and if it was
// granted, it must be reported by Abort.
func (g *Gate) Leave(w *Waiter) bool {
	g.mu.Lock()
	if w.phase != queued {
		g.mu.Unlock()
		return false
	}
	t := w.ticket
	g.leave(t)
	w.phase = idle
	g.recycle(t)
	g.unlock()
	return true
}
