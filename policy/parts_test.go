// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
)

// stringsShare reports whether two strings lie in the same memory.
func stringsShare(a, b string) bool { return unsafe.StringData(a) == unsafe.StringData(b) }

func TestLaneKey(t *testing.T) {
	for _, tt := range []struct {
		key LaneKey
		id  string
	}{
		{LaneKey{Budget: "store", Destination: "store.example.com", Exit: "direct"}, "store/store.example.com/direct"},
		{LaneKey{Budget: "store"}, "store/-/-"},
		{LaneKey{Budget: "store", Destination: "2001:db8::1"}, "store/2001:db8::1/-"},
		{LaneKey{Budget: "store", Exit: "E-017/abc/def"}, "store/-/E-017/abc/def"},
		{LaneKey{Budget: "api", Destination: "a.example", Path: "/v1/search"}, "api/a.example/-;path=/v1/search"},
		{LaneKey{Budget: "api", Exit: "gw", Session: "u;path=x 1%", Path: "/ü;session=2"}, "api/-/gw;session=u%3Bpath=x%201%25;path=/%C3%BC%3Bsession=2"},
	} {
		if got := tt.key.String(); got != tt.id {
			t.Errorf("%+v is written %q, want %q", tt.key, got, tt.id)
		}
		if got, err := ParseLaneKey(tt.id); err != nil || got != tt.key {
			t.Errorf("ParseLaneKey(%q) = %+v, %v, want %+v", tt.id, got, err, tt.key)
		}
	}
	for _, id := range []string{"", "store", "store/x", "/x/y", "store//y", "store/x/", "-/x/y", "a/b/c;path=", "a/b/c;path=/x;session=y", "a/b/c;session=%4", "a/b/c;path=/%61"} {
		if got, err := ParseLaneKey(id); err == nil {
			t.Errorf("ParseLaneKey(%q) = %+v, want an error", id, got)
		}
	}
}

func FuzzParseLaneKey(f *testing.F) {
	for _, s := range []string{"store/store.example.com/direct", "store/-/-", "a/b/c/d", "//", "-/-/-", "a/-/--", "a/b/c;session=x;path=/y", "a/b/c;path=/%3B"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, id string) {
		key, err := ParseLaneKey(id)
		if err != nil {
			return
		}
		if got := key.String(); got != id {
			t.Errorf("%q became %+v, which is written %q", id, key, got)
		}
	})
}

func TestRedirects(t *testing.T) {
	port := func(p uint16, local, closed bool) PortRedirect {
		return PortRedirect{Port: p, Local: local, FailClosed: closed}
	}
	prefix := func(p string, port uint16, closed bool) PrefixRedirect {
		return PrefixRedirect{Prefix: netip.MustParsePrefix(p), Port: port, FailClosed: closed}
	}
	for _, tt := range []struct {
		name     string
		budgets  []*Budget
		ports    []PortRedirect
		prefixes []PrefixRedirect
	}{
		{"nothing", nil, nil, nil},
		{"a name", []*Budget{budget("b", 0, sec, "a.example")}, []PortRedirect{port(80, false, false), port(443, false, false)}, nil},
		{"everything", []*Budget{budget("b", 0, sec)}, []PortRedirect{port(80, false, false), port(443, false, false)}, nil},
		{"off", []*Budget{with(budget("b", 0, sec), func(b *Budget) { b.Mode = Off })}, nil, nil},
		{"shadow", []*Budget{with(budget("b", 0, sec), func(b *Budget) { b.Mode = Shadow })}, []PortRedirect{port(80, false, false), port(443, false, false)}, nil},
		{"ports in so many words", []*Budget{with(budget("b", 0, sec, "a.example"), func(b *Budget) { b.Match.Ports, b.Match.PortsNamed = []uint16{8080}, true })},
			[]PortRedirect{port(8080, true, false)}, nil},
		{"localhost", []*Budget{budget("b", 0, sec, "localhost")}, []PortRedirect{port(80, true, false), port(443, true, false)}, nil},
		{"below localhost", []*Budget{budget("b", 0, sec, "*.localhost")}, []PortRedirect{port(80, true, false), port(443, true, false)}, nil},
		{"addresses alone", []*Budget{budget("b", 0, sec, "127.0.0.1", "2001:db8::1", "10.1.2.3/8")}, nil, []PrefixRedirect{
			prefix("10.0.0.0/8", 80, false), prefix("10.0.0.0/8", 443, false), prefix("127.0.0.1/32", 80, false), prefix("127.0.0.1/32", 443, false),
			prefix("2001:db8::1/128", 80, false), prefix("2001:db8::1/128", 443, false)}},
		{"a name and a loopback address", []*Budget{budget("b", 0, sec, "a.example", "127.0.0.0/8")},
			[]PortRedirect{port(80, false, false), port(443, false, false)}, []PrefixRedirect{prefix("127.0.0.0/8", 80, false), prefix("127.0.0.0/8", 443, false)}},
		{"merged", []*Budget{
			budget("b1", 0, sec, "a.example", "10.0.0.0/8"),
			with(budget("b2", 0, sec, "b.example", "10.0.0.0/8"), func(b *Budget) {
				b.Match.Ports, b.Match.PortsNamed, b.FailClosed = []uint16{443}, true, true
			}),
		}, []PortRedirect{port(80, false, false), port(443, true, true)}, []PrefixRedirect{prefix("10.0.0.0/8", 80, false), prefix("10.0.0.0/8", 443, true)}},
	} {
		p := &Policy{Budgets: tt.budgets, Exits: []Exit{{Name: "vpn", Interface: "wg0"}}}
		want := Redirects{Ports: tt.ports, Prefixes: tt.prefixes, Exits: p.Exits}
		got := p.Redirects()
		for i := range got.Ports { // what they ask of the kernel plane is for TestPlaneSets
			got.Ports[i].Ask, got.Ports[i].Set = false, PlaneSet{}
		}
		for i := range got.Prefixes {
			got.Prefixes[i].Set = PlaneSet{}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: redirects\n%+v, want\n%+v", tt.name, got, want)
		}
	}
}

func TestCooling(t *testing.T) {
	c := Cooldown{Default: 2 * sec, Max: time.Hour, Spread: 0.1}
	for _, tt := range []struct {
		given   time.Duration
		strikes int
		want    time.Duration
	}{
		{0, 1, 2 * sec}, {0, 0, 2 * sec}, {0, 2, 4 * sec}, {0, 5, 32 * sec}, {0, 6, time.Minute}, {0, 1000, time.Minute},
		{7 * sec, 5, 7 * sec}, // who names a time is believed
		{2 * time.Hour, 1, time.Hour},
	} {
		if got := c.Cooling(tt.given, tt.strikes); got != tt.want {
			t.Errorf("Cooling(%v, %d) = %v, want %v", tt.given, tt.strikes, got, tt.want)
		}
	}
	if got, want := (Cooldown{Default: 5 * time.Minute}).Cooling(0, 3), 5*time.Minute; got != want {
		t.Errorf("a default above the bound of back-off became %v, want %v", got, want)
	}
	if got, want := (Cooldown{}).Cooling(48*time.Hour, 1), 24*time.Hour; got != want {
		t.Errorf("without a maximum: %v, want %v", got, want)
	}
	for _, tt := range []struct {
		delay time.Duration
		rnd   float64
		want  time.Duration
	}{{10 * sec, 0, 0}, {10 * sec, 0.5, 500 * ms}, {time.Hour, 0.5, 15 * sec}, {0, 0.9, 0}} {
		if got := c.Later(tt.delay, tt.rnd); got != tt.want {
			t.Errorf("Later(%v, %v) = %v, want %v", tt.delay, tt.rnd, got, tt.want)
		}
	}
	if got := (Cooldown{}).Later(time.Hour, 0.9); got != 0 {
		t.Errorf("without spread: %v later, want 0", got)
	}
}

func TestLimits(t *testing.T) {
	for _, tt := range []struct {
		rate                Rate
		burst               float64
		interval, tolerance time.Duration
	}{
		{Rate{1, sec}, 1, sec, 0},
		{Rate{100, sec}, 5, 10 * ms, 40 * ms},
		{Rate{3, sec}, 1, 333333334, 0}, // up, so that the pace is not above the rate
		{Rate{1, sec}, 1.5, sec, 500 * ms},
		{Rate{1, sec}, 0.25, sec, 0},
		{Rate{0.0056, sec}, 1, 178571428572, 0},
		{Rate{}, 5, 0, 0},
	} {
		b := &Budget{Rate: tt.rate, Burst: tt.burst}
		if i, tol := b.Interval(), tolerance(b.Burst, b.Interval()); i != tt.interval || tol != tt.tolerance {
			t.Errorf("%+v, burst %v: interval %v, tolerance %v, want %v, %v", tt.rate, tt.burst, i, tol, tt.interval, tt.tolerance)
		}
	}
}

func TestTarget(t *testing.T) {
	shadow := budget("shadow", perBoth, sec)
	shadow.Mode = Shadow
	e := mustEngine(t, 8, nil, shadow, budget("dest", PerDestination, sec), budget("all", 0, sec))
	lanes := e.Select(nil, facts("a"), ForRequest, t0)
	if got := Target(lanes); got != lanes[1] {
		t.Errorf("target = %v, want the most specific that is enforced", got)
	}
	if got := Target(lanes[:1]); got != nil {
		t.Errorf("target among shadows = %v, want nil", got)
	}
}

func TestTally(t *testing.T) {
	e := mustEngine(t, 8, nil)
	ty := e.Tally("a.example", "direct")
	if e.Tally("a.example", "direct") != ty || e.Tally("a.example", "vpn") == ty {
		t.Fatal("tallies are not by destination and exit")
	}
	for _, code := range []int{200, 200, 429, 599, 100, 99, 600, -1} {
		ty.CountCode(code)
	}
	ty.CountError()
	if got, want := ty.Codes(), map[int]uint64{100: 1, 200: 2, 429: 1, 599: 1}; !reflect.DeepEqual(got, want) {
		t.Errorf("codes = %v, want %v", got, want)
	}
	if ty.Errors() != 4 || ty.Requests() != 9 {
		t.Errorf("errors, requests = %d, %d, want 4, 9", ty.Errors(), ty.Requests())
	}
	for i, r := range Refusals() {
		for range i + 1 {
			ty.CountRefused(r)
		}
	}
	names := map[string]bool{}
	for i, r := range Refusals() {
		if got := ty.Refused(r); got != uint64(i+1) {
			t.Errorf("refused %v = %d, want %d", r, got, i+1)
		}
		if r.String() == "" || names[r.String()] {
			t.Errorf("refusal %d has the name %q, which is empty or another's", i, r)
		}
		names[r.String()] = true
	}
	ty.CountLimited(verdict.Challenge)
	if ty.Limited(verdict.Challenge) != 1 || ty.Limited(verdict.Limited) != 0 {
		t.Errorf("limited by kind = %d challenge, %d limited, want 1, 0", ty.Limited(verdict.Challenge), ty.Limited(verdict.Limited))
	}
	ty.AddBytes(Sent, 7)
	ty.AddBytes(Received, 9)
	if ty.Bytes(Sent) != 7 || ty.Bytes(Received) != 9 {
		t.Errorf("bytes = %d, %d, want 7, 9", ty.Bytes(Sent), ty.Bytes(Received))
	}
	for _, d := range []time.Duration{0, -ms, 5 * ms, 5*ms + 1, 60 * sec, 61 * sec} {
		ty.ObserveWait(d)
	}
	h := ty.Wait()
	want := make([]uint64, len(h.Bounds)+1)
	want[0], want[1], want[len(want)-2], want[len(want)-1] = 3, 1, 1, 1
	if !reflect.DeepEqual(h.Counts, want) || h.Count() != 6 {
		t.Errorf("wait = %v (%d), want %v (6)", h.Counts, h.Count(), want)
	}
	if got, want := h.Sum, 121.01; got < want || got > want+1e-6 {
		t.Errorf("sum of waits = %v s, want %v", got, want)
	}
	if got, want := len(e.Tallies()), 2; got != want {
		t.Errorf("%d tallies, want %d", got, want)
	}
}

func TestTalliesAreBounded(t *testing.T) {
	e := mustEngine(t, 8, nil)
	for i := range maxTallies + 10 {
		e.Tally(strings.Repeat("x", i%100), strings.Repeat("y", i/100))
	}
	if got := len(e.Tallies()); got > maxTallies+1 {
		t.Errorf("%d tallies, want at most %d", got, maxTallies+1)
	}
	if got := e.Tally("one", "more"); got.Destination != OtherLabel || got.Exit != OtherLabel {
		t.Errorf("one more is %s, %s, want what stands for others", got.Destination, got.Exit)
	}
}

func TestMeter(t *testing.T) {
	m := new(ExitMeter)
	at := func(s float64) ledger.Time { return t0.Add(time.Duration(s * float64(sec))) }
	counts := func(now ledger.Time) map[float64]uint64 {
		h, out := m.Seconds(now), map[float64]uint64{}
		for i, n := range h.Counts {
			if n > 0 {
				out[append(h.Bounds, -1)[i]] = n
			}
		}
		return out
	}
	if got := counts(at(9)); len(got) != 0 {
		t.Errorf("before the first request: %v, want nothing", got)
	}
	for _, s := range []float64{0.1, 0.2, 0.9999, 1, 1.5, 5.2} {
		m.Count(at(s))
	}
	m.Count(at(4.999)) // a little late: counted to the second that is open
	for _, tt := range []struct {
		now  float64
		want map[float64]uint64
		sum  float64
	}{
		{5.5, map[float64]uint64{5: 1, 2: 1, 0: 3}, 5},
		{6, map[float64]uint64{5: 1, 2: 2, 0: 3}, 7},
		{8, map[float64]uint64{5: 1, 2: 2, 0: 5}, 7},
		{8.9, map[float64]uint64{5: 1, 2: 2, 0: 5}, 7},
	} {
		if got := counts(at(tt.now)); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("at +%vs: %v, want %v", tt.now, got, tt.want)
		}
		if got := m.Seconds(at(tt.now)).Sum; got != tt.sum {
			t.Errorf("at +%vs: sum %v, want %v", tt.now, got, tt.sum)
		}
	}
	if got := m.Highest(); got != 3 {
		t.Errorf("highest = %d, want 3", got)
	}
	m.Count(at(8.95)) // what was seen ahead of it stays true
	if got, want := counts(at(9)), (map[float64]uint64{5: 1, 2: 2, 1: 1, 0: 5}); !reflect.DeepEqual(got, want) {
		t.Errorf("after one more: %v, want %v", got, want)
	}
}

func TestMeterConcurrent(t *testing.T) {
	m := new(ExitMeter)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 5000 {
				m.Count(t0.Add(time.Duration(i) * ms))
			}
		})
	}
	wg.Wait()
	h := m.Seconds(t0.Add(10 * sec))
	if h.Sum != 20_000 {
		t.Errorf("%v requests counted, want 20000", h.Sum)
	}
	if got := h.Count(); got != 10 {
		t.Errorf("%d seconds counted, want 10", got)
	}
}

func BenchmarkMeter(b *testing.B) {
	m := new(ExitMeter)
	now := t0
	for b.Loop() {
		now += 1000
		m.Count(now)
	}
}
