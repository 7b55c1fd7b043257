// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"time"

	"github.com/egressd/egressd/policy"
)

// Bounds of a storm.
const (
	minRefused = 10  // refusals of egressd, below which nobody storms
	minLimited = 20  // limits while watched, of which …
	minHalf    = 0.5 // … so large a share of what was sent is going on regardless
	minRise    = 2   // more goes after a limit than in calm, by so much
	minBursts  = 3   // seen so many times
)

// storms finds refusals that are answered with more requests.
func (a *analysis) storms() (all []Finding) {
	for _, e := range a.Past.Exits {
		if e.Lockstep == nil || *e.Lockstep < policy.SomeLockstep || e.TooMany == 0 || a.Destination != "" {
			continue
		}
		f := Finding{
			Kind: RetryStorm, Certainty: Possible, Exit: e.Exit,
			Saw:     fmt.Sprintf("requests by this exit come in bursts that return after the delay its origins asked for (lockstep score %.2f of 1), %d answers of %d were 429", *e.Lockstep, e.TooMany, e.Requests),
			Numbers: map[string]float64{"lockstep_score": *e.Lockstep, "answers_429": float64(e.TooMany), "requests": float64(e.Requests)},
			Do:      "let egressd hold these requests instead of the clients' own back-off: a budget in mode enforce, with cooldown.spread, and retry: {absorb: true}",
		}
		if *e.Lockstep > policy.FullLockstep {
			f.Certainty = Likely
		}
		all = append(all, f)
	}
	for i := range a.lanes {
		if f, found := a.storm(&a.lanes[i]); found {
			all = append(all, f)
		}
	}
	for i := range a.pairs {
		p := &a.pairs[i]
		n := p.refusals()
		if n < minRefused || n < 2*p.sent {
			continue
		}
		all = append(all, Finding{
			Kind: RetryStorm, Certainty: Likely, Destination: p.destination, Exit: p.exit,
			Saw:     fmt.Sprintf("clients answer refusals with more requests: egressd refused %d while it let %d go", n, p.sent),
			Numbers: map[string]float64{"refused": float64(n), "sent": float64(p.sent)},
			Do:      "have them heed Retry-After, or let egressd hold them longer instead of refusing",
			Policy:  "# in the budget\nqueue: {max: 10000, max_wait: 5m}",
		})
	}
	return all
}

// storm looks into a lane that holds nobody for requests that follow upon
// limits. One that holds paces what comes, whatever that is.
func (a *analysis) storm(l *laneView) (f Finding, found bool) {
	if !l.measures() || l.limited == 0 {
		return f, false
	}
	f = Finding{
		Kind: RetryStorm, Destination: l.name(), Exit: l.exit(), Lane: l.Lane,
		Do:     "let egressd hold these requests, and repeat the refused ones itself in their turn",
		Policy: budgetLines(l.Budget, "mode: enforce", "retry: {absorb: true}"),
	}
	after, calmly, bursts := rise(l.steps)
	f.Numbers = map[string]float64{
		"after_limit_per_second": after, "otherwise_per_second": calmly, "bursts": float64(bursts),
		"limited": float64(l.limited), "sent": float64(l.sent),
	}
	switch share := float64(l.limited) / float64(max(l.sent, 1)); {
	case bursts >= minBursts && calmly > 0 && after >= minRise*calmly:
		f.Certainty = Likely
		a.explained[l.Lane] = true
		f.Saw = fmt.Sprintf("within a second after a limit %s is sent, and %s otherwise (%d times): limits are answered with more requests",
			rateText(after), rateText(calmly), bursts)
	case l.limited >= minLimited && share >= minHalf && !a.explained[l.Lane]:
		f.Certainty = Possible
		f.Saw = fmt.Sprintf("%d of %d answers were limits, and the clients go on as if there were none", l.limited, l.sent)
	default:
		return f, false
	}
	return f, true
}

// rise compares the rate in the second after limits with that at other times.
func rise(steps []step) (after, calmly float64, bursts int) {
	var sentAfter, sentCalm uint64
	var timeAfter, timeCalm time.Duration
	var last time.Time // end of the last step with a limit
	for _, s := range steps {
		long := s.to.Sub(s.from)
		switch {
		case !last.IsZero() && s.from.Sub(last) < calm:
			sentAfter, timeAfter = sentAfter+s.sent, timeAfter+long
		case s.limited == 0: // a step with the limit itself is neither
			sentCalm, timeCalm = sentCalm+s.sent, timeCalm+long
		}
		if s.limited > 0 {
			if s.from.Sub(last) >= calm {
				bursts++
			}
			last = s.to
		}
	}
	return perSecond(sentAfter, timeAfter), perSecond(sentCalm, timeCalm), bursts
}
