// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"slices"
	"time"
)

// Head is the head of one answer while it is read. Fill in the exported
// fields, hand every field line to Field in the order of arrival, then ask for
// the Verdict:
//
//	h := verdict.Head{Status: 429, At: now}
//	h.Field(name, value) // for each field line
//	v := h.Verdict(nil)
//
// Head keeps nothing of the slices given to Field, allocates nothing, and is
// not safe for concurrent use.
type Head struct {
	Status  int
	Connect bool      // this answers a CONNECT, so it comes from the exit
	At      time.Time // wall-clock time of receipt
	// RetryAfterOnly ignores all fields of rate limits but the Retry-After
	// family: headers: off in a policy.
	RetryAfterOnly bool
	// Only, if not nil, is the one dialect that is believed besides the
	// Retry-After family: headers: NAME in a policy.
	Only *Dialect
	// Dialects are believed before the built-in ones, the first of them
	// first: those of a policy file, unless Only is set.
	Dialects []*Dialect
	// CostField, if not empty, is the field, in lower case, that tells what
	// the request did cost.
	CostField string

	date      time.Time     // of the Date field; zero if none was valid
	rawDate   [40]byte      // the Date field while it is not parsed,
	rawLen    uint8         // and its length; 0: nothing to parse
	wait      time.Duration // largest number in Retry-After
	waitMilli time.Duration // largest number in the fields of milliseconds
	until     time.Time     // latest date in Retry-After
	cost      uint64
	hasCost   bool

	challenge bool
	fromExit  bool // a field says that the exit's provider speaks
	shared    bool // the limit is hit by others as well
	cached    bool // Age says that the answer is not from now
	retry     Advice

	counters    [maxCounters + 1]counter // sorted; the last one is a dummy
	numCounters int
	items       [maxItems]item // of RateLimit
	policies    [maxItems]item // of RateLimit-Policy
	numItems    int
	numPolicies int
	listedOut   bool          // an item of RateLimit leaves nothing,
	listedReset time.Duration // and the longest reset of those
	listedBy    int32         // the counter that RateLimit belongs to

	seen       fieldSet // fields of auto that were understood
	spoke      bool     // some field of a dialect was understood
	spokeFirst int      // 1 + place in Dialects of the first of them
}

// Field takes one field line of the head. The name may be in any case; the
// value may have blanks around it. Fields that say nothing here are ignored,
// and so are values that cannot be read: an origin's typing error must not
// become a failure of the client.
func (h *Head) Field(name, value []byte) {
	if len(name) == 0 {
		return
	}
	if h.CostField != "" && is(name, h.CostField) {
		h.takeCost(trim(value))
	}
	x := &auto
	switch {
	case h.RetryAfterOnly:
		x = off
	case h.Only != nil:
		x = &h.Only.index
	case len(h.Dialects) > 0 && h.extraField(name, value):
		return
	}
	f, place := x.find(name)
	if f == nil {
		return
	}
	if h.take(f, f.counter, trim(value)) {
		h.spoke = true
		if x == &auto {
			h.seen.add(place)
		}
	}
}

// extraField takes a field line of the first of Dialects that has it, and
// reports whether there is one.
func (h *Head) extraField(name, value []byte) bool {
	for i, d := range h.Dialects {
		f, _ := d.index.find(name)
		if f == nil || f.alone {
			continue
		}
		if h.take(f, int32(i)*maxGroups+f.counter, trim(value)) {
			h.spoke = true
			if h.spokeFirst == 0 || i+1 < h.spokeFirst {
				h.spokeFirst = i + 1
			}
		}
		return true
	}
	return false
}

// take takes the value of a field, and reports whether it is one by which a
// dialect is known, and could be read.
func (h *Head) take(f *field, counter int32, value []byte) bool {
	switch f.says {
	case saysDate:
		h.takeDate(value)
	case saysAge:
		age, ok := wholeNumber(value)
		h.cached = h.cached || ok && age > 0
	case saysMitigated:
		h.challenge = h.challenge || is(value, "challenge")
	case saysExitError:
		h.fromExit = true
	case SaysRetryAfter:
		return h.retryAfter(value, f.unit) && !isFamily(f.name)
	case SaysShouldRetry:
		return h.takeAdvice(value)
	case SaysRateLimit:
		return h.rateLimit(value, counter, &f.rule)
	case SaysPolicy:
		return h.rateLimitPolicy(value)
	case saysScope:
		h.shared = h.shared || is(value, "shared")
		return len(value) > 0
	case SaysMark:
		return true
	default:
		return h.say(&f.rule, counter, value)
	}
	return false
}

// takeDate takes a Date field. It is not parsed before somebody asks, since
// most answers have one and few need it. Of two the earlier counts.
func (h *Head) takeDate(value []byte) {
	h.parseRawDate()
	if h.date.IsZero() && len(value) <= len(h.rawDate) {
		h.rawLen = uint8(copy(h.rawDate[:], value))
		return
	}
	h.setDate(value)
}

func (h *Head) parseRawDate() {
	if h.rawLen > 0 {
		raw := h.rawDate[:h.rawLen]
		h.rawLen = 0
		h.setDate(raw)
	}
}

func (h *Head) setDate(value []byte) {
	if t, ok := parseDate(value, h.At); ok && (h.date.IsZero() || t.Before(h.date)) {
		h.date = t
	}
}

// takeCost takes what the request did cost; of two lines the larger counts.
func (h *Head) takeCost(value []byte) {
	if n, ok := parseCost(value); ok {
		h.cost, h.hasCost = max(h.cost, n), true
	}
}

// takeAdvice takes true or false; of two lines that differ false counts.
func (h *Head) takeAdvice(value []byte) bool {
	switch {
	case is(value, "false"):
		h.retry = DoNotRetry
	case !is(value, "true"):
		return false
	case h.retry == NoAdvice:
		h.retry = DoRetry
	}
	return true
}

// Verdict judges the head. statuses are the status codes that count as limits
// of this budget; none means 429. It changes nothing that can be seen, so one
// head can be judged for several budgets.
func (h *Head) Verdict(statuses []int) Verdict {
	short := h.shortage()
	v := Verdict{Kind: h.kind(statuses, short), Retry: h.retry}
	switch v.Kind {
	case Limited, Capacity, ExitTrouble:
		v.Delay = h.asked()
		if v.Delay == 0 && (v.Kind == Limited || isLimit(h.Status, statuses)) {
			v.Delay = short.reset
		}
	}
	v.HasDelay = v.Delay > 0
	if !h.Connect || v.Kind == ExitTrouble {
		v.Quota, v.Dialect = h.quota()
	}
	if v.Dialect == "" {
		v.Dialect = h.dialect()
	}
	if !h.Connect && v.Kind != ExitTrouble {
		v.Exhausted, v.HasExhausted = short.next, short.next > 0
	}
	if !h.cached {
		v.Cost, v.HasCost = h.cost, h.hasCost
	}
	return v
}

// Skew is how far the origin's clock is ahead of this one's, to a second or
// so; false if the answer does not tell or comes from a cache.
func (h *Head) Skew() (time.Duration, bool) {
	h.parseRawDate()
	if h.date.IsZero() || h.cached {
		return 0, false
	}
	return h.date.Sub(h.At), true
}

// kind is the kind by status code, and by the fields that change its meaning.
func (h *Head) kind(statuses []int, short shortage) Kind {
	limit := isLimit(h.Status, statuses)
	if h.Connect {
		switch {
		case limit, h.Status == 407, h.Status == 429, h.Status >= 502 && h.Status <= 504:
			return ExitTrouble
		}
		return byClass(h.Status)
	}
	switch {
	case h.fromExit && h.Status >= 400:
		return ExitTrouble
	case h.challenge && h.Status >= 400:
		return Challenge
	case limit && h.shared:
		return Capacity
	case limit:
		return Limited
	case h.Status == 503, h.Status == 529:
		return Capacity
	case h.Status == 403, h.Status == 413:
		// An origin that names a time means a limit, whatever the code
		// (GitHub's secondary limits; RFC 9110 section 15.5.14), and so does
		// one that forbids when nothing is left.
		if h.asked() > 0 || short.is && h.Status == 403 {
			return Limited
		}
	}
	return byClass(h.Status)
}

func isLimit(status int, statuses []int) bool {
	if len(statuses) == 0 {
		return status == 429
	}
	return slices.Contains(statuses, status)
}

func byClass(status int) Kind {
	if status >= 500 && status <= 599 {
		return Error
	}
	return OK
}

// asked is the delay that the Retry-After family asks for, or 0. Milliseconds
// go first: who sends both rounds the seconds up.
func (h *Head) asked() time.Duration {
	if h.waitMilli > 0 {
		return h.waitMilli
	}
	d := h.wait
	if !h.until.IsZero() {
		d = max(d, clamp(h.until.Sub(h.now())))
	}
	return d
}

// now is the instant of the answer in the origin's own time where it told
// that: only then a wrong clock, here or there, cancels out.
func (h *Head) now() time.Time {
	h.parseRawDate()
	if !h.date.IsZero() {
		return h.date
	}
	return h.At
}
