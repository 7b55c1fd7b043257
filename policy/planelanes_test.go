// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

// plane is the kernel plane as far as the engine knows it: a map of lanes, and
// a queue of spare cells.
type plane struct {
	mu     sync.Mutex
	cells  []ledger.Cell
	lanes  map[LaneKey]uint32
	spares []uint32
	broken error
	blind  bool // knows no lane: its budgets are not those of the kernel
	deaf   bool // forgets none
}

func newPlane(cells []ledger.Cell) *plane { return &plane{cells: cells, lanes: map[LaneKey]uint32{}} }

func (p *plane) Claim(key LaneKey, n uint32) (uint32, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.broken != nil || p.blind {
		return n, p.broken
	}
	if have, ok := p.lanes[key]; ok {
		return have, nil
	}
	p.lanes[key] = n
	return n, nil
}

func (p *plane) Release(key LaneKey) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.deaf {
		delete(p.lanes, key)
	}
	return p.broken
}

// connect is a connection that the programs let go if its lane has room: see
// bpf/plane.h. No cell is returned where there is none.
func (p *plane) connect(key LaneKey, interval time.Duration, now ledger.Time) (n uint32, granted bool) {
	p.mu.Lock()
	n, ok := p.lanes[key]
	if !ok {
		if len(p.spares) == 0 {
			p.mu.Unlock()
			return 0, false
		}
		n, p.spares = p.spares[0], p.spares[1:]
		p.cells[n].Interval.Store(uint64(interval))
		p.cells[n].BaseInterval.Store(uint64(interval))
		p.lanes[key] = n
	}
	p.mu.Unlock()
	_, granted = p.cells[n].Acquire(now, 1)
	return n, granted
}

func (p *plane) at(key LaneKey) uint32 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lanes[key]
}

// stock gives the programs spare cells.
func (p *plane) stock(t testing.TB, e *Engine, n int) {
	t.Helper()
	for range n {
		cell, ok := e.Spare(t0)
		if !ok {
			t.Fatal("no cell is free")
		}
		p.spares = append(p.spares, cell)
	}
}

// mustBook fails if the engine has lost a cell, or has one twice.
func mustBook(t testing.TB, e *Engine) {
	t.Helper()
	seen := map[uint32]string{}
	book := func(n uint32, what string) {
		if other, twice := seen[n]; twice || n == 0 {
			t.Errorf("cell %d is %s and %s", n, what, other)
		}
		seen[n] = what
	}
	for _, n := range e.free {
		book(n, "free")
	}
	for n := range e.spares {
		book(n, "spare")
	}
	for l := range e.lanes {
		book(l.Number, l.ID())
		if l.Cell != &e.cells[l.Number] {
			t.Errorf("%s: cell is not number %d", l.ID(), l.Number)
		}
	}
	for _, l := range e.retired {
		book(l.Number, "of "+l.ID()+", that ended")
	}
	if got, want := len(seen), len(e.cells)-1; got != want {
		t.Errorf("%d cells are known, want %d", got, want)
	}
}

const ssh = "[2001:db8::7]:22"

// sshKey is the lane of a budget "ssh" for each destination and exit.
var sshKey = LaneKey{Budget: "ssh", Destination: "2001:db8::7", Exit: DirectExit}

func sshFacts() *Facts { return &Facts{Host: "2001:db8::7", Dest: netip.MustParseAddrPort(ssh)} }

// planeWorld is an engine with a kernel plane, and a budget of connections.
func planeWorld(t testing.TB, cells int, budgets ...*Budget) (*Engine, *plane, *index) {
	t.Helper()
	x, mem := newIndex(), make([]ledger.Cell, cells)
	e, err := NewEngine(&Policy{Budgets: append([]*Budget{ports(conns("ssh", perBoth), 22)}, budgets...)}, mem, x, t0)
	if err != nil {
		t.Fatal(err)
	}
	p := newPlane(mem)
	e.SetPlane(p)
	return e, p, x
}

// The proxy's lanes are the kernel's, from the first.
func TestClaim(t *testing.T) {
	e, p, _ := planeWorld(t, 8)
	l := e.Select(nil, sshFacts(), ForOpaque, t0)[0]
	if p.at(sshKey) != l.Number {
		t.Fatalf("the kernel has cell %d for %s, want %d", p.at(sshKey), l.ID(), l.Number)
	}
	if n, granted := p.connect(sshKey, sec, t0); n != l.Number || !granted {
		t.Fatalf("the kernel takes of cell %d (%v), want %d", n, granted, l.Number)
	}
	if _, wait, ok := l.Take(t0); ok || wait != sec {
		t.Errorf("the proxy: granted %v, wait %v, want to wait 1s for the connection in the kernel", ok, wait)
	}
	mustBook(t, e)
}

// The kernel was first: its cell is the lane's, with what was taken of it.
func TestClaimFindsKernelLane(t *testing.T) {
	e, p, x := planeWorld(t, 8)
	p.stock(t, e, 2)
	n, granted := p.connect(sshKey, sec, t0)
	if n == 0 || !granted {
		t.Fatalf("cell %d, granted %v", n, granted)
	}
	l := e.Select(nil, sshFacts(), ForOpaque, t0)[0]
	if l.Number != n || l.Cell != &e.cells[n] || x.m[sshKey] != n {
		t.Fatalf("the lane has cell %d, the index %d, want the kernel's %d", l.Number, x.m[sshKey], n)
	}
	if _, wait, ok := l.Take(t0); ok || wait != sec {
		t.Errorf("granted %v, wait %v: what the kernel took is forgotten", ok, wait)
	}
	if got, want := l.Cell.Interval.Load(), uint64(sec); got != want {
		t.Errorf("interval = %d, want %d", got, want)
	}
	mustBook(t, e)
	// The news of it comes late.
	if again, err := e.Adopt(sshKey, n, t0); err != nil || again != l {
		t.Errorf("Adopt = %v, %v, want the lane", again, err)
	}
	mustBook(t, e)
}

func TestAdopt(t *testing.T) {
	e, p, x := planeWorld(t, 8)
	p.stock(t, e, 3)
	n, _ := p.connect(sshKey, 2*sec, t0) // of a policy of just before
	l, err := e.Adopt(sshKey, n, t0)
	if err != nil {
		t.Fatal(err)
	}
	if l.Number != n || l.Label != "ssh" || l.Tally == nil || l.Meter == nil || x.m[sshKey] != n {
		t.Errorf("lane %+v of cell %d, index %d: not a lane like others", l, n, x.m[sshKey])
	}
	if got := l.Cell.Interval.Load(); got != uint64(sec) {
		t.Errorf("interval = %v, want the budget's", time.Duration(got))
	}
	if _, wait, ok := l.Take(t0); ok || wait != sec { // 2 s, in proportion
		t.Errorf("granted %v, wait %v: want what the kernel took", ok, wait)
	}
	if got := e.Select(nil, sshFacts(), ForOpaque, t0)[0]; got != l {
		t.Errorf("Select finds %v, want the lane that was adopted", got)
	}
	if got := e.Find(l.ID()); got != l {
		t.Errorf("Find = %v", got)
	}
	mustBook(t, e)

	// Where the limits agree nothing is touched.
	key := sshKey
	key.Destination = "192.0.2.1"
	n, _ = p.connect(key, sec, t0)
	before := [...]uint64{e.cells[n].TAT.Load(), e.cells[n].Interval.Load(), e.cells[n].Granted.Load()}
	if _, err := e.Adopt(key, n, t0.Add(500*ms)); err != nil {
		t.Fatal(err)
	}
	if after := [...]uint64{e.cells[n].TAT.Load(), e.cells[n].Interval.Load(), e.cells[n].Granted.Load()}; after != before {
		t.Errorf("the cell was %v, is %v", before, after)
	}
}

func TestAdoptErrors(t *testing.T) {
	off := with(ports(conns("off", 0), 2222), func(b *Budget) { b.Mode = Off })
	e, p, x := planeWorld(t, 8, off)
	p.stock(t, e, 2)
	lane := e.Select(nil, sshFacts(), ForOpaque, t0)[0]
	n := p.spares[0]
	for _, tt := range []struct {
		name string
		key  LaneKey
		n    uint32
		want error
	}{
		{"no such budget", LaneKey{Budget: "gone", Exit: DirectExit}, n, errNoBudget},
		{"a budget that is off", LaneKey{Budget: "off"}, n, errNoBudget},
		{"another shape", LaneKey{Budget: "ssh", Destination: "2001:db8::7"}, n, errShape},
		{"a session", LaneKey{Budget: "ssh", Destination: "x", Exit: "y", Session: "z"}, n, errShape},
		{"a lane with another cell", sshKey, n, ErrOtherCell},
		{"a cell that is free", LaneKey{Budget: "ssh", Destination: "x", Exit: "y"}, e.free[0], errNoSpare},
		{"a cell of a lane", LaneKey{Budget: "ssh", Destination: "x", Exit: "y"}, lane.Number, errNoSpare},
		{"cell 0", LaneKey{Budget: "ssh", Destination: "x", Exit: "y"}, 0, errNoSpare},
		{"no cell at all", LaneKey{Budget: "ssh", Destination: "x", Exit: "y"}, 800, errNoSpare},
	} {
		l, err := e.Adopt(tt.key, tt.n, t0)
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
		if want := tt.want == ErrOtherCell; (l == lane) != want || l != nil != want {
			t.Errorf("%s: lane %v", tt.name, l)
		}
	}
	if len(x.m) != 1 || len(e.lanes) != 1 {
		t.Errorf("%d lanes, %d in the index, want the one", len(e.lanes), len(x.m))
	}
	mustBook(t, e)
}

func TestSpare(t *testing.T) {
	e, _, _ := planeWorld(t, 4)
	a, ok := e.Spare(t0)
	if !ok {
		t.Fatal("no cell")
	}
	if c := &e.cells[a]; c.TAT.Load() != 0 || c.Interval.Load() != 0 {
		t.Error("the cell is not blank")
	}
	b, _ := e.Spare(t0)
	if l := e.Select(nil, sshFacts(), ForOpaque, t0)[0]; l.Number == 0 || l.Number == a || l.Number == b {
		t.Errorf("the lane has cell %d, spare are %d and %d", l.Number, a, b)
	}
	if n, ok := e.Spare(t0); ok {
		t.Errorf("cell %d, though the lane was just used", n)
	}
	mustBook(t, e)
	e.Unspare(a)
	e.Unspare(a) // once is enough
	e.Unspare(800)
	mustBook(t, e)
	e.cells[a].TAT.Store(5)
	if n, ok := e.Spare(t0); !ok || n != a || e.cells[n].TAT.Load() != 0 {
		t.Errorf("cell %d, %v, want a blank %d again", n, ok, a)
	}
	// With the ledger full an idle lane makes room, as it does for others.
	if n, ok := e.Spare(t0.Add(time.Minute)); !ok || e.Evicted() != 1 {
		t.Errorf("cell %d, %v, %d lanes evicted", n, ok, e.Evicted())
	}
	mustBook(t, e)
}

// A daemon that starts again claims what it knows. What the kernel has beside
// that is the last daemon's.
func TestRestartClaims(t *testing.T) {
	e, _, x := planeWorld(t, 8)
	l := e.Select(nil, sshFacts(), ForOpaque, t0)[0]
	l.Cell.Close(t0.Add(time.Hour))
	l.Cell.SetQueued(true)
	l.Cell.Flags.Or(ledger.FlagHalf)
	for _, stale := range []uint32{0, 5, l.Number} {
		p := newPlane(e.cells)
		if stale != 0 {
			p.lanes[sshKey] = stale
		}
		e2, err := NewEngine(e.Policy(), e.cells, x, t0)
		if err != nil {
			t.Fatal(err)
		}
		e2.SetPlane(p)
		if got := p.at(sshKey); got != l.Number {
			t.Errorf("the kernel has cell %d, want %d", got, l.Number)
		}
		if got := l.Cell.Flags.Load(); got != ledger.FlagHalf {
			t.Errorf("flags = %b: who queued in the last daemon is gone, and that a probe is needed is not", got)
		}
		if n, granted := p.connect(sshKey, sec, t0); n != l.Number || granted {
			t.Errorf("cell %d, granted %v, want the cooldown of the last daemon", n, granted)
		}
		if e2.Dropped() != 0 {
			t.Errorf("%d dropped", e2.Dropped())
		}
		mustBook(t, e2)
	}
}

// A reload ends lanes, and brings budgets that the kernel did not know.
func TestSwapReleases(t *testing.T) {
	e, p, _ := planeWorld(t, 8)
	l := e.Select(nil, sshFacts(), ForOpaque, t0)[0]
	e.Swap(&Policy{Budgets: []*Budget{ports(conns("other", perBoth), 22)}}, t0)
	if got := p.at(sshKey); got != 0 {
		t.Errorf("the kernel has cell %d for a lane that ended", got)
	}
	mustBook(t, e)
	if got := e.Select(nil, sshFacts(), ForOpaque, t0)[0]; p.at(got.Key) != got.Number || got.Key.Budget != "other" {
		t.Errorf("the kernel has cell %d for %s, want %d", p.at(got.Key), got.ID(), got.Number)
	}
	if l.Enforced() {
		t.Error("the lane that ended is enforced")
	}
}

func TestReclaim(t *testing.T) {
	e, p, _ := planeWorld(t, 8)
	p.blind = true
	l := e.Select(nil, sshFacts(), ForOpaque, t0)[0]
	l.Cell.Close(t0.Add(time.Hour))
	p.blind = false
	p.stock(t, e, 2)
	n, _ := p.connect(sshKey, sec, t0) // it knows of no lane, and makes one
	if n == l.Number {
		t.Fatal("it does know of the lane")
	}
	e.Reclaim()
	if got := p.at(sshKey); got != l.Number {
		t.Errorf("the kernel has cell %d, want %d: requests hold it", got, l.Number)
	}
	if _, granted := p.connect(sshKey, sec, t0); granted {
		t.Error("the cooldown does not hold the kernel")
	}
	mustBook(t, e)
	if _, spare := e.spares[n]; spare {
		t.Errorf("cell %d is spare, but nobody has it", n)
	}
	if e.Dropped() != 0 {
		t.Errorf("%d dropped", e.Dropped())
	}
}

// A kernel plane that fails costs what it shares, not what the proxy has.
func TestPlaneFails(t *testing.T) {
	e, p, _ := planeWorld(t, 8)
	p.broken = errors.New("the map is full")
	l := e.Select(nil, sshFacts(), ForOpaque, t0)[0]
	if l.Number == 0 || e.Select(nil, sshFacts(), ForOpaque, t0)[0] != l || e.Dropped() != 1 {
		t.Errorf("lane %+v, %d dropped, want one like others, and it counted", l, e.Dropped())
	}
	e.Swap(&Policy{}, t0)
	if e.Dropped() != 2 {
		t.Errorf("%d dropped, want that it was not released counted", e.Dropped())
	}
	mustBook(t, e)

	// What stays in the map of a lane that ended is nobody's, above all not
	// another lane's.
	e, p, _ = planeWorld(t, 8)
	l = e.Select(nil, sshFacts(), ForOpaque, t0)[0]
	p.deaf = true
	e.Swap(&Policy{Budgets: []*Budget{ports(conns("new", perBoth), 22)}}, t0)
	other := e.Select(nil, sshFacts(), ForOpaque, t0)[0] // with the cell that came free
	e.Swap(&Policy{Budgets: []*Budget{ports(conns("ssh", perBoth), 22), ports(conns("new", perBoth, "2001:db8::/32"), 80)}}, t0)
	again := e.Select(nil, sshFacts(), ForOpaque, t0)[0]
	if again.Key != l.Key || again.Number == p.at(sshKey) || other.Number != p.at(sshKey) || e.Dropped() == 0 {
		t.Errorf("cell %d for the lane, %d for the other, the kernel has %d, %d dropped", again.Number, other.Number, p.at(sshKey), e.Dropped())
	}
	mustBook(t, e)
	p.deaf = false
	e.Reclaim()
	if got := p.at(sshKey); got != again.Number {
		t.Errorf("the kernel has cell %d, want %d", got, again.Number)
	}
}

// A lane that only the kernel uses is used.
func TestKeepsKernelLanes(t *testing.T) {
	e, p, _ := planeWorld(t, 2)
	l := e.Select(nil, sshFacts(), ForOpaque, t0)[0]
	last := t0.Add(time.Minute)
	if n, granted := p.connect(sshKey, sec, last); n != l.Number || !granted {
		t.Fatalf("cell %d, granted %v", n, granted)
	}
	for _, tt := range []struct {
		after time.Duration
		ok    bool
	}{{0, false}, {sec, false}, {minIdle, false}, {minIdle + sec, true}} {
		if _, ok := e.Spare(last.Add(tt.after)); ok != tt.ok {
			t.Errorf("%v after a connection in the kernel: the lane makes room = %v, want %v", tt.after, ok, tt.ok)
		}
	}
	if got := p.at(sshKey); got != 0 {
		t.Errorf("the kernel has cell %d for a lane that ended", got)
	}
	mustBook(t, e)

	// So is one that was adopted, and in which a connection waits for its turn.
	e, p, _ = planeWorld(t, 2)
	p.stock(t, e, 1)
	n, _ := p.connect(sshKey, sec, t0)
	if _, err := e.Adopt(sshKey, n, t0); err != nil {
		t.Fatal(err)
	}
	e.cells[n].Owe(t0, 30)
	if _, ok := e.Spare(t0.Add(25 * sec)); ok {
		t.Error("the lane makes room, though units of it are reserved")
	}
	mustBook(t, e)
}

// The kernel, the proxy, the daemon's keeper and reloads, all at once: every
// cell is somebody's, once, and in the end both planes take of the same.
func TestPlaneConcurrent(t *testing.T) {
	policies := [2]*Policy{
		{Budgets: []*Budget{ports(conns("ssh", perBoth), 22), ports(conns("all", 0), 22)}},
		{Budgets: []*Budget{ports(conns("ssh", perBoth), 22), ports(conns("each", PerDestination), 22)}},
	}
	const cells = 64
	mem, x := make([]ledger.Cell, cells), newIndex()
	e, err := NewEngine(policies[0], mem, x, t0)
	if err != nil {
		t.Fatal(err)
	}
	p := newPlane(mem)
	e.SetPlane(p)
	var clock atomic.Uint64 // ms
	now := func() ledger.Time { return t0.Add(time.Duration(clock.Add(1)) * ms) }
	addr := func(i int) string { return fmt.Sprint("192.0.2.", i%40) }

	var work, keeper sync.WaitGroup
	for g := range 2 {
		random := rand.New(rand.NewPCG(uint64(g), 1))
		work.Go(func() { // the kernel
			for range 3000 {
				p.connect(LaneKey{Budget: "ssh", Destination: addr(random.IntN(40)), Exit: DirectExit}, sec, now())
			}
		})
		other := rand.New(rand.NewPCG(uint64(g), 2))
		work.Go(func() { // the proxy
			var dst []*Lane
			for i := range 3000 {
				dst = e.Select(dst[:0], &Facts{Host: addr(other.IntN(40)), Dest: netip.MustParseAddrPort(addr(other.IntN(40)) + ":22")}, ForOpaque, now())
				for _, l := range dst {
					if l.Budget().Mode == Off {
						continue
					}
					if _, _, ok := l.Take(now()); ok {
						l.Release()
					}
				}
				if g == 0 && i%200 == 0 {
					e.Swap(policies[i/200%2], now())
					e.Reclaim()
				}
			}
		})
	}
	stop := make(chan struct{})
	keep := func() {
		p.mu.Lock()
		lanes, short := maps.Clone(p.lanes), 8-len(p.spares)
		p.mu.Unlock()
		for key, n := range lanes {
			l, err := e.Adopt(key, n, now())
			if err == nil {
				continue
			}
			p.mu.Lock()
			if p.lanes[key] == n {
				delete(p.lanes, key)
				if errors.Is(err, ErrOtherCell) {
					p.lanes[key] = l.Number
				}
			}
			p.mu.Unlock()
			e.Unspare(n)
		}
		for range short {
			if n, ok := e.Spare(now()); ok {
				p.mu.Lock()
				p.spares = append(p.spares, n)
				p.mu.Unlock()
			}
		}
	}
	keeper.Go(func() {
		for {
			keep()
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	work.Wait()
	close(stop)
	keeper.Wait()
	keep()
	e.Reclaim()
	mustBook(t, e)
	shared := 0
	for l := range e.lanes {
		if p.at(l.Key) != l.Number {
			t.Errorf("%s has cell %d, in the kernel %d", l.ID(), l.Number, p.at(l.Key))
		}
		shared++
	}
	if len(p.lanes) != shared || shared < 10 {
		t.Errorf("%d lanes, %d of the kernel", shared, len(p.lanes))
	}
	for n := range e.spares {
		if !slices.Contains(p.spares, n) {
			t.Errorf("cell %d is spare, but the kernel has it not", n)
		}
	}
}

func BenchmarkSelectAddressed(b *testing.B) {
	e := mustEngine(b, 1024, nil, ports(conns("ssh", perBoth), 22), ports(conns("all", PerExit), 22))
	for _, dest := range []string{"192.0.2.7:22", ssh} {
		f := &Facts{Host: "a.example", Dest: netip.MustParseAddrPort(dest)}
		b.Run(f.Dest.Addr().String(), func(b *testing.B) {
			dst := make([]*Lane, 0, MaxLanes)
			b.ReportAllocs()
			for b.Loop() {
				dst = e.Select(dst[:0], f, ForOpaque, t0)
			}
		})
	}
}
