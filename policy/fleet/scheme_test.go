// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"testing"
	"time"
)

func TestBatchAndBound(t *testing.T) {
	for _, tt := range []struct {
		limit  Limit
		hosts  int
		scheme Scheme
		batch  uint64
		bound  float64
	}{
		{Limit{}, 8, Unbounded, 0, 0},
		{Limit{10 * sec, 1}, 8, Slots, 2, 1.01},
		{Limit{200 * ms, 50}, 8, Slots, 2, 1.5},
		{Limit{100*ms + 1, 1}, 8, Slots, 2, 2},
		{Limit{100 * ms, 1}, 8, Leases, 1, 8},
		{Limit{50 * ms, 1}, 8, Leases, 1, 8},
		{Limit{50 * ms, 1}, 0, Leases, 2, 2},
		{Limit{50 * ms, 1}, 100, Leases, 1, 20}, // no more than the rate gives in a term
		{Limit{200 * time.Microsecond, 1}, 8, Leases, 63, 504},
		{Limit{200 * time.Microsecond, 1}, 1, Leases, 500, 500},
		{Limit{10 * ms, 400}, 8, Leases, 50, 100},
		{Limit{10 * ms, 4000}, 8, Leases, 75, 100}, // what three quarters of a second can spend
		{Limit{time.Millisecond, 1}, 10_000, Leases, 1, 1000},
	} {
		if got := SchemeOf(tt.limit); got != tt.scheme {
			t.Errorf("%v: scheme %v, want %v", tt.limit, got, tt.scheme)
		}
		if got := Batch(tt.limit, tt.hosts); got != tt.batch {
			t.Errorf("%v, %d hosts: batch %d, want %d", tt.limit, tt.hosts, got, tt.batch)
		}
		if got := Bound(tt.limit, tt.scheme, tt.hosts, Term); got-tt.bound > 1e-6 || tt.bound-got > 1e-6 {
			t.Errorf("%v, %d hosts: bound %v, want %v", tt.limit, tt.hosts, got, tt.bound)
		}
	}
}

func TestNames(t *testing.T) {
	for _, l := range []Loss{LossShare, LossClosed, LossOpen} {
		if got, err := ParseLoss(l.String()); got != l || err != nil {
			t.Errorf("ParseLoss(%q) = %v, %v", l, got, err)
		}
	}
	if _, err := ParseLoss("loud"); err == nil || err.Error() != `"loud" is none of share, closed, open` {
		t.Errorf("ParseLoss(loud): %v", err)
	}
	for got, want := range map[string]string{
		Kind(0).String(): "kind 0", Watch.String(): "watch", Kind(99).String(): "kind 99",
		Leases.String(): "leases", Scheme(9).String(): "scheme 9",
		Returning.String(): "returning", Mode(9).String(): "mode 9", Loss(9).String(): "loss 9",
	} {
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// The penalties of the ledger's cell and of the fleet are the same.
func TestSlow(t *testing.T) {
	for _, tt := range []struct {
		base   time.Duration
		factor float64
		want   []time.Duration
	}{
		{200 * ms, 0.5, []time.Duration{400 * ms, 800 * ms, 1600 * ms, 2 * sec, 2 * sec}},
		{1500 * ms, 0.5, []time.Duration{3 * sec, 3 * sec}},
		{3, 0.7, []time.Duration{5, 8, 12}},
		{sec, 1, []time.Duration{sec}},
		{0, 0.5, []time.Duration{0}},
	} {
		v := tt.base
		for i, want := range tt.want {
			if v = Slow(v, Limit{Interval: tt.base, Burst: 1}, tt.factor); v != want {
				t.Errorf("base %v, factor %v, penalty %d: %v, want %v", tt.base, tt.factor, i+1, v, want)
			}
		}
	}
}
