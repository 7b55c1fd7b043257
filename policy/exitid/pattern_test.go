// SPDX-License-Identifier: Apache-2.0

package exitid

import (
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"
)

func mustCompile(tb testing.TB, expr string) *Pattern {
	tb.Helper()
	p, err := Compile(expr)
	if err != nil {
		tb.Fatalf("Compile(%q): %v", expr, err)
	}
	return p
}

// TestBuiltins finds the session in each documented user name by its own
// pattern and, where that is tried, by auto.
func TestBuiltins(t *testing.T) {
	auto := mustCompile(t, "auto")
	for _, b := range builtins {
		own := mustCompile(t, b.name)
		if len(b.examples) == 0 || b.syntax == "" {
			t.Errorf("%s shows nothing", b.name)
		}
		for _, e := range b.examples {
			want := ID{e.session, e.lifetime}
			if got, ok := own.Find(e.user); !ok || got != want {
				t.Errorf("%s of %q = %v, %v, want %v", b.name, e.user, got, ok, want)
			}
			if got, ok := auto.Find(e.user); ok != b.auto || b.auto && got != want {
				t.Errorf("auto of %q = %v, %v, want %v, %v", e.user, got, ok, want, b.auto)
			}
			if u, err := url.Parse(e.source); err != nil || u.Scheme != "https" || e.provider == "" {
				t.Errorf("%s: %q is no source of %q", b.name, e.source, e.provider)
			}
		}
	}
}

func TestFind(t *testing.T) {
	const policyExample = `user-\w+-session-(?P<session>\w+)`
	long := strings.Repeat("a", 80)
	for _, tt := range []struct {
		expr, user string
		session    string // "" for not found
		lifetime   time.Duration
	}{
		{policyExample, "user-acme-session-a1", "a1", 0},
		{policyExample, "user-acme-session-a1-country-us", "a1", 0},
		{policyExample, "xx-user-acme-session-a1", "a1", 0}, // anywhere
		{"^" + policyExample + "$", "xx-user-acme-session-a1", "", 0},
		{policyExample, "user-acme", "", 0},
		{policyExample, "", "", 0},

		{"auto", "acme", "", 0},
		{"auto", "customer-acme-cc-US", "", 0},
		{"auto", "acme-session-", "", 0},
		{"auto", "acme-us-1234", "", 0},
		{"auto", "acme-sessid-x1-session-x2", "x1", 0}, // the order of the table
		{"auto", "acme-sesstime-7-sessid-x1", "x1", 0}, // a lifetime before its session is none
		{"auto", "login__sessid.9", "9", 0},
		{"auto", "session.a1", "", 0},
		{"auto", "acme;session.a1;cr.us", "a1", 0},
		{"auto", "session-a1:b", "a1%3Ab", 0},
		{"last-number", "acme-us-rotate", "", 0},
		{"last-number", "acme-1", "1", 0},

		{"dash-session", "acme-session-a1-country-us-sessionduration-30", "a1", 30 * time.Minute},
		{"dash-session", "acme-session-a1-sessionduration-x", "a1", 0},
		{"dash-session", "acme-session-a1-sessionduration-0", "a1", 0},
		{"dash-session", "acme-session-a1-sessionduration-99999999999999999999999999", "a1", MaxLifetime},
		{"dash-session", "acme-session-a1-session-a2", "a1", 0},
		{"dash-sessionid", "acme-sessionid-a1-sessionlength-86400", "a1", 24 * time.Hour},
		{"underscore-session", "acme_session-a1_lifetime-90s", "a1", 90 * time.Second},
		{"underscore-session", "acme_session-a1_lifetime-24h", "a1", 24 * time.Hour},
		{"underscore-session", "acme_session-a1_lifetime-7d", "a1", 7 * 24 * time.Hour},
		{"underscore-session", "acme_session-a1_lifetime-7w", "a1", 0},

		{`(?P<session>x)(?P<minutes>\d+)m(?P<seconds>\d+)`, "x5m30", "x", 5*time.Minute + 30*time.Second},
		{`(?P<session>x)(?P<minutes>\d+)m(?P<seconds>\d+)`, "x43200m99", "x", MaxLifetime},
		{`(?P<session>x)(?P<minutes>.*)`, "x-5", "x", 0},
		{`(?P<session>x)(?P<minutes>.*)`, "x٣", "x", 0}, // digits of another script
		{`(?P<session>x)(?P<lifetime>.*)`, "xm", "x", 0},
		{`(?P<session>x)(?P<lifetime>.*)`, "x5", "x", 0},
		{`(?P<session>x)(?P<lifetime>.*)`, "x5m", "x", 5 * time.Minute},
		{`(?<session>\w+)`, "a1", "a1", 0},
		{`a-(?P<session>\w+)|b-(?P<session>\w+)`, "a-x", "x", 0},
		{`a-(?P<session>\w+)|b-(?P<session>\w+)`, "b-x", "x", 0},
		{`(?P<session>\w*)`, "-", "", 0},
		{`a(?P<session>b)?`, "a", "", 0},

		{`^(?P<session>.*)$`, "A-z.0_9", "A-z.0_9", 0},
		{`^(?P<session>.*)$`, "a b/c%~\"", "a%20b%2Fc%25%7E%22", 0},
		{`(?s)^(?P<session>.*)$`, "\x00\n\xff", "%00%0A%FF", 0},
		{`^(?P<session>.*)$`, "ü", "%C3%BC", 0},
		{`^(?P<session>.*)$`, long[:64], long[:64], 0},
		{`^(?P<session>.*)$`, long[:65], long[:47] + "~8087E9A889F8A14C", 0},
		{`^(?P<session>.*)$`, long[:61] + " ", long[:61] + "%20", 0},
		{`^(?P<session>.*)$`, long[:46] + "         ", long[:46] + "~6E9A632177519909", 0}, // no escape is cut
		{`^(?P<session>.*)$`, strings.Repeat("a", MaxUser), long[:47] + "~FF4925A7CFA0F725", 0},
		{`^(?P<session>.*)$`, strings.Repeat("a", MaxUser+1), "", 0},
	} {
		got, ok := mustCompile(t, tt.expr).Find(tt.user)
		if want := (ID{tt.session, tt.lifetime}); got != want || ok != (tt.session != "") {
			t.Errorf("%s of %q = %v, %v, want %v", tt.expr, tt.user, got, ok, want)
		}
	}
}

func TestCompileErrors(t *testing.T) {
	for _, tt := range []struct{ expr, want string }{
		{"", `"" is no built-in pattern; known are auto, dash-sessid,`},
		{"dash-sesion", `"dash-sesion" is no built-in pattern; known are auto, dash-sessid, dash-sessionid, dash-sid, dash-session, comma-session, semicolon-sessid, dot-session, plus-session, underscore-session, last-number`},
		{`user-(\w+)`, `"user-(\\w+)" has no group (?P<session>…); add it, or name a built-in pattern: auto,`},
		{`(?P<sesion>\w+)`, `unknown group "sesion"; known are session, minutes, seconds and lifetime`},
		{`(?P<session>\w+)(?P<minuts>\d+)`, `unknown group "minuts"`},
		{`(?P<session>\w+`, "missing closing )"},
	} {
		p, err := Compile(tt.expr)
		if err == nil || p != nil {
			t.Errorf("Compile(%q) = %v, %v", tt.expr, p, err)
			continue
		}
		if got := err.Error(); !strings.Contains(got, tt.want) || strings.Contains(got, "\n") {
			t.Errorf("Compile(%q):\n got %s\nwant %s", tt.expr, got, tt.want)
		}
	}
}

func TestNames(t *testing.T) {
	names := Names()
	if len(names) != len(builtins)+1 || names[0] != "auto" {
		t.Fatalf("names %q", names)
	}
	seen := map[string]bool{}
	for _, name := range names {
		if !regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`).MatchString(name) || seen[name] {
			t.Errorf("name %q", name)
		}
		seen[name] = true
		mustCompile(t, name)
		if got := Describe(name); got == "" || strings.Contains(got, "\n") {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := Describe("dash-sid"); got != "-sid-ID (NetNut): acme-res-any-sid-45456" {
		t.Errorf("Describe(dash-sid) = %q", got)
	}
	if got := Describe("other"); got != "" {
		t.Errorf("Describe(other) = %q", got)
	}
}

func BenchmarkFind(b *testing.B) {
	for _, bb := range []struct {
		name, expr, user string
		ok               bool
	}{
		{"session", "dash-session", "brd-customer-hl_1234-zone-residential-session-mystring12345", true},
		{"lifetime", "dash-session", "user-acme-country-us-session-a1b2c3-sessionduration-30", true},
		{"policy", `user-\w+-session-(?P<session>\w+)`, "user-acme-session-a1b2c3", true},
		{"auto", "auto", "user-acme-country-us-session-a1b2c3-sessionduration-30", true},
		{"auto none", "auto", "customer-acme-country-us", false},
	} {
		b.Run(bb.name, func(b *testing.B) {
			p := mustCompile(b, bb.expr)
			b.ReportAllocs()
			for b.Loop() {
				if _, ok := p.Find(bb.user); ok != bb.ok {
					b.Fatal(ok)
				}
			}
		})
	}
}
