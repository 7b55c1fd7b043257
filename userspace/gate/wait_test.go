// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
	"github.com/egressd/egressd/userspace/mono"
)

// Fifty goroutines that know nothing of each other, as the story goes: one
// gets a 429 with Retry-After: 3.
func TestWaitStampede(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := mono.At(t0)
		b := budget("b", perBoth, 100*ms)
		b.Burst = 5
		engine, err := policy.NewEngine(&policy.Policy{Budgets: []*policy.Budget{b}}, make([]ledger.Cell, 8), nil, clock.Now())
		if err != nil {
			t.Fatal(err)
		}
		g := New(Config{Now: clock.Now, Alarm: Timer})
		defer g.Close()
		lanes := engine.Select(nil, &policy.Facts{Host: "a", Dest: netip.MustParseAddrPort("192.0.2.1:80"), Exit: "direct"}, policy.ForRequest, clock.Now())

		var mu sync.Mutex
		var sent []time.Duration
		var limited time.Duration
		var wg sync.WaitGroup
		for i := range 50 {
			wg.Go(func() {
				var w Waiter
				for tries := 0; ; tries++ {
					if _, err := g.Wait(t.Context(), &w, lanes); err != nil {
						t.Errorf("Wait = %v", err)
						return
					}
					at := w.Dispatched().Sub(t0)
					mu.Lock()
					sent = append(sent, at)
					first := len(sent) == 8
					if first {
						limited = at + 20*ms
					}
					mu.Unlock()
					time.Sleep(20 * ms) // the origin's time to answer
					v := verdict.Verdict{}
					if first {
						v = verdict.Verdict{Kind: verdict.Limited, Delay: 3 * sec, HasDelay: true}
					}
					g.Done(&w, v, 0, clock.Now())
					if !first || tries > 20 {
						return
					}
				}
			})
			time.Sleep(time.Duration(i%3) * ms)
		}
		wg.Wait()
		if len(sent) != 51 {
			t.Fatalf("%d sent, want 50 and one again", len(sent))
		}
		slices.Sort(sent)
		var after []time.Duration
		for _, at := range sent {
			if at > limited && at < limited+3*sec {
				t.Errorf("one was sent at +%v, in the cooldown from +%v", at, limited)
			}
			if at >= limited+3*sec {
				after = append(after, at-limited-3*sec)
			}
		}
		if after[0] != 0 {
			t.Errorf("the probe went %v after the end of the cooldown", after[0])
		}
		if after[1] < 20*ms {
			t.Errorf("the second went %v after the probe, before that had its answer", after[1])
		}
		if after[9] < sec {
			t.Errorf("ten within %v of the reopening: no ramp", after[9])
		}
	})
}

func TestWaitContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := mono.At(t0)
		engine, err := policy.NewEngine(&policy.Policy{Budgets: []*policy.Budget{budget("b", perBoth, sec)}}, make([]ledger.Cell, 8), nil, clock.Now())
		if err != nil {
			t.Fatal(err)
		}
		g := New(Config{Now: clock.Now, Alarm: Timer})
		defer g.Close()
		lanes := engine.Select(nil, &policy.Facts{Host: "a", Dest: netip.MustParseAddrPort("192.0.2.1:80")}, policy.ForRequest, clock.Now())
		var w Waiter
		if out, err := g.Wait(t.Context(), &w, lanes); err != nil || out.State != Granted {
			t.Fatalf("Wait = %+v, %v, want granted", out, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 500*ms)
		defer cancel()
		var gone, next Waiter
		if out, err := g.Wait(ctx, &gone, lanes); !errors.Is(err, context.DeadlineExceeded) || out.State != Refused {
			t.Fatalf("Wait = %+v, %v, want the end of the context", out, err)
		}
		if _, err := g.Wait(t.Context(), &next, lanes); err != nil {
			t.Fatal(err)
		}
		if got := next.Dispatched().Sub(t0); got != sec {
			t.Errorf("the next went at +%v, want +1s: who left has cost something", got)
		}
	})
}

// Everything at once, by the real clock and timer: the bounds hold, nobody is
// lost, nothing is left.
func TestStress(t *testing.T) {
	before := runtime.NumGoroutine()
	const interval, burst = 200 * time.Microsecond, 3
	both, all := budget("both", perBoth, interval), budget("all", 0, interval/2)
	both.Burst, all.Burst = burst, burst
	both.Recovery.Factor = 0.9
	engine, err := policy.NewEngine(&policy.Policy{Budgets: []*policy.Budget{both, all}}, make([]ledger.Cell, 64), nil, mono.Now())
	if err != nil {
		t.Fatal(err)
	}
	g := New(Config{Now: mono.Now, ProbeTimeout: 50 * ms})
	ctx, stop := context.WithTimeout(t.Context(), 500*ms)
	defer stop()
	var mu sync.Mutex
	sent := map[*policy.Lane][]sending{}
	var granted, left atomic.Int64
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(7, uint64(i)))
			var w Waiter
			var lanes []*policy.Lane
			for ctx.Err() == nil {
				f := policy.Facts{Host: []string{"a", "b", "c"}[r.IntN(3)], Dest: netip.MustParseAddrPort("192.0.2.1:80"), Exit: "direct"}
				lanes = engine.Select(lanes[:0], &f, policy.ForRequest, mono.Now())
				own, cancel := context.WithTimeout(ctx, time.Duration(r.IntN(8))*ms)
				out, err := g.Wait(own, &w, lanes)
				cancel()
				if err != nil {
					left.Add(1)
					continue
				}
				if out.State != Granted {
					t.Errorf("refused: %+v", out)
					return
				}
				granted.Add(1)
				at := w.Dispatched()
				if now := mono.Now(); at > now {
					t.Errorf("went %v early", at.Sub(now))
				}
				if r.IntN(50) == 0 {
					g.Abort(&w, true, mono.Now()) // refunded: it was never sent
					continue
				}
				mu.Lock()
				for _, l := range lanes {
					sent[l] = append(sent[l], sending{at, 1})
				}
				mu.Unlock()
				v := verdict.Verdict{}
				switch r.IntN(60) {
				case 0:
					v = verdict.Verdict{Kind: verdict.Limited, Delay: ms, HasDelay: true}
				case 1:
					v = verdict.Verdict{Kind: verdict.Capacity, Delay: ms, HasDelay: true}
				}
				g.Done(&w, v, r.Float64(), mono.Now())
			}
		})
	}
	wg.Wait()
	if granted.Load() == 0 || left.Load() == 0 {
		t.Errorf("%d granted and %d left: the test tries too little", granted.Load(), left.Load())
	}
	for l, times := range sent {
		b := l.Budget()
		checkWindows(t, l.ID(), times, b.Interval(), b.Burst)
		if n := l.Waiting.Load() + l.InFlight.Load() + l.Tally.Waiting.Load(); n != 0 {
			t.Errorf("%s: waiting %d, in flight %d, tally %d, want none", l.ID(), l.Waiting.Load(), l.InFlight.Load(), l.Tally.Waiting.Load())
		}
	}
	if err := g.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
	for range 100 { // goroutines end a little after what they did
		if runtime.NumGoroutine() <= before {
			break
		}
		time.Sleep(10 * ms)
	}
	if got := runtime.NumGoroutine(); got > before {
		t.Errorf("%d goroutines, %d before: something leaks", got, before)
	}
}

// Threads that take and give back places at the same time, in lanes that others
// take from as well: every place that comes free finds who waits for it, though
// no timer would.
func TestNoLostWake(t *testing.T) {
	one, two, fast := slots("one", perDest, 2), fair("two", 0, 0), budget("three", perExit, 20*time.Microsecond)
	two.Rate, two.Concurrency = policy.Rate{}, 3
	for _, b := range []*policy.Budget{one, two, fast} {
		b.Queue.MaxWait = time.Minute
	}
	engine, err := policy.NewEngine(&policy.Policy{Budgets: []*policy.Budget{one, two, fast}}, make([]ledger.Cell, 64), nil, mono.Now())
	if err != nil {
		t.Fatal(err)
	}
	g := New(Config{Now: mono.Now})
	defer g.Close()
	rounds := 3000
	if testing.Short() {
		rounds = 300
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(11, uint64(i)))
			w := Waiter{Client: policy.Client{Cgroup: uint64(i % 3)}}
			for range rounds {
				f := policy.Facts{Host: []string{"a", "b"}[r.IntN(2)], Dest: netip.MustParseAddrPort("192.0.2.1:80"), Exit: "direct"}
				lanes := engine.Select(nil, &f, policy.ForRequest, mono.Now())
				out, err := g.Wait(t.Context(), &w, lanes)
				if err != nil || out.State != Granted {
					t.Errorf("Wait = %+v, %v, want granted", out, err)
					return
				}
				for _, l := range lanes {
					if most := l.Budget().Concurrency; most > 0 && l.InFlight.Load() > int64(most) {
						t.Errorf("%s: %d under way, of %d", l.ID(), l.InFlight.Load(), most)
					}
				}
				switch r.IntN(8) {
				case 0:
					g.Abort(&w, true, mono.Now())
				case 1:
					g.Abort(&w, false, mono.Now())
				case 2:
					runtime.Gosched()
					fallthrough
				default:
					g.Done(&w, verdict.Verdict{}, 0, mono.Now())
				}
			}
		})
	}
	wg.Wait()
	for _, l := range engine.Lanes() {
		if n := l.Waiting.Load() + l.InFlight.Load(); n != 0 {
			t.Errorf("%s: %d waiting or under way in the end", l.ID(), n)
		}
	}
}

// The alarm never rings early, and rings again when it is set to sooner.
func TestPreciseAlarm(t *testing.T) {
	rang := make(chan ledger.Time, 16)
	a, err := Precise(mono.Now, func() { rang <- mono.Now() })
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for _, d := range []time.Duration{3 * ms, ms, 0, -ms, 100 * time.Microsecond} {
		at := mono.Now().Add(d)
		a.Set(at)
		if got := <-rang; got < at {
			t.Errorf("set to +%v, it rang %v early", d, at.Sub(got))
		}
	}
	a.Set(mono.Now().Add(time.Hour))
	at := mono.Now().Add(ms)
	a.Set(at)
	if got := <-rang; got < at {
		t.Errorf("set to sooner, it rang %v early", at.Sub(got))
	}
	a.Set(mono.Now().Add(time.Hour))
	if err := a.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
	if len(rang) != 0 {
		t.Errorf("it rang %d times more than it was set", len(rang))
	}
}
