// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Dialect is how one vendor writes its limits into the fields of an answer.
// Every dialect has the Retry-After family besides. Immutable; safe for
// concurrent use.
type Dialect struct {
	Name string

	index index
	// Of built-in ones: the counters that they speak of, and their fields by
	// place in auto.
	counters uint64
	fields   fieldSet
}

// Bounds of a dialect of a policy file.
const (
	maxFields = 64
	maxGroups = 8
	maxName   = 64
)

// requestsGroup is how groups begin that count requests.
const requestsGroup = "requests"

// NewDialect makes a dialect of a policy file. An error names the field and
// says what to write instead.
func NewDialect(name string, fields []FieldRule) (*Dialect, error) {
	switch {
	case name == "auto", name == "off":
		return nil, fmt.Errorf("a dialect cannot be named %q; choose another name", name)
	case len(name) > maxName || !validName(name, isNameByte):
		return nil, fmt.Errorf("dialect name %q: write up to %d lower-case letters, digits and dashes", clip(name), maxName)
	case Builtin(name) != nil:
		return nil, fmt.Errorf("dialect %q is built in; choose another name", name)
	case len(fields) == 0:
		return nil, fmt.Errorf("dialect %q has no fields; name at least one", name)
	case len(fields) > maxFields:
		return nil, fmt.Errorf("dialect %q has %d fields; %d are possible", name, len(fields), maxFields)
	}
	d := &Dialect{Name: name}
	var groups []string
	for _, r := range fields {
		r.Header = lowerASCII(r.Header)
		if err := r.check(); err != nil {
			return nil, fmt.Errorf("dialect %q, field %q: %w", name, clip(r.Header), err)
		}
		if d.has(r.Header) {
			return nil, fmt.Errorf("dialect %q: field %q is there twice; remove one", name, clip(r.Header))
		}
		group := slices.Index(groups, r.group())
		if group < 0 {
			group = len(groups)
			groups = append(groups, r.group())
		}
		d.index.add(r.compile(int32(group)))
	}
	if len(groups) > maxGroups {
		return nil, fmt.Errorf("dialect %q has %d groups; %d are possible", name, len(groups), maxGroups)
	}
	d.index.addCommon()
	return d, nil
}

func (d *Dialect) has(header string) bool {
	name := strings.TrimSuffix(header, "*")
	return slices.ContainsFunc(d.index.fields, func(f field) bool { return f.name == name })
}

// check reports what is wrong with a rule. Its header is in lower case.
func (r FieldRule) check() error {
	name := strings.TrimSuffix(r.Header, "*")
	switch {
	case len(name) > maxName || !validName(name, isTokenByte):
		return fmt.Errorf("write the name of a response field, of up to %d characters", maxName)
	case isCommon(name) && r.Says != SaysRetryAfter:
		return errors.New("means the same in every dialect; leave it out")
	case r.Says < SaysLimit || r.Says > SaysMark:
		return errors.New("says nothing; name what it says")
	case int(r.Unit) >= len(unitWords):
		return errors.New("has an unknown unit")
	case r.Unit != UnitAuto && !r.Says.tellsTime():
		return fmt.Errorf("%s is no time; leave the unit out", r.Says)
	case r.Unit.instant() && (r.Says == SaysWindow || r.Says == SaysInterval || r.Says == SaysResetAfter):
		return fmt.Errorf("%s is a length of time, so it cannot be written as %s; use seconds, ms or duration", r.Says, r.Unit)
	case len(r.Group) > maxName:
		return fmt.Errorf("the group's name is too long; %d characters are possible", maxName)
	case r.Window < 0 || r.Window > longest:
		return errors.New("the window is out of range; write a length such as 1m or 24h")
	}
	return nil
}

func (r FieldRule) group() string {
	if r.Group == "" {
		return requestsGroup
	}
	return r.Group
}

func (r FieldRule) compile(counter int32) field {
	return field{
		name: r.Header,
		rule: rule{
			says: r.Says, unit: r.Unit, window: int64(r.Window), toFull: r.ToFull,
			other: !strings.HasPrefix(r.group(), requestsGroup),
		},
		counter: counter,
		alone:   isCommon(strings.TrimSuffix(r.Header, "*")),
	}
}

// lowerASCII folds ASCII alone: letters of other scripts make no field name,
// not even those whose lower case is in ASCII.
func lowerASCII(s string) string {
	b := []byte(s)
	for i := range b {
		b[i] = lower(b[i])
	}
	return string(b)
}

// validName reports whether name is not empty and all of it is in order.
func validName(name string, inOrder func(c byte) bool) bool {
	for i := range len(name) {
		if !inOrder(name[i]) {
			return false
		}
	}
	return name != ""
}

func isNameByte(c byte) bool { return 'a' <= c && c <= 'z' || isDigit(c) || c == '-' }

// isTokenByte is tchar of RFC 9110 section 5.6.2 without upper case and *.
func isTokenByte(c byte) bool {
	return isNameByte(c) || strings.IndexByte("!#$%&'+.^_`|~", c) >= 0
}

// common are the fields that mean the same in every dialect.
var common = []FieldRule{
	{Header: "age", Says: saysAge},
	{Header: "date", Says: saysDate},
	{Header: "retry-after", Says: SaysRetryAfter},
	{Header: "retry-after-ms", Says: SaysRetryAfter, Unit: UnitMilli},      // OpenAI, Azure App Configuration
	{Header: "x-ms-retry-after-ms", Says: SaysRetryAfter, Unit: UnitMilli}, // Azure Cosmos DB
	{Header: "cf-mitigated", Says: saysMitigated},                          // Cloudflare
	// By these a provider of exits says that an answer is its own (Bright
	// Data; the second name is of its former one).
	{Header: "x-brd-error", Says: saysExitError},
	{Header: "x-brd-error-code", Says: saysExitError},
	{Header: "x-brd-err-code", Says: saysExitError},
	{Header: "x-luminati-error", Says: saysExitError},
	{Header: "x-luminati-error-code", Says: saysExitError},
}

func isCommon(name string) bool {
	return slices.ContainsFunc(common, func(r FieldRule) bool { return r.Header == name })
}

func (x *index) addCommon() {
	for _, r := range common {
		f := r.compile(0)
		f.alone = true
		x.add(f)
	}
}

// firstBuiltin is the number of the first built-in counter; those of a policy
// file's dialects come before.
const firstBuiltin = 1 << 30

// fieldSet is a set of places in auto.
type fieldSet [2]uint64

func (s *fieldSet) add(place int) { s[place>>6] |= 1 << (place & 63) }

// What the built-in table makes.
var (
	off  = newOff()
	auto index // every field of every built-in dialect; of two rules for one name the first
	// builtins are in the order of the table.
	builtins = compileTable(&auto)
)

// newOff is the index that knows the Retry-After family alone.
func newOff() *index {
	x := &index{}
	x.addCommon()
	return x
}

func compileTable(all *index) []*Dialect {
	var out []*Dialect
	var counters []string
	number := func(r FieldRule) int32 {
		n := slices.Index(counters, r.counter)
		if n < 0 {
			n = len(counters)
			counters = append(counters, r.counter)
		}
		return int32(n)
	}
	all.addCommon()
	for _, entry := range table {
		d := &Dialect{Name: entry.name}
		for _, r := range entry.fields {
			if r.counter == "" {
				r.counter = entry.name + "/" + r.group()
			}
			n := number(r)
			d.counters |= 1 << n
			f := r.compile(firstBuiltin + n)
			d.index.add(f)
			if !f.alone {
				d.fields.add(all.add(f))
			}
		}
		d.index.addCommon()
		out = append(out, d)
	}
	return out
}

// Builtin is the built-in dialect of that name; nil if there is none.
func Builtin(name string) *Dialect {
	for _, d := range builtins {
		if d.Name == name {
			return d
		}
	}
	return nil
}

// BuiltinNames are the names of the built-in dialects, sorted.
func BuiltinNames() []string {
	var names []string
	for _, d := range builtins {
		names = append(names, d.Name)
	}
	slices.Sort(names)
	return names
}

// longest bounds what is reported, so that no sum overflows: 100 years.
const longest = 100 * 365 * 24 * time.Hour
