// SPDX-License-Identifier: Apache-2.0

package feedback

import (
	"math"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

const (
	// Shorter windows are taken for nonsense.
	shortest = time.Millisecond
	// longest bounds sums; package verdict keeps to it as well.
	longest = 100 * 365 * 24 * time.Hour

	// Where a reset in whole seconds is told of a window shorter than that,
	// it may be anywhere: what remains is then no guide to what may be sent.
	blurred = 4 * time.Second
)

// word is an Observation, made sensible.
type word struct {
	limit     uint64        // 0: not told
	remaining uint64        // of this window, when the origin judged the request
	length    time.Duration // of the window; 0: not told
	reset     time.Duration

	// knows says that remaining was told, hasRemaining also until when.
	knows, hasRemaining bool
	toFull              bool
	guessed             bool // reset was not told, or as none

	dispatched, received ledger.Time
	after, before        uint64

	// The origin counted the reset from some instant between dispatched and
	// received, and where it is in whole seconds it may have rounded it up or
	// down. So the window ends between early and late.
	early, late ledger.Time
	quantum     time.Duration
}

// read checks an observation that is taken in at now. A limit of 0 is how
// some say that there is none: false, as if nothing had been said.
func read(o Observation, now ledger.Time) (word, bool) {
	q := o.Quota
	if q.HasLimit && q.Limit <= 0 {
		return word{}, false
	}
	w := word{
		limit:      uint64(max(q.Limit, 0)),
		toFull:     q.ToFull,
		received:   min(o.Received, now),
		dispatched: min(o.Dispatched, o.Received, now),
		after:      o.After,
		before:     o.Before,
	}
	if w.dispatched == 0 {
		w.dispatched = w.received
	}
	if q.Other {
		w.limit, w.toFull = 0, false
		return w, true
	}
	if shortest <= q.Window && q.Window <= longest {
		w.length = q.Window
	}
	if q.HasRemaining {
		w.knows = true
		w.remaining = uint64(max(q.Remaining, 0))
		if w.limit > 0 {
			w.remaining = min(w.remaining, w.limit)
		}
	}
	w.ends(min(max(q.Reset, 0), longest), q.HasReset)
	return w, true
}

// ends fills in when the window ends.
func (w *word) ends(reset time.Duration, told bool) {
	switch {
	case told && reset == 0 && !w.toFull:
		// Rounded down: it ends within a second.
		reset, w.guessed = time.Second, true
		if w.length > 0 {
			reset = min(reset, w.length)
		}
	case !told && 0 < w.length && w.length <= blind:
		reset, w.guessed = w.length, true // at the latest
	case !told:
		return
	}
	whole := reset%time.Second == 0
	if whole && 0 < w.length && w.length < blurred {
		return
	}
	w.reset = reset
	w.hasRemaining = w.knows
	w.early = w.dispatched.Add(reset)
	w.late = w.received.Add(reset)
	w.quantum = time.Millisecond
	if whole {
		w.quantum = time.Second
		w.early = w.early.Add(-time.Second)
		// One second late costs little in a minute and half of a window of
		// one second, so never more than a twentieth.
		w.late = w.late.Add(min(time.Second, max(reset, w.length)/20))
	}
}

// useful reports whether it says something of a window.
func (w *word) useful() bool {
	return w.hasRemaining || w.limit > 0 && w.length > 0
}

// out is how many units may not be in remaining yet.
func (w *word) out() uint64 { return sum(w.after, w.before) }

// reserve is what is kept of a limit for whoever else spends from it: one in a
// hundred. Limits below 100 are too small to keep anything of.
func reserve(limit uint64) uint64 {
	if limit < 100 {
		return 0
	}
	return limit/100 + min(limit%100, 1)
}

// spend is the interval at which remaining units, without the reserve, last
// for t. One unit may go however small the remainder is.
func spend(t time.Duration, remaining, limit uint64) time.Duration {
	return divide(t, max(1, less(remaining, reserve(max(limit, remaining)))))
}

// divide is t/n, rounded up, at least a nanosecond; n > 0.
func divide(t time.Duration, n uint64) time.Duration {
	if n > math.MaxInt64 {
		return 1
	}
	d := t / time.Duration(n)
	if t%time.Duration(n) > 0 {
		d++
	}
	return max(d, 1)
}

// even is the interval of n units in t, n > 0, rounded up.
func even(t time.Duration, n float64) time.Duration {
	d := math.Ceil(float64(t) / n)
	if d >= float64(MaxInterval) {
		return MaxInterval
	}
	return max(time.Duration(d), 1)
}

// times is n intervals, at most longest.
func times(n uint64, interval time.Duration) time.Duration {
	if interval <= 0 {
		return 0
	}
	if n >= uint64(longest/interval) {
		return longest
	}
	return time.Duration(n) * interval
}

// less is a-b, or 0.
func less(a, b uint64) uint64 { return a - min(a, b) }

// sum is a+b, or the end of the range.
func sum(a, b uint64) uint64 {
	if s := a + b; s >= a {
		return s
	}
	return math.MaxUint64
}
