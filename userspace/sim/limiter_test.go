// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
)

const ms, sec = time.Millisecond, time.Second

var perSecond = policy.Rate{Count: 1, Every: time.Second}

func TestLimiter(t *testing.T) {
	type ask struct {
		at time.Duration
		ok bool
	}
	for _, tt := range []struct {
		name  string
		limit Limit
		asks  []ask
	}{
		{"none", Limit{Burst: 1}, []ask{{0, true}, {0, true}, {0, true}}},
		{"bucket", Limit{Rate: perSecond, Burst: 2}, []ask{
			{0, true}, {0, true}, {0, false}, {sec - 1, false}, {sec, true}, {sec, false},
			{10 * sec, true}, {10 * sec, true}, {10 * sec, false}, // full again, not more
		}},
		{"bucket that counts refusals", Limit{Rate: perSecond, Burst: 1, CountRefused: true}, []ask{
			{0, true}, {sec - 1, false}, {sec, false}, {2*sec - 1, false}, {3 * sec, true},
		}},
		{"fixed window", Limit{Burst: 1, Window: Window{Limit: 2, Per: sec, Fixed: true}}, []ask{
			{900 * ms, true}, {999 * ms, true}, {999 * ms, false}, {sec, true}, {sec, true}, {sec, false}, {2 * sec, true},
		}},
		{"sliding window", Limit{Burst: 1, Window: Window{Limit: 2, Per: sec}}, []ask{
			{900 * ms, true}, {999 * ms, true}, {1899 * ms, false}, {1900 * ms, true}, {1998 * ms, false}, {1999 * ms, true}, {1999 * ms, false},
		}},
		{"sliding window that counts refusals", Limit{Burst: 1, Window: Window{Limit: 1, Per: sec}, CountRefused: true}, []ask{
			{0, true}, {900 * ms, false}, {sec, false}, {1999 * ms, false}, {3 * sec, true},
		}},
		{"bucket and window", Limit{Rate: policy.Rate{Count: 100, Every: sec}, Burst: 100, Window: Window{Limit: 2, Per: sec}}, []ask{
			{0, true}, {0, true}, {0, false}, {sec, true},
		}},
		{"window refuses, bucket keeps its token", Limit{Rate: perSecond, Burst: 3, Window: Window{Limit: 1, Per: 100 * ms}}, []ask{
			{0, true}, {1, false}, {2, false}, {100 * ms, true}, {200 * ms, true}, {300 * ms, false},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLimiter(&tt.limit)
			for i, a := range tt.asks {
				if got := l.take(epoch.Add(a.at)); got != a.ok {
					t.Fatalf("ask %d at +%v: got %v, want %v", i, a.at, got, a.ok)
				}
			}
		})
	}
}

func TestLimiterConcurrency(t *testing.T) {
	l := newLimiter(&Limit{Burst: 1, Concurrency: 2})
	for i, want := range []bool{true, true, false} {
		if got := l.take(epoch); got != want {
			t.Fatalf("ask %d: got %v, want %v", i, got, want)
		}
	}
	l.done()
	if !l.take(epoch) {
		t.Error("a place that is free again was not given")
	}
	if l.take(epoch) {
		t.Error("three under way, want at most 2")
	}
}

// A sliding window against the definition: at most limit in (now-per, now].
func TestSlidingWindowExact(t *testing.T) {
	for _, refusedCount := range []bool{false, true} {
		limit := Limit{Burst: 1, Window: Window{Limit: 5, Per: 100 * ms}, CountRefused: refusedCount}
		l := newLimiter(&limit)
		r := rand.New(rand.NewPCG(1, 1))
		var counted []ledger.Time
		granted := 0
		for now := epoch; now < epoch.Add(time.Minute); now = now.Add(time.Duration(r.IntN(40)) * ms) {
			n := 0
			for _, at := range counted {
				if now.Sub(at) < limit.Window.Per {
					n++
				}
			}
			if q, ok := l.quota(now); !ok || q.left != uint64(max(5-n, 0)) {
				t.Fatalf("at +%v: got %d left, want %d", now.Sub(epoch), q.left, max(5-n, 0))
			}
			got := l.take(now)
			if want := n < 5; got != want {
				t.Fatalf("at +%v with %d in the window: got %v, want %v", now.Sub(epoch), n, got, want)
			}
			if got {
				granted++
			}
			if got || refusedCount {
				counted = append(counted, now)
			}
		}
		if granted < 10 {
			t.Errorf("only %d granted in a minute", granted)
		}
	}
}

func TestQuota(t *testing.T) {
	for _, tt := range []struct {
		name  string
		limit Limit
		asks  int
		want  quota
		ok    bool
	}{
		{"nothing to tell", Limit{Burst: 1, Concurrency: 1}, 1, quota{}, false},
		{"full bucket", Limit{Rate: perSecond, Burst: 3}, 0, quota{3, 3, 3 * sec, 0}, true},
		{"bucket", Limit{Rate: perSecond, Burst: 3}, 2, quota{3, 1, 3 * sec, 2 * sec}, true},
		{"empty bucket", Limit{Rate: perSecond, Burst: 3}, 9, quota{3, 0, 3 * sec, 3 * sec}, true},
		{"fixed window", Limit{Burst: 1, Window: Window{4, time.Minute, true}}, 1, quota{4, 3, time.Minute, time.Minute}, true},
		{"sliding window", Limit{Burst: 1, Window: Window{4, time.Minute, false}}, 5, quota{4, 0, time.Minute, time.Minute}, true},
		{"unused sliding window", Limit{Burst: 1, Window: Window{4, time.Minute, false}}, 0, quota{4, 4, time.Minute, 0}, true},
		{"the nearer of two", Limit{Rate: perSecond, Burst: 2, Window: Window{9, time.Minute, false}}, 1, quota{2, 1, 2 * sec, sec}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLimiter(&tt.limit)
			for range tt.asks {
				l.take(epoch)
			}
			if got, ok := l.quota(epoch); got != tt.want || ok != tt.ok {
				t.Errorf("got %+v, %v, want %+v, %v", got, ok, tt.want, tt.ok)
			}
		})
	}
}

// Retry-After grows from round to round, not from request to request.
func TestEscalation(t *testing.T) {
	type step struct{ at, want time.Duration }
	for _, tt := range []struct {
		name    string
		refusal Refusal
		steps   []step
	}{
		{"none", Refusal{Factor: 1, Max: time.Hour}, []step{{0, 0}, {sec, 0}}},
		{"constant", Refusal{RetryAfter: 2 * sec, Factor: 1, Max: time.Hour}, []step{{0, 2 * sec}, {sec, 2 * sec}, {9 * sec, 2 * sec}}},
		{"doubling", Refusal{RetryAfter: sec, Factor: 2, Max: 5 * sec}, []step{
			{0, sec}, {999 * ms, sec}, {sec, 2 * sec}, {2 * sec, 2 * sec}, {3 * sec, 4 * sec}, {7 * sec, 5 * sec}, {99 * sec, 5 * sec},
		}},
		{"whole seconds", Refusal{RetryAfter: sec, Factor: 1.5, Max: time.Hour}, []step{{0, sec}, {sec, 2 * sec}, {3 * sec, 3 * sec}, {6 * sec, 5 * sec}}},
		{"forgetting", Refusal{RetryAfter: sec, Factor: 2, Max: time.Hour, Forget: 10 * sec}, []step{
			{0, sec}, {sec, 2 * sec}, {11*sec - 1, 4 * sec}, {21*sec - 1, sec},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var e exitState
			for _, s := range tt.steps {
				if got := e.refuse(&tt.refusal, epoch.Add(s.at)); got != s.want {
					t.Fatalf("at +%v: got %v, want %v", s.at, got, s.want)
				}
			}
		})
	}
}

func TestOriginOutages(t *testing.T) {
	o := newOrigin(&Origin{
		Limit:   Limit{Burst: 1},
		Outages: []Outage{{From: sec, To: 2 * sec, Status: 503, RetryAfter: 5 * sec}, {From: 3 * sec, To: 4 * sec}},
	}, 1, epoch)
	for _, tt := range []struct {
		at     time.Duration
		status int
		after  time.Duration
	}{
		{0, 200, 0}, {sec - 1, 200, 0}, {sec, 503, 5 * sec}, {2*sec - 1, 503, 5 * sec}, {2 * sec, 200, 0}, {3 * sec, 0, 0}, {4 * sec, 200, 0},
	} {
		if a := o.judge(0, epoch.Add(tt.at)); a.status != tt.status || a.retryAfter != tt.after {
			t.Errorf("at +%v: got %d, Retry-After %v, want %d, %v", tt.at, a.status, a.retryAfter, tt.status, tt.after)
		}
	}
}

func TestOriginScope(t *testing.T) {
	for _, tt := range []struct {
		shared bool
		second int
	}{{false, 200}, {true, 429}} {
		o := newOrigin(&Origin{Limit: Limit{Rate: perSecond, Burst: 1, Shared: tt.shared}, Refusal: Refusal{Status: 429}}, 2, epoch)
		if a := o.judge(0, epoch); a.status != 200 {
			t.Errorf("shared %v: got %d through the first exit, want 200", tt.shared, a.status)
		}
		if a := o.judge(1, epoch); a.status != tt.second {
			t.Errorf("shared %v: got %d through the second exit, want %d", tt.shared, a.status, tt.second)
		}
	}
}
