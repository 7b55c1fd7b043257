// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"testing"
	"time"
)

// taker reads the clock, takes, and ends what it took: three steps between which
// others may do all of theirs, as where a goroutine is preempted.
type taker struct {
	next  int
	ahead time.Duration // by which it takes for a time to come, as the kernel does
	cost  uint64
	end   int // one of the ends below

	now   Time
	grant Grant
	ok    bool
}

// What becomes of what was taken.
const (
	goes     = iota
	comeback // nothing of it reached the wire
	cheaper  // it did cost half
	ends
)

// step does the next of the taker's steps at the given instant.
func (a *taker) step(c *Cell, at Time) {
	switch a.next++; a.next {
	case 1:
		a.now = at.Add(a.ahead)
	case 2:
		a.grant, _, a.ok = c.Take(a.now, a.cost)
	case 3:
		switch {
		case !a.ok:
		case a.end == comeback:
			c.Refund(a.grant)
		case a.end == cheaper:
			c.Correct(a.grant, a.cost/2, a.now)
		}
	}
}

// sent is the number of units that the taker sent in the end.
func (a *taker) sent() uint64 {
	switch {
	case !a.ok || a.end == comeback:
		return 0
	case a.end == cheaper:
		return a.cost / 2
	}
	return a.cost
}

const takers, takerSteps = 3, 3

// orders calls f with every order in which the takers' steps can happen.
func orders(f func(order []int)) {
	var left [takers]int
	for i := range left {
		left[i] = takerSteps
	}
	order := make([]int, 0, takers*takerSteps)
	var next func()
	next = func() {
		if len(order) == cap(order) {
			f(order)
			return
		}
		for i := range left {
			if left[i] > 0 {
				left[i]--
				order = append(order, i)
				next()
				order = order[:len(order)-1]
				left[i]++
			}
		}
	}
	next()
}

// In whatever order three take, with instants that they read before, and give
// back: what is sent, with all that the cell has left at the end, keeps the
// bound in every window.
func TestGiveBackInEveryOrder(t *testing.T) {
	const interval = 100 * time.Millisecond
	// Each order of one fate meets the next of these.
	paces := []struct{ tick, ahead time.Duration }{
		{30 * time.Millisecond, 0}, {60 * time.Millisecond, 0}, {110 * time.Millisecond, 0},
		{30 * time.Millisecond, 150 * time.Millisecond}, {60 * time.Millisecond, 150 * time.Millisecond},
	}
	var grants []Time
	given, run := 0, 0
	for _, size := range []struct {
		burst int
		cost  uint64
		fates int // of one that takes: a single unit becomes no cheaper
	}{{1, 1, 2}, {3, 1, 2}, {1, 2, ends}, {3, 2, ends}} {
		most := max(size.burst, int(size.cost)) // a cost above the burst is granted by a full bucket
		for fate := range size.fates * size.fates * size.fates {
			orders(func(order []int) {
				pace := paces[run%len(paces)]
				run++
				c, at := newCell(interval, float64(size.burst)), t0
				var a [takers]taker
				rest := fate
				for i := range a {
					a[i].cost, a[i].end = size.cost, rest%size.fates
					rest /= size.fates
				}
				a[takers-1].ahead = pace.ahead
				for _, i := range order {
					a[i].step(c, at)
					at = at.Add(pace.tick)
				}
				grants = grants[:0]
				for i := range a {
					for range a[i].sent() {
						grants = append(grants, a[i].now)
					}
					if a[i].ok && a[i].sent() < size.cost {
						given++
					}
				}
				for range takers*int(size.cost) + size.burst + 1 {
					if _, ok := c.Acquire(at, 1); !ok {
						break
					}
					grants = append(grants, at)
				}
				if err := exceeds(grants, interval, most); err != nil {
					t.Fatalf("burst %d, cost %d, %+v, ends %v, order %v: %v",
						size.burst, size.cost, pace, [takers]int{a[0].end, a[1].end, a[2].end}, order, err)
				}
			})
		}
	}
	if given == 0 {
		t.Error("nothing was ever given back")
	}
}

// Who gives back while nobody else took gets all of it: nothing is lost.
func TestGiveBackAlone(t *testing.T) {
	for burst := 1; burst <= 4; burst++ {
		t.Run(fmt.Sprint("burst ", burst), func(t *testing.T) {
			c := newCell(time.Second, float64(burst))
			for round := range 10 {
				var taken []Grant
				for range burst {
					g, _, ok := c.Take(t0, 1)
					if !ok {
						t.Fatalf("round %d: %d granted, want %d", round, len(taken), burst)
					}
					taken = append(taken, g)
				}
				for i := len(taken) - 1; i >= 0; i-- {
					c.Refund(taken[i])
				}
			}
			if got := c.Granted.Load(); got != 0 {
				t.Errorf("granted = %d after all was given back", got)
			}
		})
	}
}
