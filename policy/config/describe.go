// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/config/strict"
)

// Describe says in one line per budget, in file order, what the policy really
// allows. Where lanes multiply a limit, the line says to how much. A line per
// pool follows, and one each where QUIC is refused and where qdiscs are changed.
func Describe(p *policy.Policy) []string {
	lines := make([]string, len(p.Budgets), len(p.Budgets)+len(p.Pools))
	for i, b := range p.Budgets {
		lines[i] = fmt.Sprintf("%s: %s: %s%s", b.Name, describeMatch(b), describeLimits(b, len(p.Exits)), describeMore(b)+describeTLS(b, &p.TLS)+describeShared(b, p.Fleet))
		switch b.Mode {
		case policy.Shadow:
			lines[i] += " (shadow: measured, never held)"
		case policy.Off:
			lines[i] += " (off: as if it were not there)"
		}
	}
	for _, pool := range p.Pools {
		lines = append(lines, describePool(pool))
	}
	if p.QUIC == policy.QUICRefuse {
		lines = append(lines, "quic: refused to ports and addresses of budgets, so that clients fall back to TCP")
	}
	for _, line := range []string{describeQdisc(p.Qdisc), describeFleet(p.Fleet)} {
		if line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// describeMatch is the traffic in words: "GET requests to a, b, port 80".
func describeMatch(b *policy.Budget) string {
	var s strings.Builder
	if len(b.Match.Methods) > 0 {
		s.WriteString(strings.Join(b.Match.Methods, ", ") + " ")
	}
	s.WriteString(unitName(b.Unit) + " to ")
	if len(b.Match.Hosts) == 0 {
		s.WriteString("every host")
	}
	for i, h := range b.Match.Hosts {
		if i > 0 {
			s.WriteString(", ")
		}
		s.WriteString(h.String())
	}
	if len(b.Match.Ports) == 1 {
		fmt.Fprintf(&s, ", port %d", b.Match.Ports[0])
	} else {
		s.WriteString(", ports ")
		for i, port := range b.Match.Ports {
			if i > 0 {
				s.WriteByte('/')
			}
			s.WriteString(strconv.Itoa(int(port)))
		}
	}
	if b.Match.Path != "" {
		s.WriteString(", path " + b.Match.Path + "…")
	}
	return s.String()
}

// describeLimits is what one lane allows, and all lanes together as far as the
// policy bounds their number.
func describeLimits(b *policy.Budget, exits int) string {
	s := describeLane(b)
	of := "in all"
	if kinds := unbounded(b); len(kinds) > 0 {
		of = "per " + strict.Series(kinds, "and")
	}
	if b.Per&policy.PerExit == 0 || exits == 0 {
		return s + " " + of
	}
	s += fmt.Sprintf(" per exit × %d exit", exits)
	if exits > 1 {
		s += "s"
	}
	s += " (+direct)"
	if all := times(b, exits+1); all != "" {
		return s + " = up to " + all + " " + of
	}
	return s + " " + of
}

// describeLane is what one lane allows: "rate 1/s burst 5, at most 100 in any
// 1m (in the long run the rate binds), 4 at once".
func describeLane(b *policy.Budget) string {
	var limits []string
	if b.Rate.Count > 0 {
		s := "rate " + formatRate(b.Rate)
		if b.Auto {
			s = "rate auto from " + formatRate(b.Rate)
		}
		if b.Burst > 1 {
			s += " burst " + strconv.FormatFloat(b.Burst, 'f', -1, 64)
		}
		limits = append(limits, s)
	}
	if w := b.Window; w.Limit > 0 {
		limits = append(limits, "at most "+formatWindow(w)+describeBinding(b))
	}
	if b.Concurrency > 0 {
		limits = append(limits, strconv.Itoa(b.Concurrency)+" at once")
	}
	return strings.Join(limits, ", ")
}

// describeBinding says which of rate and window does what. A rate that is
// learned may become either.
func describeBinding(b *policy.Budget) string {
	if b.Rate.Count == 0 || b.Auto {
		return ""
	}
	limit := float64(b.Window.Limit)
	pace := b.Rate.Count * float64(b.Window.Per) / float64(b.Rate.Every)
	// The last request of a burst may go into debt with all that it costs.
	most := math.Floor(max(b.Burst, 1) - 1 + float64(b.Cost.AtDispatch()) + pace*(1+1e-12))
	switch {
	case most <= limit:
		return fmt.Sprintf(" (never reached: the rate lets %s go)", strconv.FormatFloat(most, 'f', -1, 64))
	case limit < pace:
		return " (in the long run the window binds)"
	}
	return " (in the long run the rate binds)"
}

// times is what so many lanes allow together; empty if nothing that they have
// is known before.
func times(b *policy.Budget, lanes int) string {
	var limits []string
	if b.Rate.Count > 0 && !b.Auto {
		all := b.Rate
		all.Count *= float64(lanes)
		limits = append(limits, formatRate(all))
	}
	if w := b.Window; w.Limit > 0 {
		w.Limit *= uint64(lanes)
		limits = append(limits, formatWindow(w))
	}
	if b.Concurrency > 0 {
		limits = append(limits, strconv.Itoa(b.Concurrency*lanes)+" at once")
	}
	return strings.Join(limits, ", ")
}

// describeMore is what else decides how much goes, and whose.
func describeMore(b *policy.Budget) string {
	var s string
	if n := b.Cost.AtDispatch(); n > 1 || b.Cost.Header != "" {
		s = fmt.Sprintf("; each takes %d", n)
		if b.Cost.Header != "" {
			s += " until " + b.Cost.Header + " tells"
		}
	}
	if by := b.Queue.FairBy; by != policy.FairNone {
		s += "; turns by " + fairWords[by]
	}
	return s
}

// unbounded are the properties that tell lanes apart and of which the policy
// does not say how many there are.
func unbounded(b *policy.Budget) []string {
	var kinds []string
	if b.Per&policy.PerDestination != 0 && !oneDestination(b.Match.Hosts) {
		kinds = append(kinds, "destination")
	}
	if b.Per&policy.PerSession != 0 {
		kinds = append(kinds, "session")
	}
	if b.Per&policy.PerPath != 0 {
		kinds = append(kinds, "path")
	}
	return kinds
}

// formatWindow is the window in words: "100 in any 1m".
func formatWindow(w policy.Window) string {
	which := "any"
	if w.Kind == policy.Fixed {
		which = "each"
	}
	return fmt.Sprintf("%d in %s %s", w.Limit, which, strict.Duration(w.Per))
}

// oneDestination reports whether the patterns can only be one host.
func oneDestination(hosts []policy.HostPattern) bool {
	return len(hosts) == 1 && (hosts[0].Name != "" || hosts[0].Prefix.IsValid() && hosts[0].Prefix.IsSingleIP())
}

func unitName(u policy.Unit) string {
	if u == policy.Connections {
		return "connections"
	}
	return "requests"
}
