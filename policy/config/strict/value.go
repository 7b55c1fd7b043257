// SPDX-License-Identifier: Apache-2.0

package strict

import (
	"fmt"
	"iter"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Value is one node of the file, and the way to it for messages. The zero
// Value is none.
type Value struct {
	r    *Reader
	node *yaml.Node
	path string // "budgets[1].rate"; "" at the root
}

// Field is a key of a mapping, and what reads its value.
type Field struct {
	Key  string
	Read func(Value)
}

// Line is where the value begins, from 1.
func (v Value) Line() int { return v.node.Line }

// Path is the way to the value, as in budgets[1].rate; empty at the root.
func (v Value) Path() string { return v.path }

// Raw is a scalar as it is written, without its quotes; empty for a mapping or
// a list.
func (v Value) Raw() string { return v.node.Value }

// Tag is the type that YAML takes the value for, as in !!int; empty for the
// zero Value.
func (v Value) Tag() string {
	if v.node == nil {
		return ""
	}
	return v.node.ShortTag()
}

// IsNull reports whether the value is left out or null.
func (v Value) IsNull() bool { return v.node != nil && isNull(v.node) }

// IsScalar reports whether the value is a single one.
func (v Value) IsScalar() bool { return v.node.Kind == yaml.ScalarNode }

// IsMapping reports whether the value is a mapping.
func (v Value) IsMapping() bool { return v.node.Kind == yaml.MappingNode }

// IsList reports whether the value is a list.
func (v Value) IsList() bool { return v.node.Kind == yaml.SequenceNode }

// IsFlow reports whether a mapping or a list is written in brackets, instead
// of on lines of its own.
func (v Value) IsFlow() bool { return v.node.Style&yaml.FlowStyle != 0 }

// Len is the number of items of a list, or of keys of a mapping.
func (v Value) Len() int {
	if v.IsMapping() {
		return len(v.node.Content) / 2
	}
	return len(v.node.Content)
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// Reject records an error at the value's line.
func (v Value) Reject(format string, args ...any) {
	subject := "the " + v.r.Noun + " "
	if v.path != "" {
		subject = v.path + ": "
	}
	v.r.Add(v.node.Line, subject+fmt.Sprintf(format, args...))
}

// ButIs is the end of a message that says what was found.
func (v Value) ButIs() string {
	if !v.IsScalar() {
		return ""
	}
	return fmt.Sprintf(", not %q", Clip(v.node.Value))
}

// Sound rejects what no value may be, whatever its type. Mapping and Items
// pass on sound values alone; the root is for the caller to ask.
func (v Value) Sound() bool {
	switch {
	case v.node.Kind == yaml.AliasNode, v.node.Anchor != "":
		v.Reject("uses an anchor or an alias, which are not supported; write the value out")
	case v.node.Style&yaml.TaggedStyle != 0:
		v.Reject("has the YAML tag %q; remove it", Clip(v.node.Tag))
	case isNull(v.node):
		v.Reject("has no value; give it one or remove the line")
	default:
		return true
	}
	return false
}

// Mapping reads the keys of a mapping, each at most once, in the order of the
// file. It rejects anything else, and reports whether the value is a mapping.
func (v Value) Mapping(fields ...Field) bool {
	known := make([]string, len(fields))
	for i, f := range fields {
		known[i] = f.Key
	}
	if !v.IsMapping() {
		v.Reject("must be a mapping; the keys are %s", strings.Join(known, ", "))
		return false
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		key := v.node.Content[i]
		if key.Kind != yaml.ScalarNode || key.Anchor != "" {
			Value{v.r, key, v.path}.Reject("has a key that is no plain word; %s", v.r.howKeys(known))
			continue
		}
		at := Value{v.r, key, join(v.path, key.Value)}
		if first, twice := seen[key.Value]; twice {
			at.Reject("is given twice, first on line %d; remove one", first)
			continue
		}
		seen[key.Value] = key.Line
		f := slices.Index(known, key.Value)
		if f < 0 {
			at.Reject("unknown key; %s", v.r.unknown(key.Value, known))
			continue
		}
		child := Value{v.r, v.node.Content[i+1], at.path}
		if isNull(child.node) {
			child.node.Line = key.Line // where the value is missing
		}
		if child.Sound() {
			fields[f].Read(child)
		}
	}
	return true
}

func (r *Reader) howKeys(known []string) string {
	if r.Key == "" {
		return "the keys are " + strings.Join(known, ", ")
	}
	return "write it as in " + r.Key
}

func (r *Reader) unknown(key string, known []string) string {
	if r.Unknown == nil {
		return Known(known)
	}
	return r.Unknown(key, known)
}

// At is the value of a key of a mapping, sound or not; of a key given twice,
// the first.
func (v Value) At(key string) (Value, bool) {
	for i := 0; i+1 < len(v.node.Content); i += 2 {
		if v.node.Content[i].Value == key {
			return Value{v.r, v.node.Content[i+1], join(v.path, key)}, true
		}
	}
	return Value{}, false
}

// Has reports whether a mapping has the key, with or without a sound value.
func (v Value) Has(key string) bool {
	_, ok := v.At(key)
	return ok
}

// Items are the sound items of a list; the others are rejected on the way.
func (v Value) Items() iter.Seq[Value] {
	return func(yield func(Value) bool) {
		for i, n := range v.node.Content {
			item := Value{v.r, n, fmt.Sprintf("%s[%d]", v.path, i)}
			if item.Sound() && !yield(item) {
				return
			}
		}
	}
}
