// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
)

// While somebody waits in a lane its cell says so, and nothing that happens to
// the lane meanwhile takes it away.
func TestQueued(t *testing.T) {
	w := newWorld(t, budget("both", perBoth, sec), budget("dest", perDest, sec))
	first := w.enter("first", "a", "x")
	both, dest := w.lane("both/a/x"), w.lane("dest/a/-")
	mustTell := func(l *policy.Lane, want bool) {
		t.Helper()
		if got := l.Cell.Flags.Load()&ledger.FlagQueued != 0; got != want {
			t.Fatalf("at +%v: %s: queued = %v, want %v", w.now.Sub(t0), l.ID(), got, want)
		}
	}
	mustTell(both, false)
	second, third := w.enter("second", "a", "x"), w.enter("third", "a", "x")
	w.mustBe(Queued, second, third)
	mustTell(both, true)
	mustTell(dest, true)

	w.limited(first, 3*sec)
	mustTell(both, true)
	w.ClearCooldown(both)
	mustTell(both, true)
	w.SetCooldown(both, w.now.Add(2*sec))

	w.until(3 * sec)
	w.mustBe(Granted, second)
	w.mustBe(Queued, third)
	mustTell(both, true) // for third
	if !w.Leave(&third.Waiter) {
		t.Fatal("third has left already")
	}
	mustTell(both, false)
	mustTell(dest, false)
	w.ok(second)

	w.until(20 * sec)
	w.ok(w.enter("fourth", "a", "x"))
	w.mustBe(Queued, w.enter("fifth", "a", "x"))
	mustTell(both, true)
	w.until(30 * sec) // fifth goes
	mustTell(both, false)

	// Its probe is under way.
	both.Cell.Penalize(w.now, both.Cell.Epoch.Load(), w.now, 1, 0)
	probe := w.enter("probe", "a", "x")
	w.until(40 * sec)
	w.mustBe(Granted, probe)
	late := w.enter("late", "a", "x")
	w.mustBe(Queued, late)
	mustTell(both, true)
	w.ok(probe)
	w.until(50 * sec)
	w.mustBe(Granted, late)
	mustTell(both, false)
	w.quiet()
}

// A lane that a reload ends keeps nothing of its queue: its cell goes to
// another lane. So does one of a gate that closes.
func TestQueuedEnds(t *testing.T) {
	for _, tt := range []struct {
		name string
		end  func(w *world)
	}{
		{"reload", func(w *world) {
			w.engine.Swap(&policy.Policy{}, w.now)
			w.Reconfigured()
		}},
		{"close", func(w *world) {
			if err := w.Gate.Close(); err != nil {
				t.Fatal(err)
			}
		}},
		{"max_wait", func(w *world) { w.until(2 * time.Hour) }},
		{"cooldown", func(w *world) { w.SetCooldown(w.lane("b/a/x"), w.now.Add(24*time.Hour)) }},
	} {
		w := newWorld(t, budget("b", perBoth, time.Minute))
		w.enter("first", "a", "x")
		cell := w.lane("b/a/x").Cell
		waiting := []*request{w.enter("second", "a", "x"), w.enter("third", "a", "x")}
		w.mustBe(Queued, waiting...)
		if cell.Flags.Load()&ledger.FlagQueued == 0 {
			t.Fatal("nobody is queued")
		}
		tt.end(w)
		for _, r := range waiting {
			if r.state() == Queued {
				t.Errorf("%s: %s still waits", tt.name, r.name)
			}
		}
		if f := cell.Flags.Load(); f&ledger.FlagQueued != 0 {
			t.Errorf("%s: flags = %b, though nobody waits", tt.name, f)
		}
	}
}
