// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/config"
)

// reader collects the errors of one workload file.
type reader struct {
	file string
	errs config.Errors
}

func (r *reader) add(line int, format string, args ...any) {
	r.errs = append(r.errs, config.Error{File: r.file, Line: max(line, 1), Msg: fmt.Sprintf(format, args...)})
}

// err is nil or all errors in the order of their lines.
func (r *reader) err() error {
	if len(r.errs) == 0 {
		return nil
	}
	slices.SortStableFunc(r.errs, func(a, b config.Error) int { return cmp.Compare(a.Line, b.Line) })
	return r.errs
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// document parses text as exactly one YAML document and returns its root.
func (r *reader) document(text []byte) (value, bool) {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var doc, second yaml.Node
	err := dec.Decode(&doc)
	if err == nil && len(doc.Content) == 1 && doc.Content[0].ShortTag() != "!!null" {
		if err = dec.Decode(&second); errors.Is(err, io.EOF) {
			return value{r: r, node: doc.Content[0]}, true
		}
		if err == nil {
			r.add(second.Line, "a second document begins here; a workload is one document: remove the line ---")
			return value{}, false
		}
	}
	if err == nil || errors.Is(err, io.EOF) {
		r.add(1, "the file is empty; copy a built-in workload: egressd simulate --show articles/outage")
		return value{}, false
	}
	msg, line := err.Error(), 1
	if found := yamlLine.FindStringSubmatch(msg); found != nil {
		msg = msg[len(found[0]):]
		if n, err := strconv.Atoi(found[1]); err == nil {
			line = n
		}
	}
	r.add(line, "not valid YAML: %s", strings.Join(strings.Fields(msg), " "))
	return value{}, false
}

// value is one node of the file, and the way to it for messages. Its readers
// record an error and report false if the node is not what they read.
type value struct {
	r    *reader
	node *yaml.Node
	path string // "origin.limit"; "" at the root
}

// field is a key of a mapping, and what reads its value.
type field struct {
	key  string
	read func(value)
}

func (v value) reject(format string, args ...any) {
	subject := "the workload "
	if v.path != "" {
		subject = v.path + ": "
	}
	v.r.add(v.node.Line, "%s%s", subject, fmt.Sprintf(format, args...))
}

// sound rejects what no value may be, whatever its type.
func (v value) sound() bool {
	switch {
	case v.node.Kind == yaml.AliasNode, v.node.Anchor != "":
		v.reject("uses an anchor or an alias, which are not supported; write the value out")
	case v.node.Style&yaml.TaggedStyle != 0:
		v.reject("has the YAML tag %q; remove it", clip(v.node.Tag))
	case v.node.Kind == yaml.ScalarNode && v.node.ShortTag() == "!!null":
		v.reject("has no value; give it one or remove the line")
	default:
		return true
	}
	return false
}

// mapping reads the keys of a mapping, each at most once.
func (v value) mapping(fields ...field) bool {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.key
	}
	known := strings.Join(names, ", ")
	if v.node.Kind != yaml.MappingNode {
		v.reject("must be a mapping; the keys are %s", known)
		return false
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		key := v.node.Content[i]
		if key.Kind != yaml.ScalarNode || key.Anchor != "" {
			value{v.r, key, v.path}.reject("has a key that is no plain word; the keys are %s", known)
			continue
		}
		at := value{v.r, key, join(v.path, key.Value)}
		if first, twice := seen[key.Value]; twice {
			at.reject("is given twice, first on line %d; remove one", first)
			continue
		}
		seen[key.Value] = key.Line
		f := slices.IndexFunc(fields, func(f field) bool { return f.key == key.Value })
		if f < 0 {
			at.reject("unknown key; known here are %s", known)
			continue
		}
		child := value{v.r, v.node.Content[i+1], at.path}
		if child.node.ShortTag() == "!!null" {
			child.node.Line = key.Line // where the value is missing
		}
		if child.sound() {
			fields[f].read(child)
		}
	}
	return true
}

// has reports whether a mapping has the key, with or without a good value.
func (v value) has(key string) bool {
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		if v.node.Content[i].Value == key {
			return true
		}
	}
	return false
}

// list reads the items of a list of at least one.
func (v value) list(example string, read func(value)) {
	if v.node.Kind != yaml.SequenceNode || len(v.node.Content) == 0 {
		v.reject("must be a list of at least one, as in %s", example)
		return
	}
	for i, n := range v.node.Content {
		if item := (value{v.r, n, fmt.Sprintf("%s[%d]", v.path, i)}); item.sound() {
			read(item)
		}
	}
}

func (v value) text(example string) string {
	if v.node.Kind != yaml.ScalarNode || v.node.ShortTag() != "!!str" || v.node.Value == "" {
		v.reject("must be text, as in %s", example)
		return ""
	}
	return v.node.Value
}

// word reads one of several words.
func (v value) word(words ...string) string {
	if v.node.Kind == yaml.ScalarNode && slices.Contains(words, v.node.Value) {
		return v.node.Value
	}
	v.reject("must be %s%s", alternatives(words), v.butIs())
	return ""
}

func alternatives(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// butIs is the end of a message that says what was found.
func (v value) butIs() string {
	if v.node.Kind != yaml.ScalarNode {
		return ""
	}
	return fmt.Sprintf(", not %q", clip(v.node.Value))
}

// integer reads a whole number from low to high; low if it is none.
func (v value) integer(low, high int) int {
	if v.node.Kind == yaml.ScalarNode && v.node.ShortTag() == "!!int" {
		if x, err := parseDecimal(v.node.Value); err == nil && x == float64(int(x)) && low <= int(x) && int(x) <= high {
			return int(x)
		}
	}
	v.reject("must be a whole number from %d to %d%s", low, high, v.butIs())
	return low
}

// number reads a number from low to high; low if it is none.
func (v value) number(low, high float64) float64 {
	if v.node.Kind == yaml.ScalarNode && v.node.ShortTag() != "!!str" {
		if x, err := parseDecimal(v.node.Value); err == nil && low <= x && x <= high {
			return x
		}
	}
	v.reject("must be a number from %g to %g%s", low, high, v.butIs())
	return low
}

// duration reads a duration from low to high, which is written with a unit;
// low if it is none.
func (v value) duration(low, high time.Duration) time.Duration {
	d, err := time.ParseDuration(v.node.Value)
	if v.node.Kind != yaml.ScalarNode || err != nil || strings.HasPrefix(v.node.Value, "+") {
		v.reject("must be a duration with a unit, as in 250ms, 30s or 1h30m%s", v.butIs())
		return low
	}
	if d < low || d > high {
		v.reject("must be from %s to %s%s", spell(low), spell(high), v.butIs())
		return low
	}
	return d
}

// seconds reads a duration of whole seconds, as Retry-After takes them.
func (v value) seconds(high time.Duration) time.Duration {
	d := v.duration(0, high)
	if d%time.Second != 0 {
		v.reject("must be whole seconds, as Retry-After has no others%s", v.butIs())
		return 0
	}
	return d
}

// dist reads a distribution whose samples are at most high.
func (v value) dist(high time.Duration) Dist {
	if v.node.Kind != yaml.MappingNode {
		return Dist{a: v.duration(0, high)}
	}
	if len(v.node.Content) != 2 {
		v.reject("must be one of 20ms, {uniform: [10ms, 30ms]} and {exponential: 20ms}")
		return Dist{}
	}
	var d Dist
	v.mapping(
		field{"uniform", func(v value) {
			if v.node.Kind != yaml.SequenceNode || len(v.node.Content) != 2 {
				v.reject("must be two durations, as in [10ms, 30ms]")
				return
			}
			var ends []time.Duration
			v.list("[10ms, 30ms]", func(v value) { ends = append(ends, v.duration(0, high)) })
			if len(ends) != 2 {
				return
			}
			if ends[0] > ends[1] {
				v.reject("the shorter one comes first, as in [10ms, 30ms]")
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
	count, per, _ := strings.Cut(v.node.Value, "/")
	n, err := parseDecimal(count)
	digits := len(per) - len(strings.TrimLeft(per, "0123456789"))
	unit, known := rateUnits[per[digits:]]
	times := 1
	if digits > 0 && err == nil {
		times, err = strconv.Atoi(per[:digits])
	}
	if v.node.Kind != yaml.ScalarNode || err != nil || !known || n <= 0 || times < 1 || times > 1_000_000 {
		v.reject("must be a rate, as in 1/s, 90/min, 10/30s or 5000/h%s", v.butIs())
		return policy.Rate{}
	}
	every := time.Duration(times) * unit
	if interval := float64(every) / n; interval < float64(minInterval) || interval > float64(maxInterval) {
		v.reject("must be from one in %s to one in %s%s", spell(maxInterval), spell(minInterval), v.butIs())
		return policy.Rate{}
	}
	return policy.Rate{Count: n, Every: every}
}

var plainDecimal = regexp.MustCompile(`^(0|[1-9][0-9]*)(\.[0-9]+)?$`)

// parseDecimal reads digits with at most one dot between them.
func parseDecimal(s string) (float64, error) {
	if len(s) > 20 || !plainDecimal.MatchString(s) {
		return 0, strconv.ErrSyntax
	}
	return strconv.ParseFloat(s, 64)
}

var plainKey = regexp.MustCompile(`^[A-Za-z0-9_-]{1,40}$`)

// join appends a key to a path, quoted if it is no plain word.
func join(path, key string) string {
	if !plainKey.MatchString(key) {
		key = strconv.Quote(clip(key))
	}
	if path == "" {
		return key
	}
	return path + "." + key
}

// clip shortens foreign text in messages.
func clip(s string) string {
	const most = 60
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}
