// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"testing"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
)

// What was only heard closes and slows a lane as an answer does, once: what
// comes while it is closed may be late news, and only extends. A success says
// nothing.
func TestHeard(t *testing.T) {
	w := newWorld(t, budget("b", perBoth, 100*ms))
	lanes := w.lanes("a", "/", "direct")
	l := lanes[0]
	base := l.Cell.Interval.Load()
	w.Heard(lanes, false, verdict.Verdict{Kind: verdict.OK}, 0, w.now)
	if l.Cell.OpenUntil.Load() != 0 {
		t.Fatal("a success closed the lane")
	}
	limit := verdict.Verdict{Kind: verdict.Limited, Delay: 3 * sec, HasDelay: true}
	for range 5 {
		w.Heard(lanes, false, limit, 0, w.now)
	}
	if got, want := ledger.Time(l.Cell.OpenUntil.Load()), t0.Add(3*sec); got != want {
		t.Errorf("closed until %v, want %v", got, want)
	}
	if got := l.Cell.Interval.Load(); got != 2*base {
		t.Errorf("interval %d after five that were heard at once, want %d: one halving", got, 2*base)
	}
	if got := l.Cell.Limited.Load(); got != 5 {
		t.Errorf("%d limits counted, want 5", got)
	}
	if got := l.InFlight.Load(); got != 0 {
		t.Errorf("%d under way", got)
	}
	held := w.enter("held", "a", "direct")
	w.mustBe(Queued, held)
	w.until(3 * sec)
	w.mustGo(3*sec, held)

	capacity := verdict.Verdict{Kind: verdict.Capacity}
	other := w.lanes("other", "/", "direct")
	w.Heard(other, false, capacity, 0, w.now)
	if l := other[0]; l.Cell.OpenUntil.Load() == 0 || l.Cell.Interval.Load() != base {
		t.Error("trouble of capacity has to close and not to slow")
	}
}

// Through a rotating exit, and in shadow, nothing that holds is touched.
func TestHeardElsewhere(t *testing.T) {
	shadow := budget("shadow", perBoth, 100*ms)
	shadow.Mode = policy.Shadow
	all := budget("all", perDest, 100*ms)
	w := newWorld(t, shadow, all)
	lanes := w.lanes("a", "/", "direct")
	w.Heard(lanes, true, verdict.Verdict{Kind: verdict.Limited, Delay: sec, HasDelay: true}, 0, w.now)
	for _, l := range lanes {
		closed := l.Cell.OpenUntil.Load() != 0
		if want := l.Key.Exit == ""; closed != want {
			t.Errorf("%s closed: %v, want %v", l.ID(), closed, want)
		}
	}
}
