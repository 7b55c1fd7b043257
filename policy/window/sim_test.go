// SPDX-License-Identifier: Apache-2.0

package window

import (
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

// clone is a copy of w that keeps nothing.
func (w *Window) clone() *Window {
	c := &Window{config: w.config, past: w.past, last: w.last, end: w.end, aligned: w.aligned}
	c.past.ring = slices.Clone(w.past.ring)
	c.image = newImage(Saved{}, w.config.Per)
	return c
}

func newSaved() Saved {
	return Saved{new(atomic.Uint64), new(atomic.Uint64), new(atomic.Uint64)}
}

// exact reports whether w needs no more than the charges themselves to know
// when it has room.
func (c Config) exact() bool { return c.Kind == Fixed || c.Limit <= MaxExact }

// sim plays a workload to a window and keeps the plain list of all that was
// sent, by which it judges every answer.
type sim struct {
	t     *testing.T
	ops   []byte
	c     Config
	saved Saved
	w     *Window
	now   ledger.Time
	sent  []*unit

	end     ledger.Time // Fixed: when the window ends
	aligned bool
	// Until this instant the window may count more than was sent, as it had
	// to assume the worst.
	rough ledger.Time
}

type unit struct {
	at    ledger.Time
	cost  uint64
	stamp Stamp // zero if it cannot be undone
}

var (
	simLimits = []uint64{1, 2, 3, 10, 100, MaxExact, MaxExact + 1, 5000}
	simPers   = []time.Duration{1, 7, 127, 1000, 65537, time.Millisecond, time.Second, 24 * time.Hour}
	simStarts = []ledger.Time{0, 1000, 1e15, 1e18}
)

func (s *sim) next() byte {
	if len(s.ops) == 0 {
		return 0
	}
	b := s.ops[0]
	s.ops = s.ops[1:]
	return b
}

func (s *sim) config() Config {
	b := s.next()
	return Config{simLimits[b%8], simPers[b/8%8], Kind(b / 64 % 2)}
}

// play plays the workload that ops describes.
func play(t *testing.T, ops []byte) {
	s := &sim{t: t, ops: ops, saved: newSaved()}
	s.c = s.config()
	s.now = simStarts[s.next()%4]
	s.w = New(s.c, s.saved, s.now)
	for len(s.ops) > 0 && !t.Failed() {
		op, arg := s.next(), s.next()
		switch op % 16 {
		case 0, 1: // a part of the window
			s.now += ledger.Time(uint64(s.c.Per) / 256 * uint64(arg))
		case 2: // the time that some units take
			s.now += ledger.Time(uint64(s.c.Per) / s.c.Limit * uint64(arg%8))
		case 3:
			s.now += ledger.Time(arg % 4)
		case 4: // as long as it takes
			s.now = s.now.Add(s.w.Wait(s.now, uint64(arg%4)))
		case 5, 6, 7:
			s.take(s.now, uint64(arg%4))
		case 8: // all there is
			cost := uint64(1)
			if s.c.Limit > 100 {
				cost = s.c.Limit/2 + uint64(arg%4)
			}
			for ; cost > 0; cost /= 2 {
				for s.take(s.now, cost) {
				}
			}
		case 9:
			s.take(s.now, s.c.Limit+uint64(arg))
		case 10:
			s.now, s.w.last = max(s.now, s.w.last), max(s.now, s.w.last)
			s.take(s.now.Add(-time.Duration(arg)), uint64(arg%2)+1)
		case 11, 12:
			s.undo(arg)
		case 13:
			s.debit(uint64(arg) * s.c.Limit / 64)
		case 14:
			s.align(s.now.Add(time.Duration(int(arg)-64) * (s.c.Per/64 + 1)))
		case 15:
			if arg%2 == 0 {
				s.restart()
			} else {
				s.reconfigure(s.config())
			}
		}
		s.check(arg)
	}
}

// roll brings what the sim knows of the window to its present.
func (s *sim) roll() {
	for s.aligned && s.now >= s.end {
		s.end = s.end.Add(s.c.Per * max(1, s.now.Sub(s.end)/s.c.Per))
	}
}

// counted is what was sent and counts now.
func (s *sim) counted() (n uint64) {
	s.roll()
	for _, u := range s.sent {
		if s.c.Kind == Sliding && u.at.Add(s.c.Per) > s.now ||
			s.c.Kind == Fixed && s.now < s.end && u.at.Add(s.c.Per) >= s.end {
			n += u.cost
		}
	}
	return n
}

func (s *sim) isRough() bool { return s.now < s.rough || !s.c.exact() }

// assume says that the window from now on assumes the worst of what it knows.
func (s *sim) assume() {
	s.rough = max(s.rough, s.now.Add(s.c.Per).Add(s.c.Per))
}

func (s *sim) send(cost uint64, stamp Stamp) {
	if s.roll(); s.c.Kind == Fixed && s.now >= s.end {
		s.end = s.now.Add(s.c.Per)
	}
	s.sent = append(s.sent, &unit{s.now, cost, stamp})
}

func (s *sim) take(at ledger.Time, cost uint64) bool {
	prior := s.counted()
	need := min(cost, s.c.Limit)
	room := prior <= s.c.Limit && need <= s.c.Limit-prior
	stamp, ok := s.w.Take(at, cost)
	switch {
	case cost == 0:
		if !ok {
			s.t.Errorf("at %d: nothing was refused", s.now)
		}
		return false
	case ok && !room:
		s.t.Errorf("at %d: %d units granted on top of %d, want at most %+v", s.now, cost, prior, s.c)
	case !ok && room && !s.isRough():
		s.t.Errorf("at %d: %d units refused on top of %d, want up to %+v", s.now, cost, prior, s.c)
	}
	if ok {
		s.send(cost, stamp)
	}
	return ok && !s.t.Failed()
}

func (s *sim) undo(which byte) {
	if len(s.sent) == 0 {
		return
	}
	i := len(s.sent) - 1 - int(which)%len(s.sent)
	u := s.sent[i]
	if u.stamp.units == 0 {
		return
	}
	s.w.Undo(u.stamp, s.now)
	s.sent = slices.Delete(s.sent, i, i+1)
	if s.c.Kind == Fixed && !s.aligned && s.counted() == 0 && s.now < s.w.end != (s.now < s.end) {
		s.end = s.w.end
	}
}

func (s *sim) debit(units uint64) {
	before, _ := s.w.Used(s.now)
	s.w.Debit(units, s.now)
	after, _ := s.w.Used(s.now)
	if units = min(units, max(2*s.c.Limit, before)-before); after-before != units {
		s.t.Errorf("at %d: a debit took %d to %d units, want %d more", s.now, before, after, units)
	}
	if units > 0 {
		s.send(units, Stamp{})
	}
	s.assume()
}

func (s *sim) align(reset ledger.Time) {
	s.w.Align(reset, s.now)
	if s.c.Kind == Sliding {
		return
	}
	for reset <= s.now {
		reset = reset.Add(s.c.Per)
	}
	for reset > s.now.Add(s.c.Per) {
		reset = reset.Add(-s.c.Per)
	}
	if s.end != reset {
		s.assume()
	}
	s.end, s.aligned = reset, true
}

// forgetStamps says that what was taken cannot be given back any more.
func (s *sim) forgetStamps() {
	for _, u := range s.sent {
		u.stamp = Stamp{}
	}
}

func (s *sim) restart() {
	width, _ := bucketWidth(s.c.Per)
	old := s.w.clone()
	s.w = New(s.c, s.saved, s.now)
	// Every unit is free again a bucket later at most, if the words hold the
	// number exactly.
	if s.c.Kind == Sliding && !s.isRough() && s.c.Limit < MaxExact {
		for ahead := range min(s.c.Limit, 20) {
			was, is := old.After(s.now, ahead, 1), s.w.After(s.now, ahead, 1)
			if is < was || is > was+time.Duration(width) {
				s.t.Errorf("at %d: %d ahead, %v before the restart and %v after", s.now, ahead, was, is)
			}
		}
	}
	if s.c.Kind == Fixed && s.now < s.end && s.w.end != s.end {
		s.t.Errorf("at %d: the window ended at %d, and %d after the restart", s.now, s.end, s.w.end)
	}
	s.end = s.w.end
	s.forgetStamps()
	s.assume()
}

func (s *sim) reconfigure(c Config) {
	if c == s.c {
		return
	}
	// What is out of the old window is not known to the new one.
	s.sent = slices.DeleteFunc(s.sent, func(u *unit) bool { return u.at.Add(s.c.Per) <= s.now })
	s.assume()
	s.w.Reconfigure(c, s.now)
	if c.Kind != s.c.Kind || c.Per != s.c.Per {
		s.aligned = false
		s.end = s.w.end
	}
	s.c = c
	s.assume()
}

// check asks the window all that it can be asked.
func (s *sim) check(arg byte) {
	// A few that are out of the window remain, for late undos.
	s.sent = slices.DeleteFunc(s.sent, func(u *unit) bool { return u.at.Add(3*s.c.Per) <= s.now })
	prior := s.counted()
	used, until := s.w.Used(s.now)
	if used < prior || used > prior && !s.isRough() {
		s.t.Errorf("at %d: %d units used, want %d", s.now, used, prior)
	}
	if until < s.now || until.Sub(s.now) > s.c.Per {
		s.t.Errorf("at %d: used until %d", s.now, until)
	}
	if s.c.Kind == Fixed && s.now < s.end && s.w.end != s.end {
		s.t.Errorf("at %d: the window ends at %d, want %d", s.now, s.w.end, s.end)
	}
	if got := s.w.past.n; got > len(s.w.past.ring) {
		s.t.Errorf("%d entries", got)
	}
	cost := []uint64{1, 2, s.c.Limit/3 + 1, s.c.Limit, s.c.Limit + 5}[arg%5]
	wait := s.w.Wait(s.now, cost)
	if wait < 0 || wait > s.c.Per {
		s.t.Errorf("at %d: %d units wait for %v", s.now, cost, wait)
	}
	if wait > 0 {
		if _, ok := s.w.clone().Take(s.now.Add(wait-1), cost); ok {
			s.t.Errorf("at %d: %d units are to wait for %v and had room before", s.now, cost, wait)
		}
	}
	if _, ok := s.w.clone().Take(s.now.Add(wait), cost); !ok {
		s.t.Errorf("at %d: %d units waited for %v and have no room", s.now, cost, wait)
	}
	if arg%8 == 0 {
		checkAfter(s.t, s.w, s.now, cost)
	}
}

// checkAfter fails if requests that go as soon as they may do not go when they
// were told.
func checkAfter(t *testing.T, w *Window, now ledger.Time, cost uint64) {
	t.Helper()
	c, at := w.clone(), now
	grain := time.Duration(0)
	if !w.config.exact() {
		grain = w.past.grain
	}
	for ahead := range uint64(25) {
		want := w.After(now, ahead, cost)
		at = at.Add(c.Wait(at, cost))
		got := at.Sub(now)
		if got < want || got > want+grain*(got/w.config.Per+1) {
			t.Errorf("at %d: %d units with %d ahead go after %v, want %v (%+v)", now, cost, ahead, got, want, w.config)
			return
		}
		if _, ok := c.Take(at, cost); !ok {
			t.Errorf("at %d: %d units are refused after the wait", at, cost)
			return
		}
	}
}
