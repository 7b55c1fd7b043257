// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"math"
	"time"

	"github.com/egressd/egressd/policy"
)

// limits finds lanes whose budget is kept and whose origin limits
// nevertheless: since it allows less, or since others use the same exit.
func (a *analysis) limits() (all []Finding) {
	for i := range a.lanes {
		l := &a.lanes[i]
		onsets := a.recent(l)
		kept := !l.measures() || l.BaseRate == 0 || a.jobs(l) <= above*l.BaseRate
		if !kept || a.explained[l.Lane] || l.limited == 0 && onsets == 0 || l.Auto {
			continue
		}
		if f, found := a.shared(l); found {
			all = append(all, f)
			continue
		}
		all = append(all, a.wrong(l, onsets))
	}
	return all
}

// wrong is what to say of a limit that is lower than the budget.
func (a *analysis) wrong(l *laneView, onsets int) Finding {
	f := Finding{
		Kind: WrongLimit, Certainty: Possible, Destination: l.name(), Exit: l.exit(), Lane: l.Lane,
		Numbers: map[string]float64{
			"budget_per_second": l.BaseRate, "limited": float64(l.limited), "limits_remembered": float64(onsets),
			"rate_now_per_second": l.Rate,
		},
		Do: "lower the budget to what the origin allows",
	}
	if l.limited >= 2 || onsets >= 3 {
		f.Certainty = Likely
	}
	f.Saw = fmt.Sprintf("the budget (%s) is kept, and the origin limits nevertheless: %d time%s while watched", budgetText(l), l.limited, plural(l.limited))
	if l.measures() {
		f.Do = "let egressd hold what is sent to what the origin allows"
		allowed := a.allowed(l)
		if over, _ := a.part(&f, l, a.jobs(l), allowed); over > 0 && allowed > 0 {
			f.Saw += fmt.Sprintf("; %d process%s alone sent more than it %s", over, plurals(over), a.lets(l))
			f.Numbers["processes_over"] = float64(over)
		}
	} else {
		f.Saw += fmt.Sprintf(", and %d time%s it closed the lane in the last %s", onsets, plural(uint64(onsets)), seconds(a.Past.To.Sub(a.Past.From).Seconds()))
	}
	if l.Quota != nil && l.Quota.Limit > 0 {
		f.Numbers["limit_told"] = float64(l.Quota.Limit)
		f.Saw += fmt.Sprintf("; its answers tell a limit of %d, of which %d are left for %s", l.Quota.Limit, l.Quota.Left, seconds(l.Quota.Until))
	}
	rate := 0.0
	if low, high, known := a.estimate(l); known {
		f.Numbers["origin_least_per_second"], f.Numbers["origin_most_per_second"] = low, high
		f.Saw += fmt.Sprintf("; it let %s through of %s sent", rateText(low), rateText(high))
		rate = low
	}
	if l.story != nil {
		if told := l.story.told(); told > 0 {
			f.Numbers["told_per_second"] = told
			f.Saw += "; its answers state a limit of " + rateText(told)
			rate = told
			if told < 0.95*l.BaseRate {
				f.Certainty = Certain
			}
		}
	}
	if a.passes(l.Label) {
		f.Certainty = Possible
		f.Do += "; but first see what goes past egressd"
	}
	if rate > 0 {
		f.Policy = a.fix(l, false, hold(rate))
	} else {
		// Nobody knows the limit: it can be found out.
		f.Do += "; how much that is does not show, so have egressd find it out"
		f.Policy = a.fix(l, false, learn(l))
	}
	if l.Rate > 0 && l.Rate < 0.999*l.BaseRate {
		f.Saw += "; egressd has slowed the lane to " + rateText(l.Rate)
	}
	return f
}

// learn has a budget find the rate out, from what is sent now or, where nothing
// holds that, from what gets through.
func learn(l *laneView) func(*policy.Budget) {
	begin := min(l.Rate, l.BaseRate)
	switch {
	case l.measures() && l.story != nil:
		begin = perSecond(uint64(len(l.story.shots)-min(len(l.story.shots), len(l.story.limits()))), l.story.span)
	case begin == 0:
		begin = 1
	}
	return func(b *policy.Budget) {
		b.Mode, b.Auto, b.Burst = policy.Enforce, true, 1
		b.Rate = rateOf(max(begin, 1.0/60))
	}
}

// estimate brackets the rate that an origin allows: what it let through while
// it limited, and what was sent meanwhile. The watch and the minutes of the
// past are both asked, and the one that saw more decides.
func (a *analysis) estimate(l *laneView) (low, high float64, known bool) {
	most := uint64(0)
	take := func(sent, limits uint64, span time.Duration) {
		if limits == 0 || sent < fewest || sent <= most || span <= 0 {
			return
		}
		most, known = sent, true
		low, high = perSecond(sent-min(limits, sent), span), perSecond(sent, span)
	}
	if l.story != nil && len(l.story.shots) >= fewest && l.limited > 0 {
		t := l.story
		low, known = t.passed()
		return low, perSecond(uint64(len(t.shots)), t.span), known
	}
	take(l.sent, l.limited, a.span)
	if a.alone(l) {
		var sent, limits uint64
		var span time.Duration
		for _, m := range a.Minutes {
			if p := pastOf(m.Pairs, l.Label, l.exit()); p.TooMany > 0 {
				sent, limits, span = sent+p.Requests, limits+p.TooMany, span+m.To.Sub(m.From)
			}
		}
		take(sent, limits, span)
	}
	return low, high, known
}

// alone reports whether the pair under which a lane is counted has no other
// lane, so that counts of the pair are those of the lane.
func (a *analysis) alone(l *laneView) bool {
	if len(a.Samples) == 0 {
		return false
	}
	for _, other := range a.Samples[len(a.Samples)-1].Lanes {
		if other.Lane != l.Lane && other.Label == l.Label && (other.Exit == l.Exit || l.Exit == "") {
			return false
		}
	}
	return true
}

// quietly is the share of what once passed unlimited, below which a limit is
// not explained by what was sent.
const quietly = 1.0 / 3

// shared looks for limits that began while little was sent, where much more
// had passed without one: somebody else uses the exit.
func (a *analysis) shared(l *laneView) (f Finding, found bool) {
	if !a.alone(l) {
		return f, false
	}
	free, least := 0.0, math.MaxFloat64
	quiet := 0
	type minute struct {
		rate    float64
		limited bool
	}
	var series []minute
	for _, m := range a.Minutes {
		span := m.To.Sub(m.From)
		if span < 30*time.Second {
			continue // the present one has just begun
		}
		p := pastOf(m.Pairs, l.Label, l.exit())
		one := minute{perSecond(p.Requests, span), p.TooMany > 0}
		if !one.limited {
			free = max(free, one.rate)
		}
		series = append(series, one)
	}
	for i := 1; i < len(series); i++ {
		// A minute after a limit is quiet since the lane was closed.
		if was, is := series[i-1], series[i]; is.limited && !was.limited {
			if rate := max(was.rate, is.rate); rate <= quietly*free {
				quiet++
				least = min(least, rate)
			}
		}
	}
	if quiet == 0 {
		return f, false
	}
	f = Finding{
		Kind: SharedExit, Certainty: Possible, Destination: l.name(), Exit: l.exit(), Lane: l.Lane,
		Saw: fmt.Sprintf("limits began %d time%s while only %s or so was sent, and a minute of %s passed without one: others seem to use this exit",
			quiet, plural(uint64(quiet)), rateText(least), rateText(free)),
		Numbers: map[string]float64{"quiet_limits": float64(quiet), "quiet_per_second": least, "free_per_second": free, "budget_per_second": l.BaseRate},
		Policy:  a.fix(l, false, learn(l)),
		Do:      "ask who else has this exit (other hosts behind the same NAT, other customers of the proxy), and use one of your own, or a budget that finds out what they leave",
	}
	if quiet > 1 {
		f.Certainty = Likely
	}
	return f, true
}
