// SPDX-License-Identifier: Apache-2.0

package exitid

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"
)

// written is what ID.Session looks like.
var written = regexp.MustCompile(`^(?:(?:[A-Za-z0-9._-]|%[0-9A-F]{2})+|(?:[A-Za-z0-9._-]|%[0-9A-F]{2})*~[0-9A-F]{16})$`)

func FuzzFind(f *testing.F) {
	for _, b := range builtins {
		for _, e := range b.examples {
			f.Add(e.user, e.user+"x")
		}
	}
	f.Add("a b", "a%20b")
	f.Add(strings.Repeat("ü", 40), strings.Repeat("ü", 41))
	f.Add(strings.Repeat("a", 80), strings.Repeat("a", 47)+"~6CA09E4C8C57AA35")
	all := mustCompile(f, `(?s)^(?P<session>.*)$`)
	var patterns []*Pattern
	for _, name := range Names() {
		patterns = append(patterns, mustCompile(f, name))
	}
	f.Fuzz(func(t *testing.T, user, other string) {
		for i, p := range patterns {
			id, ok := p.Find(user)
			if i > 0 {
				plain := Pattern{[]finder{{expr: p.finders[0].expr, groups: p.finders[0].groups}}}
				if id2, ok2 := plain.Find(user); id2 != id || ok2 != ok {
					t.Fatalf("%s of %q: %v, %v, without its literal %v, %v", Names()[i], user, id, ok, id2, ok2)
				}
			}
			if !ok {
				if id != (ID{}) {
					t.Fatalf("%s: %v though not found", Names()[i], id)
				}
				continue
			}
			if !written.MatchString(id.Session) || len(id.Session) > MaxSession {
				t.Fatalf("%s of %q: session %q", Names()[i], user, id.Session)
			}
			if id.Lifetime < 0 || id.Lifetime > MaxLifetime || id.Lifetime%time.Second != 0 {
				t.Fatalf("%s of %q: lifetime %v", Names()[i], user, id.Lifetime)
			}
			// The session is a piece of the user name.
			if raw, err := url.PathUnescape(id.Session); !strings.Contains(id.Session, "~") && (err != nil || !strings.Contains(user, raw)) {
				t.Fatalf("%s of %q: %q is not in it", Names()[i], user, id.Session)
			}
		}
		// Different sessions have different names.
		a, ok := all.Find(user)
		if ok != (user != "" && len(user) <= MaxUser) {
			t.Fatalf("%q: %v, %v", user, a, ok)
		}
		if b, ok2 := all.Find(other); ok && ok2 && (a == b) != (user == other) {
			t.Fatalf("%q and %q are both %q", user, other, a.Session)
		}
	})
}

func FuzzBasicUser(f *testing.F) {
	for _, tt := range basicValues {
		f.Add(tt.value, "user", "password")
	}
	f.Add("", "a:b", "\x00")
	f.Fuzz(func(t *testing.T, value, name, password string) {
		// net/http is the oracle; it knows no white space around the value, and
		// takes line ends inside base64.
		user, ok := BasicUser([]byte(value))
		trimmed := strings.Trim(value, " \t")
		if scheme, code, found := strings.Cut(trimmed, " "); found {
			trimmed = scheme + " " + strings.TrimLeft(code, " \t")
		}
		r := http.Request{Header: http.Header{"Authorization": {trimmed}}}
		want, _, wantOK := r.BasicAuth()
		invalid := strings.ContainsFunc(want, func(c rune) bool { return c < ' ' || c == 0x7f })
		wantOK = wantOK && want != "" && len(want) <= MaxUser && !invalid && !strings.ContainsAny(trimmed, "\r\n")
		if ok != wantOK || ok && user != want {
			t.Fatalf("BasicUser(%q) = %q, %v, net/http: %q, %v", value, user, ok, want, wantOK)
		}
		if !ok && user != "" {
			t.Fatalf("BasicUser(%q) = %q though not ok", value, user)
		}

		// The answer depends on the user name alone.
		name, _, _ = strings.Cut(name, ":")
		one, ok1 := BasicUser([]byte("Basic " + base64.StdEncoding.EncodeToString([]byte(name+":"+password))))
		two, ok2 := BasicUser([]byte(basic(name + ":")))
		if one != two || ok1 != ok2 || ok1 && one != name {
			t.Fatalf("user %q: %q, %v with a password, %q, %v without", name, one, ok1, two, ok2)
		}
	})
}
