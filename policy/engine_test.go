// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

const ms, sec = time.Millisecond, time.Second

// t0 is some instant; stories count from it.
const t0 = ledger.Time(1000 * time.Second)

const perBoth = PerDestination | PerExit

// budget is a complete budget of one unit per interval; change it at will.
func budget(name string, per Per, interval time.Duration, hosts ...string) *Budget {
	b := &Budget{
		Name:     name,
		Match:    Match{Ports: []uint16{80, 443}},
		Per:      per,
		Rate:     Rate{Count: 1, Every: interval},
		Burst:    1,
		Queue:    Queue{Max: 1000, MaxWait: time.Hour},
		Cooldown: Cooldown{Default: sec, Max: 24 * time.Hour, Statuses: []int{429}},
		Recovery: Recovery{Factor: 0.5, Step: 1.1},
	}
	for _, h := range hosts {
		b.Match.Hosts = append(b.Match.Hosts, pattern(h))
	}
	return b
}

func pattern(h string) HostPattern {
	if h == "*" {
		return HostPattern{Any: true}
	}
	if s, ok := strings.CutPrefix(h, "*"); ok {
		return HostPattern{Suffix: s}
	}
	if p, err := netip.ParsePrefix(h); err == nil {
		return HostPattern{Prefix: p}
	}
	return HostPattern{Name: h}
}

func mustEngine(t testing.TB, cells int, index Index, budgets ...*Budget) *Engine {
	t.Helper()
	e, err := NewEngine(&Policy{Budgets: budgets}, make([]ledger.Cell, cells), index, t0)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// facts is a GET of / at an unremarkable address.
func facts(host string) *Facts {
	return &Facts{Host: host, Dest: netip.MustParseAddrPort("192.0.2.7:80"), Method: "GET", Path: "/", Exit: DirectExit}
}

func ids(lanes []*Lane) (out []string) {
	for _, l := range lanes {
		out = append(out, l.ID())
	}
	return out
}

func TestSelectMatches(t *testing.T) {
	api := budget("api", perBoth, sec, "a.example")
	api.Match.Path, api.Match.Methods = "/api/", []string{"GET", "HEAD"}
	ports := budget("ports", perBoth, sec, "a.example")
	ports.Match.Ports = []uint16{8080}
	off := budget("off", perBoth, sec)
	off.Mode = Off
	conns := budget("conns", perBoth, sec, "a.example")
	conns.Unit = Connections
	shadow := budget("shadow", perBoth, sec, "a.example")
	shadow.Mode = Shadow

	at := func(f *Facts, dest string) *Facts { f.Dest = netip.MustParseAddrPort(dest); return f }
	req := func(f *Facts, method, path string) *Facts { f.Method, f.Path = method, path; return f }
	for _, tt := range []struct {
		name    string
		budgets []*Budget
		f       *Facts
		a       Admission
		want    []string
	}{
		{name: "exact name", budgets: []*Budget{budget("b", perBoth, sec, "a.example")}, f: facts("a.example"), want: []string{"b/a.example/direct"}},
		{name: "another name", budgets: []*Budget{budget("b", perBoth, sec, "a.example")}, f: facts("b.example")},
		{name: "suffix", budgets: []*Budget{budget("b", perBoth, sec, "*.example")}, f: facts("x.y.example"), want: []string{"b/x.y.example/direct"}},
		{name: "suffix does not match itself", budgets: []*Budget{budget("b", perBoth, sec, "*.a.example")}, f: facts("a.example")},
		{name: "suffix needs the dot", budgets: []*Budget{budget("b", perBoth, sec, "*.a.example")}, f: facts("xa.example")},
		{name: "everything", budgets: []*Budget{budget("b", perBoth, sec)}, f: facts("x"), want: []string{"b/x/direct"}},
		{name: "a star", budgets: []*Budget{budget("b", perBoth, sec, "*")}, f: facts("x.y"), want: []string{"b/x.y/direct"}},
		{name: "no exit is the direct one", budgets: []*Budget{budget("b", perBoth, sec)}, f: &Facts{Host: "x", Dest: netip.MustParseAddrPort("192.0.2.7:80")}, want: []string{"b/x/direct"}},
		{name: "the first of a shape, by name", budgets: []*Budget{budget("b1", perBoth, sec, "*.example"), budget("b2", perBoth, sec, "a.example")}, f: facts("a.example"), want: []string{"b1/a.example/direct"}},
		{name: "the first of a shape, by suffix", budgets: []*Budget{budget("b1", perBoth, sec), budget("b2", perBoth, sec, "*.example")}, f: facts("a.example"), want: []string{"b1/a.example/direct"}},
		{name: "short suffix before long", budgets: []*Budget{budget("b1", perBoth, sec, "*.example"), budget("b2", perBoth, sec, "*.a.example")}, f: facts("x.a.example"), want: []string{"b1/x.a.example/direct"}},
		{name: "long suffix before short", budgets: []*Budget{budget("b2", perBoth, sec, "*.a.example"), budget("b1", perBoth, sec, "*.example")}, f: facts("x.a.example"), want: []string{"b2/x.a.example/direct"}},
		{name: "all shapes, most specific first", budgets: []*Budget{budget("none", 0, sec), budget("exit", PerExit, sec), budget("dest", PerDestination, sec), budget("both", perBoth, sec)}, f: facts("x"),
			want: []string{"both/x/direct", "dest/x/-", "exit/-/direct", "none/-/-"}},
		{name: "session and path before destination", budgets: []*Budget{budget("both", perBoth, sec), budget("session", PerSession, sec), budget("path", PerPath|PerDestination, sec)},
			f: &Facts{Host: "x", Dest: netip.MustParseAddrPort("192.0.2.7:80"), Path: "/v1/a?q=1", Session: "s1"}, want: []string{"path/x/-;path=/v1/a", "session/-/-;session=s1", "both/x/direct"}},
		{name: "neither session nor path", budgets: []*Budget{budget("b", PerSession|PerPath, sec)}, f: &Facts{Host: "x", Dest: netip.MustParseAddrPort("192.0.2.7:80")}, a: ForOpaque, want: []string{"b/-/-;session=-;path=-"}},
		{name: "a path that is long", budgets: []*Budget{budget("b", PerPath, sec)}, f: req(facts("x"), "GET", "/"+strings.Repeat("a", 300)), want: []string{"b/-/-;path=/" + strings.Repeat("a", 255)}},
		{name: "cidr by destination", budgets: []*Budget{budget("b", perBoth, sec, "192.0.2.0/24")}, f: facts("x"), want: []string{"b/x/direct"}},
		{name: "cidr elsewhere", budgets: []*Budget{budget("b", perBoth, sec, "198.51.100.0/24")}, f: facts("x")},
		{name: "cidr by host", budgets: []*Budget{budget("b", perBoth, sec, "198.51.100.0/24")}, f: facts("198.51.100.9"), want: []string{"b/198.51.100.9/direct"}},
		{name: "cidr by host, v6", budgets: []*Budget{budget("b", perBoth, sec, "2001:db8::/32")}, f: facts("2001:db8::1"), want: []string{"b/2001:db8::1/direct"}},
		{name: "address by destination", budgets: []*Budget{budget("b", perBoth, sec, "192.0.2.7")}, f: facts("x"), want: []string{"b/x/direct"}},
		{name: "address by host", budgets: []*Budget{budget("b", perBoth, sec, "192.0.2.8")}, f: facts("192.0.2.8"), want: []string{"b/192.0.2.8/direct"}},
		{name: "a later name after a cidr that does not match", budgets: []*Budget{budget("c", perBoth, sec, "198.51.100.0/24"), budget("n", perBoth, sec, "a.example")}, f: facts("a.example"), want: []string{"n/a.example/direct"}},
		{name: "a cidr before the name", budgets: []*Budget{budget("c", perBoth, sec, "192.0.2.0/24"), budget("n", perBoth, sec, "a.example")}, f: facts("a.example"), want: []string{"c/a.example/direct"}},
		{name: "another port", budgets: []*Budget{ports}, f: facts("a.example")},
		{name: "the port", budgets: []*Budget{ports}, f: at(facts("a.example"), "192.0.2.7:8080"), want: []string{"ports/a.example/direct"}},
		{name: "path and method", budgets: []*Budget{api}, f: req(facts("a.example"), "HEAD", "/api/x"), want: []string{"api/a.example/direct"}},
		{name: "another path", budgets: []*Budget{api}, f: req(facts("a.example"), "GET", "/apix")},
		{name: "another method", budgets: []*Budget{api}, f: req(facts("a.example"), "POST", "/api/x")},
		{name: "the next of the shape where the path is another", budgets: []*Budget{api, budget("rest", perBoth, sec)}, f: facts("a.example"), want: []string{"rest/a.example/direct"}},
		{name: "opaque has no path", budgets: []*Budget{api, budget("rest", perBoth, sec)}, f: &Facts{Host: "a.example", Dest: netip.MustParseAddrPort("192.0.2.7:443")}, a: ForOpaque, want: []string{"rest/a.example/direct"}},
		{name: "off is not there", budgets: []*Budget{off, budget("rest", perBoth, sec)}, f: facts("x"), want: []string{"rest/x/direct"}},
		{name: "shadow wins its shape", budgets: []*Budget{shadow, budget("rest", perBoth, sec)}, f: facts("a.example"), want: []string{"shadow/a.example/direct"}},
		{name: "a request spends no connections", budgets: []*Budget{conns}, f: facts("a.example")},
		{name: "a connection spends no requests", budgets: []*Budget{conns, budget("reqs", perBoth, sec)}, f: facts("a.example"), a: ForHTTPConnection, want: []string{"conns/a.example/direct"}},
		{name: "opaque spends both, the first of a shape", budgets: []*Budget{conns, budget("reqs", PerDestination, sec)}, f: facts("a.example"), a: ForOpaque, want: []string{"conns/a.example/direct", "reqs/a.example/-"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e := mustEngine(t, 64, nil, tt.budgets...)
			lanes := e.Select(nil, tt.f, tt.a, t0)
			if got := ids(lanes); !slices.Equal(got, tt.want) {
				t.Errorf("lanes = %q, want %q", got, tt.want)
			}
			for i, l := range e.Select(nil, tt.f, tt.a, t0) {
				if l != lanes[i] {
					t.Errorf("the second Select made another lane %s", l.ID())
				}
			}
			if len(tt.want) > 0 && !e.Wants(tt.f.Host, tt.f.Dest) {
				t.Errorf("Wants(%s, %v) = false, though a request there has lanes", tt.f.Host, tt.f.Dest)
			}
		})
	}
}

func TestWants(t *testing.T) {
	api := budget("api", perBoth, sec, "a.example", "198.51.100.0/24")
	api.Match.Path, api.Match.Methods = "/api/", []string{"POST"}
	off := budget("off", perBoth, sec)
	off.Mode = Off
	e := mustEngine(t, 8, nil, api, off)
	for _, tt := range []struct {
		host, dest string
		want       bool
	}{
		{"a.example", "192.0.2.1:80", true}, // some request there might match
		{"a.example", "192.0.2.1:8080", false},
		{"b.example", "192.0.2.1:80", false},
		{"b.example", "198.51.100.1:443", true},
		{"198.51.100.1", "192.0.2.1:443", true},
	} {
		if got := e.Wants(tt.host, netip.MustParseAddrPort(tt.dest)); got != tt.want {
			t.Errorf("Wants(%s, %s) = %v, want %v", tt.host, tt.dest, got, tt.want)
		}
	}
	if got := len(e.Lanes()); got != 0 {
		t.Errorf("Wants made %d lanes", got)
	}
}

func TestLabels(t *testing.T) {
	e := mustEngine(t, 64, nil,
		budget("store", perBoth, sec, "store.example", "*.store.example", "198.51.100.0/24", "203.0.113.5"),
		budget("one", PerExit, sec, "*.store.example"),
		budget("two", 0, sec, "store.example", "*.store.example", "other.example"),
		budget("rest", PerDestination, sec))
	for _, tt := range []struct {
		f     *Facts
		label []string
	}{
		{facts("store.example"), []string{"store.example", "rest", "two"}},
		{facts("eu.store.example"), []string{"*.store.example", "rest", "*.store.example", "two"}},
		{facts("198.51.100.3"), []string{"198.51.100.0/24", "rest"}},
		{facts("203.0.113.5"), []string{"203.0.113.5", "rest"}},
		{facts("client.sent.this"), []string{"rest"}},
	} {
		var got []string
		for _, l := range e.Select(nil, tt.f, ForRequest, t0) {
			got = append(got, l.Label)
			if l.Tally.Destination != l.Label {
				t.Errorf("%s: tally is of %q, label is %q", l.ID(), l.Tally.Destination, l.Label)
			}
		}
		if !slices.Equal(got, tt.label) {
			t.Errorf("%s: labels = %q, want %q", tt.f.Host, got, tt.label)
		}
	}
	if l := e.Find("one/-/direct"); l == nil || l.Tally.Exit != "direct" || l.Meter == nil || l.Meter.Exit != "direct" {
		t.Errorf("a lane per exit counts by %+v, want its exit", l)
	}
	if l := e.Find("two/-/-"); l == nil || l.Tally.Exit != AllExits || l.Meter != nil {
		t.Errorf("a lane of all exits counts by %+v, want %s", l, AllExits)
	}
}

// A request's strings are views of a buffer that is used again.
func TestSelectCopies(t *testing.T) {
	e := mustEngine(t, 8, nil, budget("b", perBoth, sec))
	buf := []byte("host.exampleexit-1")
	f := facts("")
	view := string(buf) // the engine must not see later changes: compare by content
	f.Host, f.Exit = view[:12], view[12:]
	l := e.Select(nil, f, ForRequest, t0)[0]
	if stringsShare(l.Key.Destination, f.Host) || stringsShare(l.Key.Exit, f.Exit) {
		t.Error("the lane keeps the strings of the request")
	}
	for key := range *e.tallies.Load() {
		if stringsShare(key.exit, f.Exit) {
			t.Error("the tally keeps the strings of the request")
		}
	}
	for exit, m := range *e.meters.Load() {
		if stringsShare(exit, f.Exit) || stringsShare(m.Exit, f.Exit) {
			t.Error("the meter keeps the strings of the request")
		}
	}
}

func TestSelectDoesNotAllocate(t *testing.T) {
	e := mustEngine(t, 64, nil, budget("both", perBoth, sec, "*.example", "198.51.100.0/24"), budget("dest", PerDestination, sec), budget("all", 0, sec))
	f := facts("a.b.example")
	dst := make([]*Lane, 0, MaxLanes)
	for _, host := range []string{"a.b.example", "1.2.unknown", "198.51.100.7"} {
		f.Host = host
		e.Select(dst, f, ForRequest, t0)
		if n := testing.AllocsPerRun(100, func() { e.Select(dst, f, ForRequest, t0); e.Wants(f.Host, f.Dest) }); n != 0 {
			t.Errorf("Select for %s allocates %v times", host, n)
		}
	}
	e.Tally("x", "y")
	e.Meter("y")
	if n := testing.AllocsPerRun(100, func() { e.Tally("x", "y"); e.Meter("y") }); n != 0 {
		t.Errorf("Tally and Meter allocate %v times", n)
	}
}

// index is an Index in memory.
type index struct {
	mu     sync.Mutex
	m      map[LaneKey]uint32
	broken error
}

func newIndex() *index { return &index{m: map[LaneKey]uint32{}} }

func (x *index) Range(f func(LaneKey, uint32) bool) error {
	for k, n := range x.m {
		if !f(k, n) {
			break
		}
	}
	return x.broken
}

func (x *index) Put(k LaneKey, n uint32) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.broken == nil {
		x.m[k] = n
	}
	return x.broken
}

func (x *index) Delete(k LaneKey) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	delete(x.m, k)
	return x.broken
}

// A daemon that starts again finds cooldowns, slow-downs and buckets as they
// were; a probe that was under way is nobody's any more.
func TestRestart(t *testing.T) {
	cells, x := make([]ledger.Cell, 8), newIndex()
	p := &Policy{Budgets: []*Budget{budget("b", perBoth, sec), budget("gone", PerDestination, sec)}}
	e, err := NewEngine(p, cells, x, t0)
	if err != nil {
		t.Fatal(err)
	}
	lanes := e.Select(nil, facts("a"), ForRequest, t0)
	lanes[0].Cell.Penalize(t0, 0, t0.Add(sec), 0.5, 2*sec)
	lanes[1].Cell.Penalize(t0, 0, t0.Add(time.Hour), 0.5, 2*sec)
	if g, _, ok := lanes[0].Cell.Take(t0.Add(sec), 1); !ok || !g.Probe {
		t.Fatalf("grant %+v, want the probe", g)
	}
	lanes[0].Cell.Close(t0.Add(time.Minute))
	x.m[LaneKey{Budget: "b", Destination: "shape"}] = 5          // the budget tells exits apart now
	x.m[LaneKey{Budget: "b", Destination: "x", Exit: "y"}] = 800 // outside the ledger
	x.m[LaneKey{Budget: "b", Destination: "x", Exit: "direct"}] = 0

	e, err = NewEngine(&Policy{Budgets: []*Budget{budget("b", perBoth, 2*sec)}}, cells, x, t0.Add(2*sec))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := ids(e.Lanes()), []string{"b/a/direct"}; !slices.Equal(got, want) {
		t.Fatalf("lanes = %q, want %q", got, want)
	}
	l := e.Lanes()[0]
	if l.Number != lanes[0].Number || l.Cell != lanes[0].Cell {
		t.Errorf("the lane has cell %d, want %d as before", l.Number, lanes[0].Number)
	}
	if got, want := ledger.Time(l.Cell.OpenUntil.Load()), t0.Add(time.Minute); got != want {
		t.Errorf("opens at +%v, want +1m", got.Sub(t0))
	}
	if l.Cell.Probing() || l.Cell.Flags.Load()&ledger.FlagHalf == 0 {
		t.Error("the probe is remembered, or that one is needed is not")
	}
	if got, want := time.Duration(l.Cell.Interval.Load()), 4*sec; got != want {
		t.Errorf("interval = %v, want the slow-down in proportion, %v", got, want)
	}
	if l.Label != "b" {
		t.Errorf("label = %q, want %q", l.Label, "b")
	}
	if got := slices.Collect(maps.Keys(x.m)); len(got) != 1 {
		t.Errorf("index = %v, want the one lane", got)
	}
	// All other cells are free, and come clean.
	for i := range 6 {
		f := facts(fmt.Sprint("h", i))
		for _, l := range e.Select(nil, f, ForRequest, t0.Add(2*sec)) {
			if l.Number == 0 || l.Cell.OpenUntil.Load() != 0 || l.Cell.Granted.Load() != 0 {
				t.Errorf("%s: cell %d opens at %d, granted %d, want a clean one", l.ID(), l.Number, l.Cell.OpenUntil.Load(), l.Cell.Granted.Load())
			}
		}
	}
}

func TestRestartSanity(t *testing.T) {
	cells, x := make([]ledger.Cell, 4), newIndex()
	key := LaneKey{Budget: "b", Destination: "a", Exit: "direct"}
	x.m[key] = 2
	cells[2].OpenUntil.Store(1 << 63)
	cells[2].TAT.Store(1 << 63)
	if _, err := NewEngine(&Policy{Budgets: []*Budget{budget("b", perBoth, sec)}}, cells, x, t0); err != nil {
		t.Fatal(err)
	}
	if _, ready := cells[2].Peek(t0.Add(time.Minute), 1); !ready {
		t.Error("words that make no sense hold the lane")
	}
}

func TestNewEngineErrors(t *testing.T) {
	if _, err := NewEngine(&Policy{}, make([]ledger.Cell, 1), nil, t0); !errors.Is(err, errNoCells) {
		t.Errorf("one cell: %v, want %v", err, errNoCells)
	}
	x := newIndex()
	x.broken = errors.New("the map is gone")
	if _, err := NewEngine(&Policy{}, make([]ledger.Cell, 4), x, t0); !errors.Is(err, x.broken) {
		t.Errorf("broken index: %v, want %v", err, x.broken)
	}
}

// A lane that the index does not take works all the same.
func TestIndexFails(t *testing.T) {
	x := newIndex()
	e := mustEngine(t, 8, x, budget("b", perBoth, sec))
	x.broken = errors.New("map is full")
	l := e.Select(nil, facts("a"), ForRequest, t0)[0]
	if l.Number == 0 || e.Select(nil, facts("a"), ForRequest, t0)[0] != l {
		t.Errorf("lane %+v is not a lane like others", l)
	}
	if got := e.Dropped(); got != 1 {
		t.Errorf("dropped = %d, want 1", got)
	}
}

func TestFull(t *testing.T) {
	x := newIndex()
	e := mustEngine(t, 4, x, budget("b", perBoth, sec), budget("c", PerDestination, sec, "c1", "c2"))
	lane := func(host string, now ledger.Time) *Lane { return e.Select(nil, facts(host), ForRequest, now)[0] }
	a, b, c := lane("h1", t0), lane("h2", t0.Add(sec)), lane("h3", t0.Add(2*sec))
	a.InFlight.Add(1)                      // in use
	b.Cell.Close(t0.Add(time.Hour))        // closed
	c.Cell.Penalize(t0, 0, t0, 0.5, 2*sec) // slowed
	now := t0.Add(time.Minute)
	over := lane("h4", now)
	if over.Number != 0 || over != lane("h5", now) || over.Key.Destination != OtherLabel {
		t.Fatalf("lane = %+v, want one that all share", over)
	}
	if got := over.Cell.BaseInterval.Load(); got != uint64(sec) {
		t.Errorf("the shared lane has interval %d, want that of its budget", got)
	}
	if e.Dropped() != 2 || e.Evicted() != 0 {
		t.Errorf("dropped %d, evicted %d, want 2 and 0", e.Dropped(), e.Evicted())
	}
	// The first is done: it makes room. Not within the second, though, that a
	// look at all lanes is good for.
	a.InFlight.Add(-1)
	if l := lane("h4", now.Add(500*ms)); l != over {
		t.Errorf("lane = %s, want still the shared one", l.ID())
	}
	l := lane("h4", now.Add(sec))
	if l.Number != a.Number || e.Evicted() != 1 {
		t.Fatalf("cell %d, %d evicted, want the cell %d of the idle lane", l.Number, e.Evicted(), a.Number)
	}
	if _, there := x.m[a.Key]; there || x.m[l.Key] != l.Number {
		t.Errorf("index = %v, want %s and not %s", x.m, l.ID(), a.ID())
	}
	if a.Enforced() {
		t.Error("a lane that ended is still enforced")
	}
	if got := e.Find(a.ID()); got != nil {
		t.Errorf("Find(%s) = %+v, want nil", a.ID(), got)
	}
	if got := e.Find(over.ID()); got != over {
		t.Errorf("Find(%s) = %v, want the shared lane", over.ID(), got)
	}
}

// A lane that a request may just have been given is not taken from it, nor one
// that still has something to remember.
func TestKeeps(t *testing.T) {
	for _, tt := range []struct {
		name string
		use  func(l *Lane)
		at   time.Duration
		kept bool
	}{
		{"idle", func(*Lane) {}, minIdle, false},
		{"just used", func(*Lane) {}, minIdle - 1, true},
		{"waited for", func(l *Lane) { l.Waiting.Add(1) }, minIdle, true},
		{"in flight", func(l *Lane) { l.InFlight.Add(1) }, minIdle, true},
		{"closed", func(l *Lane) { l.Cell.Close(t0.Add(minIdle + 1)) }, minIdle, true},
		{"bucket not full", func(l *Lane) { l.Cell.TAT.Store(uint64(t0.Add(minIdle + 1))) }, minIdle, true},
		{"slowed", func(l *Lane) { l.Cell.Interval.Store(uint64(2 * sec)) }, minIdle, true},
		{"about to probe", func(l *Lane) { l.Cell.Flags.Store(ledger.FlagHalf) }, minIdle, true},
	} {
		e := mustEngine(t, 2, nil, budget("b", perBoth, sec))
		l := e.Select(nil, facts("a"), ForRequest, t0)[0]
		tt.use(l)
		e.Select(nil, facts("b"), ForRequest, t0.Add(tt.at))
		if got := e.Find(l.ID()) == l; got != tt.kept {
			t.Errorf("a lane that is %s: kept = %v, want %v", tt.name, got, tt.kept)
		}
	}
}

// Of idle lanes those that were used last stay.
func TestEvictsOldest(t *testing.T) {
	const cells = 33
	e := mustEngine(t, cells, nil, budget("b", perBoth, ms))
	for i := range cells - 1 {
		e.Select(nil, facts(fmt.Sprint("h", i)), ForRequest, t0.Add(time.Duration(i)*sec))
	}
	e.Select(nil, facts("h0"), ForRequest, t0.Add(100*sec)) // used again
	e.Select(nil, facts("new"), ForRequest, t0.Add(100*sec))
	if got := e.Evicted(); got != 2 {
		t.Errorf("%d evicted, want 2: a sixteenth", got)
	}
	for host, want := range map[string]bool{"h0": true, "h1": false, "h2": false, "h3": true, "new": true} {
		if got := e.Find("b/"+host+"/direct") != nil; got != want {
			t.Errorf("lane of %s exists = %v, want %v", host, got, want)
		}
	}
}

func TestSwap(t *testing.T) {
	x := newIndex()
	e := mustEngine(t, 8, x, budget("stays", perBoth, sec), budget("goes", PerDestination, sec))
	lanes := e.Select(nil, facts("a"), ForRequest, t0)
	stays, goes := lanes[0], lanes[1]
	stays.Cell.Acquire(t0, 1)
	goes.Cell.Penalize(t0, 0, t0.Add(time.Hour), 0.5, 2*sec)
	goes.Waiting.Add(1)

	next := &Policy{Budgets: []*Budget{budget("new", 0, sec), budget("stays", perBoth, 10*sec)}}
	e.Swap(next, t0.Add(500*ms))
	if e.Policy() != next {
		t.Error("the policy in force is not the new one")
	}
	if stays.Budget() != next.Budgets[1] || !stays.Enforced() {
		t.Error("the lane that stays has not the new budget in force")
	}
	if wait, _ := stays.Cell.Peek(t0.Add(500*ms), 1); wait != 5*sec {
		t.Errorf("the lane that stays waits %v, want 5s: half of the new interval", wait)
	}
	if goes.Enforced() {
		t.Error("the lane whose budget went is still enforced")
	}
	if _, ready := goes.Cell.Peek(t0.Add(500*ms), 1); !ready {
		t.Error("the lane whose budget went still holds")
	}
	if got, want := ids(e.Select(nil, facts("a"), ForRequest, t0.Add(sec))), []string{"stays/a/direct", "new/-/-"}; !slices.Equal(got, want) {
		t.Errorf("lanes = %q, want %q", got, want)
	}
	if got, want := len(x.m), 2; got != want {
		t.Errorf("%d lanes in the index, want %d", got, want)
	}
	// Its cell is free once nobody uses it.
	free := len(e.free)
	e.Swap(next, t0.Add(2*sec))
	if got := len(e.free); got != free {
		t.Errorf("%d cells free, want %d while someone waits", got, free)
	}
	goes.Waiting.Add(-1)
	e.Swap(next, t0.Add(2*sec))
	if got := len(e.free); got != free+1 {
		t.Errorf("%d cells free, want %d", got, free+1)
	}
	// A budget of the old name begins anew.
	e.Swap(&Policy{Budgets: []*Budget{budget("goes", PerDestination, sec)}}, t0.Add(3*sec))
	if l := e.Select(nil, facts("a"), ForRequest, t0.Add(3*sec))[0]; l == goes || l.Cell.OpenUntil.Load() != 0 {
		t.Errorf("lane %+v, want a new one", l)
	}
}

// Many goroutines, few cells, reloads in between: every request has its lanes,
// and no two live lanes a cell.
func TestConcurrent(t *testing.T) {
	p := [2]*Policy{
		{Budgets: []*Budget{budget("a", perBoth, ms), budget("b", 0, ms)}},
		{Budgets: []*Budget{budget("b", 0, 2*ms), budget("a", PerDestination, ms)}},
	}
	e, err := NewEngine(p[0], make([]ledger.Cell, 32), newIndex(), t0)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			var dst []*Lane
			for i := range 2000 {
				now := t0.Add(time.Duration(i) * 20 * ms)
				dst = e.Select(dst[:0], facts(fmt.Sprint("h", (i+g*7)%60)), ForRequest, now)
				if len(dst) != 2 {
					t.Errorf("lanes = %q, want two", ids(dst))
					return
				}
				for _, l := range dst {
					l.InFlight.Add(1)
					l.Cell.Acquire(now, 1)
					l.InFlight.Add(-1)
				}
				if i%100 == 0 {
					e.Swap(p[i/100%2], now)
				}
			}
		})
	}
	wg.Wait()
	seen := map[uint32]string{}
	for _, l := range e.Lanes() {
		if other, taken := seen[l.Number]; taken && l.Number != 0 {
			t.Errorf("%s and %s share cell %d", l.ID(), other, l.Number)
		}
		seen[l.Number] = l.ID()
		if l.Number != 0 && l.Cell != &e.cells[l.Number] {
			t.Errorf("%s: cell is not number %d", l.ID(), l.Number)
		}
		if e.Find(l.ID()) != l {
			t.Errorf("Find(%s) finds another", l.ID())
		}
	}
	for _, n := range e.free {
		if id, taken := seen[n]; taken {
			t.Errorf("cell %d of %s is free", n, id)
		}
	}
	if got := len(e.free) + len(e.lanes) + len(e.retired); got != 31 {
		t.Errorf("%d cells in all, want 31", got)
	}
}

func BenchmarkSelect(b *testing.B) {
	var budgets []*Budget
	for i := range 50 {
		budgets = append(budgets, budget(fmt.Sprint("b", i), perBoth, sec, fmt.Sprintf("host%d.example", i), fmt.Sprintf("*.host%d.example", i)))
	}
	budgets = append(budgets, budget("dest", PerDestination, sec), budget("all", 0, sec))
	for _, tt := range []struct{ name, host string }{
		{"exact", "host7.example"}, {"suffix", "eu.host7.example"}, {"rest", "www.unnamed.example"},
	} {
		b.Run(tt.name, func(b *testing.B) {
			e := mustEngine(b, 1024, nil, budgets...)
			for i := range 500 {
				e.Select(nil, facts(fmt.Sprintf("x%d.host7.example", i)), ForRequest, t0)
			}
			f := facts(tt.host)
			dst := make([]*Lane, 0, MaxLanes)
			b.ReportAllocs()
			for b.Loop() {
				dst = e.Select(dst[:0], f, ForRequest, t0)
			}
			b.ReportMetric(float64(len(dst)), "lanes")
		})
	}
	b.Run("one lane", func(b *testing.B) {
		e := mustEngine(b, 1024, nil, budgets[:50]...)
		f := facts("host7.example")
		dst := make([]*Lane, 0, MaxLanes)
		b.ReportAllocs()
		for b.Loop() {
			dst = e.Select(dst[:0], f, ForRequest, t0)
		}
	})
	b.Run("unwanted", func(b *testing.B) {
		e := mustEngine(b, 1024, nil, budgets[:50]...)
		f := facts("www.unnamed.example")
		for b.Loop() {
			e.Wants(f.Host, f.Dest)
		}
	})
}
