// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"math/bits"
	"time"
)

// Quota is what an answer tells of a limit before it is hit. The zero Quota
// tells nothing. It is a hint: answers overtake each other, and cached ones
// are not counted here at all.
type Quota struct {
	Limit        int64         // units per window
	Remaining    int64         // units left in this window, rounded down
	Reset        time.Duration // from receipt until the window ends; see ToFull
	Window       time.Duration // length of the window; 0 if it was not told
	PerSecond    float64       // a rate of requests told as such; 0 if it was not
	HasLimit     bool
	HasRemaining bool
	HasReset     bool
	// ToFull says that Reset is the time until the bucket is full: the next
	// request may go earlier.
	ToFull bool
	// Other says that the units are no requests but tokens, bytes or the
	// like, so that no rate of requests follows from them.
	Other bool
}

// reset is the time from receipt until the counter starts anew; it is negative
// for one that has.
func (h *Head) reset(c *counter) (time.Duration, bool) {
	switch {
	case c.hasAfter: // needs no clock, so it is believed first
		return c.after, true
	case c.hasAt:
		return min(time.UnixMilli(c.at).Sub(h.now()), longest), true
	}
	return 0, false
}

// shortage is what an answer says where nothing is left.
type shortage struct {
	is bool
	// Both as Verdict.Delay; 0 if it was not told.
	reset time.Duration // until all windows have ended that leave nothing
	next  time.Duration // until one request may go, as far as that is known
}

// shortage looks for counters that leave nothing. All of them hold together,
// so the latest counts.
func (h *Head) shortage() shortage {
	if h.cached {
		return shortage{}
	}
	s := shortage{is: h.listedOut, reset: h.listedReset, next: h.listedReset}
	for i := range h.counters[:h.numCounters] {
		c := &h.counters[i]
		if left, told := c.left(); !told || left > 0 {
			continue
		}
		s.is = true
		d, told := h.reset(c)
		if !told || d < 0 {
			continue
		}
		next := d
		if size, told := c.size(); told && size > 0 && c.toFull && !c.other {
			// A bucket gains its size until it is full, so one unit comes after
			// this part of the time.
			next = (d + time.Duration(size-1)) / time.Duration(size)
		}
		if !c.hasAfter && c.whole {
			d, next = d+time.Second, next+time.Second
		}
		s.reset, s.next = max(s.reset, d), max(s.next, next)
	}
	s.reset, s.next = clamp(s.reset), clamp(s.next)
	return s
}

// quota is what the verdict reports, and the name of the dialect that said it:
// of counters of requests one that leaves nothing, else the first; of others
// only if no request is counted.
func (h *Head) quota() (q Quota, name string) {
	if h.cached || h.numCounters == 0 && h.numItems == 0 {
		return Quota{}, ""
	}
	id, rank := int32(-1), 0
	if q, rank = h.listed(); rank > 0 {
		id = h.listedBy
	}
	for i := range h.counters[:h.numCounters] {
		c := &h.counters[i]
		if r := c.rank(); r > rank {
			q, rank, id = h.told(c), r, c.id
		}
	}
	for i := range h.counters[:h.numCounters] {
		c := &h.counters[i]
		rate := c.rate()
		if rate == 0 || c.other {
			continue
		}
		if q.PerSecond == 0 || rate < q.PerSecond {
			q.PerSecond = rate
		}
		if id < 0 {
			id = c.id
		}
	}
	if id < 0 {
		return Quota{}, ""
	}
	return q, h.dialectOf(id)
}

// rank orders counters by how much they matter; 0 says nothing.
func rank(said, other, exhausted bool) int {
	switch {
	case !said:
		return 0
	case other:
		return 1
	case exhausted:
		return 3
	}
	return 2
}

func (c *counter) rank() int {
	left, told := c.left()
	return rank(c.said(), c.other, told && left == 0)
}

// told is a counter as a quota.
func (h *Head) told(c *counter) (q Quota) {
	q.Limit, q.HasLimit = c.size()
	q.Remaining, q.HasRemaining = c.left()
	q.Reset, q.HasReset = h.reset(c)
	q.Reset = max(0, q.Reset)
	q.Window, q.ToFull, q.Other = c.window, c.toFull, c.other
	if q.Window == 0 && q.HasLimit {
		q.Window = h.unnamedWindow(q.Limit)
	}
	return q
}

// dialectOf is the name of the dialect that a counter belongs to. Fields that
// several vendors use are given to the one that explains most of the answer.
func (h *Head) dialectOf(id int32) string {
	switch {
	case h.Only != nil:
		return h.Only.Name
	case id < firstBuiltin:
		return h.Dialects[id/maxGroups].Name
	}
	return h.explains(1 << (id - firstBuiltin))
}

// dialect is the name of the dialect that an answer speaks which tells no
// quota.
func (h *Head) dialect() string {
	switch {
	case h.cached || !h.spoke:
		if h.wait > 0 || h.waitMilli > 0 || !h.until.IsZero() {
			return nameRetryAfter
		}
		return ""
	case h.Only != nil:
		return h.Only.Name
	case h.spokeFirst > 0:
		return h.Dialects[h.spokeFirst-1].Name
	}
	return h.explains(^uint64(0))
}

// explains is the built-in dialect, of those that speak of one of the counters,
// that has most of the fields seen.
func (h *Head) explains(counters uint64) string {
	name, most := "", 0
	for _, d := range builtins {
		if d.counters&counters == 0 {
			continue
		}
		n := bits.OnesCount64(h.seen[0]&d.fields[0]) + bits.OnesCount64(h.seen[1]&d.fields[1])
		if n > most {
			name, most = d.Name, n
		}
	}
	return name
}
