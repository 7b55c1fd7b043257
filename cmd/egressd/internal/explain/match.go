// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
)

// matcher asks engines which budgets count a request.
type matcher struct {
	policy *policy.Policy
	facts  policy.Facts // as budgets see the request: without what is inside of blind TLS
	tls    bool
	mode   policy.TLSMode
	lanes  map[string]*policy.Lane // of the request, by budget; they belong to no daemon
}

// asks are the admissions of a request on a connection of its own.
func (m *matcher) asks() []policy.Admission {
	if m.blind() {
		return []policy.Admission{policy.ForOpaque}
	}
	return []policy.Admission{policy.ForRequest, policy.ForHTTPConnection}
}

// blind reports whether nobody looks into the request's connection.
func (m *matcher) blind() bool { return m.tls && m.mode == policy.Passthrough }

// reads reports whether its TLS is looked into from outside, which may fail.
func (m *matcher) reads() bool { return m.tls && m.mode == policy.Observe }

func newMatcher(p *policy.Policy, f *policy.Facts, tls bool) (*matcher, error) {
	m := &matcher{policy: p, facts: *f, tls: tls, lanes: map[string]*policy.Lane{}}
	e, err := engine(p)
	if err != nil {
		return nil, err
	}
	m.mode = e.TLSMode(f.Host, f.Dest)
	if m.blind() {
		m.facts.Method, m.facts.Path = "", ""
	}
	for _, l := range m.selected(e, &m.facts) {
		m.lanes[l.Key.Budget] = l
	}
	return m, nil
}

// engine makes an engine on memory of its own, with room for the lanes of one
// request.
func engine(p *policy.Policy) (*policy.Engine, error) {
	return policy.NewEngine(p, make([]ledger.Cell, policy.MaxLanes+2), nil, 0)
}

func (m *matcher) selected(e *policy.Engine, f *policy.Facts) (lanes []*policy.Lane) {
	for _, as := range m.asks() {
		lanes = e.Select(lanes, f, as, 0)
	}
	return lanes
}

// inside is how far the request's TLS is looked into, in words.
func (m *matcher) inside() string {
	switch {
	case !m.tls:
		return ""
	case m.blind():
		return "passthrough: nobody reads it, so it is paced by flights, and budgets that name a path or a method do not count it"
	}
	return m.mode.String()
}

// budget says what one budget of the file makes of the request.
func (m *matcher) budget(b *policy.Budget) (admin.Matched, error) {
	out := admin.Matched{Budget: b.Name}
	if l := m.lanes[b.Name]; l != nil {
		out.Matches, out.Lane, out.Why = true, l.ID(), "lanes are told apart by "+perWords(b.Per)
		if b.Unit == policy.Connections {
			out.Why += "; it counts the connection, not its requests"
		}
		if b.Mode == policy.Shadow {
			out.Why += "; it only measures (mode: shadow)"
		}
		return out, nil
	}
	if b.Mode == policy.Off {
		out.Why = "it is off"
		return out, nil
	}
	for _, c := range conditions {
		alone := *b
		alone.Match = policy.Match{}
		c.keep(&alone.Match, &b.Match)
		counts, err := m.counts(&alone)
		if err != nil {
			return out, err
		}
		if !counts {
			out.Why = c.why(m, &b.Match)
			return out, nil
		}
	}
	for _, other := range m.policy.Budgets {
		if other.Per == b.Per && m.lanes[other.Name] != nil {
			out.Why = fmt.Sprintf("budget %s stands before it and tells lanes apart by the same: the first one wins", other.Name)
			return out, nil
		}
	}
	out.Why = "others that match stand before it"
	return out, nil
}

// counts asks an engine whether a policy of that budget alone counts the
// request.
func (m *matcher) counts(b *policy.Budget) (bool, error) {
	e, err := engine(&policy.Policy{Budgets: []*policy.Budget{b}, TLS: m.policy.TLS})
	if err != nil {
		return false, err
	}
	return len(m.selected(e, &m.facts)) > 0, nil
}

// condition is one part of a match, by itself.
type condition struct {
	keep func(to, from *policy.Match)
	why  func(m *matcher, b *policy.Match) string
}

// conditions are in the order in which people look for the reason.
var conditions = []condition{
	{
		func(to, from *policy.Match) { to.Hosts = from.Hosts },
		func(m *matcher, b *policy.Match) string {
			return fmt.Sprintf("its hosts do not name %s: %s", m.facts.Host, listed(b.Hosts, policy.HostPattern.String))
		},
	},
	{
		func(to, from *policy.Match) { to.Ports = from.Ports },
		func(m *matcher, b *policy.Match) string {
			return fmt.Sprintf("it names other ports than %d: %s", m.facts.Dest.Port(), listed(b.Ports, func(p uint16) string { return strconv.Itoa(int(p)) }))
		},
	},
	{
		func(to, from *policy.Match) { to.Path = from.Path },
		func(m *matcher, b *policy.Match) string {
			if m.blind() {
				return fmt.Sprintf("it names path %s, and nobody reads what is inside this TLS: see tls: {mode: observe}", b.Path)
			}
			return fmt.Sprintf("the path does not begin with %s", b.Path)
		},
	},
	{
		func(to, from *policy.Match) { to.Methods = from.Methods },
		func(m *matcher, b *policy.Match) string {
			if m.blind() {
				return fmt.Sprintf("it names methods %s, and nobody reads what is inside this TLS: see tls: {mode: observe}", strings.Join(b.Methods, ", "))
			}
			return fmt.Sprintf("it names other methods than %s: %s", m.facts.Method, strings.Join(b.Methods, ", "))
		},
	},
}

// most bounds a list in a reason.
const most = 5

func listed[T any](all []T, text func(T) string) string {
	var words []string
	for _, v := range all[:min(len(all), most)] {
		words = append(words, text(v))
	}
	if more := len(all) - len(words); more > 0 {
		words = append(words, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(words, ", ")
}

// perWords is what tells lanes apart, as the policy file writes it.
func perWords(per policy.Per) string {
	var words []string
	for _, p := range []struct {
		bit  policy.Per
		name string
	}{
		{policy.PerDestination, "destination"}, {policy.PerSite, "site"}, {policy.PerExit, "exit"},
		{policy.PerSession, "session"}, {policy.PerPath, "path"},
	} {
		if per&p.bit != 0 {
			words = append(words, p.name)
		}
	}
	if len(words) == 0 {
		return "nothing: there is one for all"
	}
	return strings.Join(slices.Clip(words), ", ")
}
