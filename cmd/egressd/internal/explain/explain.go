// SPDX-License-Identifier: Apache-2.0

// Package explain says what the policy makes of one request: which budgets
// match it and why the others do not, the lane of each, and when a request
// that came now would go.
//
// Whether a budget matches is never decided here. The engine itself is asked,
// with engines made for the occasion on memory of their own, so that no lane
// appears in the ledger because somebody was curious. The forecast is the one
// by which the gate judges who may queue.
package explain

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/config"
	"github.com/egressd/egressd/policy/ledger"
)

// World is what an explanation is drawn from.
type World struct {
	Policy *policy.Policy
	// Lookup finds the addresses of a name. It is asked only where a budget
	// goes by addresses, and the name decides nothing.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	// Live is the daemon; nil where only the policy is known.
	Live *Live
}

// Live is a running daemon, as far as an explanation needs it.
type Live struct {
	Now   ledger.Time
	Lanes []*policy.Lane
	Show  func(*policy.Lane) admin.Lane
	Flows func() []admin.Flow
}

// Explain answers q. Errors are mistakes in the question.
func Explain(ctx context.Context, w World, q admin.Question) (admin.Explanation, error) {
	t, err := parse(q)
	if err != nil {
		return admin.Explanation{}, err
	}
	f := policy.Facts{Host: t.host, Site: site(t.host), Method: t.method, Path: t.path}
	exit, err := through(w.Policy, q.Exit)
	if err != nil {
		return admin.Explanation{}, err
	}
	f.Exit, f.Session, f.Lifetime, f.Proxied = exit.name, exit.session, exit.lifetime, exit.proxied
	out := admin.Explanation{
		URL: t.text, Method: t.method, Host: t.host, Port: t.port, Path: t.path, Exit: f.Exit,
		Budgets: []admin.Matched{},
	}
	addr, note := w.address(ctx, t.host)
	if note != "" {
		out.Notes = append(out.Notes, note)
	}
	if _, err := netip.ParseAddr(t.host); err != nil && addr.IsValid() {
		out.Address = addr.String()
	}
	f.Dest = netip.AddrPortFrom(addr, t.port)
	m, err := newMatcher(w.Policy, &f, t.tls)
	if err != nil {
		return admin.Explanation{}, err
	}
	out.Inside = m.inside()
	out.Led, out.LedWhy = led(w.Policy, exit, f.Dest)
	allows := config.Describe(w.Policy)
	for i, b := range w.Policy.Budgets {
		matched, err := m.budget(b)
		if err != nil {
			return admin.Explanation{}, err
		}
		// A line begins with the budget's name, which stands there already.
		matched.Allows = strings.TrimPrefix(allows[i], b.Name+": ")
		out.Budgets = append(out.Budgets, matched)
	}
	if lane := m.lanes[policy.ExitBudget]; lane != nil && !named(w.Policy, policy.ExitBudget) {
		out.Budgets = append(out.Budgets, admin.Matched{
			Budget: policy.ExitBudget, Matches: true, Lane: lane.ID(),
			Why:    "it goes through a proxy, whose own trouble closes this lane",
			Allows: "any number, as long as the exit works",
		})
	}
	out.Notes = append(out.Notes, exit.notes...)
	if m.reads() {
		out.Notes = append(out.Notes, "as long as its TLS can be read; a connection that is blind is paced by flights, and budgets that name a path or a method do not count it")
	}
	if w.Live != nil {
		out.Next = w.Live.forecast(&out)
	}
	return out, nil
}

// named reports whether the file has a budget of that name.
func named(p *policy.Policy, name string) bool {
	for _, b := range p.Budgets {
		if b.Name == name {
			return true
		}
	}
	return false
}

// address is where a connection to host would go, as far as that decides
// anything.
func (w World) address(ctx context.Context, host string) (addr netip.Addr, note string) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Unmap(), ""
	}
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1}), "" // RFC 6761 section 6.3
	}
	if len(w.Policy.Redirects().Prefixes) == 0 || w.Lookup == nil {
		return netip.Addr{}, ""
	}
	found, err := w.Lookup(ctx, host)
	switch {
	case err != nil:
		return netip.Addr{}, fmt.Sprintf("%s has no address now (%v), so budgets that go by addresses were not tried", host, err)
	case len(found) == 0:
		return netip.Addr{}, host + " has no address now, so budgets that go by addresses were not tried"
	case len(found) > 1:
		note = fmt.Sprintf("%s has %d addresses, of which %v was tried: budgets that go by addresses may see another", host, len(found), found[0].Unmap())
	}
	return found[0].Unmap(), note
}
