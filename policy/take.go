// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/window"
)

// limits are what holds a lane beside its cell. Replaced as a whole.
type limits struct {
	cost        uint64         // units a request takes when it goes; >= 1
	concurrency int64          // 0: any number
	window      *window.Window // nil: none
}

// Grant is what Take took: what Return, Penalize and Reward need to know of it
// later. The zero Grant stands for nothing taken.
type Grant struct {
	ledger.Grant
	stamp   window.Stamp
	window  *window.Window // that stamp is of; nil: none
	lessons *lessons       // of which learned units were taken; nil: none
	learned uint64
	before  uint64 // units under way when it was taken
	fleet   *taken // nil: none of a fleet
}

// units is what a request takes when it goes.
func (x *limits) units() uint64 {
	if x == nil {
		return 1
	}
	return x.cost
}

// places is how much may be under way, 0 for any number.
func (x *limits) places() int64 {
	if x == nil {
		return 0
	}
	return x.concurrency
}

// Cost is the number of units that a request takes when it goes.
func (l *Lane) Cost() uint64 { return l.limits.Load().units() }

// Take takes, for one request at now, what all limits of the lane ask for, or
// nothing, and reports whether it did. If not, wait is how long it takes at
// least until it could; zero where nobody can say (see Stuck).
//
// What was taken is under way until Release. Safe for concurrent use; never
// allocates.
func (l *Lane) Take(now ledger.Time) (g Grant, wait time.Duration, ok bool) {
	x, k := l.limits.Load(), l.lessons(now)
	if l.enter(x.places()) {
		if ok = l.take(&g, x, k, now); ok {
			return g, 0, true
		}
		l.back(&g, now)
	}
	wait, _ = l.Peek(now)
	return Grant{}, wait, false
}

// take takes of all limits but the places, in the order in which that is given
// back with the least harm. What it took until one refused stands in g.
func (l *Lane) take(g *Grant, x *limits, k *lessons, now ledger.Time) (ok bool) {
	cost := x.units()
	g.before = cost * uint64(max(0, l.InFlight.Load()-1))
	if k != nil {
		if _, ok = k.tracker.Take(now, cost); !ok {
			return false
		}
		g.lessons, g.learned = k, cost
	}
	if x != nil && x.window != nil {
		if g.stamp, ok = x.window.Take(now, cost); !ok {
			return false
		}
		g.window = x.window
	}
	if s := l.shared.Load(); s != nil {
		if _, ready := l.Cell.Peek(now, cost); !ready {
			return false // units of the fleet are not for trying
		}
		if g.fleet, _, ok = s.take(now); !ok {
			return false
		}
	}
	g.Grant, _, ok = l.Cell.Take(now, cost)
	return ok
}

// enter counts one more under way, if there may be.
func (l *Lane) enter(most int64) bool {
	if most == 0 {
		l.InFlight.Add(1)
		return true
	}
	for {
		n := l.InFlight.Load()
		if n >= most {
			return false
		}
		if l.InFlight.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// back gives up what a Take had of a lane whose cell had nothing.
func (l *Lane) back(g *Grant, now ledger.Time) {
	l.InFlight.Add(-1)
	if g.window != nil {
		g.window.Undo(g.stamp, now)
	}
	if g.lessons != nil {
		g.lessons.tracker.Give(g.learned, now)
	}
	if g.fleet != nil {
		g.fleet.giveBack(now)
	}
}

// Overrun counts a request as under way that goes although Take had nothing
// for it: that of a lane which only measures.
func (l *Lane) Overrun() { l.InFlight.Add(1) }

// Owe takes, for one request at now that goes anyway, what all limits of the
// lane ask for, whether it is there or not: later requests wait for it. It
// counts as under way until Release.
func (l *Lane) Owe(now ledger.Time) (g Grant) {
	x := l.limits.Load()
	g.before = x.units() * uint64(max(0, l.InFlight.Load()))
	l.InFlight.Add(1)
	g.Grant = l.Cell.Owe(now, x.units())
	if s := l.shared.Load(); s != nil {
		g.fleet = s.owe(now)
	}
	if x != nil && x.window != nil {
		x.window.Debit(x.units(), now)
	}
	return g
}

// Return gives back, at now, what a request took that never reached the wire,
// as far as no limit is exceeded by it. Release is called all the same.
func (l *Lane) Return(g Grant, now ledger.Time) {
	if g.Cost == 0 {
		return
	}
	l.Cell.Refund(g.Grant)
	// A window that is no longer the lane's must not write into its cell.
	if x := l.limits.Load(); g.window != nil && x != nil && x.window == g.window {
		g.window.Undo(g.stamp, now)
	}
	if g.lessons != nil {
		g.lessons.tracker.Give(g.learned, now)
	}
	if g.fleet != nil {
		g.fleet.giveBack(now)
	}
}

// Hold counts one more under way, beyond what the lane's concurrency allows:
// for a connection whose first request has a place already, which it keeps
// until Release.
func (l *Lane) Hold() { l.InFlight.Add(1) }

// Release ends what Take, Overrun or Hold counted as under way. Who waits may
// have a place by that: see Limited.
func (l *Lane) Release() { l.InFlight.Add(-1) }

// Counts reports whether the lane bounds what is under way at once.
func (l *Lane) Counts() bool {
	return l.limits.Load().places() > 0
}

// Full reports whether as much is under way as may be.
func (l *Lane) Full() bool {
	most := l.limits.Load().places()
	return most > 0 && l.InFlight.Load() >= most
}

// Stuck reports whether the lane waits for an answer, not for a time: its
// probe is under way, or as much as may be.
func (l *Lane) Stuck() bool { return l.Cell.Probing() || l.Full() }

// Peek reports, without taking anything, whether Take would grant at now. If
// not, wait is when it is worth to look again.
func (l *Lane) Peek(now ledger.Time) (wait time.Duration, ready bool) {
	x, k, s := l.limits.Load(), l.lessons(now), l.shared.Load()
	if x == nil && k == nil && s == nil {
		return l.Cell.Peek(now, 1)
	}
	cost := x.units()
	wait, ready = l.Cell.Peek(now, cost)
	if x != nil {
		if x.window != nil {
			wait = max(wait, x.window.Wait(now, cost))
		}
		if x.concurrency > 0 && l.InFlight.Load() >= x.concurrency {
			ready = false
		}
	}
	if k != nil {
		wait = max(wait, k.tracker.Wait(now, cost))
		if end := k.tracker.Next(); wait > 0 && end > now {
			wait = min(wait, end.Sub(now)) // the pace changes then
		}
	}
	if s != nil {
		more, there := s.peek(now)
		wait, ready = max(wait, more), ready && there
	}
	return wait, ready && wait == 0
}

// After is how long a request has to expect to wait at now with ahead others
// before it, if nothing else happens and what is under way ends soon.
func (l *Lane) After(now ledger.Time, ahead uint64) time.Duration {
	x, k := l.limits.Load(), l.lessons(now)
	cost := x.units()
	wait := l.Cell.After(now, ahead, cost)
	if x != nil && x.window != nil {
		wait = max(wait, x.window.After(now, ahead, cost))
	}
	if k != nil {
		wait = max(wait, k.tracker.After(now, ahead, cost))
	}
	if s := l.shared.Load(); s != nil {
		more, _ := s.peek(now)
		wait = max(wait, more)
	}
	return wait
}

// Blocked reports whether the lane waits at now for more than its pace: for the
// end of a cooldown, of a window, or for an answer.
func (l *Lane) Blocked(now ledger.Time) bool {
	if now < ledger.Time(l.Cell.OpenUntil.Load()) || l.Cell.Probing() {
		return true
	}
	x := l.limits.Load()
	if x != nil {
		if x.concurrency > 0 && l.InFlight.Load() >= x.concurrency {
			return true
		}
		if x.window != nil && x.window.Wait(now, x.cost) > 0 {
			return true
		}
	}
	if k := l.learned.Load(); k != nil && k.tracker.Wait(now, x.units()) > 0 {
		return true
	}
	s := l.shared.Load()
	if s == nil {
		return false
	}
	wait, _ := s.peek(now) // the turns of other hosts may come before
	return wait > l.Pace() || s.cut(now)
}

// Pace is the time between two requests at the lane's budget, whatever slows
// it now: the order in which lanes are waited for.
func (l *Lane) Pace() time.Duration {
	b := l.Budget()
	pace := b.Interval() * time.Duration(b.Cost.AtDispatch())
	if w := b.Window; w.Limit > 0 {
		pace = max(pace, w.Per/time.Duration(w.Limit)*time.Duration(b.Cost.AtDispatch()))
	}
	return pace
}

// configure puts the lane's budget in force at now, beside what was learned.
func (l *Lane) configure(b *Budget, now ledger.Time) {
	l.budget.Store(b)
	l.pace(now)
	old := l.limits.Load()
	if b.Window.Limit == 0 && b.Concurrency == 0 && b.Cost.AtDispatch() == 1 {
		l.limits.Store(nil)
		return
	}
	next := &limits{cost: b.Cost.AtDispatch(), concurrency: int64(b.Concurrency)}
	if b.Window.Limit > 0 {
		c := window.Config{Limit: b.Window.Limit, Per: b.Window.Per}
		if b.Window.Kind == Fixed {
			c.Kind = window.Fixed
		}
		if old != nil && old.window != nil {
			next.window = old.window
			next.window.Reconfigure(c, now)
		} else {
			w := &l.Cell.Window
			next.window = window.New(c, window.Saved{Start: &w[0], Prev: &w[1], Cur: &w[2]}, now)
		}
	}
	l.limits.Store(next)
}
