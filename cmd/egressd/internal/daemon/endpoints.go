// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/egressd/egressd/loader"
	"github.com/egressd/egressd/policy"
)

const (
	resolveEvery   = time.Minute
	resolveTimeout = 5 * time.Second
	// rememberFor is how long an address stays one of a proxy after its name
	// last had it: names of gateways go round, and clients keep what they got.
	rememberFor = time.Hour
)

// endpoints knows the addresses of the proxies that the policy names. The zero
// value with lookup and log set is ready. Safe for concurrent use.
type endpoints struct {
	lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	log    *slog.Logger

	mu   sync.Mutex
	seen map[string]map[netip.Addr]time.Time // host → address → when it last had it
}

// resolve asks for the addresses of all proxies of exits that have a name, side
// by side, and returns when all have been told or resolveTimeout is over. What
// cannot be resolved keeps the addresses that it had.
func (e *endpoints) resolve(ctx context.Context, exits []policy.Exit, now time.Time) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	var wg sync.WaitGroup
	limit := make(chan struct{}, 16) // questions at once
	for _, host := range namesOf(exits) {
		wg.Go(func() {
			limit <- struct{}{}
			defer func() { <-limit }()
			addrs, err := e.lookup(ctx, host)
			if err != nil {
				if known := e.of(host); known == 0 {
					e.log.Warn("proxy of an exit has no address yet: what goes to it is not told from other traffic", "host", host, "err", err)
				} else {
					e.log.Warn("proxy of an exit keeps the addresses it had", "host", host, "addresses", known, "err", err)
				}
				return
			}
			e.saw(host, addrs, now)
		})
	}
	wg.Wait()
}

// namesOf are the hosts of proxies that are no addresses, each once.
func namesOf(exits []policy.Exit) (names []string) {
	for i := range exits {
		p := exits[i].Proxy
		if p == nil || slices.Contains(names, p.Host) {
			continue
		}
		if _, err := netip.ParseAddr(p.Host); err != nil {
			names = append(names, p.Host)
		}
	}
	return names
}

// saw notes that host has these addresses.
func (e *endpoints) saw(host string, addrs []netip.Addr, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.seen == nil {
		e.seen = make(map[string]map[netip.Addr]time.Time)
	}
	if e.seen[host] == nil {
		e.seen[host] = make(map[netip.Addr]time.Time)
	}
	for _, a := range addrs {
		if a = a.Unmap().WithZone(""); a.IsUnspecified() || loader.TokenPrefix.Contains(a) {
			e.log.Warn("proxy of an exit has an address that none can have", "host", host, "address", a)
			continue
		}
		e.seen[host][a] = now
	}
}

// of is the number of addresses that host is known to have.
func (e *endpoints) of(host string) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.seen[host])
}

// forget drops addresses that names have not had for long, as long as one that
// is younger remains, and names that no exit has.
func (e *endpoints) forget(exits []policy.Exit, now time.Time) {
	names := namesOf(exits)
	e.mu.Lock()
	defer e.mu.Unlock()
	for host, addrs := range e.seen {
		if !slices.Contains(names, host) {
			delete(e.seen, host)
			continue
		}
		var last time.Time
		for _, at := range addrs {
			if at.After(last) {
				last = at
			}
		}
		for a, at := range addrs {
			if at.Before(last) && now.Sub(at) > rememberFor {
				delete(addrs, a)
			}
		}
	}
}

// addresses are those that a proxy's host has or had lately, in order.
func (e *endpoints) addresses(host string) (all []netip.Addr) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a.Unmap()}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for a := range e.seen[host] {
		all = append(all, a)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

// newest are the addresses that names have now, one for each.
func (e *endpoints) newest() map[string]netip.Addr {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make(map[string]netip.Addr, len(e.seen))
	for host, addrs := range e.seen {
		var last time.Time
		for a, at := range addrs {
			if have := out[host]; at.After(last) || at.Equal(last) && a.Less(have) {
				out[host], last = a, at
			}
		}
	}
	return out
}

// known are the endpoints of exits, for the engine and for the programs. Of
// several exits at one endpoint the first in file order counts.
func (e *endpoints) known(exits []policy.Exit) (map[netip.AddrPort]*policy.Exit, []policy.Endpoint) {
	byAddr := make(map[netip.AddrPort]*policy.Exit)
	var list []policy.Endpoint
	for i := range exits {
		exit := &exits[i]
		if exit.Proxy == nil {
			continue
		}
		for _, addr := range e.addresses(exit.Proxy.Host) {
			for port := int(exit.Proxy.First); port <= int(exit.Proxy.Last); port++ {
				at := netip.AddrPortFrom(addr, uint16(port))
				if byAddr[at] == nil {
					byAddr[at] = exit
					list = append(list, policy.Endpoint{Addr: at, Exit: exit.Identity()})
				}
			}
		}
	}
	return byAddr, list
}

// redirect tells engine and programs where the proxies of p are, and the
// programs all else that is to be redirected. The engine is first: what the
// programs begin to redirect finds its exit.
func (d *Daemon) redirect(p *policy.Policy) (policy.Redirects, error) {
	byAddr, list := d.endpoints.known(p.Exits)
	d.engine.SetEndpoints(byAddr)
	d.engine.SetAddresses(d.endpoints.newest())
	redirects := p.Redirects()
	redirects.Endpoints = append(redirects.Endpoints, list...)
	if err := d.kernel.Apply(redirects); err != nil {
		return redirects, err
	}
	d.kernel.SetQUIC(p.QUIC)
	return redirects, nil
}

// refreshEndpoints follows proxies whose names moved.
func (d *Daemon) refreshEndpoints(ctx context.Context) {
	d.endpoints.resolve(ctx, d.engine.Policy().Exits, time.Now())
	if ctx.Err() != nil {
		return
	}
	d.applying.Lock()
	defer d.applying.Unlock()
	p := d.engine.Policy()
	d.endpoints.forget(p.Exits, time.Now())
	if _, err := d.redirect(p); err != nil {
		d.log.Warn("proxies of exits are redirected where they were before", "err", err)
	}
}
