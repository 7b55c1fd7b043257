// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"slices"
)

// forKernel reports whether the kernel plane can hold the budget by itself,
// where no other stands in its way: it counts connections, by a rate alone
// that is this host's own, and its lanes are told apart by what the kernel knows. The destinations of a
// budget for every host are names, unless the file names its ports: those of
// web servers have names by their protocol, others only addresses.
func (b *Budget) forKernel() bool {
	everyHost := len(b.Match.Hosts) == 0 || slices.ContainsFunc(b.Match.Hosts, func(h HostPattern) bool { return h.Any })
	switch {
	case b.Unit != Connections, b.Mode == Off, b.Auto, b.Fleet != nil, b.Interval() <= 0,
		b.Window.Limit > 0, b.Concurrency > 0, b.Cost.AtDispatch() != 1, b.Cost.Header != "",
		b.Match.Path != "", len(b.Match.Methods) > 0, b.Per&^perKernel != 0:
		return false
	}
	return !everyHost || b.Per&PerDestination == 0 || b.Match.PortsNamed
}

// perKernel is what the kernel plane can tell lanes apart by.
const perKernel = PerDestination | PerExit

// applied is a rule that a connection falls under, or may.
type applied struct {
	*rule
	byName bool // the name of the host matches
	sure   bool // it falls under it whatever its name
}

// planeSet is what rules, in file order, ask of the kernel plane for
// connections to a host whose name is known (named), or is not, be it that it
// has none. unsure says that the name matters.
//
// It finds what Engine.match finds for a connection whose inside is not seen,
// and leaves all that has a budget of requests to the proxy.
func planeSet(rules []applied, named, unsure bool) PlaneSet {
	set := PlaneSet{Proxy: unsure || wantsProxy(rules)}
	seen := uint32(0)
	for _, r := range rules {
		if seen&r.bit != 0 || r.Per&^perKernel != 0 || !r.admits(&Facts{}, ForOpaque) {
			continue
		}
		seen |= r.bit
		if !r.sure {
			continue // whether it holds or the next like it, a name would tell
		}
		at := slices.IndexFunc(set.Rules, func(other PlaneRule) bool { return other.Per < r.Per })
		if at < 0 {
			at = len(set.Rules)
		}
		interval := r.Interval()
		set.Rules = slices.Insert(set.Rules, at, PlaneRule{
			Budget:     r.Name,
			Per:        r.Per,
			ByName:     named && r.Per&PerDestination != 0 && (r.byName || set.Proxy), // see candidate.addressed
			Guard:      set.Proxy,
			Shadow:     r.Mode == Shadow,
			FailClosed: r.FailClosed,
			Drop:       r.OnFull == Drop,
			Fair:       r.Queue.FairBy != FairNone,
			Interval:   interval,
			Tolerance:  tolerance(r.Burst, interval),
			MaxWait:    r.Queue.MaxWait,
			MaxQueue:   r.Queue.Max,
		})
	}
	return set
}

// wantsProxy reports whether some of the rules needs the proxy: all do that
// the kernel plane cannot hold, but for those that count connections and come
// after one that is the kernel's and tells lanes apart alike.
func wantsProxy(rules []applied) bool {
	kernel := uint32(0)
	for _, r := range rules {
		if r.overtaxes(&kernel) {
			return true
		}
	}
	return false
}

// overtaxes reports whether the rule needs the proxy. kernel is the bits of
// those of the kernel before it.
func (r *rule) overtaxes(kernel *uint32) bool {
	if r.kernel {
		*kernel |= r.bit
		return false
	}
	return r.Unit != Connections || *kernel&r.bit == 0
}

// ranges are the rules of a policy by the address ranges that they name.
type ranges map[netip.Prefix][]*rule

func rangesOf(rules []*rule) ranges {
	x := ranges{}
	for _, r := range rules {
		for _, a := range r.addrs {
			p := a.prefix.Masked()
			x[p] = append(x[p], r)
		}
	}
	return x
}

// around are the rules that name p or a range around it.
func (x ranges) around(p netip.Prefix) map[*rule]bool {
	found := map[*rule]bool{}
	for bits := range p.Bits() + 1 {
		for _, r := range x[netip.PrefixFrom(p.Addr(), bits).Masked()] {
			found[r] = true
		}
	}
	return found
}

// unnamed is what rules, all of the policy in file order, ask of the kernel
// plane for addresses at a port while nothing is known of names. covering are
// those that name the addresses.
func (m *matcher) unnamed(rules []*rule, covering map[*rule]bool, port uint16) PlaneSet {
	var found []applied
	for _, r := range rules {
		if r.Mode == Off || r.Budget == exitTrouble || !r.at(port) {
			continue
		}
		if sure := r.any || covering[r]; sure || r.names {
			found = append(found, applied{rule: r, sure: sure})
		}
	}
	return planeSet(found, false, m.asks[port])
}

// kernelByName reports whether connections at a port may be the kernel plane's
// once names are known: a budget there is, and none for every host wants all of
// them for the proxy.
func kernelByName(rules []*rule, port uint16) bool {
	kernel := false
	for _, r := range rules {
		if r.Mode == Off || r.Budget == exitTrouble || !r.at(port) {
			continue
		}
		if r.any && r.Unit != Connections {
			return false
		}
		kernel = kernel || r.kernel
	}
	return kernel
}

// named is what connections to a host at dest ask of the kernel plane.
func (m *matcher) named(host string, dest netip.AddrPort) PlaneSet {
	var found []applied
	candidates := m.find(host)
	for i := range candidates {
		c := &candidates[i]
		if _, ok := c.where(host, dest); ok && c.Budget != exitTrouble {
			found = append(found, applied{rule: c.rule, byName: c.byName, sure: true})
		}
	}
	return planeSet(found, true, false)
}

// Target is what budgets ask of the kernel plane for connections to dest,
// whose address has these names: in lower case, without a trailing dot, as
// answers of DNS showed them. known is false where they say nothing that the
// sets of Policy.Redirects do not say: no budget names hosts at the port, no
// names are known, or no budget wants these.
//
// Names that do not all lead to the same lanes leave the choice to the proxy,
// which reads the one that a client means.
func (e *Engine) Target(dest netip.AddrPort, names []string) (t PlaneTarget, known bool) {
	m := e.state.Load().matcher
	dest = netip.AddrPortFrom(dest.Addr().Unmap(), dest.Port())
	if !m.asks[dest.Port()] {
		return PlaneTarget{}, false
	}
	for i, name := range names {
		next := PlaneTarget{Set: m.named(name, dest)}
		if slices.ContainsFunc(next.Set.Rules, func(r PlaneRule) bool { return r.ByName }) {
			next.Name = name
		}
		if _, is := hostAddr(name); i > 0 && !t.equal(&next) || is {
			return PlaneTarget{Set: PlaneSet{Proxy: true}}, true
		}
		t = next
	}
	return t, t.Set.Proxy || len(t.Set.Rules) > 0
}

func (t *PlaneTarget) equal(o *PlaneTarget) bool {
	return t.Name == o.Name && t.Set.Proxy == o.Set.Proxy && slices.Equal(t.Set.Rules, o.Set.Rules)
}

// PlaneNames reports whether some budget names hosts, so that the kernel plane
// gains by knowing what names addresses have.
func (e *Engine) PlaneNames() bool { return len(e.state.Load().matcher.asks) > 0 }

// addressed reports whether the lanes of c that tell destinations apart are, for
// f, those of addresses: where the kernel plane makes them, and knows no more
// than that. found are all candidates for the host of f.
func (c *candidate) addressed(f *Facts, found []candidate) bool {
	addr := f.Dest.Addr()
	if !c.kernel || c.Per&PerDestination == 0 || c.byName || f.Proxied || !addr.IsValid() {
		return false
	}
	if !c.any && !c.covers(addr) {
		return false
	}
	kernel := uint32(0)
	for i := range found {
		other := &found[i]
		if other.Budget == exitTrouble {
			continue
		}
		if _, ok := other.where(f.Host, f.Dest); ok && other.overtaxes(&kernel) {
			return false
		}
	}
	return true
}
