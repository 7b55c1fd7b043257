// SPDX-License-Identifier: Apache-2.0

// Package limiters measures what one decision costs, beside the limiters that
// Go programs use today. All have room for every request, so that nobody
// sleeps; each reads its clock itself, as it does in use.
package limiters

import (
	"context"
	"testing"
	"time"

	mennanov "github.com/mennanov/limiters"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
	uber "go.uber.org/ratelimit"
	"golang.org/x/time/rate"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
	"github.com/egressd/egressd/userspace/gate"
	"github.com/egressd/egressd/userspace/mono"
)

// perSecond is a rate that no loop reaches.
const perSecond = 1e9

func BenchmarkDecision(b *testing.B) {
	b.Run("egressd-cell", func(b *testing.B) {
		c := new(ledger.Cell)
		c.Configure(1, time.Second, mono.Now())
		b.ReportAllocs()
		for b.Loop() {
			if _, ok := c.Acquire(mono.Now(), 1); !ok {
				b.Fatal("not granted")
			}
		}
	})
	// Enter, dispatch and the report of the answer: the others have no such
	// thing as the last.
	b.Run("egressd-gate", func(b *testing.B) {
		g := gate.New(gate.Config{Now: mono.Now, Alarm: gate.Timer})
		defer g.Close()
		lanes := lane(b)
		var w gate.Waiter
		b.ReportAllocs()
		for b.Loop() {
			if out := g.Enter(&w, lanes, mono.Now()); out.State != gate.Granted {
				b.Fatalf("outcome %+v", out)
			}
			g.Done(&w, verdict.Verdict{}, 0, w.Dispatched())
		}
	})
	b.Run("x-time-rate Allow", func(b *testing.B) {
		l := rate.NewLimiter(perSecond, perSecond)
		b.ReportAllocs()
		for b.Loop() {
			if !l.Allow() {
				b.Fatal("not allowed")
			}
		}
	})
	b.Run("x-time-rate Wait", func(b *testing.B) {
		l := rate.NewLimiter(perSecond, perSecond)
		ctx := context.Background()
		b.ReportAllocs()
		for b.Loop() {
			if err := l.Wait(ctx); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("uber-go-ratelimit Take", func(b *testing.B) {
		l := uber.New(perSecond)
		b.ReportAllocs()
		for b.Loop() {
			l.Take()
		}
	})
	b.Run("throttled GCRA", func(b *testing.B) {
		store, err := memstore.NewCtx(0)
		if err != nil {
			b.Fatal(err)
		}
		l, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{MaxRate: throttled.PerSec(perSecond), MaxBurst: perSecond})
		if err != nil {
			b.Fatal(err)
		}
		ctx := context.Background()
		b.ReportAllocs()
		for b.Loop() {
			if limited, _, err := l.RateLimitCtx(ctx, "store/store.example.com/direct", 1); limited || err != nil {
				b.Fatal(limited, err)
			}
		}
	})
	b.Run("mennanov token bucket", func(b *testing.B) {
		l := mennanov.NewTokenBucket(perSecond, time.Nanosecond, mennanov.NewLockNoop(),
			mennanov.NewTokenBucketInMemory(), mennanov.NewSystemClock(), mennanov.NewStdLogger())
		ctx := context.Background()
		b.ReportAllocs()
		for b.Loop() {
			if wait, err := l.Limit(ctx); err != nil {
				b.Fatal(wait, err)
			}
		}
	})
}

// lane makes the lanes of a request to one host, under one budget.
func lane(b *testing.B) []*policy.Lane {
	p := &policy.Policy{Budgets: []*policy.Budget{{
		Name:     "store",
		Per:      policy.PerDestination | policy.PerExit,
		Rate:     policy.Rate{Count: 1e6, Every: time.Second},
		Burst:    1e9,
		Queue:    policy.Queue{Max: 1000, MaxWait: time.Minute},
		Cooldown: policy.Cooldown{Default: time.Second, Max: time.Hour, Statuses: []int{429}},
		Recovery: policy.Recovery{Factor: 0.5, Step: 1.1},
	}}}
	e, err := policy.NewEngine(p, make([]ledger.Cell, 4), nil, mono.Now())
	if err != nil {
		b.Fatal(err)
	}
	return e.Select(nil, &policy.Facts{Host: "store.example.com", Exit: policy.DirectExit}, policy.ForRequest, mono.Now())
}
