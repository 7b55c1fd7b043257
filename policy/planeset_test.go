// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"
)

// conns is a budget of connections that the kernel plane can hold.
func conns(name string, per Per, hosts ...string) *Budget {
	b := budget(name, per, sec, hosts...)
	b.Unit = Connections
	return b
}

func with(b *Budget, change func(*Budget)) *Budget { change(b); return b }

func ports(b *Budget, ports ...uint16) *Budget {
	b.Match.Ports, b.Match.PortsNamed = ports, true
	return b
}

// words writes a set as "proxy: a[dest,exit] b@name".
func words(s PlaneSet) (out []string) {
	if s.Proxy {
		out = append(out, "proxy")
	}
	for _, r := range s.Rules {
		w := r.Budget
		if r.Per&PerDestination != 0 {
			w += "/dest"
		}
		if r.Per&PerExit != 0 {
			w += "/exit"
		}
		if r.ByName {
			w += " by name"
		}
		if r.Guard {
			w += " guard"
		}
		out = append(out, w)
	}
	return out
}

// find is the set of an address as the programs find it: see bpf/named.h.
// named is false where nothing names the address.
func (r *Redirects) find(dest netip.AddrPort) (set PlaneSet, ask, named bool) {
	for _, p := range r.Ports {
		if p.Port == dest.Port() && (p.Local || !dest.Addr().IsLoopback() && !dest.Addr().IsLinkLocalUnicast()) {
			set, ask, named = p.Set, p.Ask, true
		}
	}
	longest := -1
	for _, p := range r.Prefixes {
		if p.Port == dest.Port() && p.Prefix.Contains(dest.Addr()) && p.Prefix.Bits() > longest {
			set, named, longest = p.Set, true, p.Prefix.Bits()
		}
	}
	return set, ask, named
}

func TestForKernel(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Budget)
		want   bool
	}{
		{"as it is", func(*Budget) {}, true},
		{"shadow", func(b *Budget) { b.Mode = Shadow }, true},
		{"a queue that is fair", func(b *Budget) { b.Queue.FairBy = FairUID }, true},
		{"nothing tells lanes apart", func(b *Budget) { b.Per = 0 }, true},
		{"every host, for each exit", func(b *Budget) { b.Match.Hosts, b.Per = nil, PerExit }, true},
		{"every host, for each destination", func(b *Budget) { b.Match.Hosts = nil }, false},
		{"a star among others, for each destination", func(b *Budget) { b.Match.Hosts = []HostPattern{pattern("a.example"), pattern("*")} }, false},
		{"every host at ports that are written", func(b *Budget) { b.Match.Hosts, b.Match.PortsNamed = nil, true }, true},
		{"requests", func(b *Budget) { b.Unit = Requests }, false},
		{"off", func(b *Budget) { b.Mode = Off }, false},
		{"a rate that is learned", func(b *Budget) { b.Auto = true }, false},
		{"no rate", func(b *Budget) { b.Rate = Rate{} }, false},
		{"a window", func(b *Budget) { b.Window = Window{Limit: 5, Per: sec} }, false},
		{"concurrency", func(b *Budget) { b.Concurrency = 4 }, false},
		{"cost", func(b *Budget) { b.Cost.Units = 2 }, false},
		{"cost of one", func(b *Budget) { b.Cost.Units = 1 }, true},
		{"cost by a header", func(b *Budget) { b.Cost.Header = "x-cost" }, false},
		{"path", func(b *Budget) { b.Match.Path = "/a" }, false},
		{"methods", func(b *Budget) { b.Match.Methods = []string{"GET"} }, false},
		{"session", func(b *Budget) { b.Per |= PerSession }, false},
		{"site", func(b *Budget) { b.Per = PerSite }, false},
	} {
		b := conns("b", perBoth, "a.example", "10.0.0.0/8")
		tt.change(b)
		if got := b.forKernel(); got != tt.want {
			t.Errorf("%s: for the kernel = %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestPlaneRule(t *testing.T) {
	b := ports(conns("db", perBoth, "10.0.0.0/8"), 5432)
	b.Burst, b.FailClosed, b.OnFull = 3, true, Drop
	b.Queue = Queue{Max: 7, MaxWait: 4 * sec, FairBy: FairCgroup}
	want := PlaneRule{
		Budget: "db", Per: perBoth, FailClosed: true, Drop: true, Fair: true,
		Interval: sec, Tolerance: 2 * sec, MaxWait: 4 * sec, MaxQueue: 7,
	}
	r := (&Policy{Budgets: []*Budget{b}}).Redirects()
	if got := r.Prefixes[0].Set; !reflect.DeepEqual(got, PlaneSet{Rules: []PlaneRule{want}}) {
		t.Errorf("set = %+v, want %+v", got, want)
	}
	shadow := want
	shadow.Shadow = true
	b.Mode = Shadow
	r = (&Policy{Budgets: []*Budget{b}}).Redirects()
	if got := r.Prefixes[0].Set.Rules[0]; got != shadow {
		t.Errorf("rule = %+v, want %+v", got, shadow)
	}
	// What the kernel fills in a new cell is what the engine would.
	e := mustEngine(t, 8, nil, b)
	l := e.Select(nil, &Facts{Host: "10.1.2.3", Dest: netip.MustParseAddrPort("10.1.2.3:5432")}, ForOpaque, t0)[0]
	if i, x := l.Cell.Interval.Load(), l.Cell.Tolerance.Load(); i != uint64(want.Interval) || x != uint64(want.Tolerance) {
		t.Errorf("the engine's lane has interval %d and tolerance %d, the rule %d and %d", i, x, want.Interval, want.Tolerance)
	}
}

func TestPlaneSets(t *testing.T) {
	ssh := func() *Budget { return ports(conns("ssh", perBoth), 22) }
	web := budget("web", perBoth, sec) // requests, everywhere
	for _, tt := range []struct {
		name    string
		budgets []*Budget
		dest    string
		want    []string
		ask     bool
	}{
		{"every host at a port that is written", []*Budget{ssh()}, "192.0.2.1:22", []string{"ssh/dest/exit"}, false},
		{"requests", []*Budget{web}, "192.0.2.1:80", []string{"proxy", "web/dest/exit guard"}, false},
		{"both at one port", []*Budget{ports(conns("all", 0), 443), web}, "192.0.2.1:443", []string{"proxy", "web/dest/exit guard", "all guard"}, false},
		{"both at two ports", []*Budget{ssh(), web}, "192.0.2.1:22", []string{"ssh/dest/exit"}, false},
		{"requests behind one of the same shape", []*Budget{ports(conns("c", perBoth), 80), web}, "192.0.2.1:80", []string{"proxy", "c/dest/exit guard"}, false},
		{"a window behind one of the same shape", []*Budget{ssh(), with(ssh(), func(b *Budget) { b.Name, b.Window.Limit = "w", 5 })}, "192.0.2.1:22", []string{"ssh/dest/exit"}, false},
		{"a window before one of the same shape", []*Budget{with(ssh(), func(b *Budget) { b.Name, b.Window.Limit = "w", 5 }), ssh()}, "192.0.2.1:22",
			[]string{"proxy", "w/dest/exit guard"}, false},
		{"all shapes", []*Budget{ports(conns("n", 0), 22), ports(conns("e", PerExit), 22), ports(conns("d", PerDestination), 22), ssh()}, "192.0.2.1:22",
			[]string{"ssh/dest/exit", "d/dest", "e/exit", "n"}, false},
		{"a shape that the kernel does not know", []*Budget{ssh(), ports(conns("s", PerSession), 22)}, "192.0.2.1:22", []string{"proxy", "ssh/dest/exit guard"}, false},
		{"a path is no guard", []*Budget{with(budget("p", perBoth, sec), func(b *Budget) { b.Match.Path = "/a" })}, "192.0.2.1:80", []string{"proxy"}, false},
		{"a range", []*Budget{conns("r", perBoth, "10.0.0.0/8")}, "10.1.2.3:80", []string{"r/dest/exit"}, false},
		{"a range in a range", []*Budget{conns("r", perBoth, "10.0.0.0/8"), conns("i", PerDestination, "10.1.0.0/16")}, "10.1.2.3:80", []string{"r/dest/exit", "i/dest"}, false},
		{"a range around a range", []*Budget{conns("r", perBoth, "10.0.0.0/8"), conns("i", PerDestination, "10.0.0.0/16")}, "10.1.2.3:80", []string{"r/dest/exit"}, false},
		{"a range in one of the proxy", []*Budget{budget("q", 0, sec, "10.0.0.0/8"), conns("r", perBoth, "10.1.0.0/16")}, "10.1.2.3:80",
			[]string{"proxy", "r/dest/exit guard", "q guard"}, false},
		{"a range beside every host", []*Budget{ssh(), ports(conns("r", PerDestination, "10.0.0.0/8"), 22)}, "10.1.2.3:22", []string{"ssh/dest/exit", "r/dest"}, false},
		{"a name", []*Budget{conns("n", perBoth, "a.example")}, "192.0.2.1:80", []string{"proxy"}, true},
		{"a name before every host", []*Budget{conns("n", PerExit, "a.example"), conns("all", PerExit)}, "192.0.2.1:80", []string{"proxy"}, true},
		{"every host before a name", []*Budget{conns("all", PerExit), conns("n", PerExit, "a.example")}, "192.0.2.1:80", []string{"proxy", "all/exit guard"}, true},
		{"a range where others name hosts", []*Budget{conns("r", perBoth, "10.0.0.0/8"), conns("n", PerExit, "a.example")}, "10.1.2.3:80", []string{"proxy", "r/dest/exit guard"}, true},
		{"loopback where others name hosts", []*Budget{conns("r", perBoth, "127.0.0.0/8"), conns("n", PerExit, "a.example")}, "127.0.0.1:80", []string{"proxy", "r/dest/exit guard"}, false},
		{"names, but at another port", []*Budget{conns("r", perBoth, "10.0.0.0/8"), ports(conns("n", PerExit, "a.example"), 8080)}, "10.1.2.3:80", []string{"r/dest/exit"}, false},
		{"a name beside a star is none", []*Budget{ports(conns("s", PerExit, "a.example", "*"), 22)}, "192.0.2.1:22", []string{"s/exit"}, false},
		{"names of a budget that is off", []*Budget{ssh(), with(ports(conns("n", 0, "a.example"), 22), func(b *Budget) { b.Mode = Off })}, "192.0.2.1:22", []string{"ssh/dest/exit"}, false},
		{"an exit that is a proxy makes no rule", []*Budget{ssh()}, "192.0.2.1:22", []string{"ssh/dest/exit"}, false},
	} {
		p := &Policy{Budgets: tt.budgets, Exits: []Exit{{Name: "gw", Proxy: &Proxy{Host: "gw.example", First: 8000, Last: 8000}}}}
		r := p.Redirects()
		set, ask, named := r.find(netip.MustParseAddrPort(tt.dest))
		if got := words(set); !named || ask != tt.ask || !slices.Equal(got, tt.want) {
			t.Errorf("%s: %q, ask %v, named %v, want %q, %v", tt.name, got, ask, named, tt.want, tt.ask)
		}
	}
}

func TestPlaneTarget(t *testing.T) {
	db := ports(conns("db", perBoth, "*.db.example", "a.example"), 5432)
	ranged := ports(conns("r", PerDestination, "10.0.0.0/8"), 5432)
	api := ports(budget("api", perBoth, sec, "api.example"), 5432)
	exit := ports(conns("x", PerExit, "b.example", "c.example"), 5432)
	e := mustEngine(t, 64, nil, db, ranged, api, exit)
	for _, tt := range []struct {
		name  string
		dest  string
		names []string
		want  []string
		by    string
		known bool
	}{
		{name: "no names", dest: "192.0.2.1:5432"},
		{name: "a name of no budget", dest: "192.0.2.1:5432", names: []string{"z.example"}},
		{name: "another port", dest: "192.0.2.1:80", names: []string{"a.example"}},
		{name: "a name", dest: "192.0.2.1:5432", names: []string{"a.example"}, want: []string{"db/dest/exit by name"}, by: "a.example", known: true},
		{name: "below a suffix", dest: "192.0.2.1:5432", names: []string{"x.db.example"}, want: []string{"db/dest/exit by name"}, by: "x.db.example", known: true},
		{name: "a mapped address", dest: "[::ffff:192.0.2.1]:5432", names: []string{"a.example"}, want: []string{"db/dest/exit by name"}, by: "a.example", known: true},
		{name: "name and range", dest: "10.1.2.3:5432", names: []string{"a.example"}, want: []string{"db/dest/exit by name", "r/dest"}, by: "a.example", known: true},
		{name: "a name of no budget in a range", dest: "10.1.2.3:5432", names: []string{"z.example"}, want: []string{"r/dest"}, known: true},
		{name: "several of those", dest: "10.1.2.3:5432", names: []string{"z.example", "y.example"}, want: []string{"r/dest"}, known: true},
		{name: "several names of lanes that names do not tell apart", dest: "192.0.2.1:5432", names: []string{"b.example", "c.example"}, want: []string{"x/exit"}, known: true},
		{name: "several names with lanes of their own", dest: "192.0.2.1:5432", names: []string{"x.db.example", "y.db.example"}, want: []string{"proxy"}, known: true},
		{name: "one of several names is of a budget", dest: "192.0.2.1:5432", names: []string{"z.example", "b.example"}, want: []string{"proxy"}, known: true},
		{name: "… whichever comes first", dest: "192.0.2.1:5432", names: []string{"b.example", "z.example"}, want: []string{"proxy"}, known: true},
		{name: "requests", dest: "192.0.2.1:5432", names: []string{"api.example"}, want: []string{"proxy", "api/dest/exit by name guard"}, by: "api.example", known: true},
		{name: "requests in a range", dest: "10.1.2.3:5432", names: []string{"api.example"}, want: []string{"proxy", "api/dest/exit by name guard", "r/dest by name guard"}, by: "api.example", known: true},
		{name: "requests among names", dest: "192.0.2.1:5432", names: []string{"b.example", "api.example"}, want: []string{"proxy"}, known: true},
		{name: "an address is no name", dest: "10.1.2.3:5432", names: []string{"10.1.2.3"}, want: []string{"proxy"}, known: true},
	} {
		got, known := e.Target(netip.MustParseAddrPort(tt.dest), tt.names)
		if w := words(got.Set); known != tt.known || got.Name != tt.by || !slices.Equal(w, tt.want) {
			t.Errorf("%s: %q by %q, known %v, want %q by %q, %v", tt.name, w, got.Name, known, tt.want, tt.by, tt.known)
		}
	}
	if !e.PlaneNames() {
		t.Error("PlaneNames() = false, though budgets name hosts")
	}
	if e := mustEngine(t, 8, nil, ranged, conns("all", PerExit), with(conns("off", PerExit, "a.example"), func(b *Budget) { b.Mode = Off })); e.PlaneNames() {
		t.Error("PlaneNames() = true, though no budget names hosts")
	}
}

// Only budgets that the kernel plane may hold want its cells, and devices with fq.
func TestKernelPlane(t *testing.T) {
	for _, tt := range []struct {
		name    string
		budgets []*Budget
		want    bool
	}{
		{"nothing", nil, false},
		{"requests to hosts", []*Budget{budget("b", perBoth, sec, "a.example", "*.b.example")}, false},
		{"requests everywhere", []*Budget{budget("b", perBoth, sec)}, false},
		{"requests to addresses", []*Budget{budget("b", perBoth, sec, "10.0.0.0/8")}, false},
		{"connections to hosts", []*Budget{conns("b", perBoth, "a.example")}, true},
		{"connections below a name", []*Budget{conns("b", 0, "*.a.example")}, true},
		{"connections to addresses", []*Budget{conns("b", perBoth, "10.0.0.0/8")}, true},
		{"connections everywhere", []*Budget{conns("b", PerExit)}, true},
		{"connections that only the proxy can count", []*Budget{with(conns("b", perBoth, "a.example"), func(b *Budget) { b.Concurrency = 2 })}, false},
		{"connections, off", []*Budget{with(conns("b", perBoth, "a.example"), func(b *Budget) { b.Mode = Off })}, false},
		{"connections to hosts, requests to others", []*Budget{conns("b", perBoth, "a.example"), budget("r", perBoth, sec, "b.example")}, true},
		{"connections to addresses, requests to hosts", []*Budget{conns("b", perBoth, "10.0.0.0/8"), budget("r", perBoth, sec, "b.example")}, true},
		{"connections to hosts, requests everywhere", []*Budget{conns("b", perBoth, "a.example"), budget("r", perBoth, sec)}, false},
		{"connections to hosts, requests everywhere at other ports", []*Budget{ports(conns("b", perBoth, "a.example"), 5432), budget("r", perBoth, sec)}, true},
		{"connections to hosts, requests everywhere, off", []*Budget{conns("b", perBoth, "a.example"), with(budget("r", perBoth, sec), func(b *Budget) { b.Mode = Off })}, true},
	} {
		r := (&Policy{Budgets: tt.budgets}).Redirects()
		if got := r.KernelPlane(); got != tt.want {
			t.Errorf("%s: in the kernel plane = %v, want %v", tt.name, got, tt.want)
		}
	}
}

// A connection that comes through the proxy falls into the lane that the kernel
// plane would have taken from.
func TestSelectAddressed(t *testing.T) {
	r := ports(conns("r", perBoth, "10.0.0.0/8", "10.9.9.9", "a.example"), 22, 80)
	all := ports(conns("all", PerDestination), 22)
	api := budget("api", 0, sec, "api.example")
	e := mustEngine(t, 64, nil, r, all, api)
	for _, tt := range []struct {
		name string
		f    Facts
		want []string
	}{
		{"no name", Facts{Host: "10.1.2.3", Dest: netip.MustParseAddrPort("10.1.2.3:22")}, []string{"r/10.1.2.3/direct", "all/10.1.2.3/-"}},
		{"a name of no budget", Facts{Host: "z.example", Dest: netip.MustParseAddrPort("10.1.2.3:22")}, []string{"r/10.1.2.3/direct", "all/10.1.2.3/-"}},
		{"a name of the budget", Facts{Host: "a.example", Dest: netip.MustParseAddrPort("10.1.2.3:22")}, []string{"r/a.example/direct", "all/10.1.2.3/-"}},
		{"IPv6", Facts{Host: "z.example", Dest: netip.MustParseAddrPort("[2001:db8::1:0:1]:22")}, []string{"all/2001:db8::1:0:1/-"}},
		{"another address for a host", Facts{Host: "10.9.9.9", Dest: netip.MustParseAddrPort("10.1.2.3:22")}, []string{"r/10.1.2.3/direct", "all/10.1.2.3/-"}},
		{"the range by the host alone", Facts{Host: "10.9.9.9", Dest: netip.MustParseAddrPort("192.0.2.1:80")}, []string{"r/10.9.9.9/direct"}},
		{"requests want it too", Facts{Host: "api.example", Dest: netip.MustParseAddrPort("10.1.2.3:80")}, []string{"r/api.example/direct", "api/-/-"}},
		{"another exit", Facts{Host: "z.example", Dest: netip.MustParseAddrPort("10.1.2.3:22"), Exit: "wg0"}, []string{"r/10.1.2.3/wg0", "all/10.1.2.3/-"}},
		{"through a proxy", Facts{Host: "z.example", Dest: netip.MustParseAddrPort("10.1.2.3:22"), Exit: "gw", Proxied: true}, []string{"r/z.example/gw", "all/z.example/-"}},
		{"through a proxy, to no address", Facts{Host: "z.example", Dest: netip.AddrPortFrom(netip.Addr{}, 22), Exit: "gw", Proxied: true}, []string{"all/z.example/-"}},
	} {
		if got := ids(e.Select(nil, &tt.f, ForOpaque, t0)); !slices.Equal(got, tt.want) {
			t.Errorf("%s: lanes %q, want %q", tt.name, got, tt.want)
		}
	}
	// Found again, without a lock and without garbage, and by Health as well.
	dst := make([]*Lane, 0, MaxLanes)
	for _, dest := range []string{"10.1.2.3:22", "[2001:db8:ffff:ffff:ffff:ffff:ffff:ffff]:22"} {
		f := &Facts{Host: "z.example", Dest: netip.MustParseAddrPort(dest)}
		first := e.Select(nil, f, ForOpaque, t0)
		if n := testing.AllocsPerRun(100, func() { dst = e.Select(dst[:0], f, ForOpaque, t0); e.Health(f, t0) }); n != 0 {
			t.Errorf("Select for %s allocates %v times", dest, n)
		}
		if !slices.Equal(first, dst) {
			t.Errorf("%s: lanes %q, want %q again", dest, ids(dst), ids(first))
		}
	}
	e.Find("r/10.1.2.3/direct").Cell.Close(t0.Add(time.Minute))
	if h := e.Health(&Facts{Host: "z.example", Dest: netip.MustParseAddrPort("10.1.2.3:22")}, t0); !h.Closed || h.Trouble {
		t.Errorf("Health = %+v, want that the lane of the address is closed, and no trouble of the exit", h)
	}
}

// Each of many address ranges has the rules of those around it, too.
func TestRedirectsOfManyRanges(t *testing.T) {
	b := conns("many", perBoth)
	for i := range 3000 {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)
		b.Match.Hosts = append(b.Match.Hosts, HostPattern{Prefix: p})
	}
	r := (&Policy{Budgets: []*Budget{b, conns("around", 0, "10.0.0.0/13")}}).Redirects()
	if got, want := len(r.Prefixes), 2*3001; got != want {
		t.Fatalf("%d entries, want %d", got, want)
	}
	for _, p := range r.Prefixes {
		want := []string{"many/dest/exit"}
		switch {
		case p.Prefix.Bits() == 13:
			want = []string{"around"}
		case p.Prefix.Addr().As4()[1] < 8:
			want = append(want, "around")
		}
		if got := words(p.Set); !slices.Equal(got, want) {
			t.Fatalf("%s: %q, want %q", p.Prefix, got, want)
		}
	}
}

// Of policies, addresses and names by chance, the programs and the engine make
// the same: where they do not leave it to the proxy, they take of the lanes
// that the engine would select, and no budget of requests is left out.
func TestPlaneIsTheEngine(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(500) {
		random := rand.New(rand.NewPCG(seed, 7))
		p := randomPolicy(random)
		e, r := mustEngine(t, 1024, nil, p.Budgets...), p.Redirects()
		for range 25 {
			c := randomCall(random)
			set, ask, named := r.find(c.dest)
			target, known := PlaneTarget{}, false
			if named && ask {
				target, known = e.Target(c.dest, c.names)
			}
			hosts := []string{c.dest.Addr().String()}
			switch {
			case known:
				set, hosts = target.Set, c.names
			case !ask: // names do not matter
				hosts = append(hosts, c.names...)
			}
			switch {
			case !named:
				seen["unnamed"]++
			case !set.Proxy:
				seen["kernel"]++
				if len(set.Rules) > 0 && !r.KernelPlane() {
					t.Fatalf("seed %d: %s to %q is the kernel's, though the kernel plane has no use", seed, c.dest, c.names)
				}
			case len(set.Rules) > 0:
				seen["guards"]++
			}
			if len(c.names) > 1 && known && set.Proxy && len(set.Rules) == 0 {
				seen["ambiguous"]++
			}
			if target.Name != "" {
				seen["by name"]++
			}
			for _, host := range hosts {
				if err := agree(e, c.dest, host, &set, named, &target); err != nil {
					t.Fatalf("seed %d, %v, names %q, host %s: %v\nset %q, named %v, ask %v\n%s", seed, c.dest, c.names, host, err, words(set), named, ask, show(p))
				}
			}
			// A name that nobody knows of: then guards are of budgets that count it.
			if named && !known && ask {
				seen["unknown"]++
				lanes := e.Select(nil, &Facts{Host: randomName(random), Dest: c.dest}, ForOpaque, t0)
				for _, r := range set.Rules {
					if !slices.ContainsFunc(lanes, func(l *Lane) bool { return l.Key.Budget == r.Budget }) {
						t.Fatalf("seed %d, %v: guard of %s, lanes %q\n%s", seed, c.dest, r.Budget, ids(lanes), show(p))
					}
				}
				if !set.Proxy {
					t.Fatalf("seed %d, %v: names matter, and the proxy is not asked\n%s", seed, c.dest, show(p))
				}
			}
		}
	}
	for _, what := range []string{"unnamed", "kernel", "guards", "ambiguous", "by name", "unknown"} {
		if seen[what] < 50 {
			t.Errorf("%s: seen %d times, which shows nothing", what, seen[what])
		}
	}
}

// agree compares what the kernel plane makes of connections to a host with what
// the engine does.
func agree(e *Engine, dest netip.AddrPort, host string, set *PlaneSet, named bool, target *PlaneTarget) error {
	f := &Facts{Host: host, Dest: dest, Exit: "wg0"}
	var lanes []LaneKey
	for _, l := range e.Select(nil, f, ForOpaque, t0) {
		lanes = append(lanes, l.Key)
	}
	var keys []LaneKey
	for _, r := range set.Rules {
		k := LaneKey{Budget: r.Budget}
		if r.Per&PerDestination != 0 {
			k.Destination = dest.Addr().String()
			if r.ByName {
				k.Destination = target.Name
			}
		}
		if r.Per&PerExit != 0 {
			k.Exit = "wg0"
		}
		if r.Guard != set.Proxy {
			return fmt.Errorf("guard = %v", r.Guard)
		}
		keys = append(keys, k)
	}
	switch {
	case !named && len(lanes) > 0:
		return fmt.Errorf("nothing names it, and the engine selects %q", lanes)
	case set.Proxy:
		for _, k := range keys {
			same := slices.Contains(lanes, k)
			if host != dest.Addr().String() && target.Name == "" { // the set knew no name: the lane may be another of the budget
				same = slices.ContainsFunc(lanes, func(l LaneKey) bool { return l.Budget == k.Budget })
			}
			if !same {
				return fmt.Errorf("guard %v is none of the lanes %v", k, lanes)
			}
		}
		return nil
	case !slices.Equal(lanes, keys):
		return fmt.Errorf("the kernel takes of %v, the engine of %v", keys, lanes)
	}
	if got := ids(e.Select(nil, f, ForHTTPConnection, t0)); len(got) != len(lanes) {
		return fmt.Errorf("an HTTP connection falls into %q", got)
	}
	for _, f := range []Facts{{Method: "GET", Path: "/a/b"}, {Method: "POST", Path: "/"}} {
		f.Host, f.Dest, f.Exit = host, dest, "wg0"
		if got := ids(e.Select(nil, &f, ForRequest, t0)); len(got) > 0 {
			return fmt.Errorf("%s %s is counted by %q, which nobody would see", f.Method, f.Path, got)
		}
	}
	return nil
}

// show writes a policy down.
func show(p *Policy) (out string) {
	for _, b := range p.Budgets {
		out += fmt.Sprintf("%+v\n", *b)
	}
	return out
}

// call is one connection by chance.
type call struct {
	dest  netip.AddrPort
	names []string
}

var (
	chanceHosts = []string{"a.x.example", "b.x.example", "c.example", "*.x.example", "*.example", "*", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.3",
		"192.0.2.0/24", "2001:db8::/32", "2001:db8::1"}
	chanceNames = []string{"a.x.example", "b.x.example", "c.example", "z.example", "other.test"}
	chanceAddrs = []string{"10.0.0.1", "10.1.0.0", "10.1.2.3", "192.0.2.9", "198.51.100.1", "2001:db8::1", "2001:db8::2", "2001:db9::1"}
	chancePorts = []uint16{22, 80, 443}
	chancePer   = []Per{0, PerExit, PerDestination, perBoth, perBoth, PerSite | PerExit, PerDestination | PerPath}
)

func randomName(random *rand.Rand) string { return chanceNames[random.IntN(len(chanceNames))] }

func randomCall(random *rand.Rand) call {
	addr := netip.MustParseAddr(chanceAddrs[random.IntN(len(chanceAddrs))])
	c := call{dest: netip.AddrPortFrom(addr, chancePorts[random.IntN(len(chancePorts))])}
	for range random.IntN(3) {
		if name := randomName(random); !slices.Contains(c.names, name) {
			c.names = append(c.names, name)
		}
	}
	return c
}

func randomPolicy(random *rand.Rand) *Policy {
	p := &Policy{}
	rarely := func(n int) bool { return random.IntN(n) == 0 }
	for i := range 1 + random.IntN(5) {
		b := budget(fmt.Sprint("b", i), chancePer[random.IntN(len(chancePer))], sec)
		if !rarely(4) {
			b.Unit = Connections
		}
		if !rarely(4) {
			for range 1 + random.IntN(3) {
				if h := pattern(chanceHosts[random.IntN(len(chanceHosts))]); !slices.Contains(b.Match.Hosts, h) {
					b.Match.Hosts = append(b.Match.Hosts, h)
				}
			}
		}
		if b.Match.PortsNamed = !rarely(3); b.Match.PortsNamed {
			b.Match.Ports = nil
			for _, port := range chancePorts {
				if rarely(2) {
					b.Match.Ports = append(b.Match.Ports, port)
				}
			}
			if len(b.Match.Ports) == 0 {
				b.Match.Ports = []uint16{22}
			}
		}
		for _, odd := range []func(){
			func() { b.Mode = Off },
			func() { b.Mode = Shadow },
			func() { b.Rate = Rate{} },
			func() { b.Window = Window{Limit: 5, Per: time.Minute} },
			func() { b.Concurrency = 3 },
			func() { b.Auto = true },
		} {
			if rarely(15) {
				odd()
			}
		}
		if b.Unit == Requests {
			if rarely(4) {
				b.Match.Path = "/a"
			}
			if rarely(4) {
				b.Match.Methods = []string{"POST"}
			}
		}
		p.Budgets = append(p.Budgets, b)
	}
	return p
}
