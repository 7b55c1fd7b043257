// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"slices"
	"testing"
	"time"

	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
)

// one is the lane of a request that falls under a single budget.
func one(t testing.TB, b *Budget) (*Engine, *Lane) {
	t.Helper()
	e := mustEngine(t, 8, nil, b)
	lanes := e.Select(nil, facts("a.example"), ForRequest, t0)
	if len(lanes) != 1 {
		t.Fatalf("lanes = %q, want one", ids(lanes))
	}
	return e, lanes[0]
}

// takes takes as much as there is at an instant.
func takes(l *Lane, now ledger.Time) (grants []Grant) {
	for {
		g, _, ok := l.Take(now)
		if !ok {
			return grants
		}
		grants = append(grants, g)
	}
}

func TestTakeHoldsAllLimits(t *testing.T) {
	for _, tt := range []struct {
		name   string
		change func(*Budget)
		want   int           // at once, released at once
		wait   time.Duration // for the next
		open   int           // at once, none released
	}{
		{"rate", func(b *Budget) { b.Burst = 5 }, 5, sec, 5},
		{"a burst below one", func(b *Budget) { b.Burst = 0.3 }, 1, sec, 1},
		{"a slow rate", func(b *Budget) { b.Rate = Rate{0.0056, sec} }, 1, 178571428572, 1},
		{"sliding window", func(b *Budget) { b.Rate, b.Window = Rate{}, Window{3, time.Minute, Sliding} }, 3, time.Minute, 3},
		{"fixed window", func(b *Budget) { b.Rate, b.Window = Rate{}, Window{3, time.Minute, Fixed} }, 3, time.Minute, 3},
		{"window and rate, the window first", func(b *Budget) { b.Burst, b.Window = 10, Window{3, time.Minute, Sliding} }, 3, time.Minute, 3},
		{"window and rate, the rate first", func(b *Budget) { b.Burst, b.Window = 2, Window{3, time.Minute, Sliding} }, 2, sec, 2},
		{"concurrency", func(b *Budget) { b.Burst, b.Concurrency = 10, 4 }, 10, sec, 4},
		{"cost of the rate", func(b *Budget) { b.Burst, b.Cost = 10, Cost{Units: 5} }, 2, 5 * sec, 2},
		{"cost above the burst", func(b *Budget) { b.Burst, b.Cost = 2, Cost{Units: 5} }, 1, 5 * sec, 1},
		{"cost of the window", func(b *Budget) {
			b.Rate, b.Cost, b.Window = Rate{}, Cost{Units: 2}, Window{5, time.Minute, Sliding}
		}, 2, time.Minute, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := budget("b", perBoth, sec)
			tt.change(b)
			_, l := one(t, b)
			got := 0
			for {
				_, ready := l.Peek(t0)
				_, wait, ok := l.Take(t0)
				if ok != ready {
					t.Fatalf("Peek says %v, Take %v", ready, ok)
				}
				if !ok {
					if wait != tt.wait {
						t.Errorf("the next waits %v, want %v", wait, tt.wait)
					}
					if tt.wait > 0 {
						if after := l.After(t0, 0); after != tt.wait {
							t.Errorf("After = %v, want %v", after, tt.wait)
						}
					}
					break
				}
				got++
				l.Release()
			}
			if got != tt.want {
				t.Errorf("%d went at once, want %d", got, tt.want)
			}
			if n := l.InFlight.Load(); n != 0 {
				t.Errorf("%d under way after all were released", n)
			}

			_, l = one(t, b)
			if got := len(takes(l, t0)); got != tt.open {
				t.Errorf("%d are under way at once, want %d", got, tt.open)
			}
			if full := int(l.InFlight.Load()) == b.Concurrency; l.Full() != full || l.Stuck() != full {
				t.Errorf("Full = %v, Stuck = %v, want %v", l.Full(), l.Stuck(), full)
			}
		})
	}
}

// What one limit refuses must not have been taken from the others.
func TestTakeAllOrNothing(t *testing.T) {
	b := budget("b", perBoth, sec)
	b.Burst, b.Concurrency, b.Window = 3, 2, Window{10, time.Minute, Sliding}
	_, l := one(t, b)
	grants := takes(l, t0)
	if len(grants) != 2 {
		t.Fatalf("%d went, want 2", len(grants))
	}
	for range 5 {
		if _, _, ok := l.Take(t0); ok {
			t.Fatal("a third went beside two")
		}
	}
	s := l.State(t0)
	if s.InFlight != 2 || s.Window.Left != 8 || l.Cell.Granted.Load() != 2 {
		t.Errorf("after refusals: %d under way, %d left in the window, %d granted, want 2, 8, 2", s.InFlight, s.Window.Left, l.Cell.Granted.Load())
	}
	for _, g := range slices.Backward(grants) {
		l.Return(g, t0)
		l.Release()
	}
	if s := l.State(t0); s.InFlight != 0 || s.Window.Left != 10 || l.Cell.Granted.Load() != 0 {
		t.Errorf("after all came back: %+v, window %+v, %d granted", s, s.Window, l.Cell.Granted.Load())
	}
	// The bucket is full again, too: one place at a time shows it.
	for i := range 3 {
		if _, _, ok := l.Take(t0); !ok {
			t.Fatalf("unit %d of the burst did not go", i+1)
		}
		l.Release()
	}
	if _, _, ok := l.Take(t0); ok {
		t.Error("more than the burst went")
	}
}

// A connection keeps its place until it ends, whatever its requests do.
func TestHold(t *testing.T) {
	b := budget("b", perBoth, ms)
	b.Burst, b.Concurrency = 100, 1
	_, l := one(t, b)
	if _, _, ok := l.Take(t0); !ok {
		t.Fatal("not granted")
	}
	l.Hold()
	l.Release()
	if _, _, ok := l.Take(t0); ok {
		t.Error("another went beside the connection")
	}
	l.Release()
	if _, _, ok := l.Take(t0); !ok {
		t.Error("none goes after the connection ended")
	}
}

func TestReloadChangesLimits(t *testing.T) {
	b := budget("b", perBoth, sec)
	e, l := one(t, b)
	if len(takes(l, t0)) != 1 {
		t.Fatal("not granted")
	}
	l.Release()
	next := *b
	next.Rate, next.Window, next.Concurrency = Rate{}, Window{2, time.Minute, Sliding}, 5
	e.Swap(&Policy{Budgets: []*Budget{&next}}, t0)
	if got := len(takes(l, t0)); got != 2 {
		t.Errorf("under the window %d went, want 2", got)
	}
	last := next
	last.Window.Limit, last.Concurrency = 4, 0
	e.Swap(&Policy{Budgets: []*Budget{&last}}, t0)
	if got := len(takes(l, t0)); got != 2 {
		t.Errorf("when the window grew by two %d went", got)
	}
	plain := last
	plain.Window = Window{}
	e.Swap(&Policy{Budgets: []*Budget{&plain}}, t0)
	if _, _, ok := l.Take(t0); !ok {
		t.Error("without any limit none went")
	}
}

// What was taken of a window that a reload took away is not given back to the
// one that a later reload brought.
func TestReturnToAnotherWindow(t *testing.T) {
	b := budget("b", perBoth, sec)
	b.Rate, b.Window = Rate{}, Window{3, time.Minute, Sliding}
	e, l := one(t, b)
	old, _, _ := l.Take(t0)
	plain := *b
	plain.Rate, plain.Burst, plain.Window = Rate{1000, sec}, 100, Window{}
	e.Swap(&Policy{Budgets: []*Budget{&plain}}, t0)
	e.Swap(&Policy{Budgets: []*Budget{b}}, t0)
	before := l.State(t0).Window.Left
	if _, _, ok := l.Take(t0); !ok {
		t.Fatal("not granted")
	}
	l.Return(old, t0)
	if got := l.State(t0).Window.Left; got != before-1 {
		t.Errorf("%d left after one of %d went, want %d", got, before, before-1)
	}
}

// The window outlives the daemon as the cell does.
func TestRestartKeepsWindow(t *testing.T) {
	b := budget("b", perBoth, sec)
	b.Rate, b.Window = Rate{}, Window{3, time.Hour, Sliding}
	x := &index{m: map[LaneKey]uint32{}}
	cells := make([]ledger.Cell, 8)
	for i, want := range []int{2, 1, 0} {
		now := t0.Add(time.Duration(i) * time.Minute)
		e, err := NewEngine(&Policy{Budgets: []*Budget{b}}, cells, x, now)
		if err != nil {
			t.Fatal(err)
		}
		l := e.Select(nil, facts("a.example"), ForRequest, now)[0]
		if i == 0 {
			l.Take(now)
			l.Take(now)
			continue
		}
		if got := len(takes(l, now)); got != want {
			t.Errorf("daemon %d: %d went, want %d", i+1, got, want)
		}
	}
}

func TestCorrect(t *testing.T) {
	b := budget("b", perBoth, sec)
	b.Burst, b.Cost, b.Window = 10, Cost{Units: 2, Header: "x-cost"}, Window{100, time.Hour, Sliding}
	for _, tt := range []struct {
		cost uint64
		wait time.Duration // until the bucket holds the next two units, after eight were taken
		left uint64
	}{{2, 0, 92}, {1, 0, 92}, {5, 3 * sec, 89}, {9, 7 * sec, 85}, {1000, 12 * sec, 0}} {
		_, l := one(t, b)
		var last Grant
		for range 4 {
			g, _, ok := l.Take(t0)
			if !ok {
				t.Fatal("not granted")
			}
			last = g
		}
		l.Correct(&last, tt.cost, t0)
		if wait, _ := l.Cell.Peek(t0, 2); wait != tt.wait {
			t.Errorf("cost %d: the next waits %v, want %v", tt.cost, wait, tt.wait)
		}
		if left := l.State(t0).Window.Left; left != tt.left {
			t.Errorf("cost %d: %d left in the window, want %d", tt.cost, left, tt.left)
		}
	}
}

func TestPenalizeAuto(t *testing.T) {
	b := budget("b", perBoth, sec)
	b.Auto = true
	e, l := one(t, b)
	interval := func() time.Duration { return time.Duration(l.Cell.BaseInterval.Load()) }
	if interval() != sec {
		t.Fatalf("begins at %v, want the budget's rate", interval())
	}
	now := t0
	for range 40 {
		g, wait, ok := l.Take(now)
		for !ok {
			now = now.Add(wait)
			g, wait, ok = l.Take(now)
		}
		l.Reward(&g, true, now)
		l.Release()
	}
	grown := interval()
	if grown >= sec {
		t.Fatalf("after 40 answers under backlog the interval is still %v", grown)
	}
	g, _, _ := l.Take(now.Add(time.Hour))
	if !l.Penalize(&g, now.Add(time.Hour+sec), now.Add(time.Hour)) {
		t.Fatal("not slowed")
	}
	slowed := interval()
	if slowed <= grown || l.Cell.Interval.Load() != l.Cell.BaseInterval.Load() {
		t.Errorf("a limit took the interval from %v to %v, now %v", grown, slowed, time.Duration(l.Cell.Interval.Load()))
	}
	e.Swap(&Policy{Budgets: []*Budget{b}}, now)
	if interval() != slowed {
		t.Errorf("a reload forgot what was learned: %v, want %v", interval(), slowed)
	}
}

func TestLearn(t *testing.T) {
	b := budget("b", perBoth, 10*ms)
	b.Burst = 5
	e, l := one(t, b)
	g, _, _ := l.Take(t0)
	told := verdict.Verdict{Quota: verdict.Quota{Limit: 60, Remaining: 3, Reset: 30 * sec, Window: time.Minute, HasLimit: true, HasRemaining: true, HasReset: true}}
	if until, stricter := l.Learn(&told, &g, t0, t0); until != 0 || !stricter {
		t.Errorf("three left for 30 s: closed until %v, stricter %v, want open and stricter", until, stricter)
	}
	if got := time.Duration(l.Cell.BaseInterval.Load()); got < sec {
		t.Errorf("the interval is %v, want at least that of 60 a minute", got)
	}
	l.Release()
	if got := len(takes(l, t0.Add(sec))); got > 3 {
		t.Errorf("%d went, 3 were left", got)
	}
	if s := l.State(t0.Add(sec)); s.Quota == nil || s.Quota.Limit != 60 {
		t.Errorf("state = %+v, want a quota of 60", s)
	}
	e.Swap(&Policy{Budgets: []*Budget{b}}, t0)
	if got := time.Duration(l.Cell.BaseInterval.Load()); got < sec {
		t.Errorf("a reload forgot what was learned: interval %v", got)
	}

	_, l = one(t, b)
	g, _, _ = l.Take(t0)
	none := verdict.Verdict{Quota: verdict.Quota{Limit: 60, Reset: 30 * sec, HasLimit: true, HasRemaining: true, HasReset: true}, Exhausted: 31 * sec, HasExhausted: true}
	until, _ := l.Learn(&none, &g, t0, t0)
	if want := t0.Add(31 * sec); until != want || ledger.Time(l.Cell.OpenUntil.Load()) != want {
		t.Errorf("nothing left for 31 s: closed until +%v, want +31s", until.Sub(t0))
	}
	if l.Strikes() != 0 || l.Cell.Epoch.Load() != 0 {
		t.Error("a quota that is used up counted as a penalty")
	}

	_, l = one(t, b)
	g, _, _ = l.Take(t0)
	tokens := verdict.Verdict{Quota: verdict.Quota{Limit: 5, Remaining: 1, Reset: time.Hour, HasLimit: true, HasRemaining: true, HasReset: true, Other: true}}
	l.Learn(&tokens, &g, t0, t0)
	if got := time.Duration(l.Cell.BaseInterval.Load()); got != 10*ms {
		t.Errorf("a quota of tokens set the interval to %v", got)
	}
}

func TestStall(t *testing.T) {
	b := budget("b", perBoth, sec)
	_, l := one(t, b)
	g, _, _ := l.Take(t0)
	l.Penalize(&g, t0.Add(sec), t0)
	if _, yes := l.ReportStall(t0.Add(14 * time.Minute)); yes {
		t.Error("stalled after 14 minutes")
	}
	if d, yes := l.ReportStall(t0.Add(16 * time.Minute)); !yes || d != 16*time.Minute {
		t.Errorf("after 16 minutes: %v, %v", d, yes)
	}
	if _, yes := l.ReportStall(t0.Add(17 * time.Minute)); yes {
		t.Error("reported twice")
	}
	g, _, ok := l.Take(t0.Add(18 * time.Minute))
	if !ok {
		t.Fatal("no probe")
	}
	l.Reward(&g, false, t0.Add(18*time.Minute))
	if _, yes := l.Stalled(t0.Add(time.Hour)); yes {
		t.Error("stalled in spite of a success")
	}
}

func TestRetryBudget(t *testing.T) {
	var r RetryBudget
	draw := func() (n int) {
		for r.Withdraw() {
			n++
		}
		return n
	}
	if got := draw(); got != 3 {
		t.Errorf("at first %d repetitions, want 3", got)
	}
	for range 10 {
		r.Deposit()
	}
	if got := draw(); got != 2 {
		t.Errorf("after ten first attempts %d repetitions, want 2", got)
	}
	for range 1000 {
		r.Deposit()
	}
	if got := draw(); got != 10 {
		t.Errorf("after a thousand first attempts %d repetitions, want at most 10", got)
	}
}
