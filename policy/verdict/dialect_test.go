// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

func mustDialect(t testing.TB, name string, fields ...FieldRule) *Dialect {
	t.Helper()
	d, err := NewDialect(name, fields)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// A dialect of a policy file, with each thing that a field can say.
func TestNewDialect(t *testing.T) {
	d := mustDialect(t, "acme",
		FieldRule{Header: "X-Acme-Max", Says: SaysLimit, Window: time.Minute},
		FieldRule{Header: "x-acme-used", Says: SaysUsed},
		FieldRule{Header: "x-acme-renews", Says: SaysReset, Unit: UnitEpochMs},
		FieldRule{Header: "x-acme-pause", Says: SaysRetryAfter, Unit: UnitDuration},
		FieldRule{Header: "x-acme-coins", Says: SaysRemaining, Group: "coins"},
		FieldRule{Header: "x-acme-coins-in", Says: SaysResetAfter, Group: "coins", ToFull: true},
		FieldRule{Header: "x-acme-day", Says: SaysUsedLimit, Group: "requests-day"},
		FieldRule{Header: "x-acme-per-*", Says: SaysList, Group: "requests-each"},
		FieldRule{Header: "x-acme-policy", Says: SaysPolicy},
		FieldRule{Header: "x-acme-now", Says: SaysRateLimit},
		FieldRule{Header: "x-acme-speed", Says: SaysRate},
		FieldRule{Header: "x-acme-state", Says: SaysStatus},
		FieldRule{Header: "x-acme-span", Says: SaysWindow, Group: "coins"},
		FieldRule{Header: "x-acme-again", Says: SaysShouldRetry},
		FieldRule{Header: "x-acme-zone", Says: SaysMark},
	)
	for _, c := range []struct {
		name, head string
		want       []func(*Quota)
		delay      time.Duration
	}{
		{"limit and used", "x-acme-max: 10\nX-ACME-USED: 4\n", []func(*Quota){limit(10), remaining(6), window(time.Minute)}, 0},
		{"overdrawn", "x-acme-max: 10\nx-acme-used: 14\nx-acme-renews: 1795953605250\n", []func(*Quota){limit(10), remaining(0), reset(5250 * time.Millisecond), window(time.Minute)}, 5250 * time.Millisecond},
		{"wait", "x-acme-pause: 1m30s\n", nil, 90 * time.Second},
		{"wait in another form", "x-acme-pause: 90\n", nil, 0},
		{"the longer wait", "x-acme-pause: 1s\nRetry-After: 5\n", nil, 5 * time.Second},
		{"other units", "x-acme-coins: 0\nx-acme-coins-in: 2000000\nx-acme-span: 1h\n", []func(*Quota){remaining(0), reset(2000000 * time.Second), window(time.Hour), toFull, other}, 24 * time.Hour},
		{"requests before other units", "x-acme-coins: 0\nx-acme-max: 10\n", []func(*Quota){limit(10), window(time.Minute)}, 0},
		{"the day has run out", "x-acme-max: 10\nx-acme-day: 5/5\n", []func(*Quota){limit(5), remaining(0)}, 0},
		{"prefix", "x-acme-per-user: limit=5, used=5, reset=4, color=red\n", []func(*Quota){limit(5), remaining(0), reset(4 * time.Second)}, 4 * time.Second},
		{"list", "x-acme-policy: \"a\";q=9;w=5\nx-acme-now: \"a\";r=2;t=3\n", []func(*Quota){limit(9), remaining(2), reset(3 * time.Second), window(5 * time.Second)}, 0},
		{"dictionary", "x-acme-now: limit=9, remaining=0, reset=3\n", []func(*Quota){limit(9), remaining(0), reset(3 * time.Second)}, 3 * time.Second},
		{"rate", "x-acme-speed: 0.25\n", []func(*Quota){perSecond(0.25)}, 0},
		{"status", "x-acme-state: Rejected\nx-acme-renews: 1795953605000\n", []func(*Quota){remaining(0), reset(5 * time.Second)}, 5 * time.Second},
		{"mark", "x-acme-zone: 7\n", nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var want Quota
			for _, say := range c.want {
				say(&want)
			}
			for name, h := range map[string]Head{"all": {Dialects: []*Dialect{mustDialect(t, "first", FieldRule{Header: "x-first", Says: SaysLimit}), d}}, "only": {Only: d}} {
				h.Status, h.At = 429, t0
				feed(&h, "Date: Sun, 29 Nov 2026 12:00:00 GMT\n"+c.head)
				got := h.Verdict(nil)
				if got.Quota != want || got.Delay != c.delay || got.Kind != Limited {
					t.Errorf("%s: got %+v, want quota %+v and delay %v", name, got, want, c.delay)
				}
				dialect := d.Name
				if c.name == "wait in another form" {
					dialect = ""
				}
				if got.Dialect != dialect {
					t.Errorf("%s: got dialect %q, want %q", name, got.Dialect, dialect)
				}
			}
		})
	}
}

// Where all dialects are believed, those of the policy file say what a field
// means, in their order, and the built-in ones speak for the rest.
func TestDialectsTogether(t *testing.T) {
	ms := mustDialect(t, "in-ms",
		FieldRule{Header: "x-ratelimit-reset", Says: SaysReset, Unit: UnitMilli},
		FieldRule{Header: "retry-after", Says: SaysRetryAfter, Unit: UnitMilli})
	seconds := mustDialect(t, "in-seconds", FieldRule{Header: "x-ratelimit-reset", Says: SaysReset, Unit: UnitSeconds})
	const head = "x-ratelimit-limit: 9\nx-ratelimit-reset: 2500\n"
	for _, c := range []struct {
		name    string
		h       Head
		head    string
		reset   time.Duration
		dialect string
		delay   time.Duration
	}{
		{"built-in", Head{}, head, 2500 * time.Second, "x-ratelimit", 0},
		{"the first of two", Head{Dialects: []*Dialect{ms, seconds}}, "x-ratelimit-reset: 2500\n", 2500 * time.Millisecond, "in-ms", 0},
		{"the other way round", Head{Dialects: []*Dialect{seconds, ms}}, "x-ratelimit-reset: 2500\n", 2500 * time.Second, "in-seconds", 0},
		{"beside a built-in one", Head{Dialects: []*Dialect{ms}}, head, 2500 * time.Millisecond, "in-ms", 0},
		// The Retry-After family is what everybody thinks it is, unless a
		// budget says that its origin speaks the dialect.
		{"retry-after among others", Head{Dialects: []*Dialect{ms}}, "Retry-After: 1500\n", 0, "retry-after", 1500 * time.Second},
		{"retry-after alone", Head{Only: ms}, "Retry-After: 1500\n", 0, "retry-after", 1500 * time.Millisecond},
		{"only goes before others", Head{Only: seconds, Dialects: []*Dialect{ms}}, head, 2500 * time.Second, "in-seconds", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.h.Status, c.h.At = 429, t0
			feed(&c.h, c.head)
			got := c.h.Verdict(nil)
			if got.Quota.Reset != c.reset || got.Dialect != c.dialect || got.Delay != c.delay {
				t.Errorf("got %+v; want reset %v, dialect %q, delay %v", got, c.reset, c.dialect, c.delay)
			}
		})
	}
}

// How a reset is written.
func TestUnits(t *testing.T) {
	for _, c := range []struct {
		unit  Unit
		value string
		want  time.Duration // negative: nothing
	}{
		{UnitAuto, "5", 5 * time.Second},
		{UnitAuto, "1795953605", 5 * time.Second},
		{UnitAuto, "1795953605250", 5250 * time.Millisecond},
		{UnitAuto, "1000000", -1},
		{UnitAuto, "1m30s", 90 * time.Second},
		{UnitAuto, "2026-11-29T12:00Z", 0},
		{UnitAuto, "3, 5", 5 * time.Second},
		{UnitSeconds, "1000000", 1000000 * time.Second},
		{UnitSeconds, "1.5", 1500 * time.Millisecond},
		{UnitSeconds, "5s", -1},
		{UnitMilli, "1500", 1500 * time.Millisecond},
		{UnitMilli, "0.5", 500 * time.Microsecond},
		{UnitMilli, "1s", -1},
		{UnitEpoch, "1795953605.5", 5500 * time.Millisecond},
		{UnitEpoch, "5", 0},
		{UnitEpoch, "9999999999999", longest},
		{UnitEpochMs, "1795953605250", 5250 * time.Millisecond},
		{UnitEpochMs, "2026-11-29T12:00:05Z", -1},
		{UnitDate, "Sun, 29 Nov 2026 12:00:05 GMT", 5 * time.Second},
		{UnitDate, "5", -1},
		{UnitDuration, "250ms", 250 * time.Millisecond},
		{UnitDuration, "5", -1},
	} {
		h := Head{Status: 200, At: t0, Only: mustDialect(t, "x", FieldRule{Header: "x", Says: SaysReset, Unit: c.unit})}
		feed(&h, "x: "+c.value)
		got := h.Verdict(nil).Quota
		if got.HasReset != (c.want >= 0) || got.Reset != max(0, c.want) {
			t.Errorf("%v %q: got %v (%v), want %v", c.unit, c.value, got.Reset, got.HasReset, c.want)
		}
	}
	for _, c := range []struct {
		unit  Unit
		value string
		want  time.Duration
	}{
		{UnitSeconds, "5", 5 * time.Second},
		{UnitSeconds, "3, 5", 5 * time.Second},
		{UnitSeconds, "5s", 0},
		{UnitMilli, "1500", 1500 * time.Millisecond},
		{UnitEpoch, "1795953605", 5 * time.Second},
		{UnitEpoch, "soon", 0},
		{UnitEpochMs, "1795953605250", 5250 * time.Millisecond},
		{UnitDate, "2026-11-29T12:00:05Z", 5 * time.Second},
		{UnitDate, "5", 0},
		{UnitDuration, "1m", time.Minute},
	} {
		h := Head{Status: 429, At: t0, Only: mustDialect(t, "x", FieldRule{Header: "x", Says: SaysRetryAfter, Unit: c.unit})}
		feed(&h, "x: "+c.value)
		if got := h.Verdict(nil).Delay; got != c.want {
			t.Errorf("wait in %v %q: got %v, want %v", c.unit, c.value, got, c.want)
		}
	}
}

func TestNewDialectErrors(t *testing.T) {
	good := FieldRule{Header: "x-left", Says: SaysRemaining}
	many := make([]FieldRule, maxFields+1)
	groups := make([]FieldRule, maxGroups+1)
	for i := range many {
		many[i] = FieldRule{Header: fmt.Sprintf("x-%d", i), Says: SaysLimit}
	}
	for i := range groups {
		groups[i] = FieldRule{Header: fmt.Sprintf("x-%d", i), Says: SaysLimit, Group: fmt.Sprint(i)}
	}
	for _, c := range []struct {
		name   string
		fields []FieldRule
		want   string
	}{
		{"auto", []FieldRule{good}, `cannot be named "auto"`},
		{"off", []FieldRule{good}, `cannot be named "off"`},
		{"", []FieldRule{good}, `lower-case letters`},
		{"Acme", []FieldRule{good}, `lower-case letters`},
		{strings.Repeat("a", 65), []FieldRule{good}, `up to 64`},
		{"github", []FieldRule{good}, `is built in`},
		{"acme", nil, `has no fields`},
		{"acme", many, `has 65 fields; 64 are possible`},
		{"acme", groups, `has 9 groups; 8 are possible`},
		{"acme", []FieldRule{good, {Header: "X-Left", Says: SaysLimit}}, `field "x-left" is there twice`},
		{"acme", []FieldRule{{Header: "", Says: SaysLimit}}, `write the name of a response field`},
		{"acme", []FieldRule{{Header: "*", Says: SaysLimit}}, `write the name of a response field`},
		{"acme", []FieldRule{{Header: "x left", Says: SaysLimit}}, `write the name of a response field`},
		{"acme", []FieldRule{{Header: "x-\u212a", Says: SaysLimit}}, `write the name of a response field`}, // its lower case is k
		{"acme", []FieldRule{{Header: "x*y", Says: SaysLimit}}, `write the name of a response field`},
		{"acme", []FieldRule{{Header: "Date", Says: SaysReset}}, `same in every dialect`},
		{"acme", []FieldRule{{Header: "retry-after", Says: SaysReset}}, `same in every dialect`},
		{"acme", []FieldRule{{Header: "x"}}, `says nothing`},
		{"acme", []FieldRule{{Header: "x", Says: saysDate}}, `says nothing`},
		{"acme", []FieldRule{{Header: "x", Says: SaysReset, Unit: UnitDuration + 1}}, `unknown unit`},
		{"acme", []FieldRule{{Header: "x", Says: SaysLimit, Unit: UnitSeconds}}, `limit is no time`},
		{"acme", []FieldRule{{Header: "x", Says: SaysWindow, Unit: UnitEpoch}}, `window is a length of time`},
		{"acme", []FieldRule{{Header: "x", Says: SaysLimit, Group: strings.Repeat("g", 65)}}, `group's name is too long`},
		{"acme", []FieldRule{{Header: "x", Says: SaysLimit, Window: -1}}, `window is out of range`},
	} {
		d, err := NewDialect(c.name, c.fields)
		if d != nil || err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, %v; want an error with %q", c.name, d, err, c.want)
		}
	}
}

func TestWords(t *testing.T) {
	for s := SaysLimit; s <= SaysMark; s++ {
		if got, err := ParseSays(s.String()); got != s || err != nil {
			t.Errorf("%v: got %v, %v", s, got, err)
		}
	}
	for u := UnitAuto; u <= UnitDuration; u++ {
		if got, err := ParseUnit(u.String()); got != u || err != nil {
			t.Errorf("%v: got %v, %v", u, got, err)
		}
	}
	for _, word := range []string{"", "unknown", "Limit", strings.Repeat("x", 99)} {
		if _, err := ParseSays(word); err == nil || !strings.Contains(err.Error(), "limit, remaining, used,") || !strings.HasSuffix(err.Error(), " or mark") {
			t.Errorf("says %q: got error %v", word, err)
		}
		if _, err := ParseUnit(word); err == nil || !strings.HasSuffix(err.Error(), "auto, seconds, ms, epoch, epoch-ms, date or duration") {
			t.Errorf("unit %q: got error %v", word, err)
		}
	}
	if got := Says(200).String() + Unit(200).String() + Says(0).String(); got != "unknownunknownunknown" {
		t.Errorf("got %q", got)
	}
}
