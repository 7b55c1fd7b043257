// SPDX-License-Identifier: Apache-2.0

package mono

import (
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy/ledger"
)

func mustClock(t testing.TB) Clock {
	t.Helper()
	c, err := NewClock()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func mustMonotonic(t testing.TB) ledger.Time {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		t.Fatal(err)
	}
	return ledger.Time(ts.Nano())
}

// The clock is CLOCK_MONOTONIC: between two readings of that, give or take
// what it is behind by.
func TestNowIsMonotonicClock(t *testing.T) {
	c := mustClock(t)
	const behind = 100 * time.Microsecond // a reading that is disturbed 16 times over
	for range 1000 {
		before := mustMonotonic(t)
		now := c.Now()
		after := mustMonotonic(t)
		if now > after {
			t.Fatalf("Now = %d is ahead of CLOCK_MONOTONIC = %d", now, after)
		}
		if now < before.Add(-behind) {
			t.Fatalf("Now = %d is %v behind CLOCK_MONOTONIC = %d", now, before.Sub(now), before)
		}
	}
}

func TestNowInBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := mustClock(t)
		start := c.Now()
		time.Sleep(3 * time.Second)
		if got := c.Now().Sub(start); got != 3*time.Second {
			t.Errorf("a sleep of 3s took %v by the clock", got)
		}
	})
}

func TestTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := At(ledger.Time(time.Hour))
		want := time.Now().Add(90 * time.Second)
		if got := c.Time(ledger.Time(time.Hour).Add(90 * time.Second)); !got.Equal(want) {
			t.Errorf("Time = %v, want %v", got, want)
		}
	})
}

func TestNowDoesNotAllocate(t *testing.T) {
	c := mustClock(t)
	if n := testing.AllocsPerRun(100, func() { c.Now() }); n != 0 {
		t.Errorf("Now allocates %v times", n)
	}
}

func BenchmarkNow(b *testing.B) {
	c := mustClock(b)
	for b.Loop() {
		c.Now()
	}
}
