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

// A request that nobody stands before: in and out.
func BenchmarkPass(b *testing.B) {
	for _, n := range []int{1, 2, 4} {
		b.Run(fmt.Sprint("lanes ", n), func(b *testing.B) {
			w := newWorld(b, []*policy.Budget{
				budget("both", perBoth, 1), budget("dest", perDest, 1), budget("exit", perExit, 1), budget("all", 0, 1),
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
		})
	}
}

// A request that waits: into the queue, out of it, and its answer. The alarm
// costs nothing here.
func BenchmarkQueue(b *testing.B) {
	for _, depth := range []int{1, 100} {
		b.Run(fmt.Sprint("depth ", depth), func(b *testing.B) {
			budget := budget("b", perBoth, 1000)
			w := newWorld(b, budget)
			lanes := w.lanes("a", "/", "direct")
			wts := make([]*Waiter, depth+1)
			for i := range wts {
				wts[i] = &Waiter{Notify: func() {}}
				if out := w.Enter(wts[i], lanes, w.now); (out.State == Granted) != (i == 0) {
					b.Fatalf("waiter %d: outcome %+v", i, out)
				}
			}
			i := 0
			b.ReportAllocs()
			for b.Loop() {
				w.Done(wts[i], verdict.Verdict{}, 0, w.now)
				if out := w.Enter(wts[i], lanes, w.now); out.State != Queued {
					b.Fatalf("outcome %+v", out)
				}
				i = (i + 1) % len(wts)
				w.now += 1000
				w.alarm = 0
				w.tick()
			}
		})
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
