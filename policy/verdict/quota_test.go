// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"testing"
	"time"
)

func limit(n int64) func(*Quota)     { return func(q *Quota) { q.Limit, q.HasLimit = n, true } }
func remaining(n int64) func(*Quota) { return func(q *Quota) { q.Remaining, q.HasRemaining = n, true } }
func window(d time.Duration) func(*Quota) {
	return func(q *Quota) { q.Window = d }
}
func reset(d time.Duration) func(*Quota) {
	return func(q *Quota) { q.Reset, q.HasReset = d, true }
}
func toFull(q *Quota)                  { q.ToFull = true }
func other(q *Quota)                   { q.Other = true }
func perSecond(x float64) func(*Quota) { return func(q *Quota) { q.PerSecond = x } }

func TestQuota(t *testing.T) {
	type says []func(*Quota)
	for _, c := range []struct {
		name, head string
		want       says
		delay      time.Duration // that a 429 with this head gives
	}{
		{"nothing", "Server: x\nX-Cache: hit\nRate: 1\n", nil, 0},

		// Numbers whose size says what they are.
		{"reset in seconds", "x-ratelimit-remaining: 0\nx-ratelimit-reset: 999999\n", says{remaining(0), reset(999999 * time.Second)}, 24 * time.Hour},
		{"reset in no range", "x-ratelimit-remaining: 0\nx-ratelimit-reset: 1000000\n", says{remaining(0)}, 0},
		{"reset as an epoch, whole seconds", "x-ratelimit-remaining: 0\nx-ratelimit-reset: 1795953605\n", says{remaining(0), reset(5 * time.Second)}, 6 * time.Second},
		{"reset as an epoch with a fraction", "x-ratelimit-remaining: 0\nx-ratelimit-reset: 1795953605.25\n", says{remaining(0), reset(5250 * time.Millisecond)}, 5250 * time.Millisecond},
		{"reset as an epoch in milliseconds", "x-ratelimit-remaining: 0\nx-ratelimit-reset: 1795953605250\n", says{remaining(0), reset(5250 * time.Millisecond)}, 5250 * time.Millisecond},
		{"reset in microseconds is nothing", "x-ratelimit-remaining: 0\nx-ratelimit-reset: 1795953605250000\n", says{remaining(0)}, 0},
		{"reset within this second", "x-ratelimit-remaining: 0\nx-ratelimit-reset: 1795953600\n", says{remaining(0), reset(0)}, time.Second},
		{"reset in the past", "x-ratelimit-remaining: 0\nx-ratelimit-reset: 1795953590\n", says{remaining(0), reset(0)}, 0},
		{"reset against the origin's clock", "Date: Sun, 29 Nov 2026 12:00:30 GMT\nx-ratelimit-remaining: 0\nx-ratelimit-reset: 1795953635\n", says{remaining(0), reset(5 * time.Second)}, 6 * time.Second},
		{"reset as a date", "x-ratelimit-remaining: 0\nx-ratelimit-reset: 2026-11-29T12:00:05Z\n", says{remaining(0), reset(5 * time.Second)}, 6 * time.Second},
		{"reset as a date with a fraction", "x-ratelimit-remaining: 0\nx-ratelimit-reset: 2026-11-29T12:00:05.5Z\n", says{remaining(0), reset(5500 * time.Millisecond)}, 5500 * time.Millisecond},
		{"reset as a duration", "x-ratelimit-remaining: 0\nx-ratelimit-reset: 12ms\n", says{remaining(0), reset(12 * time.Millisecond)}, 12 * time.Millisecond},
		{"negative numbers", "x-ratelimit-limit: -1\nx-ratelimit-remaining: -1\nx-ratelimit-reset: -1\n", nil, 0},
		{"huge numbers", "x-ratelimit-limit: 99999999999999999999\nx-ratelimit-remaining: 1e3\nx-ratelimit-reset: 99999999999999999999\n", nil, 0},
		{"a fraction left is nothing left", "x-ratelimit-remaining: 0.9\nx-ratelimit-reset: 3\n", says{remaining(0), reset(3 * time.Second)}, 3 * time.Second},
		{"unreadable fraction", "x-ratelimit-remaining: 0.x\nx-ratelimit-reset: 3\n", says{reset(3 * time.Second)}, 0},

		// A reset alone is no delay: GitHub's secondary limits come with the
		// reset of the hour.
		{"something left", "x-ratelimit-remaining: 10\nx-ratelimit-reset: 1800\n", says{remaining(10), reset(30 * time.Minute)}, 0},
		{"nothing said of what is left", "x-ratelimit-limit: 10\nx-ratelimit-reset: 1800\n", says{limit(10), reset(30 * time.Minute)}, 0},
		{"Retry-After goes first", "x-ratelimit-remaining: 0\nx-ratelimit-reset: 1800\nRetry-After: 2\n", says{remaining(0), reset(30 * time.Minute)}, 2 * time.Second},

		// Vendors.
		{"twice, the stricter counts", "x-ratelimit-limit: 10\nx-ratelimit-limit: 5\nx-ratelimit-remaining: 0\nx-ratelimit-remaining: 3\nx-ratelimit-reset: 7\nx-ratelimit-reset: 2\n", says{limit(5), remaining(0), reset(7 * time.Second)}, 7 * time.Second},
		{"x-rate-limit", "x-rate-limit-limit: 15\nX-Rate-Limit-Remaining: 0\nx-rate-limit-reset: 1795954500\n", says{limit(15), remaining(0), reset(15 * time.Minute)}, 15*time.Minute + time.Second},
		{"reset-after in spite of its size", "x-ratelimit-remaining: 0\nx-ratelimit-reset-after: 1000000\n", says{remaining(0), reset(1000000 * time.Second)}, 24 * time.Hour},
		{"tokens run out before requests", "x-ratelimit-remaining-requests: 9\nx-ratelimit-reset-requests: 1s\nx-ratelimit-remaining-tokens: 0\nx-ratelimit-reset-tokens: 6m0s\n", says{remaining(9), reset(time.Second), toFull}, 6 * time.Minute},
		{"input and output tokens", "anthropic-ratelimit-input-tokens-remaining: 0\nanthropic-ratelimit-input-tokens-reset: 2026-11-29T12:00:10Z\nanthropic-ratelimit-output-tokens-limit: 7\nanthropic-ratelimit-output-tokens-remaining: 0\nanthropic-ratelimit-output-tokens-reset: 2026-11-29T12:00:20Z\n", says{remaining(0), reset(10 * time.Second), toFull, other}, 21 * time.Second},
		{"an unknown part", "x-ratelimit-limit-weather: 5\nanthropic-ratelimit-weather-limit: 5\nanthropic-ratelimit-limit: 5\nx-ratelimit-bucket: 5\n", nil, 0},
		{"shopify overdrawn", "X-Shopify-Shop-Api-Call-Limit: 42/40\n", says{limit(40), remaining(0)}, 0},
		{"shopify malformed", "X-Shopify-Shop-Api-Call-Limit: 42\n", nil, 0},
		{"hubspot", "X-HubSpot-RateLimit-Max: 100\nX-HubSpot-RateLimit-Remaining: 99\nX-HubSpot-RateLimit-Interval-Milliseconds: 10000\nX-HubSpot-RateLimit-Daily: 250000\n", says{limit(100), remaining(99), window(10 * time.Second)}, 0},
		{"amazon", "x-amzn-RateLimit-Limit: 0.5\n", says{perSecond(0.5)}, 0},
		{"amazon malformed", "x-amzn-RateLimit-Limit: 1e9\nx-amzn-RateLimit-Limit: inf\nx-amzn-RateLimit-Limit: 0.5/s\n", nil, 0},
		{"amazon beside another", "x-amzn-RateLimit-Limit: 2\nratelimit-remaining: 3\n", says{remaining(3), perSecond(2)}, 0},
		{"amazon, the slower counts", "x-amzn-RateLimit-Limit: 5\nx-amzn-RateLimit-Limit: 0.04512\nx-amzn-RateLimit-Limit: 2\n", says{perSecond(0.04512)}, 0},
		{"amazon stopped", "x-amzn-RateLimit-Limit: 0\n", nil, 0},
		{"draft before vendor", "x-ratelimit-limit: 1\nratelimit-limit: 2\n", says{limit(2)}, 0},

		// RateLimit-Limit and the like.
		{"window of the limit", "RateLimit-Limit: 100;w=21600\n", says{limit(100), window(6 * time.Hour)}, 0},
		{"window of a later item", "RateLimit-Limit: 3, 10;w=1 ,3; burst=5; w=3600\n", says{limit(3), window(time.Hour)}, 0},
		{"window of a policy", "RateLimit-Policy: 100;w=60\nRateLimit-Limit: 100\n", says{limit(100), window(time.Minute)}, 0},
		{"window of a later policy", "RateLimit-Policy: 10;w=1, 100;w=60\nRateLimit-Limit: 100\n", says{limit(100), window(time.Minute)}, 0},
		{"docker", "ratelimit-limit: 100;w=21600\nratelimit-remaining: 76;w=21600\ndocker-ratelimit-source: 192.0.2.1\n", says{limit(100), remaining(76), window(6 * time.Hour)}, 0},
		{"lines that a proxy joined", "x-ratelimit-limit: 10, 5\nx-ratelimit-remaining: 4, 0\nx-ratelimit-reset: 3, 7\n", says{limit(10), remaining(0), reset(7 * time.Second)}, 7 * time.Second},
		{"half a list", "x-ratelimit-remaining: 0,\nx-ratelimit-reset: 3, x\n", nil, 0},
		{"window of another policy", "RateLimit-Policy: 10;w=60\nRateLimit-Limit: 100\n", says{limit(100)}, 0},
		{"a list that breaks off", "RateLimit-Limit: 100, x\n", nil, 0},
		{"a window too long", "RateLimit-Limit: 1;w=9999999999999\n", says{limit(1), window(longest)}, 0},

		// RateLimit as a dictionary.
		{"dictionary exhausted", "RateLimit: limit=10,remaining=0,\treset=7\n", says{limit(10), remaining(0), reset(7 * time.Second)}, 7 * time.Second},
		{"dictionary with more", "RateLimit: limit=10, extra=5\n", says{limit(10)}, 0},
		{"dictionary beside fields", "RateLimit-Limit: 8\nRateLimit: limit=10, remaining=3\nRateLimit-Remaining: 5\n", says{limit(8), remaining(3)}, 0},
		{"dictionary malformed", "RateLimit: limit=10, remaining=x\n", nil, 0},
		{"dictionary that breaks off", "RateLimit: limit=10,\n", nil, 0},

		// RateLimit as a list.
		{"bare token", "RateLimit: default;r=50;t=30\n", says{remaining(50), reset(30 * time.Second)}, 0},
		{"without r", "RateLimit: \"default\";t=30\n", says{reset(30 * time.Second)}, 0},
		{"blanks and unknown parameters", "RateLimit: \"a\" ; r=5; pk=:aGk=:;x; s=\"q;,\\\"\"; y=?0;t=1\n", says{remaining(5), reset(time.Second)}, 0},
		{"the item that leaves least", "RateLimit-Policy: \"hour\";q=1000;w=3600, \"day\";q=5000;w=86400\nRateLimit: \"hour\";r=998;t=3600, \"day\";r=100;t=4000\n", says{limit(5000), remaining(100), reset(4000 * time.Second), window(24 * time.Hour)}, 0},
		{"equal items, the later reset", "RateLimit: \"a\";r=0;t=5, \"b\";r=0;t=9\n", says{remaining(0), reset(9 * time.Second)}, 9 * time.Second},
		{"two lines", "RateLimit: \"a\";r=5;t=5\nRateLimit: \"b\";r=1;t=9\n", says{remaining(1), reset(9 * time.Second)}, 0},
		{"more than are kept", "RateLimit: a;r=9, b;r=8, c;r=7, d;r=6, e;r=0;t=9\n", says{remaining(6)}, 9 * time.Second},
		{"escaped name", "RateLimit-Policy: \"a\\\"b\";q=7\nRateLimit: \"a\\\"b\";r=5\n", says{limit(7), remaining(5)}, 0},
		{"a policy of another name", "RateLimit-Policy: \"a\";q=7\nRateLimit: \"b\";r=5\n", says{remaining(5)}, 0},
		{"what is counted is named", "RateLimit-Policy: \"a\";q=7;qu=\"requests\"\nRateLimit: \"a\";r=5\n", says{limit(7), remaining(5)}, 0},
		{"bytes are no requests, but can run out", "RateLimit-Policy: \"a\";q=7;qu=\"content-bytes\"\nRateLimit: \"a\";r=0;t=4\n", says{limit(7), remaining(0), reset(4 * time.Second), other}, 4 * time.Second},
		{"requests before bytes", "RateLimit-Policy: \"a\";q=7;qu=\"content-bytes\", \"b\";q=5\nRateLimit: \"a\";r=0;t=4, \"b\";r=2;t=1\n", says{limit(5), remaining(2), reset(time.Second)}, 4 * time.Second},
		{"requests on the way", "RateLimit-Policy: \"a\";q=7;qu=\"concurrent-requests\"\nRateLimit: \"a\";r=3\n", says{limit(7), remaining(3), other}, 0},
		{"partition keys", "RateLimit-Policy: \"a\";q=100;w=60;pk=:QUJD:\nRateLimit: \"a\";r=5;t=8;pk=:QUJD:\n", says{limit(100), remaining(5), reset(8 * time.Second), window(time.Minute)}, 0},
		{"negative", "RateLimit: \"a\";r=-1;t=5\n", nil, 0},
		{"sixteen digits", "RateLimit: \"a\";r=1000000000000000\n", nil, 0},
		{"string that does not end", "RateLimit: \"a;r=1\n", nil, 0},
		{"bad escape", "RateLimit: \"a\\b\";r=1\n", nil, 0},
		{"letters of no string", "RateLimit: \"ä\";r=1\n", nil, 0},
		{"no value", "RateLimit: \"a\";x=;r=1\n", nil, 0},
		{"empty", "RateLimit:\nRateLimit-Policy:\n", nil, 0},
		{"list that breaks off", "RateLimit: \"a\";r=1,\n", nil, 0},

		{"cached answer", "Age: 1\nx-ratelimit-remaining: 0\nx-ratelimit-reset: 9\nx-amzn-RateLimit-Limit: 2\n", nil, 0},
		{"fresh answer of a cache", "Age: 0\nx-ratelimit-remaining: 3\n", says{remaining(3)}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			var want Quota
			for _, say := range c.want {
				say(&want)
			}
			got := judge(429, false, c.head)
			if got.Quota != want {
				t.Errorf("got %+v, want %+v", got.Quota, want)
			}
			if got.Delay != c.delay || got.HasDelay != (c.delay > 0) {
				t.Errorf("got delay %v (%v), want %v", got.Delay, got.HasDelay, c.delay)
			}
			if ok := judge(200, false, c.head); ok.Quota != want || ok.HasDelay || ok.Kind != OK {
				t.Errorf("on 200: got %+v, want ok without delay and quota %+v", ok, want)
			}
		})
	}
}

// headers: off leaves the Retry-After family and what is no number.
func TestRetryAfterOnly(t *testing.T) {
	head := "x-ratelimit-remaining: 0\nx-ratelimit-reset: 9\nRateLimit: \"a\";r=0;t=9\nx-amzn-RateLimit-Limit: 2\n"
	h := Head{Status: 429, At: t0, RetryAfterOnly: true}
	feed(&h, head)
	if got, want := h.Verdict(nil), (Verdict{Kind: Limited}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	feed(&h, "Retry-After: 3\n")
	if got := h.Verdict(nil).Delay; got != 3*time.Second {
		t.Errorf("with Retry-After: got %v, want 3s", got)
	}
	h = Head{Status: 403, At: t0, RetryAfterOnly: true}
	feed(&h, head)
	if got := h.Verdict(nil).Kind; got != OK {
		t.Errorf("403 with nothing left: got %v, want %v", got, OK)
	}
}
