// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"testing"
	"time"

	"golang.org/x/time/rate"
)

// Both limiters are asked with an instant that was read before: the price of
// the decision, without that of the clock.

func BenchmarkAcquire(b *testing.B) {
	b.Run("granted", func(b *testing.B) {
		c := newCell(time.Nanosecond, 1e9)
		now := t0
		b.ReportAllocs()
		for b.Loop() {
			now += 10
			c.Acquire(now, 1)
		}
	})
	b.Run("not yet", func(b *testing.B) {
		c := newCell(time.Hour, 1)
		c.Acquire(t0, 1)
		b.ReportAllocs()
		for b.Loop() {
			c.Acquire(t0, 1)
		}
	})
	b.Run("contended", func(b *testing.B) {
		c := newCell(time.Nanosecond, 1e9)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				c.Acquire(t0, 1)
			}
		})
	})
}

func BenchmarkTimeRate(b *testing.B) {
	b.Run("granted", func(b *testing.B) {
		l := rate.NewLimiter(1e9, 1e9)
		now := time.Now()
		b.ReportAllocs()
		for b.Loop() {
			now = now.Add(10)
			l.AllowN(now, 1)
		}
	})
	b.Run("not yet", func(b *testing.B) {
		l := rate.NewLimiter(rate.Every(time.Hour), 1)
		now := time.Now()
		l.AllowN(now, 1)
		b.ReportAllocs()
		for b.Loop() {
			l.AllowN(now, 1)
		}
	})
	b.Run("contended", func(b *testing.B) {
		l := rate.NewLimiter(1e9, 1e9)
		now := time.Now()
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				l.AllowN(now, 1)
			}
		})
	})
}

func BenchmarkReward(b *testing.B) {
	c := newCell(time.Millisecond, 1)
	b.ReportAllocs()
	for b.Loop() {
		c.Reward(t0, 0, 1.1)
	}
}
