// SPDX-License-Identifier: Apache-2.0

package verdict

import "time"

// maxCounters bounds how many counters of an answer are looked at: those with
// the lowest numbers, which does not depend on the order of its fields.
const maxCounters = 8

// counter is what an answer said of one limit. All set methods commute: of two
// lines that differ, the stricter counts.
type counter struct {
	id int32 // see Head.counter

	limit, remaining, used int64
	pairLimit, pairLeft    int64         // of the pair used/limit that leaves least
	fill                   int64         // units gained per interval
	interval               time.Duration // 0: not told
	perSecond              float64       // 0: not told
	window                 time.Duration // 0: not told
	after                  time.Duration // reset as a time from now
	at                     int64         // reset as an instant, Unix milliseconds

	hasLimit, hasRemaining, hasUsed, hasPair, hasAfter, hasAt bool
	// whole says that the instant has no fraction of a second, so that it
	// may be up to a second early.
	whole  bool
	toFull bool // the reset is when the bucket is full
	other  bool // counts something else than requests
}

// counter is the counter of a number, which is claimed if it is new. Built-in
// ones count from firstBuiltin in the order of the table, those of a policy
// file's dialects from 0.
func (h *Head) counter(id int32, r *rule) *counter {
	n := 0
	for n < h.numCounters && h.counters[n].id < id {
		n++
	}
	c := &h.counters[n]
	switch {
	case n == maxCounters:
		// The last place is for what is not looked at.
	case n < h.numCounters && c.id == id:
		return c
	default:
		copy(h.counters[n+1:maxCounters], h.counters[n:])
		h.numCounters = min(h.numCounters+1, maxCounters)
	}
	*c = counter{id: id, other: r.other}
	return c
}

func (c *counter) setLimit(n int64) {
	if !c.hasLimit || n < c.limit {
		c.limit, c.hasLimit = n, true
	}
}

func (c *counter) setRemaining(n int64) {
	if !c.hasRemaining || n < c.remaining {
		c.remaining, c.hasRemaining = n, true
	}
}

func (c *counter) setUsed(n int64) {
	if !c.hasUsed || n > c.used {
		c.used, c.hasUsed = n, true
	}
}

// setPair keeps the pair that leaves least whole: of one limit the size and of
// another what is used would be neither.
func (c *counter) setPair(used, limit int64) {
	left := max(0, limit-used)
	if !c.hasPair || left < c.pairLeft || left == c.pairLeft && limit < c.pairLimit {
		c.pairLimit, c.pairLeft, c.hasPair = limit, left, true
	}
}

func (c *counter) setRate(perSecond float64) {
	if c.perSecond == 0 || perSecond < c.perSecond {
		c.perSecond = perSecond
	}
}

func (c *counter) setFill(n int64) {
	if c.fill == 0 || n < c.fill {
		c.fill = n
	}
}

func (c *counter) setReset(r moment) {
	switch {
	case !r.instant:
		if !c.hasAfter || r.after > c.after {
			c.after, c.hasAfter = r.after, true
		}
	case !c.hasAt || r.at > c.at:
		c.at, c.hasAt, c.whole = r.at, true, r.whole
	case r.at == c.at:
		c.whole = c.whole || r.whole
	}
}

// merge adds what another counter was told of limit, remaining, used and reset.
func (c *counter) merge(told *counter) {
	if told.hasLimit {
		c.setLimit(told.limit)
	}
	if told.hasRemaining {
		c.setRemaining(told.remaining)
	}
	if told.hasUsed {
		c.setUsed(told.used)
	}
	if told.hasAfter {
		c.setReset(moment{after: told.after})
	}
	if told.hasAt {
		c.setReset(moment{at: told.at, instant: true, whole: told.whole})
	}
}

// size is the counter's limit.
func (c *counter) size() (n int64, ok bool) {
	if c.hasLimit || !c.hasPair {
		return c.limit, c.hasLimit
	}
	return c.pairLimit, true
}

// left is how many units are left.
func (c *counter) left() (n int64, ok bool) {
	n, ok = c.remaining, c.hasRemaining
	if !ok && c.hasUsed && c.hasLimit {
		n, ok = max(0, c.limit-c.used), true
	}
	if c.hasPair && (!ok || c.pairLeft < n) {
		n, ok = c.pairLeft, true
	}
	return n, ok
}

// rate is the rate that was told, per second; 0 if none was.
func (c *counter) rate() float64 {
	rate := c.perSecond
	if c.fill > 0 && c.interval > 0 {
		if filled := float64(c.fill) / c.interval.Seconds(); rate == 0 || filled < rate {
			rate = filled
		}
	}
	return rate
}

// said reports whether the counter says anything of what is left.
func (c *counter) said() bool {
	_, size := c.size()
	_, left := c.left()
	return size || left || c.hasAfter || c.hasAt
}
