// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"cmp"
	"slices"
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
// enforced (through a rotating exit: of those that do not tell exits apart),
// trouble of capacity closes it briefly, trouble of the exit closes the lane of
// the exit if there is one. A success brings all its lanes nearer
// to their base rate.
//
// What the answer told of the limit, and what it says that the request did
// cost, is settled after that.
func (g *Gate) Done(w *Waiter, v verdict.Verdict, rnd float64, now ledger.Time) {
	if !w.report() {
		return
	}
	lanes := w.lanes[:w.n]
	for i, l := range lanes {
		l.Settle(&w.grants[i], now)
	}
	switch v.Kind {
	case verdict.OK:
		g.reward(w, now)
	case verdict.Limited:
		for i, l := range lanes {
			if !w.held(i) {
				l.Cell.Limited.Add(1)
			}
		}
		if i := w.judged(); i >= 0 {
			g.penalize(lanes[i], &w.grants[i], &v, rnd, now)
		}
	case verdict.Capacity:
		if i := w.judged(); i >= 0 {
			g.close(lanes[i], &w.grants[i], &v, rnd, now)
		}
	case verdict.ExitTrouble:
		for i, l := range lanes {
			if w.held(i) && ofExit(l) {
				g.close(l, &w.grants[i], &v, rnd, now)
			}
		}
	}
	if v.Kind != verdict.OK {
		if tally := w.tally(); tally != nil && v.Kind != verdict.Error {
			tally.CountLimited(v.Kind)
		}
		g.asked(w, &v, now)
		g.endProbes(w)
	}
	g.learn(w, &v, now)
	g.settleCost(w, &v, now)
	g.release(w)
}

// Abort reports that a dispatched request will have no answer. refund gives
// its units back, which is right only if none of its bytes was written.
func (g *Gate) Abort(w *Waiter, refund bool, now ledger.Time) {
	if !w.report() {
		return
	}
	if refund {
		for i, l := range w.lanes[:w.n] {
			l.Return(w.grants[i], now)
		}
	}
	g.endProbes(w)
	g.release(w)
	if refund {
		g.wake(w.lanes[:w.n]...)
	}
}

// Trouble reports trouble of an exit that showed before anything was
// dispatched to it: a password that was not accepted, say. It closes those of
// the lanes that are of the exit.
func (g *Gate) Trouble(lanes []*policy.Lane, v verdict.Verdict, rnd float64, now ledger.Time) {
	for _, l := range lanes {
		if l.Enforced() && ofExit(l) {
			g.close(l, &policy.Grant{}, &v, rnd, now)
		}
	}
}

// report ends a dispatch; false if there was none.
func (w *Waiter) report() bool {
	if w.phase != dispatched {
		return false
	}
	w.phase = idle
	return true
}

// release ends what w had under way. Whoever waits for its place learns.
func (g *Gate) release(w *Waiter) {
	for _, l := range w.lanes[:w.n] {
		l.Release()
		if l.Counts() {
			g.wake(l)
		}
	}
}

// ofExit reports whether a lane is of an exit, whatever the destination.
func ofExit(l *policy.Lane) bool { return l.Key.Exit != "" && l.Key.Destination == "" }

// target is the place of policy.Target among the lanes, or -1.
func (w *Waiter) target() int {
	for i, l := range w.lanes[:w.n] {
		if w.held(i) && l.Enforced() && l.Key.Budget != policy.ExitBudget {
			return i
		}
	}
	return -1
}

// judged is the lane that a verdict touches, or -1: the target, or the first
// like it that does not tell exits apart, where the exit has another address
// next time.
func (w *Waiter) judged() int {
	for i, l := range w.lanes[:w.n] {
		if w.held(i) && l.Enforced() && l.Key.Budget != policy.ExitBudget && !(w.Rotating && l.Key.Exit != "") {
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
		if l.Budget().Auto || l.Cost() > 1 {
			g.wake(l) // a lane that is faster now may have room sooner than was foreseen
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
func (g *Gate) penalize(l *policy.Lane, grant *policy.Grant, v *verdict.Verdict, rnd float64, now ledger.Time) {
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
	g.reportStall(l, now)
}

// close closes a lane for what is no fault of its rate.
func (g *Gate) close(l *policy.Lane, grant *policy.Grant, v *verdict.Verdict, rnd float64, now ledger.Time) {
	b := l.Budget()
	delay := lightly
	if v.HasDelay {
		delay = b.Cooldown.Cooling(v.Delay, 1)
	}
	before := ledger.Time(l.Cell.OpenUntil.Load())
	if l.Close(grant, now.Add(delay+b.Cooldown.Later(delay, rnd)), now) {
		l.NoteClosed(policy.Closure{At: now, Kind: v.Kind, Delay: delay, Given: v.HasDelay})
		g.told(l, false, before, now)
		g.review(l)
	}
	g.reportStall(l, now)
}

// learn has the lane that a verdict touches learn what the answer told of its
// limit. A challenge tells of none, and what an exit's provider tells is of
// the exit.
func (g *Gate) learn(w *Waiter, v *verdict.Verdict, now ledger.Time) {
	i := w.judged()
	switch v.Kind {
	case verdict.Challenge:
		return
	case verdict.ExitTrouble:
		for i = w.n - 1; i >= 0 && !(w.held(i) && ofExit(w.lanes[i])); i-- {
		}
	}
	if i < 0 {
		return
	}
	l := w.lanes[i]
	before := ledger.Time(l.Cell.OpenUntil.Load())
	until, stricter := l.Learn(v, &w.grants[i], w.sent, now)
	switch {
	case until > 0:
		l.NoteClosed(policy.Closure{At: now, Kind: v.Kind, Delay: until.Sub(now), Given: true, Quota: true})
		g.told(l, false, before, now)
		g.review(l)
		g.reportStall(l, now)
	case stricter:
		g.review(l)
	case v.Quota.HasRemaining || v.Quota.HasLimit || v.Quota.HasReset || v.Quota.PerSecond > 0:
		g.wake(l) // it may give more now
	}
}

// settleCost takes what the request did cost beyond what was taken when it
// went, or gives back what was too much, in lanes whose budget goes by what
// answers tell, and charges its flow.
func (g *Gate) settleCost(w *Waiter, v *verdict.Verdict, now ledger.Time) {
	if !v.HasCost {
		return
	}
	for i, l := range w.lanes[:w.n] {
		b := l.Budget()
		if !w.held(i) || b.Cost.Header == "" || w.grants[i].Cost == 0 {
			continue
		}
		l.Correct(&w.grants[i], v.Cost, now)
		if l.Waiting.Load() == 0 {
			continue
		}
		g.mu.Lock()
		q := g.queueOf(l)
		if f := q.find(q.key(w)); f != nil {
			f.charge(int64(min(v.Cost, 1<<32))-int64(min(w.grants[i].Cost, 1<<32)), q.quantum())
		}
		g.mark(q)
		g.unlock()
	}
}

// reportStall tells once that a lane has had no success for long.
func (g *Gate) reportStall(l *policy.Lane, now ledger.Time) {
	if d, yes := l.ReportStall(now); yes {
		detail := "no success for " + d.Round(time.Second).String() + ": look at what the origin answers, or slow the budget"
		g.emit(policy.Event{At: now, Kind: policy.EventStalled, Lane: l.ID(), Wait: d, Detail: detail})
		g.cfg.Logger.Warn("lane stalled", "lane", l.ID(), "without_success", d.Round(time.Second))
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
	g.emit(policy.Event{At: now, Kind: kind, Lane: l.ID(), Wait: until.Sub(now), Detail: detail, Extended: before > now})
}

// Wake looks at a lane's queue: to be called when its cell was changed by
// something else than the gate.
func (g *Gate) Wake(l *policy.Lane) { g.wake(l) }

func (g *Gate) wake(lanes ...*policy.Lane) {
	locked := false
	for _, l := range lanes {
		if l.Waiting.Load() == 0 {
			continue
		}
		if !locked {
			g.mu.Lock()
			locked = true
		}
		g.mark(g.queueOf(l))
	}
	if locked {
		g.unlock()
	}
}

// SetCooldown closes a lane by the hand of the operator. It never shortens a
// cooldown: ClearCooldown first.
func (g *Gate) SetCooldown(l *policy.Lane, until ledger.Time) {
	now := g.cfg.Now()
	if !l.Close(&policy.Grant{}, until, now) {
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
	q := g.queueOf(l)
	g.mark(q)
	if l.Enforced() {
		now, ahead := g.cfg.Now(), 0
		q.roll(q.quantum(), func(s *spot) {
			if after := l.After(now, uint64(ahead)); now.Add(after) > s.ticket.deadline {
				g.refuse(s.ticket, policy.RefusedMaxWait, l, after, ahead)
			} else {
				ahead++
			}
		})
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
		for s := q.due.head; s != nil; s = s.links[dueLinks].next {
			tickets = append(tickets, s.ticket)
		}
	}
	slices.SortFunc(tickets, func(a, b *ticket) int { return cmp.Compare(a.seq, b.seq) })
	for _, t := range tickets {
		g.leave(t)
	}
	for _, t := range tickets {
		g.rearrange(t)
	}
}

// rearrange puts a ticket, which stands nowhere, into the queues that it needs
// now, at its old place.
func (g *Gate) rearrange(t *ticket) {
	w := t.w
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
