// SPDX-License-Identifier: Apache-2.0

package feedback

import (
	"sync"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

const (
	// DefaultAuto is the interval that a lane starts with when its budget
	// says `rate: auto` and no more.
	DefaultAuto = time.Second
	// MaxAuto is the interval of the highest rate that is ever found: 1000/s.
	MaxAuto = time.Millisecond
	// SlowestAuto is the interval below whose rate refusals do not take a lane.
	SlowestAuto = 10 * time.Minute
)

// How the rate grows. Below knee times the rate that last failed by factors,
// once an interval and no oftener than every growPause, so that the answers
// can keep up; from there by steps of a share of it, once an interval and no
// oftener than every stepPause: from the knee to the rate that failed it is 40
// units or 20 s. A rate that goes beyond proof times the one that failed shows
// that the origin's limit is another by now.
const (
	growth    = 1.1
	growPause = 100 * time.Millisecond
	knee      = 0.8
	step      = 1.0 / 200
	stepPause = 500 * time.Millisecond
	proof     = 1.1
	halving   = 0.5

	// margin is what a rate that was told is undercut by.
	margin = 0.95
)

// Auto finds the rate of a lane whose policy names none. Where the origin
// tells of its limit it follows that, a twentieth below; where not, the rate
// grows until it fails, falls, and returns to close below where it failed
// (additive increase, multiplicative decrease). Each method returns the
// interval that is to be in force.
//
// The zero Auto has learned nothing. A lane owns it. Safe for concurrent use.
type Auto struct {
	mu     sync.Mutex
	failed float64       // units per second at which the origin last refused; 0: never
	told   time.Duration // the fastest interval that the origin allows; 0: unknown
	grown  ledger.Time   // when the rate last changed
}

// Success notes, at now, an answer that was no refusal to a request sent at
// the interval in force. The rate grows only if the budget was what held
// requests back: waited says that this one was held, or that others wait.
func (a *Auto) Success(now ledger.Time, interval time.Duration, waited bool) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	interval = a.within(interval)
	if !waited {
		return interval
	}
	rate := perSecond(interval)
	next, pause := rate*growth, growPause
	switch {
	case a.failed == 0 || rate >= a.failed*proof:
	case rate < a.failed*knee*(1-step): // nearer than a step is there
		next = min(next, a.failed*knee)
	default:
		next, pause = rate+a.failed*step, stepPause
	}
	if now.Sub(a.grown) < max(interval, pause) {
		return interval
	}
	if rate >= a.failed*proof {
		a.failed = 0
	}
	a.grown = now
	return a.within(every(next))
}

// Limited notes, at now, that the origin refused a request sent at the
// interval in force. The rate falls by the factor, by half if that is not
// between 0 and 1. Refusals of what was sent before an earlier one took effect
// are no news and must not come here: one call an epoch.
func (a *Auto) Limited(now ledger.Time, interval time.Duration, factor float64) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !(0 < factor && factor < 1) {
		factor = halving
	}
	interval = a.within(interval)
	a.failed = perSecond(interval)
	a.grown = now
	return a.within(every(a.failed * factor))
}

// Learned notes, at now, the pace that a Tracker told; 0 for one that knows
// nothing any more. The rate keeps a margin below it: a slower pace holds at
// once, a faster one is how far the rate may grow.
func (a *Auto) Learned(now ledger.Time, interval, told time.Duration) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.told = 0
	if told > 0 {
		a.told = even(told, margin)
	}
	return a.change(now, interval, a.within(interval))
}

// Raise goes, at now, to the pace that was learned, at once: for one that is
// sure. Where the origin refused no faster one than that, it is left to
// Success: there is a limit then that was not told.
func (a *Auto) Raise(now ledger.Time, interval time.Duration) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	next := a.within(interval)
	if told := max(a.told, MaxAuto); a.told > 0 && (a.failed == 0 || perSecond(told) <= a.failed*knee) {
		next = min(next, told)
	}
	return a.change(now, interval, next)
}

func (a *Auto) change(now ledger.Time, old, next time.Duration) time.Duration {
	if next != old {
		a.grown = now
	}
	return next
}

// within keeps an interval between what is allowed and what is reasonable.
// One of 0 or less stands for DefaultAuto.
func (a *Auto) within(interval time.Duration) time.Duration {
	if interval <= 0 {
		interval = DefaultAuto
	}
	return max(min(interval, SlowestAuto), MaxAuto, a.told)
}

func perSecond(interval time.Duration) float64 { return float64(time.Second) / float64(interval) }

func every(perSecond float64) time.Duration { return even(time.Second, perSecond) }
