// SPDX-License-Identifier: Apache-2.0

// Package history remembers how counters grew, minute by minute, for a day:
// what an exit moved in the last hour is not in the counters themselves.
//
// It reads no clock and no counters; its owner calls Record at each step.
package history

import (
	"sync"
	"time"

	"github.com/egressd/egressd/policy"
)

// Bounds of a History. Beyond either, the oldest steps are forgotten.
const (
	// Kept is how far back it reaches.
	Kept = 24 * time.Hour
	// maxEntries bounds its memory, to some 15 MB: so many times did a
	// destination and an exit grow within a step. Forty-five of them that
	// grow in every minute have room for a day, a thousand for an hour.
	maxEntries = 1 << 16
)

// Key names what is counted.
type Key struct{ Destination, Exit string }

// Counters are the counts of one Key; see the constants for their order.
type Counters [numCounters]uint64

// Counts in Counters.
const (
	Requests              = iota // sent and ended
	TooMany                      // … that were answered 429
	Refused                      // refused here
	ConnectionsRedirected        // as the kernel saw them
	ConnectionsUntouched
	ConnectionsRefused
	trafficOf   // three for each outcome, from here on
	numCounters = trafficOf + 3*policy.NumOutcomes
)

// SetTraffic sets what exchanges of an outcome moved.
func (c *Counters) SetTraffic(o policy.Outcome, t policy.Traffic) {
	i := trafficOf + 3*int(o)
	c[i], c[i+1], c[i+2] = t.Exchanges, t.Sent, t.Received
}

// Traffic is what exchanges of an outcome moved.
func (c *Counters) Traffic(o policy.Outcome) policy.Traffic {
	i := trafficOf + 3*int(o)
	return policy.Traffic{Exchanges: c[i], Sent: c[i+1], Received: c[i+2]}
}

// Add adds d to c.
func (c *Counters) Add(d *Counters) {
	for i, n := range d {
		c[i] += n
	}
}

// since is by how much c grew from before. Counts never fall; one that did
// stands for nothing new.
func (c *Counters) since(before *Counters) (d Counters) {
	for i, n := range c {
		d[i] = n - min(n, before[i])
	}
	return d
}

// History is safe for concurrent use. Made by New.
type History struct {
	mu      sync.Mutex
	last    map[Key]Counters // as of recorded
	at      time.Time        // of the last step
	steps   []step           // without gaps, the oldest first
	entries int              // in all steps
}

// step is how counters grew from one instant to another.
type step struct {
	from, to time.Time
	grown    []entry
}

type entry struct {
	key  Key
	grew Counters
}

// New makes a history of counters that are zero at now.
func New(now time.Time) *History {
	return &History{last: make(map[Key]Counters), at: now}
}

// Record takes the counters as they are at now. It keeps nothing of the map
// itself.
func (h *History) Record(now time.Time, counters map[Key]Counters) {
	h.mu.Lock()
	defer h.mu.Unlock()
	next := step{from: h.at, to: now}
	for key, c := range counters {
		before := h.last[key]
		if grew := c.since(&before); grew != (Counters{}) {
			next.grown = append(next.grown, entry{key, grew})
			h.last[key] = c
		}
	}
	h.steps, h.at = append(h.steps, next), now
	h.entries += len(next.grown)
	old := 0
	for old < len(h.steps) && (h.entries > maxEntries || now.Sub(h.steps[old].to) >= Kept) {
		h.entries -= len(h.steps[old].grown)
		old++
	}
	h.steps = append(h.steps[:0:0], h.steps[old:]...)
}

// Since is how the counters grew in the time of length back before now, where
// counters is what they are at now, and from when that is: up to one step
// earlier than asked, or later where the past is forgotten.
func (h *History) Since(now time.Time, back time.Duration, counters map[Key]Counters) (from time.Time, grown map[Key]Counters) {
	h.mu.Lock()
	defer h.mu.Unlock()
	from, grown = h.at, make(map[Key]Counters)
	add := func(key Key, d *Counters) {
		sum := grown[key]
		sum.Add(d)
		grown[key] = sum
	}
	for key, c := range counters {
		before := h.last[key]
		if d := c.since(&before); d != (Counters{}) {
			add(key, &d)
		}
	}
	for i := len(h.steps) - 1; i >= 0 && now.Sub(h.steps[i].to) < back; i-- {
		from = h.steps[i].from
		for _, e := range h.steps[i].grown {
			add(e.key, &e.grew)
		}
	}
	return from, grown
}
