// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"bytes"
	"strconv"
	"time"
)

// vendorField takes a field whose name begins with x.
func (h *Head) vendorField(name, value []byte) {
	if rest, ok := cutWord(name, "x-ratelimit-"); ok {
		switch {
		case is(rest, "reset-after"): // Discord
			h.counters[vendor].takeReset(value, h.At, true)
		default:
			part, suffix, _ := cut(rest, '-')
			if f, ok := modelFamily(suffix); ok {
				h.counterField(f, part, value)
			} else if len(suffix) == 0 {
				h.counterField(vendor, part, value)
			}
		}
		return
	}
	if rest, ok := cutWord(name, "x-rate-limit-"); ok {
		h.counterField(vendor, rest, value)
		return
	}
	if rest, ok := cutWord(name, "x-hubspot-ratelimit-"); ok {
		switch {
		case is(rest, "max"):
			h.counters[hubspot].takeLimit(value)
		case is(rest, "remaining"):
			h.counterField(hubspot, rest, value)
		case is(rest, "interval-milliseconds"):
			if d, ok := parseNumber(value, time.Millisecond); ok {
				h.counters[hubspot].window = d
			}
		}
		return
	}
	switch {
	case is(name, "x-shopify-shop-api-call-limit"):
		h.shopify(value)
	case is(name, "x-amzn-ratelimit-limit"):
		if _, n := decimal(value, time.Second); n > 0 && n == len(value) && len(value) < 40 {
			h.perSecond, _ = strconv.ParseFloat(string(value), 64)
		}
	}
}

// modelFamily is the family of a name's part that says what is counted.
func modelFamily(b []byte) (family, bool) {
	switch {
	case is(b, "requests"):
		return requests, true
	case is(b, "tokens"):
		return tokens, true
	case is(b, "input-tokens"):
		return tokensIn, true
	case is(b, "output-tokens"):
		return tokensOut, true
	}
	return 0, false
}

// anthropicField takes what follows anthropic-ratelimit-: requests-limit,
// input-tokens-reset and the like.
func (h *Head) anthropicField(rest, value []byte) {
	dash := bytes.LastIndexByte(rest, '-')
	if dash < 0 {
		return
	}
	if f, ok := modelFamily(rest[:dash]); ok {
		h.counterField(f, rest[dash+1:], value)
	}
}

// shopify takes used/size, as in 32/40: a leaky bucket.
func (h *Head) shopify(value []byte) {
	used, size, ok := cut(value, '/')
	u, ok1 := wholeNumber(trim(used))
	s, ok2 := wholeNumber(trim(size))
	if ok && ok1 && ok2 {
		h.counters[shopify].setLimit(s)
		h.counters[shopify].setRemaining(max(0, s-u))
	}
}

// counterField takes a field that sets limit, remaining or reset of a family.
func (h *Head) counterField(f family, part, value []byte) {
	c := &h.counters[f]
	switch {
	case is(part, "limit"):
		c.takeLimit(value)
	case is(part, "remaining"):
		if n, ok := wholeNumber(value); ok {
			c.setRemaining(n)
		}
	case is(part, "reset"):
		c.takeReset(value, h.At, false)
	}
}

// takeLimit reads "100" or "100, 100;w=60": the first number is the limit,
// and the parameter w of an item with the same number is its window (drafts 03
// to 06 of RateLimit; Docker sends it in the first).
func (c *counter) takeLimit(value []byte) {
	var limit int64
	var window time.Duration
	for i := 0; ; i++ {
		item, rest, more := cut(value, ',')
		number, params, _ := cut(item, ';')
		n, ok := wholeNumber(trim(number))
		if !ok {
			return
		}
		if i == 0 {
			limit = n
		}
		if w, ok := windowOf(params); ok && n == limit && window == 0 {
			window = w
		}
		if !more {
			break
		}
		value = rest
	}
	c.setLimit(limit)
	if window > 0 {
		c.window = window
	}
}

// windowOf finds w=SECONDS among parameters.
func windowOf(params []byte) (time.Duration, bool) {
	for len(params) > 0 {
		var p []byte
		p, params, _ = cut(params, ';')
		key, value, _ := cut(trim(p), '=')
		if milli, _, ok := milliNumber(value); ok && is(key, "w") {
			return duration(milli, time.Millisecond), true
		}
	}
	return 0, false
}

// takeReset reads a reset: a number, a duration with units or a date. The
// forms of a number are told apart by its size, since vendors use one name for
// seconds from now, seconds since 1970 and milliseconds since 1970; what is in
// none of their ranges is nothing. after says that it can only be from now.
func (c *counter) takeReset(value []byte, at time.Time, after bool) {
	milli, whole, ok := milliNumber(value)
	if !ok {
		if d, ok := parseUnits(value); ok {
			c.setAfter(d)
		} else if t, ok := parseDate(value, at); ok {
			c.setAt(t.UnixMilli(), t.Nanosecond() == 0)
		}
		return
	}
	switch seconds := milli / 1000; {
	case after || seconds < 1e6:
		c.setAfter(duration(milli, time.Millisecond))
	case seconds >= 1e9 && seconds < 1e10:
		c.setAt(milli, whole)
	case seconds >= 1e12 && seconds < 1e13:
		c.setAt(seconds, false) // a thousand times too large: milliseconds
	}
}

// milliNumber reads a whole value as a decimal number, in thousandths rounded
// up; whole says that it has no fraction. Beyond 10^13 it is none: what counts
// units or time here ends far below.
func milliNumber(b []byte) (milli int64, whole, ok bool) {
	n, digits, ok := integerPart(b)
	if !ok {
		return 0, false, false
	}
	part := fraction(b[min(digits+1, len(b)):], time.Second)
	return n*1000 + int64((part+time.Millisecond-1)/time.Millisecond), part == 0, true
}

// wholeNumber reads a decimal number and drops its fraction: Reddit counts
// remaining requests in 593.0.
func wholeNumber(b []byte) (int64, bool) {
	n, _, ok := integerPart(b)
	return n, ok
}

// integerPart reads the number before the dot and checks that what follows is
// a fraction.
func integerPart(b []byte) (n int64, digits int, ok bool) {
	for digits < len(b) && isDigit(b[digits]) {
		if n = 10*n + int64(b[digits]-'0'); n > 1e13 {
			return 0, 0, false
		}
		digits++
	}
	if digits == 0 {
		return 0, 0, false
	}
	if digits < len(b) {
		if b[digits] != '.' {
			return 0, 0, false
		}
		for _, c := range b[digits+1:] {
			if !isDigit(c) {
				return 0, 0, false
			}
		}
	}
	return n, digits, true
}
