// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"errors"
	"fmt"
	"hash/maphash"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

// Facts is what is known of a request, or of a connection, when it must be
// admitted. Its strings may be views of a buffer: the engine copies what it
// keeps.
type Facts struct {
	Host   string         // lower case, without port or trailing dot; canonical address text where no name is known
	Dest   netip.AddrPort // where the connection goes: its port, and its address for CIDR matches
	Method string         // "" where the inside is not seen
	Path   string         // with its query; "" where the inside is not seen
	Site   string         // domain that was registered for Host; only needed where WantsSite
	Exit   string         // Identity of the exit, with port and session where these tell it
	// Proxied says that Exit is a forward proxy, and Lifetime after what time
	// another address takes its place; 0 for never.
	Proxied  bool
	Lifetime time.Duration
	// Session is what the user name at the exit told, "" if nothing.
	Session string
}

// Admission is what asks to be admitted.
type Admission uint8

// Admissions, and the units of the budgets that they spend.
const (
	ForRequest        Admission = iota // an HTTP request: unit requests
	ForHTTPConnection                  // an HTTP connection that just opened: unit connections
	ForOpaque                          // a connection whose inside is not seen: both units
)

// Index is where the keys of lanes and the numbers of their cells outlive the
// daemon, beside the ledger. The engine calls Put and Delete one at a time.
type Index interface {
	Range(func(LaneKey, uint32) bool) error
	Put(LaneKey, uint32) error
	Delete(LaneKey) error
}

// Engine finds the lanes of requests. It owns the lanes, and through them the
// cells; policies come and go by Swap.
//
// Safe for concurrent use. Select takes no lock and allocates nothing where
// the lanes exist.
type Engine struct {
	state atomic.Pointer[state]
	table []atomic.Pointer[Lane] // chains by hash; read without lock, written under mu
	seed  maphash.Seed

	endpoints atomic.Pointer[map[netip.AddrPort]*Exit]
	addresses atomic.Pointer[map[string]netip.Addr] // of the proxies' hosts
	switches  atomic.Pointer[map[switchKey]*Switch]

	tallies atomic.Pointer[map[labels]*Tally]
	meters  atomic.Pointer[map[string]*ExitMeter]
	exits   exitLabels

	dropped atomic.Uint64
	evicted atomic.Uint64

	mu       sync.Mutex
	cells    []ledger.Cell // cells[0] is never used
	index    Index         // nil: the lanes die with the daemon
	plane    PlaneLanes    // nil: there is no kernel plane
	fleet    Fleeted       // nil: no lane is shared
	host     string        // this one's name in the fleet
	owners   map[string]*owner
	lanes    map[*Lane]struct{} // with a cell of the ledger, in the table
	overflow map[*owner]*Lane   // for what found no cell
	retired  []*Lane            // of budgets that are gone, still in use
	free     []uint32
	spares   map[uint32]struct{} // cells given to the kernel plane, of no lane yet
	rescan   ledger.Time         // no eviction is tried before
}

// state is what Swap replaces.
type state struct {
	policy  *Policy
	matcher *matcher
	rules   map[*owner]*rule
	pools   map[netip.AddrPort]*Picker
}

// owner stands for a budget's name through all policies.
type owner struct{ number uint64 }

// labels are the key of a Tally.
type labels struct{ destination, exit string }

// maxTallies bounds tallies and meters. Their keys are names of the policy file
// and the first of the sessions that clients name, so only a history of many
// reloads, or sessions that go to many destinations, come near.
const maxTallies = 4096

// errNoCells says that the ledger has no room for a lane.
var errNoCells = errors.New("the ledger needs at least two cells")

// NewEngine takes over the cells, whose lanes index names: lanes of budgets
// that p still has go on with their state, the other cells are free. A probe
// that was under way when the last daemon ended is forgotten, and so is its
// queue.
//
// cells must stay mapped as long as the engine is used; index may be nil.
func NewEngine(p *Policy, cells []ledger.Cell, index Index, now ledger.Time) (*Engine, error) {
	if len(cells) < 2 {
		return nil, fmt.Errorf("make engine with %d cells: %w", len(cells), errNoCells)
	}
	size := 16
	for size < len(cells) {
		size *= 2
	}
	e := &Engine{
		table:    make([]atomic.Pointer[Lane], size),
		seed:     maphash.MakeSeed(),
		cells:    cells,
		index:    index,
		owners:   map[string]*owner{},
		lanes:    map[*Lane]struct{}{},
		overflow: map[*owner]*Lane{},
		spares:   map[uint32]struct{}{},
	}
	e.endpoints.Store(&map[netip.AddrPort]*Exit{})
	e.addresses.Store(&map[string]netip.Addr{})
	e.switches.Store(&map[switchKey]*Switch{})
	e.tallies.Store(&map[labels]*Tally{})
	e.meters.Store(&map[string]*ExitMeter{})
	e.state.Store(e.compile(p))
	taken, err := e.recover(now)
	if err != nil {
		return nil, err
	}
	for n := len(cells) - 1; n > 0; n-- {
		if !taken[n] {
			e.free = append(e.free, uint32(n))
		}
	}
	return e, nil
}

// recover makes the lanes that index names and reports which cells they have.
func (e *Engine) recover(now ledger.Time) (taken []bool, err error) {
	taken = make([]bool, len(e.cells))
	if e.index == nil {
		return taken, nil
	}
	s := e.state.Load()
	var gone []LaneKey
	err = e.index.Range(func(key LaneKey, n uint32) bool {
		var r *rule
		if o := e.owners[key.Budget]; o != nil {
			r = s.rules[o]
		}
		if r == nil || n == 0 || int(n) >= len(e.cells) || taken[n] || !r.shapes(key) {
			gone = append(gone, key)
			return true
		}
		taken[n] = true
		cell := &e.cells[n]
		cell.EndProbe()
		cell.SetQueued(false)
		for _, w := range []*atomic.Uint64{&cell.OpenUntil, &cell.TAT} { // words that make no sense must not hold a lane forever
			if w.Load() > uint64(now.Add(maxCooldown)) {
				w.Store(uint64(now))
			}
		}
		e.insert(e.newLane(r, key, r.labelOf(s.matcher, key), n, cell, now))
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("read the index of lanes: %w", err)
	}
	for _, key := range gone {
		if err := e.index.Delete(key); err != nil {
			e.dropped.Add(1)
		}
	}
	return taken, nil
}

// shapes reports whether the key tells apart what the rule tells apart.
func (r *rule) shapes(k LaneKey) bool {
	for _, p := range [...]struct {
		value string
		bit   Per
	}{{k.Destination, PerDestination | PerSite}, {k.Exit, PerExit}, {k.Session, PerSession}, {k.Path, PerPath}} {
		if (p.value != "") != (r.Per&p.bit != 0) {
			return false
		}
	}
	return true
}

// labelOf is the label for a lane of which only the key is known.
func (r *rule) labelOf(m *matcher, k LaneKey) string {
	if k.Destination == "" {
		return r.label
	}
	for _, c := range m.find(k.Destination) {
		if c.rule != r {
			continue
		}
		if c.named {
			return c.label
		}
		addr, _ := hostAddr(k.Destination)
		if label, ok := c.where(k.Destination, netip.AddrPortFrom(addr, c.anyPort())); ok {
			return label
		}
	}
	return r.label
}

// compile makes the state for a policy. Under e.mu, or before e is shared.
func (e *Engine) compile(p *Policy) *state {
	m, rules := compile(p, func(name string) *owner {
		o := e.owners[name]
		if o == nil {
			o = &owner{number: uint64(len(e.owners) + 1)}
			e.owners[name] = o
		}
		return o
	})
	s := &state{policy: p, matcher: m, rules: map[*owner]*rule{}, pools: pickers(p.Pools)}
	for _, r := range rules {
		s.rules[r.owner] = r
	}
	return s
}

// Join has with make the calls by which lanes are shared with other hosts, at
// which this one has a name that no other has, nor it itself after a reboot.
func (e *Engine) Join(with Fleeted, host string, now ledger.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.fleet, e.host = with, host
	for l := range e.lanes {
		l.share(with, host, now)
	}
}

// Policy is the policy in force.
func (e *Engine) Policy() *Policy { return e.state.Load().policy }

// Swap puts p in force at now. Lanes of budgets whose name remains keep their
// state, with what waits in their cells rescaled to the new limits; the others
// end, and what they hold is free to go. The gate wants to know: see
// gate.Reconfigured.
func (e *Engine) Swap(p *Policy, now ledger.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.compile(p)
	e.state.Store(s)
	for l := range e.lanes {
		if r := s.rules[l.owner]; r != nil {
			l.configure(r.Budget, now)
			l.share(e.fleet, e.host, now)
			continue
		}
		e.remove(l)
		l.learned.Store(nil)
		l.Cell.Configure(0, 0, now)
		l.Cell.ClearCooldown(now)
		e.retired = append(e.retired, l)
	}
	for o, l := range e.overflow {
		if r := s.rules[o]; r != nil {
			l.configure(r.Budget, now)
			continue
		}
		l.retired.Store(true)
		delete(e.overflow, o)
	}
	e.rescan = 0
	e.sweep()
}

// Select appends the lanes of a request to dst, the most specific first: by
// path, session, destination and exit, destination, exit, nothing. Of the
// budgets that match, the first of each such shape wins, in file order; a
// budget in mode Shadow wins like one that is enforced, one that is Off is not
// there. Lanes are made on demand.
//
// Where the ledger is full of lanes in use, requests of a budget share one
// lane that overflows it: they wait for each other, but are not let go
// uncounted.
func (e *Engine) Select(dst []*Lane, f *Facts, a Admission, now ledger.Time) []*Lane {
	var rules [MaxShapes]*rule
	var labels [MaxShapes]string
	n, addressed := e.match(f, a, &rules, &labels)
	for i, r := range rules[:n] {
		dst = append(dst, e.lane(r, labels[i], f, addressed, now))
	}
	return dst
}

// match finds the rules of Select, in its order, with the label of each, and
// returns their number. addressed has the bits of those whose lanes are of the
// address that the connection goes to, whatever its host.
func (e *Engine) match(f *Facts, a Admission, rules *[MaxShapes]*rule, labels *[MaxShapes]string) (n int, addressed uint32) {
	found, seen := e.state.Load().matcher.find(f.Host), uint32(0)
	for i := range found {
		c := &found[i]
		if seen&c.bit != 0 || n == MaxShapes || !c.admits(f, a) {
			continue
		}
		label, ok := c.where(f.Host, f.Dest)
		if !ok {
			continue
		}
		seen |= c.bit
		at := n
		for ; at > 0 && rules[at-1].Per < c.Per; at-- { // the bits of Per are in that order
			rules[at], labels[at] = rules[at-1], labels[at-1]
		}
		rules[at], labels[at] = c.rule, label
		n++
		if c.kernel && c.addressed(f, found) {
			addressed |= c.bit
		}
	}
	return n, addressed
}

// Wants reports whether a request for host at dest could fall under any
// budget of the file, whatever its method, path and unit. A connection that nothing wants
// need not be looked into.
func (e *Engine) Wants(host string, dest netip.AddrPort) bool {
	found := e.state.Load().matcher.find(host)
	for i := range found {
		if _, ok := found[i].where(host, dest); ok && found[i].Budget != exitTrouble {
			return true
		}
	}
	return false
}

// WantsSite reports whether some budget tells sites apart, so that Facts need
// Site.
func (e *Engine) WantsSite() bool { return e.state.Load().matcher.sites }

// key makes the key of r's lane for f; its strings are views of f's.
func (r *rule) key(key *LaneKey, f *Facts) {
	key.Budget = r.Name
	switch {
	case r.Per&PerDestination != 0:
		key.Destination = f.Host
	case r.Per&PerSite != 0:
		if key.Destination = f.Site; key.Destination == "" {
			key.Destination = f.Host
		}
	}
	if r.Per&PerExit != 0 {
		key.Exit = f.Exit
		if key.Exit == "" {
			key.Exit = DirectExit
		}
	}
	if r.Per&PerSession != 0 {
		if key.Session = f.Session; key.Session == "" {
			key.Session = noValue
		}
	}
	if r.Per&PerPath != 0 {
		key.Path = pathKey(f.Path)
	}
}

// lane finds or makes the lane of r for f.
func (e *Engine) lane(r *rule, label string, f *Facts, addressed uint32, now ledger.Time) *Lane {
	if r.Per&(PerDestination|PerSite) == 0 {
		label = r.label
	}
	var key LaneKey
	l := e.look(r, &key, f, addressed)
	if l == nil {
		l = e.create(r, key, label, now)
	}
	if f.Lifetime > 0 && key.Exit != "" {
		l.outlive(f.Lifetime, now)
	}
	if used := l.used.Load(); used+uint64(time.Millisecond) < uint64(now) { // spares the cache line
		l.used.Store(uint64(now))
	}
	return l
}

// look makes the key of r's lane for f, and finds the lane; nil if there is
// none. addressed is that of match.
func (e *Engine) look(r *rule, key *LaneKey, f *Facts, addressed uint32) *Lane {
	r.key(key, f)
	if addressed&r.bit != 0 {
		return e.findAddressed(r.owner, key, f.Dest.Addr())
	}
	return e.find(r.owner, key, e.hash(r.owner, e.hashOf(key.Destination), key))
}

// findAddressed is find for a key whose destination is an address. The text of
// that, which takes memory, becomes the key's only where there is no lane.
func (e *Engine) findAddressed(o *owner, k *LaneKey, addr netip.Addr) *Lane {
	var buf [maxAddrText]byte
	text := addr.Unmap().AppendTo(buf[:0])
	hash := e.hash(o, maphash.Bytes(e.seed, text), k)
	for l := e.chain(hash); l != nil; l = l.next.Load() {
		if l.hash == hash && l.owner == o && l.Key.Destination == string(text) && l.Key.Exit == k.Exit &&
			l.Key.Session == k.Session && l.Key.Path == k.Path {
			return l
		}
	}
	k.Destination = string(text)
	return nil
}

// maxAddrText is the longest text of an address without a zone.
const maxAddrText = len("ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255")

// noValue is the part of a key for requests that have no such property: they
// share a lane.
const noValue = "-"

// maxPathKey bounds what a client can make the engine keep of one path.
const maxPathKey = 256

// pathKey is a path as a key of lanes: without its query, and cut where it is
// longer than any endpoint's name. A view of p.
func pathKey(p string) string {
	if i := strings.IndexByte(p, '?'); i >= 0 {
		p = p[:i]
	}
	if p == "" {
		return noValue
	}
	return p[:min(len(p), maxPathKey)]
}

// hashOf is the hash of a destination.
func (e *Engine) hashOf(destination string) uint64 {
	if destination == "" {
		return 0
	}
	return maphash.String(e.seed, destination)
}

// hash is that of a key, whose destination has a hash already.
func (e *Engine) hash(o *owner, destination uint64, k *LaneKey) uint64 {
	h := o.number*0x9e3779b97f4a7c15 ^ destination
	if k.Exit != "" {
		h = h<<17 | h>>47
		h ^= maphash.String(e.seed, k.Exit)
	}
	if k.Session != "" {
		h = h<<17 | h>>47
		h ^= maphash.String(e.seed, k.Session)
	}
	if k.Path != "" {
		h = h<<17 | h>>47
		h ^= maphash.String(e.seed, k.Path)
	}
	return h ^ h>>32
}

func (e *Engine) find(o *owner, k *LaneKey, hash uint64) *Lane {
	for l := e.chain(hash); l != nil; l = l.next.Load() {
		if l.hash == hash && l.owner == o && l.Key.Destination == k.Destination && l.Key.Exit == k.Exit &&
			l.Key.Session == k.Session && l.Key.Path == k.Path {
			return l
		}
	}
	return nil
}

// chain is where the lanes with a hash stand.
func (e *Engine) chain(hash uint64) *Lane { return e.table[hash&uint64(len(e.table)-1)].Load() }

// create makes the lane that find did not find.
func (e *Engine) create(r *rule, key LaneKey, label string, now ledger.Time) *Lane {
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.find(r.owner, &key, e.hash(r.owner, e.hashOf(key.Destination), &key)); l != nil {
		return l
	}
	r = e.state.Load().rules[r.owner]
	if r == nil { // a Swap went by: the budget is gone, and nothing holds this request
		l := e.newLane(&rule{Budget: &Budget{Name: key.Budget, Mode: Off}, owner: &owner{}}, key, label, 0, new(ledger.Cell), now)
		l.retired.Store(true)
		return l
	}
	key = key.clone()
	n, ok := e.allocate(now)
	if !ok {
		return e.overflowing(r, now)
	}
	cell := &e.cells[n]
	cell.Reset()
	l := e.newLane(r, key, label, n, cell, now)
	if have := e.claim(key, n); have != n {
		e.free = append(e.free, n)
		l = e.newLane(r, key, label, have, &e.cells[have], now)
	}
	e.keep(l)
	return l
}

// keep puts a new lane where requests, and the next daemon, find it.
func (e *Engine) keep(l *Lane) {
	e.insert(l)
	if e.index != nil {
		if err := e.index.Put(l.Key, l.Number); err != nil {
			e.dropped.Add(1) // the lane works; it will not outlive the daemon
		}
	}
}

// overflowing is the lane that requests of r share when no cell is left.
func (e *Engine) overflowing(r *rule, now ledger.Time) *Lane {
	e.dropped.Add(1)
	l := e.overflow[r.owner]
	if l == nil {
		l = e.newLane(r, LaneKey{Budget: r.Name, Destination: OtherLabel, Exit: OtherLabel}, OtherLabel, 0, new(ledger.Cell), now)
		e.overflow[r.owner] = l
	}
	return l
}

func (e *Engine) newLane(r *rule, key LaneKey, label string, n uint32, cell *ledger.Cell, now ledger.Time) *Lane {
	exit, meter := AllExits, (*ExitMeter)(nil)
	if key.Exit != "" {
		exit, meter = key.Exit, e.Meter(key.Exit)
	}
	l := &Lane{Key: key, Number: n, Cell: cell, Label: label, Meter: meter, id: key.String(), owner: r.owner, hash: e.hash(r.owner, e.hashOf(key.Destination), &key)}
	l.configure(r.Budget, now)
	l.share(e.fleet, e.host, now)
	l.used.Store(uint64(now))
	l.Tally = e.Tally(label, exit)
	return l
}

func (e *Engine) insert(l *Lane) {
	head := &e.table[l.hash&uint64(len(e.table)-1)]
	l.next.Store(head.Load())
	head.Store(l)
	e.lanes[l] = struct{}{}
}

// remove takes a lane out of the table, so that no new request finds it.
func (e *Engine) remove(l *Lane) {
	l.retired.Store(true)
	l.shared.Store(nil)
	l.limits.Store(nil) // its window writes into the cell, which another lane may get
	delete(e.lanes, l)
	if e.index != nil {
		if err := e.index.Delete(l.Key); err != nil {
			e.dropped.Add(1)
		}
	}
	e.release(l.Key)
	link := &e.table[l.hash&uint64(len(e.table)-1)]
	for at := link.Load(); at != nil; at = link.Load() {
		if at == l {
			link.Store(l.next.Load()) // l keeps its next: who stands on it walks on
			return
		}
		link = &at.next
	}
}

// allocate finds a free cell, if need be by ending idle lanes.
func (e *Engine) allocate(now ledger.Time) (n uint32, ok bool) {
	if len(e.free) == 0 {
		e.sweep()
	}
	if len(e.free) == 0 && now >= e.rescan {
		e.evict(now)
	}
	if len(e.free) == 0 {
		return 0, false
	}
	n = e.free[len(e.free)-1]
	e.free = e.free[:len(e.free)-1]
	return n, true
}

// minIdle keeps lanes that a request may just have been given by Select.
const minIdle = 10 * time.Second

// Bounds of one eviction: how many lanes are looked at, which takes some 100
// ns each while requests for new lanes wait, and how many of them may end.
const (
	evictLook = 8192
	evictMost = 512
)

// evict ends idle lanes, of those that it looks at the ones unused the
// longest. With more lanes than it looks at that is a sample, as the order of
// a map is none. If nothing was idle among them it looks at all, but not again
// within a second.
func (e *Engine) evict(now ledger.Time) {
	type unused struct {
		*Lane
		since ledger.Time
	}
	var idle []unused
	looked := 0
	for l := range e.lanes {
		if looked++; looked > evictLook && len(idle) > 0 {
			break
		}
		if since := l.LastUsed(); now.Sub(since) >= minIdle && l.idle(now) {
			idle = append(idle, unused{l, since})
		}
	}
	if len(idle) == 0 {
		e.rescan = now.Add(time.Second)
		return
	}
	slices.SortFunc(idle, func(a, b unused) int { return cmp.Compare(a.since, b.since) })
	for _, l := range idle[:min(len(idle), max(1, min(looked/16, evictMost)))] {
		e.remove(l.Lane)
		e.free = append(e.free, l.Number)
		e.evicted.Add(1)
	}
}

// sweep frees the cells of ended lanes that nobody uses any more.
func (e *Engine) sweep() {
	e.retired = slices.DeleteFunc(e.retired, func(l *Lane) bool {
		if l.Waiting.Load() > 0 || l.InFlight.Load() > 0 {
			return false
		}
		e.free = append(e.free, l.Number)
		return true
	})
}

// Lanes are the lanes that exist, in the order of their ids.
func (e *Engine) Lanes() []*Lane {
	e.mu.Lock()
	out := make([]*Lane, 0, len(e.lanes)+len(e.overflow))
	for l := range e.lanes {
		out = append(out, l)
	}
	for _, l := range e.overflow {
		out = append(out, l)
	}
	e.mu.Unlock()
	slices.SortFunc(out, func(a, b *Lane) int { return strings.Compare(a.id, b.id) })
	return out
}

// Find returns the lane with an id as LaneKey.String writes it, or nil.
func (e *Engine) Find(id string) *Lane {
	for _, l := range e.Lanes() {
		if l.id == id {
			return l
		}
	}
	return nil
}

// Dropped is the number of keys for which there was no room: requests that
// fell into a lane of overflow, lanes that the index or the kernel plane does
// not know as they are, and sessions of exits that are counted together.
func (e *Engine) Dropped() uint64 { return e.dropped.Load() + e.exits.dropped.Load() }

// Evicted is the number of idle lanes that made room for others.
func (e *Engine) Evicted() uint64 { return e.evicted.Load() }

// Tally is the counter for a destination label and an exit, made on demand.
// The destination must come from the policy file, or be OtherLabel. The exit is
// an exit's identity, or AllExits; of its sessions and ports those beyond a
// bound share a tally, see exitLabels. Does not allocate where the tally exists.
func (e *Engine) Tally(destination, exit string) *Tally {
	k := labels{destination, e.exits.of(e.seed, exit)}
	if have := *e.tallies.Load(); len(have) >= maxTallies/2 && have[k] == nil {
		k.exit = e.exits.rest(e.seed, k.exit) // the other half is for names of the policy file
	}
	return fetch(&e.tallies, k, labels{OtherLabel, OtherLabel}, func(k labels) (labels, *Tally) {
		k = labels{strings.Clone(k.destination), strings.Clone(k.exit)}
		return k, newTally(k.destination, k.exit)
	})
}

// OtherTally is the counter for what no budget names.
func (e *Engine) OtherTally(exit string) *Tally { return e.Tally(OtherLabel, exit) }

// Meter is the meter of an exit, made on demand. Sessions and ports beyond a
// bound share one, as they do a Tally. Does not allocate where it exists.
func (e *Engine) Meter(exit string) *ExitMeter {
	return fetch(&e.meters, e.exits.of(e.seed, exit), OtherLabel, func(exit string) (string, *ExitMeter) {
		exit = strings.Clone(exit)
		return exit, &ExitMeter{Exit: exit}
	})
}

// Tallies are all tallies, in no order. They are never taken away.
func (e *Engine) Tallies() []*Tally { return values(&e.tallies) }

// Meters are the meters of all exits, in no order.
func (e *Engine) Meters() []*ExitMeter { return values(&e.meters) }
