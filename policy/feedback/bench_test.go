// SPDX-License-Identifier: Apache-2.0

package feedback

import (
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

func BenchmarkTake(b *testing.B) {
	b.Run("nothing learned", func(b *testing.B) {
		var t Tracker
		b.ReportAllocs()
		for b.Loop() {
			t.Take(t0, 1)
		}
	})
	b.Run("window", func(b *testing.B) {
		var t Tracker
		t.Observe(Observation{Quota: told(1e15, 1e15, 3600*sec, 3600*sec), Received: t0}, t0)
		b.ReportAllocs()
		for b.Loop() {
			t.Take(t0, 1)
		}
	})
	b.Run("window, none left", func(b *testing.B) {
		var t Tracker
		t.Observe(Observation{Quota: told(100, 0, 3600*sec, 3600*sec), Received: t0}, t0)
		b.ReportAllocs()
		for b.Loop() {
			t.Take(t0, 1)
		}
	})
	b.Run("bucket", func(b *testing.B) {
		var t Tracker
		t.Observe(Observation{Quota: toFull(100, 50, 500*ms), Received: t0}, t0)
		now := t0
		b.ReportAllocs()
		for b.Loop() {
			now += ledger.Time(10 * ms)
			t.Take(now, 1)
		}
	})
}

func BenchmarkObserve(b *testing.B) {
	var t Tracker
	now := t0
	b.ReportAllocs()
	for b.Loop() {
		now += ledger.Time(ms)
		t.Observe(Observation{
			Quota: told(1000, 500, 30*sec, 60*sec), Dispatched: now.Add(-10 * ms), Received: now, After: 3, Before: 2,
		}, now)
	}
}

func BenchmarkCurrent(b *testing.B) {
	var t Tracker
	t.Observe(Observation{Quota: told(1000, 500, 30*sec, 60*sec), Received: t0}, t0)
	b.ReportAllocs()
	for b.Loop() {
		t.Current(t0)
	}
}

func TestNoAllocation(t *testing.T) {
	var tr Tracker
	var a Auto
	now := t0
	if got := testing.AllocsPerRun(100, func() {
		now += ledger.Time(100 * ms)
		tr.Observe(Observation{Quota: told(1000, 500, 30*sec, 60*sec), Received: now}, now)
		tr.Take(now, 1)
		tr.Give(1, now)
		tr.Current(now)
		tr.After(now, 5, 1)
		a.Learned(now, sec, sec)
		a.Raise(now, a.Success(now, sec, true))
	}); got != 0 {
		t.Errorf("%v allocations", got)
	}
}

// Many take and give while answers come: what goes out between two words is
// never more than the smaller of them left.
func TestConcurrent(t *testing.T) {
	const workers, tries, remaining = 8, 2000, 500
	var tr Tracker
	see := func(n int64) {
		tr.Observe(Observation{Quota: told(1000, n, 1800500*ms, 3600*sec), Received: t0}, t0)
	}
	see(remaining)
	got := make([]int, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range tries {
				if _, ok := tr.Take(t0, 1); ok {
					got[w]++
					if i%10 == 0 {
						tr.Give(1, t0)
						got[w]--
					}
				}
				tr.Current(t0)
				tr.Next()
				tr.Left(t0.Add(time.Duration(i)))
			}
		})
	}
	wg.Go(func() {
		for range tries {
			see(remaining) // says nothing that is not known
		}
	})
	wg.Wait()
	total := 0
	for _, n := range got {
		total += n
	}
	if total != remaining {
		t.Errorf("%d units went out, want %d", total, remaining)
	}
}
