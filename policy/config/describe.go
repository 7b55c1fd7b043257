// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/egressd/egressd/policy"
)

// Describe says in one line per budget, in file order, what the policy really
// allows. Where lanes multiply a rate, the line says to how much.
func Describe(p *policy.Policy) []string {
	lines := make([]string, len(p.Budgets))
	for i, b := range p.Budgets {
		lines[i] = fmt.Sprintf("%s: %s: %s", b.Name, describeMatch(b), describeRate(b, len(p.Exits)))
		switch b.Mode {
		case policy.Shadow:
			lines[i] += " (shadow: measured, never held)"
		case policy.Off:
			lines[i] += " (off: as if it were not there)"
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

// describeRate is the rate of one lane, and of all lanes together as far as
// the policy bounds their number.
func describeRate(b *policy.Budget, exits int) string {
	s := "rate " + formatRate(b.Rate)
	if b.Burst > 1 {
		s += " burst " + strconv.FormatFloat(b.Burst, 'f', -1, 64)
	}
	of := "in all"
	if b.Per&policy.PerDestination != 0 && !oneDestination(b.Match.Hosts) {
		of = "per destination"
	}
	if b.Per&policy.PerExit == 0 || exits == 0 {
		return s + " " + of
	}
	all := b.Rate
	all.Count *= float64(exits + 1)
	plural := "s"
	if exits == 1 {
		plural = ""
	}
	return fmt.Sprintf("%s per exit × %d exit%s (+direct) = up to %s %s", s, exits, plural, formatRate(all), of)
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
