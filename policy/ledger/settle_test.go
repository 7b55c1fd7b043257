// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"testing"
	"time"
)

func TestSettle(t *testing.T) {
	const start = Time(1e9)
	const interval = 1280 * time.Millisecond // of which the share is 10 ms
	for _, tt := range []struct {
		name      string
		tolerance time.Duration
		answer    time.Duration // after the grant
		want      time.Duration // from the grant until the next
	}{
		{"at once", 0, 0, interval},
		{"soon", 0, 3 * time.Millisecond, interval + 3*time.Millisecond},
		{"at the share", 0, 10 * time.Millisecond, interval + 10*time.Millisecond},
		{"late", 0, 700 * time.Millisecond, interval + 10*time.Millisecond},
		{"a clock that was read before", 0, -time.Millisecond, interval},
		{"less room than the share", 9 * time.Millisecond, 700 * time.Millisecond, interval + time.Millisecond},
		{"as much room as the share", 10 * time.Millisecond, 700 * time.Millisecond, interval - 10*time.Millisecond},
		{"a burst", interval, 3 * time.Millisecond, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var c Cell
			c.Configure(interval, tt.tolerance, start)
			g, _, ok := c.Take(start, 1)
			if !ok {
				t.Fatal("the first unit was not granted")
			}
			c.Settle(g, start.Add(tt.answer))
			if got := c.After(start, 0); got != tt.want {
				t.Errorf("got the next unit after %v, want %v", got, tt.want)
			}
		})
	}
}

// An answer that comes when the next unit is gone says nothing about the one
// after that.
func TestSettleTooLate(t *testing.T) {
	const start = Time(1e9)
	var c Cell
	c.Configure(time.Second, 0, start)
	g, _, _ := c.Take(start, 1)
	next := start.Add(time.Second)
	if _, _, ok := c.Take(next, 1); !ok {
		t.Fatal("the second unit was not granted")
	}
	c.Settle(g, next.Add(5*time.Millisecond))
	if got := c.After(next, 0); got != time.Second {
		t.Errorf("got the third unit after %v, want %v", got, time.Second)
	}
}

// A cell without a limit has no pace to keep.
func TestSettleWithoutLimit(t *testing.T) {
	var c Cell
	g, _, _ := c.Take(1e9, 1)
	c.Settle(g, 2e9)
	if got := c.TAT.Load(); got != 1e9 {
		t.Errorf("got TAT %d, want it unchanged at %d", got, uint64(1e9))
	}
}
