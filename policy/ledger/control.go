// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"
)

// Configure puts the limits of a policy in force at now: one unit per
// interval, and tolerance = (burst-1)*interval. Interval 0 is no limit.
//
// State survives in proportion. Under GCRA a TAT left by a slow limit would
// deny long after the limit was raised, so what lies ahead of now is rescaled:
// tat' = now + (tat-now)*new/old. A slow-down stays the same factor, a cooldown
// stays as it is, and a bucket that a penalty emptied stays empty until then.
// Units taken while Configure runs may count by the old limits or the new.
func (c *Cell) Configure(interval, tolerance time.Duration, now Time) {
	next, slack := uint64(max(interval, 0)), uint64(max(tolerance, 0))
	last := c.BaseInterval.Swap(next)
	if oldSlack := c.Tolerance.Swap(slack); last == next && oldSlack == slack {
		return
	}
	if last == 0 || next == 0 {
		c.Interval.Store(next)
	} else if last != next {
		swap(&c.Interval, func(v uint64) uint64 { return max(next, scale(v, next, last)) })
	}
	swap(&c.TAT, func(tat uint64) uint64 {
		open := c.OpenUntil.Load()
		from := max(uint64(now), open) // a bucket refills from the end of its cooldown
		if last != 0 && tat > from {
			tat = from + scale(tat-from, next, last)
		}
		if open > uint64(now) && c.Flags.Load()&FlagHalf != 0 {
			tat = max(tat, open+slack)
		}
		return tat
	})
}

// Close keeps the lane closed until the given instant. It never shortens a
// cooldown. Reports whether it made this one longer.
func (c *Cell) Close(until Time) bool {
	return raise(&c.OpenUntil, uint64(until))
}

// Penalize records that the origin refused, at now, a request that was taken
// in reqEpoch, and wants none before until. Reports whether the lane was
// slowed.
//
// The cooldown ends at the latest instant that anyone asked for. The first
// refusal of an epoch slows the lane to its rate times factor, though not
// below the rate of floorInterval or base rate times factor, whichever is
// slower; begins the next epoch; and lets one probe go first after the
// reopening. Later refusals of requests from before can only make the cooldown
// longer. The bucket is emptied: at the reopening there is one unit, the
// probe, and a cooldown never refills a burst.
func (c *Cell) Penalize(now Time, reqEpoch uint64, until Time, factor float64, floorInterval time.Duration) (slowed bool) {
	longer := c.Close(until) // first, so that nothing is granted by the old state
	slowed = c.Epoch.CompareAndSwap(reqEpoch, reqEpoch+1)
	if slowed {
		swap(&c.Flags, func(f uint64) uint64 { return f&^FlagProbing | FlagHalf })
		if factor > 0 && factor < 1 {
			base := c.BaseInterval.Load()
			floor := max(uint64(max(floorInterval, 0)), divide(base, factor))
			swap(&c.Interval, func(v uint64) uint64 { return max(v, base, min(divide(v, factor), floor)) })
		}
	}
	if slowed || longer {
		raise(&c.TAT, max(c.OpenUntil.Load(), uint64(now))+c.Tolerance.Load())
	}
	return slowed
}

// Reward records that the origin answered, at now, a request that was taken in
// reqEpoch and that the answer is no limit. Only answers to requests of the
// present epoch count, and none while the lane is closed: they were dispatched
// after the reopening. The rate grows by the factor step, up to the base rate.
// Reports whether this was the success that ends probing.
func (c *Cell) Reward(now Time, reqEpoch uint64, step float64) (reopened bool) {
	if c.Epoch.Load() != reqEpoch || uint64(now) < c.OpenUntil.Load() {
		return false
	}
	if c.Flags.Load()&FlagHalf != 0 {
		reopened = c.Flags.And(^(FlagHalf|FlagProbing))&FlagHalf != 0
	}
	if base := c.BaseInterval.Load(); c.Interval.Load() > base && step > 1 {
		swap(&c.Interval, func(v uint64) uint64 { return max(base, uint64(float64(v)/step)) })
	}
	return reopened
}

// Refund gives back a unit that never reached the wire, if nobody took another
// since; else it is lost, as is one from before a penalty, whose bucket was
// emptied. A probe ends. Of one grant, Refund or Correct is called, and once.
func (c *Cell) Refund(g Grant) {
	c.Granted.Add(-g.Cost)
	if c.Epoch.Load() != g.Epoch {
		return
	}
	if g.Probe {
		c.EndProbe()
	}
	c.giveBack(g, g.Span)
}

// giveBack takes ns, at most what g moved TAT by, off TAT again, if TAT is what g
// left behind. Since TAT only falls by what the last unit gives back, nobody's
// unit is behind that of g then. cell_undo in bpf/cell.h is the twin.
//
// Units behind g would be no obstacle if all of them were taken at instants before
// the slot of g. But an argument now could not tell: others may have taken, by
// later instants, between the reading of the clock and the swap here, and the
// kernel takes for times to come. To move TAT by the slot of g then makes it too
// small for theirs, and one unit more than burst + rate*d can go.
func (c *Cell) giveBack(g Grant, ns uint64) {
	next := max(g.TAT-ns, c.emptied())
	if next >= g.TAT || !c.TAT.CompareAndSwap(g.TAT, next) {
		return
	}
	// A penalty that found TAT late enough before the swap may have emptied the
	// bucket since that was looked at. In between nobody takes, as the lane is
	// closed.
	if again := min(c.emptied(), g.TAT); again > next {
		c.TAT.CompareAndSwap(next, again)
	}
}

// emptied is the TAT of a bucket that the last cooldown emptied, which nothing
// that is given back goes below.
func (c *Cell) emptied() uint64 {
	return c.OpenUntil.Load() + c.Tolerance.Load()
}

// Correct corrects, at now, what g took to cost units: a request turned out
// dearer or cheaper than was foreseen. What is missing is a debt, though of no
// more than a full bucket beyond an empty one, so that one answer cannot close
// a lane for long. What was too much is given back while nobody took since.
func (c *Cell) Correct(g Grant, cost uint64, now Time) {
	if g.Cost == 0 || cost == g.Cost {
		return
	}
	c.Granted.Add(cost - g.Cost)
	if c.Epoch.Load() != g.Epoch {
		return // the bucket was emptied since
	}
	interval := c.Interval.Load()
	if cost > g.Cost {
		most := uint64(now) + 2*(c.Tolerance.Load()+interval)
		debt := min(cost-g.Cost, 1<<32) * interval
		swap(&c.TAT, func(tat uint64) uint64 {
			return max(tat, min(max(tat, uint64(now))+debt, most))
		})
		return
	}
	c.giveBack(g, (g.Cost-cost)*(g.Span/g.Cost))
}

// Owe takes cost units at now whether they are there or not: of what goes
// anyway. What is missing is a debt, which later units wait for. It ends no
// cooldown and is no probe.
func (c *Cell) Owe(now Time, cost uint64) (g Grant) {
	g.Epoch, g.Cost = c.Epoch.Load(), cost
	g.Span = cost * c.Interval.Load()
	swap(&c.TAT, func(tat uint64) uint64 {
		g.TAT = max(tat, uint64(now)) + g.Span
		return g.TAT
	})
	g.Seq = c.Granted.Add(cost)
	return g
}

// ClearCooldown opens the lane at now, by the hand of the operator: no
// cooldown, no probe. The bucket holds one unit, not a burst, and a slow-down
// stays until successes undo it.
func (c *Cell) ClearCooldown(now Time) {
	c.OpenUntil.Store(0)
	c.Flags.And(^(FlagHalf | FlagProbing))
	swap(&c.TAT, func(tat uint64) uint64 { return min(tat, uint64(now)+c.Tolerance.Load()) })
}

// Reset makes the cell a zero Cell. Only for cells that no lane owns.
func (c *Cell) Reset() {
	for _, w := range []*atomic.Uint64{
		&c.TAT, &c.OpenUntil, &c.Interval, &c.Tolerance, &c.Epoch, &c.Flags,
		&c.BaseInterval, &c.Granted, &c.Held, &c.Refused, &c.Limited,
		&c.Window[0], &c.Window[1], &c.Window[2],
	} {
		w.Store(0)
	}
}

// swap replaces the word by f of it, atomically. f may run more than once.
func swap(w *atomic.Uint64, f func(uint64) uint64) {
	for {
		v := w.Load()
		n := f(v)
		if n == v || w.CompareAndSwap(v, n) {
			return
		}
	}
}

// raise makes the word at least v and reports whether it changed.
func raise(w *atomic.Uint64, v uint64) bool {
	for {
		old := w.Load()
		if old >= v {
			return false
		}
		if w.CompareAndSwap(old, v) {
			return true
		}
	}
}

// scale is v*num/den, rounded up, in 128 bits; the end of the range where the
// result does not fit.
func scale(v, num, den uint64) uint64 {
	hi, lo := bits.Mul64(v, num)
	if hi >= den {
		return math.MaxUint64 / 2
	}
	q, r := bits.Div64(hi, lo, den)
	if r > 0 {
		q++
	}
	return q
}

// divide is v/f rounded up to whole nanoseconds, so that a rate is never
// above what was meant.
func divide(v uint64, f float64) uint64 {
	d := math.Ceil(float64(v) / f)
	if d >= math.MaxInt64 {
		return math.MaxInt64
	}
	return uint64(d)
}
