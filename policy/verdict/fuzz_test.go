// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// Whatever an origin sends, a verdict keeps to its promises.
func FuzzHead(f *testing.F) {
	for _, c := range mustCases(f) {
		var head strings.Builder
		for _, h := range c.Headers {
			head.WriteString(h[0] + ":" + h[1] + "\n")
		}
		f.Add(c.Status, c.Connect, head.String(), c.At.UnixNano())
	}
	f.Add(429, false, "Retry-After: Tuesday, 29-Feb-00 12:00:00 GMT\nDate: x\nRateLimit: \"a\\\"\";r=1;t=2, b\n", int64(-1))
	f.Add(429, false, "x-acme-list: total=5; remaining=0; resets=4\nX-Acme-Left: 3\nX-Cost: 2.5\nx-ms-ratelimit-remaining-resource: a;0,b;4\nSforce-Limit-Info: a=1/2(x)\nanthropic-ratelimit-unified-status: rejected\n", int64(1))
	dialects := []*Dialect{
		mustDialect(f, "acme", FieldRule{Header: "x-acme-*", Says: SaysList}, FieldRule{Header: "x-acme-left", Says: SaysRemaining, Group: "coins"},
			FieldRule{Header: "x-acme-wait", Says: SaysRetryAfter}),
		mustDialect(f, "other", FieldRule{Header: "x-ratelimit-reset", Says: SaysReset, Unit: UnitEpochMs}, FieldRule{Header: "x-acme-left", Says: SaysLimit}),
	}
	f.Fuzz(func(t *testing.T, status int, connect bool, head string, at int64) {
		blank := Head{Status: status, Connect: connect, At: time.Unix(0, at), CostField: "x-cost", Dialects: dialects}
		h := blank
		feed(&h, head)
		got := h.Verdict(nil)
		if got != h.Verdict(nil) {
			t.Error("the second verdict differs from the first")
		}
		lines := slices.Collect(strings.Lines(head))
		slices.Reverse(lines)
		h = blank
		h.Field([]byte("X-Unrelated"), []byte("0"))
		for _, line := range lines {
			feed(&h, line)
		}
		h.Field([]byte("Content-Length"), []byte("0"))
		if back := h.Verdict(nil); back.Kind != got.Kind || back.Delay != got.Delay || back.Exhausted != got.Exhausted || back.Cost != got.Cost || back.Retry != got.Retry {
			t.Errorf("with the lines in reverse, among others: got %+v, want %+v", back, got)
		}
		for _, only := range builtins {
			h := blank
			h.Only = only
			feed(&h, head)
			if v := h.Verdict(nil); v.Dialect != "" && v.Dialect != only.Name && v.Dialect != nameRetryAfter {
				t.Errorf("%s alone: got dialect %q", only.Name, v.Dialect)
			}
		}
		h = blank
		h.RetryAfterOnly = true
		feed(&h, head)
		if v := h.Verdict(nil); v.Quota != (Quota{}) || v.HasExhausted || v.Dialect != "" && v.Dialect != nameRetryAfter {
			t.Errorf("without fields of limits: got %+v", v)
		}
		if got.Kind > Error {
			t.Errorf("kind %d", got.Kind)
		}
		if got.Delay < 0 || got.Delay > MaxDelay || got.Delay%time.Millisecond != 0 {
			t.Errorf("delay %v", got.Delay)
		}
		if got.HasDelay != (got.Delay > 0) {
			t.Errorf("delay %v, HasDelay %v", got.Delay, got.HasDelay)
		}
		if got.HasDelay && got.Kind != Limited && got.Kind != Capacity && got.Kind != ExitTrouble {
			t.Errorf("%v with a delay", got.Kind)
		}
		if connect && (got.Kind == Limited || got.Kind == Capacity || got.Kind == Challenge) {
			t.Errorf("%v for the destination of a CONNECT", got.Kind)
		}
		if got.Exhausted < 0 || got.Exhausted > MaxDelay || got.Exhausted%time.Millisecond != 0 || got.HasExhausted != (got.Exhausted > 0) {
			t.Errorf("exhausted for %v (%v)", got.Exhausted, got.HasExhausted)
		}
		if got.HasExhausted && (connect || got.Kind == ExitTrouble) {
			t.Errorf("the exit's shortage told as the destination's: %+v", got)
		}
		if got.Cost > maxCost || !got.HasCost && got.Cost != 0 {
			t.Errorf("cost %d (%v)", got.Cost, got.HasCost)
		}
		if got.Quota != (Quota{}) && got.Dialect == "" {
			t.Errorf("a quota of nobody: %+v", got)
		}
		q := got.Quota
		if q.Limit < 0 || q.Remaining < 0 || q.Reset < 0 || q.Reset > longest || q.Window < 0 || q.Window > longest || !(q.PerSecond >= 0) {
			t.Errorf("quota %+v", q)
		}
		if !q.HasLimit && q.Limit != 0 || !q.HasRemaining && q.Remaining != 0 || !q.HasReset && q.Reset != 0 {
			t.Errorf("quota says what it has not: %+v", q)
		}
	})
}

// Dates agree with the standard library wherever it reads them.
func FuzzDate(f *testing.F) {
	for _, seed := range []string{
		"Sun, 29 Nov 2026 12:00:20 GMT", "Sunday, 29-Nov-26 12:00:20 GMT", "Sun Nov  6 08:49:37 1994",
		"2026-11-29T12:00:30.5+01:00", "2026-11-29 12:00", "Mon Jan 1 0:00:00 2000",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, ok := parseDate([]byte(text), t0)
		if !ok && !got.IsZero() {
			t.Errorf("%q: not a date, but %v", text, got)
		}
		for _, layout := range []string{"Mon, 02 Jan 2006 15:04:05 GMT", time.ANSIC, time.RFC3339} {
			want, err := time.Parse(layout, text)
			if err != nil || !strict(layout, text, want) {
				continue
			}
			// Fractions of less than a microsecond are rounded up.
			if !ok || got.Sub(want) < 0 || got.Sub(want) >= time.Microsecond {
				t.Errorf("%q: got %v (%v), want %v", text, got, ok, want)
			}
		}
	})
}

// strict reports whether text is in the layout to the letter: the standard
// library lets more pass, such as blanks where none belong.
func strict(layout, text string, t time.Time) bool {
	if layout == time.RFC3339 {
		// A fraction cannot be written back as it was.
		return strings.HasPrefix(text, t.Format("2006-01-02T15:04:05")) &&
			strings.HasSuffix(text, t.Format("Z07:00")) && !strings.Contains(text, ",")
	}
	return t.Format(layout) == text
}

var sink Verdict

func BenchmarkHead(b *testing.B) {
	const common = "Server: nginx\nDate: Sun, 29 Nov 2026 12:00:00 GMT\nContent-Type: text/html; charset=utf-8\n" +
		"Content-Length: 1270\nConnection: keep-alive\nETag: \"5f\"\nCache-Control: max-age=0\nX-Request-Id: 7\n"
	for _, c := range []struct {
		name   string
		status int
		head   string
	}{
		{"ok", 200, common},
		{"twelve", 200, "date: Sun, 29 Nov 2026 12:00:00 GMT\ncontent-type: application/json; charset=utf-8\ncontent-length: 1270\nserver: nginx\nx-request-id: 7\n" +
			"x-frame-options: DENY\nx-content-type-options: nosniff\nstrict-transport-security: max-age=31536000\ncache-control: private, max-age=0\n" +
			"etag: \"5f\"\nvary: accept-encoding\nset-cookie: s=1; path=/; httponly\n"},
		{"seconds", 429, common + "Retry-After: 120\n"},
		{"date", 429, common + "Retry-After: Sun, 29 Nov 2026 12:00:10 GMT\n"},
		{"github", 403, common + "x-ratelimit-limit: 5000\nx-ratelimit-remaining: 0\nx-ratelimit-reset: 1795953900\nx-ratelimit-used: 5000\nx-ratelimit-resource: core\n"},
		{"draft", 200, common + "RateLimit-Policy: \"default\";q=100;w=60\nRateLimit: \"default\";r=40;t=30\n"},
	} {
		fields := split(c.head)
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				h := Head{Status: c.status, At: t0}
				for _, f := range fields {
					h.Field(f[0], f[1])
				}
				sink = h.Verdict(nil)
			}
		})
	}
}

// split is head in the pieces that Field takes.
func split(head string) (fields [][2][]byte) {
	for line := range strings.Lines(head) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		fields = append(fields, [2][]byte{[]byte(name), []byte(value)})
	}
	return fields
}

// No answer costs an allocation, whatever it says.
func TestNoAllocation(t *testing.T) {
	for _, c := range mustCases(t) {
		var head strings.Builder
		for _, h := range c.Headers {
			head.WriteString(h[0] + ":" + h[1] + "\n")
		}
		fields := split(head.String())
		got := testing.AllocsPerRun(10, func() {
			h := Head{Status: c.Status, Connect: c.Connect, At: c.At}
			for _, f := range fields {
				h.Field(f[0], f[1])
			}
			sink = h.Verdict(nil)
		})
		if got != 0 {
			t.Errorf("%s: got %v allocations, want 0", c.Name, got)
		}
	}
}

// A dialect is either refused or finds what it was told.
func FuzzDialect(f *testing.F) {
	f.Add("acme", "X-Acme-Left", uint8(SaysRemaining), uint8(UnitAuto), "", "5")
	f.Add("acme", "x-acme-*", uint8(SaysList), uint8(UnitEpoch), "coins", "total=5; resets=1795953605")
	f.Add("acme", "date", uint8(SaysReset), uint8(UnitDate), "requests", "Sun, 29 Nov 2026 12:00:05 GMT")
	f.Fuzz(func(t *testing.T, name, header string, says, unit uint8, group, value string) {
		d, err := NewDialect(name, []FieldRule{{Header: header, Says: Says(says), Unit: Unit(unit), Group: group}})
		if (d == nil) == (err == nil) {
			t.Fatalf("got %v and error %v", d, err)
		}
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Errorf("error of several lines: %q", err)
			}
			return
		}
		if got, _ := d.index.find([]byte(header)); got == nil || got.says != Says(says) {
			t.Errorf("%q is not found: %v", header, got)
		}
		h := Head{Status: 429, At: t0, Only: d}
		h.Field([]byte(header), []byte(value))
		if v := h.Verdict(nil); v.Kind != Limited && v.Kind != Capacity || v.HasDelay != (v.Delay > 0) || v.Quota.Limit < 0 || v.Quota.Reset < 0 {
			t.Errorf("got %+v", v)
		}
	})
}
