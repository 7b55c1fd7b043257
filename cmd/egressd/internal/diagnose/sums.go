// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
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

// multiplied finds lanes that only measure, where more goes than the budget
// allows: several processes, each within it, or one that is over it alone.
func (a *analysis) multiplied() (all []Finding) {
	for i := range a.lanes {
		l := &a.lanes[i]
		rate := perSecond(l.sent, a.span)
		if !l.measures() || l.BaseRate == 0 || l.sent < fewest || rate <= above*l.BaseRate || l.Limited == 0 {
			continue
		}
		shares, seen := a.Clients.of(l.Lane)
		f := Finding{
			Kind: Multiplication, Certainty: Likely, Destination: l.name(), Exit: l.exit(), Lane: l.Lane,
			Numbers: map[string]float64{
				"sent_per_second": rate, "budget_per_second": l.BaseRate, "limited": float64(l.limited),
				"requests_attributed": float64(seen),
			},
			Do:     "let egressd hold the sum: the budget measures and holds nobody",
			Policy: budgetLines(l.Budget, "mode: enforce"),
		}
		over := 0
		for _, s := range shares {
			if s.part < minPart {
				break
			}
			s.PerSecond = rate * s.part
			if s.PerSecond > within*l.BaseRate {
				over++
			}
			f.Processes = append(f.Processes, s.Process)
		}
		if l.limited == 0 || seen < 2*fewest {
			f.Certainty = Possible
		}
		n := len(f.Processes)
		f.Numbers["processes"] = float64(n)
		switch {
		case n == 0:
			f.Kind, f.Certainty = OverBudget, Possible
			f.Saw = fmt.Sprintf("%s is sent, %.1f times the budget of %s, by whom was not seen; %d of %d answers were limits",
				rateText(rate), rate/l.BaseRate, rateText(l.BaseRate), l.limited, l.sent)
		case over == 0 && n > 1:
			f.Saw = fmt.Sprintf("%d processes sent %s together, %.1f times the budget of %s, each of them within it; %d of %d answers were limits",
				n, rateText(rate), rate/l.BaseRate, rateText(l.BaseRate), l.limited, l.sent)
		default:
			f.Kind = OverBudget
			f.Numbers["processes_over"] = float64(over)
			f.Saw = fmt.Sprintf("%s is sent, and the budget is %s: %d of %d processes are over it alone; %d of %d answers were limits",
				rateText(rate), rateText(l.BaseRate), over, n, l.limited, l.sent)
		}
		a.explained[l.Lane] = true
		all = append(all, f)
	}
	return all
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
			lines = budgetLines(k.budget, "per: [site, exit]")
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

// budgetLines are lines for a budget of the policy file.
func budgetLines(budget string, lines ...string) string {
	return "budgets:\n  - name: " + budget + "\n    " + strings.Join(lines, "\n    ")
}
