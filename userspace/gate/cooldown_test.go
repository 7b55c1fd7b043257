// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
)

// Retry-After: 20000. The lane stays closed for all of it, nobody waits in
// vain, and everybody learns how long it really is.
func TestLongRetryAfter(t *testing.T) {
	b := budget("b", perBoth, sec)
	b.Queue.MaxWait = 30 * sec
	w := newWorld(t, b)
	first := w.enter("first", "a", "direct")
	var held []*request
	for i := range 5 {
		held = append(held, w.enter(fmt.Sprint("held", i), "a", "direct"))
	}
	w.until(100 * ms)
	w.limited(first, 20_000*sec)
	w.mustBe(Refused, held...)
	for _, r := range held {
		if out := r.Outcome(); r.notified != 1 || out.Reason != policy.RefusedMaxWait || out.RetryAfter != 20_000*sec || out.Ahead != 0 {
			t.Errorf("%s: %+v after %d notifications, want max_wait with 20000s", r.name, out, r.notified)
		}
	}
	l := w.lane("b/a/direct")
	if c, ok := l.Closed(); !ok || c.Reason() != "limited, 5h33m20s as asked" {
		t.Errorf("closed because of %q", c.Reason())
	}
	for _, at := range []time.Duration{sec, time.Hour, 5 * time.Hour, 20_000*sec + 100*ms - 30*sec - 1} {
		w.until(at)
		r := w.enter("early", "a", "direct")
		w.mustBe(Refused, r)
		if got, want := r.entered.RetryAfter, 20_000*sec+100*ms-at; got != want {
			t.Errorf("at +%v: retry after %v, want %v", at, got, want)
		}
	}
	w.until(20_000*sec + 100*ms - 30*sec)
	probe := w.enter("probe", "a", "direct")
	w.mustBe(Queued, probe)
	w.until(20_000*sec + 100*ms)
	w.mustGo(20_000*sec+100*ms, probe)
	w.ok(probe)
	w.quiet()
}

// Limits that name no delay, again and again: 2 s, 4 s, … 60 s, each followed
// by one probe; a success begins anew.
func TestLocalBackoff(t *testing.T) {
	b := budget("b", perBoth, 100*ms)
	b.Cooldown.Default = 2 * sec
	w := newWorld(t, b)
	at := time.Duration(0)
	round := func() {
		for i, delay := range []time.Duration{2 * sec, 4 * sec, 8 * sec, 16 * sec, 32 * sec, 60 * sec, 60 * sec} {
			probe, next := w.enter("probe", "a", "direct"), w.enter("next", "a", "direct")
			w.mustGo(at, probe)
			w.mustBe(Queued, next)
			w.Leave(&next.Waiter)
			w.limited(probe, 0)
			held := w.enter("held", "a", "direct")
			w.until(at + delay - 1)
			w.mustBe(Queued, held)
			w.Leave(&held.Waiter)
			at += delay
			w.until(at)
			if got := w.lane("b/a/direct").Strikes(); got != i+1 {
				t.Fatalf("%d strikes, want %d", got, i+1)
			}
		}
	}
	round()
	probe := w.enter("probe", "a", "direct")
	w.mustGo(at, probe)
	w.ok(probe)
	at += time.Minute
	w.until(at)
	round()
	w.quiet()
}

// Trouble of capacity closes without slowing: no strike, no probe, no epoch,
// the burst is still there.
func TestCapacityCoolsLightly(t *testing.T) {
	b := budget("b", perBoth, sec)
	b.Burst = 3
	w := newWorld(t, b)
	first := w.enter("first", "a", "direct")
	w.Done(&first.Waiter, verdict.Verdict{Kind: verdict.Capacity, Delay: 7 * sec, HasDelay: true}, 0, w.now)
	l := w.lane("b/a/direct")
	rs := []*request{w.enter("r0", "a", "direct"), w.enter("r1", "a", "direct"), w.enter("r2", "a", "direct")}
	w.until(7*sec - 1)
	w.mustBe(Queued, rs...)
	w.until(7 * sec)
	w.mustBe(Granted, rs...)
	if l.Strikes() != 0 || l.Cell.Epoch.Load() != 0 || l.Cell.Interval.Load() != l.Cell.BaseInterval.Load() || l.Cell.Limited.Load() != 0 {
		t.Errorf("strikes, epoch, interval, limits = %d, %d, %d, %d", l.Strikes(), l.Cell.Epoch.Load(), l.Cell.Interval.Load(), l.Cell.Limited.Load())
	}
}

// What an answer touches, where the budgets have no lane of the exit alone.
func TestTouchesNothing(t *testing.T) {
	for _, kind := range []verdict.Kind{verdict.ExitTrouble, verdict.Challenge} {
		w := newWorld(t, budget("both", perBoth, ms), budget("dest", perDest, ms))
		r := w.enter("r", "a", "vpn")
		v := verdict.Verdict{Kind: kind, Delay: time.Hour, HasDelay: true}
		if kind == verdict.Challenge { // nor does it tell anything of a limit
			v.Quota = verdict.Quota{HasRemaining: true, HasReset: true, Reset: time.Hour}
			v.Exhausted, v.HasExhausted = time.Hour, true
		}
		w.Done(&r.Waiter, v, 0, w.now)
		for _, l := range w.engine.Lanes() {
			if _, closed := l.Closed(); closed || l.Cell.OpenUntil.Load() != 0 || l.Cell.Epoch.Load() != 0 || l.Cell.Limited.Load() != 0 {
				t.Errorf("%v touched %s", kind, l.ID())
			}
		}
		if got := r.lanes[0].Tally.Limited(kind); got != 1 {
			t.Errorf("tally counts %d of %v, want 1", got, kind)
		}
	}
}

// The reopening is spread only after the time that was asked for, and a limit
// that is shorter than the present cooldown moves nothing.
func TestSpreadIsAboveTheFloor(t *testing.T) {
	for _, rnd := range []float64{0, 0.001, 0.5, 0.999} {
		b := budget("b", perBoth, sec)
		b.Cooldown.Spread = 0.2
		w := newWorld(t, b)
		r := w.enter("r", "a", "direct")
		w.Done(&r.Waiter, verdict.Verdict{Kind: verdict.Limited, Delay: 10 * sec, HasDelay: true}, rnd, w.now)
		open := ledger.Time(w.lane("b/a/direct").Cell.OpenUntil.Load()).Sub(t0)
		if open < 10*sec || open >= 12*sec {
			t.Errorf("rnd %v: opens at +%v, want 10s to 12s", rnd, open)
		}
	}
}

// An answer that is no limit tells that nothing is left: the lane closes, is
// not slowed, and says why.
func TestQuotaUsedUp(t *testing.T) {
	b := budget("b", perBoth, 100*ms)
	b.Queue.MaxWait = 10 * sec
	w := newWorld(t, b)
	first := w.enter("first", "a", "direct")
	held := w.enter("held", "a", "direct")
	l := w.lane("b/a/direct")
	w.until(50 * ms)
	w.Done(&first.Waiter, verdict.Verdict{
		Quota:     verdict.Quota{Limit: 100, HasLimit: true, HasRemaining: true, Reset: 12 * sec, HasReset: true},
		Exhausted: 12 * sec, HasExhausted: true,
	}, 0, w.now)
	w.mustBe(Refused, held)
	if out := held.Outcome(); out.RetryAfter < 12*sec || out.Reason != policy.RefusedMaxWait {
		t.Errorf("outcome = %+v, want max_wait with at least 12s", out)
	}
	c, ok := l.Closed()
	if !ok || !strings.HasPrefix(c.Reason(), "quota used up, opens in 12") || !strings.HasSuffix(c.Reason(), " as told") {
		t.Errorf("closed because of %q", c.Reason())
	}
	if l.Strikes() != 0 || l.Cell.Epoch.Load() != 0 {
		t.Errorf("strikes, epoch = %d, %d, want none", l.Strikes(), l.Cell.Epoch.Load())
	}
	if got := w.count(policy.EventCooldown); got != 1 {
		t.Errorf("%d cooldown events, want 1", got)
	}
	w.until(5 * sec)
	next := w.enter("next", "a", "direct")
	w.until(12*sec + 50*ms - 1)
	w.mustBe(Queued, next)
	w.until(14 * sec)
	w.mustBe(Granted, next)
	w.ok(next)
	w.quiet()
}

// What is left makes a lane stricter before it is used up, and those who would
// wait for too long by that learn at once.
func TestQuotaMakesStricter(t *testing.T) {
	b := budget("b", perBoth, 10*ms)
	b.Queue.MaxWait = 20 * sec
	w := newWorld(t, b)
	first := w.enter("first", "a", "direct")
	var rs []*request
	for range 50 {
		rs = append(rs, w.enter("r", "a", "direct"))
	}
	w.until(5 * ms)
	w.Done(&first.Waiter, verdict.Verdict{Quota: verdict.Quota{
		Limit: 100, HasLimit: true, Remaining: 5, HasRemaining: true, Reset: time.Minute, HasReset: true, Window: time.Minute,
	}}, 0, w.now)
	w.mustBe(Queued, rs[0])
	w.mustBe(Refused, rs[10:]...) // at a dozen seconds each, not after 20 s in vain
	w.until(55 * sec)
	granted, refused := 0, 0
	for _, r := range rs {
		switch r.state() {
		case Granted:
			granted++
			w.ok(r)
		case Refused:
			refused++
		}
	}
	if granted > 5 || refused < 40 {
		t.Errorf("%d granted and %d refused of 50, where 5 are left", granted, refused)
	}
}

// The quota that an exit's provider tells is of the exit.
func TestQuotaOfTheExit(t *testing.T) {
	w := newWorld(t, budget("both", perBoth, ms), budget("exit", perExit, ms))
	r := w.enter("r", "a", "vpn")
	w.Done(&r.Waiter, verdict.Verdict{Kind: verdict.ExitTrouble,
		Quota:     verdict.Quota{Limit: 10, HasLimit: true, HasRemaining: true, Reset: time.Minute, HasReset: true},
		Exhausted: time.Minute, HasExhausted: true,
	}, 0, w.now)
	if got := ledger.Time(w.lane("exit/-/vpn").Cell.OpenUntil.Load()); got < t0.Add(time.Minute) {
		t.Errorf("the exit opens at +%v, want at least 1m", got.Sub(t0))
	}
	if _, closed := w.lane("both/a/vpn").Closed(); closed {
		t.Error("the destination was closed")
	}
}

// A request turns out dearer or cheaper than was foreseen: the next goes later
// or sooner.
func TestCostIsSettled(t *testing.T) {
	for _, tt := range []struct {
		cost uint64
		next time.Duration
	}{
		{1, 2 * sec},
		{2, 2 * sec}, // nothing is given back for a slot that is past
		{3, 3 * sec},
		{4, 4 * sec},
		{1000, 5 * sec}, // a debt of a full bucket beyond an empty one
	} {
		b := budget("b", perBoth, sec)
		b.Burst = 2
		b.Cost = policy.Cost{Units: 2, Header: "x-cost"}
		other := budget("dest", perDest, sec)
		other.Burst = 10
		w := newWorld(t, b, other)
		first, next := w.enter("first", "a", "direct"), w.enter("next", "a", "direct")
		w.until(ms)
		w.Done(&first.Waiter, verdict.Verdict{Cost: tt.cost, HasCost: true}, 0, w.now)
		w.until(time.Minute)
		w.mustBe(Granted, next)
		if got := next.Held(); got < tt.next-sec || got > tt.next+ms {
			t.Errorf("cost %d: the next went at +%v, want about +%v", tt.cost, got, tt.next)
		}
		if got := w.lane("dest/a/-").Cell.Granted.Load(); got != 2 {
			t.Errorf("cost %d: %d units granted where the budget names no field, want 2", tt.cost, got)
		}
	}
}

// No success for a quarter of an hour is told once, and again after the next
// success and the next quarter.
func TestStall(t *testing.T) {
	w := newWorld(t, budget("b", perBoth, sec))
	trouble := func(from time.Duration) {
		for at := from; at <= from+20*time.Minute; at += time.Minute {
			w.until(at)
			w.limited(w.enter("probe", "a", "direct"), 30*sec)
			want := 0
			if at-from >= policy.Stall {
				want = 1
			}
			if from > 0 {
				want++
			}
			if got := w.count(policy.EventStalled); got != want {
				t.Fatalf("at +%v: %d stalls told, want %d", at, got, want)
			}
		}
	}
	trouble(0)
	w.until(30 * time.Minute)
	w.ok(w.enter("probe", "a", "direct"))
	trouble(31 * time.Minute)
	for _, ev := range w.log.Recent(1 << 20) {
		if ev.Kind == policy.EventStalled && (ev.Lane != "b/a/direct" || ev.Wait < policy.Stall || !strings.HasPrefix(ev.Detail, "no success for 15m0s")) {
			t.Errorf("event = %+v", ev)
		}
	}
}

// It is also told by a refusal, where the lane is closed for good.
func TestStallByRefusal(t *testing.T) {
	b := budget("b", perBoth, sec)
	b.Queue.MaxWait = sec
	w := newWorld(t, b)
	w.limited(w.enter("first", "a", "direct"), time.Hour)
	w.until(15*time.Minute - 1)
	w.mustBe(Refused, w.enter("r", "a", "direct"))
	if got := w.count(policy.EventStalled); got != 0 {
		t.Errorf("%d stalls told too early", got)
	}
	w.until(15 * time.Minute)
	w.mustBe(Refused, w.enter("r", "a", "direct"), w.enter("r", "a", "direct"))
	if got := w.count(policy.EventStalled); got != 1 {
		t.Errorf("%d stalls told, want 1", got)
	}
}

// A request that comes again has waited already.
func TestSince(t *testing.T) {
	b := budget("b", perBoth, sec)
	b.Queue.MaxWait = 10 * sec
	again := func(w *world, name string, since time.Duration) *request {
		return w.send(&request{name: name, lanes: w.lanes("a", "/", "direct"), Waiter: Waiter{Since: t0.Add(since)}})
	}
	t.Run("refused at once", func(t *testing.T) {
		w := newWorld(t, b)
		w.until(9 * sec)
		w.mustBe(Granted, w.enter("first", "a", "direct"))
		w.mustBe(Queued, again(w, "in time", 0)) // goes after 1 s: 10 in all
		late := again(w, "late", 500*ms)
		w.mustBe(Refused, late)
		if out := late.entered; out.RetryAfter != 2*sec || out.Ahead != 1 || out.Reason != policy.RefusedMaxWait {
			t.Errorf("outcome = %+v, want max_wait, 1 ahead, after 2s", out)
		}
		w.mustBe(Queued, w.enter("new", "a", "direct"))
	})
	t.Run("goes where there is room", func(t *testing.T) {
		w := newWorld(t, b)
		w.until(time.Hour)
		w.mustBe(Granted, again(w, "old", 0))
	})
	t.Run("is due before others that came before it", func(t *testing.T) {
		w := newWorld(t, b)
		w.limited(w.enter("first", "a", "direct"), 5*sec)
		w.until(5 * sec)
		w.mustBe(Granted, w.enter("probe", "a", "direct")) // without an answer
		w.until(6 * sec)
		fresh, old := w.enter("fresh", "a", "direct"), again(w, "old", 2*sec)
		w.until(12*sec - 1)
		w.mustBe(Queued, fresh, old)
		w.until(12 * sec)
		w.mustBe(Refused, old)
		w.mustBe(Queued, fresh)
		w.until(16 * sec)
		w.mustBe(Refused, fresh)
		if old.at != t0.Add(12*sec) || fresh.at != t0.Add(16*sec) {
			t.Errorf("refused at +%v and +%v, want +12s and +16s", old.at.Sub(t0), fresh.at.Sub(t0))
		}
		w.quiet()
	})
	t.Run("a cooldown refuses the one that came first", func(t *testing.T) {
		w := newWorld(t, b)
		w.until(8 * sec)
		first := w.enter("first", "a", "direct")
		fresh := w.enter("fresh", "a", "direct")
		w.limited(first, 3*sec)
		old := again(w, "old", 0)
		w.mustBe(Queued, fresh)
		w.mustBe(Refused, old)
	})
}

// First attempts, and no others, allow repetitions: one in five.
func TestRetryBudget(t *testing.T) {
	w := newWorld(t, budget("all", 0, ms), budget("b", perBoth, ms))
	for i := range 20 {
		w.until(time.Duration(i) * ms)
		r := w.enter("first", "a", "direct")
		w.until(time.Duration(i)*ms + ms/2)
		w.ok(r)
	}
	for range 20 {
		w.until(w.now.Sub(t0) + ms)
		w.ok(w.send(&request{name: "again", lanes: w.lanes("a", "/", "direct"), Waiter: Waiter{Since: t0}}))
	}
	count := func(id string) (n int) {
		for w.lane(id).Retries.Withdraw() {
			n++
		}
		return n
	}
	if got := count("b/a/direct"); got != 3+4 {
		t.Errorf("%d repetitions, want 3 and a fifth of 20", got)
	}
	if got := count("all/-/-"); got != 3 {
		t.Errorf("%d repetitions in the lane that all share, want 3", got)
	}
}
