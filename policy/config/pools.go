// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/config/strict"
)

// tokenPrefix is where the loader's programs redirect to.
var tokenPrefix = netip.MustParsePrefix("127.101.0.0/16")

// maxWeight bounds how much more often than another a member is chosen.
const maxWeight = 1000

// pools reads the pools of a policy whose exits and metrics have been read.
func (v value) pools(p *policy.Policy) []*policy.Pool {
	var pools []*policy.Pool
	names := map[string]bool{}
	listens := map[netip.AddrPort]string{}
	v.list("[{name: residential, listen: 127.0.0.77:3128, exits: [E-017, E-018]}]", "", func(v value) {
		pool, listen, ok := v.pool(p)
		if !ok {
			return
		}
		taken := occupied(p, pool.Listen)
		switch other, twice := listens[pool.Listen]; {
		case names[pool.Name]:
			v.Reject("the name %s is taken by a pool above; choose another", pool.Name)
		case twice:
			listen.Reject("%s is where the pool %s is; choose another address or port", pool.Listen, other)
		case taken != "":
			listen.Reject("%s is where %s; choose another address or port", pool.Listen, taken)
		default:
			names[pool.Name] = true
			listens[pool.Listen] = pool.Name
			pools = append(pools, pool)
		}
	})
	return pools
}

// pool reads one pool. listen is where its address is.
func (v value) pool(p *policy.Policy) (pool *policy.Pool, listen *value, ok bool) {
	pool = &policy.Pool{}
	var exits *value
	before := len(v.r.Errs)
	ok = v.mapping(
		field{"name", func(v value) { pool.Name = v.poolName() }},
		field{"listen", func(v value) { listen = &v; pool.Listen = v.poolListen() }},
		field{"exits", func(v value) { exits = &v; pool.Members = v.members(p.Exits) }},
		field{"sticky", func(v value) { pool.Sticky = v.sticky() }},
	)
	if !ok || len(v.r.Errs) > before {
		return nil, nil, false
	}
	switch {
	case pool.Name == "":
		v.Reject("name is missing; give the pool one, as in name: residential")
	case listen == nil:
		v.Reject("listen is missing; give the pool a loopback address, as in listen: 127.0.0.77:3128")
	case exits == nil:
		v.Reject("exits is missing; name the exits of the pool, as in exits: [E-017, E-018]")
	default:
		return pool, listen, true
	}
	return nil, nil, false
}

// poolName reads the name of a pool, under which the connections to it are
// counted beside those of exits.
func (v value) poolName() string {
	s, ok := v.name()
	if ok && (s == policy.DirectExit || v.r.exits.names[s]) {
		v.Reject("%s is the name of an exit; choose another", s)
	}
	return s
}

// poolListen reads the address of a pool.
func (v value) poolListen() netip.AddrPort {
	s, ok := v.text("127.0.0.77:3128")
	if !ok {
		return netip.AddrPort{}
	}
	a, err := netip.ParseAddrPort(s)
	a = netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
	switch {
	case err != nil || a.Addr().Zone() != "":
		v.Reject("%q is no address and port; write a loopback address, as in 127.0.0.77:3128", strict.Clip(s))
	case !a.Addr().IsLoopback():
		v.Reject("%s is no loopback address, and nothing may listen for other hosts; write one, as in 127.0.0.77:3128", a)
	case a.Port() == 0:
		v.Reject("%s has no port; write it as 127.0.0.77:3128", a)
	case tokenPrefix.Contains(a.Addr()):
		v.Reject("%s is within %s, which egressd redirects to; write another, as in 127.0.0.77:3128", a, tokenPrefix)
	default:
		return a
	}
	return netip.AddrPort{}
}

// members reads the exits of a pool, each of the policy's, with its weight.
func (v value) members(exits []policy.Exit) []policy.Member {
	var members []policy.Member
	seen := map[string]bool{}
	v.list("[E-017, {exit: E-018, weight: 2}]", "name at least one exit", func(v value) {
		name, weight, at, ok := v.member()
		if !ok || !once(at, seen, name) {
			return
		}
		var e *policy.Exit
		for i := range exits {
			if exits[i].Name == name {
				e = &exits[i]
			}
		}
		switch {
		case e == nil && (v.r.exits.names[name] || v.r.exits.unnamed):
			// It has been complained of where it stands.
		case e == nil:
			at.Reject("no exit is called %s; write the name of one under exits", strict.Clip(name))
		case e.Proxy == nil:
			at.Reject("%s is no proxy; only exits with proxy: HOST:PORT can be of a pool", name)
		default:
			for port := int(e.Proxy.First); port <= int(e.Proxy.Last); port++ {
				members = append(members, policy.NewMember(e, uint16(port), weight))
			}
		}
	})
	if n := len(members); n > policy.MaxMembers {
		v.Reject("has %d exits, each port of a range counted as one; at most %d are allowed: make several pools", n, policy.MaxMembers)
	}
	return members
}

// member reads an exit's name, or a mapping of name and weight. at is where the
// name is.
func (v value) member() (name string, weight int, at value, ok bool) {
	if v.IsScalar() {
		name, ok = v.name()
		return name, 1, v, ok
	}
	at, weight = v, 1
	before := len(v.r.Errs)
	v.mapping(
		field{"exit", func(v value) { at = v; name, _ = v.name() }},
		field{"weight", func(v value) { weight, _ = v.integer(1, maxWeight) }},
	)
	switch {
	case len(v.r.Errs) > before:
	case name == "":
		v.Reject("exit is missing; name one, as in {exit: E-017, weight: %d}", weight)
	default:
		return name, weight, at, true
	}
	return "", 0, at, false
}

// stickyWords are the values of sticky, by policy.Sticky.
var stickyWords = []string{"none", "client", "session", "destination"}

func (v value) sticky() policy.Sticky {
	s, _ := v.word(stickyWords...)
	for i, word := range stickyWords {
		if s == word {
			return policy.Sticky(i)
		}
	}
	return policy.StickyNone
}

// occupied says who has an address already; "" if nobody of the policy.
func occupied(p *policy.Policy, a netip.AddrPort) string {
	for i := range p.Exits {
		if proxy := p.Exits[i].Proxy; proxy != nil && proxy.First <= a.Port() && a.Port() <= proxy.Last && at(proxy.Host, a.Addr()) {
			return "the proxy of the exit " + p.Exits[i].Name + " listens"
		}
	}
	host, port, err := net.SplitHostPort(p.Metrics.Listen)
	if err == nil && port == strconv.Itoa(int(a.Port())) && at(host, a.Addr()) {
		return "the metrics are"
	}
	return ""
}

// at reports whether a host of the policy is, by what it says, a loopback
// address.
func at(host string, a netip.Addr) bool {
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return a == netip.AddrFrom4([4]byte{127, 0, 0, 1}) || a == netip.IPv6Loopback()
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap() == a
}

// describePool is what a pool does: "residential: pool at 127.0.0.77:3128 of
// E-017, E-018 (weight 2): requests take turns".
func describePool(p *policy.Pool) string {
	var exits []string
	for i := 0; i < len(p.Members); {
		m := &p.Members[i]
		ports := 0
		for ; i < len(p.Members) && p.Members[i].Exit == m.Exit; i++ {
			ports++
		}
		var more []string
		if m.Exit.Proxy.PerPort {
			more = append(more, fmt.Sprintf("ports %d-%d", m.Exit.Proxy.First, m.Exit.Proxy.Last))
		}
		if m.Weight > 1 {
			more = append(more, fmt.Sprintf("weight %d", m.Weight))
		}
		exit := m.Exit.Name
		if len(more) > 0 {
			exit += " (" + strings.Join(more, ", ") + ")"
		}
		exits = append(exits, exit)
	}
	return fmt.Sprintf("%s: pool at %s of %s: %s", p.Name, p.Listen, strings.Join(exits, ", "), stickyText[p.Sticky])
}

// stickyText says what policy.Sticky does.
var stickyText = [...]string{
	policy.StickyNone:        "requests take turns",
	policy.StickyClient:      "each process keeps its exit",
	policy.StickySession:     "each user name keeps its exit",
	policy.StickyDestination: "each destination keeps its exit",
}
