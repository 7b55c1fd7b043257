// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"math"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
)

// ticket is a waiter in the queue. Tickets are kept and used again.
type ticket struct {
	w        *Waiter
	seq      uint64 // order of arrival
	deadline ledger.Time
	grace    time.Duration // by which it may go later, if it is about to go
	due      int           // spots[due] is where the deadline is looked after
	n        int
	entering bool // Enter has not returned: its decision is no notification

	// Where it stands: see turns.go.
	stage    int           // spots[stage] is the line whose turn it waits for
	parked   bool          // it stands in that line only
	since    ledger.Time   // when it was parked, if by what only answers or a window open; else 0
	waited   time.Duration // how long it was, before
	patience ledger.Time   // until when it keeps its turns for a place that an answer must free; 0: not begun
	hold     ledger.Time   // until when it keeps its turns for a slower lane; 0: it has all of those

	spots [policy.MaxLanes]spot
	next  *ticket
}

// queue is what the gate knows of a lane.
type queue struct {
	lane    *policy.Lane
	flows               // who needs the lane, and stands in its line
	keepers list        // those in line who keep their turns in slower lanes, but have none here yet
	due     list        // those whose deadline is looked after here
	turn    *spot       // who has its turn here, and keeps it
	probe   ledger.Time // when the probe under way was first seen; 0 if there is none
	blocked uint64      // Gate.round in which the lane was found to be in someone's way
	tried   uint64      // Gate.round in which someone was found that begins with it
	at      ledger.Time // deadline in the gate's timers
	slot    int         // place there, -1 if none
	dirty   bool
	next    *queue // in the gate's list of dirty queues
}

func (g *Gate) queueOf(l *policy.Lane) *queue {
	if q, ok := l.Queue.(*queue); ok {
		return q
	}
	q := &queue{
		lane:    l,
		slot:    -1,
		flows:   flows{pool: &g.flows},
		keepers: list{links: keeperLinks},
		due:     list{links: dueLinks},
	}
	l.Queue = q
	return q
}

// quantum is what the lane takes for a request when it goes.
func (q *queue) quantum() int64 { return int64(min(q.lane.Cost(), 1<<32)) }

// first is the first in line.
func (q *queue) first() *spot {
	if q.turn != nil {
		return q.turn
	}
	return q.flows.first(q.quantum())
}

// key tells whose flow w joins.
func (q *queue) key(w *Waiter) uint64 { return w.Client.Key(q.lane.Budget().Queue.FairBy) }

// enqueue is Enter where w cannot simply go. failed says that it tried to, and
// gave back what it had taken by then.
func (g *Gate) enqueue(w *Waiter, failed bool, now ledger.Time) Outcome {
	g.mu.Lock()
	empty := true
	for i, l := range w.lanes[:w.n] {
		if !w.held(i) {
			continue
		}
		q := g.queueOf(l)
		empty = empty && q.lined == 0
		if failed && l.Waiting.Load() > 0 {
			g.mark(q) // someone may have looked at the lane in between
		}
	}
	if empty && w.take(now) { // who waits in these lanes waits for others
		g.unlock()
		g.dispatch(w, now)
		return w.outcome
	}
	if f := g.foresee(w, now); f.refused {
		g.setRefused(w, f.reason, f.lane, f.after, f.ahead, now)
		g.unlock()
		return w.outcome
	}
	g.makeRoom(w, now)
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

// forecast is what a request has to expect in the queue.
type forecast struct {
	refused bool
	reason  policy.Refusal
	lane    *policy.Lane
	after   time.Duration
	ahead   int
}

// foresee tells whether w may queue: no if a queue is full and nobody has to
// make room, or if, from how many are before it and from the state of the
// lanes, it would wait too long.
func (g *Gate) foresee(w *Waiter, now ledger.Time) forecast {
	var full, slow forecast
	most := time.Duration(math.MaxInt64)
	for i, l := range w.lanes[:w.n] {
		if !w.held(i) {
			continue
		}
		q := g.queueOf(l)
		f := q.place(q.key(w))
		limits := l.Budget().Queue
		if w.bounds(i) {
			most = min(most, limits.MaxWait)
		}
		ahead := q.ahead(f)
		after := l.After(now, uint64(ahead))
		if full.lane == nil && w.bounds(i) && l.Waiting.Load() >= int64(limits.Max) && q.victim(f) == nil {
			full.lane, full.ahead = l, ahead
		}
		if slow.lane == nil || after > slow.after {
			slow = forecast{lane: l, after: after, ahead: ahead}
		}
	}
	switch {
	case g.closed:
		slow.refused, slow.reason = true, policy.RefusedShutdown
	case full.lane != nil:
		full.refused, full.reason, full.after = true, policy.RefusedQueueFull, slow.after
		return full
	case slow.after > most-max(now.Sub(w.began()), 0):
		slow.refused, slow.reason = true, policy.RefusedMaxWait
	default:
		slow.lane.Cell.Held.Add(1)
	}
	return slow
}

// began is the instant from which the longest wait counts.
func (w *Waiter) began() ledger.Time {
	if w.Since != 0 {
		return w.Since
	}
	return w.entered
}

// makeRoom refuses the newest of the longest flow in each full queue that w is
// about to join: see flows.victim.
func (g *Gate) makeRoom(w *Waiter, now ledger.Time) {
	for i, l := range w.lanes[:w.n] {
		if !w.bounds(i) || l.Waiting.Load() < int64(l.Budget().Queue.Max) {
			continue
		}
		q := g.queueOf(l)
		if s := q.victim(q.place(q.key(w))); s != nil {
			ahead := q.flows.before(s)
			g.refuse(s.ticket, policy.RefusedQueueFull, l, l.After(now, uint64(ahead)), ahead)
		}
	}
}

// ticket makes a ticket for w, with its lanes in the order of turns.
func (g *Gate) ticket(w *Waiter) *ticket {
	t := g.spare
	if t == nil {
		t = new(ticket)
	} else {
		g.spare = t.next
		t.next = nil
	}
	g.seq++
	t.w, t.seq = w, g.seq
	t.waited = 0
	g.arrange(t)
	return t
}

// bounds reports whether the i-th lane says for how long w may wait, and among
// how many. The lane for trouble of an exit does where nothing else holds w:
// what budgets of the file allow is not for it to take away.
func (w *Waiter) bounds(i int) bool {
	if !w.held(i) {
		return false
	}
	return w.lanes[i].Key.Budget != policy.ExitBudget || w.enforced == 1<<i
}

// arrange fills in the spots and the deadline of a ticket that stands nowhere.
func (g *Gate) arrange(t *ticket) {
	most := time.Duration(math.MaxInt64)
	var strictest *policy.Lane
	t.n = 0
	for k, l := range t.w.lanes[:t.w.n] {
		if !t.w.held(k) {
			continue
		}
		i := t.n
		for ; i > 0 && slower(l, t.spots[i-1].queue.lane); i-- {
			t.spots[i].queue = t.spots[i-1].queue
		}
		t.spots[i].queue = g.queueOf(l)
		t.n++
		if wait := l.Budget().Queue.MaxWait; t.w.bounds(k) && wait < most {
			most, strictest = wait, l
		}
	}
	t.due = 0
	for i := range t.spots[:t.n] {
		s := &t.spots[i]
		s.ticket, s.i = t, i
		if s.queue.lane == strictest {
			t.due = i // those before it in that queue are due before it, nearly always
		}
	}
	t.stage, t.parked, t.since, t.patience, t.hold = 0, false, 0, 0, 0
	t.deadline = t.w.began().Add(most)
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
	s := &t.spots[t.due]
	s.queue.due.remove(s)
	t.deadline, t.grace = now.Add(t.grace), 0
	s.queue.due.insert(s)
	return true
}

// slower is the order of turns. It must not change while anyone waits, which
// is why it is the budget's pace that counts.
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
		s.queue.enroll(s, s.queue.key(t.w))
		if l := s.queue.lane; l.Waiting.Add(1) == 1 {
			l.Cell.SetQueued(true)
		}
	}
	if tally := t.w.tally(); tally != nil {
		tally.Waiting.Add(1)
	}
	t.w.ticket = t
	s := &t.spots[t.due]
	s.queue.due.insert(s)
	g.mark(s.queue)
	g.stand(t, 0)
}

// leave takes t out of all queues.
func (g *Gate) leave(t *ticket) {
	s := &t.spots[t.due]
	s.queue.due.remove(s)
	for i := range t.spots[:t.n] {
		g.quit(t, i)
		s := &t.spots[i]
		s.queue.strike(s)
		l := s.queue.lane
		if l.Waiting.Load() == 1 {
			l.Cell.SetQueued(false) // first: with nobody waiting, the cell may be given to another lane
		}
		l.Waiting.Add(-1)
		g.mark(s.queue)
	}
	if tally := t.w.tally(); tally != nil {
		tally.Waiting.Add(-1)
	}
	t.w.ticket = nil
}

// grant ends t: its units were taken at now.
func (g *Gate) grant(t *ticket, now ledger.Time) {
	for i := range t.spots[:t.n] {
		q := t.spots[i].queue
		t.spots[i].flow.charge(q.quantum(), q.quantum())
	}
	g.leave(t)
	g.dispatch(t.w, now)
	g.decide(t)
}

// refuse ends t without units.
func (g *Gate) refuse(t *ticket, reason policy.Refusal, lane *policy.Lane, after time.Duration, ahead int) {
	g.leave(t)
	g.setRefused(t.w, reason, lane, after, ahead, g.cfg.Now())
	g.decide(t)
}

func (g *Gate) setRefused(w *Waiter, reason policy.Refusal, lane *policy.Lane, after time.Duration, ahead int, now ledger.Time) {
	w.phase = idle
	w.outcome = Outcome{State: Refused, Reason: reason, Lane: lane, RetryAfter: after, Ahead: ahead, Drop: lane.Budget().OnFull == policy.Drop}
	lane.Cell.Refused.Add(1)
	if tally := w.tally(); tally != nil {
		tally.CountRefused(reason)
	}
	g.emit(policy.Event{At: now, Kind: policy.EventRefused, Lane: lane.ID(), Wait: after, Detail: reason.String()})
	g.reportStall(lane, now)
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
