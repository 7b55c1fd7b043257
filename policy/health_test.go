// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"testing"
	"time"

	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
)

// through is facts by an exit that is a proxy.
func through(host, exit string) *Facts {
	f := facts(host)
	f.Exit, f.Proxied = exit, true
	return f
}

// poolEngine has a pool of exits e0, e1 and e2, and these budgets.
func poolEngine(t testing.TB, budgets ...*Budget) (*Engine, *Picker) {
	t.Helper()
	p := &Policy{Budgets: budgets, Pools: []*Pool{poolOf(StickyNone, ones(3)...)}}
	for i := range p.Pools[0].Members {
		p.Exits = append(p.Exits, *p.Pools[0].Members[i].Exit)
	}
	e, err := NewEngine(p, make([]ledger.Cell, 64), nil, t0)
	if err != nil {
		t.Fatal(err)
	}
	return e, e.Pool(p.Pools[0].Listen)
}

// lanesOf are those of a request, made and configured.
func lanesOf(e *Engine, f *Facts) []*Lane { return e.Select(nil, f, ForOpaque, t0) }

func TestHealth(t *testing.T) {
	closed := func(until ledger.Time) Health { return Health{Closed: true, Until: until} }
	with := func(b *Budget, f func(*Budget)) *Budget { f(b); return b }
	free := func(b *Budget) { b.Rate = Rate{} }
	session := func(s string) func(*Facts) { return func(f *Facts) { f.Session = s } }
	for _, tt := range []struct {
		name   string
		budget *Budget
		facts  func(*Facts)
		close  func(l *Lane) // the budget's of the request
		now    time.Duration
		want   Health
	}{
		{"new", budget("b", perBoth, sec), nil, nil, 0, Health{}},
		{"at its pace", budget("b", perBoth, sec), nil, func(l *Lane) { l.Take(t0) }, 0, Health{}},
		{"cooldown", budget("b", perBoth, sec), nil, func(l *Lane) { l.Cell.Close(t0.Add(9 * sec)) }, 0, closed(t0.Add(9 * sec))},
		{"cooldown over", budget("b", perBoth, sec), nil, func(l *Lane) { l.Cell.Close(t0.Add(9 * sec)) }, 9 * sec, Health{}},
		{"behind others", budget("b", perBoth, sec), nil, func(l *Lane) { l.Cell.Close(t0.Add(9 * sec)); l.Waiting.Store(4) }, 0, closed(t0.Add(13 * sec))},
		{"probe under way", budget("b", perBoth, sec), nil, func(l *Lane) {
			g, _, _ := l.Take(t0)
			l.Penalize(&g, t0.Add(sec), t0)
			l.Release()
			l.Take(t0.Add(sec))
		}, 3 * sec, closed(t0.Add(3 * sec))},
		{"probe not yet", budget("b", perBoth, sec), nil, func(l *Lane) {
			g, _, _ := l.Take(t0)
			l.Penalize(&g, t0.Add(sec), t0)
		}, sec, Health{}},
		{"window out", with(budget("b", perBoth, sec), func(b *Budget) { free(b); b.Window = Window{Limit: 2, Per: time.Minute} }), nil,
			func(l *Lane) { l.Take(t0); l.Take(t0.Add(10 * sec)) }, 20 * sec, closed(t0.Add(time.Minute))},
		{"quota out", with(budget("b", perBoth, sec), free), nil, func(l *Lane) {
			g, _, _ := l.Take(t0)
			l.Learn(&verdict.Verdict{Quota: verdict.Quota{HasLimit: true, Limit: 10, HasRemaining: true, HasReset: true, Reset: time.Minute}}, &g, t0, t0)
		}, sec, closed(t0.Add(time.Minute + sec))}, // resets are told in whole seconds
		{"as much under way as may be", with(budget("b", perBoth, sec), func(b *Budget) { free(b); b.Concurrency = 1 }), nil,
			func(l *Lane) { l.Take(t0) }, 5 * sec, closed(t0.Add(5 * sec))},
		{"shadow", with(budget("b", perBoth, sec), func(b *Budget) { b.Mode = Shadow }), nil, func(l *Lane) { l.Cell.Close(never) }, 0, Health{}},
		{"of all exits", budget("b", PerDestination, sec), nil, func(l *Lane) { l.Cell.Close(never) }, 0, Health{}},
		{"of everything", budget("b", 0, sec), nil, func(l *Lane) { l.Cell.Close(never) }, 0, Health{}},
		{"of the exit alone", budget("b", PerExit, sec), nil, func(l *Lane) { l.Cell.Close(t0.Add(sec)) }, 0, Health{true, t0.Add(sec), true}},
		{"of the session", budget("b", PerSession, sec), session("s"), func(l *Lane) { l.Cell.Close(t0.Add(sec)) }, 0, Health{true, t0.Add(sec), true}},
		{"of those without a session", budget("b", PerSession, sec), session(""), func(l *Lane) { l.Cell.Close(never) }, 0, Health{}},
		{"by site", budget("b", PerSite|PerExit, sec), func(f *Facts) { f.Site = "example" }, func(l *Lane) { l.Cell.Close(t0.Add(sec)) }, 0, closed(t0.Add(sec))},
		{"by path", budget("b", PerPath|perBoth, sec), nil, func(l *Lane) { l.Cell.Close(t0.Add(sec)) }, 0, closed(t0.Add(sec))},
		{"of connections", with(budget("b", perBoth, sec), func(b *Budget) { b.Unit = Connections }), nil, func(l *Lane) { l.Cell.Close(t0.Add(sec)) }, 0, closed(t0.Add(sec))},
		{"another address since", budget("b", perBoth, sec), func(f *Facts) { f.Lifetime = time.Minute }, func(l *Lane) { l.Cell.Close(t0.Add(time.Hour)) }, time.Minute, Health{}},
		{"the same address still", budget("b", perBoth, sec), func(f *Facts) { f.Lifetime = time.Minute }, func(l *Lane) { l.Cell.Close(t0.Add(time.Hour)) }, 59 * sec, closed(t0.Add(time.Hour))},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e, _ := poolEngine(t, tt.budget)
			f := through("a.example", "e0")
			if tt.facts != nil {
				tt.facts(f)
			}
			if tt.close != nil {
				for _, l := range lanesOf(e, f) {
					if l.Key.Budget == "b" {
						tt.close(l)
					}
				}
			}
			before := len(e.Lanes())
			now := t0.Add(tt.now)
			if got := e.Health(f, now); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
			if n := len(e.Lanes()); n != before {
				t.Errorf("%d lanes were made", n-before)
			}
			f.Exit, f.Session = "e1", "other"
			if got := e.Health(f, now); got != (Health{}) {
				t.Errorf("another exit: got %+v", got)
			}
		})
	}
}

// Trouble of the exit closes it to every destination; a limit to one.
func TestHealthOfLanes(t *testing.T) {
	e, _ := poolEngine(t, budget("b", perBoth, sec))
	lanes := lanesOf(e, through("a.example", "e0")) // b, and that of the exit's trouble
	if len(lanes) != 2 || lanes[1].Key.Budget != ExitBudget {
		t.Fatalf("lanes %v", ids(lanes))
	}
	lanes[0].Cell.Close(t0.Add(5 * sec))
	lanes[1].Cell.Close(t0.Add(3 * sec))
	if got, want := e.Health(through("a.example", "e0"), t0), (Health{true, t0.Add(5 * sec), true}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got, want := e.Health(through("b.example", "e0"), t0), (Health{true, t0.Add(3 * sec), true}); got != want {
		t.Errorf("elsewhere: got %+v, want %+v", got, want)
	}
	if got, want := e.Health(through("a.example", "e0"), t0.Add(4*sec)), (Health{true, t0.Add(5 * sec), false}); got != want {
		t.Errorf("later: got %+v, want %+v", got, want)
	}
}

// A limit of one exit sends the next requests to the others.
func TestChoose(t *testing.T) {
	e, k := poolEngine(t, budget("b", perBoth, ms))
	if k == nil || e.Pool(netip.MustParseAddrPort("127.0.0.77:3129")) != nil {
		t.Fatal("the pool is not where it is")
	}
	key := PickKey{Host: "a.example"}
	choose := func(now ledger.Time) (Choice, *Facts) {
		f := facts("a.example")
		f.Session = "left over"
		c := e.Choose(k, key, f, now)
		if f.Exit != c.Member.Exit.Name || !f.Proxied || f.Session != "" {
			t.Errorf("facts %+v, chosen %s", f, c.Member)
		}
		return c, f
	}
	seen := map[string]int{}
	for range 6 {
		c, f := choose(t0)
		seen[c.Member.Exit.Name]++
		e.Select(nil, f, ForRequest, t0)
		if c.From != nil {
			t.Errorf("a switch from %s, which is open", c.From)
		}
	}
	if len(seen) != 3 {
		t.Errorf("turns: %v", seen)
	}
	lanesOf(e, through("a.example", "e1"))[0].Cell.Close(t0.Add(10 * sec))
	seen = map[string]int{}
	first := 0
	for range 12 {
		c, _ := choose(t0)
		seen[c.Member.Exit.Name]++
		if c.First {
			first++
		}
	}
	if seen["e0"] != 6 || seen["e2"] != 6 || first != 1 {
		t.Errorf("with e1 closed: %v, reported %d times", seen, first)
	}
	n := uint64(0)
	for _, s := range e.Switches() {
		if s.Pool != "pool" || s.From != "e1" || s.Count() == 0 {
			t.Errorf("switches: %+v", s)
		}
		n += s.Count()
	}
	if n != 6 { // of twelve requests: e1 has a turn with each of the others' two
		t.Errorf("%d switches, want 6", n)
	}
	// At another destination it is open.
	key.Host = "b.example"
	for range 3 {
		f := facts("b.example")
		if c := e.Choose(k, key, f, t0); c.From != nil {
			t.Errorf("a switch from %s at another destination", c.From)
		}
	}
	// A new policy brings pickers of its own, and the counts stay.
	e.Swap(&Policy{}, t0)
	if e.Pool(k.Pool.Listen) != nil || len(e.Switches()) == 0 {
		t.Error("after a reload without pools")
	}
}

func TestProxyAddr(t *testing.T) {
	pool := &Pool{Name: "p", Listen: netip.MustParseAddrPort("127.0.0.77:3128")}
	for name, host := range map[string]string{"literal": "192.0.2.1", "six": "2001:db8::1", "named": "gw.example"} {
		pool.Members = append(pool.Members, NewMember(&Exit{Name: name, Proxy: &Proxy{Host: host, First: 8000, Last: 8000}}, 8000, 1))
	}
	e, err := NewEngine(&Policy{Pools: []*Pool{pool}}, make([]ledger.Cell, 8), nil, t0)
	if err != nil {
		t.Fatal(err)
	}
	check := func(want map[string]string) {
		t.Helper()
		for i := range pool.Members {
			m := &pool.Members[i]
			addr, ok := e.ProxyAddr(m)
			if w := want[m.String()]; ok != (w != "") || ok && addr.String() != w {
				t.Errorf("%s: got %s, %v, want %q", m, addr, ok, w)
			}
		}
	}
	check(map[string]string{"literal": "192.0.2.1:8000", "six": "[2001:db8::1]:8000"})
	k := e.Pool(pool.Listen)
	for range 6 { // who has no address is passed over
		if c := e.Choose(k, PickKey{Host: "a.example"}, facts("a.example"), t0); c.Member.String() == "named" {
			t.Error("chosen without an address")
		} else if c.From != nil && c.Why != (Health{true, never, true}) {
			t.Errorf("from %s, as it is %+v", c.From, c.Why)
		}
	}
	e.SetAddresses(map[string]netip.Addr{"gw.example": netip.MustParseAddr("192.0.2.9"), "192.0.2.1": netip.MustParseAddr("192.0.2.8")})
	check(map[string]string{"literal": "192.0.2.1:8000", "six": "[2001:db8::1]:8000", "named": "192.0.2.9:8000"})
	seen := map[string]int{}
	for range 9 {
		seen[e.Choose(k, PickKey{Host: "a.example"}, facts("a.example"), t0).Member.String()]++
	}
	if seen["named"] == 0 {
		t.Errorf("not chosen with an address: %v", seen)
	}
}

func TestChooseDoesNotAllocate(t *testing.T) {
	e, k := poolEngine(t, budget("b", perBoth, ms), budget("c", PerExit, ms))
	f := facts("a.example")
	key := PickKey{Host: "a.example"}
	for _, exit := range []string{"e0", "e1"} {
		lanesOf(e, through("a.example", exit))
	}
	lanesOf(e, through("a.example", "e1"))[0].Cell.Close(never)
	choose := func() { e.Choose(k, key, f, t0) }
	for range 3 {
		choose()
	}
	if n := testing.AllocsPerRun(100, choose); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkChoose(b *testing.B) {
	e, k := poolEngine(b, budget("b", perBoth, ms))
	f := facts("a.example")
	key := PickKey{Host: "a.example"}
	for _, exit := range []string{"e0", "e1", "e2"} {
		lanesOf(e, through("a.example", exit))
	}
	b.ReportAllocs()
	for b.Loop() {
		e.Choose(k, key, f, t0)
	}
}
