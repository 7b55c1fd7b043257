// SPDX-License-Identifier: Apache-2.0

// Package window counts what a lane sends in a window of time, beside the pace
// that its cell keeps: at most so many units in any stretch of Per, or in each
// of the windows in which the origin itself counts.
//
// It reads no clock and does no I/O: time is an argument.
package window

import (
	"math"
	"math/bits"
	"sync"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

// Kind is how a window counts.
type Kind uint8

// Kinds of windows.
const (
	// Sliding keeps the limit in every window (t-Per, t], whatever t.
	//
	// Up to MaxExact units every charge is remembered, and a unit is free
	// again exactly Per after it was taken. Above, the charges of Per/128
	// share one entry and count from the last of them: the limit holds just as
	// strictly, and at least 128/129 of it can be used. A plain sliding
	// counter (the last window's count, weighted, and this one's) needs less
	// memory, but lets up to twice the limit pass.
	Sliding Kind = iota
	// Fixed keeps the limit in each window from one boundary to the next, and
	// like every fixed window lets up to twice the limit pass in a stretch of
	// Per that lies across a boundary. Until Align tells the boundaries, a
	// window begins with its first unit.
	Fixed
)

// MaxExact is the largest limit of a sliding window for which every charge is
// remembered.
const MaxExact = 1024

// grains is the number of parts into which Per is divided where charges share
// entries.
const grains = 128

// Config is the limit of a window. Values out of range are cut to it.
type Config struct {
	Limit uint64        // units, from 1 to 2^56
	Per   time.Duration // above 0, up to 4.5 years
	Kind  Kind
}

const (
	maxUnits = 1 << 56 // also of one cost: sums stay far from the range of uint64
	maxPer   = 1<<perBits - 1
)

func (c Config) normal() Config {
	c.Limit = min(max(c.Limit, 1), maxUnits)
	c.Per = min(max(c.Per, 1), maxPer)
	return c
}

// history is an empty history with room for what such a window has to
// remember.
func (c Config) history() history {
	if c.Kind == Sliding && c.Limit <= MaxExact {
		return history{ring: make([]entry, c.Limit), grain: 1}
	}
	// One grain may stick out at either end of Per. A fixed window also begins
	// a new entry at its boundary; it remembers one window more than it counts,
	// with its debt, as Align may move the boundary back.
	room := uint64(grains + 2)
	if c.Kind == Fixed {
		room = min(room+2, 4*c.Limit)
	}
	return history{ring: make([]entry, room), grain: (c.Per + grains - 1) / grains}
}

// Stamp is what a Take took. The zero Stamp stands for nothing.
type Stamp struct {
	at    ledger.Time
	units uint64
}

// Window is the window counter of one lane.
//
// An instant that is a little older than one it was given before, as happens
// when several threads read the clock, counts as that one. A request that costs
// more than the limit goes when the window is empty: a window then holds its
// cost instead of the limit.
//
// Safe for concurrent use. Only New and Reconfigure allocate.
type Window struct {
	mu      sync.Mutex
	config  Config
	past    history
	last    ledger.Time // the latest instant seen
	end     ledger.Time // Fixed: when the window ends; none is open from then on
	aligned bool        // Fixed: the next window begins where the last one ended
	image   image
}

// New returns a window that goes on at now from what s says, and keeps s up to
// date from then on. No other Window may use s at the same time. A zero Saved
// keeps nothing.
//
// All that was charged before counts, if anything, from a little later than it
// should: by up to a fifth of Per in a sliding window, and until the end of
// the same window in a fixed one. Words that make no sense close the window
// for Per at most.
func New(c Config, s Saved, now ledger.Time) *Window {
	w := &Window{config: c.normal(), last: now}
	w.past = w.config.history()
	w.image = newImage(s, w.config.Per)
	old := s.load(now)
	if w.config.Kind == Fixed && old.per == w.config.Per {
		w.aligned = old.aligned
		w.end = min(old.end, now.Add(w.config.Per))
	}
	for _, c := range old.charges {
		w.recharge(c.at, min(c.units, maxUnits), now)
	}
	w.past.gone = max(w.past.gone, now) // a stamp of another Window gives nothing back here
	w.begin(now)
	return w
}

// Reconfigure puts another limit in force at now. What the window remembers
// goes on to count: of a longer Per only the part as long as the old one is
// known. The boundaries of the origin's windows stay known as long as Per is
// the same.
func (w *Window) Reconfigure(c Config, now ledger.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now = w.advance(now)
	c = c.normal()
	if c == w.config {
		return
	}
	if c.Kind != w.config.Kind || c.Per != w.config.Per {
		w.end, w.aligned = 0, false
	}
	old := w.past
	w.config = c
	w.past = c.history()
	w.past.gone = old.gone
	for i := range old.n {
		e := old.entry(i)
		w.recharge(e.at, e.sum-old.before(i), now)
	}
	w.image = newImage(w.image.Saved, c.Per)
	w.begin(now)
}

// recharge charges again what was charged before.
func (w *Window) recharge(at ledger.Time, units uint64, now ledger.Time) {
	if units == 0 {
		return
	}
	if at.Add(w.config.Per) <= now {
		w.past.gone = max(w.past.gone, at+1)
		return
	}
	w.past.add(at, units, w.start())
}

// begin makes the window complete at now, when all that is known of the past
// was charged again.
func (w *Window) begin(now ledger.Time) {
	if w.config.Kind == Fixed && w.end == 0 && w.past.n > 0 {
		w.end = w.past.entry(0).at.Add(w.config.Per)
	}
	w.advance(now)
	w.save(now)
}

// advance is now, or the latest instant seen if that is later. The window is
// brought up to then.
func (w *Window) advance(now ledger.Time) ledger.Time {
	now = max(now, w.last)
	w.last = now
	w.past.forget(now, w.config.Per)
	if w.aligned && now >= w.end {
		w.end = now.Add(w.config.Per - now.Sub(w.end)%w.config.Per)
	}
	return now
}

// start is the instant from which charges may count now.
func (w *Window) start() ledger.Time {
	if w.config.Kind == Fixed {
		return w.end.Add(-w.config.Per)
	}
	return 0 // older ones are forgotten
}

// open reports whether at now charges count that were made before.
func (w *Window) open(now ledger.Time) bool {
	return w.config.Kind == Sliding || now < w.end
}

func (w *Window) used(now ledger.Time) uint64 {
	if !w.open(now) {
		return 0
	}
	return w.past.since(w.start())
}

// need is the room that a cost needs. Cost above the limit needs all there is.
func (w *Window) need(cost uint64) uint64 { return min(cost, w.config.Limit) }

// Take takes cost units at now, all or none. Reports whether there was room.
func (w *Window) Take(now ledger.Time, cost uint64) (Stamp, bool) {
	if cost == 0 {
		return Stamp{}, true
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now = w.advance(now)
	if used, limit := w.used(now), w.config.Limit; used > limit || limit-used < w.need(cost) {
		return Stamp{}, false
	}
	cost = min(cost, maxUnits)
	w.charge(now, cost)
	return Stamp{now, cost}, true
}

func (w *Window) charge(now ledger.Time, units uint64) {
	if !w.open(now) {
		w.end = now.Add(w.config.Per)
	}
	w.past.add(now, units, w.start())
	w.saveCharge(now, units)
}

// Wait is the time from now until there is room for cost, if nothing else
// happens: zero if there is now. It is exact: Take would be granted no earlier,
// and then.
func (w *Window) Wait(now ledger.Time, cost uint64) time.Duration {
	return w.After(now, 0, cost)
}

// After is the time from now until a request of the given cost may go that
// comes after ahead others of the same cost, each of which goes as soon as it
// may; zero if it might go now. Exact, except that a sliding window above
// MaxExact may need up to Per/128 more for each Per of the answer.
func (w *Window) After(now ledger.Time, ahead, cost uint64) time.Duration {
	if cost == 0 {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now = w.advance(now)
	var (
		limit = w.config.Limit
		used  = w.used(now)
		need  = w.need(cost)
		each  = limit / need // requests in one window
	)
	if w.config.Kind == Fixed {
		end := w.end
		if !w.open(now) {
			end = now.Add(w.config.Per)
		}
		var room uint64
		if used < limit {
			room = (limit - used) / need
		}
		if ahead < room {
			return 0
		}
		ahead -= room
		return after(end.Sub(now), ahead/each, w.config.Per)
	}
	// The first requests that fill a window wait for what was charged before.
	// When they have gone, all of that is out, and each further one waits for
	// the one a window's worth of requests before it.
	var wait time.Duration
	if last := used + (ahead%each+1)*need; last > limit {
		wait = w.past.spent(last - limit).Add(w.config.Per).Sub(now)
	}
	return after(wait, ahead/each, w.config.Per)
}

// after is d + n*per, or the end of the range of time.Duration.
func after(d time.Duration, n uint64, per time.Duration) time.Duration {
	hi, lo := bits.Mul64(n, uint64(per))
	if hi != 0 || lo > uint64(math.MaxInt64-d) {
		return math.MaxInt64
	}
	return d + time.Duration(lo)
}

// Undo gives back, at now, what a Take took for a request of which no byte
// left. What is out of the window by now is not worth giving back.
func (w *Window) Undo(s Stamp, now ledger.Time) {
	if s.units == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	now = w.advance(now)
	if !w.past.undo(s.at, s.units) {
		return
	}
	if w.config.Kind == Fixed && !w.aligned && w.used(now) == 0 {
		w.end = min(w.end, now) // the window never had its first unit
	}
	w.save(now)
}

// Debit charges, at now, units that a request turned out to cost on top of
// what was taken for it. The window may go into debt, by which it is closed
// for longer: up to as many units as the limit, and none beyond. Debt ends
// with the window, as does all that was charged.
func (w *Window) Debit(units uint64, now ledger.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now = w.advance(now)
	used := w.used(now)
	if units = min(units, max(2*w.config.Limit, used)-used); units > 0 {
		w.charge(now, units)
	}
}

// Align says that a window of the origin ends, or ended, at reset: so do those
// of a fixed window from now on, every Per. What was charged since the window
// began that is then open, or may have been, counts in it. A sliding window
// has no boundaries and stays as it is.
func (w *Window) Align(reset, now ledger.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now = w.advance(now)
	if w.config.Kind != Fixed {
		return
	}
	var left time.Duration
	if ahead := reset.Sub(now); ahead > 0 {
		left = (ahead-1)%w.config.Per + 1
	} else {
		left = w.config.Per - -ahead%w.config.Per
	}
	if end := now.Add(left); end != w.end || !w.aligned {
		w.end, w.aligned = end, true
		w.save(now)
	}
}

// Used is the number of units that count at now, and when that number falls:
// the end of a fixed window; for a sliding one, when the oldest leave. With
// none until is now, except in a window of the origin.
func (w *Window) Used(now ledger.Time) (used uint64, until ledger.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now = w.advance(now)
	used, until = w.used(now), now
	if w.config.Kind == Fixed {
		until = max(until, w.end)
	} else if w.past.n > 0 {
		until = w.past.entry(0).at.Add(w.config.Per)
	}
	return used, until
}
