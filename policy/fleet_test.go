// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"testing"
	"time"

	"github.com/egressd/egressd/policy/fleet"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
)

// TestFleetLimit looks at what a fleet makes of budgets, and that windows are
// kept by it: GCRA lets no more go in any window of that length.
func TestFleetLimit(t *testing.T) {
	rate := func(n float64, per time.Duration) Rate { return Rate{Count: n, Every: per} }
	for _, tc := range []struct {
		name string
		b    Budget
		want fleet.Limit
	}{
		{"rate", Budget{Rate: rate(20, time.Second), Burst: 5}, fleet.Limit{Interval: 50 * time.Millisecond, Burst: 5}},
		{"half a unit", Budget{Rate: rate(1, time.Second), Burst: 0.5}, fleet.Limit{Interval: time.Second, Burst: 1}},
		{"dear", Budget{Rate: rate(20, time.Second), Burst: 25, Cost: Cost{Units: 10}}, fleet.Limit{Interval: 500 * time.Millisecond, Burst: 2}},
		{"window", Budget{Window: Window{Limit: 61, Per: time.Minute}}, fleet.Limit{Interval: time.Second, Burst: 1}},
		{"one in a window", Budget{Window: Window{Limit: 1, Per: time.Minute}}, fleet.Limit{Interval: time.Minute, Burst: 1}},
		{"window of dear ones", Budget{Window: Window{Limit: 70, Per: time.Minute}, Cost: Cost{Units: 10}}, fleet.Limit{Interval: 10 * time.Second, Burst: 1}},
		{"the rate is enough", Budget{Rate: rate(1, time.Second), Burst: 10, Window: Window{Limit: 100, Per: time.Minute}}, fleet.Limit{Interval: time.Second, Burst: 10}},
		{"the burst is too much", Budget{Rate: rate(1, time.Second), Burst: 50, Window: Window{Limit: 100, Per: time.Minute}}, fleet.Limit{Interval: time.Second, Burst: 1}},
		{"the window is slower", Budget{Rate: rate(100, time.Second), Burst: 1, Window: Window{Limit: 61, Per: time.Minute}}, fleet.Limit{Interval: time.Second, Burst: 1}},
		{"at once only", Budget{Concurrency: 3}, fleet.Limit{Burst: 1}},
		{"auto", Budget{Rate: rate(5, time.Second), Auto: true, Burst: 3}, fleet.Limit{Burst: 1}},
	} {
		got := tc.b.FleetLimit()
		if got != tc.want {
			t.Errorf("%s: got %+v, want %+v", tc.name, got, tc.want)
		}
		if w := tc.b.Window; w.Limit > 1 {
			if most := (got.Burst + uint64(w.Per/got.Interval)) * tc.b.Cost.AtDispatch(); most > w.Limit {
				t.Errorf("%s: %d units go in a window of %d", tc.name, most, w.Limit)
			}
		}
	}
}

// ear is a Fleeted that remembers.
type ear struct {
	shared map[string]*Shared
	wakes  map[string]ledger.Time
	sleeps uint64
}

func (e *ear) Share(l *Lane, s *Shared) func(ledger.Time) {
	e.shared[l.ID()] = s
	return func(at ledger.Time) { e.wakes[l.ID()] = at }
}

func (e *ear) Sleeps() uint64 { return e.sleeps }

func newEar() *ear { return &ear{shared: map[string]*Shared{}, wakes: map[string]ledger.Time{}} }

// TestWhatIsShared looks at which lanes are a fleet's.
func TestWhatIsShared(t *testing.T) {
	f := &Fleet{PerHost: []string{"direct", "E-2"}}
	shop, own, shadow := budget("shop", perBoth, sec), budget("own", PerDestination, sec), budget("shadow", PerExit, sec)
	all := budget("all", 0, sec)
	shop.Fleet, shadow.Fleet, all.Fleet = f, f, f
	shadow.Mode = Shadow
	e := mustEngine(t, 64, nil, shop, own, shadow, all)
	early := e.Select(nil, &Facts{Host: "early.example", Dest: netip.MustParseAddrPort("192.0.2.1:80"), Exit: "E-1"}, ForRequest, t0)
	heard := newEar()
	e.Join(heard, "host", t0)
	for _, exit := range []string{"direct", "E-1", "E-1/7", "E-2", "E-2/7"} {
		early = append(early, e.Select(nil, &Facts{Host: "a.example", Dest: netip.MustParseAddrPort("192.0.2.1:80"), Exit: exit}, ForRequest, t0)...)
	}
	for _, l := range early {
		own := l.Key.Exit == "direct" || l.Key.Exit == "E-2" || l.Key.Exit == "E-2/7"
		want := (l.Key.Budget == "shop" || l.Key.Budget == "all") && !own
		if got := l.Shared() != nil; got != want || got != (heard.shared[l.ID()] != nil) {
			t.Errorf("%s: shared = %v, want %v", l.ID(), got, want)
		}
	}
}

// answer makes the calls that a lane has due and answers each.
func (e *ear) answer(t *testing.T, l *Lane, now ledger.Time, a fleet.Answer) (kinds []fleet.Kind) {
	t.Helper()
	s := e.shared[l.ID()]
	for _, f := range s.Due(now) {
		kinds = append(kinds, f.Kind)
		if f.Lane != l.ID() || f.Host != "host" {
			t.Errorf("call %+v for %s", f, l.ID())
		}
		s.Answered(f, a, now)
	}
	return kinds
}

func sharedLane(t *testing.T, change func(*Budget)) (*Lane, *ear) {
	t.Helper()
	b := budget("shop", perBoth, 100*time.Millisecond)
	b.Fleet = &Fleet{Hosts: 2}
	change(b)
	e, heard := mustEngine(t, 64, nil, b), newEar()
	e.Join(heard, "host", t0)
	return e.Select(nil, &Facts{Host: "a.example", Dest: netip.MustParseAddrPort("192.0.2.1:80"), Exit: "E-1"}, ForRequest, t0)[0], heard
}

// TestSharedTake has units go only as the store gives them, and the cell agree.
func TestSharedTake(t *testing.T) {
	l, heard := sharedLane(t, func(*Budget) {})
	if _, wait, ok := l.Take(t0); ok || wait != 0 || !l.Awaits(t0) || l.InFlight.Load() != 0 {
		t.Fatalf("took of a store that was not asked: wait %v, awaits %v", wait, l.Awaits(t0))
	}
	l.Want(2, t0)
	if at, woken := heard.wakes[l.ID()]; !woken || at > t0 {
		t.Fatalf("the call is due at %v", at)
	}
	now := t0.Add(time.Millisecond)
	if kinds := heard.answer(t, l, now, fleet.Answer{Granted: 1, After: 40 * time.Millisecond, Grant: "1", Interval: 100 * time.Millisecond, Hosts: 3}); len(kinds) != 1 || kinds[0] != fleet.Lease {
		t.Fatalf("calls %v", kinds)
	}
	if wait, ready := l.Peek(now); ready || wait != 40*time.Millisecond || l.Awaits(now) {
		t.Errorf("Peek: %v, %v", wait, ready)
	}
	if after := l.After(now, 0); after != 40*time.Millisecond {
		t.Errorf("After: %v", after)
	}
	now = now.Add(40 * time.Millisecond)
	g, _, ok := l.Take(now)
	if !ok || l.InFlight.Load() != 1 || l.Cell.Granted.Load() != 1 {
		t.Fatalf("the slot came, and there is no unit: %+v", g)
	}
	if _, _, again := l.Take(now); again {
		t.Error("one unit went twice")
	}
	l.Return(g, now)
	l.Release()
	if _, _, again := l.Take(now); !again {
		t.Error("what was returned is not there")
	}
	st := l.Shared().State(now)
	if st.Hosts != 3 || st.Scheme != fleet.Leases || st.Mode != fleet.Together || st.Stats.Granted != 1 {
		t.Errorf("state %+v", st)
	}
}

// TestSleep has units end while the machine sleeps and the ledger's clock stands
// still.
func TestSleep(t *testing.T) {
	l, heard := sharedLane(t, func(*Budget) {})
	l.Want(2, t0)
	heard.answer(t, l, t0, fleet.Answer{Granted: 1, Grant: "1", Interval: 100 * time.Millisecond, Hosts: 1})
	if _, ready := l.Peek(t0); !ready {
		t.Fatal("no unit")
	}
	heard.sleeps++
	if _, _, ok := l.Take(t0.Add(time.Millisecond)); ok {
		t.Error("a unit of before the sleep went")
	}
	if calls := heard.answer(t, l, t0.Add(time.Millisecond), fleet.Answer{Granted: 1, Grant: "2", Interval: 100 * time.Millisecond, Hosts: 1}); len(calls) == 0 {
		t.Error("the store is not asked")
	}
	if _, _, ok := l.Take(t0.Add(time.Millisecond)); !ok {
		t.Error("no unit after the sleep")
	}
}

// TestSharedTakesNothingForTrying keeps units of the fleet out of the hands of
// who cannot go for another reason.
func TestSharedTakesNothingForTrying(t *testing.T) {
	l, heard := sharedLane(t, func(b *Budget) { b.Concurrency = 1 })
	l.Want(1, t0)
	heard.answer(t, l, t0, fleet.Answer{Granted: 1, Grant: "1", Interval: 100 * time.Millisecond, Hosts: 1})
	l.Hold()
	if _, _, ok := l.Take(t0); ok {
		t.Error("two under way, where one may be")
	}
	l.Release()
	l.Cell.Close(t0.Add(time.Second))
	if _, _, ok := l.Take(t0); ok {
		t.Error("took of a closed cell")
	}
	if held := l.Shared().State(t0).Held; held != 1 {
		t.Errorf("%d units are left of one", held)
	}
}

// TestFollow has the cell follow what other hosts were told, once.
func TestFollow(t *testing.T) {
	l, heard := sharedLane(t, func(*Budget) {})
	s := heard.shared[l.ID()]
	if until, slower := l.Follow(t0); until != 0 || slower {
		t.Errorf("nothing was heard: %v, %v", until, slower)
	}
	s.Heard(fleet.Answer{Epoch: 1, OpenAfter: 3 * time.Second, Interval: 200 * time.Millisecond}, t0)
	if until, slower := l.Follow(t0); until != t0.Add(3*time.Second) || !slower {
		t.Errorf("got %v, %v", until, slower)
	}
	if open := ledger.Time(l.Cell.OpenUntil.Load()); open != t0.Add(3*time.Second) || l.Cell.Epoch.Load() != 1 || l.Cell.Interval.Load() != uint64(200*time.Millisecond) {
		t.Errorf("the cell opens at %v, epoch %d, interval %v", open, l.Cell.Epoch.Load(), time.Duration(l.Cell.Interval.Load()))
	}
	if until, slower := l.Follow(t0.Add(time.Millisecond)); until != 0 || slower {
		t.Errorf("the same again: %v, %v", until, slower)
	}
	// Closed for longer, and no slower: that of a quota.
	s.Heard(fleet.Answer{Epoch: 2, OpenAfter: 5 * time.Second, Interval: 200 * time.Millisecond}, t0)
	if until, slower := l.Follow(t0); until != t0.Add(5*time.Second) || slower || l.Cell.Epoch.Load() != 1 {
		t.Errorf("got %v, %v, epoch %d", until, slower, l.Cell.Epoch.Load())
	}
}

// TestSharedPenalty tells the fleet what this host was told, and hears no news of
// its own.
func TestSharedPenalty(t *testing.T) {
	l, heard := sharedLane(t, func(*Budget) {})
	l.Want(1, t0)
	heard.answer(t, l, t0, fleet.Answer{Granted: 1, Grant: "1", Interval: 100 * time.Millisecond, Hosts: 1})
	g, _, ok := l.Take(t0)
	if !ok {
		t.Fatal("no unit")
	}
	l.Penalize(&g, t0.Add(2*time.Second), t0)
	calls := heard.shared[l.ID()].Due(t0)
	if len(calls) == 0 || calls[0].Kind != fleet.Close || calls[0].Until != 2*time.Second || calls[0].Epoch != 0 || calls[0].Factor != 0.5 {
		t.Fatalf("calls %+v", calls)
	}
	if until, slower := l.Follow(t0); until != 0 || slower || l.Cell.Epoch.Load() != 1 {
		t.Errorf("its own penalty came back as news: %v, %v", until, slower)
	}
	// News of before the penalty is no second one.
	l.Penalize(&g, t0.Add(time.Second), t0)
	for _, f := range heard.shared[l.ID()].Due(t0) {
		if f.Kind == fleet.Close {
			t.Errorf("the same refusal is told twice: %+v", f)
		}
	}
}

// TestSharedLearns tells the fleet of a limit that answers told.
func TestSharedLearns(t *testing.T) {
	l, heard := sharedLane(t, func(*Budget) {})
	l.Want(1, t0)
	heard.answer(t, l, t0, fleet.Answer{Granted: 1, Grant: "1", Interval: 100 * time.Millisecond, Hosts: 1})
	g, _, _ := l.Take(t0)
	var v verdict.Verdict
	v.Quota.PerSecond = 2
	l.Learn(&v, &g, t0, t0.Add(time.Millisecond))
	if base := time.Duration(l.Cell.BaseInterval.Load()); base != 500*time.Millisecond {
		t.Fatalf("learned %v", base)
	}
	calls := heard.shared[l.ID()].Due(t0.Add(time.Millisecond))
	if len(calls) == 0 || calls[0].Kind != fleet.Close || calls[0].Until != 0 || calls[0].Factor != 0.2 {
		t.Errorf("calls %+v", calls)
	}
}
