// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"math"
	"time"

	"github.com/egressd/egressd/policy"
)

// periods are the windows by which origins count, the longest first: what has
// a fixed place in the minute has one in ten seconds, too.
var periods = []time.Duration{time.Hour, time.Minute, 10 * time.Second}

// Bounds of what is a fixed place in a window. Rayleigh's test: of n instants
// that chance spreads over a circle, n times the square of their mean vector
// exceeds 5 less than once in a hundred times.
const (
	minOnsets  = 6
	minWindows = 3
	minVector  = 0.7
	minTest    = 5
	// near is the part of a window that counts as its beginning.
	near = 0.15
)

// edges finds limits that come at a fixed place of a window.
func (a *analysis) edges() (all []Finding) {
	for i := range a.lanes {
		l := &a.lanes[i]
		for _, period := range periods {
			phase, n, vector, found := fixedPlace(l.onsets, period)
			if !found {
				continue
			}
			f := Finding{
				Kind: WindowEdges, Certainty: Likely, Destination: l.name(), Exit: l.exit(), Lane: l.Lane,
				Numbers: map[string]float64{
					"window_s": period.Seconds(), "place_s": phase * period.Seconds(),
					"limits": float64(n), "concentration": vector,
				},
			}
			f.Saw = fmt.Sprintf("of %d limits nearly all began about %s after the beginning of a window of %s (concentration %.2f of 1): the origin counts by fixed windows",
				n, seconds(phase*period.Seconds()), span(period), vector)
			if phase < near || phase > 1-near {
				f.Saw += ", and what is sent comes in a burst where two of them meet"
				f.Do = "spread what starts by the clock (cron, timers) over the window, and let the budget have the origin's window"
			} else {
				f.Do = "let the budget have the origin's window: then it is used up evenly, and nothing is sent into a full one"
			}
			limit := 0.0
			if low, _, known := a.estimate(l); known && low*period.Seconds() >= 1 {
				limit = math.Floor(low * period.Seconds())
				f.Numbers["window_limit"] = limit
			}
			if limit == 0 {
				limit = math.Floor(l.BaseRate * period.Seconds()) // that is too many; but each window is then used once
			}
			f.Policy = a.fix(l, false, func(b *policy.Budget) {
				b.Mode = policy.Enforce
				b.Window = policy.Window{Limit: uint64(max(limit, 1)), Per: period, Kind: policy.Fixed}
			})
			all = append(all, f)
			break
		}
	}
	return all
}

// fixedPlace looks whether limits begin at one place of a window, and where:
// phase is from 0 to 1. Those that came as soon as the cooldown before them
// ended are left out: they stand where that ended.
func fixedPlace(onsets []onset, period time.Duration) (phase float64, n int, vector float64, found bool) {
	var x, y float64
	windows := map[int64]bool{}
	for i, o := range onsets {
		if i > 0 {
			if gap := o.at.Sub(onsets[i-1].at); onsets[i-1].closed > gap*7/10 {
				continue
			}
		}
		ns := o.at.UnixNano()
		angle := 2 * math.Pi * float64(ns%int64(period)) / float64(period)
		x, y = x+math.Cos(angle), y+math.Sin(angle)
		windows[ns/int64(period)] = true
		n++
	}
	if n < minOnsets || len(windows) < minWindows {
		return 0, n, 0, false
	}
	x, y = x/float64(n), y/float64(n)
	vector = math.Hypot(x, y)
	if vector < minVector || float64(n)*vector*vector < minTest {
		return 0, n, vector, false
	}
	phase = math.Atan2(y, x) / (2 * math.Pi)
	if phase < 0 {
		phase++
	}
	return phase, n, vector, true
}
