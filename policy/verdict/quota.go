// SPDX-License-Identifier: Apache-2.0

package verdict

import "time"

// Quota is what an answer tells of a limit before it is hit. The zero Quota
// tells nothing. It is a hint: answers overtake each other, and cached ones
// are not counted here at all.
type Quota struct {
	Limit        int64         // units per window
	Remaining    int64         // units left in this window, rounded down
	Reset        time.Duration // from receipt until the window ends or the bucket is full
	Window       time.Duration // length of the window; 0 if it was not told
	PerSecond    float64       // a rate told as such; 0 if it was not
	HasLimit     bool
	HasRemaining bool
	HasReset     bool
}

// family is a group of fields that speak of one limit. Where several speak,
// the first in this order is reported; all of them can close the lane.
type family uint8

const (
	draft    family = iota // RateLimit as a dictionary; RateLimit-Limit and the like
	vendor                 // X-RateLimit-Limit, X-Rate-Limit-Limit and the like
	requests               // OpenAI and Anthropic, as are the tokens
	tokens
	tokensIn
	tokensOut
	shopify // X-Shopify-Shop-Api-Call-Limit
	hubspot // X-HubSpot-RateLimit-Max and the like
	numFamilies
)

// counter is what one family said.
type counter struct {
	limit, remaining int64
	after            time.Duration // reset as a time from now
	at               int64         // reset as an instant, Unix milliseconds
	window           time.Duration

	hasLimit, hasRemaining, hasAfter, hasAt bool
	// whole says that the instant has no fraction of a second, so that it
	// may be up to a second early.
	whole bool
}

// Of two lines that differ, the stricter counts.

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

func (c *counter) setAfter(d time.Duration) {
	if !c.hasAfter || d > c.after {
		c.after, c.hasAfter = d, true
	}
}

func (c *counter) setAt(milli int64, whole bool) {
	if !c.hasAt || milli > c.at {
		c.at, c.hasAt, c.whole = milli, true, whole
	}
}

func (c *counter) said() bool {
	return c.hasLimit || c.hasRemaining || c.hasAfter || c.hasAt
}

// reset is the time from receipt until the counter starts anew.
func (h *Head) reset(c *counter) (time.Duration, bool) {
	switch {
	case c.hasAfter: // needs no clock, so it is believed first
		return c.after, true
	case c.hasAt:
		return min(max(0, time.UnixMilli(c.at).Sub(h.now())), longest), true
	}
	return 0, false
}

// exhausted reports whether any family says that nothing is left, and how
// long to wait for all that are: 0 if none of them says.
func (h *Head) exhausted() (wait time.Duration, yes bool) {
	if h.cached || h.RetryAfterOnly {
		return 0, false
	}
	for i := range h.counters {
		c := &h.counters[i]
		if !c.hasRemaining || c.remaining > 0 {
			continue
		}
		yes = true
		d, _ := h.reset(c)
		if d > 0 && !c.hasAfter && c.whole {
			d += time.Second
		}
		wait = max(wait, d)
	}
	for _, it := range h.items[:h.numItems] {
		if it.hasRemaining && it.remaining == 0 {
			yes = true
			wait = max(wait, it.reset)
		}
	}
	return clamp(wait), yes
}

// quota is what the verdict reports.
func (h *Head) quota() Quota {
	if h.cached || h.RetryAfterOnly {
		return Quota{}
	}
	q := Quota{PerSecond: h.perSecond}
	if h.listed(&q) {
		return q
	}
	for i := range h.counters {
		c := &h.counters[i]
		if !c.said() {
			continue
		}
		q.Limit, q.HasLimit = c.limit, c.hasLimit
		q.Remaining, q.HasRemaining = c.remaining, c.hasRemaining
		q.Reset, q.HasReset = h.reset(c)
		q.Window = c.window
		if family(i) == draft && q.Window == 0 {
			// Drafts 03 to 06 had the windows in RateLimit-Policy.
			if p := h.policy(0); p.limit == c.limit {
				q.Window = p.window
			}
		}
		break
	}
	return q
}

// longest bounds what is reported, so that no sum overflows: 100 years.
const longest = 100 * 365 * 24 * time.Hour

// duration is n units, at most longest.
func duration(n int64, unit time.Duration) time.Duration {
	return time.Duration(min(n, int64(longest/unit))) * unit
}
