// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// Waits lie within the bounds that their formulas have, and reach into both
// ends of them.
func TestStrategyWaits(t *testing.T) {
	const second = time.Second
	retry := Retry{Attempts: 10, Base: second, Cap: time.Minute}
	for _, tt := range []struct {
		behaviour Behaviour
		n         int
		last      time.Duration
		asked     time.Duration
		low, high time.Duration
	}{
		{Fixed, 0, 0, 7 * second, second, second},
		{Fixed, 9, second, 0, second, second},
		{FullJitter, 0, 0, 7 * second, 0, second},
		{FullJitter, 3, 0, 0, 0, 8 * second},
		{FullJitter, 6, 0, 0, 0, time.Minute},
		{FullJitter, 999, 0, 0, 0, time.Minute}, // no overflow
		{EqualJitter, 0, 0, 0, second / 2, second},
		{EqualJitter, 2, 0, 0, 2 * second, 4 * second},
		{EqualJitter, 999, 0, 0, 30 * second, time.Minute},
		{AddedJitter, 0, 0, 0, second, 3 * second / 2},
		{AddedJitter, 4, 0, 0, 16 * second, 24 * second},
		{Decorrelated, 0, 0, 0, second, 3 * second},
		{Decorrelated, 1, 3 * second, 0, second, 9 * second},
		{RetryAfter, 0, 0, 7 * second, 7 * second, 7 * second},
		{RetryAfter, 0, 0, 0, second, second},
		{RetryAfter, 3, 0, time.Hour, time.Hour, time.Hour}, // what was asked has no cap
	} {
		s := Strategy{Behaviour: tt.behaviour, Retry: retry}
		r := rand.New(rand.NewPCG(1, 2))
		least, most := time.Duration(1<<62), time.Duration(0)
		for range 1000 {
			d := s.wait(tt.n, tt.last, tt.asked, r)
			least, most = min(least, d), max(most, d)
		}
		if least < tt.low || most > tt.high {
			t.Errorf("%s %d: got %v to %v, want within %v to %v", tt.behaviour, tt.n, least, most, tt.low, tt.high)
		}
		if slack := (tt.high - tt.low) / 50; least > tt.low+slack || most < tt.high-slack {
			t.Errorf("%s %d: got %v to %v, want nearly all of %v to %v", tt.behaviour, tt.n, least, most, tt.low, tt.high)
		}
	}
	s := Strategy{Behaviour: Decorrelated, Retry: retry}
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		if d := s.wait(9, time.Minute, 0, r); d > time.Minute {
			t.Fatalf("decorrelated: got %v, want at most the cap", d)
		}
	}
}

func TestParseStrategy(t *testing.T) {
	retry := Retry{Attempts: 3, Base: 1, Cap: 2}
	for _, name := range StrategyNames() {
		s, err := ParseStrategy(name, retry)
		if err != nil || s.Label != name || s.Retry != retry || s.Egressd != (name == "egressd") {
			t.Errorf("%s: got %+v, %v", name, s, err)
		}
	}
	s, err := ParseStrategy("fixed+egressd", retry)
	if err != nil || s.Behaviour != Fixed || !s.Egressd || s.attempts() != 3 {
		t.Errorf("fixed+egressd: got %+v, %v", s, err)
	}
	if s, err := ParseStrategy("egressd", retry); err != nil || s.Behaviour != Naive || s.attempts() != 1 {
		t.Errorf("egressd: got %+v, %v, want naive clients", s, err)
	}
	for _, bad := range []string{"", "Naive", "egressd+egressd", "+egressd", "fixed+", "fixed+egressd+egressd"} {
		if s, err := ParseStrategy(bad, retry); err == nil {
			t.Errorf("%q: got %+v, want an error", bad, s)
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: got an error of several lines: %v", bad, err)
		}
	}
}

func TestDist(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, tt := range []struct {
		dist            Dist
		low, high, mean time.Duration
	}{
		{Dist{}, 0, 0, 0},
		{Dist{a: ms}, ms, ms, ms},
		{Dist{kind: uniform, a: ms, b: 3 * ms}, ms, 3 * ms, 2 * ms},
		{Dist{kind: exponential, a: 2 * ms}, 0, time.Hour, 2 * ms},
	} {
		var sum time.Duration
		const n = 10_000
		for range n {
			d := tt.dist.draw(r)
			if d < tt.low || d > tt.high {
				t.Fatalf("%+v: got %v, want from %v to %v", tt.dist, d, tt.low, tt.high)
			}
			sum += d
		}
		if got := sum / n; got < tt.mean*95/100 || got > tt.mean*105/100 {
			t.Errorf("%+v: got a mean of %v, want %v", tt.dist, got, tt.mean)
		}
	}
}

// Quantiles are right within one part in 128.
func TestHistogram(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, n := range []int{1, 2, 10, 1000} {
		var h, a, b histogram
		var all []time.Duration
		for i := range n {
			d := time.Duration(r.ExpFloat64() * float64(time.Second))
			all = append(all, d)
			h.add(d)
			if i%2 == 0 {
				a.add(d)
			} else {
				b.add(d)
			}
		}
		slices.Sort(all)
		a.merge(&b)
		for _, q := range []float64{0, 0.5, 0.99, 1} {
			exact := all[min(int(q*float64(n)), n-1)]
			got := h.quantile(q)
			if got < exact-time.Microsecond || got > exact+exact/127+2*time.Microsecond {
				t.Errorf("%d values, quantile %v: got %v, want %v", n, q, got, exact)
			}
			if merged := a.quantile(q); merged != got {
				t.Errorf("%d values, quantile %v: got %v of the merged, want %v", n, q, merged, got)
			}
		}
	}
	if got := new(histogram).quantile(0.5); got != 0 {
		t.Errorf("got %v of nothing, want 0", got)
	}
	for _, v := range []uint64{0, 1, 255, 256, 257, 511, 512, 1 << 40, 1<<62 - 1} {
		if i := bucketOf(v); lowestOf(i) > v || lowestOf(i+1) <= v {
			t.Errorf("%d: got bucket %d from %d to %d", v, i, lowestOf(i), lowestOf(i+1))
		}
	}
}

func TestBusiest(t *testing.T) {
	b := busiest{width: short}
	for _, at := range []time.Duration{0, 99 * ms, 100 * ms, 150 * ms, 199 * ms, 200 * ms, 5 * sec} {
		b.count(at)
	}
	if b.most != 3 {
		t.Errorf("got %d in the busiest, want the 3 from 100 ms to 200 ms", b.most)
	}
}
