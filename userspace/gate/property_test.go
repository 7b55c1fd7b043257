// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
)

// sending is one dispatch of a lane.
type sending struct {
	at   ledger.Time
	cost uint64 // in the end, if that is less than was taken for it
}

// byTime sorts and returns s.
func byTime(s []sending) []sending {
	slices.SortStableFunc(s, func(a, b sending) int { return cmp.Compare(a.at, b.at) })
	return s
}

// checkWindows fails if in any window more was sent than burst + window/interval.
func checkWindows(t testing.TB, lane string, sent []sending, interval time.Duration, burst float64) {
	t.Helper()
	// It is enough to look at windows that begin and end with a dispatch. With
	// a = at - interval * (units before) the bound says that no a, with its own
	// units as well, falls by more than burst*interval below an earlier one.
	highest, units := int64(-1<<62), int64(0)
	for i, s := range byTime(sent) {
		highest = max(highest, int64(s.at)-units*int64(interval))
		units += int64(s.cost)
		room := max(burst, float64(s.cost)) // a cost above the burst needs a full bucket
		if a := int64(s.at) - units*int64(interval); float64(a-highest) < -room*float64(interval)-1 {
			t.Fatalf("lane %s: dispatch %d at +%v is too much for burst %v, one per %v", lane, i, s.at.Sub(t0), burst, interval)
		}
	}
}

// checkLimit fails if in any stretch of per more was sent than limit.
func checkLimit(t testing.TB, lane string, sent []sending, per time.Duration, limit uint64) {
	t.Helper()
	units, from := uint64(0), 0
	for i, s := range byTime(sent) {
		for sent[from].at.Add(per) <= s.at {
			units -= sent[from].cost
			from++
		}
		if units += s.cost; units > limit {
			t.Fatalf("lane %s: %d units in %v to dispatch %d at +%v, limit %d", lane, units, per, i, s.at.Sub(t0), limit)
		}
	}
}

// Random requests of random clients with up to four lanes, each with a rate, a
// window, a number of places, any of them together or none; random costs and
// answers; clients that leave, an operator, reloads; a clock that threads read
// a little late, and that jumps ahead by hours: the bounds hold in every lane
// and every window, nothing goes in a cooldown, nobody is left behind who could
// go, everybody hears once, and in the end the gate is empty.
func TestRandomWorkloads(t *testing.T) {
	seeds := uint64(120)
	if testing.Short() {
		seeds = 60
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { randomWorkload(t, seed) })
	}
}

// randomBudgets are some budgets of different shapes. Those of one seed have
// the same names, modes and numbers of places.
func randomBudgets(fixed, r *rand.Rand) (budgets []*policy.Budget) {
	for _, shape := range []struct {
		name string
		per  policy.Per
	}{{"both", perBoth}, {"dest", perDest}, {"exit", perExit}, {"all", 0}} {
		if fixed.IntN(4) == 0 {
			continue
		}
		b := budget(shape.name, shape.per, time.Duration(1+r.IntN(200))*ms)
		b.Burst = float64(1 + r.IntN(4))
		b.Queue.MaxWait = time.Duration(1+r.IntN(300)) * sec
		if r.IntN(4) == 0 {
			b.Queue.Max = 1 + r.IntN(20)
		}
		if r.IntN(2) == 0 {
			b.Queue.FairBy = policy.FairCgroup
		}
		if fixed.IntN(3) == 0 {
			b.Concurrency = 1 + fixed.IntN(4)
		}
		if r.IntN(3) == 0 {
			b.Cost.Units = uint64(1 + r.IntN(4))
		}
		if fixed.IntN(4) == 0 {
			b.Cost.Header = "x-cost"
		}
		if r.IntN(3) == 0 {
			b.Window = policy.Window{Limit: uint64(4 + r.IntN(20)), Per: time.Duration(1+r.IntN(4000)) * ms, Kind: policy.WindowKind(r.IntN(2))}
		}
		if r.IntN(4) == 0 {
			b.Rate, b.Burst = policy.Rate{}, 1
		}
		if fixed.IntN(6) == 0 {
			b.Mode = policy.Shadow
		}
		if fixed.IntN(3) == 0 {
			b.Match.Path = "/api"
		}
		budgets = append(budgets, b)
	}
	return budgets
}

func randomWorkload(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	kept := func() *rand.Rand { return rand.New(rand.NewPCG(seed, 2)) }
	w := newWorld(t, randomBudgets(kept(), r)...)
	const late = 20 * time.Microsecond // by which threads may be with their clock
	clients := uint64(1 + r.IntN(5))
	if r.IntN(4) == 0 {
		clients = 200
	}
	quotas := r.IntN(2) == 0
	sent := map[*policy.Lane][]*sending{}
	costs := map[*request][]*sending{}
	seen := 0
	var flying []*request
	look := func() {
		for ; seen < len(w.order); seen++ {
			q := w.order[seen]
			for i, l := range q.Waiter.lanes[:q.n] {
				if !q.held(i) {
					continue
				}
				s := &sending{q.Dispatched(), q.grants[i].Cost}
				sent[l] = append(sent[l], s)
				costs[q] = append(costs[q], s)
				if most := int64(l.Budget().Concurrency); most > 0 && l.InFlight.Load() > most {
					t.Fatalf("%s: %d under way, of %d", l.ID(), l.InFlight.Load(), most)
				}
			}
			flying = append(flying, q)
		}
	}
	check := func() {
		for l, all := range sent {
			b := l.Budget()
			var times []sending
			for _, s := range all {
				if s.cost > 0 {
					times = append(times, *s)
				}
			}
			if b.Interval() > 0 {
				checkWindows(t, l.ID(), times, b.Interval(), b.Burst)
			}
			if b.Window.Limit > 0 && (b.Window.Kind == policy.Sliding || !quotas) { // an origin moves the boundaries as it likes
				limit := b.Window.Limit
				if b.Window.Kind == policy.Fixed {
					limit *= 2 // across a boundary
				}
				// The window takes the instant that it knows for one that is late.
				checkLimit(t, l.ID(), times, b.Window.Per-late, limit)
			}
		}
		clear(sent)
	}
	known := map[*policy.Lane]ledger.Time{} // end of the cooldown, as known before
	for range 800 {
		for _, l := range w.engine.Lanes() {
			known[l] = ledger.Time(l.Cell.OpenUntil.Load())
		}
		before := len(w.order)
		w.until(w.now.Sub(t0) + time.Duration(r.IntN(60))*ms)
		at := w.now.Add(-time.Duration(r.Int64N(int64(late))))
		switch r.IntN(12) {
		case 0, 1, 2, 3, 4, 5:
			path := "/"
			if r.IntN(2) == 0 {
				path = "/api/x"
			}
			q := &request{name: fmt.Sprint("r", len(w.live)), lanes: w.lanes(fmt.Sprint("h", r.IntN(4)), path, fmt.Sprint("e", r.IntN(3)))}
			q.Client.Cgroup = r.Uint64N(clients)
			if r.IntN(6) == 0 {
				q.Since = at.Add(-time.Duration(r.IntN(100)) * sec)
			}
			w.now, at = at, w.now
			w.send(q)
			w.now = max(w.now, at)
		case 6, 7, 8:
			look()
			if len(flying) == 0 {
				break
			}
			i := r.IntN(len(flying))
			q := flying[i]
			flying = slices.Delete(flying, i, i+1)
			var v verdict.Verdict
			if r.IntN(8) == 0 {
				v.Cost, v.HasCost = uint64(r.IntN(8)), true
			}
			if quotas && r.IntN(10) == 0 {
				v.Quota = verdict.Quota{Limit: 100, HasLimit: true, Remaining: int64(r.IntN(20)), HasRemaining: true, Reset: time.Duration(r.IntN(5000)) * ms, HasReset: true}
			}
			switch r.IntN(14) {
			case 0:
				w.Abort(&q.Waiter, false, at)
				continue
			case 1:
				// By a clock that was read before others went, maybe: the unit is not theirs.
				w.Abort(&q.Waiter, true, max(q.Dispatched(), w.now.Add(-time.Duration(r.IntN(400))*ms)))
				for _, s := range costs[q] {
					s.cost = 0
				}
				continue
			case 2:
				v.Kind = verdict.Capacity
			case 3:
				v.Kind, v.Delay, v.HasDelay = verdict.Limited, time.Duration(1+r.IntN(3000))*ms, true
			case 4:
				v.Kind = verdict.ExitTrouble
			case 5:
				v.Kind = verdict.Challenge
			case 6:
				v.Kind = verdict.Error
			}
			n := 0
			for i, l := range q.Waiter.lanes[:q.n] {
				if q.held(i) {
					if v.HasCost && l.Budget().Cost.Header != "" {
						costs[q][n].cost = min(costs[q][n].cost, v.Cost)
					}
					n++
				}
			}
			w.Done(&q.Waiter, v, r.Float64(), at)
		case 9:
			if len(w.live) > 0 {
				q := w.live[r.IntN(len(w.live))]
				if w.Leave(&q.Waiter) {
					q.left = true
				}
			}
		case 10:
			lanes := w.engine.Lanes()
			if len(lanes) == 0 {
				break
			}
			l := lanes[r.IntN(len(lanes))]
			switch r.IntN(6) {
			case 0:
				w.SetCooldown(l, w.now.Add(time.Duration(r.IntN(2000))*ms))
			case 1:
				w.Wake(l)
			}
		case 11:
			switch r.IntN(40) {
			case 0: // as after a suspend: the alarm rings when all is long over
				w.now = w.now.Add(time.Duration(r.IntN(5000)) * sec)
			case 1, 2:
				look()
				check()
				w.engine.Swap(&policy.Policy{Budgets: randomBudgets(kept(), r)}, w.now)
				if r.IntN(2) == 0 {
					w.until(w.now.Sub(t0) + time.Duration(r.IntN(60))*ms)
				}
				w.Reconfigured()
			}
		}
		look()
		for _, q := range w.order[before:] {
			for i, l := range q.Waiter.lanes[:q.n] {
				if q.held(i) && q.Dispatched() < known[l] {
					t.Fatalf("%s went %v before the end of the cooldown of %s", q.name, known[l].Sub(q.Dispatched()), l.ID())
				}
			}
		}
		if w.alarm > w.now {
			w.mustNotLeaveBehind()
		}
	}
	// Answer everything that still goes, until nothing waits.
	for range 4_000 {
		look()
		for _, q := range flying {
			w.ok(q)
		}
		flying = flying[:0]
		if len(w.timers.heap) == 0 {
			break
		}
		w.until(w.now.Sub(t0) + 250*ms)
		w.mustNotLeaveBehind()
	}
	look()
	check()
	for _, q := range flying {
		w.ok(q)
	}
	w.quiet()
	for _, q := range w.live {
		want := 0
		if q.entered.State == Queued && !q.left {
			want = 1
		}
		if q.notified != want {
			t.Errorf("%s was notified %d times, want %d", q.name, q.notified, want)
		}
	}
	for _, l := range w.engine.Lanes() {
		if n := l.InFlight.Load(); n != 0 {
			t.Errorf("%s: %d under way in the end", l.ID(), n)
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
		{"fair", []*policy.Budget{fair("dest", perDest, 15*ms), fair("all", 0, 10*ms)}, 7, 10_000},
		{"a sliding window", []*policy.Budget{windowed("b", perDest, 500, 5*sec, policy.Sliding)}, 1, 10_000},
		{"a window that all share", []*policy.Budget{budget("dest", perDest, 15*ms), windowed("all", 0, 100, sec, policy.Sliding)}, 7, 10_000},
		{"fixed windows", []*policy.Budget{windowed("dest", perDest, 100, sec, policy.Fixed)}, 1, 10_000},
		{"windows, fair, of exits and destinations", []*policy.Budget{windowed("exit", perExit, 25, sec, policy.Sliding), fair("dest", perDest, 20*ms), fair("all", 0, 10*ms)}, 5, 10_000},
		{"places at exits", []*policy.Budget{slots("exit", perExit, 3), fair("dest", perDest, 10*ms)}, 1, 10_000},
		{"dear requests", func() []*policy.Budget {
			b := fair("dest", perDest, 5*ms)
			b.Burst, b.Cost.Units = 4, 2
			return []*policy.Budget{b}
		}(), 1, 10_000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, tt.budgets...)
			n := 0
			fill := func() {
				for w.waiting() < 100 {
					w.enterAs(uint64(n%3), "r", fmt.Sprint("h", n%tt.hosts), fmt.Sprint("e", n/tt.hosts%5))
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
			if sent < tt.want*99/100 || sent > tt.want*101/100 {
				t.Errorf("%d sent in 100 s, want 99%% to 100%% of %d", sent, tt.want)
			}
		})
	}
}

// windowed is a budget that is only a window.
func windowed(name string, per policy.Per, limit uint64, length time.Duration, kind policy.WindowKind) *policy.Budget {
	b := slots(name, per, 0)
	b.Window = policy.Window{Limit: limit, Per: length, Kind: kind}
	return b
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
