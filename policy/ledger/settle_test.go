// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"testing"
	"time"
)

func TestSettle(t *testing.T) {
	const start = Time(1e9)
	const interval = 1280 * time.Millisecond // of which most is 320 ms
	for _, tt := range []struct {
		name      string
		tolerance time.Duration
		answer    time.Duration // after the grant
		want      time.Duration // from the grant until the next
	}{
		{"at once", 0, 0, interval},
		{"soon", 0, 3 * time.Millisecond, interval + 3*time.Millisecond},
		{"as late as may be", 0, 320 * time.Millisecond, interval + 320*time.Millisecond},
		{"later", 0, 700 * time.Millisecond, interval + 320*time.Millisecond},
		{"a clock that was read before", 0, -time.Millisecond, interval},
		{"less room than that", 319 * time.Millisecond, 700 * time.Millisecond, interval + time.Millisecond},
		{"as much room as that", 320 * time.Millisecond, 700 * time.Millisecond, interval - 320*time.Millisecond},
		{"a burst", interval, 3 * time.Millisecond, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var c Cell
			c.Configure(interval, tt.tolerance, start)
			g, _, ok := c.Take(start, 1)
			if !ok {
				t.Fatal("the first unit was not granted")
			}
			c.Settle(g, start.Add(tt.answer), new(Slack))
			if got := c.After(start, 0, 1); got != tt.want {
				t.Errorf("got the next unit after %v, want %v", got, tt.want)
			}
		})
	}
}

// Whatever answers do, they cost less than 1 % of the rate in the long run.
func TestSettleIsBounded(t *testing.T) {
	for _, answer := range []time.Duration{time.Millisecond, 8 * time.Millisecond, 100 * time.Millisecond, 999 * time.Millisecond} {
		var c Cell
		var slack Slack
		now := Time(1e9)
		c.Configure(time.Second, 0, now)
		const units = 10_000
		for range units {
			g, _, ok := c.Take(now, 1)
			if !ok {
				t.Fatalf("answers after %v: a unit was not granted when it was due", answer)
			}
			c.Settle(g, now.Add(answer), &slack)
			now = now.Add(c.After(now, 0, 1))
		}
		took := now.Sub(Time(1e9))
		if most := units*time.Second + min(answer, 8*time.Millisecond)*units + time.Second; took > most {
			t.Errorf("answers after %v: got %d units in %v, want at most %v", answer, units, took, most)
		}
	}
}

// After a hiccup the next unit waits in full, even if hiccups are not rare.
func TestSettleMakesUpForHiccups(t *testing.T) {
	var c Cell
	var slack Slack
	now := Time(1e9)
	c.Configure(time.Second, 0, now)
	for i := range 100 {
		answer := time.Millisecond
		if i%10 == 0 {
			answer = 60 * time.Millisecond
		}
		g, _, _ := c.Take(now, 1)
		c.Settle(g, now.Add(answer), &slack)
		if got, want := c.After(now, 0, 1), time.Second+answer; got != want {
			t.Fatalf("unit %d, answered after %v: got the next after %v, want %v", i, answer, got, want)
		}
		now = now.Add(c.After(now, 0, 1))
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
	c.Settle(g, next.Add(5*time.Millisecond), new(Slack))
	if got := c.After(next, 0, 1); got != time.Second {
		t.Errorf("got the third unit after %v, want %v", got, time.Second)
	}
}

// A cell without a limit has no pace to keep.
func TestSettleWithoutLimit(t *testing.T) {
	var c Cell
	g, _, _ := c.Take(1e9, 1)
	c.Settle(g, 2e9, new(Slack))
	if got := c.TAT.Load(); got != 1e9 {
		t.Errorf("got TAT %d, want it unchanged at %d", got, uint64(1e9))
	}
}
