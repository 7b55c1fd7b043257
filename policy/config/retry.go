// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/config/strict"
)

// Bounds of what the proxy repeats. Bodies are kept in memory, one for each
// request under way.
const (
	minAttempts = 2
	maxAttempts = 10
	maxBody     = 16 << 20 // bytes
)

func (v value) retry(r *policy.Retry) {
	ok := v.mapping(
		field{"absorb", func(v value) { r.Absorb, _ = v.boolean() }},
		field{"attempts", func(v value) { r.Attempts, _ = v.integer(minAttempts, maxAttempts) }},
		field{"max_body", func(v value) { r.MaxBody, _ = v.bodySize() }},
		field{"statuses", func(v value) { r.Statuses = v.statuses("[502, 503, 504]", "", 599) }},
	)
	if ok && !v.Has("absorb") {
		v.Reject("absorb is missing, without which nothing is repeated; write absorb: true, or remove retry")
	}
}

// bodySize reads a number of bytes, which is written with a unit.
func (v value) bodySize() (int64, bool) {
	s, ok := v.scalar("a size, as in 64KiB")
	if !ok {
		return 0, false
	}
	n, err := parseSize(s)
	switch {
	case err != nil:
		v.Reject("%v", err)
	case n > maxBody:
		v.Reject("must be at most %dMiB, not %s", maxBody>>20, strict.Clip(s))
	default:
		return n, true
	}
	return 0, false
}

// sizeUnits are the units of a size; B last, since the others end with it.
var sizeUnits = []struct {
	suffix string
	bytes  int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"kB", 1000}, {"MB", 1_000_000}, {"B", 1},
}

// parseSize reads "1MiB", in bytes. What is out of range is larger than any
// size allowed. Its errors are the end of a message.
func parseSize(s string) (int64, error) {
	if isDigits(s) {
		return 0, fmt.Errorf("has no unit; write %q, or another of KiB, MiB, kB and MB", strict.Clip(s)+"B")
	}
	for _, u := range sizeUnits {
		if digits, ok := strings.CutSuffix(s, u.suffix); ok && isDigits(digits) && !leadingZero(digits) {
			n, _ := strconv.ParseInt(digits, 10, 32) // the largest if out of range
			return n * u.bytes, nil
		}
	}
	return 0, fmt.Errorf("%q is no size; write it as 512B, 64KiB or 1MiB", strict.Clip(s))
}
