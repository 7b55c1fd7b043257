// SPDX-License-Identifier: Apache-2.0

package strict

import (
	"errors"
	"regexp"
	"strconv"
	"strings"
	"time"
)

var plainKey = regexp.MustCompile(`^[A-Za-z0-9_-]{1,40}$`)

// join appends a key to a path, quoted if it is no plain word.
func join(path, key string) string {
	if !plainKey.MatchString(key) {
		key = strconv.Quote(Clip(key))
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// Clip shortens foreign text in messages.
func Clip(s string) string {
	const most = 60
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// Known is the end of a message about an unknown word that lists all.
func Known(words []string) string { return "known here are " + strings.Join(words, ", ") }

// Series is words in a sentence: "a, b or c". There is at least one.
func Series(words []string, conjunction string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " " + conjunction + " " + words[last]
}

// plainDecimal has no zero before other digits, which YAML 1.1 takes as octal
// and nobody means.
var plainDecimal = regexp.MustCompile(`^(0|[1-9][0-9]*)(\.[0-9]+)?$`)

var errDecimal = errors.New("not a decimal number")

// ParseDecimal reads digits with at most one dot between them. Signs,
// exponents, underscores, octal, hexadecimal and infinities are slips in a
// file.
func ParseDecimal(s string) (float64, error) {
	if !plainDecimal.MatchString(s) {
		return 0, errDecimal
	}
	x, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return 0, errDecimal // out of range
	}
	return x, nil
}

// Duration is d without the zero units at the end: 24h, not 24h0m0s.
func Duration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
