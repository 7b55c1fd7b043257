// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/egressd/egressd/policy"
)

// What counts as more than a budget, and as within it. Counts of a few seconds
// are coarse.
const (
	above  = 1.2
	within = 1.25
)

// fewest is the number of requests below which rates say nothing.
const fewest = 5

// minPart is the share from which a process counts as one that takes part.
const minPart = 0.05

// multiplied finds lanes that only measure, where more goes than is allowed, by
// the budget or, where that is not exceeded, by the origin: several processes,
// each within it, or one that is over the budget alone. What only repeats
// limited requests is left out: see storms.
func (a *analysis) multiplied() (all []Finding) {
	for i := range a.lanes {
		l := &a.lanes[i]
		if !l.measures() || l.sent < fewest || l.Limited == 0 || a.explained[l.Lane] {
			continue
		}
		rate, allowed, ofOrigin := a.jobs(l), l.BaseRate, false
		if allowed == 0 || rate <= above*allowed {
			if allowed, ofOrigin = a.allowed(l), true; allowed == 0 || rate <= above*allowed {
				continue
			}
		}
		f := Finding{
			Kind: Multiplication, Certainty: Likely, Destination: l.name(), Exit: l.exit(), Lane: l.Lane,
			Numbers: map[string]float64{
				"sent_per_second": rate, "budget_per_second": l.BaseRate, "allowed_per_second": allowed, "limited": float64(l.limited),
			},
		}
		over, total := a.part(&f, l, rate, allowed)
		n := len(f.Processes)
		if ofOrigin && (over > 0 || n < 2) {
			continue // then it is the limit: see limits
		}
		f.Numbers["requests_attributed"], f.Numbers["processes"] = float64(total), float64(n)
		if l.limited == 0 || total < 2*fewest {
			f.Certainty = Possible
		}
		limit := "the budget of " + rateText(allowed)
		if ofOrigin {
			limit = rateText(round(allowed, 2)) + ", which is what the origin " + a.lets(l)
		}
		answers := fmt.Sprintf("%d of %d answers were limits", l.limited, l.sent)
		switch {
		case n == 0:
			f.Kind, f.Certainty = OverBudget, Possible
			f.Saw = fmt.Sprintf("%s is sent, %.1f times the budget of %s, by whom was not seen; %s", rateText(rate), rate/allowed, rateText(allowed), answers)
		case over == 0 && n > 1:
			f.Saw = fmt.Sprintf("%d processes sent %s together, %.1f times %s, each of them within it; %s", n, rateText(rate), rate/allowed, limit, answers)
		default:
			f.Kind = OverBudget
			f.Numbers["processes_over"] = float64(over)
			f.Saw = fmt.Sprintf("%s is sent, and the budget is %s: %d of %d process%s %s over it alone; %s",
				rateText(rate), rateText(allowed), over, n, plurals(n), isAre(over), answers)
		}
		if ofOrigin {
			f.Do = "let egressd hold the sum to what the origin allows"
			f.Policy = a.fix(l, false, hold(allowed))
		} else {
			f.Do = "let egressd hold the sum: the budget measures and holds nobody"
			f.Policy = a.fix(l, true, hold(0))
		}
		a.explained[l.Lane] = true
		all = append(all, f)
	}
	return all
}

// part names the processes that take part in a lane's rate, and tells how many
// of them are over what is allowed alone, and by how many requests all this is
// known.
func (a *analysis) part(f *Finding, l *laneView, rate, allowed float64) (over, total int) {
	shares, total := a.shares(l)
	for _, s := range shares {
		if s.part < minPart {
			break
		}
		s.PerSecond = rate * s.part
		if s.PerSecond > within*allowed {
			over++
		}
		f.Processes = append(f.Processes, s.Process)
	}
	return over, total
}

// allowed is the rate that the origin allows, as far as the watch can tell: what
// its answers state, or else what it let through while it limited. 0 if that is not
// known.
func (a *analysis) allowed(l *laneView) float64 {
	if l.limited == 0 || l.sent < fewest {
		return 0
	}
	low := perSecond(l.sent-min(l.limited, l.sent), a.span)
	if l.story == nil {
		return low
	}
	if told := l.story.told(); told > 0 {
		return told
	}
	if rate, known := l.story.passed(); known {
		return rate
	}
	return 0
}

// lets says how it is known what an origin allows.
func (a *analysis) lets(l *laneView) string {
	if l.story != nil && l.story.told() > 0 {
		return "states as its limit"
	}
	return "let through"
}

// summed finds lanes of one budget that share an exit, each within its limit,
// where the origin limits what they send together.
func (a *analysis) summed() (all []Finding) {
	type key struct{ budget, label, exit, session string }
	groups := map[key][]*laneView{}
	var keys []key
	for i := range a.lanes {
		l := &a.lanes[i]
		if l.measures() || l.BaseRate == 0 || l.Auto || l.sent == 0 {
			continue
		}
		k := key{l.Budget, l.Label, l.Exit, l.Session}
		if groups[k] == nil {
			keys = append(keys, k)
		}
		groups[k] = append(groups[k], l)
	}
	for _, k := range keys {
		lanes := groups[k]
		var sent, limits uint64
		hit, dests, paths := 0, map[string]bool{}, map[string]bool{}
		for _, l := range lanes {
			sent, limits = sent+l.sent, limits+l.limited
			if l.limited > 0 {
				hit++
			}
			dests[l.Destination], paths[l.Path] = true, true
		}
		rate, base := perSecond(sent, a.span), lanes[0].BaseRate
		// One lane that is limited alone has a limit of its own.
		if len(lanes) < 2 || hit < 2 || sent < fewest || rate <= above*base {
			continue
		}
		by, per := "path", "leave path out of its per"
		lines := ""
		if len(dests) > 1 {
			by, per = "destination", "count the hosts together"
			lines = a.fix(lanes[0], true, func(b *policy.Budget) { b.Per = b.Per&^policy.PerDestination | policy.PerSite })
		} else {
			lines = a.fix(lanes[0], true, func(b *policy.Budget) { b.Per &^= policy.PerPath })
		}
		for _, l := range lanes {
			a.explained[l.Lane] = true
		}
		slices.SortFunc(lanes, func(a, b *laneView) int { return cmp.Compare(b.sent, a.sent) })
		all = append(all, Finding{
			Kind: Multiplication, Certainty: Likely, Destination: k.label, Exit: lanes[0].exit(), Lane: lanes[0].Lane,
			Saw: fmt.Sprintf("%d lanes of budget %s, one for each %s, sent %s together by one exit, each within its %s; %d of them were limited, %d answers of %d",
				len(lanes), k.budget, by, rateText(rate), rateText(base), hit, limits, sent),
			Numbers: map[string]float64{
				"lanes": float64(len(lanes)), "lanes_limited": float64(hit), "sent_per_second": rate,
				"budget_per_second": base, "limited": float64(limits),
			},
			Do:     per + ": the origin counts the exit",
			Policy: lines,
		})
	}
	return all
}
