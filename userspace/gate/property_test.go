// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
)

// checkWindows fails if in any window more was sent than burst + window/interval.
func checkWindows(t testing.TB, lane string, sent []ledger.Time, interval time.Duration, burst int) {
	t.Helper()
	slices.Sort(sent)
	// It is enough to look at windows that begin and end with a dispatch. With
	// a = sent[i] - i*interval the bound says that no a falls by burst*interval
	// or more below an earlier one.
	highest := int64(-1 << 62)
	for i, at := range sent {
		a := int64(at) - int64(i)*int64(interval)
		highest = max(highest, a)
		if a-highest <= -int64(burst)*int64(interval) {
			t.Fatalf("lane %s: dispatch %d at +%v is one too many for burst %d, one per %v", lane, i, at.Sub(t0), burst, interval)
		}
	}
}

// Random requests with up to four lanes, random answers, clients that leave,
// an operator and reloads: the bounds hold in every lane and every window,
// nothing goes in a cooldown, and when it ends, nobody is left behind.
func TestRandomWorkloads(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { randomWorkload(t, seed) })
	}
}

func randomWorkload(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	interval := func() time.Duration { return time.Duration(1+r.IntN(200)) * ms }
	var budgets []*policy.Budget
	for _, shape := range []struct {
		name string
		per  policy.Per
	}{{"both", perBoth}, {"dest", perDest}, {"exit", perExit}, {"all", 0}} {
		if r.IntN(4) == 0 {
			continue
		}
		b := budget(shape.name, shape.per, interval())
		b.Burst = float64(1 + r.IntN(4))
		b.Queue.MaxWait = time.Duration(1+r.IntN(300)) * sec
		if r.IntN(6) == 0 {
			b.Mode = policy.Shadow
		}
		if r.IntN(3) == 0 {
			b.Match.Path = "/api"
		}
		budgets = append(budgets, b)
	}
	w := newWorld(t, budgets...)
	sent := map[*policy.Lane][]ledger.Time{}
	seen := 0
	var flying []*request
	look := func() {
		for ; seen < len(w.order); seen++ {
			q := w.order[seen]
			for i, l := range q.Waiter.lanes[:q.n] {
				if !q.held(i) {
					continue
				}
				sent[l] = append(sent[l], q.Dispatched())
			}
			flying = append(flying, q)
		}
	}
	known := map[*policy.Lane]ledger.Time{} // end of the cooldown, as known before
	for range 600 {
		for _, l := range w.engine.Lanes() {
			known[l] = ledger.Time(l.Cell.OpenUntil.Load())
		}
		before := len(w.order)
		w.until(w.now.Sub(t0) + time.Duration(r.IntN(100))*ms)
		switch r.IntN(10) {
		case 0, 1, 2, 3, 4:
			path := "/"
			if r.IntN(2) == 0 {
				path = "/api/x"
			}
			w.enterPath(fmt.Sprint("r", len(w.live)), fmt.Sprint("h", r.IntN(4)), path, fmt.Sprint("e", r.IntN(3)))
		case 5, 6, 7:
			look()
			if len(flying) == 0 {
				break
			}
			i := r.IntN(len(flying))
			q := flying[i]
			flying = slices.Delete(flying, i, i+1)
			switch r.IntN(12) {
			case 0:
				w.Abort(&q.Waiter, false, w.now)
			case 1:
				w.Done(&q.Waiter, verdict.Verdict{Kind: verdict.Capacity}, r.Float64(), w.now)
			case 2:
				w.limited(q, time.Duration(r.IntN(3000))*ms)
			case 3:
				w.Done(&q.Waiter, verdict.Verdict{Kind: verdict.ExitTrouble}, r.Float64(), w.now)
			default:
				w.ok(q)
			}
		case 8:
			if len(w.live) > 0 {
				w.Leave(&w.live[r.IntN(len(w.live))].Waiter)
			}
		case 9:
			lanes := w.engine.Lanes()
			if len(lanes) > 0 && r.IntN(4) == 0 {
				w.SetCooldown(lanes[r.IntN(len(lanes))], w.now.Add(time.Duration(r.IntN(2000))*ms))
			}
		}
		for _, q := range w.order[before:] {
			for i, l := range q.Waiter.lanes[:q.n] {
				if q.held(i) && q.Dispatched() < known[l] {
					t.Fatalf("%s went %v before the end of the cooldown of %s", q.name, known[l].Sub(q.Dispatched()), l.ID())
				}
			}
		}
	}
	// Answer everything that still goes, until nothing waits.
	for range 20_000 {
		look()
		for _, q := range flying {
			w.ok(q)
		}
		flying = flying[:0]
		if len(w.timers.heap) == 0 {
			break
		}
		w.until(w.now.Sub(t0) + 50*ms)
	}
	look()
	w.quiet()
	for _, q := range w.live {
		if q.notified > 1 {
			t.Errorf("%s was notified %d times", q.name, q.notified)
		}
		if q.state() == Granted && q.Held() > time.Hour {
			t.Errorf("%s was held %v", q.name, q.Held())
		}
	}
	for l, times := range sent {
		b := l.Budget()
		checkWindows(t, l.ID(), times, b.Interval(), int(b.Burst))
		if got := l.Cell.Granted.Load(); got != uint64(len(times)) {
			t.Errorf("%s: %d units granted, %d requests dispatched", l.ID(), got, len(times))
		}
	}
}

// Under backlog the budget is used up: also where the lane is shared and each
// request needs another lane as well.
func TestUseUnderBacklog(t *testing.T) {
	for _, tt := range []struct {
		name    string
		budgets []*policy.Budget
		hosts   int
		want    int // in 100 s
	}{
		{"one lane", []*policy.Budget{budget("b", perDest, 10*ms)}, 1, 10_000},
		{"a lane that all share", []*policy.Budget{budget("dest", perDest, 15*ms), budget("all", 0, 10*ms)}, 7, 10_000},
		{"exits, destinations and all", []*policy.Budget{budget("both", perBoth, 50*ms), budget("dest", perDest, 20*ms), budget("exit", perExit, 25*ms), budget("all", 0, 10*ms)}, 5, 10_000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, tt.budgets...)
			n := 0
			fill := func() {
				for w.waiting() < 100 {
					w.enter("r", fmt.Sprint("h", n%tt.hosts), fmt.Sprint("e", n/tt.hosts%5))
					n++
				}
			}
			sent := 0
			for fill(); w.now < t0.Add(100*sec); fill() {
				w.until(w.now.Sub(t0) + 5*ms)
				for _, q := range w.order {
					w.ok(q)
				}
				sent += len(w.order)
				w.order, w.live = w.order[:0], w.live[:0]
			}
			if sent < tt.want*99/100 || sent > tt.want+1 {
				t.Errorf("%d sent in 100 s, want 99%% to 100%% of %d", sent, tt.want)
			}
		})
	}
}

// waiting is the number of requests in the gate.
func (w *world) waiting() (n int64) {
	seen := map[*policy.Tally]bool{}
	for _, l := range w.engine.Lanes() {
		if !seen[l.Tally] {
			n += l.Tally.Waiting.Load()
			seen[l.Tally] = true
		}
	}
	return n
}
