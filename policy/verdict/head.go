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

	date      time.Time     // of the Date field; zero if none was valid
	wait      time.Duration // largest number in Retry-After
	waitMilli time.Duration // largest number in the fields of milliseconds
	until     time.Time     // latest date in Retry-After
	challenge bool
	cached    bool    // Age says that the answer is not from now
	perSecond float64 // a rate told as such

	counters    [numFamilies]counter
	items       [maxItems]item // of RateLimit
	policies    [maxItems]item // of RateLimit-Policy
	numItems    int
	numPolicies int
}

// Field takes one field line of the head. The name may be in any case; the
// value may have blanks around it. Fields that say nothing here are ignored,
// and so are values that cannot be read: an origin's typing error must not
// become a failure of the client.
func (h *Head) Field(name, value []byte) {
	if len(name) == 0 {
		return
	}
	value = trim(value)
	switch lower(name[0]) { // so that most fields cost one comparison
	case 'a':
		if is(name, "age") {
			age, ok := wholeNumber(value)
			h.cached = h.cached || ok && age > 0
		} else if rest, ok := cutWord(name, "anthropic-ratelimit-"); ok {
			h.anthropicField(rest, value)
		}
	case 'c':
		if is(name, "cf-mitigated") && is(value, "challenge") {
			h.challenge = true
		}
	case 'd':
		if is(name, "date") && h.date.IsZero() {
			h.date, _ = parseDate(value, h.At)
		}
	case 'r':
		h.fieldR(name, value)
	case 'x':
		if is(name, "x-ms-retry-after-ms") {
			h.retryAfterMilli(value)
		} else {
			h.vendorField(name, value)
		}
	}
}

// fieldR takes a field whose name begins with r.
func (h *Head) fieldR(name, value []byte) {
	switch {
	case is(name, "retry-after"):
		h.retryAfter(value)
	case is(name, "retry-after-ms"):
		h.retryAfterMilli(value)
	case is(name, "ratelimit"):
		h.rateLimit(value)
	case is(name, "ratelimit-policy"):
		h.rateLimitPolicy(value)
	default:
		if rest, ok := cutWord(name, "ratelimit-"); ok {
			h.counterField(draft, rest, value)
		}
	}
}

// Verdict judges the head. statuses are the status codes that count as limits
// of this budget; none means 429. It changes nothing, so one head can be
// judged for several budgets.
func (h *Head) Verdict(statuses []int) Verdict {
	v := Verdict{Kind: h.kind(statuses), Quota: h.quota()}
	switch v.Kind {
	case Limited:
		if v.Delay = h.asked(); v.Delay == 0 {
			v.Delay, _ = h.exhausted()
		}
	case Capacity, ExitTrouble:
		v.Delay = h.asked()
	}
	v.HasDelay = v.Delay > 0
	return v
}

// kind is the kind by status code, and by the fields that change its meaning.
func (h *Head) kind(statuses []int) Kind {
	limit := isLimit(h.Status, statuses)
	if h.Connect {
		switch {
		case limit, h.Status == 407, h.Status == 429, h.Status >= 502 && h.Status <= 504:
			return ExitTrouble
		}
		return byClass(h.Status)
	}
	switch {
	case h.challenge && h.Status >= 400:
		return Challenge
	case limit:
		return Limited
	case h.Status == 503, h.Status == 529:
		return Capacity
	case h.Status == 403, h.Status == 413:
		// An origin that names a time means a limit, whatever the code
		// (GitHub's secondary limits; RFC 9110 section 15.5.14), and so does
		// one that forbids when nothing is left.
		if h.asked() > 0 {
			return Limited
		}
		if _, yes := h.exhausted(); yes && h.Status == 403 {
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
	if !h.date.IsZero() {
		return h.date
	}
	return h.At
}
