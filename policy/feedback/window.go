// SPDX-License-Identifier: Apache-2.0

package feedback

import (
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

// phase is how much is known of a window. The order is that in which windows
// are given up for another limit.
type phase uint8

const (
	unheard phase = iota
	lapsed        // it is over, and how the next one looks nobody said
	assumed       // its predecessor is over; the limit is known, the rest is not
	heard         // the origin spoke of it
)

// window is one limit of the origin, and its present window.
type window struct {
	phase phase
	limit uint64        // 0: not told
	told  time.Duration // length as told; with limit, what the window is known by

	// length is told, or the longest reset that was heard: then a bound of
	// the pace. measured says that two ends were that far apart.
	length   time.Duration
	measured bool

	start        ledger.Time // of an assumed window; of others, 0
	early, until ledger.Time // it ends in between
	trust        ledger.Time // nothing is known from here on
	latest       ledger.Time // when the answer came that the window began with, or the last of one that is not counted

	counted bool   // left is known
	left    uint64 // units that may still be taken until it ends
	taken   uint64 // of these, since left was set
	tail    uint64 // units that may have reached the origin after it ended

	// sliding says that the end moves before it is reached, or that windows
	// end in quicker succession than they are long: each answer then has a
	// window of its own.
	sliding bool

	interval time.Duration // the pace; 0: unknown
}

func (s *window) inForce() bool { return s.phase >= assumed }

func (s *window) sure() bool { return s.limit > 0 && (s.told > 0 || s.measured) }

// observe takes in what w says of this limit. It reports false if w is of a
// window that is over. trip is the slowest round trip.
func (s *window) observe(w *word, trip time.Duration) bool {
	if w.hasRemaining {
		if s.older(w) {
			return false
		}
		s.measure(w)
		s.count(w, trip)
	}
	s.limit, s.told = w.limit, w.length
	if s.told > 0 {
		s.length = s.told
	}
	if !s.counted {
		s.latest = max(s.latest, w.received)
	}
	s.trust = w.received.Add(MaxTrust)
	s.phase = heard
	s.pace(w)
	return true
}

// older reports whether w speaks of a window before the present one.
func (s *window) older(w *word) bool {
	switch s.phase {
	case lapsed:
		return w.dispatched < s.until && w.early <= s.until
	case assumed:
		return w.dispatched < s.start && w.early <= s.start
	case heard:
		// An answer to a later request that names an earlier end takes the
		// end back, else one absurd answer would count for a day.
		return s.counted && w.late < s.early && w.dispatched < s.latest
	}
	return false
}

// count sets what is left, and the end of the window.
func (s *window) count(w *word, trip time.Duration) {
	switch {
	case s.phase != heard || !s.counted, w.early > s.until, s.sliding && w.dispatched >= s.latest:
		s.slides(w)
		s.restart(w, trip)
	case w.late >= s.early: // the same window
		s.lower(w)
		s.early, s.until = max(s.early, w.early), min(s.until, w.late)
	default: // it ends earlier than was said before
		s.lower(w)
		s.early, s.until = w.early, w.late
		s.tail = sum(s.tail, w.out())
		s.latest = w.received
	}
}

// slides notes that the end of the window is no end.
func (s *window) slides(w *word) {
	switch {
	case s.phase == heard && s.counted && w.received < s.early && w.early > s.until:
		s.sliding = true
	case s.phase == assumed && w.late < s.start.Add(s.length-s.length/4) && w.early > s.start.Add(w.quantum):
		// Else the window before may go on for a moment, by rounding.
		s.sliding = true
	}
}

// restart begins a window with what w says is left.
func (s *window) restart(w *word, trip time.Duration) {
	s.early, s.until = w.early, w.late
	s.counted = true
	s.left, s.taken, s.tail = less(w.remaining, w.out()), 0, 0
	s.latest = w.received
	if w.received.Add(trip+trip/2) >= s.early {
		s.tail = w.out()
	}
}

// lower takes the smaller remainder.
func (s *window) lower(w *word) {
	if left := less(w.remaining, w.after); left < s.left {
		s.left, s.taken = left, 0
	}
}

// measure finds the length of a window that was not told: from end to end
// where a window is heard of soon after the one before it, else the longest
// reset that was heard.
func (s *window) measure(w *word) {
	if w.length > 0 || w.guessed || s.sliding {
		return
	}
	end := s.until
	if s.phase == assumed {
		end = s.start
	}
	over := s.phase == lapsed || s.phase == assumed || s.phase == heard && s.counted && w.received >= s.early
	switch {
	case over && w.early > end && w.dispatched <= end.Add(w.reset/8):
		s.length, s.measured = max(w.reset, w.late.Sub(end)), true
	case !s.measured:
		s.length = max(s.length, w.reset)
	}
}

// pace sets the interval by what is left: min(limit/length, left/time) units.
func (s *window) pace(w *word) {
	s.interval = 0
	if s.limit > 0 && s.length > 0 {
		s.interval = divide(s.length, s.limit)
	}
	if !s.counted || !w.hasRemaining {
		return
	}
	left := min(less(w.remaining, w.after), sum(s.left, w.before))
	switch {
	case left == 0: // nothing goes before the end
	case s.sliding && s.interval > 0:
		// The time until reset says nothing of when units come back, so the
		// even pace is kept and only the last eighth is spent with care.
		if eighth, rest := s.limit/8, max(1, less(left, reserve(s.limit))); rest < eighth {
			s.interval = even(s.interval, float64(rest)/float64(eighth))
		}
	default:
		s.interval = max(s.interval, spend(s.until.Sub(w.received), left, s.limit))
	}
}

// roll goes over to the windows that began by now.
func (s *window) roll(now ledger.Time) {
	switch {
	case s.phase == unheard:
		return
	case now >= s.trust:
		*s = window{}
		return
	case !s.inForce() || !s.counted || now < s.until:
		return
	case !s.sure():
		s.phase, s.counted, s.interval = lapsed, false, 0
		return
	}
	passed := now.Sub(s.until) / s.length
	s.start = s.until.Add(passed * s.length)
	s.early = s.early.Add((passed + 1) * s.length)
	s.until = s.start.Add(s.length)
	switch {
	case s.sliding:
		s.left = max(s.left, 1) // to ask with
	case passed == 0:
		s.left = less(s.limit, s.tail)
	default:
		s.left = s.limit
	}
	s.phase, s.taken, s.tail = assumed, 0, 0
	s.interval = divide(s.length, s.limit)
}

// need is what has to be left for a cost.
func (s *window) need(cost uint64) uint64 {
	if s.limit > 0 {
		return min(cost, s.limit)
	}
	return cost
}

func (s *window) take(now ledger.Time, cost uint64, trip time.Duration) {
	if !s.inForce() || !s.counted {
		return
	}
	cost = min(cost, s.left)
	s.left -= cost
	s.taken += cost
	// The origin may get it when the window has ended by its own clock.
	if now.Add(trip+trip/2) >= s.early {
		s.tail = sum(s.tail, cost)
	}
}

func (s *window) give(cost uint64) {
	cost = min(cost, s.taken)
	s.left += cost
	s.taken -= cost
	s.tail = less(s.tail, cost)
}

// wait is the time from now until the cost may go after ahead other units.
func (s *window) wait(now ledger.Time, ahead, cost uint64) time.Duration {
	if !s.inForce() || !s.counted {
		return 0
	}
	need := sum(ahead, s.need(cost))
	if need <= s.left {
		return 0
	}
	at := s.until
	if s.sure() {
		at = at.Add(times((need-s.left-1)/s.limit, s.length))
	}
	return max(0, min(at, s.trust).Sub(now))
}
