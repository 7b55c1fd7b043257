// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"strings"
	"testing"
	"time"
)

// t0 is when the answers of these tests arrive.
var t0 = time.Date(2026, time.November, 29, 12, 0, 0, 0, time.UTC)

// judge reads head, lines of "Name: value", as an answer that arrives at t0.
func judge(status int, connect bool, head string, statuses ...int) Verdict {
	h := Head{Status: status, Connect: connect, At: t0}
	feed(&h, head)
	return h.Verdict(statuses)
}

func feed(h *Head, head string) {
	for line := range strings.Lines(head) {
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		h.Field([]byte(name), []byte(value))
	}
}

func TestKinds(t *testing.T) {
	const wait = "Retry-After: 5\n"
	for _, c := range []struct {
		name     string
		status   int
		connect  bool
		head     string
		statuses []int
		want     Kind
		delay    time.Duration
	}{
		{"success", 200, false, "", nil, OK, 0},
		{"not found", 404, false, wait, nil, OK, 0},
		{"informational", 100, false, wait, nil, OK, 0},
		{"no limit of this budget", 429, false, wait, []int{430}, OK, 0},
		{"a limit of this budget", 430, false, wait, []int{429, 430}, Limited, 5 * time.Second},
		{"capacity as a limit of this budget", 503, false, wait, []int{503}, Limited, 5 * time.Second},
		{"capacity when others are limits", 503, false, wait, []int{429}, Capacity, 5 * time.Second},
		{"a code beyond the classes", 999, false, "", []int{999}, Limited, 0},
		{"a code beyond the classes, unnamed", 999, false, "", nil, OK, 0},
		{"413 with a time", 413, false, wait, nil, Limited, 5 * time.Second},
		{"413 alone", 413, false, "", nil, OK, 0},
		{"413 with no usable time", 413, false, "Retry-After: soon\n", nil, OK, 0},
		{"403 with no usable time", 403, false, "Retry-After: 0\n", nil, OK, 0},
		{"403 with nothing left and no reset", 403, false, "x-ratelimit-remaining: 0\n", nil, Limited, 0},
		{"403 with something left", 403, false, "x-ratelimit-remaining: 1\nx-ratelimit-reset: 9\n", nil, OK, 0},
		{"413 with nothing left", 413, false, "x-ratelimit-remaining: 0\n", nil, OK, 0},
		{"502", 502, false, wait, nil, Error, 0},
		{"599", 599, false, "", nil, Error, 0},
		{"challenge on 403", 403, false, "CF-Mitigated: Challenge\n" + wait, nil, Challenge, 0},
		{"challenge on 503", 503, false, "cf-mitigated: challenge\n", nil, Challenge, 0},
		{"another mitigation", 429, false, "cf-mitigated: block\n" + wait, nil, Limited, 5 * time.Second},
		{"solved challenge", 200, false, "cf-mitigated: challenge\n", nil, OK, 0},
		{"tunnel", 200, true, wait, nil, OK, 0},
		{"407 to CONNECT", 407, true, "", nil, ExitTrouble, 0},
		{"407 else", 407, false, "", nil, OK, 0},
		{"503 to CONNECT", 503, true, wait, nil, ExitTrouble, 5 * time.Second},
		{"504 to CONNECT", 504, true, "", nil, ExitTrouble, 0},
		{"500 to CONNECT", 500, true, "", nil, Error, 0},
		{"403 to CONNECT is no limit of the origin", 403, true, wait, nil, OK, 0},
		{"a limit of this budget to CONNECT", 430, true, "", []int{430}, ExitTrouble, 0},
		{"429 to CONNECT, other limits", 429, true, "", []int{430}, ExitTrouble, 0},
		{"a challenge to CONNECT comes from the exit", 429, true, "cf-mitigated: challenge\n", nil, ExitTrouble, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := judge(c.status, c.connect, c.head, c.statuses...)
			if got.Kind != c.want || got.Delay != c.delay || got.HasDelay != (c.delay > 0) {
				t.Errorf("got %v, delay %v (%v); want %v, delay %v", got.Kind, got.Delay, got.HasDelay, c.want, c.delay)
			}
		})
	}
}

func TestKindString(t *testing.T) {
	for k, want := range map[Kind]string{
		OK: "ok", Limited: "limited", Capacity: "capacity", Challenge: "challenge",
		ExitTrouble: "exit-trouble", Error: "error", Error + 1: "unknown",
	} {
		if got := k.String(); got != want {
			t.Errorf("Kind(%d): got %q, want %q", k, got, want)
		}
		if got, err := k.MarshalText(); string(got) != want || err != nil {
			t.Errorf("Kind(%d): got text %q, %v; want %q", k, got, err, want)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	for _, c := range []struct {
		value string
		want  time.Duration // 0: no usable delay
	}{
		{"0.0001", time.Millisecond},
		{"0.0000000000000000001", time.Millisecond},
		{"299.997", 299997 * time.Millisecond},
		{"1.0010000001", 1002 * time.Millisecond},
		{"007", 7 * time.Second},
		{"5.", 5 * time.Second},
		{".5", 500 * time.Millisecond},
		{".", 0},
		{"1.2.3", 0},
		{"\t7\t", 7 * time.Second},
		{"86399.9991", 24 * time.Hour},
		{"1e400", 0},
		{"-1", 0},
		{"-0", 0},
		{"1_000", 0},
		{"²", 0},
		{"٣", 0},
		{"７", 0},
		{"5 seconds", 0},
		{"5;", 0},
		{"infinity", 0},

		{"1,1", time.Second},
		{"3 , 1,\t2", 3 * time.Second},
		{"1, 2.5", 0},
		{"1,", 0},
		{",1", 0},
		{"1, x", 0},
		{"0, 0", 0},

		{"250ms", 250 * time.Millisecond},
		{"1h", time.Hour},
		{"1m30s", 90 * time.Second},
		{"1.5h", 90 * time.Minute},
		{"6m0s", 6 * time.Minute},
		{"0.0001ms", time.Millisecond},
		{"0s", 0},
		{"25h", 24 * time.Hour},
		{"20h20h", 24 * time.Hour},
		{"1d", 0},
		{"1us", 0},
		{"s", 0},
		{"1m 30s", 0},
		{"-5s", 0},
		{"1m5", 0},
	} {
		got := judge(429, false, "Retry-After: "+c.value)
		if got.Delay != c.want || got.HasDelay != (c.want > 0) || got.Kind != Limited {
			t.Errorf("%q: got %v, delay %v (%v); want limited, delay %v", c.value, got.Kind, got.Delay, got.HasDelay, c.want)
		}
	}
}

// Several fields, and the clock of the origin.
func TestRetryAfterTogether(t *testing.T) {
	for _, c := range []struct {
		name, head string
		want       time.Duration
	}{
		{"unusable line beside a good one", "Retry-After: soon\nRetry-After: 3\n", 3 * time.Second},
		{"number and date", "Retry-After: 3\nRetry-After: Sun, 29 Nov 2026 12:00:10 GMT\n", 10 * time.Second},
		{"date and longer number", "Retry-After: Sun, 29 Nov 2026 12:00:10 GMT\nRetry-After: 30\n", 30 * time.Second},
		{"the later of two dates", "Retry-After: Sun, 29 Nov 2026 12:00:20 GMT\nRetry-After: Sun, 29 Nov 2026 12:00:10 GMT\n", 20 * time.Second},
		{"milliseconds first, even if longer", "x-ms-retry-after-ms: 1500\nRetry-After: 1\n", 1500 * time.Millisecond},
		{"parts of a millisecond", "Retry-After-Ms: 0.2\n", time.Millisecond},
		{"the longer of two in milliseconds", "retry-after-ms: 100\nx-ms-retry-after-ms: 200\n", 200 * time.Millisecond},
		{"no milliseconds given", "retry-after-ms: 0\nRetry-After: 1\n", time.Second},
		{"unusable milliseconds", "retry-after-ms: -5\nRetry-After: 1\n", time.Second},
		{"a unit in milliseconds", "retry-after-ms: 5s\nRetry-After: 1\n", time.Second},
		{"beyond a day of milliseconds", "retry-after-ms: 999999999999\n", 24 * time.Hour},
		{"beyond a day of dates", "Retry-After: Sun, 29 Nov 2099 12:00:00 GMT\n", 24 * time.Hour},
		{"the Date field may come last", "Retry-After: Sun, 29 Nov 2026 12:01:40 GMT\nDate: Sun, 29 Nov 2026 12:01:30 GMT\n", 10 * time.Second},
		{"a clock that is behind", "Date: Sun, 29 Nov 2026 11:00:00 GMT\nRetry-After: Sun, 29 Nov 2026 11:00:10 GMT\n", 10 * time.Second},
		{"an unreadable Date", "Date: today\nRetry-After: Sun, 29 Nov 2026 12:00:10 GMT\n", 10 * time.Second},
		{"the earliest good Date", "Date: x\nDate: Sun, 29 Nov 2026 12:00:09 GMT\nDate: Sun, 29 Nov 2026 12:00:05 GMT\nRetry-After: Sun, 29 Nov 2026 12:00:10 GMT\n", 5 * time.Second},
		{"Date does not touch seconds", "Date: Sun, 29 Nov 2026 11:00:00 GMT\nRetry-After: 10\n", 10 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := judge(429, false, c.head); got.Delay != c.want {
				t.Errorf("got delay %v, want %v", got.Delay, c.want)
			}
		})
	}
}

// The time of receipt has nanoseconds, a delay has whole milliseconds: it may
// be longer than asked, never shorter.
func TestDelayRoundsUp(t *testing.T) {
	h := Head{Status: 429, At: t0.Add(999_999_999)}
	h.Field([]byte("Retry-After"), []byte("Sun, 29 Nov 2026 12:00:10 GMT"))
	if got, want := h.Verdict(nil).Delay, 9001*time.Millisecond; got != want {
		t.Errorf("got %v, want %v", got, want)
	}
}

// One head is judged for several budgets.
func TestVerdictKeepsTheHead(t *testing.T) {
	h := Head{Status: 503, At: t0}
	h.Field([]byte("Retry-After"), []byte("5"))
	first := h.Verdict([]int{503})
	if got := h.Verdict(nil); got.Kind != Capacity {
		t.Errorf("for 429: got %v, want %v", got.Kind, Capacity)
	}
	if got := h.Verdict([]int{503}); got != first || got.Kind != Limited {
		t.Errorf("again for 503: got %+v, want %+v", got, first)
	}
}
