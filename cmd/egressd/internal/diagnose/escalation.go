// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"strings"
	"time"

	"github.com/egressd/egressd/policy"
)

// Bounds of an escalation. A delay that counts down to a fixed instant falls, and
// one that is always the same does not rise.
const (
	minStep  = 1.25 // times the delay before, at least
	minSteps = 3    // delays in a row, the first included
	minTimes = 2    // from the first of them to the last
)

// escalation finds origins that ask for longer and longer delays.
func (a *analysis) escalation() (all []Finding) {
	for i := range a.lanes {
		l := &a.lanes[i]
		delays := rising(a.delays(l))
		if len(delays) < minSteps || delays[len(delays)-1] < minTimes*delays[0] {
			continue
		}
		first, last := delays[0], delays[len(delays)-1]
		f := Finding{
			Kind: Escalation, Certainty: Likely, Destination: l.name(), Exit: l.exit(), Lane: l.Lane,
			Numbers: map[string]float64{"delay_first_s": first.Seconds(), "delay_last_s": last.Seconds(), "rounds": float64(len(delays))},
		}
		texts := make([]string, len(delays))
		for k, d := range delays {
			texts[k] = seconds(d.Seconds())
		}
		f.Saw = fmt.Sprintf("the delay that the origin asks for grows with each round: %s", strings.Join(texts, ", "))
		early := l.early()
		if early > 0 {
			f.Certainty = Certain
			f.Numbers["sent_early"] = float64(early)
			f.Saw += fmt.Sprintf("; %d requests were sent before such a delay was over", early)
		}
		f.Do = "send nothing before the delay is over, and do not come back all at once: egressd does both where it holds"
		change := learn(l)
		switch allowed := a.allowed(l); {
		case !l.measures():
			f.Do = "come back more slowly: less at once after a limit, and a lower rate"
			change = hold(0.8 * l.BaseRate)
		case allowed > 0:
			change = hold(allowed)
		case early > 0:
			a.explained[l.Lane] = true // what it allows cannot show before this is over
		}
		f.Policy = a.fix(l, false, func(b *policy.Budget) {
			change(b)
			b.Cooldown.Spread = max(b.Cooldown.Spread, 0.2)
			b.Recovery.Step = min(b.Recovery.Step, 1.05)
			b.Queue.MaxWait = max(b.Queue.MaxWait, 2*last)
		})
		all = append(all, f)
	}
	return all
}

// delays are those that the lane's origin asked for, one for each time that
// limits began.
func (a *analysis) delays(l *laneView) (all []time.Duration) {
	if l.story != nil {
		var last time.Time
		for _, ask := range l.story.limits() {
			if ask.delay == 0 {
				continue
			}
			if n := len(all); n > 0 && ask.at.Sub(last) < calm {
				all[n-1] = max(all[n-1], ask.delay)
			} else {
				all = append(all, ask.delay)
			}
			last = ask.at
		}
		if len(all) >= minSteps {
			return all
		}
	}
	all = nil
	for _, o := range l.onsets {
		if o.asked && o.closed > 0 {
			all = append(all, o.closed)
		}
	}
	return all
}

// rising is the longest end of delays of which each is more than the one before.
func rising(all []time.Duration) []time.Duration {
	from := max(len(all)-1, 0)
	for from > 0 && float64(all[from]) >= minStep*float64(all[from-1]) {
		from--
	}
	return all[from:]
}

// early is the number of requests that were sent before a delay was over that
// the origin had asked for.
func (l *laneView) early() (n int) {
	if l.story == nil {
		return 0
	}
	var until time.Time
	limits := l.story.limits()
	for i := range l.story.shots {
		s := &l.story.shots[i]
		for len(limits) > 0 && limits[0].at.Before(s.at) {
			if end := limits[0].at.Add(limits[0].delay); end.After(until) {
				until = end
			}
			limits = limits[1:]
		}
		if s.at.Before(until) {
			n++
		}
	}
	return n
}
