// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"math"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

// slowest is the interval below which a slow-down stops unless the limit itself
// is slower: that of policy.Lane.Penalize.
const slowest = 2 * time.Second

// state is the host's own copy of what all hosts know of a lane.
type state struct {
	epoch     uint64
	openUntil ledger.Time
	interval  time.Duration
	gateAt    ledger.Time // when the host asks for units again after a cooldown
	since     ledger.Time // when the epoch was learned: what was asked for before tells less
	told      ledger.Time // when the call was made of which the interval is
}

// slowed is by how much the lane is slower than its limit; 1 if it is not.
func (s *state) slowed(l Limit) float64 {
	if l.Interval <= 0 || s.interval <= l.Interval {
		return 1
	}
	return float64(s.interval) / float64(l.Interval)
}

// Slow is the interval after a penalty on a lane of that limit which has the
// interval v: as ledger.Cell.Penalize makes it.
func Slow(v time.Duration, l Limit, factor float64) time.Duration {
	if factor <= 0 || factor >= 1 || l.Interval <= 0 {
		return max(v, l.Interval)
	}
	floor := max(slowest, stretch(l.Interval, 1/factor))
	return max(v, l.Interval, min(stretch(v, 1/factor), floor))
}

// closing is what the store has still to be told of cooldowns, in order. How
// long the present one lasts is put in when a call is made.
type closing struct {
	due  []closure
	busy bool // a call with the first is under way
	at   ledger.Time
	last uint64 // number of the newest
}

type closure struct {
	number uint64
	epoch  uint64
	factor float64
}

// mostDue bounds what is kept of penalties while the store is lost. One more is
// told as part of the state.
const mostDue = 8

func (c *closing) add(epoch uint64, factor float64, at ledger.Time) {
	c.last++
	if len(c.due) == 0 {
		c.at = at
	}
	c.due = append(c.due, closure{c.last, epoch, factor})
}

// waits reports whether a call is still to be made that will tell of a cooldown.
func (c *closing) waits() bool { return len(c.due) > 1 || len(c.due) == 1 && !c.busy }

// told removes what an answered call told.
func (c *closing) told(number uint64) {
	if len(c.due) > 0 && c.due[0].number == number {
		c.due = c.due[1:]
	}
}

// merit is what the store has still to be told of successes.
type merit struct {
	step float64 // by which the lane should be faster; 0 or 1: nothing
	at   ledger.Time
}

// State is what the host knows of the lane beside its units.
type State struct {
	Epoch     uint64
	OpenUntil ledger.Time
	Interval  time.Duration
}

// State is the host's own copy of the lane's state: what the caller sets on the
// cell of the ledger.
func (l *Lane) State() State {
	return State{l.copy.epoch, l.copy.openUntil, l.copy.interval}
}

// Penalize records at now that the origin refused a request that was taken in
// epoch, and asked for delay. The lane is closed on this host at once, and on
// the others when the store has told them: Next has the call. The first refusal
// of an epoch slows the lane by factor and voids what the host holds; it
// reports whether this was one.
func (l *Lane) Penalize(epoch uint64, delay time.Duration, factor float64, now ledger.Time) (slowed bool) {
	l.advance(now)
	longer := l.closeUntil(now.Add(delay))
	c := &l.close
	switch {
	case epoch == l.copy.epoch:
		l.copy.interval = Slow(l.copy.interval, l.c.Limit, factor)
		l.enter(epoch+1, now)
		if len(c.due) < mostDue {
			c.add(epoch, factor, now)
		}
		return true
	case longer && !c.waits() && l.copy.epoch > 0:
		c.add(l.copy.epoch-1, 1, now)
	}
	return false
}

// Reward records at now that the origin answered a request of epoch that was no
// limit. A slowed lane gets faster by step, for all hosts.
func (l *Lane) Reward(epoch uint64, step float64, now ledger.Time) {
	if epoch != l.copy.epoch || now < l.copy.openUntil || step <= 1 || l.copy.interval <= l.c.Limit.Interval {
		return
	}
	l.merit.step = min(max(l.merit.step, 1)*step, l.copy.slowed(l.c.Limit))
}

// Heard takes in at now what the store published of the lane.
func (l *Lane) Heard(a Answer, now ledger.Time) {
	l.advance(now)
	if a.Epoch > l.copy.epoch {
		l.adopt(&a, now, now)
		return
	}
	if a.Epoch == l.copy.epoch {
		l.closeUntil(now.Add(a.OpenAfter))
	}
}

// learn takes in at now what an answer to a call of sent says of the lane.
func (l *Lane) learn(a *Answer, sent, now ledger.Time) {
	s := &l.copy
	switch {
	case a.Epoch > s.epoch:
		l.adopt(a, sent, now)
	case a.Epoch == s.epoch:
		if a.OpenAfter > 0 {
			l.closeUntil(now.Add(a.OpenAfter))
		}
		if sent >= s.since && len(l.close.due) == 0 && s.openUntil > now.Add(a.OpenAfter+MaxTimeout) && s.epoch > 0 {
			// It knows an earlier end, and by more than the time that a call takes.
			l.close.add(s.epoch-1, 1, max(now, l.close.at.Add(probeDelay)))
		}
		if sent >= s.told {
			s.interval, s.told = max(a.Interval, l.c.Limit.Interval), sent
		}
	case sent >= s.since && len(l.close.due) == 0:
		// The store forgot: it is told of the penalty that began the epoch. Of the
		// hosts that do so one changes something.
		from := max(l.c.Limit.Interval, 1)
		if a.Epoch == s.epoch-1 {
			from = max(from, a.Interval)
		}
		factor := min(1, float64(from)/float64(max(s.interval, 1)))
		l.close.add(s.epoch-1, factor, max(now, l.close.at.Add(probeDelay)))
	}
}

// adopt takes over a later epoch.
func (l *Lane) adopt(a *Answer, sent, now ledger.Time) {
	l.closeUntil(now.Add(a.OpenAfter))
	l.copy.interval, l.copy.told = max(a.Interval, l.c.Limit.Interval), sent
	// What this host still wanted to tell of earlier epochs is one penalty with
	// that of another; only the end of the cooldown may be news.
	if c := &l.close; !c.busy {
		c.due = nil
	} else {
		c.due = c.due[:min(len(c.due), 1)]
	}
	if l.copy.openUntil > now.Add(a.OpenAfter) && !l.close.waits() {
		l.close.add(a.Epoch-1, 1, now)
	}
	l.enter(a.Epoch, now)
}

// enter begins an epoch.
func (l *Lane) enter(epoch uint64, now ledger.Time) {
	l.copy.epoch, l.copy.since = epoch, now
	l.merit.step = 0
	l.void()
	l.own.tat = max(l.own.tat, l.copy.openUntil)
}

// closeUntil makes the cooldown longer, if it is.
func (l *Lane) closeUntil(until ledger.Time) (longer bool) {
	if until <= l.copy.openUntil {
		return false
	}
	l.copy.openUntil = until
	// Jitter only after the end: the hosts that wait for it do not ask at once.
	l.copy.gateAt = until.Add(l.jitter(spread(l.Hosts())))
	return true
}

// slowOrClosed reports whether the lane is other than its limit says.
func (l *Lane) slowOrClosed(now ledger.Time) bool {
	return now < l.copy.openUntil || l.copy.interval > l.c.Limit.Interval
}

// remaining is how long the cooldown lasts at now.
func (s *state) remaining(now ledger.Time) time.Duration {
	return max(0, s.openUntil.Sub(now))
}

// ceilMicro rounds up to what the store counts in.
func ceilMicro(d time.Duration) time.Duration {
	if d > math.MaxInt64-time.Microsecond {
		return d
	}
	return (d + time.Microsecond - 1).Truncate(time.Microsecond)
}
