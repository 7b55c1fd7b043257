// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"slices"
	"strings"
)

// rule is a budget, compiled for matching.
type rule struct {
	*Budget
	owner  *owner
	bit    uint32 // 1 << Per
	any    bool   // matches every host
	names  bool   // matches hosts by their names, and not all
	kernel bool   // the kernel plane can hold it: see forKernel
	addrs  []addrPattern
	label  string // of lanes that do not tell destinations apart
}

// addrPattern is a CIDR, or an address, among the hosts of a rule.
type addrPattern struct {
	prefix netip.Prefix
	label  string
}

// candidate is a rule that a host may fall under.
type candidate struct {
	*rule
	named  bool   // the host matches; else its address must
	byName bool   // … by its name, and not all hosts do
	label  string // the pattern that matched, if named
}

// matcher finds the rules for a host. Immutable.
//
// All rules that can match a name are gathered, in file order, under the most
// specific pattern that the file has for it, so that a look-up walks the
// labels of the name once.
type matcher struct {
	exact  map[string][]candidate
	suffix map[string][]candidate // ".example.com"
	rest   []candidate            // for hosts under no name of the file
	sites  bool                   // some rule tells sites apart
	asks   map[uint16]bool        // ports at which some rule matches hosts by their names
}

func compile(p *Policy, ownerOf func(name string) *owner) (*matcher, []*rule) {
	m := &matcher{exact: map[string][]candidate{}, suffix: map[string][]candidate{}, asks: map[uint16]bool{}}
	var rules []*rule
	budgets := p.Budgets
	if slices.ContainsFunc(p.Exits, func(e Exit) bool { return e.Proxy != nil }) {
		budgets = append(slices.Clip(budgets), exitTrouble)
	}
	for _, b := range budgets {
		m.sites = m.sites || b.Per&PerSite != 0
		r := &rule{Budget: b, owner: ownerOf(b.Name), bit: 1 << b.Per, any: len(b.Match.Hosts) == 0, label: b.Name}
		for _, h := range b.Match.Hosts {
			r.any = r.any || h.Any
			if prefix, is := h.addresses(); is {
				r.addrs = append(r.addrs, addrPattern{prefix, h.String()})
			} else {
				r.names = true
			}
			if h.Name != "" {
				m.exact[h.Name] = nil
			}
			if h.Suffix != "" {
				m.suffix[h.Suffix] = nil
			}
		}
		if len(b.Match.Hosts) == 1 && !r.any {
			r.label = b.Match.Hosts[0].String()
		}
		r.names = r.names && !r.any
		r.kernel = b.forKernel()
		if r.names && b.Mode != Off {
			for _, port := range b.Match.Ports {
				m.asks[port] = true
			}
		}
		rules = append(rules, r)
	}
	for name := range m.exact {
		m.exact[name] = candidates(rules, name)
	}
	for suffix := range m.suffix {
		m.suffix[suffix] = candidates(rules, "*"+suffix)
	}
	m.rest = candidates(rules, "")
	return m, rules
}

// candidates are the rules for a name, or for all names under a suffix that is
// written "*.suffix".
func candidates(rules []*rule, name string) []candidate {
	var out []candidate
	for _, r := range rules {
		if r.Mode == Off {
			continue
		}
		c := candidate{rule: r}
		if pattern, ok := r.named(name); ok {
			_, literal := hostAddr(name)
			c.named, c.byName, c.label = true, !r.any && !literal, pattern
		}
		if c.named || len(r.addrs) > 0 {
			out = append(out, c)
		}
	}
	return out
}

// named returns the first pattern of the rule that the name matches.
func (r *rule) named(name string) (label string, ok bool) {
	if len(r.Match.Hosts) == 0 {
		return r.Name, true
	}
	for _, h := range r.Match.Hosts {
		switch {
		case h.Any:
			return r.Name, true
		case name == "":
		case h.Name == name:
			return h.String(), true
		case h.Suffix != "" && strings.HasSuffix(name, h.Suffix):
			return h.String(), true
		}
	}
	return "", false
}

// find returns the rules that host may fall under, in file order.
func (m *matcher) find(host string) []candidate {
	if c, ok := m.exact[host]; ok {
		return c
	}
	if len(m.suffix) > 0 {
		for i := strings.IndexByte(host, '.'); i >= 0; {
			if c, ok := m.suffix[host[i:]]; ok && i > 0 {
				return c
			}
			next := strings.IndexByte(host[i+1:], '.')
			if next < 0 {
				break
			}
			i += 1 + next
		}
	}
	return m.rest
}

// where reports whether host and dest match, and under which pattern.
func (c *candidate) where(host string, dest netip.AddrPort) (label string, ok bool) {
	if !c.at(dest.Port()) {
		return "", false
	}
	if c.named {
		return c.label, true
	}
	for i := range c.addrs {
		if c.addrs[i].prefix.Contains(dest.Addr()) {
			return c.addrs[i].label, true
		}
	}
	if addr, is := hostAddr(host); is && addr != dest.Addr() {
		for i := range c.addrs {
			if c.addrs[i].prefix.Contains(addr) {
				return c.addrs[i].label, true
			}
		}
	}
	return "", false
}

// at reports whether the rule matches the port.
func (r *rule) at(port uint16) bool {
	return len(r.Match.Ports) == 0 || slices.Contains(r.Match.Ports, port)
}

// covers reports whether the rule names the address, or a range around it.
func (r *rule) covers(addr netip.Addr) bool {
	for i := range r.addrs {
		if r.addrs[i].prefix.Contains(addr) {
			return true
		}
	}
	return false
}

// anyPort is one that the rule matches.
func (r *rule) anyPort() uint16 {
	if len(r.Match.Ports) > 0 {
		return r.Match.Ports[0]
	}
	return 0
}

// admits reports whether the rule counts this kind of admission, and its path
// and method. A connection whose inside is not seen has neither, so a rule
// that names one never counts it.
func (r *rule) admits(f *Facts, a Admission) bool {
	switch {
	case a == ForRequest && r.Unit != Requests, a == ForHTTPConnection && r.Unit != Connections:
		return false
	case r.Budget == exitTrouble && !f.Proxied:
		return false
	}
	if r.Match.Path != "" && !strings.HasPrefix(f.Path, r.Match.Path) {
		return false
	}
	return len(r.Match.Methods) == 0 || slices.Contains(r.Match.Methods, f.Method)
}

// hostAddr is host as an address. Names are told apart before they are
// parsed, because a parse that fails allocates its error.
func hostAddr(host string) (netip.Addr, bool) {
	colon := strings.IndexByte(host, ':') >= 0
	if !colon {
		for i := range len(host) {
			if c := host[i]; c != '.' && (c < '0' || c > '9') {
				return netip.Addr{}, false
			}
		}
	}
	addr, err := netip.ParseAddr(host)
	return addr.Unmap(), err == nil
}

// String is the pattern as the policy file writes it.
func (h HostPattern) String() string {
	switch {
	case h.Any:
		return "*"
	case h.Suffix != "":
		return "*" + h.Suffix
	case h.Prefix.IsValid():
		return h.Prefix.String()
	}
	return h.Name
}

// addresses is the address range that the pattern names: a CIDR, or an address
// as a range of one.
func (h HostPattern) addresses() (netip.Prefix, bool) {
	if h.Prefix.IsValid() {
		return h.Prefix, true
	}
	if addr, is := hostAddr(h.Name); is && addr.Zone() == "" {
		return netip.PrefixFrom(addr, addr.BitLen()), true
	}
	return netip.Prefix{}, false
}
