// SPDX-License-Identifier: Apache-2.0

package exitid

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Pattern finds the session in user names. It is immutable and safe for
// concurrent use.
type Pattern struct {
	finders []finder
}

// finder is one expression and what its groups are, by their index.
type finder struct {
	expr    *regexp.Regexp
	literal string // is in every user name that expr matches
	groups  []group
}

// group is what a group of an expression tells.
type group uint8

const (
	unnamed group = iota
	aSession
	aMinutes
	aSeconds
	aLifetime
)

var groupNames = map[string]group{
	"": unnamed, "session": aSession, "minutes": aMinutes, "seconds": aSeconds, "lifetime": aLifetime,
}

// Compile makes a Pattern of the name of a built-in one (Names), or of a
// regular expression of package regexp with these named groups:
//
//   - session, which is required: the session
//   - minutes, seconds, lifetime: how long the session keeps its address, as a
//     number of minutes, of seconds, or with its unit as in 90s, 10m, 2h, 7d;
//     several are added up
//
// Groups of other names are mistaken ones, and an error. A name may be given to
// several groups, for alternatives: the first that is not empty counts. An
// expression matches anywhere in the user name, as regular expressions do, the
// first match from the left: where that is too much, it says ^ and $ itself.
func Compile(expr string) (*Pattern, error) {
	if expr == autoName {
		p := &Pattern{}
		for _, b := range builtins {
			if b.auto {
				p.finders = append(p.finders, newFinder(regexp.MustCompile(b.expr), b.literal))
			}
		}
		return p, nil
	}
	for _, b := range builtins {
		if b.name == expr {
			return &Pattern{[]finder{newFinder(regexp.MustCompile(b.expr), b.literal)}}, nil
		}
	}
	re, err := regexp.Compile(expr)
	if err != nil {
		return nil, err // names the place, and is of one line
	}
	for _, name := range re.SubexpNames() {
		if _, ok := groupNames[name]; !ok {
			return nil, fmt.Errorf("unknown group %q; known are session, minutes, seconds and lifetime", name)
		}
	}
	f := newFinder(re, "")
	if !slices.Contains(f.groups, aSession) {
		if word(expr) {
			return nil, fmt.Errorf("%q is no built-in pattern; known are %s", expr, strings.Join(Names(), ", "))
		}
		return nil, fmt.Errorf("%q has no group (?P<session>…); add it, or name a built-in pattern: %s", expr, strings.Join(Names(), ", "))
	}
	return &Pattern{[]finder{f}}, nil
}

// word reports whether s looks like the name of a pattern.
func word(s string) bool {
	return strings.TrimLeft(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == ""
}

func newFinder(re *regexp.Regexp, literal string) finder {
	f := finder{expr: re, literal: literal}
	for _, name := range re.SubexpNames() {
		f.groups = append(f.groups, groupNames[name])
	}
	return f
}

// Find tells the exit that a user name means. ok is false if it names no
// session, or an empty one, or has more than MaxUser bytes.
func (p *Pattern) Find(user string) (id ID, ok bool) {
	if len(user) > MaxUser {
		return ID{}, false
	}
	for i := range p.finders {
		if id, ok = p.finders[i].find(user); ok {
			return id, true
		}
	}
	return ID{}, false
}

func (f *finder) find(user string) (ID, bool) {
	if !strings.Contains(user, f.literal) {
		return ID{}, false
	}
	at := f.expr.FindStringSubmatchIndex(user)
	if at == nil {
		return ID{}, false
	}
	var raw string
	var told time.Duration
	for i, group := range f.groups {
		if group == unnamed || at[2*i] < 0 {
			continue
		}
		switch text := user[at[2*i]:at[2*i+1]]; group {
		case aSession:
			if raw == "" {
				raw = text
			}
		case aMinutes:
			told += lifetime(text, time.Minute)
		case aSeconds:
			told += lifetime(text, time.Second)
		case aLifetime:
			told += lifetimeUnit(text)
		}
	}
	if raw == "" {
		return ID{}, false
	}
	return ID{session(raw), min(told, MaxLifetime)}, true
}

// Names returns the names of the built-in patterns: first auto, which tries
// those after it in this order, but for last-number.
func Names() []string {
	names := []string{autoName}
	for _, b := range builtins {
		names = append(names, b.name)
	}
	return names
}

// Describe returns a line about a built-in pattern with an example of a user
// name, "" if there is none of that name.
func Describe(name string) string {
	if name == autoName {
		return "tries the patterns below from top to bottom, but not last-number, which fits too much: " + builtins[0].examples[0].user
	}
	i := slices.IndexFunc(builtins, func(b builtin) bool { return b.name == name })
	if i < 0 {
		return ""
	}
	b := builtins[i]
	var providers []string
	for _, e := range b.examples {
		if !slices.Contains(providers, e.provider) {
			providers = append(providers, e.provider)
		}
	}
	return fmt.Sprintf("%s (%s): %s", b.syntax, strings.Join(providers, ", "), b.examples[0].user)
}
