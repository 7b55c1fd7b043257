// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/policy/fleet"
	"github.com/egressd/egressd/policy/redisurl"
)

// Fleet says with whom budgets are held together, and how. Immutable.
type Fleet struct {
	Redis redisurl.URL
	Loss  fleet.Loss
	// Hosts is how many hosts there should be, 0 if nobody told: no host's share is
	// of fewer.
	Hosts int
	// Timeout of a call to the store, and Grace, for how long shares last without
	// it.
	Timeout, Grace time.Duration
	// Host is this one's name among them, which no other has; "" for one that the
	// daemon makes.
	Host string
	// PerHost are exits that are another identity on each host, so that their
	// lanes are not shared.
	PerHost []string
}

// same reports whether a lane that was made by f's numbers can go on under
// those of g.
func (f *Fleet) same(g *Fleet) bool {
	return f.Hosts == g.Hosts && f.Timeout == g.Timeout && f.Grace == g.Grace
}

// shares reports whether the lane of a key is held together with other hosts.
// The trouble of an exit is each host's own: it may be one of the way there.
func (b *Budget) shares(k LaneKey) bool {
	return b.Fleet != nil && b.Mode == Enforce && k.Budget != ExitBudget && !b.Fleet.own(k.Exit)
}

// own reports whether an exit, with port and session or without, is another
// identity on each host.
func (f *Fleet) own(exit string) bool {
	name, _, _ := strings.Cut(exit, "/")
	return slices.Contains(f.PerHost, name)
}

// FleetLimit is the budget's limit as the hosts of a fleet keep it together, in
// requests. Of what a fleet can count, that is a rate: a window is the rate
// with which no window of its length sees more, if no more than one unit goes
// at once. A rate that is learned is no limit: each host finds it, and all
// hear of a refusal.
func (b *Budget) FleetLimit() fleet.Limit {
	cost := b.Cost.AtDispatch()
	l := fleet.Limit{Burst: 1}
	if !b.Auto {
		l.Interval = times64(b.Interval(), cost)
		l.Burst = uint64(max(1, b.Burst/float64(cost)))
	}
	if b.Window.Limit > 0 {
		// n-1 intervals fit into the window, and n units.
		n := max(b.Window.Limit/cost, 1)
		every := b.Window.Per
		if n > 1 {
			every = (every + time.Duration(n-2)) / time.Duration(n-1)
		}
		if l.Interval <= 0 || l.Burst+uint64(b.Window.Per/l.Interval) > n {
			l = fleet.Limit{Interval: max(every, l.Interval), Burst: 1}
		}
	}
	return l
}

// times64 is d times n, cut to the range.
func times64(d time.Duration, n uint64) time.Duration {
	if d > 0 && n > uint64(math.MaxInt64/d) {
		return math.MaxInt64
	}
	return d * time.Duration(n)
}
