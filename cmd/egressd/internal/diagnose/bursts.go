// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/egressd/egressd/policy"
)

// clientTicks are the windows by which clients' own limiters, timers and cron count,
// the longest first: what has a place in five seconds has one in each, too.
var clientTicks = []time.Duration{
	time.Hour, time.Minute, 30 * time.Second, 20 * time.Second, 15 * time.Second, 10 * time.Second,
	5 * time.Second, 3 * time.Second, 2 * time.Second, time.Second,
}

// Bounds of what is a burst.
const (
	tight     = 5                      // times less than the mean time between two requests …
	tightest  = 100 * time.Millisecond // … and at most so much, is close together
	minShare  = 0.6                    // of the requests go in bursts of two or more …
	minAgain  = 3                      // … that there are so many of, …
	minSharp  = 0.9                    // … whose places in the window are so much alike: the length of their mean vector
	phaseBins = 10                     // of the histogram of places
)

// bursts finds clients whose rate is within what is allowed, and that send it by
// the ticks of a clock: two requests are milliseconds apart where two windows
// meet, and nothing goes in between.
func (a *analysis) bursts() (all []Finding) {
	for i := range a.lanes {
		l := &a.lanes[i]
		if l.story == nil || l.limited == 0 || a.explained[l.Lane] {
			continue
		}
		b, found := l.story.ticking()
		if !found || a.lockstep(l, b.period) {
			continue
		}
		rate := a.jobs(l)
		f := Finding{
			Kind: WindowEdges, Certainty: Possible, Destination: l.name(), Exit: l.exit(), Lane: l.Lane,
			Numbers: map[string]float64{
				"window_s": b.period.Seconds(), "place_s": b.phase * b.period.Seconds(), "concentration": b.vector,
				"bursts": float64(b.count), "burst_size": b.size, "burst_share": b.share, "sent_per_second": rate,
				"gap_median_s": b.gap.Seconds(), "limited": float64(l.limited),
			},
		}
		for k, n := range b.phases {
			f.Numbers[fmt.Sprintf("phase_%d", k)] = float64(n)
		}
		if b.phase < near || b.phase > 1-near {
			f.Certainty = Likely // of the clock, and not of whoever was started first
		}
		f.Saw = fmt.Sprintf("%s is sent, but not evenly: %.0f%% of it in %d bursts of about %.0f, half of all requests within %s after the one before; "+
			"they come %s after the beginning of each window of %s (places in tenths of it: %s); %d of %d answers were limits",
			rateText(rate), 100*b.share, b.count, b.size, gapText(b.gap), seconds(b.phase*b.period.Seconds()), span(b.period),
			histogram(b.phases), l.limited, l.sent)
		f.Do = "spread what starts by the clock (a limiter that counts by windows, cron, timers): let egressd send it evenly"
		even := perSecond(uint64(len(l.story.shots)), l.story.span)
		if told := l.story.told(); told > 0 {
			even = min(even, told)
		} else if l.BaseRate > 0 {
			even = min(even, l.BaseRate)
		}
		a.part(&f, l, rate, math.Inf(1))
		f.Policy = a.fix(l, false, func(p *policy.Budget) {
			hold(even)(p)
			p.Window = policy.Window{}
			p.Queue.MaxWait = max(p.Queue.MaxWait, 2*b.period)
		})
		a.explained[l.Lane] = true
		all = append(all, f)
	}
	return all
}

// lockstep reports whether the ticks are those of the delays that the origin
// asked for: then whoever was refused comes back together, and no clock does it.
func (a *analysis) lockstep(l *laneView, period time.Duration) bool {
	var delays []time.Duration
	repeats := 0
	for _, ask := range l.story.limits() {
		if ask.delay > 0 {
			delays = append(delays, ask.delay)
		}
	}
	for i := range l.story.shots {
		if l.story.shots[i].repeat {
			repeats++
		}
	}
	if 2*repeats > len(l.story.shots) {
		return true
	}
	d := median(delays)
	return d > 0 && math.Abs(d.Seconds()-period.Seconds()) < 0.25*period.Seconds()
}

// rhythm is what there is of bursts in a story.
type rhythm struct {
	period        time.Duration
	phase, vector float64 // where they come in it, from 0 to 1, and how sharply
	count         int
	size, share   float64 // of a burst, and of all requests that is in bursts
	gap           time.Duration
	phases        [phaseBins]int // requests by their place
}

// ticking looks for bursts that come at one place of a window.
func (t *story) ticking() (b rhythm, found bool) {
	n := len(t.shots)
	if n < 2*fewest || t.span <= 0 {
		return b, false
	}
	gaps := make([]time.Duration, 0, n-1)
	for i := 1; i < n; i++ {
		gaps = append(gaps, t.shots[i].at.Sub(t.shots[i-1].at))
	}
	apart := min(t.span/time.Duration(n)/tight, tightest)
	totals := map[uint32]int{}
	for i := range t.shots {
		totals[t.shots[i].pid]++
	}
	var starts []time.Time
	within, together := 0, 0
	for i := 0; i < n; {
		k := i + 1
		for k < n && gaps[k-1] <= apart {
			k++
		}
		if k-i > 1 {
			starts, within = append(starts, t.shots[i].at), within+k-i
			together += crowd(t.shots[i:k], totals)
		}
		i = k
	}
	b.count, b.share, b.gap = len(starts), float64(within)/float64(n), median(gaps)
	// Processes that send evenly, each by itself, are in step by chance: their
	// number is what is wrong.
	if b.count < minAgain || b.share < minShare || 2*together < within {
		return b, false
	}
	b.size = float64(within) / float64(b.count)
	for _, period := range clientTicks {
		phase, vector, windows := places(starts, period)
		// Several bursts in each window have a shorter one.
		if windows < minAgain || vector < minSharp || float64(b.count) > 1.5*float64(windows) {
			continue
		}
		b.period, b.phase, b.vector = period, phase, vector
		for i := range t.shots {
			b.phases[int(float64(phaseBins)*place(t.shots[i].at, period))%phaseBins]++
		}
		return b, true
	}
	return b, false
}

// crowd is the number of requests of a burst that one process did not send
// alone in it, or that are all that their process sent.
func crowd(burst []shot, totals map[uint32]int) (n int) {
	here := map[uint32]int{}
	for i := range burst {
		here[burst[i].pid]++
	}
	for i := range burst {
		if here[burst[i].pid] > 1 || totals[burst[i].pid] == 1 {
			n++
		}
	}
	return n
}

// place is where an instant stands in a window of the clock, from 0 to 1.
func place(at time.Time, period time.Duration) float64 {
	return float64(at.UnixNano()%int64(period)) / float64(period)
}

// places is the mean place of instants, how sharp it is, and in how many windows
// they stand.
func places(all []time.Time, period time.Duration) (phase, vector float64, windows int) {
	var x, y float64
	seen := map[int64]bool{}
	for _, at := range all {
		angle := 2 * math.Pi * place(at, period)
		x, y = x+math.Cos(angle)/float64(len(all)), y+math.Sin(angle)/float64(len(all))
		seen[at.UnixNano()/int64(period)] = true
	}
	if phase = math.Atan2(y, x) / (2 * math.Pi); phase < 0 {
		phase++
	}
	return phase, math.Hypot(x, y), len(seen)
}

// histogram writes counts side by side.
func histogram(bins [phaseBins]int) string {
	text := fmt.Sprint(slices.Clone(bins[:]))
	return text[1 : len(text)-1]
}

// gapText writes a time between two requests.
func gapText(d time.Duration) string {
	if d < time.Second {
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(10 * time.Millisecond).String()
}
