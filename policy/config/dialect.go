// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/egressd/egressd/policy/config/strict"
	"github.com/egressd/egressd/policy/verdict"
)

// maxFieldWindow is the longest window of a dialect's counter: some quotas are
// per year.
const maxFieldWindow = 366 * 24 * time.Hour

// dialects reads the dialects that the file adds to the built-in ones, and
// notes them for the budgets that name one.
func (v value) dialects() []*verdict.Dialect {
	var dialects []*verdict.Dialect
	v.list("[{name: store, fields: [{header: x-my-left, says: remaining}]}]", "", func(v value) {
		name, d := v.dialect()
		if name == "" {
			return
		}
		if _, taken := v.r.dialects[name]; taken {
			v.Reject("the name %s is taken by a dialect above; choose another", name)
			return
		}
		v.r.dialects[name] = d // also nil: budgets that name it are not to blame
		dialects = append(dialects, d)
	})
	return dialects
}

// dialect reads one dialect, as far as it is in order. The name is empty if it
// is not, and the dialect nil if no field is.
func (v value) dialect() (name string, d *verdict.Dialect) {
	var fields *value
	ok := v.mapping(
		field{"name", func(v value) { name = v.dialectName() }},
		field{"fields", func(v value) { fields = &v }},
	)
	switch {
	case !ok:
	case !v.Has("name"):
		v.Reject("name is missing; give the dialect one, as in name: store")
	case !v.Has("fields"):
		v.Reject("fields are missing; write what they say, as in fields: [{header: x-my-left, says: remaining}]")
	}
	if fields != nil {
		d = fields.dialectFields(name)
	}
	return name, d
}

// dialectName reads a name that a dialect of a file may have.
func (v value) dialectName() string {
	s, ok := v.text("store")
	if !ok {
		return ""
	}
	// With a field that is in order, only the name can be wrong.
	if _, err := verdict.NewDialect(s, []verdict.FieldRule{{Header: "x", Says: verdict.SaysMark}}); err != nil {
		v.Reject("%v", err)
		return ""
	}
	return s
}

// dialectFields reads the fields of a dialect one after the other, so that
// each error is where its field is. Without a name, fields are only read.
func (v value) dialectFields(name string) *verdict.Dialect {
	var d *verdict.Dialect
	var rules []verdict.FieldRule
	v.list("[{header: x-my-left, says: remaining}]", "name at least one, as in {header: x-my-left, says: remaining}", func(v value) {
		rule, ok := v.fieldRule()
		if !ok || name == "" {
			return
		}
		more, err := verdict.NewDialect(name, append(slices.Clip(rules), rule))
		if err != nil {
			if inner := errors.Unwrap(err); inner != nil {
				err = inner // of the field alone: the place is told already
			}
			v.Reject("%v", err)
			return
		}
		d, rules = more, append(rules, rule)
	})
	return d
}

func (v value) fieldRule() (r verdict.FieldRule, ok bool) {
	before := len(v.r.Errs)
	ok = v.mapping(
		field{"header", func(v value) { r.Header, _ = v.text("x-my-left") }},
		field{"says", func(v value) { r.Says = parsed(v, "remaining", verdict.ParseSays) }},
		field{"unit", func(v value) { r.Unit = parsed(v, "seconds", verdict.ParseUnit) }},
		field{"group", func(v value) { r.Group, _ = v.name() }},
		field{"window", func(v value) { r.Window, _ = v.duration(time.Millisecond, maxFieldWindow) }},
		field{"to_full", func(v value) { r.ToFull, _ = v.boolean() }},
	)
	switch {
	case !ok:
	case !v.Has("header"):
		v.Reject("header is missing; write the name of the field, as in header: x-my-left")
	case !v.Has("says"):
		v.Reject("says is missing; write what the field tells, as in says: remaining")
	}
	return r, len(v.r.Errs) == before
}

// parsed reads a word that another package knows.
func parsed[T any](v value, example string, parse func(string) (T, error)) T {
	var none T
	s, ok := v.text(example)
	if !ok {
		return none
	}
	x, err := parse(s)
	if err != nil {
		v.Reject("%v", err)
		return none
	}
	return x
}

// headers reads which rate-limit fields of answers are believed: all that are
// known, none, or those of one dialect.
func (v value) headers() (off bool, d *verdict.Dialect) {
	s, ok := v.text("auto")
	switch {
	case !ok || s == "auto":
		return false, nil
	case s == "off":
		return true, nil
	}
	if d, ok := v.r.dialects[s]; ok {
		return false, d
	}
	if d := verdict.Builtin(s); d != nil {
		return false, d
	}
	known := []string{"auto", "off"}
	known = slices.AppendSeq(known, maps.Keys(v.r.dialects))
	slices.Sort(known[2:])
	known = append(known, verdict.BuiltinNames()...)
	v.Reject("%q is no dialect; %s", strict.Clip(s), suggest(s, known))
	return false, nil
}
