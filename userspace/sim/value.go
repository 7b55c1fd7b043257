// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/config/strict"
)

// document parses text as exactly one YAML document and returns its root.
func document(r *strict.Reader, text []byte) (value, bool) {
	root, second, broken := r.Decode(text)
	switch {
	case root.Tag() == "!!null":
		r.Add(1, "the file is empty; copy a built-in workload: egressd simulate --show articles/outage")
	case broken != nil:
		r.Add(broken.Line, broken.Msg)
	case second > 0:
		r.Add(second, "a second document begins here; a workload is one document: remove the line ---")
	default:
		return value{root, r}, true
	}
	return value{}, false
}

// value is one node of the file, beside the reader of it. Its readers record
// an error if the node is not what they read.
type value struct {
	strict.Value
	r *strict.Reader
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

// list reads the items of a list of at least one.
func (v value) list(example string, read func(value)) {
	if !v.IsList() || v.Len() == 0 {
		v.Reject("must be a list of at least one, as in %s", example)
		return
	}
	for item := range v.Items() {
		read(value{item, v.r})
	}
}

func (v value) text(example string) string {
	if !v.IsScalar() || v.Tag() != "!!str" || v.Raw() == "" {
		v.Reject("must be text, as in %s", example)
		return ""
	}
	return v.Raw()
}

// word reads one of several words.
func (v value) word(words ...string) string {
	if v.IsScalar() && slices.Contains(words, v.Raw()) {
		return v.Raw()
	}
	v.Reject("must be %s%s", strict.Series(words, "or"), v.ButIs())
	return ""
}

// integer reads a whole number from low to high; low if it is none.
func (v value) integer(low, high int) int {
	if v.IsScalar() && v.Tag() == "!!int" {
		if x, err := parseDecimal(v.Raw()); err == nil && x == float64(int(x)) && low <= int(x) && int(x) <= high {
			return int(x)
		}
	}
	v.Reject("must be a whole number from %d to %d%s", low, high, v.ButIs())
	return low
}

// number reads a number from low to high; low if it is none.
func (v value) number(low, high float64) float64 {
	if v.IsScalar() && v.Tag() != "!!str" {
		if x, err := parseDecimal(v.Raw()); err == nil && low <= x && x <= high {
			return x
		}
	}
	v.Reject("must be a number from %g to %g%s", low, high, v.ButIs())
	return low
}

// duration reads a duration from low to high, which is written with a unit;
// low if it is none.
func (v value) duration(low, high time.Duration) time.Duration {
	d, err := time.ParseDuration(v.Raw())
	if !v.IsScalar() || err != nil || strings.HasPrefix(v.Raw(), "+") {
		v.Reject("must be a duration with a unit, as in 250ms, 30s or 1h30m%s", v.ButIs())
		return low
	}
	if d < low || d > high {
		v.Reject("must be from %s to %s%s", strict.Duration(low), strict.Duration(high), v.ButIs())
		return low
	}
	return d
}

// seconds reads a duration of whole seconds, as Retry-After takes them.
func (v value) seconds(high time.Duration) time.Duration {
	d := v.duration(0, high)
	if d%time.Second != 0 {
		v.Reject("must be whole seconds, as Retry-After has no others%s", v.ButIs())
		return 0
	}
	return d
}

// dist reads a distribution whose samples are at most high.
func (v value) dist(high time.Duration) Dist {
	if !v.IsMapping() {
		return Dist{a: v.duration(0, high)}
	}
	if v.Len() != 1 {
		v.Reject("must be one of 20ms, {uniform: [10ms, 30ms]} and {exponential: 20ms}")
		return Dist{}
	}
	var d Dist
	v.mapping(
		field{"uniform", func(v value) {
			if !v.IsList() || v.Len() != 2 {
				v.Reject("must be two durations, as in [10ms, 30ms]")
				return
			}
			var ends []time.Duration
			v.list("[10ms, 30ms]", func(v value) { ends = append(ends, v.duration(0, high)) })
			if len(ends) != 2 {
				return
			}
			if ends[0] > ends[1] {
				v.Reject("the shorter one comes first, as in [10ms, 30ms]")
				return
			}
			d = Dist{kind: uniform, a: ends[0], b: ends[1]}
		}},
		field{"exponential", func(v value) { d = Dist{kind: exponential, a: v.duration(0, high)} }},
	)
	return d
}

// Bounds of a rate.
const (
	minInterval = time.Microsecond
	maxInterval = 24 * time.Hour
)

var rateUnits = map[string]time.Duration{"s": time.Second, "m": time.Minute, "min": time.Minute, "h": time.Hour, "d": 24 * time.Hour}

// rate reads a rate as policy files write it.
func (v value) rate() policy.Rate {
	count, per, _ := strings.Cut(v.Raw(), "/")
	n, err := parseDecimal(count)
	digits := len(per) - len(strings.TrimLeft(per, "0123456789"))
	unit, known := rateUnits[per[digits:]]
	times := 1
	if digits > 0 && err == nil {
		times, err = strconv.Atoi(per[:digits])
	}
	if !v.IsScalar() || err != nil || !known || n <= 0 || times < 1 || times > 1_000_000 {
		v.Reject("must be a rate, as in 1/s, 90/min, 10/30s or 5000/h%s", v.ButIs())
		return policy.Rate{}
	}
	every := time.Duration(times) * unit
	if interval := float64(every) / n; interval < float64(minInterval) || interval > float64(maxInterval) {
		v.Reject("must be from one in %s to one in %s%s", strict.Duration(maxInterval), strict.Duration(minInterval), v.ButIs())
		return policy.Rate{}
	}
	return policy.Rate{Count: n, Every: every}
}

// parseDecimal reads digits with at most one dot between them, of a length
// that somebody means.
func parseDecimal(s string) (float64, error) {
	if len(s) > 20 {
		return 0, strconv.ErrSyntax
	}
	return strict.ParseDecimal(s)
}
