// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
)

// lightly is how long trouble of capacity, or of an exit, closes a lane when
// no delay was given.
const lightly = time.Second

// Done reports the answer to a dispatched request, received at now. rnd is
// uniform in [0, 1): it places the reopening within the budget's spread.
//
// A limit closes and slows the most specific lane of the request that is
// enforced, trouble of capacity closes it briefly, trouble of the exit closes
// the lane of the exit if there is one. A success brings all its lanes nearer
// to their base rate.
func (g *Gate) Done(w *Waiter, v verdict.Verdict, rnd float64, now ledger.Time) {
	if !w.release() {
		return
	}
	lanes := w.lanes[:w.n]
	for i, l := range lanes {
		l.Settle(&w.grants[i], now)
	}
	switch v.Kind {
	case verdict.OK:
		g.reward(w, now)
		return
	case verdict.Limited:
		for i, l := range lanes {
			if !w.held(i) {
				l.Cell.Limited.Add(1)
			}
		}
		if i := w.target(); i >= 0 {
			g.penalize(lanes[i], &w.grants[i], v, rnd, now)
		}
	case verdict.Capacity:
		if i := w.target(); i >= 0 {
			g.close(lanes[i], v, rnd, now)
		}
	case verdict.ExitTrouble:
		for i, l := range lanes {
			if w.held(i) && l.Key.Exit != "" && l.Key.Destination == "" {
				g.close(l, v, rnd, now)
			}
		}
	}
	if tally := w.tally(); tally != nil && v.Kind != verdict.Error {
		tally.CountLimited(v.Kind)
	}
	g.endProbes(w)
}

// Abort reports that a dispatched request will have no answer. refund gives
// its units back, which is right only if none of its bytes was written.
func (g *Gate) Abort(w *Waiter, refund bool, now ledger.Time) {
	if !w.release() {
		return
	}
	if refund {
		for i, l := range w.lanes[:w.n] {
			l.Return(w.grants[i], now)
		}
		g.wake(w.lanes[:w.n]...)
	}
	g.endProbes(w)
}

// release ends a dispatch; false if there was none.
func (w *Waiter) release() bool {
	if w.phase != dispatched {
		return false
	}
	w.phase = idle
	for _, l := range w.lanes[:w.n] {
		l.Release()
	}
	return true
}

// target is the lane that a verdict touches, or -1.
func (w *Waiter) target() int {
	for i, l := range w.lanes[:w.n] {
		if w.held(i) && l.Enforced() {
			return i
		}
	}
	return -1
}

func (g *Gate) reward(w *Waiter, now ledger.Time) {
	probe := false
	for i, l := range w.lanes[:w.n] {
		if !w.held(i) {
			continue
		}
		probe = probe || w.grants[i].Probe
		if l.Reward(&w.grants[i], w.sent > w.entered || l.Waiting.Load() > 0, now) {
			g.emit(policy.Event{At: now, Kind: policy.EventReopened, Lane: l.ID()})
			g.cfg.Logger.Info("lane reopened", "lane", l.ID())
			probe = true
		}
	}
	if probe {
		g.endProbes(w)
	}
}

// endProbes lets the next one probe where w was the probe and did not end the
// probing, and wakes those lanes.
func (g *Gate) endProbes(w *Waiter) {
	for i, l := range w.lanes[:w.n] {
		if !w.grants[i].Probe {
			continue
		}
		if l.Cell.Epoch.Load() == w.grants[i].Epoch {
			l.Cell.EndProbe()
		}
		g.wake(l)
	}
}

// penalize does what a limit does to a lane.
func (g *Gate) penalize(l *policy.Lane, grant *policy.Grant, v verdict.Verdict, rnd float64, now ledger.Time) {
	c, b := l.Cell, l.Budget()
	c.Limited.Add(1)
	strikes := l.Strikes()
	if c.Epoch.Load() == grant.Epoch {
		strikes++ // this is one; others are late news of the last
	}
	delay := b.Cooldown.Cooling(v.Delay, strikes)
	before := ledger.Time(c.OpenUntil.Load())
	until := now.Add(delay + b.Cooldown.Later(delay, rnd))
	slowed := l.Penalize(grant, until, now)
	if slowed {
		g.cfg.Logger.Info("lane closed and slowed", "lane", l.ID(), "for", until.Sub(now), "asked", v.HasDelay)
	}
	if slowed || until > before {
		l.NoteClosed(policy.Closure{At: now, Kind: v.Kind, Delay: delay, Given: v.HasDelay})
		g.told(l, slowed, before, now)
		g.review(l)
	}
}

// close closes a lane for what is no fault of its rate.
func (g *Gate) close(l *policy.Lane, v verdict.Verdict, rnd float64, now ledger.Time) {
	b := l.Budget()
	delay := lightly
	if v.HasDelay {
		delay = b.Cooldown.Cooling(v.Delay, 1)
	}
	before := ledger.Time(l.Cell.OpenUntil.Load())
	if l.Cell.Close(now.Add(delay + b.Cooldown.Later(delay, rnd))) {
		l.NoteClosed(policy.Closure{At: now, Kind: v.Kind, Delay: delay, Given: v.HasDelay})
		g.told(l, false, before, now)
		g.review(l)
	}
}

// told makes an event of a closure. Fifty answers to requests that were under
// way together say the same within a few milliseconds: that is one event.
func (g *Gate) told(l *policy.Lane, slowed bool, before, now ledger.Time) {
	until := ledger.Time(l.Cell.OpenUntil.Load())
	kind := policy.EventPenalty
	if !slowed {
		kind = policy.EventCooldown
		if before > now && until.Sub(before) < time.Second {
			return
		}
	}
	detail := ""
	if c, ok := l.Closed(); ok {
		detail = c.Reason()
	}
	g.emit(policy.Event{At: now, Kind: kind, Lane: l.ID(), Wait: until.Sub(now), Detail: detail})
}

// Wake looks at a lane's queue: to be called when its cell was changed by
// something else than the gate.
func (g *Gate) Wake(l *policy.Lane) { g.wake(l) }

func (g *Gate) wake(lanes ...*policy.Lane) {
	for _, l := range lanes {
		if l.Waiting.Load() == 0 {
			continue
		}
		g.mu.Lock()
		g.mark(queueOf(l))
		g.unlock()
	}
}

// SetCooldown closes a lane by the hand of the operator. It never shortens a
// cooldown: ClearCooldown first.
func (g *Gate) SetCooldown(l *policy.Lane, until ledger.Time) {
	now := g.cfg.Now()
	if !l.Cell.Close(until) {
		return
	}
	l.NoteClosed(policy.Closure{At: now, Delay: until.Sub(now), Manual: true})
	g.told(l, false, 0, now)
	g.review(l)
}

// ClearCooldown opens a lane by the hand of the operator.
func (g *Gate) ClearCooldown(l *policy.Lane) {
	now := g.cfg.Now()
	l.Cell.ClearCooldown(now)
	g.emit(policy.Event{At: now, Kind: policy.EventReopened, Lane: l.ID(), Detail: "operator"})
	g.wake(l)
}

// review refuses those in the queue of a lane that was just closed or slowed
// who would, as it now looks, wait longer than their budgets allow. They would
// be refused in the end; so they learn at once, and when to come again.
func (g *Gate) review(l *policy.Lane) {
	if l.Waiting.Load() == 0 {
		return
	}
	g.mu.Lock()
	q := queueOf(l)
	g.mark(q)
	now := g.cfg.Now()
	ahead := uint64(0)
	for s := q.members.head; s != nil; {
		next := s.links[memberLinks].next
		after := l.After(now, ahead)
		if now.Add(after) > s.ticket.deadline && l.Enforced() {
			g.refuse(s.ticket, policy.RefusedMaxWait, l, after)
		} else {
			ahead++
		}
		s = next
	}
	g.unlock()
}

// Reconfigured looks at everything anew, after Engine.Swap changed limits and
// ended lanes.
func (g *Gate) Reconfigured() {
	g.mu.Lock()
	defer g.unlock()
	var tickets []*ticket
	for _, q := range g.timers.all() {
		for s := q.members.head; s != nil; s = s.links[memberLinks].next {
			if s.i == 0 { // each once
				tickets = append(tickets, s.ticket)
			}
		}
	}
	for _, t := range tickets {
		g.rearrange(t)
	}
}

// rearrange puts a ticket into the queues that it needs now, at its old place.
func (g *Gate) rearrange(t *ticket) {
	w := t.w
	g.leave(t)
	for i, l := range w.lanes[:w.n] {
		if !l.Enforced() {
			w.enforced &^= 1 << i
		}
	}
	g.arrange(t)
	if t.n == 0 { // nothing holds it any more
		now := g.cfg.Now()
		w.take(now)
		g.dispatch(w, now)
		g.decide(t)
		return
	}
	g.admit(t)
}
