// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
	"github.com/egressd/egressd/userspace/events"
)

func TestFIFO(t *testing.T) {
	w := newWorld(t, budget("b", perBoth, sec))
	var rs []*request
	for i := range 5 {
		rs = append(rs, w.enter(fmt.Sprint("r", i), "a", "direct"))
	}
	w.mustBe(Granted, rs[0])
	w.mustBe(Queued, rs[1:]...)
	w.until(10 * sec)
	for i, r := range rs {
		w.mustGo(time.Duration(i)*sec, r)
		if w.order[i] != r {
			t.Errorf("%s went in place of %s", w.order[i].name, r.name)
		}
		if got, want := r.Held(), time.Duration(i)*sec; got != want {
			t.Errorf("%s was held %v, want %v", r.name, got, want)
		}
	}
	w.quiet()
}

func TestNobodyOvertakes(t *testing.T) {
	w := newWorld(t, budget("b", perBoth, sec))
	w.enter("first", "a", "direct")
	held := w.enter("held", "a", "direct")
	w.now = t0.Add(sec) // the unit is there, the alarm has not rung yet
	late := w.enter("late", "a", "direct")
	w.mustBe(Queued, late)
	w.mustGo(sec, held) // the newcomer's look at the queue let it go
	w.until(2 * sec)
	w.mustGo(2*sec, late)
}

func TestOtherLanesDoNotWait(t *testing.T) {
	w := newWorld(t, budget("b", perBoth, sec))
	w.enter("a1", "a", "direct")
	w.mustBe(Queued, w.enter("a2", "a", "direct"))
	w.mustBe(Granted, w.enter("b1", "b", "direct"), w.enter("a3", "a", "vpn"))
}

func TestLeave(t *testing.T) {
	w := newWorld(t, budget("b", perBoth, sec))
	w.enter("first", "a", "direct")
	var rs []*request
	for i := range 20 {
		rs = append(rs, w.enter(fmt.Sprint("r", i), "a", "direct"))
	}
	// The head, one in the middle, and the end go away: at no cost, and
	// without a stall.
	for _, i := range []int{0, 1, 7, 19} {
		if !w.Leave(&rs[i].Waiter) {
			t.Errorf("r%d could not leave", i)
		}
		if w.Leave(&rs[i].Waiter) {
			t.Errorf("r%d left twice", i)
		}
	}
	w.until(time.Minute)
	n := 0
	for i, r := range rs {
		if i == 0 || i == 1 || i == 7 || i == 19 {
			if r.notified != 0 {
				t.Errorf("%s was notified after it left", r.name)
			}
			continue
		}
		n++
		w.mustGo(time.Duration(n)*sec, r)
		if w.Leave(&r.Waiter) {
			t.Errorf("%s left after it was granted", r.name)
		}
	}
	w.quiet()
}

func TestCooldownHoldsTheQueue(t *testing.T) {
	w := newWorld(t, budget("b", perBoth, sec))
	first := w.enter("first", "a", "direct")
	var rs []*request
	for i := range 3 {
		rs = append(rs, w.enter(fmt.Sprint("r", i), "a", "direct"))
	}
	w.until(500 * ms)
	w.limited(first, 10*sec)
	w.until(10*sec + 499*ms)
	w.mustBe(Queued, rs...)
	w.until(10*sec + 500*ms)
	w.mustGo(10*sec+500*ms, rs[0]) // exactly at the end
	w.until(20 * sec)
	w.mustBe(Queued, rs[1:]...) // for as long as the probe has no answer
	w.ok(rs[0])
	w.mustGo(20*sec, rs[1])
	if got := w.count(policy.EventPenalty); got != 1 {
		t.Errorf("%d penalty events, want 1", got)
	}
	if got := w.count(policy.EventReopened); got != 1 {
		t.Errorf("%d reopened events, want 1", got)
	}
	w.limited(rs[1], 10*sec)
	w.until(time.Hour)
}

// Fifty workers on one lane, one 429: nobody sends in the cooldown, then one
// probe, then a ramp.
func TestStampede(t *testing.T) {
	b := budget("b", perBoth, 100*ms)
	b.Burst = 5
	w := newWorld(t, b)
	first := w.enter("first", "a", "direct")
	w.limited(first, 3*sec)
	var rs []*request
	for i := range 50 {
		rs = append(rs, w.enter(fmt.Sprint("r", i), "a", "direct"))
	}
	w.until(3*sec - 1)
	w.mustBe(Queued, rs...)
	w.until(3 * sec)
	w.mustGo(3*sec, rs[0])
	w.until(3*sec + 300*ms)
	w.mustBe(Queued, rs[1:]...)
	w.ok(rs[0])
	last := w.now
	for i, r := range rs[1:] {
		for r.state() == Queued {
			w.until(w.now.Sub(t0) + ms)
		}
		w.ok(r)
		gap := r.at.Sub(last)
		last = r.at
		// The probe's answer finds 100 ms saved up; after that there is no burst
		// until the rate is back at its base.
		if i > 1 && i < 7 && gap < 100*ms {
			t.Errorf("%s went %v after the one before it, in the ramp", r.name, gap)
		}
	}
	if got := w.count(policy.EventPenalty); got != 1 {
		t.Errorf("%d penalties, want 1", got)
	}
	if l := w.lane("b/a/direct"); l.Cell.Interval.Load() != l.Cell.BaseInterval.Load() {
		t.Errorf("interval is %v after the ramp, want the base", time.Duration(l.Cell.Interval.Load()))
	}
	w.quiet()
}

// Fifty in flight, fifty 429s: the lane is slowed once, and closed until the
// latest instant that any of them asked for.
func TestLateLimitsSlowOnce(t *testing.T) {
	b := budget("b", perBoth, 200*ms)
	b.Burst = 50
	w := newWorld(t, b)
	var rs []*request
	for i := range 50 {
		rs = append(rs, w.enter(fmt.Sprint("r", i), "a", "direct"))
	}
	w.mustBe(Granted, rs...)
	l := w.lane("b/a/direct")
	if got := l.InFlight.Load(); got != 50 {
		t.Errorf("%d in flight, want 50", got)
	}
	for i, r := range rs {
		w.until(time.Duration(i) * ms)
		delay := 3 * sec
		if i == 20 {
			delay = 5 * sec
		}
		w.limited(r, delay)
	}
	if got, want := time.Duration(l.Cell.Interval.Load()), 400*ms; got != want {
		t.Errorf("interval = %v, want %v", got, want)
	}
	if got, want := ledger.Time(l.Cell.OpenUntil.Load()), t0.Add(20*ms+5*sec); got != want {
		t.Errorf("open at +%v, want +%v", got.Sub(t0), want.Sub(t0))
	}
	if got := l.InFlight.Load(); got != 0 {
		t.Errorf("%d in flight, want 0", got)
	}
	if got := l.Cell.Limited.Load(); got != 50 {
		t.Errorf("%d limits counted, want 50", got)
	}
	if got := l.Tally.Limited(verdict.Limited); got != 50 {
		t.Errorf("tally counts %d limits, want 50", got)
	}
	if p, c := w.count(policy.EventPenalty), w.count(policy.EventCooldown); p != 1 || c != 1 {
		t.Errorf("%d penalty and %d cooldown events, want 1 and 1", p, c)
	}
}

func TestProbe(t *testing.T) {
	setup := func(t *testing.T) (w *world, probe, next *request) {
		b := budget("b", perBoth, sec)
		w = newWorld(t, b)
		first := w.enter("first", "a", "direct")
		probe, next = w.enter("probe", "a", "direct"), w.enter("next", "a", "direct")
		w.limited(first, 5*sec)
		w.until(9 * sec)
		w.mustGo(5*sec, probe)
		w.mustBe(Queued, next)
		return w, probe, next
	}
	t.Run("fails", func(t *testing.T) {
		w, probe, next := setup(t)
		w.limited(probe, 3*sec)
		w.until(12*sec - 1)
		w.mustBe(Queued, next)
		w.until(12 * sec)
		w.mustGo(12*sec, next)
	})
	t.Run("fails without a word", func(t *testing.T) {
		w, probe, next := setup(t)
		w.limited(probe, 0) // the default is 1 s: twice that
		w.until(11*sec - 1)
		w.mustBe(Queued, next)
		w.until(11 * sec)
		w.mustGo(11*sec, next)
	})
	t.Run("vanishes", func(t *testing.T) {
		w, probe, next := setup(t)
		w.Abort(&probe.Waiter, false, w.now)
		w.mustGo(9*sec, next)
	})
	t.Run("never reached the wire", func(t *testing.T) {
		w, probe, next := setup(t)
		w.Abort(&probe.Waiter, true, w.now)
		w.mustGo(9*sec, next)
	})
	t.Run("gets a server error", func(t *testing.T) {
		w, probe, next := setup(t)
		w.Done(&probe.Waiter, verdict.Verdict{Kind: verdict.Error}, 0, w.now)
		w.mustGo(9*sec, next) // which is the next probe
		third := w.enter("third", "a", "direct")
		w.until(20 * sec)
		w.mustBe(Queued, third)
		w.ok(next)
		w.mustGo(20*sec, third)
	})
	t.Run("hangs", func(t *testing.T) {
		w, probe, next := setup(t)
		w.until(35*sec - 1)
		w.mustBe(Queued, next)
		w.until(35 * sec)
		w.mustGo(35*sec, next)
		third := w.enter("third", "a", "direct")
		w.ok(probe) // late, but a success
		w.until(37 * sec)
		w.mustGo(37*sec, third)
	})
}

func TestMaxWait(t *testing.T) {
	b := budget("b", perBoth, sec)
	b.Queue.MaxWait = 3 * sec
	b.OnFull = policy.Drop
	w := newWorld(t, b)
	var rs []*request
	for i := range 4 {
		rs = append(rs, w.enter(fmt.Sprint("r", i), "a", "direct"))
	}
	refused := w.enter("refused", "a", "direct")
	w.mustBe(Refused, refused)
	if out := refused.entered; out.Reason != policy.RefusedMaxWait || out.RetryAfter != 4*sec || out.Lane != w.lane("b/a/direct") || !out.Drop {
		t.Errorf("outcome = %+v, want max_wait, retry after 4s, drop", out)
	}
	w.until(3 * sec)
	w.mustGo(3*sec, rs[3])
	l := w.lane("b/a/direct")
	if got := l.Cell.Refused.Load(); got != 1 {
		t.Errorf("%d refused, want 1", got)
	}
	if got := l.Tally.Refused(policy.RefusedMaxWait); got != 1 {
		t.Errorf("tally counts %d refused, want 1", got)
	}
	if got := l.Cell.Held.Load(); got != 3 {
		t.Errorf("%d held, want 3", got)
	}
	w.quiet()
}

// A cooldown makes some of those in the queue wait for too long. They are told
// at once, with the true wait; the others stay.
func TestCooldownRefusesTheQueue(t *testing.T) {
	b := budget("b", perBoth, sec)
	b.Queue.MaxWait = 10 * sec
	w := newWorld(t, b)
	first := w.enter("first", "a", "direct")
	var rs []*request
	for i := range 5 {
		rs = append(rs, w.enter(fmt.Sprint("r", i), "a", "direct"))
	}
	w.limited(first, 7*sec) // then one every 2 s: 7, 9, 11 …
	w.mustBe(Queued, rs[0], rs[1])
	w.mustBe(Refused, rs[2:]...)
	for i, r := range rs[2:] {
		// Each counts those before it that stay: a refused one leaves its place.
		if got, want := r.Outcome().RetryAfter, 11*sec; got != want {
			t.Errorf("r%d may retry after %v, want %v", i+2, got, want)
		}
	}
	w.until(7 * sec)
	w.mustGo(7*sec, rs[0])
	w.ok(rs[0])
	w.until(9 * sec)
	w.mustGo(9*sec, rs[1])
	w.quiet()
}

// A wait that nobody could foresee ends at max_wait.
func TestDeadline(t *testing.T) {
	b := budget("b", perBoth, sec)
	b.Queue.MaxWait = 20 * sec
	w := newWorld(t, b)
	first := w.enter("first", "a", "direct")
	w.limited(first, sec)
	w.until(sec)
	probe := w.enter("probe", "a", "direct")
	w.mustBe(Granted, probe)
	held := w.enter("held", "a", "direct")
	w.until(21*sec - 1)
	w.mustBe(Queued, held)
	w.until(21 * sec)
	w.mustBe(Refused, held)
	if held.at != t0.Add(21*sec) {
		t.Errorf("refused at +%v, want +21s", held.at.Sub(t0))
	}
	w.quiet()
}

// What answers put the units off by does not end a wait that was foreseen to
// fit.
func TestDeadlineIsNotMissedByAHair(t *testing.T) {
	b := budget("b", perBoth, sec)
	b.Queue.MaxWait = 2 * sec
	w := newWorld(t, b)
	rs := []*request{w.enter("r0", "a", "direct"), w.enter("r1", "a", "direct"), w.enter("r2", "a", "direct")}
	w.until(5 * ms)
	w.ok(rs[0])
	w.until(sec + 10*ms)
	w.mustGo(sec+5*ms, rs[1])
	w.ok(rs[1])
	w.until(2*sec + 9*ms)
	w.mustBe(Queued, rs[2])
	w.until(2*sec + 10*ms)
	w.mustGo(2*sec+10*ms, rs[2])
	w.quiet()
}

func TestQueueFull(t *testing.T) {
	b := budget("b", perBoth, sec)
	b.Queue.Max = 2
	w := newWorld(t, b)
	for i := range 3 {
		w.enter(fmt.Sprint("r", i), "a", "direct")
	}
	r := w.enter("full", "a", "direct")
	w.mustBe(Refused, r)
	if out := r.entered; out.Reason != policy.RefusedQueueFull || out.RetryAfter != 3*sec || out.Drop {
		t.Errorf("outcome = %+v, want queue_full, retry after 3s, no drop", out)
	}
	w.until(sec)
	w.mustBe(Queued, w.enter("later", "a", "direct"))
}

func TestNoQueueAtAll(t *testing.T) {
	b := budget("b", perBoth, sec)
	b.Queue = policy.Queue{}
	w := newWorld(t, b)
	w.mustBe(Granted, w.enter("first", "a", "direct"))
	w.mustBe(Refused, w.enter("second", "a", "direct"))
	w.quiet()
}

func TestShadow(t *testing.T) {
	b := budget("b", perBoth, sec)
	b.Mode = policy.Shadow
	w := newWorld(t, b)
	var rs []*request
	for i := range 5 {
		rs = append(rs, w.enter(fmt.Sprint("r", i), "a", "direct"))
	}
	w.mustBe(Granted, rs...)
	l := w.lane("b/a/direct")
	if got := l.Cell.Held.Load(); got != 4 {
		t.Errorf("%d would have been held, want 4", got)
	}
	w.limited(rs[0], 10*sec)
	w.mustBe(Granted, w.enter("after", "a", "direct"))
	if got := l.Cell.OpenUntil.Load(); got != 0 {
		t.Errorf("a lane that only measures was closed until %d", got)
	}
	if got := l.Cell.Limited.Load(); got != 1 {
		t.Errorf("%d limits counted, want 1", got)
	}
	w.quiet()
}

// A shadow budget before an enforced one: the enforced one holds, and is the
// one that a limit closes.
func TestShadowBesideEnforced(t *testing.T) {
	shadow := budget("shadow", perBoth, 10*sec)
	shadow.Mode = policy.Shadow
	w := newWorld(t, shadow, budget("real", perDest, sec))
	a, b := w.enter("a", "a", "direct"), w.enter("b", "a", "direct")
	w.until(sec)
	w.mustGo(sec, b)
	w.limited(a, 5*sec)
	if got := ledger.Time(w.lane("real/a/-").Cell.OpenUntil.Load()); got != t0.Add(6*sec) {
		t.Errorf("the enforced lane opens at +%v, want +6s", got.Sub(t0))
	}
	if got := w.lane("shadow/a/direct").Cell.OpenUntil.Load(); got != 0 {
		t.Error("the shadow lane was closed")
	}
}

func TestVerdicts(t *testing.T) {
	for _, tt := range []struct {
		name   string
		v      verdict.Verdict
		rnd    float64
		open   map[string]time.Duration // lane → opens at; absent: not closed
		slowed bool
	}{
		{name: "success", v: verdict.Verdict{Kind: verdict.OK}},
		{name: "server error", v: verdict.Verdict{Kind: verdict.Error}},
		{name: "challenge", v: verdict.Verdict{Kind: verdict.Challenge}},
		{name: "limit", v: verdict.Verdict{Kind: verdict.Limited, Delay: 5 * sec, HasDelay: true}, open: map[string]time.Duration{"both/a/vpn": 5 * sec}, slowed: true},
		{name: "limit, spread", v: verdict.Verdict{Kind: verdict.Limited, Delay: 10 * sec, HasDelay: true}, rnd: 0.5, open: map[string]time.Duration{"both/a/vpn": 10500 * ms}, slowed: true},
		{name: "limit, spread at its bound", v: verdict.Verdict{Kind: verdict.Limited, Delay: time.Hour, HasDelay: true}, rnd: 0.5, open: map[string]time.Duration{"both/a/vpn": time.Hour + 15*sec}, slowed: true},
		{name: "limit without delay", v: verdict.Verdict{Kind: verdict.Limited}, open: map[string]time.Duration{"both/a/vpn": 2 * sec}, slowed: true},
		{name: "limit beyond the maximum", v: verdict.Verdict{Kind: verdict.Limited, Delay: 100 * time.Hour, HasDelay: true}, open: map[string]time.Duration{"both/a/vpn": 10 * time.Hour}, slowed: true},
		{name: "capacity", v: verdict.Verdict{Kind: verdict.Capacity, Delay: 7 * sec, HasDelay: true}, open: map[string]time.Duration{"both/a/vpn": 7 * sec}},
		{name: "capacity without delay", v: verdict.Verdict{Kind: verdict.Capacity}, open: map[string]time.Duration{"both/a/vpn": sec}},
		{name: "exit trouble", v: verdict.Verdict{Kind: verdict.ExitTrouble, Delay: 7 * sec, HasDelay: true}, open: map[string]time.Duration{"exit/-/vpn": 7 * sec}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := budget("both", perBoth, sec)
			b.Cooldown = policy.Cooldown{Default: 2 * sec, Max: 10 * time.Hour, Spread: 0.1}
			w := newWorld(t, budget("all", 0, ms), budget("exit", perExit, ms), budget("dest", perDest, ms), b)
			r := w.enter("r", "a", "vpn")
			w.Done(&r.Waiter, tt.v, tt.rnd, w.now)
			lanes := w.engine.Lanes()
			if len(lanes) != 4 {
				t.Fatalf("%d lanes, want 4", len(lanes))
			}
			for _, l := range lanes {
				want := ledger.Time(0)
				if d, closed := tt.open[l.ID()]; closed {
					want = t0.Add(d)
					if c, ok := l.Closed(); !ok || c.Kind != tt.v.Kind || c.Given != tt.v.HasDelay {
						t.Errorf("%s: closed because of %+v, want %v", l.ID(), c, tt.v)
					}
				}
				if got := ledger.Time(l.Cell.OpenUntil.Load()); got != want {
					t.Errorf("%s opens at %d, want %d", l.ID(), got, want)
				}
				slowed := l.Cell.Interval.Load() != l.Cell.BaseInterval.Load()
				if want := tt.slowed && tt.open[l.ID()] > 0; slowed != want {
					t.Errorf("%s slowed = %v, want %v", l.ID(), slowed, want)
				}
				if n := l.InFlight.Load(); n != 0 {
					t.Errorf("%s: %d in flight after the answer", l.ID(), n)
				}
			}
		})
	}
}

// A report that comes twice, or for a request that was never let go, is none.
func TestReportTwice(t *testing.T) {
	w := newWorld(t, budget("b", perBoth, sec))
	r := w.enter("r", "a", "direct")
	held := w.enter("held", "a", "direct")
	w.ok(r)
	w.limited(r, sec)
	w.Abort(&r.Waiter, true, w.now)
	w.Abort(&held.Waiter, true, w.now)
	l := w.lane("b/a/direct")
	if l.InFlight.Load() != 0 || l.Cell.OpenUntil.Load() != 0 {
		t.Errorf("in flight %d, open until %d, want 0 and 0", l.InFlight.Load(), l.Cell.OpenUntil.Load())
	}
	w.until(sec)
	w.mustGo(sec, held)
}

func TestAbortRefunds(t *testing.T) {
	w := newWorld(t, budget("b", perBoth, 10*sec))
	r := w.enter("r", "a", "direct")
	held := w.enter("held", "a", "direct")
	w.until(sec)
	w.Abort(&r.Waiter, true, w.now)
	w.mustGo(sec, held)
	next := w.enter("next", "a", "direct")
	w.Abort(&held.Waiter, false, w.now) // some bytes were written: no refund
	w.until(11*sec - 1)
	w.mustBe(Queued, next)
	w.until(11 * sec)
	w.mustGo(11*sec, next)
}

// Who gives its unit back may have read the clock long before it comes to that:
// when another has gone in the meantime, there is nothing to give back.
func TestAbortLate(t *testing.T) {
	w := newWorld(t, budget("b", perBoth, sec))
	r := w.enter("r", "a", "direct")
	w.until(sec)
	w.mustGo(sec, w.enter("in the meantime", "a", "direct"))
	w.Abort(&r.Waiter, true, t0)
	next := w.enter("next", "a", "direct")
	w.until(2*sec - 1)
	w.mustBe(Queued, next)
	w.until(2 * sec)
	w.mustGo(2*sec, next)
}

func TestOperator(t *testing.T) {
	w := newWorld(t, budget("b", perBoth, sec))
	w.enter("first", "a", "direct")
	held := w.enter("held", "a", "direct")
	l := w.lane("b/a/direct")
	w.SetCooldown(l, t0.Add(time.Minute))
	w.SetCooldown(l, t0.Add(sec)) // shortens nothing
	w.until(30 * sec)
	w.mustBe(Queued, held)
	if c, ok := l.Closed(); !ok || !c.Manual || c.Reason() != "operator" {
		t.Errorf("closed because of %+v, want the operator", c)
	}
	w.ClearCooldown(l)
	w.mustGo(30*sec, held)
	w.quiet()
}

func TestReload(t *testing.T) {
	t.Run("faster", func(t *testing.T) {
		w := newWorld(t, budget("b", perBoth, 10*sec))
		w.enter("first", "a", "direct")
		r1, r2 := w.enter("r1", "a", "direct"), w.enter("r2", "a", "direct")
		w.until(5 * sec)
		w.engine.Swap(&policy.Policy{Budgets: []*policy.Budget{budget("b", perBoth, sec)}}, w.now)
		w.Reconfigured()
		w.until(10 * sec)
		w.mustGo(5500*ms, r1)
		w.mustGo(6500*ms, r2)
		w.quiet()
	})
	t.Run("slower", func(t *testing.T) {
		w := newWorld(t, budget("b", perBoth, sec))
		w.enter("first", "a", "direct")
		r := w.enter("r", "a", "direct")
		w.until(500 * ms)
		w.engine.Swap(&policy.Policy{Budgets: []*policy.Budget{budget("b", perBoth, 10*sec)}}, w.now)
		w.Reconfigured()
		w.until(5500*ms - 1)
		w.mustBe(Queued, r)
		w.until(5500 * ms)
		w.mustGo(5500*ms, r)
	})
	t.Run("a budget that goes", func(t *testing.T) {
		w := newWorld(t, budget("b", perBoth, time.Hour), budget("all", 0, ms))
		w.enter("first", "a", "direct")
		r := w.enter("r", "a", "direct")
		w.engine.Swap(&policy.Policy{Budgets: []*policy.Budget{budget("all", 0, ms)}}, w.now)
		w.until(sec)
		w.Reconfigured()
		w.mustGo(sec, r)
		w.quiet()
	})
	t.Run("a budget that only measures from now on", func(t *testing.T) {
		w := newWorld(t, budget("b", perBoth, time.Hour))
		w.enter("first", "a", "direct")
		r := w.enter("r", "a", "direct")
		shadow := budget("b", perBoth, time.Hour)
		shadow.Mode = policy.Shadow
		w.engine.Swap(&policy.Policy{Budgets: []*policy.Budget{shadow}}, w.now)
		w.Reconfigured()
		w.mustGo(0, r)
		w.quiet()
	})
	t.Run("a shorter max_wait", func(t *testing.T) {
		w := newWorld(t, budget("b", perBoth, time.Minute))
		w.enter("first", "a", "direct")
		r := w.enter("r", "a", "direct")
		b := budget("b", perBoth, time.Minute)
		b.Queue.MaxWait = 10 * sec
		w.engine.Swap(&policy.Policy{Budgets: []*policy.Budget{b}}, w.now)
		w.Reconfigured()
		w.until(10 * sec)
		w.mustBe(Refused, r)
	})
}

func TestClose(t *testing.T) {
	w := newWorld(t, budget("b", perBoth, sec))
	w.enter("first", "a", "direct")
	held := w.enter("held", "a", "direct")
	if err := w.Gate.Close(); err != nil {
		t.Errorf("Close = %v", err)
	}
	w.mustBe(Refused, held)
	if got := held.Outcome().Reason; got != policy.RefusedShutdown {
		t.Errorf("refused because of %v, want shutdown", got)
	}
	late := w.enter("late", "a", "direct")
	w.mustBe(Refused, late)
	if err := w.Gate.Close(); err != nil {
		t.Errorf("second Close = %v", err)
	}
	w.quiet()
}

func TestDispatchEvents(t *testing.T) {
	w := newWorld(t, budget("b", perBoth, sec))
	w.enter("unseen", "a", "direct")
	_, sub := w.log.Subscribe(0, events.Options{Dispatches: true})
	held := w.enter("held", "a", "direct")
	w.until(sec)
	w.mustGo(sec, held)
	sub.Close()
	var got []policy.Event
	for ev := range sub.C {
		got = append(got, ev)
	}
	want := policy.Event{At: t0.Add(sec), Kind: policy.EventDispatch, Lane: "b/a/direct", Wait: sec}
	if len(got) != 1 || got[0] != want {
		t.Errorf("events = %+v, want %+v", got, want)
	}
	if n := w.count(policy.EventDispatch); n != 0 {
		t.Errorf("%d dispatch events are remembered, want none", n)
	}
	if got, want := w.engine.Meter("direct").Highest(), uint64(1); got != want {
		t.Errorf("the exit's meter shows %d in a second, want %d", got, want)
	}
	if got := w.lane("b/a/direct").Tally.Wait(); got.Count() != 2 || got.Sum != 1 {
		t.Errorf("wait histogram = %+v, want two values of 1 s together", got)
	}
}
