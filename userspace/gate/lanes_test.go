// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
)

func TestAllOrNone(t *testing.T) {
	// dest: 1/s each; all: one every 3 s.
	w := newWorld(t, budget("dest", perDest, sec), budget("all", 0, 3*sec))
	w.mustBe(Granted, w.enter("a1", "a", "direct"))
	b1 := w.enter("b1", "b", "direct")
	w.mustBe(Queued, b1)
	// Its own lane had a unit, and must still have it.
	if got := w.lane("dest/b/-").Cell.Granted.Load(); got != 0 {
		t.Errorf("a waiter holds %d units of its lane", got)
	}
	w.until(3 * sec)
	w.mustGo(3*sec, b1)
	if got := w.lane("dest/b/-").Cell.Granted.Load(); got != 1 {
		t.Errorf("%d units granted, want 1", got)
	}
	w.quiet()
}

// The lane that all share is handed out in order of arrival.
func TestSharedLaneFIFO(t *testing.T) {
	w := newWorld(t, budget("dest", perDest, 10*ms), budget("all", 0, sec))
	var rs []*request
	for i := range 6 {
		rs = append(rs, w.enter(fmt.Sprint("r", i), fmt.Sprint("host", i%3), "direct"))
	}
	w.until(10 * sec)
	for i, r := range rs {
		w.mustGo(time.Duration(i)*sec, r)
	}
	w.quiet()
}

// One destination is slow or closed: the others go on through the lane that
// all share, at its full rate.
func TestNoHeadOfLineBlocking(t *testing.T) {
	w := newWorld(t, budget("dest", perDest, 100*ms), budget("all", 0, 10*ms))
	first := w.enter("a1", "a", "direct")
	w.limited(first, time.Minute)
	held := w.enter("a2", "a", "direct")
	w.until(sec)
	w.mustBe(Queued, held)
	for i := range 20 {
		w.mustBe(Granted, w.enter(fmt.Sprint("b", i), fmt.Sprint("b", i), "direct"))
		w.until(w.now.Sub(t0) + 10*ms)
	}
	w.until(2 * time.Minute)
	w.mustGo(time.Minute, held)
}

// An exit is closed: requests through it must not keep their turn at the
// destination, which others want through other exits.
func TestClosedExitDoesNotHoldDestination(t *testing.T) {
	w := newWorld(t, budget("dest", perDest, sec), budget("exit", perExit, 100*ms))
	w.enter("first", "a", "e1")
	bad := w.enter("bad", "a", "e1")
	bad2 := w.enter("bad2", "a", "e1")
	w.SetCooldown(w.lane("exit/-/e1"), t0.Add(10*sec))
	good := w.enter("good", "a", "e2")
	w.until(sec)
	w.mustGo(sec, good)
	w.mustBe(Queued, bad, bad2)
	w.until(10 * sec)
	w.mustGo(10*sec, bad) // its turn at the destination comes back with the exit
	w.until(11 * sec)
	w.mustGo(11*sec, bad2)
	w.quiet()
}

// The same when the exit closes while a request that has its turn at the
// destination stands in the exit's line.
func TestExitClosesUnderTurn(t *testing.T) {
	w := newWorld(t, budget("dest", perDest, 2*sec), budget("exit", perExit, sec))
	w.enter("other", "b", "e1") // empties the exit
	turn := w.enter("turn", "a", "e1")
	good := w.enter("good", "a", "e2")
	w.mustBe(Queued, turn, good) // good stands behind turn at the destination
	w.SetCooldown(w.lane("exit/-/e1"), t0.Add(30*sec))
	w.mustGo(0, good)
	w.mustBe(Queued, turn)
	w.until(30 * sec)
	w.mustGo(30*sec, turn)
	w.quiet()
}

// A slow budget for a path must not hold those that only need the fast one of
// the destination.
func TestSlowPathDoesNotHoldDestination(t *testing.T) {
	slow := budget("api", 0, time.Minute)
	slow.Match.Path = "/api/"
	w := newWorld(t, budget("dest", perDest, 100*ms), slow)
	w.enterPath("api1", "a", "/api/x", "direct")
	api := w.enterPath("api2", "a", "/api/x", "direct")
	w.mustBe(Queued, api)
	for i := range 10 {
		w.until(time.Duration(i+1) * 100 * ms)
		w.mustBe(Granted, w.enter(fmt.Sprint("page", i), "a", "direct"))
	}
	w.until(time.Minute)
	w.mustGo(time.Minute, api)
	w.quiet()
}

// Two lanes, both busy with requests that need only one of them, whose units
// never come at the same instant: who needs both gets both, in time.
func TestNoStarvation(t *testing.T) {
	one, two := budget("one", perDest, 100*ms), budget("two", 0, 150*ms)
	one.Match.Path, two.Match.Path = "/1", "/12"
	three := budget("three", perExit, 150*ms)
	three.Match.Path = "/12"
	w := newWorld(t, one, three)
	// Path /1 needs lane one; /12 needs one and three; other exits' /12 are
	// not needed: lane three is kept busy through another host.
	both := make([]*request, 0, 20)
	for i := range 400 {
		w.until(time.Duration(i) * 50 * ms)
		w.enterPath("single", "a", "/1", "direct")
		w.enterPath("other", fmt.Sprint("h", i), "/12", "direct")
		if i%20 == 0 {
			both = append(both, w.enterPath("both", "a", "/12", "direct"))
		}
	}
	w.until(time.Hour)
	w.mustBe(Granted, w.live...)
	for _, r := range both {
		// Everybody waits in queues that grow; nobody may wait for more than
		// those before it make unavoidable: all before it in both lanes.
		ahead := 0
		for _, o := range w.order {
			if o.entered.State == Queued && o.Waiter.entered <= r.Waiter.entered {
				ahead++
			}
		}
		if most := time.Duration(ahead+1) * 150 * ms; r.Held() > most {
			t.Errorf("a request for two lanes was held %v, more than %v for the %d before it", r.Held(), most, ahead)
		}
	}
	w.quiet()
}

// A limit closes the most specific lane, not one that others share.
func TestLimitClosesMostSpecific(t *testing.T) {
	w := newWorld(t, budget("all", 0, ms), budget("dest", perDest, ms))
	r := w.enter("a", "a", "direct")
	w.until(2 * ms) // more than an interval: the answer comes late
	w.limited(r, time.Minute)
	w.mustBe(Granted, w.enter("b", "b", "direct"))
	if got := w.lane("all/-/-").Cell.OpenUntil.Load(); got != 0 {
		t.Errorf("the lane of all was closed until %d", got)
	}
	if got := ledger.Time(w.lane("dest/a/-").Cell.OpenUntil.Load()); got != t0.Add(time.Minute+2*ms) {
		t.Errorf("the lane of a opens at +%v, want +1m2ms", got.Sub(t0))
	}
}

// Without a burst, the next request goes an interval after the answer, as far
// as that costs next to nothing: see ledger.Cell.Settle.
func TestNextGoesAfterTheAnswer(t *testing.T) {
	w := newWorld(t, budget("dest", perDest, sec))
	first := w.enter("a", "h", "direct")
	second, third := w.enter("b", "h", "direct"), w.enter("c", "h", "direct")
	w.until(3 * ms)
	w.ok(first)
	w.until(sec + 2*ms)
	w.mustBe(Queued, second, third)
	w.until(sec + 3*ms)
	w.mustBe(Granted, second)
	w.ok(second) // at once
	w.until(2*sec + 3*ms)
	w.mustBe(Granted, third)
	w.quiet()
}

// Reload changes which of two lanes is slower, and so the order of turns,
// under requests that have some.
func TestReloadTurnsOrder(t *testing.T) {
	w := newWorld(t, budget("dest", perDest, sec), budget("all", 0, 500*ms))
	for i := range 12 {
		w.enter(fmt.Sprint("r", i), fmt.Sprint("h", i%3), "direct")
	}
	w.until(700 * ms)
	w.engine.Swap(&policy.Policy{Budgets: []*policy.Budget{budget("dest", perDest, 100*ms), budget("all", 0, sec)}}, w.now)
	w.Reconfigured()
	for i := range 6 {
		w.enter(fmt.Sprint("s", i), fmt.Sprint("h", i%3), "direct")
	}
	w.until(time.Minute)
	w.mustBe(Granted, w.live...)
	w.quiet()
}

// Someone else is quicker between the look at the lanes and the taking: what
// was taken goes back. Two lanes on one cell without burst are always so.
func TestRollback(t *testing.T) {
	dest := budget("dest", perDest, sec)
	dest.Queue.MaxWait = 2 * sec
	w := newWorld(t, dest, budget("all", 0, sec))
	lanes := w.lanes("a", "/", "direct")
	lanes[1].Cell = lanes[0].Cell
	r := w.enter("r", "a", "direct")
	w.until(sec)
	w.mustBe(Queued, r)
	if _, ready := lanes[0].Cell.Peek(w.now, 1); !ready || lanes[0].Cell.Granted.Load() != 0 {
		t.Errorf("ready, granted = %v, %d, want true, 0", ready, lanes[0].Cell.Granted.Load())
	}
	w.until(2250 * ms) // it always looked as if it were about to go
	w.mustBe(Refused, r)
	w.quiet()
}

// A request that has its turn at one lane and waits in the line of another
// when the first closes: the second goes on without it.
func TestLaneClosesBehindTurn(t *testing.T) {
	w := newWorld(t, budget("dest", perDest, 2*sec), budget("all", 0, sec))
	w.enter("first", "x", "direct") // empties what all share
	turn := w.enter("turn", "a", "direct")
	next := w.enter("next", "b", "direct")
	w.SetCooldown(w.lane("dest/a/-"), t0.Add(time.Minute))
	w.until(sec)
	w.mustGo(sec, next)
	w.mustBe(Queued, turn)
	w.until(time.Minute)
	w.mustGo(time.Minute, turn)
	w.quiet()
}

// The same, where the first lane is not the slowest: the turns in slower ones
// are free at once, not only when the last lane is ready.
func TestLaneClosesBetweenTurns(t *testing.T) {
	api := budget("api", 0, 300*ms)
	api.Match.Path = "/api"
	w := newWorld(t, budget("dest", perDest, sec), budget("exit", perExit, 500*ms), api)
	w.enterPath("first", "x", "/api", "e9") // empties what all /api share
	turn := w.enterPath("turn", "a", "/api", "e1")
	next := w.enter("next", "a", "e2") // stands behind turn at a
	w.mustBe(Queued, turn, next)
	w.until(100 * ms)
	w.SetCooldown(w.lane("exit/-/e1"), t0.Add(time.Minute))
	w.mustGo(100*ms, next)
	w.until(time.Minute)
	w.mustGo(time.Minute, turn)
	w.quiet()
}
