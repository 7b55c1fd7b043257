// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

// poolOf has a member for each weight: e0, e1, ….
func poolOf(sticky Sticky, weights ...int) *Pool {
	p := &Pool{Name: "pool", Listen: netip.MustParseAddrPort("127.0.0.77:3128"), Sticky: sticky}
	for i, w := range weights {
		p.Members = append(p.Members, memberOf(fmt.Sprintf("e%d", i), w))
	}
	return p
}

func memberOf(name string, weight int) Member {
	return NewMember(&Exit{Name: name, Proxy: &Proxy{Host: "192.0.2.1", First: 8000, Last: 8000}}, 8000, weight)
}

func ones(n int) []int { return slices.Repeat([]int{1}, n) }

func open(*Member) Health { return Health{} }

// closed says that the members with these names are closed for a time each.
func closed(until map[string]ledger.Time) func(*Member) Health {
	return func(m *Member) Health {
		at, is := until[m.Exit.Name]
		return Health{Closed: is, Until: at}
	}
}

// names are what n picks at one host choose.
func picks(k *Picker, n int, host string, healthy func(*Member) Health) (names []string) {
	for range n {
		names = append(names, k.Pick(PickKey{Host: host}, t0, healthy).Member.Exit.Name)
	}
	return names
}

func tally(names []string) map[string]int {
	m := map[string]int{}
	for _, n := range names {
		m[n]++
	}
	return m
}

// In any stretch as long as the sum of the weights each member has as many
// turns as its weight, and they are spread evenly.
func TestTurnsAreExact(t *testing.T) {
	for _, weights := range [][]int{{1}, {1, 1}, {5, 1, 1}, {2, 3}, {1, 2, 3, 4}, {1000, 1}, {7, 997, 13, 1, 1}, ones(37)} {
		k := NewPicker(poolOf(StickyNone, weights...))
		sum := 0
		for _, w := range weights {
			sum += w
		}
		got := picks(k, 5*sum+3, "a.example", open)
		in := make([]int, len(weights))
		last := make([]int, len(weights))
		for at, name := range got {
			i, _ := strconv.Atoi(name[1:])
			in[i]++
			if gap := at - last[i]; gap > sum/weights[i]+len(weights) {
				t.Errorf("%v: %s waited for %d turns, weight %d of %d", weights, name, gap, weights[i], sum)
			}
			last[i] = at
			if at < sum-1 {
				continue
			}
			if !slices.Equal(in, weights) {
				t.Fatalf("%v: the turns that end with number %d are %v", weights, at, in)
			}
			gone, _ := strconv.Atoi(got[at-sum+1][1:])
			in[gone]--
		}
	}
}

// distinct are hosts of which no two share a rota.
func distinct(n int) (hosts []string) {
	taken := map[uint64]bool{}
	for i := 0; len(hosts) < n; i++ {
		host := fmt.Sprintf("h%d.example", i)
		if at := hashText(host) % maxRotas; !taken[at] {
			taken[at] = true
			hosts = append(hosts, host)
		}
	}
	return hosts
}

// Destinations take turns apart from each other: two that are asked in turn
// have all exits each, and many that are asked once have them evenly.
func TestTurnsOfDestinations(t *testing.T) {
	hosts := distinct(60)
	k := NewPicker(poolOf(StickyNone, 1, 1))
	var a, b []string
	for range 10 {
		a = append(a, picks(k, 1, hosts[0], open)...)
		b = append(b, picks(k, 1, hosts[1], open)...)
	}
	for _, got := range [][]string{a, b} {
		if c := tally(got); c["e0"] != 5 || c["e1"] != 5 {
			t.Errorf("of two destinations in turn, one had %v", c)
		}
	}
	k = NewPicker(poolOf(StickyNone, 1, 2, 3))
	var first []string
	for _, h := range hosts {
		first = append(first, picks(k, 1, h, open)...)
	}
	if c := tally(first); c["e0"] != 10 || c["e1"] != 20 || c["e2"] != 30 {
		t.Errorf("60 destinations once each: %v", c)
	}
}

// More destinations than rotas share them, and all are served evenly.
func TestTurnsOfManyDestinations(t *testing.T) {
	k := NewPicker(poolOf(StickyNone, ones(4)...))
	got := map[string]int{}
	for i := range 40_000 {
		got[k.Pick(PickKey{Host: strconv.Itoa(i)}, t0, open).Member.Exit.Name]++
	}
	for name, n := range got {
		if n < 9800 || n > 10_200 {
			t.Errorf("%s had %d of 40000 turns, want about 10000", name, n)
		}
	}
}

// Those who are closed are passed over, the others keep their shares, and who
// comes back does not make up for what it missed.
func TestHealthyFirst(t *testing.T) {
	const host = "a.example"
	k := NewPicker(poolOf(StickyNone, 1, 2, 3, 4))
	picks(k, 3, host, open)
	for range 20 {
		got := tally(picks(k, 50, host, closed(map[string]ledger.Time{"e1": t0 + 1, "e2": t0 + 1})))
		if got["e1"]+got["e2"] > 0 {
			t.Fatalf("closed exits were chosen: %v", got)
		}
		if got["e0"] < 9 || got["e0"] > 11 {
			t.Errorf("of weights 1 and 4: %v of 50", got)
		}
	}
	for range 5 { // from the first turn on
		if got := tally(picks(k, 10, host, open)); got["e0"] > 2 || got["e1"] > 3 || got["e2"] > 4 || got["e3"] > 5 {
			t.Errorf("after it reopened, 10 turns are %v, want 1, 2, 3, 4 or one more", got)
		}
	}
}

// One exit that is open for long does not pay for it when the others return.
func TestReopening(t *testing.T) {
	k := NewPicker(poolOf(StickyNone, ones(10)...))
	others := map[string]ledger.Time{}
	for i := range 9 {
		others[fmt.Sprintf("e%d", i)] = t0 + 1
	}
	if got := tally(picks(k, 1000, "a.example", closed(others))); got["e9"] != 1000 {
		t.Fatalf("got %v, want e9 alone", got)
	}
	if got := tally(picks(k, 10, "a.example", open)); len(got) != 10 {
		t.Errorf("ten turns of ten exits after that: %v", got)
	}
}

func TestAllClosed(t *testing.T) {
	k := NewPicker(poolOf(StickyNone, 1, 1, 1))
	for _, tt := range []struct {
		until map[string]ledger.Time
		want  string
	}{
		{map[string]ledger.Time{"e0": t0 + 3, "e1": t0 + 2, "e2": t0 + 4}, "e1"},
		{map[string]ledger.Time{"e0": t0 + 3, "e1": t0 + 5, "e2": t0 + 4}, "e0"},
		{map[string]ledger.Time{"e0": t0 + 3, "e1": t0 + 5, "e2": t0}, "e2"}, // waits for an answer
		{map[string]ledger.Time{"e0": never, "e1": never, "e2": t0 + 1}, "e2"},
	} {
		for range 7 {
			c := k.Pick(PickKey{Host: "a.example"}, t0, closed(tt.until))
			if c.Member.Exit.Name != tt.want || c.From != nil || c.First {
				t.Errorf("%v: got %s, from %v; want %s, and no switch", tt.until, c.Member, c.From, tt.want)
			}
		}
	}
	// Who opens at the same time takes turns.
	same := closed(map[string]ledger.Time{"e0": t0 + 3, "e1": t0 + 3, "e2": t0 + 3})
	if got := tally(picks(k, 30, "a.example", same)); got["e0"] != 10 || got["e1"] != 10 || got["e2"] != 10 {
		t.Errorf("all open at once: %v", got)
	}
	// Nobody has turns left over from it.
	if got := tally(picks(k, 3, "a.example", open)); len(got) != 3 {
		t.Errorf("three turns of three exits after that: %v", got)
	}
}

// A switch is what did not go to the exit whose turn it was, and went to
// another one that is open. The first since the exit was closed says so.
func TestSwitch(t *testing.T) {
	k := NewPicker(poolOf(StickyNone, 1, 1))
	key := PickKey{Host: "a.example"}
	pick := func(now ledger.Time, until ledger.Time) Choice {
		return k.Pick(key, now, func(m *Member) Health {
			if m.Exit.Name == "e0" && now < until {
				return Health{Closed: true, Until: until, Trouble: true}
			}
			return Health{}
		})
	}
	type step struct {
		now, until      time.Duration
		to              string
		switched, first bool
	}
	for i, s := range []step{
		{0, 0, "e0", false, false},
		{0, 10 * sec, "e1", false, false}, // its own turn
		{0, 10 * sec, "e1", true, true},   // that of e0
		{1 * sec, 10 * sec, "e1", true, false},
		{9 * sec, 12 * sec, "e1", true, false}, // longer than was told
		{11 * sec, 12 * sec, "e1", true, true}, // … which is told when that is over
		{11 * sec, 12 * sec, "e1", true, false},
		{12 * sec, 12 * sec, "e0", false, false},
		{12 * sec, 12 * sec, "e1", false, false},
		{13 * sec, 20 * sec, "e1", true, true},
	} {
		c := pick(t0.Add(s.now), t0.Add(s.until))
		if c.Member.Exit.Name != s.to || (c.From != nil) != s.switched || c.First != s.first {
			t.Errorf("step %d: got %s, from %v, first %v; want %+v", i, c.Member, c.From, c.First, s)
		}
		if c.From != nil && (c.From.Exit.Name != "e0" || c.Why != Health{Closed: true, Until: t0.Add(s.until), Trouble: true}) {
			t.Errorf("step %d: from %s, as it is %+v", i, c.From, c.Why)
		}
	}
	// What waits for an answer is no event: it may be over at any time.
	k = NewPicker(poolOf(StickyNone, 1, 1))
	c := k.Pick(key, t0, closed(map[string]ledger.Time{"e0": t0}))
	if c.From == nil || c.First {
		t.Errorf("got from %v, first %v; want a switch that is not reported", c.From, c.First)
	}
}

// Virtual time begins anew without a change of the order.
func TestTurnsForever(t *testing.T) {
	k, l := NewPicker(poolOf(StickyNone, 1, 2, 3)), NewPicker(poolOf(StickyNone, 1, 2, 3))
	picks(k, 1, "a.example", open)
	picks(l, 1, "a.example", open)
	r := l.rotaOf("a.example")
	for i := range r.next {
		r.next[i] += math.MaxUint64/4 - 3*lap
	}
	if got, want := picks(l, 100, "a.example", open), picks(k, 100, "a.example", open); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if r.next[0] > 100*lap {
		t.Errorf("virtual time is still %d", r.next[0])
	}
}

// keyed makes n keys of a kind.
func keyed(sticky Sticky, n int) []PickKey {
	keys := make([]PickKey, n)
	for i := range keys {
		switch sticky {
		case StickyClient:
			keys[i].Client.Process = uint32(1000 + i)
		case StickySession:
			keys[i].Session = fmt.Sprintf("job-%d", i)
		case StickyDestination:
			keys[i].Host = fmt.Sprintf("h%d.example", i)
		}
	}
	return keys
}

func sticks(p *Pool, keys []PickKey) []string {
	k := NewPicker(p)
	out := make([]string, len(keys))
	for i, key := range keys {
		out[i] = k.Pick(key, t0, nil).Member.Exit.Name // nobody asks how the exits are
	}
	return out
}

func TestStickyShares(t *testing.T) {
	const n = 100_000
	for _, sticky := range []Sticky{StickyClient, StickySession, StickyDestination} {
		for _, weights := range [][]int{{1, 1}, {1, 2, 3, 4}, ones(10), {1000, 250}} {
			sum := 0
			for _, w := range weights {
				sum += w
			}
			got := tally(sticks(poolOf(sticky, weights...), keyed(sticky, n)))
			for i, w := range weights {
				share, want := float64(got[fmt.Sprintf("e%d", i)])/n, float64(w)/float64(sum)
				if math.Abs(share-want) > 0.02*want {
					t.Errorf("sticky %d, weights %v: e%d has %.4f of all keys, want %.4f within 2 %%", sticky, weights, i, share, want)
				}
			}
		}
	}
}

// Who joins takes its share of each, who leaves gives it to all, and nobody
// else is moved. So it is with weights.
func TestStickyMovesOnlyShares(t *testing.T) {
	const n = 50_000
	for _, sticky := range []Sticky{StickyClient, StickySession, StickyDestination} {
		keys := keyed(sticky, n)
		before := sticks(poolOf(sticky, 1, 2, 1, 2), keys)
		for _, tt := range []struct {
			name  string
			pool  *Pool
			who   string
			share float64 // of all keys that move
		}{
			{"joins", poolOf(sticky, 1, 2, 1, 2, 2), "e4", 2.0 / 8},
			{"leaves", poolOf(sticky, 1, 2, 1), "e3", 2.0 / 6},
			{"gains weight", poolOf(sticky, 4, 2, 1, 2), "e0", 4.0/9 - 1.0/6},
			{"loses weight", poolOf(sticky, 1, 1, 1, 2), "e1", 2.0/6 - 1.0/5},
		} {
			moved := 0
			for i, name := range sticks(tt.pool, keys) {
				if name == before[i] {
					continue
				}
				moved++
				if name != tt.who && before[i] != tt.who {
					t.Fatalf("sticky %d, %s %s: %+v moved from %s to %s", sticky, tt.who, tt.name, keys[i], before[i], name)
				}
			}
			if got := float64(moved) / n; math.Abs(got-tt.share) > 0.04*tt.share {
				t.Errorf("sticky %d, %s %s: %.4f moved, want %.4f", sticky, tt.who, tt.name, got, tt.share)
			}
		}
		// The order in the file is nobody's business.
		p := poolOf(sticky, 1, 2, 1, 2)
		slices.Reverse(p.Members)
		if !slices.Equal(sticks(p, keys), before) {
			t.Errorf("sticky %d: another order in the file moved some", sticky)
		}
	}
}

// What clients have outlives the daemon, and its next version.
func TestStickyIsForever(t *testing.T) {
	p := poolOf(StickySession, ones(5)...)
	got := sticks(p, []PickKey{{Session: "a"}, {Session: "b"}, {Session: "job-42"}, {Session: "Zaubärwort"}, {Session: "x y"}})
	if want := []string{"e2", "e3", "e0", "e3", "e3"}; !slices.Equal(got, want) {
		t.Errorf("sessions: got %v, want %v", got, want)
	}
	p.Sticky = StickyClient
	var keys []PickKey
	for _, pid := range []uint32{1, 2, 4711, 1 << 22} {
		keys = append(keys, PickKey{Client: Client{Process: pid, UID: 7, Cgroup: 9}, Session: "s", Host: "h"})
	}
	if got, want := sticks(p, keys), []string{"e2", "e4", "e0", "e0"}; !slices.Equal(got, want) {
		t.Errorf("processes: got %v, want %v", got, want)
	}
}

// However its exit is, a sticky client is never moved.
func TestStickyIsNeverMoved(t *testing.T) {
	for _, sticky := range []Sticky{StickyClient, StickySession, StickyDestination} {
		k := NewPicker(poolOf(sticky, ones(4)...))
		for _, key := range keyed(sticky, 100) {
			if key.Host == "" {
				key.Host = "a.example"
			}
			want := k.Pick(key, t0, open).Member
			c := k.Pick(key, t0, closed(map[string]ledger.Time{want.Exit.Name: never}))
			if c.Member != want || c.From != nil {
				t.Errorf("sticky %d: %+v moved from %s to %s", sticky, key, want, c.Member)
			}
			if sticky != StickyDestination { // wherever it goes
				key.Host = "b.example"
				if c := k.Pick(key, t0, open); c.Member != want {
					t.Errorf("sticky %d: %+v has %s, and %s at another host", sticky, key, want, c.Member)
				}
			}
		}
	}
}

// A request that names no session has none to keep.
func TestNoSession(t *testing.T) {
	k := NewPicker(poolOf(StickySession, 1, 1))
	if got := tally(picks(k, 10, "a.example", open)); got["e0"] != 5 || got["e1"] != 5 {
		t.Errorf("got %v, want turns", got)
	}
	if got := picks(k, 1, "a.example", closed(map[string]ledger.Time{"e0": never}))[0]; got != "e1" {
		t.Errorf("got %s, which is closed", got)
	}
}

func TestMember(t *testing.T) {
	proxy := Proxy{Host: "gw.example", First: 10001, Last: 10010, PerPort: true, Lifetime: time.Hour}
	ports := NewMember(&Exit{Name: "ports", SameAs: "isp", Proxy: &proxy}, 10003, 2)
	if got := ports.String(); got != "ports/10003" {
		t.Errorf("name: got %s", got)
	}
	if got, want := ports.Through(), (Through{Exit: "isp/10003", Lifetime: time.Hour}); got != want {
		t.Errorf("through: got %+v, want %+v", got, want)
	}
	rotating := NewMember(&Exit{Name: "r", Proxy: &Proxy{Host: "gw.example", First: 1, Last: 1, Rotating: true}}, 1, 1)
	if got, want := rotating.Through(), (Through{Exit: "r", Rotating: true}); rotating.String() != "r" || got != want {
		t.Errorf("rotating: got %s, %+v, want %+v", rotating.String(), got, want)
	}
	if ports.hash == rotating.hash {
		t.Error("two members hash alike")
	}
}

func TestPickConcurrent(t *testing.T) {
	const workers, each = 8, 3000
	for _, sticky := range []Sticky{StickyNone, StickySession} {
		k := NewPicker(poolOf(sticky, 1, 2, 3))
		counts := make([]map[string]int, workers)
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() {
				counts[w] = map[string]int{}
				for i := range each {
					key := PickKey{Host: "a.example", Session: strconv.Itoa(i)}
					counts[w][k.Pick(key, t0, open).Member.Exit.Name]++
					key.Host = strconv.Itoa(w*each + i)
					k.Pick(key, t0, closed(map[string]ledger.Time{"e" + strconv.Itoa(i%4): t0 + 1}))
				}
			})
		}
		wg.Wait()
		all := map[string]int{}
		for _, c := range counts {
			for name, n := range c {
				all[name] += n
			}
			if sticky == StickySession && !reflect.DeepEqual(c, counts[0]) {
				t.Errorf("one worker's sessions have %v, another's %v", c, counts[0])
			}
		}
		if n := all["e0"] + all["e1"] + all["e2"]; n != workers*each {
			t.Errorf("%d choices, want %d", n, workers*each)
		}
	}
	// At a destination of its own the turns are exact, whoever takes them.
	k := NewPicker(poolOf(StickyNone, 1, 2, 3))
	var wg sync.WaitGroup
	var mu sync.Mutex
	all := map[string]int{}
	for range workers {
		wg.Go(func() {
			got := picks(k, each, "a.example", open)
			mu.Lock()
			defer mu.Unlock()
			for _, name := range got {
				all[name]++
			}
		})
	}
	wg.Wait()
	if want := map[string]int{"e0": workers * each / 6, "e1": workers * each / 3, "e2": workers * each / 2}; !reflect.DeepEqual(all, want) {
		t.Errorf("got %v, want %v", all, want)
	}
}

func TestPickDoesNotAllocate(t *testing.T) {
	shut := map[string]ledger.Time{"e0": t0 + 1, "e7": t0 + 2}
	for _, sticky := range []Sticky{StickyNone, StickyClient, StickySession, StickyDestination} {
		k := NewPicker(poolOf(sticky, ones(20)...))
		key := PickKey{Client: Client{Process: 7}, Session: "s", Host: "a.example"}
		pick := func() {
			k.Pick(key, t0, func(m *Member) Health {
				_, is := shut[m.Exit.Name]
				return Health{Closed: is}
			})
		}
		pick()
		if n := testing.AllocsPerRun(100, pick); n != 0 {
			t.Errorf("sticky %d: %v allocations", sticky, n)
		}
	}
}

func TestPoolRedirects(t *testing.T) {
	p := &Policy{Pools: []*Pool{poolOf(StickyNone, 1), {Name: "six", Listen: netip.MustParseAddrPort("[::1]:3128")}}}
	want := []Endpoint{{p.Pools[0].Listen, "pool"}, {p.Pools[1].Listen, "six"}}
	if got := p.Redirects().Endpoints; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func BenchmarkPick(b *testing.B) {
	for _, bb := range []struct {
		name   string
		sticky Sticky
		n      int
		shut   int // of n
	}{
		{"turn of 10", StickyNone, 10, 0},
		{"turn of 200", StickyNone, 200, 0},
		{"turn of 200, 20 closed", StickyNone, 200, 20},
		{"turn of 200, all closed", StickyNone, 200, 200},
		{"turn of 1000", StickyNone, 1000, 0},
		{"sticky of 10", StickyClient, 10, 0},
		{"sticky of 200", StickyClient, 200, 0},
	} {
		b.Run(bb.name, func(b *testing.B) {
			p := poolOf(bb.sticky, ones(bb.n)...)
			k := NewPicker(p)
			healthy := func(m *Member) Health { return Health{Closed: m.Port == 1, Until: t0 + 1} }
			for i := range bb.shut {
				p.Members[i].Port = 1
			}
			key := PickKey{Client: Client{Process: 7}, Host: "www.store.example.com"}
			b.ReportAllocs()
			for b.Loop() {
				key.Client.Process++
				k.Pick(key, t0, healthy)
			}
		})
	}
}
