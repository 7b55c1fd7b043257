// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/config"
)

// fix is the policy lines by which a lane's budget would be another: a file of
// their own that config.Parse takes, and a note on where in the daemon's file
// they belong. all leaves the budget to all of its destinations; otherwise it
// becomes one for the lane's destination alone, to stand before it.
func (a *analysis) fix(l *laneView, all bool, change func(b *policy.Budget)) string {
	b := a.budget(l)
	if b == nil {
		return ""
	}
	note := "in place of budget " + l.Budget
	if hosts := a.only(l); len(hosts) > 0 && !ofOne(b) && (!all || ofAny(b)) {
		b.Match.Hosts = hosts
		b.Name = a.free(strings.TrimPrefix(hosts[0].String(), "*."))
		note = "before budget " + l.Budget
	}
	was := b.Mode
	change(b)
	lines := config.Format(b, note)
	if was != policy.Enforce && b.Mode == policy.Enforce {
		lines += "    mode: enforce\n" // the default, but it is the point
	}
	return lines
}

// budget is the lane's budget, as a copy that may be changed; nil if nothing can
// be made of the lane.
func (a *analysis) budget(l *laneView) *policy.Budget {
	for _, b := range a.Last.Budgets {
		if b.Name != l.Budget {
			continue
		}
		if p, err := config.Parse("policy", []byte(b.Lines)); err == nil && len(p.Budgets) == 1 {
			return p.Budgets[0]
		}
	}
	// Another daemon's, or a dialect of its file.
	host := l.name()
	b, err := config.ParseLimit(host + "=1/s")
	if err != nil {
		return nil
	}
	b.Name, b.Mode = l.Budget, policy.Enforce
	b.Rate = rateOf(max(l.BaseRate, 1.0/3600))
	if l.Burst > 0 {
		b.Burst = l.Burst
	}
	if l.measures() {
		b.Mode = policy.Shadow
	}
	return b
}

// only are the hosts of the lane's destination alone.
func (a *analysis) only(l *laneView) []policy.HostPattern {
	if l.Destination == "" {
		return nil
	}
	b, err := config.ParseLimit(bracketed(l.Destination) + "=1/s")
	if err != nil {
		return nil
	}
	hosts := b.Match.Hosts
	if whole := a.budget(l); whole != nil && whole.Per&policy.PerSite != 0 && hosts[0].Name != "" {
		hosts = append(hosts, policy.HostPattern{Suffix: "." + hosts[0].Name})
	}
	return hosts
}

func bracketed(host string) string {
	if strings.Contains(host, ":") && !strings.HasPrefix(host, "[") {
		return "[" + host + "]"
	}
	return host
}

// ofAny reports whether a budget is for every host.
func ofAny(b *policy.Budget) bool {
	return len(b.Match.Hosts) == 0 || slices.ContainsFunc(b.Match.Hosts, func(h policy.HostPattern) bool { return h.Any })
}

// ofOne reports whether a budget is for one host.
func ofOne(b *policy.Budget) bool {
	return len(b.Match.Hosts) == 1 && b.Match.Hosts[0].Name != ""
}

// maxName is the longest name of a budget.
const maxName = 64

// free makes a name that no budget has.
func (a *analysis) free(host string) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' {
			return r
		}
		return '-'
	}, host)
	name = strings.TrimLeft(name, ".-")
	name = name[:min(len(name), maxName-4)]
	if name == "" {
		name = "one"
	}
	taken := func(b admin.Budget) bool { return b.Name == name }
	for whole, n := name, 2; slices.ContainsFunc(a.Last.Budgets, taken); n++ {
		name = fmt.Sprintf("%s-%d", whole, n)
	}
	return name
}

// rateOf is a rate for the policy file: see lineRate.
func rateOf(perSecond float64) policy.Rate {
	b, err := config.ParseLimit("a.example=" + lineRate(perSecond))
	if err != nil {
		return policy.Rate{Count: 1, Every: time.Hour}
	}
	return b.Rate
}

// hold has the budget hold, at a rate if that is above 0.
func hold(perSecond float64) func(*policy.Budget) {
	return func(b *policy.Budget) {
		b.Mode = policy.Enforce
		if perSecond > 0 {
			b.Rate, b.Auto = rateOf(perSecond*float64(b.Cost.AtDispatch())), false
			b.Burst = 1
		}
	}
}
