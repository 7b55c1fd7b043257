// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"math"
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
	minRepeats = 10  // requests that repeat limited ones, of which …
	minEach    = 2.5 // … one job that was limited once takes so many at least
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
			Do:      "let egressd hold these requests instead of the clients' own back-off, and repeat the refused ones itself in their turn",
		}
		if l := a.lockstepped(e.Exit); l != nil {
			f.Policy = a.fix(l, true, absorb(0))
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
			Policy:  a.patient(p),
		})
	}
	return all
}

// lockstepped is the lane through an exit that was limited most.
func (a *analysis) lockstepped(exit string) (most *laneView) {
	for i := range a.lanes {
		if l := &a.lanes[i]; l.Exit == exit && l.Limited > 0 && (most == nil || l.Limited > most.Limited) {
			most = l
		}
	}
	return most
}

// absorb has a budget hold, at a rate if that is above 0, and repeat what was
// refused. Those who wait for it wait longer than others.
func absorb(perSecond float64) func(*policy.Budget) {
	return func(b *policy.Budget) {
		hold(perSecond)(b)
		if b.Unit == policy.Requests {
			b.Retry.Absorb = true
		}
		b.Queue.MaxWait = max(b.Queue.MaxWait, time.Minute)
	}
}

// storm looks into a lane that holds nobody for requests that follow upon
// limits. One that holds paces what comes, whatever that is.
func (a *analysis) storm(l *laneView) (f Finding, found bool) {
	if !l.measures() || l.limited == 0 {
		return f, false
	}
	f = Finding{
		Kind: RetryStorm, Destination: l.name(), Exit: l.exit(), Lane: l.Lane,
		Do: "let egressd hold these requests, and repeat the refused ones itself in their turn",
	}
	after, calmly, bursts := rise(l.steps)
	f.Numbers = map[string]float64{
		"after_limit_per_second": after, "otherwise_per_second": calmly, "bursts": float64(bursts),
		"limited": float64(l.limited), "sent": float64(l.sent),
	}
	rising := bursts >= minBursts && calmly > 0 && after >= minRise*calmly
	rises := fmt.Sprintf("within a second after a limit %s is sent, and %s otherwise (%d times)", rateText(after), rateText(calmly), bursts)
	repeated, known := a.repetition(l, &f)
	switch {
	case known && repeated.count >= minRepeats && repeated.each >= minEach:
		f.Certainty = Likely
		f.Saw = fmt.Sprintf("%d requests were sent for %d jobs: %.1f for each, and %.1f for each that was limited once",
			repeated.requests, repeated.jobs, repeated.all, repeated.each)
		if 2*repeated.early >= repeated.count {
			f.Certainty = Certain
			f.Saw += fmt.Sprintf("; %d of %d repetitions came before the delay was over that the origin had asked for", repeated.early, repeated.count)
		}
		if rising {
			f.Certainty = Certain
			f.Saw += "; " + rises
		}
	case rising && !known:
		f.Certainty = Likely
		f.Saw = rises + ": limits are answered with more requests"
	default:
		return f, false
	}
	rate := 0.0
	if a.jobs(l) > above*max(a.allowed(l), a.calm(l)) {
		// What the clients have to do is too much by itself.
		rate = a.allowed(l)
	} else {
		a.explained[l.Lane] = true
		if b := a.budget(l); b != nil && ofAny(b) {
			rate = 2 * max(a.jobs(l), a.calm(l)) // nobody meant what it says; room to catch up
		}
	}
	a.part(&f, l, a.jobs(l), math.Inf(1))
	f.Policy = a.fix(l, rate == 0, absorb(rate))
	return f, true
}

// regardless finds lanes where most of what is sent is limited and nothing else
// explains it, where requests are not told apart.
func (a *analysis) regardless() (all []Finding) {
	for i := range a.lanes {
		l := &a.lanes[i]
		f := Finding{
			Kind: RetryStorm, Certainty: Possible, Destination: l.name(), Exit: l.exit(), Lane: l.Lane,
			Saw:     fmt.Sprintf("%d of %d answers were limits, and the clients go on as if there were none", l.limited, l.sent),
			Numbers: map[string]float64{"limited": float64(l.limited), "sent": float64(l.sent)},
			Do:      "let egressd hold these requests, and repeat the refused ones itself in their turn",
		}
		if !l.measures() || a.explained[l.Lane] || l.limited < minLimited || float64(l.limited) < minHalf*float64(l.sent) {
			continue
		}
		if _, known := a.repetition(l, &f); known {
			continue
		}
		f.Policy = a.fix(l, false, absorb(a.allowed(l)))
		all = append(all, f)
	}
	return all
}

// repetition is how many requests jobs took.
type repetition struct {
	requests, jobs int
	count, early   int     // requests that repeat limited ones, and those of them that came too early
	all, each      float64 // requests for each job, and for each that was limited
}

// repetition counts the requests of a lane against its jobs, where they are
// told apart.
func (a *analysis) repetition(l *laneView, f *Finding) (r repetition, known bool) {
	if l.story == nil {
		return r, false
	}
	limited := map[uint64]bool{}
	told := 0
	for i := range l.story.shots {
		s := &l.story.shots[i]
		if s.job == 0 {
			continue
		}
		told++
		if s.failed && !s.repeat {
			limited[s.job] = true
		}
		if s.repeat {
			r.count++
			if s.early {
				r.early++
			}
		}
	}
	if told < len(l.story.shots)*9/10 || told < fewest {
		return r, false
	}
	r.requests, r.jobs = l.story.count()
	r.all = float64(r.requests) / float64(max(r.jobs, 1))
	if n := len(limited); n > 0 {
		r.each = 1 + float64(r.count)/float64(n)
	}
	f.Numbers["jobs"], f.Numbers["requests_per_job"], f.Numbers["requests_per_limited_job"] = float64(r.jobs), r.all, r.each
	f.Numbers["repetitions"], f.Numbers["repetitions_early"] = float64(r.count), float64(r.early)
	return r, true
}

// calmSpan is how long nothing must have been limited for a rate to count as one
// that the origin allows.
const calmSpan = 3 * time.Second

// calm is the greatest rate that passed for some time without a limit; 0 if
// there was no such time.
func (a *analysis) calm(l *laneView) (most float64) {
	steps := l.steps
	for from := range steps {
		var sent uint64
		for i := from; i < len(steps) && steps[i].limited == 0; i++ {
			sent += steps[i].sent
			if span := steps[i].to.Sub(steps[from].from); span >= calmSpan {
				most = max(most, perSecond(sent, span))
			}
		}
	}
	return most
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
