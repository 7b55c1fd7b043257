// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// LaneKey names a lane: a budget and the values of the properties that the
// budget tells apart. The others are "".
type LaneKey struct {
	Budget      string
	Destination string
	Exit        string
	Session     string
	Path        string
}

// clone is a copy that shares no memory with what a client sent.
func (k LaneKey) clone() LaneKey {
	for _, s := range []*string{&k.Destination, &k.Exit, &k.Session, &k.Path} {
		*s = strings.Clone(*s)
	}
	return k
}

// String is the lane's id: "store/store.example.com/direct", with "-" for an
// empty part. Session and path follow where the budget tells them apart:
// "api/api.example.net/direct;path=/v1/search".
func (k LaneKey) String() string {
	id := part(k.Budget) + "/" + part(k.Destination) + "/" + part(k.Exit)
	if k.Session != "" {
		id += sessionMark + escape(k.Session)
	}
	if k.Path != "" {
		id += pathMark + escape(k.Path)
	}
	return id
}

const (
	sessionMark = ";session="
	pathMark    = ";path="
)

func part(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// escape writes what would end a part of an id, or a line, as %XX.
func escape(s string) string {
	if !strings.ContainsFunc(s, escaped) {
		return s
	}
	var b strings.Builder
	for i := range len(s) {
		if c := s[i]; escaped(rune(c)) {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

func escaped(c rune) bool { return c <= ' ' || c >= 0x7f || c == ';' || c == '%' }

var errLaneKey = errors.New("a lane is written BUDGET/DESTINATION/EXIT, with - for a part that the budget does not tell apart, as egressd lanes shows it")

// ParseLaneKey is the inverse of LaneKey.String. Budgets and destinations hold
// no slash; an exit may.
func ParseLaneKey(id string) (LaneKey, error) {
	fail := func() (LaneKey, error) { return LaneKey{}, fmt.Errorf("parse lane %q: %w", id, errLaneKey) }
	rest, path, _ := strings.Cut(id, pathMark)
	rest, session, _ := strings.Cut(rest, sessionMark)
	parts := strings.SplitN(rest, "/", 3)
	if len(parts) != 3 || parts[0] == "" || parts[0] == "-" || parts[1] == "" || parts[2] == "" {
		return fail()
	}
	for i, p := range parts {
		if p == "-" {
			parts[i] = ""
		}
	}
	k := LaneKey{Budget: parts[0], Destination: parts[1], Exit: parts[2]}
	var err1, err2 error
	k.Session, err1 = url.PathUnescape(session)
	k.Path, err2 = url.PathUnescape(path)
	if err1 != nil || err2 != nil || k.String() != id { // one lane, one id
		return fail()
	}
	return k, nil
}
