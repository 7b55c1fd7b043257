// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// value is one node of the file, and the way to it for messages. Its readers
// record an error and report false if the node is not what they read.
type value struct {
	r    *reader
	node *yaml.Node
	path string // "budgets[1].rate"; "" at the root
}

// field is a key of a mapping, and what reads its value.
type field struct {
	key  string
	read func(value)
}

// reject records an error at the value's line.
func (v value) reject(format string, args ...any) {
	subject := "the policy "
	if v.path != "" {
		subject = v.path + ": "
	}
	v.r.add(v.node.Line, subject+fmt.Sprintf(format, args...))
}

// notYet rejects a feature of the policy language that is still to come. what
// names it if the key alone does not.
func (v value) notYet(what, remedy string) {
	if what != "" {
		what += " "
	}
	v.reject("%sis not supported yet by this version; %s", what, remedy)
}

// unsupported is the reader of a key that is still to come.
func unsupported(v value) { v.notYet("", "remove it") }

// sound rejects what no value may be, whatever its type.
func (v value) sound() bool {
	switch {
	case v.node.Kind == yaml.AliasNode, v.node.Anchor != "":
		v.reject("uses an anchor or an alias, which are not supported; write the value out")
	case v.node.Style&yaml.TaggedStyle != 0:
		v.reject("has the YAML tag %q; remove it", clip(v.node.Tag))
	case isNull(v.node):
		v.reject("has no value; give it one or remove the line")
	default:
		return true
	}
	return false
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// mapping reads the keys of a mapping, each at most once.
func (v value) mapping(fields ...field) bool {
	if v.node.Kind != yaml.MappingNode {
		v.reject("must be a mapping; the keys are %s", strings.Join(keys(fields), ", "))
		return false
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		key := v.node.Content[i]
		if key.Kind != yaml.ScalarNode || key.Anchor != "" {
			value{v.r, key, v.path}.reject("has a key that is no plain word; write it as in rate: 1/s")
			continue
		}
		at := value{v.r, key, join(v.path, key.Value)}
		if first, twice := seen[key.Value]; twice {
			at.reject("is given twice, first on line %d; remove one", first)
			continue
		}
		seen[key.Value] = key.Line
		f := find(fields, key.Value)
		if f == nil {
			at.reject("unknown key; %s", suggest(key.Value, keys(fields)))
			continue
		}
		child := value{v.r, v.node.Content[i+1], at.path}
		if isNull(child.node) {
			child.node.Line = key.Line // where the value is missing
		}
		if child.sound() {
			f.read(child)
		}
	}
	return true
}

// at is the value of a key of a mapping, good or not; of a key given twice,
// the first.
func (v value) at(key string) (value, bool) {
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		if v.node.Content[i].Value == key {
			return value{v.r, v.node.Content[i+1], join(v.path, key)}, true
		}
	}
	return value{}, false
}

// has reports whether a mapping has the key.
func (v value) has(key string) bool {
	_, ok := v.at(key)
	return ok
}

// list reads the items of a list of at least one.
func (v value) list(example, empty string, read func(value)) bool {
	if v.node.Kind != yaml.SequenceNode {
		v.reject("must be a list, as in %s", example)
		return false
	}
	if len(v.node.Content) == 0 && empty != "" {
		v.reject("is an empty list; %s", empty)
		return false
	}
	for i, n := range v.node.Content {
		item := value{v.r, n, fmt.Sprintf("%s[%d]", v.path, i)}
		if item.sound() {
			read(item)
		}
	}
	return true
}

// once records an error if key was in seen already, and puts it there.
func once[K comparable](v value, seen map[K]bool, key K) bool {
	if seen[key] {
		v.reject("%v is listed twice; remove one", key)
		return false
	}
	seen[key] = true
	return true
}

func (v value) text(example string) (string, bool) {
	if v.node.Kind != yaml.ScalarNode {
		v.reject("must be text, as in %s", example)
		return "", false
	}
	if tag := v.node.ShortTag(); tag != "!!str" {
		v.reject("must be text, not %s; put it in quotes, as in %q", tagName(tag), clip(v.node.Value))
		return "", false
	}
	return v.node.Value, true
}

// scalar reads any single value as it is written; want says what it stands
// for.
func (v value) scalar(want string) (string, bool) {
	if v.node.Kind != yaml.ScalarNode {
		v.reject("must be %s", want)
		return "", false
	}
	return v.node.Value, true
}

// word reads one of several words.
func (v value) word(words ...string) (string, bool) {
	s := v.node.Value
	if v.node.Kind == yaml.ScalarNode {
		for _, w := range words {
			if s == w {
				return s, true
			}
		}
	}
	v.reject("must be %s%s", series(words, "or"), v.butIs())
	return "", false
}

// butIs is the end of a message that says what was found.
func (v value) butIs() string {
	if v.node.Kind != yaml.ScalarNode {
		return ""
	}
	if _, err := parseDecimal(v.node.Value); err == nil && v.node.ShortTag() == "!!str" {
		return ", not text; remove the quotes"
	}
	return fmt.Sprintf(", not %q", clip(v.node.Value))
}

// number reads a plain decimal number; want says which.
func (v value) number(want string, ok func(float64) bool) (float64, bool) {
	if v.node.Kind == yaml.ScalarNode && v.node.ShortTag() != "!!str" {
		if x, err := parseDecimal(v.node.Value); err == nil && ok(x) {
			return x, true
		}
	}
	v.reject("must be %s%s", want, v.butIs())
	return 0, false
}

// integer reads a whole number from low to high.
func (v value) integer(low, high int) (int, bool) {
	if v.node.Kind == yaml.ScalarNode && v.node.ShortTag() == "!!int" && isDigits(v.node.Value) && !leadingZero(v.node.Value) {
		if x, err := strconv.Atoi(v.node.Value); err == nil && low <= x && x <= high {
			return x, true
		}
	}
	v.reject("must be a whole number from %d to %d%s", low, high, v.butIs())
	return 0, false
}

// boolean reads true or false. What else YAML 1.1 takes for them, as yes and
// on, is a slip.
func (v value) boolean() (is, ok bool) {
	if s := v.node.Value; v.node.Kind == yaml.ScalarNode && (s == "true" || s == "false") {
		if v.node.ShortTag() == "!!bool" {
			return s == "true", true
		}
		v.reject("must be true or false, not text; remove the quotes")
		return false, false
	}
	v.reject("must be true or false%s", v.butIs())
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
		v.reject("%v", err)
	}
	return d, err == nil
}

// parseDuration reads "30s". Its errors are the end of a message.
func parseDuration(s string, low, high time.Duration) (time.Duration, error) {
	if _, err := parseDecimal(s); err == nil {
		return 0, fmt.Errorf("has no unit; write %q, or another of ms, m and h", clip(s)+"s")
	}
	d, err := time.ParseDuration(s)
	switch {
	case err != nil || strings.HasPrefix(s, "+"):
		return 0, fmt.Errorf("%q is no duration; write it as 30s, 5m, 1h30m or 250ms", clip(s))
	case d < low || d > high:
		return 0, fmt.Errorf("must be from %s to %s, not %s", shortDuration(low), shortDuration(high), clip(s))
	}
	return d, nil
}

// shortDuration is d without the zero units at the end: 24h, not 24h0m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
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
	return "of type " + clip(tag)
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

func find(fields []field, key string) *field {
	for i := range fields {
		if fields[i].key == key {
			return &fields[i]
		}
	}
	return nil
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
	return "known here are " + strings.Join(known, ", ")
}

func keys(fields []field) []string {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.key
	}
	return names
}

// series is words in a sentence: "a, b or c".
func series(words []string, conjunction string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " " + conjunction + " " + words[last]
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
