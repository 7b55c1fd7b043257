// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
	"github.com/egressd/egressd/userspace/mono"
)

// everything is a budget with all there is: rate, window, places, costs, fairness.
func everything(name string, per policy.Per, interval time.Duration, hosts ...string) *policy.Budget {
	b := budget(name, per, interval, hosts...)
	b.Queue.FairBy = policy.FairCgroup
	b.Window = policy.Window{Limit: 1 << 40, Per: time.Hour}
	b.Concurrency = 1 << 20
	b.Cost.Header = "x-cost"
	return b
}

// A request that nobody stands before: in and out.
func BenchmarkPass(b *testing.B) {
	for _, n := range []int{1, 2, 4} {
		b.Run(fmt.Sprint("lanes ", n), func(b *testing.B) { benchmarkPass(b, budget, n) })
	}
	b.Run("window, places, fair", func(b *testing.B) { benchmarkPass(b, everything, 1) })
}

func benchmarkPass(b *testing.B, kind func(string, policy.Per, time.Duration, ...string) *policy.Budget, n int) {
	w := newWorld(b, []*policy.Budget{
		kind("both", perBoth, 1), kind("dest", perDest, 1), kind("exit", perExit, 1), kind("all", 0, 1),
	}[:n]...)
	lanes := w.lanes("a", "/", "direct")
	var wt Waiter
	b.ReportAllocs()
	for b.Loop() {
		w.now += 1000
		if out := w.Enter(&wt, lanes, w.now); out.State != Granted {
			b.Fatalf("outcome %+v", out)
		}
		w.Done(&wt, verdict.Verdict{}, 0, w.now)
	}
}

// turnover is a gate under backlog: each call of the function answers one
// request, has its client come again, and lets the next go by the alarm, which
// costs nothing here.
func turnover(tb testing.TB, budgets []*policy.Budget, clients, depth int) func() {
	w := newWorld(tb, budgets...)
	lanes := w.lanes("a", "/", "direct")
	granted := make([]*Waiter, 0, depth+1)
	for i := range depth + 1 {
		wt := &Waiter{Client: policy.Client{Cgroup: uint64(i % clients)}}
		wt.Notify = func() { granted = append(granted, wt) }
		if out := w.Enter(wt, lanes, w.now); (out.State == Granted) != (i == 0) {
			tb.Fatalf("waiter %d: outcome %+v", i, out)
		} else if i == 0 {
			granted = append(granted, wt)
		}
	}
	return func() {
		if len(granted) != 1 {
			tb.Fatalf("%d granted, want 1", len(granted))
		}
		wt := granted[0]
		granted = granted[:0]
		w.Done(wt, verdict.Verdict{}, 0, w.now)
		if out := w.Enter(wt, lanes, w.now); out.State != Queued {
			tb.Fatalf("outcome %+v", out)
		}
		w.now += 1000
		w.alarm = 0
		w.tick()
	}
}

// turnovers are what is measured, and held to allocate nothing.
var turnovers = []struct {
	name           string
	budgets        func() []*policy.Budget
	clients, depth int
}{
	{"depth 1", func() []*policy.Budget { return []*policy.Budget{budget("b", perBoth, 1000)} }, 1, 1},
	{"depth 100", func() []*policy.Budget { return []*policy.Budget{budget("b", perBoth, 1000)} }, 1, 100},
	{"2 lanes", func() []*policy.Budget { return []*policy.Budget{budget("b", perBoth, 900), budget("all", 0, 1000)} }, 1, 100},
	{"10 clients", func() []*policy.Budget { return []*policy.Budget{fair("b", perBoth, 1000)} }, 10, 100},
	{"100 clients", func() []*policy.Budget { return []*policy.Budget{fair("b", perBoth, 1000)} }, 100, 100},
	{"window, places, 10 clients", func() []*policy.Budget { return []*policy.Budget{everything("b", perBoth, 1000)} }, 10, 100},
}

// A request that waits: into the queue, out of it, and its answer.
func BenchmarkQueue(b *testing.B) {
	for _, tt := range turnovers {
		b.Run(tt.name, func(b *testing.B) {
			turn := turnover(b, tt.budgets(), tt.clients, tt.depth)
			b.ReportAllocs()
			for b.Loop() {
				turn()
			}
		})
	}
}

// All flows are deep in debt: the one that is out first is found by
// calculation, not by rounds.
func BenchmarkDebt(b *testing.B) {
	q := flows{pool: &pool{}}
	for key := range uint64(maxFlows) {
		s := &spot{ticket: &ticket{seq: key}}
		q.enroll(s, key)
		q.stand(s, 1)
	}
	b.ReportAllocs()
	for b.Loop() {
		q.first(1).flow.charge(maxDebt, 1)
	}
}

func TestNothingIsAllocated(t *testing.T) {
	for _, tt := range turnovers {
		turn := turnover(t, tt.budgets(), tt.clients, tt.depth)
		for range 1000 { // until all there is to keep is made
			turn()
		}
		if n := testing.AllocsPerRun(2000, turn); n > 0 {
			t.Errorf("%s: %v allocations for a request that waits", tt.name, n)
		}
	}
	w := newWorld(t, everything("b", perBoth, 1), everything("all", 0, 1))
	lanes := w.lanes("a", "/", "direct")
	var wt Waiter
	if n := testing.AllocsPerRun(2000, func() {
		w.now += 1000
		w.Enter(&wt, lanes, w.now)
		w.Done(&wt, verdict.Verdict{Cost: 1, HasCost: true}, 0, w.now)
	}); n > 0 {
		t.Errorf("%v allocations for a request that goes at once", n)
	}
}

// The decision alone, against what a client library would use, each with the
// reading of its clock.
func BenchmarkDecision(b *testing.B) {
	b.Run("egressd", func(b *testing.B) {
		w := newWorld(b, budget("b", perBoth, 1))
		lanes := w.lanes("a", "/", "direct")
		w.cfg.Now = mono.Now
		var wt Waiter
		b.ReportAllocs()
		for b.Loop() {
			w.Enter(&wt, lanes, mono.Now())
			w.Done(&wt, verdict.Verdict{}, 0, wt.Dispatched())
		}
	})
	b.Run("x-time-rate", func(b *testing.B) {
		l := rate.NewLimiter(1e9, 1e9)
		ctx := context.Background()
		b.ReportAllocs()
		for b.Loop() {
			if err := l.Wait(ctx); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// How much of a budget without burst is used under backlog, by the real clock
// and timer: what is missing to 1 is the lateness of the timer.
func BenchmarkUse(b *testing.B) {
	for _, tt := range []struct {
		name  string
		alarm func(now func() ledger.Time, fire func()) (Alarm, error)
	}{{"timerfd", Precise}, {"runtime timer", Timer}} {
		for _, interval := range []time.Duration{10 * ms, ms} {
			b.Run(fmt.Sprint(tt.name, "/", interval), func(b *testing.B) {
				w := newWorld(b, budget("b", perBoth, interval))
				g := New(Config{Now: mono.Now, Alarm: tt.alarm})
				defer g.Close()
				lanes := w.lanes("a", "/", "direct")
				done := make(chan *Waiter, 8)
				for range 8 {
					wt := &Waiter{}
					wt.Notify = func() { done <- wt }
					if g.Enter(wt, lanes, mono.Now()).State == Granted {
						done <- wt
					}
				}
				n, start := 0, mono.Now()
				for b.Loop() {
					wt := <-done
					g.Done(wt, verdict.Verdict{}, 0, mono.Now())
					if g.Enter(wt, lanes, mono.Now()).State == Granted {
						done <- wt
					}
					n++
				}
				b.ReportMetric(float64(n-1)*float64(interval)/float64(mono.Now().Sub(start)), "used")
			})
		}
	}
}
