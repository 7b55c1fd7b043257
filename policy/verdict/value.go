// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"bytes"
	"strconv"
	"time"
)

// say takes the value of a field of a counter and reports whether it could be
// read. One that could not is ignored whole.
func (h *Head) say(r *rule, id int32, value []byte) bool {
	switch r.says {
	case SaysLimit:
		limit, window, ok := parseLimit(value)
		if ok {
			c := h.counter(id, r)
			c.setLimit(limit)
			c.window = max(c.window, window, time.Duration(r.window))
		}
		return ok
	case SaysRemaining:
		n, ok := parseLeast(value)
		return ok && h.setLeft(r, id, n)
	case SaysRemainingList:
		n, ok := parseLeastNamed(value)
		return ok && h.setLeft(r, id, n)
	case SaysStatus:
		if is(value, "rejected") {
			return h.setLeft(r, id, 0)
		}
		return len(value) > 0
	case SaysUsed:
		n, ok := wholeNumber(value)
		if ok {
			c := h.counter(id, r)
			c.setUsed(n)
			c.window = max(c.window, time.Duration(r.window))
		}
		return ok
	case SaysUsedLimit:
		return h.sayPairs(r, id, value)
	case SaysList:
		return h.sayList(r, id, value)
	case SaysReset, SaysResetAfter:
		m, ok := parseMoment(value, r.unit, r.says == SaysResetAfter, h.At)
		if ok {
			c := h.counter(id, r)
			c.setReset(m)
			c.toFull = c.toFull || r.toFull
			c.window = max(c.window, time.Duration(r.window))
		}
		return ok
	case SaysWindow:
		d, ok := parseLength(value, r.unit)
		if ok {
			c := h.counter(id, r)
			c.window = max(c.window, d)
		}
		return ok
	}
	return h.sayRate(r, id, value)
}

// sayRate takes the fields of which a rate is made.
func (h *Head) sayRate(r *rule, id int32, value []byte) bool {
	switch r.says {
	case SaysRate:
		rate, ok := parseRate(value)
		if ok {
			h.counter(id, r).setRate(rate)
		}
		return ok
	case SaysFill:
		n, ok := wholeNumber(value)
		if ok && n > 0 {
			h.counter(id, r).setFill(n)
		}
		return ok
	}
	// What is left is SaysInterval.
	d, ok := parseLength(value, r.unit)
	if ok {
		c := h.counter(id, r)
		c.interval = max(c.interval, d)
	}
	return ok
}

func (h *Head) setLeft(r *rule, id int32, n int64) bool {
	c := h.counter(id, r)
	c.setRemaining(n)
	c.window = max(c.window, time.Duration(r.window))
	return true
}

// sayPairs takes "32/40", or a list "api-usage=25/5000; per-app=17/250(app=x)".
func (h *Head) sayPairs(r *rule, id int32, value []byte) bool {
	var best counter
	for {
		item, rest, more := cutItem(value)
		if i := bytes.IndexByte(item, '('); i >= 0 && item[len(item)-1] == ')' {
			item = item[:i]
		}
		if _, v, named := cut(item, '='); named {
			item = v
		}
		used, limit, pair := cut(item, '/')
		u, ok1 := wholeNumber(trim(used))
		l, ok2 := wholeNumber(trim(limit))
		if !pair || !ok1 || !ok2 {
			return false
		}
		best.setPair(u, l)
		if !more {
			break
		}
		value = rest
	}
	c := h.counter(id, r)
	c.setPair(best.pairLimit-best.pairLeft, best.pairLimit)
	c.window = max(c.window, time.Duration(r.window))
	return true
}

// sayList takes "total=100; remaining=99; resets=41". Unknown keys are let
// pass.
func (h *Head) sayList(r *rule, id int32, value []byte) bool {
	var told counter
	for {
		item, rest, more := cutItem(value)
		key, v, ok := cut(item, '=')
		if !ok {
			return false
		}
		key, v = trim(key), trim(v)
		n, number := wholeNumber(v)
		switch {
		case is(key, "total"), is(key, "limit"):
			told.setLimit(n)
		case is(key, "remaining"):
			told.setRemaining(n)
		case is(key, "used"):
			told.setUsed(n)
		case is(key, "resets"), is(key, "reset"):
			var m moment
			m, number = parseMoment(v, r.unit, false, h.At)
			told.setReset(m)
		default:
			number = true
		}
		if !number {
			return false
		}
		if !more {
			break
		}
		value = rest
	}
	if !told.said() {
		return false
	}
	c := h.counter(id, r)
	c.merge(&told)
	c.toFull = c.toFull || r.toFull
	c.window = max(c.window, time.Duration(r.window))
	return true
}

// cutItem takes the first item off a list that is separated by commas or
// semicolons.
func cutItem(b []byte) (item, rest []byte, more bool) {
	i := bytes.IndexAny(b, ";,")
	if i < 0 {
		return trim(b), nil, false
	}
	return trim(b[:i]), b[i+1:], true
}

// parseLimit reads "100" or "100, 100;w=60": the first number is the limit,
// and the parameter w of an item with the same number is its window (drafts 03
// to 06 of RateLimit; Docker sends it in the first).
func parseLimit(value []byte) (limit int64, window time.Duration, ok bool) {
	for i := 0; ; i++ {
		item, rest, more := cut(value, ',')
		number, params, _ := cut(item, ';')
		n, ok := wholeNumber(trim(number))
		if !ok {
			return 0, 0, false
		}
		if i == 0 {
			limit = n
		}
		if w, ok := windowOf(params); ok && n == limit && window == 0 {
			window = w
		}
		if !more {
			return limit, window, true
		}
		value = rest
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

// parseLeast reads "99" or "99;w=60, 7", and returns the least number.
func parseLeast(value []byte) (int64, bool) {
	return least(value, func(number, _ []byte, _ bool) (int64, bool) { return wholeNumber(trim(number)) })
}

// parseLeastNamed reads "Get3Min;159,Get30Min;1259", and returns the least
// number.
func parseLeastNamed(value []byte) (int64, bool) {
	return least(value, func(_, number []byte, named bool) (int64, bool) {
		n, ok := wholeNumber(trim(number))
		return n, ok && named
	})
}

// least is the least number of the items of a list. read reads one that was cut
// at its first semicolon, if it has any; one that it does not read spoils all.
func least(value []byte, read func(before, after []byte, more bool) (int64, bool)) (int64, bool) {
	least := int64(-1)
	for {
		item, rest, more := cut(value, ',')
		n, ok := read(cut(item, ';'))
		if !ok {
			return 0, false
		}
		if least < 0 || n < least {
			least = n
		}
		if !more {
			return least, true
		}
		value = rest
	}
}

// parseRate reads a decimal number that is not 0.
func parseRate(value []byte) (float64, bool) {
	if _, n := decimal(value, time.Second); n == 0 || n != len(value) || len(value) >= 40 {
		return 0, false
	}
	rate, err := strconv.ParseFloat(string(value), 64)
	return rate, err == nil && rate > 0
}

// moment is when a window ends: a time from now, or an instant.
type moment struct {
	after   time.Duration
	at      int64 // Unix milliseconds
	instant bool
	whole   bool // the instant has no fraction of a second
}

// parseMoment reads a reset. after says that a number can only be from now.
func parseMoment(value []byte, unit Unit, after bool, at time.Time) (m moment, ok bool) {
	if unit != UnitDate && unit != UnitDuration {
		if milli, whole, ok := largestNumber(value); ok {
			return numberMoment(milli, whole, unit, after)
		}
	}
	if unit == UnitDuration || unit == UnitAuto {
		if d, ok := parseUnits(value); ok {
			return moment{after: d}, true
		}
	}
	if unit == UnitDate || unit == UnitAuto {
		if t, ok := parseDate(value, at); ok {
			return moment{at: t.UnixMilli(), instant: true, whole: t.Nanosecond() == 0}, true
		}
	}
	return moment{}, false
}

// numberMoment is what a number of thousandths means as a reset. Without a
// unit its forms are told apart by size, since vendors use one name for seconds
// from now, seconds since 1970 and milliseconds since 1970; what is in none of
// their ranges is nothing.
func numberMoment(milli int64, whole bool, unit Unit, after bool) (moment, bool) {
	seconds := milli / 1000
	switch {
	case unit == UnitMilli:
		return moment{after: duration(milli, time.Microsecond)}, true
	case unit == UnitEpoch:
		return moment{at: milli, instant: true, whole: whole}, true
	case unit == UnitEpochMs:
		return moment{at: seconds, instant: true}, true
	case unit == UnitSeconds, after, seconds < 1e6:
		return moment{after: duration(milli, time.Millisecond)}, true
	case seconds >= 1e9 && seconds < 1e10:
		return moment{at: milli, instant: true, whole: whole}, true
	case seconds >= 1e12 && seconds < 1e13:
		return moment{at: seconds, instant: true}, true // a thousand times too large: milliseconds
	}
	return moment{}, false
}

// largestNumber reads a number, or a list of them, which is what becomes of
// several field lines on their way through a proxy, in thousandths.
func largestNumber(value []byte) (milli int64, whole, ok bool) {
	for {
		part, rest, more := cut(value, ',')
		n, w, isNumber := milliNumber(trim(part))
		if !isNumber {
			return 0, false, false
		}
		if !ok || n > milli {
			milli, whole = n, w
		}
		if ok = true; !more {
			return milli, whole, true
		}
		value = rest
	}
}

// parseLength reads a length of time; a bare number is seconds unless the unit
// says otherwise.
func parseLength(value []byte, unit Unit) (time.Duration, bool) {
	if unit != UnitDuration {
		if milli, _, ok := milliNumber(value); ok {
			if unit == UnitMilli {
				return duration(milli, time.Microsecond), true
			}
			return duration(milli, time.Millisecond), true
		}
	}
	if unit == UnitDuration || unit == UnitAuto {
		return parseUnits(value)
	}
	return 0, false
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

// maxCost bounds Verdict.Cost.
const maxCost = 1e9

// parseCost reads a decimal number of units, rounded up, at most maxCost.
func parseCost(b []byte) (uint64, bool) {
	cost, digits, dot, more := uint64(0), 0, false, false
	for _, c := range b {
		switch {
		case isDigit(c):
			if digits++; dot {
				more = more || c != '0'
			} else {
				cost = min(10*cost+uint64(c-'0'), maxCost)
			}
		case c == '.' && !dot:
			dot = true
		default:
			return 0, false
		}
	}
	if more {
		cost++
	}
	return min(cost, maxCost), digits > 0
}

// duration is n units, at most longest.
func duration(n int64, unit time.Duration) time.Duration {
	return time.Duration(min(n, int64(longest/unit))) * unit
}
