// SPDX-License-Identifier: Apache-2.0

package window

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

func TestPack(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 7))
	for _, mantissa := range []int{widthBits, bucketBits, countBits} {
		last := uint64(0)
		for v := range uint64(1 << 13) {
			code := pack(v, mantissa)
			if got := unpack(code, mantissa); got < v || got > v+v>>mantissa || v < 2<<mantissa && got != v {
				t.Fatalf("%d becomes %d with %d bits", v, got, mantissa)
			}
			if code < last {
				t.Fatalf("%d is less than the number before with %d bits", v, mantissa)
			}
			last = code
		}
		for range 100_000 {
			v := r.Uint64() >> r.IntN(64)
			code := pack(v, mantissa)
			if code>>(mantissa+6) != 0 {
				t.Fatalf("%d needs more than %d bits", v, mantissa+6)
			}
			if got, want := unpack(code, mantissa), min(v, 1<<60); got < want || got > want+want>>mantissa {
				t.Fatalf("%d becomes %d with %d bits", v, got, mantissa)
			}
			if unpack(r.Uint64(), mantissa) > 1<<60 {
				t.Fatal("out of range")
			}
		}
	}
}

func TestBucketWidth(t *testing.T) {
	for per := time.Duration(1); per > 0 && per <= maxPer; per = per*5/4 + 1 {
		width, code := bucketWidth(per)
		if 7*width < ledger.Time(per) || width > ledger.Time(per)*5/28+512 || width%256 != 0 || code > 0xff {
			t.Errorf("buckets of %d ns for %v, code %d", width, per, code)
		}
	}
}

// Words that mean nothing close a window for Per at most, and the next words
// are sound.
func TestGarbage(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 9))
	word := func() uint64 {
		switch r.IntN(6) {
		case 0:
			return 0
		case 1:
			return ^uint64(0)
		case 2:
			return uint64(t0.Add(time.Duration(r.Int64N(int64(2*time.Hour))) - time.Hour))
		case 3: // a fixed window's
			return fixedTag | r.Uint64()>>r.IntN(64)
		}
		return r.Uint64() >> r.IntN(64)
	}
	for range 20_000 {
		s := newSaved()
		c := Config{simLimits[r.IntN(8)], simPers[r.IntN(8)], Kind(r.IntN(2))}
		start, prev, cur := word(), word(), word()
		if r.IntN(4) == 0 { // those of the same fixed window, but for its end and its units
			prev = fixedTag | uint64(r.IntN(2))*alignedTag | uint64(c.Per)
		}
		s.Start.Store(start)
		s.Prev.Store(prev)
		s.Cur.Store(cur)
		w := New(c, s, t0)
		if got := w.Wait(t0, c.Limit); got < 0 || got > c.Per {
			t.Fatalf("%#x %#x %#x: %+v waits for %v", start, prev, cur, c, got)
		}
		again := New(c, s, t0)
		if got := again.Wait(t0, c.Limit); got < w.Wait(t0, c.Limit) || got > c.Per {
			t.Fatalf("%#x %#x %#x: %+v waits for %v after the second start", start, prev, cur, c, got)
		}
		now := t0
		for range 3 {
			now = now.Add(w.Wait(now, c.Limit))
			if _, ok := w.Take(now, c.Limit); !ok {
				t.Fatalf("%#x %#x %#x: %+v refuses after the wait", start, prev, cur, c)
			}
			if _, ok := w.Take(now, 1); ok {
				t.Fatalf("%#x %#x %#x: %+v grants more than the limit", start, prev, cur, c)
			}
		}
	}
}

// A daemon that was killed while it wrote leaves a window that is full,
// whatever the other two words are.
func TestKilledWhileWriting(t *testing.T) {
	for _, from := range []Kind{Sliding, Fixed} {
		for _, to := range []Kind{Sliding, Fixed} {
			for _, old := range []bool{false, true} {
				s := newSaved()
				w := New(Config{10, time.Minute, from}, s, t0)
				start, prev := s.Start.Load(), s.Prev.Load()
				w.Take(t0.Add(time.Hour), 10)
				if old {
					s.Start.Store(start)
				} else {
					s.Prev.Store(prev)
				}
				s.Cur.Store(full)
				w = New(Config{10, time.Minute, to}, s, t0.Add(time.Hour))
				if got := w.Wait(t0.Add(time.Hour), 1); got != time.Minute {
					t.Errorf("kind %d, then %d: wait %v", from, to, got)
				}
			}
		}
	}
}

// Under another configuration, too, the words tell what was sent.
func TestRestartWithOtherConfig(t *testing.T) {
	configs := []Config{
		{10, time.Minute, Sliding}, {10, time.Minute, Fixed}, {5000, time.Minute, Sliding},
		{10, time.Hour, Sliding}, {10, time.Hour, Fixed}, {10, time.Second, Sliding}, {10, time.Second, Fixed},
	}
	for _, from := range configs {
		for _, to := range configs {
			s := newSaved()
			w := New(from, s, t0)
			w.Take(t0, 7)
			w.Take(t0.Add(500*time.Millisecond), 2)
			now := t0.Add(700 * time.Millisecond)
			got, _ := New(to, s, now).Used(now)
			if got != 9 {
				t.Errorf("%+v, then %+v: %d units used, want 9", from, to, got)
			}
		}
	}
}

// The boundaries of the origin outlive the daemon, and a downtime.
func TestRestartKeepsBoundaries(t *testing.T) {
	s := newSaved()
	c := Config{10, time.Minute, Fixed}
	w := New(c, s, t0)
	w.Align(t0.Add(20*time.Second+123), t0)
	w.Take(t0, 4)
	w.Take(t0.Add(30*time.Second), 3) // in the next window
	now := t0.Add(40 * time.Second)
	w = New(c, s, now)
	if used, until := w.Used(now); used != 3 || until != t0.Add(80*time.Second+123) {
		t.Errorf("%d units used until %v", used, until.Sub(t0))
	}
	w.Align(t0.Add(70*time.Second), now) // began at 10 s: the four of 0 s may have come later
	if used, _ := w.Used(now); used != 7 {
		t.Errorf("%d units used, want 7", used)
	}
	now = t0.Add(10 * time.Minute)
	w = New(c, s, now)
	if used, until := w.Used(now); used != 0 || until != t0.Add(10*time.Minute+10*time.Second) {
		t.Errorf("%d units used until %v after the downtime", used, until.Sub(t0))
	}
}

// Restarts one after another do not make units younger and younger.
func TestManyRestarts(t *testing.T) {
	for _, kind := range []Kind{Sliding, Fixed} {
		s := newSaved()
		c := Config{10, time.Minute, kind}
		New(c, s, t0).Take(t0, 10)
		now := t0
		for now.Sub(t0) < 80*time.Second {
			now = now.Add(time.Second)
			w := New(c, s, now)
			if w.Wait(now, 1) == 0 {
				break
			}
		}
		if got := now.Sub(t0); got < time.Minute || got > 73*time.Second {
			t.Errorf("kind %d: free after %v", kind, got)
		}
	}
}

func TestStampOfAnotherWindow(t *testing.T) {
	const now = ledger.Time(1000 * time.Second)
	c := Config{Limit: 5, Per: time.Minute}
	stamp, ok := New(c, Saved{}, now).Take(now, 1)
	if !ok {
		t.Fatal("not granted")
	}
	w := New(c, Saved{}, now+1)
	if _, ok := w.Take(now+1, 1); !ok {
		t.Fatal("not granted")
	}
	w.Undo(stamp, now+2)
	if used, _ := w.Used(now + 2); used != 1 {
		t.Errorf("%d used, want 1", used)
	}
}
