// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/policy/config/strict"
)

// value is one node of the file, beside the reader that knows of the others.
// Its readers record an error and report false if the node is not what they
// read.
type value struct {
	strict.Value
	r *reader
}

// field is a key of a mapping, and what reads its value.
type field struct {
	key  string
	read func(value)
}

// mapping reads the keys of a mapping, each at most once.
func (v value) mapping(fields ...field) bool {
	all := make([]strict.Field, len(fields))
	for i, f := range fields {
		all[i] = strict.Field{Key: f.key, Read: func(child strict.Value) { f.read(value{child, v.r}) }}
	}
	return v.Mapping(all...)
}

// at is the value of a key of a mapping, good or not; of a key given twice,
// the first.
func (v value) at(key string) (value, bool) {
	child, ok := v.At(key)
	return value{child, v.r}, ok
}

// list reads the items of a list of at least one.
func (v value) list(example, empty string, read func(value)) bool {
	if !v.IsList() {
		v.Reject("must be a list, as in %s", example)
		return false
	}
	if v.Len() == 0 && empty != "" {
		v.Reject("is an empty list; %s", empty)
		return false
	}
	for item := range v.Items() {
		read(value{item, v.r})
	}
	return true
}

// once records an error if key was in seen already, and puts it there.
func once[K comparable](v value, seen map[K]bool, key K) bool {
	if seen[key] {
		v.Reject("%v is listed twice; remove one", key)
		return false
	}
	seen[key] = true
	return true
}

func (v value) text(example string) (string, bool) {
	if !v.IsScalar() {
		v.Reject("must be text, as in %s", example)
		return "", false
	}
	if tag := v.Tag(); tag != "!!str" {
		v.Reject("must be text, not %s; put it in quotes, as in %q", tagName(tag), strict.Clip(v.Raw()))
		return "", false
	}
	return v.Raw(), true
}

// scalar reads any single value as it is written; want says what it stands
// for.
func (v value) scalar(want string) (string, bool) {
	if !v.IsScalar() {
		v.Reject("must be %s", want)
		return "", false
	}
	return v.Raw(), true
}

// word reads one of several words.
func (v value) word(words ...string) (string, bool) {
	s := v.Raw()
	if v.IsScalar() {
		for _, w := range words {
			if s == w {
				return s, true
			}
		}
	}
	v.Reject("must be %s%s", strict.Series(words, "or"), v.butIs())
	return "", false
}

// butIs is the end of a message that says what was found.
func (v value) butIs() string {
	if _, err := strict.ParseDecimal(v.Raw()); err == nil && v.Tag() == "!!str" {
		return ", not text; remove the quotes"
	}
	return v.ButIs()
}

// number reads a plain decimal number; want says which.
func (v value) number(want string, ok func(float64) bool) (float64, bool) {
	if v.IsScalar() && v.Tag() != "!!str" {
		if x, err := strict.ParseDecimal(v.Raw()); err == nil && ok(x) {
			return x, true
		}
	}
	v.Reject("must be %s%s", want, v.butIs())
	return 0, false
}

// integer reads a whole number from low to high.
func (v value) integer(low, high int) (int, bool) {
	if v.IsScalar() && v.Tag() == "!!int" && isDigits(v.Raw()) && !leadingZero(v.Raw()) {
		if x, err := strconv.Atoi(v.Raw()); err == nil && low <= x && x <= high {
			return x, true
		}
	}
	v.Reject("must be a whole number from %d to %d%s", low, high, v.butIs())
	return 0, false
}

// boolean reads true or false. What else YAML 1.1 takes for them, as yes and
// on, is a slip.
func (v value) boolean() (is, ok bool) {
	if s := v.Raw(); v.IsScalar() && (s == "true" || s == "false") {
		if v.Tag() == "!!bool" {
			return s == "true", true
		}
		v.Reject("must be true or false, not text; remove the quotes")
		return false, false
	}
	v.Reject("must be true or false%s", v.butIs())
	return false, false
}

// duration reads a duration from low to high, which is written with a unit.
func (v value) duration(low, high time.Duration) (time.Duration, bool) {
	s, ok := v.scalar("a duration, as in 30s")
	if !ok {
		return 0, false
	}
	d, err := parseDuration(s, low, high)
	if err != nil {
		v.Reject("%v", err)
	}
	return d, err == nil
}

// parseDuration reads "30s". Its errors are the end of a message.
func parseDuration(s string, low, high time.Duration) (time.Duration, error) {
	if _, err := strict.ParseDecimal(s); err == nil {
		return 0, fmt.Errorf("has no unit; write %q, or another of ms, m and h", strict.Clip(s)+"s")
	}
	d, err := time.ParseDuration(s)
	switch {
	case err != nil || strings.HasPrefix(s, "+"):
		return 0, fmt.Errorf("%q is no duration; write it as 30s, 5m, 1h30m or 250ms", strict.Clip(s))
	case d < low || d > high:
		return 0, fmt.Errorf("must be from %s to %s, not %s", strict.Duration(low), strict.Duration(high), strict.Clip(s))
	}
	return d, nil
}

func tagName(tag string) string {
	switch tag {
	case "!!int", "!!float":
		return "a number"
	case "!!bool":
		return "true or false"
	case "!!timestamp":
		return "a date"
	}
	return "of type " + strict.Clip(tag)
}

// suggest helps with an unknown word: the one that was probably meant, or all.
func suggest(word string, known []string) string {
	best, distance := "", 3
	if len(word) < 5 {
		distance = 2 // among short words, two letters make every other one
	}
	for _, k := range known {
		if d := editDistance(word, k, distance); d < distance {
			best, distance = k, d
		}
	}
	if best != "" {
		return fmt.Sprintf("did you mean %s?", best)
	}
	return strict.Known(known)
}

// editDistance is the number of letters to insert, delete or replace to make
// b of a; limit if it is at least that.
func editDistance(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return min(row[len(b)], limit)
}
