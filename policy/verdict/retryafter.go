// SPDX-License-Identifier: Apache-2.0

package verdict

import "time"

// retryAfter takes one value of Retry-After (RFC 9110 section 10.2.3):
// seconds or a date, and what origins send instead of them. Of several field
// lines the longest delay counts.
func (h *Head) retryAfter(value []byte) {
	if d, ok := parseNumber(value, time.Second); ok {
		h.wait = max(h.wait, d)
	} else if d, ok := parseNumberList(value); ok {
		h.wait = max(h.wait, d)
	} else if d, ok := parseUnits(value); ok {
		h.wait = max(h.wait, d)
	} else if t, ok := parseDate(value, h.At); ok && t.After(h.until) {
		h.until = t
	}
}

// retryAfterMilli takes one value of a field that counts in milliseconds.
func (h *Head) retryAfterMilli(value []byte) {
	if d, ok := parseNumber(value, time.Millisecond); ok {
		h.waitMilli = max(h.waitMilli, d)
	}
}
