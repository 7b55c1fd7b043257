// SPDX-License-Identifier: Apache-2.0

package verdict

import (
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
	f.Fuzz(func(t *testing.T, status int, connect bool, head string, at int64) {
		h := Head{Status: status, Connect: connect, At: time.Unix(0, at)}
		feed(&h, head)
		got := h.Verdict(nil)
		if got != h.Verdict(nil) {
			t.Error("the second verdict differs from the first")
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
