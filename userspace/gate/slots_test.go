// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/verdict"
)

// slots is a budget that bounds only what is under way at once.
func slots(name string, per policy.Per, n int) *policy.Budget {
	b := budget(name, per, 0)
	b.Rate = policy.Rate{}
	b.Concurrency = n
	return b
}

// Who waits for a place goes when an answer frees one, whatever the answer is,
// and there is no timer for it.
func TestPlaceOfAnAnswer(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(w *world, r *request)
	}{
		{"answer", func(w *world, r *request) { w.ok(r) }},
		{"server error", func(w *world, r *request) { w.Done(&r.Waiter, verdict.Verdict{Kind: verdict.Error}, 0, w.now) }},
		{"challenge", func(w *world, r *request) { w.Done(&r.Waiter, verdict.Verdict{Kind: verdict.Challenge}, 0, w.now) }},
		{"no answer", func(w *world, r *request) { w.Abort(&r.Waiter, false, w.now) }},
		{"never sent", func(w *world, r *request) { w.Abort(&r.Waiter, true, w.now) }},
		{"a connection that ends", func(w *world, r *request) {
			r.lanes[0].Hold() // its second count
			w.ok(r)
			w.mustBe(Queued, w.live[2])
			r.lanes[0].Release()
			w.Wake(r.lanes[0])
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, slots("b", perBoth, 2))
			a, b := w.enter("a", "h", "direct"), w.enter("b", "h", "direct")
			c, d := w.enter("c", "h", "direct"), w.enter("d", "h", "direct")
			w.mustBe(Granted, a, b)
			w.mustBe(Queued, c, d)
			w.until(59 * time.Minute)
			w.mustBe(Queued, c, d)
			tt.end(w, a)
			w.mustGo(59*time.Minute, c)
			w.mustBe(Queued, d)
			w.ok(b)
			w.mustGo(59*time.Minute, d)
			w.ok(c)
			w.ok(d)
			w.quiet()
			if n := a.lanes[0].InFlight.Load(); n != 0 {
				t.Errorf("%d under way, want none", n)
			}
		})
	}
}

// A lane that is full is woken by answers alone, not by the timeout of a probe,
// but the longest wait ends all the same.
func TestPlaceNeverFree(t *testing.T) {
	b := slots("b", perBoth, 1)
	b.Queue.MaxWait = 2 * time.Minute
	w := newWorld(t, b)
	hang := w.enter("hang", "h", "direct")
	held := w.enter("held", "h", "direct")
	rang := 0
	for w.alarm != 0 && w.alarm <= t0.Add(2*time.Minute) {
		rang++
		w.until(w.alarm.Sub(t0))
	}
	w.mustBe(Refused, held)
	if held.at != t0.Add(2*time.Minute) || rang != 1 {
		t.Errorf("refused at +%v after %d alarms, want 2m0s and 1", held.at.Sub(t0), rang)
	}
	w.ok(hang)
	w.quiet()
}

// The probe is under way and takes the only place: its timeout lets another one
// probe, but not exceed the number of places.
func TestProbeHoldsThePlace(t *testing.T) {
	b := slots("b", perBoth, 1)
	w := newWorld(t, b)
	w.limited(w.enter("first", "h", "direct"), sec)
	w.until(sec)
	probe, next := w.enter("probe", "h", "direct"), w.enter("next", "h", "direct")
	w.mustGo(sec, probe)
	w.until(10 * time.Minute)
	w.mustBe(Queued, next)
	w.Abort(&probe.Waiter, false, w.now)
	w.mustGo(10*time.Minute, next)
	if got := next.lanes[0].InFlight.Load(); got != 1 {
		t.Errorf("%d under way, want 1", got)
	}
	w.ok(next)
	w.quiet()
}

// An exit has no place: requests through it must not keep their turn at the
// destination for long, which others want through other exits.
func TestFullExitDoesNotHoldDestination(t *testing.T) {
	w := newWorld(t, budget("dest", perDest, 800*ms), slots("exit", perExit, 1))
	hang := w.enter("hang", "x", "e1")
	w.enter("first", "a", "e2")
	var bad []*request
	for i := range 10 {
		bad = append(bad, w.enter(fmt.Sprint("bad", i), "a", "e1"))
	}
	good := w.enter("good", "a", "e3")
	w.until(900*ms - 1)
	w.mustBe(Queued, good)
	w.until(900 * ms)
	w.mustGo(900*ms, good) // an eighth of the pace later than if there were no others
	w.mustBe(Queued, bad...)
	w.until(5 * sec)
	w.ok(hang)
	w.mustGo(5*sec, bad[0])
	for i, r := range bad {
		w.until(5*sec + time.Duration(i)*800*ms)
		w.mustGo(5*sec+time.Duration(i)*800*ms, r)
		w.ok(r)
	}
	w.quiet()
}

// A place comes free at the exit while the destination's unit is taken: who
// has waited for it keeps it until the next unit, and goes with that.
func TestPlaceIsKeptForTheNextUnit(t *testing.T) {
	w := newWorld(t, budget("dest", perDest, 100*ms), slots("exit", perExit, 1))
	hang := w.enter("hang", "x", "e1")
	w.enter("first", "a", "e2")
	both := w.enter("both", "a", "e1")
	for i := range 30 { // keep the destination busy
		w.enter(fmt.Sprint("d", i), "a", fmt.Sprint("f", i))
	}
	w.until(sec)
	w.mustBe(Queued, both)
	one, two := w.enter("one", "y", "e1"), w.enter("two", "z", "e1")
	w.until(sec + 50*ms)
	w.ok(hang)
	w.mustBe(Queued, both, one, two)
	w.mustNotLeaveBehind()
	w.until(sec + 200*ms)
	w.mustBe(Granted, both)
	w.mustBe(Queued, one, two)
	w.ok(both)
	w.mustBe(Granted, one)
	w.ok(one)
	w.mustBe(Granted, two)
	w.ok(two)
	w.until(time.Minute)
	w.mustBe(Granted, w.live...)
	w.quiet()
}

// Requests that need a place at an exit that others keep full, and a unit of a
// destination that others keep busy, or two places: they get both, at every
// ratio of the two times.
func TestNoStarvationForPlaces(t *testing.T) {
	for _, tt := range []struct {
		name    string
		dest    *policy.Budget
		answers time.Duration
		most    time.Duration // that one may be held
	}{
		{"answers as slow as the pace", budget("dest", perDest, 50*ms), 50 * ms, 5 * sec},
		{"quick answers", budget("dest", perDest, sec), 30 * ms, 40 * sec},
		{"slow answers", budget("dest", perDest, 10*ms), 2 * sec, 40 * sec},
		{"slow pace", budget("dest", perDest, 20*sec), 300 * ms, 10 * time.Minute},
		{"two places", slots("dest", perDest, 2), 100 * ms, 5 * sec},
		{"a window", func() *policy.Budget {
			b := slots("dest", perDest, 0)
			b.Window = policy.Window{Limit: 10, Per: sec}
			return b
		}(), 170 * ms, 5 * sec},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, tt.dest, slots("exit", perExit, 2))
			step := min(tt.answers/10, 10*ms)
			var flying []*request
			var both []*request
			seen := 0
			busyExit, busyDest := make([]*request, 4), make([]*request, 4)
			n := 0
			for at := time.Duration(0); at < 20*tt.most; at += step {
				w.until(at)
				for i := range busyExit { // as many as ever want the exit for other destinations …
					if r := busyExit[i]; r == nil || r.state() == Granted && r.phase == idle {
						n++
						busyExit[i] = w.enter(fmt.Sprint("e", n), fmt.Sprint("other", i), "e1")
					}
				}
				for i := range busyDest { // … and the destination through other exits
					if r := busyDest[i]; r == nil || r.state() == Granted && r.phase == idle {
						n++
						busyDest[i] = w.enter(fmt.Sprint("d", n), "a", fmt.Sprint("other", i))
					}
				}
				if len(both) < 5 {
					both = append(both, w.enter(fmt.Sprint("both", len(both)), "a", "e1"))
				}
				for ; seen < len(w.order); seen++ {
					flying = append(flying, w.order[seen])
				}
				left := flying[:0]
				for _, r := range flying {
					if w.now.Sub(r.Dispatched()) >= tt.answers {
						w.ok(r)
					} else {
						left = append(left, r)
					}
				}
				flying = left
				w.mustNotLeaveBehind()
				if len(both) == 5 && !slices.ContainsFunc(both, func(r *request) bool { return r.state() != Granted }) {
					break
				}
			}
			w.mustBe(Granted, both...)
			for _, r := range both {
				if r.Held() > tt.most {
					t.Errorf("%s was held %v, want at most %v", r.name, r.Held(), tt.most)
				}
			}
		})
	}
}
