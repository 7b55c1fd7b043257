// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

// State is what a lane looks like at one instant, for people and metrics.
type State struct {
	// Rate is how many requests a second may go now, Budget how many may where
	// nothing slows the lane: by its rate or its window, whatever allows less,
	// and by what its origin told. 0 is no limit.
	Rate, Budget float64
	ClosedFor    time.Duration // of its cooldown; 0: it is open
	Probing      bool          // open for one probe only
	InFlight     int64
	Concurrency  int // that is allowed; 0: any

	Window *Usage // of its budget's window; nil: it has none
	Quota  *Usage // what answers told that is left; nil: nothing that holds
}

// Usage is how far a number of units is used up.
type Usage struct {
	Limit uint64        // 0: not known
	Left  uint64        // of it
	Until time.Duration // until there is more
}

// State shows the lane as it is at now.
func (l *Lane) State(now ledger.Time) State {
	b, c := l.Budget(), l.Cell
	cost := float64(b.Cost.AtDispatch())
	s := State{
		Rate:        perSecond(c.Interval.Load()) / cost,
		Budget:      perSecond(c.BaseInterval.Load()) / cost,
		ClosedFor:   max(0, ledger.Time(c.OpenUntil.Load()).Sub(now)),
		Probing:     c.Flags.Load()&ledger.FlagHalf != 0,
		InFlight:    l.InFlight.Load(),
		Concurrency: b.Concurrency,
	}
	if x := l.limits.Load(); x != nil && x.window != nil {
		used, until := x.window.Used(now)
		s.Window = &Usage{Limit: b.Window.Limit, Left: b.Window.Limit - min(used, b.Window.Limit), Until: max(0, until.Sub(now))}
		most := float64(b.Window.Limit) / b.Window.Per.Seconds() / cost
		for _, rate := range []*float64{&s.Rate, &s.Budget} {
			if *rate == 0 || *rate > most {
				*rate = most
			}
		}
	}
	if k := l.learned.Load(); k != nil {
		if left, until, known := k.tracker.Left(now); known && until > now {
			limit, _ := k.tracker.Limit()
			s.Quota = &Usage{Limit: limit, Left: left, Until: until.Sub(now)}
		}
	}
	return s
}

// perSecond is the rate of one unit per interval of nanoseconds; 0 for no
// limit.
func perSecond(interval uint64) float64 {
	if interval == 0 {
		return 0
	}
	return 1e9 / float64(interval)
}
