// SPDX-License-Identifier: Apache-2.0

package window

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

const t0 = ledger.Time(1e15)

// Random workloads of all operations, judged by the list of what was sent.
func TestRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for first := range 128 { // all limits, times and kinds
		t.Run(fmt.Sprint(first), func(t *testing.T) {
			for range 4 {
				ops := make([]byte, 2+2*150)
				for i := range ops {
					ops[i] = byte(r.Uint32())
				}
				ops[0] = byte(first)
				if play(t, ops); t.Failed() {
					t.Logf("ops []byte(%q)", ops)
					return
				}
			}
		})
	}
}

// The same without what makes a window assume the worst: it is exact then.
func TestRandomExact(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for first := range 128 {
		t.Run(fmt.Sprint(first), func(t *testing.T) {
			for range 4 {
				ops := make([]byte, 2+2*150)
				for i := range ops {
					ops[i] = byte(r.Uint32())
					if i%2 == 0 {
						ops[i] %= 13
					}
				}
				ops[0] = byte(first)
				if play(t, ops); t.Failed() {
					t.Logf("ops []byte(%q)", ops)
					return
				}
			}
		})
	}
}

func FuzzWindow(f *testing.F) {
	for first := range byte(128) {
		f.Add([]byte{first, 2, 8, 0, 0, 128, 5, 1, 15, 0, 8, 0, 14, 100, 4, 1, 11, 0, 5, 1, 15, 17, 13, 64, 4, 2, 9, 3})
	}
	f.Fuzz(func(t *testing.T, ops []byte) {
		play(t, ops[:min(len(ops), 400)])
	})
}

// A fixed window of five a minute, as a story in time.
func TestFixedBoundaries(t *testing.T) {
	w := New(Config{5, time.Minute, Fixed}, Saved{}, t0)
	fill := func(at time.Duration, want int) {
		t.Helper()
		got := 0
		for {
			if _, ok := w.Take(t0.Add(at), 1); !ok {
				break
			}
			got++
		}
		if got != want {
			t.Errorf("%d units at %v, want %d", got, at, want)
		}
	}
	w.Take(t0.Add(10*time.Second), 1) // begins the window
	fill(69*time.Second, 4)
	fill(70*time.Second-1, 0)
	fill(70*time.Second, 5)                                   // twice the limit across a boundary
	fill(300*time.Second, 5)                                  // the next window begins with its first unit
	w.Align(t0.Add(330*time.Second), t0.Add(320*time.Second)) // the boundary is at half minutes
	fill(329*time.Second, 0)                                  // five were sent since 270 s
	fill(330*time.Second, 5)
	w.Align(t0.Add(20*time.Second), t0.Add(331*time.Second)) // a reset long ago: at 20 s of each minute
	fill(379*time.Second, 0)                                 // the five of 330 s lie in the window from 320 s
	fill(380*time.Second, 5)
	fill(439*time.Second, 0)
	fill(500*time.Second+1, 5) // boundaries stay where they are without units
	fill(559*time.Second, 0)
	fill(560*time.Second, 5)
}

// Where the origin's window began after units were sent, those do not count.
func TestAlignForgetsTheWindowBefore(t *testing.T) {
	const limit = 100
	w := New(Config{limit, time.Minute, Fixed}, Saved{}, t0)
	for i := range limit { // evenly from 0 s to 49.5 s
		w.Take(t0.Add(time.Duration(i)*500*time.Millisecond), 1)
	}
	now := t0.Add(50 * time.Second)
	w.Align(t0.Add(85*time.Second), now) // began at 25 s
	if used, until := w.Used(now); used < 50 || used > 52 || until != t0.Add(85*time.Second) {
		t.Errorf("%d units used until %v, want those 50 since 25 s, and one grain", used, until.Sub(t0))
	}
	// Resets in whole seconds, once a little early and once a little late, do
	// not make it lose what it knows.
	for i := range 200 {
		w.Align(t0.Add(time.Duration(84+i%3)*time.Second), now)
	}
	w.Align(t0.Add(85*time.Second), now)
	if used, _ := w.Used(now); used < 50 || used > 52 {
		t.Errorf("%d units used", used)
	}
}

func TestSlidingIgnoresAlign(t *testing.T) {
	w := New(Config{1, time.Minute, Sliding}, Saved{}, t0)
	w.Take(t0, 1)
	w.Align(t0.Add(time.Second), t0)
	if wait := w.Wait(t0, 1); wait != time.Minute {
		t.Errorf("wait %v", wait)
	}
}

func TestDebit(t *testing.T) {
	for _, kind := range []Kind{Sliding, Fixed} {
		w := New(Config{10, time.Minute, kind}, Saved{}, t0)
		w.Debit(0, t0)
		if used, _ := w.Used(t0); used != 0 {
			t.Errorf("kind %d: %d units used", kind, used)
		}
		w.Take(t0, 1)
		w.Debit(4, t0.Add(time.Second))
		if used, _ := w.Used(t0.Add(time.Second)); used != 5 {
			t.Errorf("kind %d: %d units used, want 5", kind, used)
		}
		w.Debit(math.MaxUint64, t0.Add(2*time.Second))
		if used, _ := w.Used(t0.Add(2 * time.Second)); used != 20 {
			t.Errorf("kind %d: %d units used, want twice the limit", kind, used)
		}
		want := 60 * time.Second // of 20 units, 15 are of the last debit
		if kind == Sliding {
			want = 62 * time.Second
		}
		if wait := w.Wait(t0, 1); wait != want-2*time.Second { // t0 is late and counts as 2 s
			t.Errorf("kind %d: wait %v, want %v", kind, wait, want-2*time.Second)
		}
		if _, ok := w.Take(t0.Add(want), 10); !ok {
			t.Errorf("kind %d: refused after the debt", kind)
		}
	}
}

func TestUndo(t *testing.T) {
	const per = time.Minute
	for _, limit := range []uint64{2, 2000} {
		for _, kind := range []Kind{Sliding, Fixed} {
			w := New(Config{limit, per, kind}, Saved{}, t0)
			s, _ := w.Take(t0, limit/2)
			last, _ := w.Take(t0.Add(per/2), limit/2)
			w.Undo(Stamp{}, t0.Add(per/2))
			if _, ok := w.Take(t0.Add(per/2), 1); ok {
				t.Errorf("kind %d: the zero stamp gave something back", kind)
			}
			w.Undo(s, t0.Add(per/2))
			if used, _ := w.Used(t0.Add(per / 2)); used != limit/2 {
				t.Errorf("kind %d: %d units used", kind, used)
			}
			w.Undo(last, t0.Add(per/2))
			if used, until := w.Used(t0.Add(per / 2)); used != 0 || until != t0.Add(per/2) {
				t.Errorf("kind %d: %d units used until %v", kind, used, until.Sub(t0))
			}
			// A stamp that is out of the window gives back none of those in it.
			old, _ := w.Take(t0.Add(per), limit)
			w.Take(t0.Add(2*per), limit)
			w.Undo(old, t0.Add(2*per))
			if used, _ := w.Used(t0.Add(2 * per)); used != limit {
				t.Errorf("kind %d: an old stamp left %d units", kind, used)
			}
		}
	}
}

// A stamp stays good when the limit changes.
func TestUndoAcrossReconfigure(t *testing.T) {
	for _, kind := range []Kind{Sliding, Fixed} {
		w := New(Config{10, time.Minute, kind}, Saved{}, t0)
		s, _ := w.Take(t0, 4)
		w.Take(t0+1, 6)
		w.Reconfigure(Config{5000, time.Minute, kind}, t0+2)
		w.Undo(s, t0+3)
		if used, _ := w.Used(t0 + 3); used != 6 {
			t.Errorf("kind %d: %d units used, want 6", kind, used)
		}
		// What was forgotten before the change is not taken from others.
		w.Take(t0.Add(time.Minute+1), 1)
		w.Reconfigure(Config{10, time.Minute, kind}, t0.Add(time.Minute+1))
		w.Undo(Stamp{t0 + 1, 1}, t0.Add(time.Minute+1))
		if used, _ := w.Used(t0.Add(time.Minute + 1)); used != 1 {
			t.Errorf("kind %d: %d units used after the second change, want 1", kind, used)
		}
	}
}

// A lower limit waits no longer than it must, though it remembers less.
func TestReconfigureKeepsTheNewest(t *testing.T) {
	const per = time.Minute
	w := New(Config{MaxExact, per, Sliding}, Saved{}, t0)
	for i := range ledger.Time(MaxExact) {
		w.Take(t0+i, 1)
	}
	w.Reconfigure(Config{3, per, Sliding}, t0+MaxExact)
	for i := range ledger.Time(3) {
		if got, want := w.After(t0+MaxExact, uint64(i), 1), (t0 + MaxExact - 3 + i).Add(per).Sub(t0+MaxExact); got != want {
			t.Errorf("%d ahead wait for %v, want %v", i, got, want)
		}
	}
}

func TestReconfigurePer(t *testing.T) {
	w := New(Config{10, time.Minute, Sliding}, Saved{}, t0)
	w.Take(t0, 4)
	w.Take(t0.Add(50*time.Second), 4)
	now := t0.Add(55 * time.Second)
	w.Reconfigure(Config{10, 10 * time.Second, Sliding}, now)
	if used, _ := w.Used(now); used != 4 {
		t.Errorf("%d units used in the shorter window, want 4", used)
	}
	w.Reconfigure(Config{10, time.Hour, Fixed}, now)
	if used, until := w.Used(now); used != 4 || until != t0.Add(50*time.Second+time.Hour) {
		t.Errorf("%d units used until %v", used, until.Sub(t0))
	}
}

// Whoever always has something to send gets at least 99 % of the limit.
func TestWorkConservation(t *testing.T) {
	const per, windows = time.Second, 50
	for _, limit := range []uint64{1, 2, 10, 125, MaxExact, MaxExact + 1, 5000} {
		for _, kind := range []Kind{Sliding, Fixed} {
			c := Config{limit, per, kind}
			// As soon as there is room, after a start that is spread evenly.
			w := New(c, Saved{}, t0)
			sent, now := uint64(0), t0
			for range limit {
				w.Take(now, 1)
				now = now.Add(per / time.Duration(limit) / 2)
			}
			now = t0.Add(per)
			for end := now.Add(windows * per); ; {
				if now = now.Add(w.Wait(now, 1)); now >= end {
					break
				}
				if _, ok := w.Take(now, 1); !ok {
					t.Fatalf("%+v: refused after the wait", c)
				}
				sent++
			}
			if sent < limit*windows*99/100 || sent > limit*(windows+1) {
				t.Errorf("%+v: %d units in %d windows as soon as there is room", c, sent, windows)
			}
			// Offered a little faster than the limit, all the time.
			w = New(c, Saved{}, t0)
			step := per / time.Duration(limit*5/4+1)
			sent = 0
			for now := t0; now < t0.Add((windows+1)*per); now = now.Add(step) {
				if _, ok := w.Take(now, 1); ok && now >= t0.Add(per) { // the first window begins empty
					sent++
				}
			}
			lost := limit * uint64(step) * windows / uint64(per) // by waiting for the next offer
			if kind == Sliding && limit > MaxExact {
				t.Logf("%+v: %.2f %% used", c, 100*float64(sent)/float64(limit*windows))
			}
			if sent+lost < limit*windows*99/100 {
				t.Errorf("%+v: %d units in %d windows when offered evenly", c, sent, windows)
			}
		}
	}
}

func TestLargeNumbers(t *testing.T) {
	for _, kind := range []Kind{Sliding, Fixed} {
		w := New(Config{1e9, 24 * time.Hour, kind}, Saved{}, 5)
		if _, ok := w.Take(5, 1e9); !ok {
			t.Errorf("kind %d: refused", kind)
		}
		if got := w.After(6, 1e9-1, 1); got != 24*time.Hour-1 {
			t.Errorf("kind %d: after a full window %v", kind, got)
		}
		if got := w.After(6, 3e9, 1); got != 96*time.Hour-1 {
			t.Errorf("kind %d: after four windows %v", kind, got)
		}
		if got := w.After(6, math.MaxUint64, math.MaxUint64); got != math.MaxInt64 {
			t.Errorf("kind %d: after everything %v", kind, got)
		}
		w = New(Config{0, 0, kind}, Saved{}, t0) // cut to 1 in 1 ns
		if _, ok := w.Take(t0, math.MaxUint64); !ok {
			t.Errorf("kind %d: refused", kind)
		}
		if got := w.Wait(t0, 1); got != 1 {
			t.Errorf("kind %d: wait %v", kind, got)
		}
		w = New(Config{math.MaxUint64, math.MaxInt64, kind}, Saved{}, t0)
		w.Take(t0, math.MaxUint64)
		w.Debit(math.MaxUint64, t0)
		if used, _ := w.Used(t0); used != 2*maxUnits {
			t.Errorf("kind %d: %d units used", kind, used)
		}
		if got := w.Wait(t0, 1); got != maxPer {
			t.Errorf("kind %d: wait %v", kind, got)
		}
		// The clock at the end of its range.
		w = New(Config{1, time.Hour, kind}, Saved{}, math.MaxUint64-1)
		w.Align(math.MaxUint64, math.MaxUint64-1)
		w.Take(math.MaxUint64-1, 1)
		if got := w.Wait(math.MaxUint64-1, 1); got != 1 {
			t.Errorf("kind %d: wait %v at the end of time", kind, got)
		}
	}
}

// Many goroutines at one window, by a clock that all of them move.
func TestConcurrent(t *testing.T) {
	const (
		workers = 8
		per     = time.Millisecond
		limit   = 50
	)
	w := New(Config{limit, per, Sliding}, newSaved(), t0)
	var clock atomic.Uint64
	clock.Store(uint64(t0))
	kept := make([][]ledger.Time, workers)
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(5, uint64(i)))
			for {
				now := ledger.Time(clock.Add(r.Uint64N(2000)))
				if now > t0.Add(20*per) {
					return
				}
				s, ok := w.Take(now, 1)
				switch {
				case ok && r.IntN(4) == 0:
					w.Undo(s, now)
				case ok:
					kept[i] = append(kept[i], s.at)
				}
				w.After(now, 3, 1)
			}
		})
	}
	wg.Wait()
	all := slices.Concat(kept...)
	slices.Sort(all)
	for i := limit; i < len(all); i++ {
		if all[i].Sub(all[i-limit]) < per {
			t.Fatalf("unit %d comes %v after the one a limit before", i, all[i].Sub(all[i-limit]))
		}
	}
	if len(all) < limit*10 {
		t.Errorf("%d units sent", len(all))
	}
}
