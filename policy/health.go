// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"sync/atomic"

	"github.com/egressd/egressd/policy/ledger"
)

// never is the instant at which nothing happens any more.
const never = ^ledger.Time(0)

// Pool is the picker of the pool that clients reach at an address, or nil.
// Each policy has its own.
func (e *Engine) Pool(addr netip.AddrPort) *Picker { return e.state.Load().pools[addr] }

func pickers(pools []*Pool) map[netip.AddrPort]*Picker {
	m := make(map[netip.AddrPort]*Picker, len(pools))
	for _, p := range pools {
		m[p.Listen] = NewPicker(p)
	}
	return m
}

// Choose chooses the member of a pool for a request at now, and completes the
// facts by it: Exit, Session, Lifetime and Proxied. The rest must be there,
// with the method and the path where they are known. A member whose proxy has
// no address now counts as in trouble. Does not allocate, but for a
// destination's first request.
func (e *Engine) Choose(k *Picker, key PickKey, f *Facts, now ledger.Time) Choice {
	c := k.Pick(key, now, func(m *Member) Health {
		if _, ok := e.ProxyAddr(m); !ok {
			return Health{Closed: true, Until: never, Trouble: true}
		}
		m.asFacts(f)
		return e.Health(f, now)
	})
	c.Member.asFacts(f)
	if c.From != nil {
		e.countSwitch(k.Pool.Name, c.From.Exit.Identity(), c.Member.Exit.Identity())
	}
	return c
}

// Health is whether the lanes that tell the exit of f apart would let a
// request with these facts go at now, on a new connection or an old one. Lanes
// that all exits share say nothing of one of them, and those that only measure
// hold nobody. Makes no lane; does not allocate.
func (e *Engine) Health(f *Facts, now ledger.Time) (h Health) {
	var rules [MaxShapes]*rule
	var labels [MaxShapes]string
	n, addressed := e.match(f, ForOpaque, &rules, &labels) // which spends what each kind of request may
	for _, r := range rules[:n] {
		if r.Per&PerExit == 0 && (r.Per&PerSession == 0 || f.Session == "") {
			continue
		}
		var key LaneKey
		l := e.look(r, &key, f, addressed)
		if l == nil || !l.Enforced() || l.renewed(f.Lifetime, now) || !l.Blocked(now) {
			continue
		}
		h.Closed = true
		// Those who wait there go first.
		h.Until = max(h.Until, now.Add(l.After(now, uint64(max(0, l.Waiting.Load())))))
		h.Trouble = h.Trouble || l.Key.Destination == ""
	}
	return h
}

// SetAddresses says which address each name of a host has, of those that are
// proxies of the policy's exits. The map must not be changed afterwards.
func (e *Engine) SetAddresses(m map[string]netip.Addr) { e.addresses.Store(&m) }

// ProxyAddr is where the proxy of a member listens now; false if the name of
// its host has no address.
func (e *Engine) ProxyAddr(m *Member) (netip.AddrPort, bool) {
	addr := m.host
	if !addr.IsValid() {
		addr = (*e.addresses.Load())[m.Exit.Proxy.Host]
	}
	return netip.AddrPortFrom(addr, m.Port), addr.IsValid()
}

// Switch counts requests that left a pool by another exit than the one whose
// turn it was, as that was closed. From and To are identities of exits of the
// policy file, without port and session.
type Switch struct {
	Pool, From, To string

	n atomic.Uint64
}

// Count is the number of requests.
func (s *Switch) Count() uint64 { return s.n.Load() }

// switchKey is the key of a Switch.
type switchKey struct{ pool, from, to string }

func (e *Engine) countSwitch(pool, from, to string) {
	fetch(&e.switches, switchKey{pool, from, to}, switchKey{OtherLabel, OtherLabel, OtherLabel}, func(k switchKey) (switchKey, *Switch) {
		return k, &Switch{Pool: k.pool, From: k.from, To: k.to}
	}).n.Add(1)
}

// Switches are the counts of all switches, in no order. They are never taken
// away.
func (e *Engine) Switches() []*Switch { return values(&e.switches) }
