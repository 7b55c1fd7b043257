// SPDX-License-Identifier: Apache-2.0

package events

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
)

const t0 = ledger.Time(time.Hour)

func refused(lane string, at time.Duration) policy.Event {
	return policy.Event{At: t0.Add(at), Kind: policy.EventRefused, Lane: lane}
}

// suppressed are those numbers of what is remembered, by lane.
func suppressed(l *Log, lane string) (out []uint64) {
	for _, ev := range l.Recent(1 << 20) {
		if ev.Lane == lane {
			out = append(out, ev.Suppressed)
		}
	}
	return out
}

func TestLimit(t *testing.T) {
	l := New(0)
	l.Limit()
	_, sub := l.Subscribe(0, Options{})
	for i := range 1000 {
		l.Emit(refused("a", time.Duration(i)*time.Millisecond)) // within a second
	}
	l.Emit(refused("b", 999*time.Millisecond))
	l.Emit(policy.Event{At: t0.Add(999 * time.Millisecond), Kind: policy.EventCooldown, Lane: "a"})
	if got := len(l.Recent(1 << 20)); got != limitBurst+2 {
		t.Errorf("got %d events, want %d of a and one each of another lane and kind", got, limitBurst+2)
	}
	if got := len(sub.C); got != limitBurst+2 {
		t.Errorf("listeners got %d events, want the same", got)
	}
	l.Emit(refused("a", time.Second))
	if got := suppressed(l, "a"); got[len(got)-1] != 1000-limitBurst {
		t.Errorf("got suppressed %v, want %d in the last", got, 1000-limitBurst)
	}
	l.Emit(refused("a", 1500*time.Millisecond))
	l.Emit(refused("a", 2*time.Second))
	if got := suppressed(l, "a"); got[len(got)-1] != 1 {
		t.Errorf("got suppressed %v, want one in the last", got)
	}
}

// TestSettle holds that the end of a storm is told, too, as the event that it
// was, once.
func TestSettle(t *testing.T) {
	l := New(0)
	l.Settle(t0) // without limits there is nothing to do
	l.Limit()
	for i := range 30 {
		l.Emit(refused("a", time.Duration(i)))
		l.Emit(refused("b", time.Duration(i)+time.Millisecond))
	}
	l.Settle(t0.Add(limitQuiet))
	if got := suppressed(l, "a"); len(got) != limitBurst {
		t.Errorf("too early: got %d events", len(got))
	}
	for range 2 {
		l.Settle(t0.Add(limitQuiet + time.Second))
	}
	for _, lane := range []string{"a", "b"} {
		got := suppressed(l, lane)
		if len(got) != limitBurst+1 || got[limitBurst] != 30-limitBurst-1 {
			t.Errorf("lane %s: got suppressed %v, want %d more at the end", lane, got, 30-limitBurst-1)
		}
	}
	last := l.Recent(2)
	if last[0].Lane != "a" || last[0].At != t0.Add(29) || last[1].Lane != "b" {
		t.Errorf("got %v, want the last of a and then that of b", last)
	}
	l.Settle(t0.Add(time.Minute))
	if n := len(l.limit.lanes); n != 0 {
		t.Errorf("%d quiet lanes are remembered", n)
	}
}

// TestNothingIsForgotten holds that what is told and what is said to be left
// out are together what happened, whatever happens when.
func TestNothingIsForgotten(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	l := New(1 << 20)
	l.Limit()
	want := map[string]uint64{}
	at := time.Duration(0)
	for range 20_000 {
		at += time.Duration(r.Int64N(int64(20 * time.Millisecond)))
		lane := fmt.Sprint(r.IntN(8))
		l.Emit(refused(lane, at))
		want[lane]++
		if r.IntN(100) == 0 {
			l.Settle(t0.Add(at))
		}
		if r.IntN(500) == 0 {
			at += time.Duration(r.Int64N(int64(20 * time.Second)))
		}
	}
	l.Settle(t0.Add(at + time.Minute))
	got := map[string]uint64{}
	for _, ev := range l.Recent(1 << 20) {
		got[ev.Lane] += 1 + ev.Suppressed
	}
	for lane, n := range want {
		if got[lane] != n {
			t.Errorf("lane %s: got %d events, want %d", lane, got[lane], n)
		}
	}
}

// TestLimitIsBounded holds that the limiter does not grow with what it sees.
func TestLimitIsBounded(t *testing.T) {
	l := New(8)
	l.Limit()
	for i := range maxLimited + 1000 {
		l.Emit(refused(fmt.Sprint(i), 0))
	}
	if n := len(l.limit.lanes); n > maxLimited+1 {
		t.Errorf("%d lanes are remembered, want at most %d", n, maxLimited+1)
	}
}

// TestDispatchesAreNotLimited: who asks for them wants all.
func TestDispatchesAreNotLimited(t *testing.T) {
	l := New(8)
	l.Limit()
	_, sub := l.Subscribe(0, Options{Dispatches: true})
	for range 100 {
		l.Emit(policy.Event{At: t0, Kind: policy.EventDispatch, Lane: "a"})
	}
	if got := len(sub.C); got != 100 {
		t.Errorf("got %d dispatches, want 100", got)
	}
}

func BenchmarkEmitLimited(b *testing.B) {
	l := New(0)
	l.Limit()
	ev := refused("store:a.example:direct", 0)
	for b.Loop() {
		ev.At = ev.At.Add(time.Microsecond)
		l.Emit(ev)
	}
}
