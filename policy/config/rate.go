// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/config/strict"
)

// Bounds of a rate. Faster ones would lose more than a thousandth to the
// ledger's whole nanoseconds; of slower ones the ledger could not add up a
// burst.
const (
	minInterval = time.Microsecond
	maxInterval = 30 * 24 * time.Hour
	// maxRefill bounds the time in which an empty bucket fills: burst at the
	// pace of the rate.
	maxRefill = 366 * 24 * time.Hour
)

func isDigits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// leadingZero reports a zero before other digits, which YAML 1.1 takes as
// octal and nobody means.
func leadingZero(digits string) bool { return len(digits) > 1 && digits[0] == '0' }

// rateUnits are the units after the slash of a rate.
var rateUnits = map[string]time.Duration{
	"s":   time.Second,
	"m":   time.Minute,
	"min": time.Minute,
	"h":   time.Hour,
	"d":   24 * time.Hour,
}

// parseRate reads "1/s", "90/min", "0.0056/s", "10/30s". Its errors are the
// end of a message: what is wrong and what to do.
func parseRate(s string) (policy.Rate, error) {
	var zero policy.Rate
	count, per, slash := strings.Cut(s, "/")
	if !slash {
		return zero, fmt.Errorf("%q has no unit of time; write it as 1/s, 90/min or 5000/h", strict.Clip(s))
	}
	n, err := strict.ParseDecimal(count)
	if err != nil {
		return zero, fmt.Errorf("%q is no rate; write a number, a slash and a unit of time, as in 1/s, 90/min or 5000/h", strict.Clip(s))
	}
	if n <= 0 {
		return zero, fmt.Errorf("must be positive, not %q; to let nothing out, block the destination elsewhere", strict.Clip(s))
	}
	every, ok := parseEvery(per)
	if !ok {
		return zero, fmt.Errorf("%q has an unknown unit of time; use s, min, h or d, as in 90/min or 10/30s", strict.Clip(s))
	}
	// As floats: the ratio may be out of any integer's range.
	switch interval := float64(every) / n; {
	case interval < float64(minInterval):
		return zero, fmt.Errorf("%q is more than 1000000/s; remove the budget if no limit is meant", strict.Clip(s))
	case interval > float64(maxInterval):
		return zero, fmt.Errorf("%q is less than one in 30 days; write a faster rate", strict.Clip(s))
	}
	return policy.Rate{Count: n, Every: every}, nil
}

// parseEvery reads what is after the slash: a unit, or a number of them.
func parseEvery(s string) (time.Duration, bool) {
	digits := 0
	for digits < len(s) && '0' <= s[digits] && s[digits] <= '9' {
		digits++
	}
	unit, ok := rateUnits[s[digits:]]
	if !ok || digits == 0 {
		return unit, ok
	}
	n, err := strconv.Atoi(s[:digits])
	if err != nil || n < 1 || n > int(maxRefill/unit) {
		return 0, false
	}
	return time.Duration(n) * unit, true
}

// checkBurst says what is wrong with a burst, for a rate if that is known.
func checkBurst(burst float64, rate policy.Rate) error {
	if refillsLate(burst, rate) {
		return fmt.Errorf("takes more than a year to refill at %s; write a smaller burst", formatRate(rate))
	}
	return nil
}

// refillsLate reports whether units take longer to refill than the ledger can
// add up. No rate never does.
func refillsLate(units float64, rate policy.Rate) bool {
	return rate.Count > 0 && units*float64(rate.Every)/rate.Count > float64(maxRefill)
}

// formatRate is the rate as one would write it in the file.
func formatRate(r policy.Rate) string {
	// Nine digits drop what multiplying a decimal fraction leaves behind.
	short, _ := strconv.ParseFloat(strconv.FormatFloat(r.Count, 'g', 9, 64), 64)
	count := strconv.FormatFloat(short, 'f', -1, 64)
	switch r.Every {
	case time.Second:
		return count + "/s"
	case time.Minute:
		return count + "/min"
	case time.Hour:
		return count + "/h"
	case 24 * time.Hour:
		return count + "/d"
	}
	return count + "/" + strict.Duration(r.Every)
}
