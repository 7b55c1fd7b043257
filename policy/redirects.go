// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"slices"
	"strings"
)

// Redirects says which connections the proxy must look at. A name is only
// known after the first look, so a budget that matches names, or everything,
// asks for its ports at any address; one that only matches addresses asks for
// those alone. Loopback and link-local addresses count where the policy file
// names them, their port, or localhost. The endpoints are those of pools, each
// under the pool's name; those of proxies are added by who knows their
// addresses.
//
// The set of each entry is what holds for its connections while nothing is
// known of their names.
func (p *Policy) Redirects() Redirects {
	m, rules := compile(p, func(string) *owner { return nil })
	type prefix struct {
		text string
		port uint16
	}
	ports := map[uint16]PortRedirect{}
	prefixes := map[prefix]PrefixRedirect{}
	for _, b := range p.Budgets {
		if b.Mode == Off {
			continue
		}
		names, local := len(b.Match.Hosts) == 0, b.Match.PortsNamed
		for _, h := range b.Match.Hosts {
			addrs, is := h.addresses()
			if !is {
				names = true
				local = local || h.Name == "localhost" || strings.HasSuffix(h.Name, ".localhost") || h.Suffix == ".localhost"
				continue
			}
			for _, port := range b.Match.Ports {
				key := prefix{addrs.Masked().String(), port}
				r := prefixes[key]
				r.Prefix, r.Port, r.FailClosed = addrs.Masked(), port, r.FailClosed || b.FailClosed
				prefixes[key] = r
			}
		}
		if !names {
			continue
		}
		for _, port := range b.Match.Ports {
			r := ports[port]
			r.Port, r.Local, r.FailClosed = port, r.Local || local, r.FailClosed || b.FailClosed
			ports[port] = r
		}
	}
	out := Redirects{Exits: p.Exits}
	for _, pool := range p.Pools {
		out.Endpoints = append(out.Endpoints, Endpoint{Addr: pool.Listen, Exit: pool.Name})
	}
	for _, r := range ports {
		r.Ask, r.Set = m.asks[r.Port], m.unnamed(rules, nil, r.Port)
		r.Kernel = r.Ask && kernelByName(rules, r.Port)
		out.Ports = append(out.Ports, r)
	}
	ranges := rangesOf(rules)
	for _, r := range prefixes {
		r.Set = m.unnamed(rules, ranges.around(r.Prefix), r.Port)
		out.Prefixes = append(out.Prefixes, r)
	}
	slices.SortFunc(out.Ports, func(a, b PortRedirect) int { return cmp.Compare(a.Port, b.Port) })
	slices.SortFunc(out.Prefixes, func(a, b PrefixRedirect) int {
		return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()), cmp.Compare(a.Port, b.Port))
	})
	return out
}

// KernelPlane reports whether the kernel plane may hold connections by itself.
// If not, its programs have no use for cells, nor for devices that delay a SYN.
func (r *Redirects) KernelPlane() bool {
	own := func(s *PlaneSet) bool { return !s.Proxy && len(s.Rules) > 0 }
	return slices.ContainsFunc(r.Ports, func(p PortRedirect) bool { return p.Kernel || own(&p.Set) }) ||
		slices.ContainsFunc(r.Prefixes, func(p PrefixRedirect) bool { return own(&p.Set) })
}
