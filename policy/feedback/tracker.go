// SPDX-License-Identifier: Apache-2.0

// Package feedback turns what an origin says of its limit on answers that are
// no refusals into a pace and a bound for the lane, so that the first 429
// never comes. It also finds the rate of a lane whose policy names none.
//
// It is pure: the instant is an argument, no clock is read. What it learns can
// only make a lane stricter; that is the caller's part to keep (the longer of
// two intervals wins), except in a lane that finds its own rate: see Auto.
//
// What an origin says is a hint. Answers overtake each other, resets are
// rounded, counters are shared with others. So within one window the smallest
// remainder counts; a remainder grows only when the window's end does; and
// whatever was sent since the answer's own request was is taken off.
package feedback

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
)

const (
	// MaxTrust is how long a word of an origin is believed at most: a lane
	// is never closed, nor held by what was learned, for longer after it.
	MaxTrust = 24 * time.Hour
	// MaxInterval is the slowest pace that is ever advised. Slower limits are
	// kept by the count of what is left alone.
	MaxInterval = time.Hour

	// blind bounds how long a lane waits for a window whose end was not told.
	blind = time.Minute
)

// Observation is what one answer said, and when.
type Observation struct {
	Quota verdict.Quota
	// Dispatched is when the request of the answer was sent, Received when
	// the head of the answer came. Zero Dispatched stands for Received.
	Dispatched, Received ledger.Time
	// After counts the units taken on this lane after that request was, up to
	// now; Before those that were taken earlier and not answered when it was
	// dispatched, which the origin may have counted later. Both are taken off
	// the remainder: without Before, as many units too many may be sent in
	// the first window that is heard of.
	After, Before uint64
	// Exhausted is how long from Received nothing is left by any counter of
	// the answer: see verdict.Verdict.
	Exhausted    time.Duration
	HasExhausted bool
}

// Advice is what follows for the lane.
type Advice struct {
	Interval time.Duration // between units of cost; 0: nothing is known
	Close    ledger.Time   // nothing is left until then; 0: something is
	Changed  bool          // Interval is not the one that was last returned
	// Sure says that the pace rests on what was told or seen in full, not on
	// the part of a window that was heard of: only then a lane without a
	// policy of its own may go as fast at once.
	Sure bool
}

// Tracker keeps what one lane's origin said. The zero Tracker has heard
// nothing and holds nobody. Safe for concurrent use; never allocates.
type Tracker struct {
	known atomic.Bool // something may be in force

	mu       sync.Mutex
	windows  [2]window // an origin may have two limits, and tell of either
	bucket   bucket
	outright outright
	trip     time.Duration // the slowest round trip of late
	reported time.Duration // the pace that was last returned
	limit    uint64
	length   time.Duration
}

// outright is a rate that was told as such.
type outright struct {
	interval time.Duration
	until    ledger.Time // MaxTrust after it was told
}

// Observe takes in, at now, what an answer said. Intervals that differ by less
// than 1/32 from the one in force are not worth a change.
func (t *Tracker) Observe(o Observation, now ledger.Time) Advice {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	w, sensible := read(o, now)
	var a Advice
	if sensible {
		t.travelled(w.received.Sub(w.dispatched))
		a.Close = t.learn(&w, o, now)
	}
	a.Interval, a.Changed = t.settle()
	a.Sure = t.sure()
	return a
}

// learn returns until when nothing is left, 0 if something is.
func (t *Tracker) learn(w *word, o Observation, now ledger.Time) ledger.Time {
	if w.limit > 0 {
		t.limit = w.limit
		t.length = max(w.length, 0)
	}
	if o.Quota.PerSecond > 0 {
		t.outright = outright{even(time.Second, o.Quota.PerSecond), w.received.Add(MaxTrust)}
	}
	var empty ledger.Time
	switch {
	case w.toFull:
		empty = t.bucket.observe(w)
	case w.hasRemaining && w.late <= now:
		return 0 // of a window that is over: nothing it says holds any more
	case w.useful():
		slot := t.slot(w)
		if !slot.observe(w, t.trip) {
			return 0
		}
		t.confirm(slot, w)
		if w.hasRemaining && w.remaining == 0 {
			empty = slot.until
		}
	}
	if w.knows && !w.hasRemaining && w.remaining == 0 && w.length > 0 {
		empty = w.received.Add(min(w.length, blind))
	}
	if o.HasExhausted {
		empty = max(empty, w.received.Add(max(o.Exhausted, 0)))
	}
	empty = min(empty, w.received.Add(MaxTrust))
	if empty <= now {
		return 0
	}
	return empty
}

// slot is the window that w speaks of, or the one to give up for it.
func (t *Tracker) slot(w *word) *window {
	pick := &t.windows[0]
	for i := range t.windows {
		s := &t.windows[i]
		if s.phase != unheard && s.limit == w.limit && s.told == w.length {
			return s
		}
		if s.phase < pick.phase || s.phase == pick.phase && s.latest < pick.latest {
			pick = s
		}
	}
	*pick = window{}
	return pick
}

// confirm drops what nobody speaks of any more, now that the origin speaks of
// another limit, which may be in its place: a window that was only assumed to
// follow, and a limit that was heard of longer ago than its window is long.
func (t *Tracker) confirm(slot *window, w *word) {
	for i := range t.windows {
		s := &t.windows[i]
		if s == slot {
			continue
		}
		if s.phase == assumed && w.dispatched >= s.start || s.phase == heard && !s.counted && w.received >= s.latest.Add(s.length) {
			*s = window{}
		}
	}
}

// travelled keeps the slowest round trip, which fades by 1/64 with each faster
// one. One of a minute or more says how long somebody thought, not how far
// away he is.
func (t *Tracker) travelled(d time.Duration) {
	t.trip = max(min(d, time.Minute), t.trip-t.trip/64)
}

// expire ends what ends by now.
func (t *Tracker) expire(now ledger.Time) {
	for i := range t.windows {
		t.windows[i].roll(now)
	}
	if now >= t.bucket.trust {
		t.bucket = bucket{}
	}
	if now >= t.outright.until {
		t.outright = outright{}
	}
}

// settle returns the pace in force and whether it is another than was last
// returned.
func (t *Tracker) settle() (interval time.Duration, changed bool) {
	held := t.bucket.interval > 0
	interval = max(t.bucket.interval, t.outright.interval)
	for i := range t.windows {
		if s := &t.windows[i]; s.inForce() {
			interval = max(interval, s.interval)
			held = held || s.counted
		}
	}
	interval = min(interval, MaxInterval)
	near := interval > 0 && t.reported > 0 && max(interval-t.reported, t.reported-interval) <= t.reported/32
	if near {
		interval = t.reported
	}
	changed = interval != t.reported
	t.reported = interval
	t.known.Store(held || interval > 0)
	return interval, changed
}

// Sure is Advice.Sure of the pace that was last returned.
func (t *Tracker) Sure() bool {
	if !t.known.Load() {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sure()
}

func (t *Tracker) sure() bool {
	if t.reported == 0 || t.bucket.interval > 0 && !t.bucket.sure() {
		return false
	}
	for i := range t.windows {
		if s := &t.windows[i]; s.inForce() && !s.sure() {
			return false
		}
	}
	return true
}

// Current is the pace in force at now, 0 if nothing is known, and whether it
// is another than was last returned. What was learned of a window ends with
// that window; the limit itself holds until the origin says otherwise, or has
// been silent for MaxTrust.
func (t *Tracker) Current(now ledger.Time) (interval time.Duration, changed bool) {
	if !t.known.Load() {
		return 0, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	return t.settle()
}

// Next is the earliest instant at which Current may change by itself, 0 if it
// will not.
func (t *Tracker) Next() ledger.Time {
	if !t.known.Load() {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	next := t.bucket.trust
	sooner := func(at ledger.Time) {
		if at != 0 && (next == 0 || at < next) {
			next = at
		}
	}
	sooner(t.outright.until)
	for i := range t.windows {
		if s := &t.windows[i]; s.inForce() {
			sooner(s.trust)
			if s.counted {
				sooner(s.until)
			}
		}
	}
	return next
}

// Take takes cost units at now of what the origin has left, and reports
// whether it has as many. If not, wait says when it may. A cost above the
// whole limit takes what a fresh window has.
//
// Where nothing was learned it costs one atomic load.
func (t *Tracker) Take(now ledger.Time, cost uint64) (wait time.Duration, ok bool) {
	if !t.known.Load() {
		return 0, true
	}
	return t.take(now, cost)
}

func (t *Tracker) take(now ledger.Time, cost uint64) (wait time.Duration, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	if wait = t.wait(now, 0, cost); wait > 0 {
		return wait, false
	}
	for i := range t.windows {
		t.windows[i].take(now, cost, t.trip)
	}
	t.bucket.take(now, cost)
	return 0, true
}

// Wait is the time from now until Take may succeed, 0 if it would now.
func (t *Tracker) Wait(now ledger.Time, cost uint64) time.Duration {
	return t.After(now, 0, cost)
}

// After is the time from now until a unit of the cost may go that comes after
// ahead others, if nothing else is learned until then.
func (t *Tracker) After(now ledger.Time, ahead, cost uint64) time.Duration {
	if !t.known.Load() {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	return t.wait(now, ahead, cost)
}

func (t *Tracker) wait(now ledger.Time, ahead, cost uint64) time.Duration {
	wait := t.bucket.wait(now, ahead, cost)
	for i := range t.windows {
		wait = max(wait, t.windows[i].wait(now, ahead, cost))
	}
	return min(wait, MaxTrust)
}

// Give gives back, at now, cost units that never left. What was taken in a
// window that is over is not given to the next.
func (t *Tracker) Give(cost uint64, now ledger.Time) {
	if !t.known.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	for i := range t.windows {
		t.windows[i].give(cost)
	}
	t.bucket.give(cost)
}

// Left is, for people, how many units the origin has left and when it will
// have all of them again. Of two limits it is the one that leaves less; known
// is false if no answer told of the present window, or the bucket is full.
func (t *Tracker) Left(now ledger.Time) (left uint64, until ledger.Time, known bool) {
	if !t.known.Load() {
		return 0, 0, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.expire(now)
	if b := &t.bucket; b.interval > 0 && b.full > now {
		left, until, known = b.left(now), b.full, true
	}
	for i := range t.windows {
		if s := &t.windows[i]; s.phase == heard && s.counted && (!known || s.left < left) {
			left, until, known = s.left, min(s.until, s.trust), true
		}
	}
	return left, until, known
}

// Limit is the limit that was last told and the length of its window, each 0
// if it was not.
func (t *Tracker) Limit() (limit uint64, window time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.limit, t.length
}
