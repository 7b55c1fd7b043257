// SPDX-License-Identifier: Apache-2.0

package verdict

import "time"

// clamp brings a delay into the range of Verdict.Delay: not negative, whole
// milliseconds rounded up, at most MaxDelay.
func clamp(d time.Duration) time.Duration {
	switch {
	case d <= 0:
		return 0
	case d >= MaxDelay:
		return MaxDelay
	}
	if rest := d % time.Millisecond; rest > 0 {
		d += time.Millisecond - rest
	}
	return d
}

// decimal scans a decimal number at the start of b, ASCII digits with at most
// one dot, and returns that many units, at most MaxDelay. n is the number of
// bytes taken; 0 if there is no number. A fraction is kept to a millionth of
// the unit, rounded up.
//
// Signs, exponents, other bases, underscores and the digits of other scripts
// make no number here: clients disagree about every one of them.
func decimal(b []byte, unit time.Duration) (d time.Duration, n int) {
	digits := 0
	for ; n < len(b) && isDigit(b[n]); n++ {
		// No overflow: d is at most a day before the step.
		d = min(10*d+time.Duration(b[n]-'0')*unit, MaxDelay)
		digits++
	}
	if n < len(b) && b[n] == '.' {
		n++
		start := n
		for n < len(b) && isDigit(b[n]) {
			n++
		}
		d += fraction(b[start:n], unit)
		digits += n - start
	}
	if digits == 0 {
		return 0, 0
	}
	return min(d, MaxDelay), n
}

// fraction is 0.digits units, kept to a millionth of the unit, rounded up.
func fraction(digits []byte, unit time.Duration) time.Duration {
	millionths, place := time.Duration(0), time.Duration(100_000)
	more := false
	for _, c := range digits {
		digit := time.Duration(c - '0')
		millionths += digit * place
		more = more || place == 0 && digit > 0
		place /= 10
	}
	if more {
		millionths++
	}
	return (millionths*unit + 999_999) / 1_000_000
}

// parseNumber reads a whole value as a decimal number of units.
func parseNumber(b []byte, unit time.Duration) (time.Duration, bool) {
	d, n := decimal(b, unit)
	return clamp(d), n > 0 && n == len(b)
}

// parseNumberList reads a list of whole seconds, which is what becomes of
// several field lines on their way through a proxy, and returns the largest.
// Every part must be digits, since a date has a comma too.
func parseNumberList(b []byte) (time.Duration, bool) {
	var longest time.Duration
	for {
		part, rest, more := cut(b, ',')
		part = trim(part)
		for _, c := range part {
			if !isDigit(c) {
				return 0, false
			}
		}
		d, ok := parseNumber(part, time.Second)
		if !ok {
			return 0, false
		}
		longest = max(longest, d)
		if !more {
			return longest, true
		}
		b = rest
	}
}

// parseUnits reads numbers with units, as Go writes durations: "30s",
// "1m0s", "250ms", "1.5h".
func parseUnits(b []byte) (time.Duration, bool) {
	var sum time.Duration
	if len(b) == 0 {
		return 0, false
	}
	for len(b) > 0 {
		_, n := decimal(b, time.Second)
		if n == 0 {
			return 0, false
		}
		unit, width := unitAt(b[n:])
		if width == 0 {
			return 0, false
		}
		d, _ := decimal(b, unit)
		sum = min(sum+d, MaxDelay)
		b = b[n+width:]
	}
	return clamp(sum), true
}

// unitAt is the unit of time at the start of b and the bytes it takes; 0 if
// there is none.
func unitAt(b []byte) (time.Duration, int) {
	if len(b) == 0 {
		return 0, 0
	}
	switch b[0] {
	case 'h':
		return time.Hour, 1
	case 'm':
		if len(b) > 1 && b[1] == 's' {
			return time.Millisecond, 2
		}
		return time.Minute, 1
	case 's':
		return time.Second, 1
	}
	return 0, 0
}
