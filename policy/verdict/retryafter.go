// SPDX-License-Identifier: Apache-2.0

package verdict

import "time"

// retryAfter takes one value of a field that tells the time to wait. Without a
// unit it is Retry-After (RFC 9110 section 10.2.3): seconds or a date, and what
// origins send instead of them. Of several field lines the longest delay
// counts. It reports whether the value could be read.
func (h *Head) retryAfter(value []byte, unit Unit) bool {
	var d time.Duration
	var ok bool
	switch unit {
	case UnitMilli:
		if d, ok = parseNumber(value, time.Millisecond); ok {
			h.waitMilli = max(h.waitMilli, d)
		}
		return ok
	case UnitAuto, UnitSeconds:
		if d, ok = parseNumber(value, time.Second); !ok {
			d, ok = parseNumberList(value)
		}
	}
	if !ok && (unit == UnitAuto || unit == UnitDuration) {
		d, ok = parseUnits(value)
	}
	if ok {
		h.wait = max(h.wait, d)
		return true
	}
	if unit == UnitSeconds || unit == UnitDuration {
		return false
	}
	t, ok := parseDate(value, h.At)
	if unit == UnitEpoch || unit == UnitEpochMs {
		var m moment
		m, ok = parseMoment(value, unit, false, h.At)
		t = time.UnixMilli(m.at)
	}
	if ok && t.After(h.until) {
		h.until = t
	}
	return ok
}

// isFamily reports whether a field is of the Retry-After family, which every
// dialect has, so that none is known by it. The name is in lower case.
func isFamily(name string) bool {
	switch name {
	case "retry-after", "retry-after-ms", "x-ms-retry-after-ms":
		return true
	}
	return false
}
