// SPDX-License-Identifier: Apache-2.0

package member

import (
	"testing"
	"time"
)

func TestSleeps(t *testing.T) {
	var boot, mono, late time.Duration = 5 * time.Second, 3 * time.Second, 0
	s := sleeps{read: func() (time.Duration, time.Duration) {
		b := boot + late
		late = 0 // once
		return b, mono
	}}
	want := func(n uint64) {
		t.Helper()
		if got := s.count(); got != n {
			t.Errorf("%d sleeps, want %d", got, n)
		}
	}
	want(0)
	boot, mono = boot+time.Hour, mono+time.Hour
	want(0)
	boot += time.Minute
	want(1)
	want(1)
	late = time.Second // kept from running between the two readings
	want(1)
	boot += 150 * time.Millisecond
	want(2)
	want(2)
}

// TestClocks looks that the kernel's clocks tell of no sleep while there is
// none.
func TestClocks(t *testing.T) {
	var s sleeps
	for end := time.Now().Add(100 * time.Millisecond); time.Now().Before(end); {
		if n := s.count(); n != 0 {
			t.Fatalf("%d sleeps", n)
		}
	}
	if boot, mono := clocks(); boot < mono || mono == 0 {
		t.Errorf("CLOCK_BOOTTIME %v, CLOCK_MONOTONIC %v", boot, mono)
	}
}

func BenchmarkSleeps(b *testing.B) {
	var s sleeps
	for range b.N {
		s.count()
	}
}
