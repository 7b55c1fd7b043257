// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/policy"
)

// exit is the way out that a request is asked for.
type exit struct {
	name     string // full identity
	session  string
	lifetime time.Duration
	proxied  bool
	notes    []string
}

// through reads the identity of an exit as lists write it: its name, and after
// slashes its port and session where these tell it.
func through(p *policy.Policy, identity string) (exit, error) {
	var names []string
	for i := range p.Exits {
		if id := p.Exits[i].Identity(); !slices.Contains(names, id) {
			names = append(names, id)
		}
	}
	if identity == "" || identity == policy.DirectExit {
		x := exit{name: policy.DirectExit}
		if identity == "" && len(names) > 0 {
			x.notes = append(x.notes, "exit direct is taken for granted; --exit names another: "+strings.Join(names, ", "))
		}
		return x, nil
	}
	name, rest, told := strings.Cut(identity, "/")
	i := slices.IndexFunc(p.Exits, func(e policy.Exit) bool { return e.Identity() == name || e.Name == name })
	if i < 0 {
		known := policy.DirectExit
		if len(names) > 0 {
			known += ", " + strings.Join(names, ", ")
		}
		return exit{}, fmt.Errorf("no exit %s in the policy; there are: %s", name, known)
	}
	e := &p.Exits[i]
	if e.Proxy == nil {
		if told {
			return exit{}, fmt.Errorf("exit %s is no proxy, so it has no sessions", name)
		}
		return exit{name: e.Identity()}, nil
	}
	x := exit{name: e.Identity(), proxied: true, lifetime: e.Proxy.Lifetime}
	if e.Proxy.PerPort {
		port, session, _ := strings.Cut(rest, "/")
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n < uint64(e.Proxy.First) || n > uint64(e.Proxy.Last) {
			return exit{}, fmt.Errorf("each port of %s is an exit of its own: write it as in %s/%d", name, name, e.Proxy.First)
		}
		x.name += "/" + port
		rest = session
	}
	if rest != "" {
		if e.Proxy.Session == nil {
			return exit{}, fmt.Errorf("exit %s does not tell sessions apart", name)
		}
		x.name, x.session = x.name+"/"+rest, rest
	} else if e.Proxy.Session != nil {
		x.notes = append(x.notes, fmt.Sprintf("exit %s tells sessions apart; name one with --exit %s/SESSION", name, x.name))
	}
	return x, nil
}

// led reports whether a connection to dest, or to the exit's proxy, comes to
// egressd, and says why.
func led(p *policy.Policy, x exit, dest netip.AddrPort) (bool, string) {
	if x.proxied {
		return true, "connections to the proxy of an exit always are"
	}
	r := p.Redirects()
	for _, prefix := range r.Prefixes {
		if dest.Addr().IsValid() && prefix.Port == dest.Port() && prefix.Prefix.Contains(dest.Addr()) {
			return true, fmt.Sprintf("budgets name %s, port %d", prefix.Prefix, prefix.Port)
		}
	}
	local := dest.Addr().IsLoopback() || dest.Addr().IsLinkLocalUnicast()
	for _, port := range r.Ports {
		switch {
		case port.Port != dest.Port():
		case local && !port.Local:
			return false, "loopback and link-local addresses go untouched unless a budget names them, or its ports, in so many words"
		default:
			return true, fmt.Sprintf("budgets name port %d", port.Port)
		}
	}
	return false, fmt.Sprintf("no budget names port %d", dest.Port())
}
