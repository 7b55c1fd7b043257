// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/config"
	"github.com/egressd/egressd/policy/verdict"
)

// passing finds connections that the policy names and that went out without
// egressd, so that no budget counted them.
func (a *analysis) passing() (all []Finding) {
	if k := a.Status.Kernel; k != nil {
		switch {
		case !k.Attached:
			all = append(all, past("the programs are not attached, so every connection goes past egressd", nil))
		case !k.Canary.At.IsZero() && !k.Canary.OK:
			all = append(all, past("the last self-test was not led to the proxy: "+k.Canary.Error, nil))
		}
	}
	if len(a.Last.PassedBy) == 0 {
		return all
	}
	var by []string
	numbers := map[string]float64{}
	total := uint64(0)
	for _, gate := range slices.Sorted(maps.Keys(a.Last.PassedBy)) {
		n := a.Last.PassedBy[gate]
		by = append(by, fmt.Sprintf("%d by gate %s", n, gate))
		numbers["gate_"+gate] = float64(n)
		total += n
	}
	during := uint64(0)
	for gate, n := range a.Last.PassedBy {
		during += since(n, a.First.PassedBy[gate])
	}
	numbers["untouched"], numbers["untouched_while_watched"] = float64(total), float64(during)
	return append(all, past(fmt.Sprintf("%d connection%s that the policy names went untouched since the daemon started, %d of them while watched: %s",
		total, plural(total), during, strings.Join(by, ", ")), numbers))
}

func past(saw string, numbers map[string]float64) Finding {
	if numbers == nil {
		numbers = map[string]float64{}
	}
	return Finding{
		Kind: PastEgressd, Certainty: Certain, Saw: saw, Numbers: numbers,
		Do: "see egressd doctor: it names the remedy of each gate. Where such traffic must not pass, fail: closed refuses it",
	}
}

// passes reports whether traffic to a label is known to go past egressd.
func (a *analysis) passes(label string) bool {
	return len(a.Last.PassedBy) > 0 || a.Last.QUIC[label] > 0 ||
		a.Status.Kernel != nil && !a.Status.Kernel.Attached
}

// quic finds destinations of the policy to which QUIC goes, which nobody holds.
func (a *analysis) quic() (all []Finding) {
	for _, label := range slices.Sorted(maps.Keys(a.Last.QUIC)) {
		n := a.Last.QUIC[label]
		if label == policy.OtherLabel || n == 0 || !a.wants(label) {
			continue
		}
		all = append(all, Finding{
			Kind: PastEgressd, Certainty: Certain, Destination: label,
			Saw:     fmt.Sprintf("%d socket%s sent QUIC to this destination, which no budget counts", n, plural(n)),
			Numbers: map[string]float64{"quic": float64(n)},
			Do:      "refuse QUIC, so that clients fall back to TCP", Policy: "quic: refuse",
		})
	}
	return all
}

// refusals finds 429s that are egressd's own.
func (a *analysis) refusals() (all []Finding) {
	for i := range a.pairs {
		p := &a.pairs[i]
		was := p.total.Refused
		full, slow := was[policy.RefusedQueueFull.String()], was[policy.RefusedMaxWait.String()]
		if full+slow == 0 {
			continue
		}
		now := p.refused[policy.RefusedQueueFull.String()] + p.refused[policy.RefusedMaxWait.String()]
		all = append(all, Finding{
			Kind: OwnRefusals, Certainty: Certain, Destination: p.destination, Exit: p.exit,
			Saw: fmt.Sprintf("egressd itself refused %d requests since it started, %d of them while watched: %d would have waited longer than max_wait, %d found the queue full; their answers say Proxy-Status: egressd",
				full+slow, now, slow, full),
			Numbers: map[string]float64{"max_wait": float64(slow), "queue_full": float64(full), "while_watched": float64(now)},
			Do:      "more is asked for than the budget allows: send less, use more exits, or let requests wait longer",
			Policy:  a.patient(p),
		})
	}
	return all
}

// patient has the budget of a pair's lane hold more for longer; "" if the pair
// has none.
func (a *analysis) patient(p *pairView) string {
	for i := range a.lanes {
		l := &a.lanes[i]
		if l.Label != p.destination || l.exit() != p.exit && l.exit() != policy.AllExits {
			continue
		}
		return a.fix(l, true, func(b *policy.Budget) {
			b.Queue.Max = max(b.Queue.Max, 10_000)
			b.Queue.MaxWait = max(b.Queue.MaxWait, 5*time.Minute)
		})
	}
	return ""
}

// unmeasured says so where there is nothing to judge since no budget looks.
func (a *analysis) unmeasured() []Finding {
	f := Finding{Kind: Unmeasured, Certainty: Certain, Numbers: map[string]float64{}, Do: "have a budget measure it: it holds nobody"}
	host := a.Destination
	switch {
	case host == "" && len(a.Last.Budgets) == 0 && len(a.lanes) == 0 && a.Status.PID != 0:
		f.Saw = "the policy has no budget, so nothing is looked at"
	case host != "" && len(a.lanes) == 0 && len(a.pairs) == 0:
		f.Certainty = Possible
		f.Destination = host
		f.Saw = "no lane and no count has this name: no budget is for it, or nothing was sent to it yet"
	default:
		return nil
	}
	limit := "*"
	if host != "" {
		limit = bracketed(host)
	}
	if b, err := config.ParseLimit(limit + "=1000/s"); err == nil {
		b.Name, b.Mode = "look", policy.Shadow
		if host != "" {
			b.Name = a.free(host)
		} else {
			b.Match.Hosts = nil
		}
		f.Policy = config.Format(b)
	}
	return []Finding{f}
}

// blind finds TLS whose answers nobody sees.
func (a *analysis) blind() []Finding {
	wanted := map[string]bool{}
	for i := range a.lanes {
		wanted[a.lanes[i].Lane] = true
	}
	who, conns := a.Clients.blind(func(lane string) bool { return wanted[lane] })
	if conns == 0 {
		return nil
	}
	seen := uint64(0)
	for _, n := range a.Last.Sight.Answers {
		seen += n
	}
	f := Finding{
		Kind: BlindTLS, Certainty: Certain, Processes: who,
		Saw: fmt.Sprintf("%d TLS connection%s of %d process%s to destinations of the policy %s not seen into: 429s inside close no lane, and are not counted here",
			conns, plural(uint64(conns)), len(who), plurals(len(who)), isAre(conns)),
		Numbers: map[string]float64{"blind_connections": float64(conns), "processes": float64(len(who)), "answers_seen_in_tls": float64(seen)},
		Do:      "let egressd read along; egressd doctor says of each process how",
		Policy:  "tls: {mode: observe}",
	}
	if reasons := a.doubts(); reasons != "" {
		f.Saw += " (" + reasons + ")"
	}
	return []Finding{f}
}

// doubts are the reasons for which connections could not be looked into.
func (a *analysis) doubts() string {
	var all []string
	for _, reason := range slices.Sorted(maps.Keys(a.Last.Sight.Doubts)) {
		if n := a.Last.Sight.Doubts[reason]; n > 0 {
			all = append(all, fmt.Sprintf("%d for %s", n, reason))
		}
	}
	return strings.Join(all, ", ")
}

// others finds refusals that look like limits and are none.
func (a *analysis) others() (all []Finding) {
	for i := range a.pairs {
		p := &a.pairs[i]
		for _, kind := range []struct {
			of   Kind
			name string
			saw  string
			do   string
		}{
			{Challenged, verdict.Challenge.String(), "the origin challenges: it wants no robots by this exit, at whatever rate",
				"a slower budget does not help; another exit may, or asking the origin's owner"},
			{ExitTrouble, verdict.ExitTrouble.String(), "the proxy of the exit refuses, and not the origin",
				"look at the account and the limits of the exit's provider; egressd exits tells of each"},
		} {
			n := p.total.Limited[kind.name]
			if n == 0 {
				continue
			}
			all = append(all, Finding{
				Kind: kind.of, Certainty: Certain, Destination: p.destination, Exit: p.exit,
				Saw:     fmt.Sprintf("%s: %d answer%s since the daemon started, %d of them while watched", kind.saw, n, plural(n), p.limited[kind.name]),
				Numbers: map[string]float64{"answers": float64(n), "while_watched": float64(p.limited[kind.name])},
				Do:      kind.do,
			})
		}
	}
	return all
}
