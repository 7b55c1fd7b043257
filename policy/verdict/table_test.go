// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"slices"
	"strings"
	"testing"
	"time"
)

// What each vendor sends, with every dialect believed and with its own alone.
func TestVendors(t *testing.T) {
	type says []func(*Quota)
	for _, c := range []struct {
		dialect, head string
		want          says
		only          says          // with the dialect alone, where that differs
		exhausted     time.Duration // 0: something is left, or nobody says until when
	}{
		{"ietf", "RateLimit-Limit: 100\nRateLimit-Remaining: 0\nRateLimit-Reset: 30\n",
			says{limit(100), remaining(0), reset(30 * time.Second)}, nil, 30 * time.Second},
		{"ietf", "RateLimit: limit=100, remaining=0, reset=30\n",
			says{limit(100), remaining(0), reset(30 * time.Second)}, nil, 30 * time.Second},
		{"ietf", "RateLimit-Policy: \"burst\";q=100;w=60\nRateLimit: \"burst\";r=0;t=30\n",
			says{limit(100), remaining(0), reset(30 * time.Second), window(time.Minute)}, nil, 30 * time.Second},
		{"ietf", "ratelimit-limit: 3, 3;w=3600\nratelimit-remaining: 2\nratelimit-reset: 1795953600\n", // Envoy's limit, GitLab's reset
			says{limit(3), remaining(2), reset(0), window(time.Hour)}, nil, 0},
		{"x-ratelimit", "X-RateLimit-Limit: 60\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 1795953660000\n",
			says{limit(60), remaining(0), reset(time.Minute)}, nil, time.Minute},
		{"x-rate-limit", "X-Rate-Limit-Limit: 600\nX-Rate-Limit-Remaining: 0\nX-Rate-Limit-Reset: 1795953660\n", // Okta
			says{limit(600), remaining(0), reset(time.Minute)}, nil, 61 * time.Second},
		{"reddit", "x-ratelimit-remaining: 0.0\nx-ratelimit-used: 600\nx-ratelimit-reset: 321\n",
			says{remaining(0), reset(321 * time.Second)},
			says{remaining(0), reset(321 * time.Second), window(10 * time.Minute)}, 321 * time.Second},
		{"github", "x-ratelimit-limit: 5000\nx-ratelimit-remaining: 0\nx-ratelimit-used: 5000\nx-ratelimit-reset: 1795953900\nx-ratelimit-resource: core\n",
			says{limit(5000), remaining(0), reset(5 * time.Minute)}, nil, 301 * time.Second},
		{"discord", "X-RateLimit-Limit: 5\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 1795953602.470\nX-RateLimit-Reset-After: 1.970\nX-RateLimit-Bucket: abcd\nX-RateLimit-Scope: user\n",
			says{limit(5), remaining(0), reset(1970 * time.Millisecond)}, nil, 1970 * time.Millisecond},
		{"confluence", "X-RateLimit-Limit: 100\nX-RateLimit-Remaining: 7\nX-RateLimit-FillRate: 10\nX-RateLimit-Interval-Seconds: 60\nRetry-After: 0\n",
			says{limit(100), remaining(7), perSecond(1. / 6)}, nil, 0},
		{"twitter", "x-rate-limit-limit: 900\nx-rate-limit-remaining: 899\nx-rate-limit-reset: 1795954500\nx-user-limit-24hour-limit: 100\nx-user-limit-24hour-remaining: 0\nx-user-limit-24hour-reset: 1795957200\n",
			says{limit(100), remaining(0), reset(time.Hour), window(24 * time.Hour)}, nil, time.Hour + time.Second},
		{"twitter", "x-rate-limit-limit: 900\nx-rate-limit-remaining: 899\nx-rate-limit-reset: 1795954500\nx-app-limit-24hour-remaining: 7\n",
			says{limit(900), remaining(899), reset(15 * time.Minute)},
			says{limit(900), remaining(899), reset(15 * time.Minute), window(15 * time.Minute)}, 0},
		{"openai", "x-ratelimit-limit-requests: 500\nx-ratelimit-remaining-requests: 0\nx-ratelimit-reset-requests: 1m0s\nx-ratelimit-limit-tokens: 10000\nx-ratelimit-remaining-tokens: 9000\nx-ratelimit-reset-tokens: 6ms\n",
			says{limit(500), remaining(0), reset(time.Minute), toFull}, nil, 120 * time.Millisecond},
		{"openai", "x-ratelimit-limit-tokens: 10000\nx-ratelimit-remaining-tokens: 0\nx-ratelimit-reset-tokens: 1m0s\n",
			says{limit(10000), remaining(0), reset(time.Minute), toFull, other}, nil, time.Minute},
		{"anthropic", "anthropic-ratelimit-requests-limit: 50\nanthropic-ratelimit-requests-remaining: 49\nanthropic-ratelimit-requests-reset: 2026-11-29T12:00:01Z\nanthropic-ratelimit-tokens-remaining: 0\nanthropic-ratelimit-tokens-reset: 2026-11-29T12:00:30Z\n",
			says{limit(50), remaining(49), reset(time.Second), toFull}, nil, 31 * time.Second},
		{"anthropic", "anthropic-ratelimit-unified-status: rejected\nanthropic-ratelimit-unified-reset: 1795957200\n",
			says{remaining(0), reset(time.Hour), other}, nil, time.Hour + time.Second},
		{"anthropic", "anthropic-ratelimit-unified-status: allowed\nanthropic-ratelimit-unified-reset: 1795957200\n",
			says{reset(time.Hour), other}, nil, 0},
		{"stripe", "Stripe-Should-Retry: false\nStripe-Rate-Limited-Reason: global-rate\n", nil, nil, 0},
		{"shopify", "X-Shopify-Shop-Api-Call-Limit: 40/40\nRetry-After: 2.0\n", says{limit(40), remaining(0)}, nil, 0},
		{"hubspot", "X-HubSpot-RateLimit-Daily: 250000\nX-HubSpot-RateLimit-Daily-Remaining: 249999\nX-HubSpot-RateLimit-Interval-Milliseconds: 10000\nX-HubSpot-RateLimit-Max: 100\nX-HubSpot-RateLimit-Remaining: 99\nX-HubSpot-RateLimit-Secondly: 10\nX-HubSpot-RateLimit-Secondly-Remaining: 9\n",
			says{limit(100), remaining(99), window(10 * time.Second)}, nil, 0},
		{"hubspot", "X-HubSpot-RateLimit-Daily: 250000\nX-HubSpot-RateLimit-Daily-Remaining: 0\nX-HubSpot-RateLimit-Max: 100\nX-HubSpot-RateLimit-Remaining: 99\n",
			says{limit(250000), remaining(0), window(24 * time.Hour)}, nil, 0},
		{"sp-api", "x-amzn-RateLimit-Limit: 0.0056\n", says{perSecond(0.0056)}, nil, 0},
		{"zendesk", "X-Rate-Limit: 700\nX-Rate-Limit-Remaining: 699\nratelimit-limit: 700\nratelimit-remaining: 699\nratelimit-reset: 41\nzendesk-ratelimit-tickets-index: total=100; remaining=0; resets=12\n",
			says{limit(100), remaining(0), reset(12 * time.Second)}, nil, 12 * time.Second},
		{"zendesk", "Zendesk-RateLimit-incremental-exports: total=10; remaining=9; resets=41\n",
			says{limit(10), remaining(9), reset(41 * time.Second)}, nil, 0},
		{"salesforce", "Sforce-Limit-Info: api-usage=25/5000; per-app-api-usage=17/250(appName=sample-app)\n",
			says{limit(250), remaining(233), window(24 * time.Hour)}, nil, 0},
		{"salesforce", "Sforce-Limit-Info: api-usage=4990/5000; per-app-api-usage=17/250(appName=x)\n",
			says{limit(5000), remaining(10), window(24 * time.Hour)}, nil, 0},
		{"azure", "x-ms-ratelimit-remaining-subscription-reads: 11999\nx-ms-ratelimit-remaining-tenant-writes: 1199\n", says{remaining(1199)}, nil, 0},
		{"azure", "x-ms-ratelimit-remaining-resource: Microsoft.Compute/HighCostGet3Min;0,Microsoft.Compute/HighCostGet30Min;1297\nx-ms-ratelimit-remaining-subscription-reads: 11999\n",
			says{remaining(0)}, nil, 0},
		{"docker", "ratelimit-limit: 100;w=21600\nratelimit-remaining: 99;w=21600\ndocker-ratelimit-source: 192.0.2.1\n",
			says{limit(100), remaining(99), window(6 * time.Hour)}, nil, 0},
	} {
		t.Run(c.dialect, func(t *testing.T) {
			check := func(name string, only *Dialect, say says) {
				t.Helper()
				var want Quota
				for _, f := range say {
					f(&want)
				}
				h := Head{Status: 200, At: t0, Only: only}
				feed(&h, c.head)
				got := h.Verdict(nil)
				if got.Kind != OK || got.HasDelay || got.Quota != want || got.Dialect != c.dialect {
					t.Errorf("%s: got %+v, want ok of %s with quota %+v", name, got, c.dialect, want)
				}
				if got.Exhausted != c.exhausted || got.HasExhausted != (c.exhausted > 0) {
					t.Errorf("%s: got exhausted for %v (%v), want %v", name, got.Exhausted, got.HasExhausted, c.exhausted)
				}
			}
			check("all", nil, c.want)
			if c.only == nil {
				c.only = c.want
			}
			check("only", Builtin(c.dialect), c.only)
		})
	}
}

// A dialect alone believes nothing of the others, but the Retry-After family
// and what is no number.
func TestOnly(t *testing.T) {
	const others = "ratelimit-remaining: 0\nratelimit-reset: 9\nx-shopify-shop-api-call-limit: 1/40\n"
	h := Head{Status: 429, At: t0, Only: Builtin("github")}
	feed(&h, others)
	if got, want := h.Verdict(nil), (Verdict{Kind: Limited}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	feed(&h, "retry-after-ms: 1500\nRetry-After: 9\n")
	if got, want := h.Verdict(nil), (Verdict{Kind: Limited, Delay: 1500 * time.Millisecond, HasDelay: true, Dialect: "retry-after"}); got != want {
		t.Errorf("with Retry-After: got %+v, want %+v", got, want)
	}
	// By size this would be a time from now.
	feed(&h, "x-ratelimit-remaining: 0\nx-ratelimit-reset: 60\n")
	if got := h.Verdict(nil).Quota; !got.HasReset || got.Reset != 0 {
		t.Errorf("seconds since 1970: got %+v, want a reset long past", got)
	}
	h = Head{Status: 403, At: t0, Only: Builtin("slack")}
	feed(&h, others+"cf-mitigated: challenge\n")
	if got := h.Verdict(nil); got.Kind != Challenge {
		t.Errorf("got %v, want %v", got.Kind, Challenge)
	}
	for name, want := range map[string]time.Duration{"discord": 24 * time.Hour, "discord-v6": 64500 * time.Millisecond} {
		h := Head{Status: 429, At: t0, Only: Builtin(name)}
		feed(&h, "Retry-After: 64500\nX-RateLimit-Global: true\n")
		if got := h.Verdict(nil); got.Delay != min(want, 64500*time.Second) || got.Dialect != name {
			t.Errorf("%s: got delay %v of %q, want %v", name, got.Delay, got.Dialect, want)
		}
	}
}

// Which dialect an answer speaks.
func TestDialect(t *testing.T) {
	for _, c := range []struct{ head, want string }{
		{"", ""},
		{"Server: x\n", ""},
		{"Retry-After: 0\n", ""},
		{"Retry-After: x\n", ""},
		{"Retry-After: 3\n", "retry-after"},
		{"Retry-After: Sun, 29 Nov 2026 12:00:10 GMT\n", "retry-after"},
		{"x-ms-retry-after-ms: 20\n", "retry-after"},
		{"x-ratelimit-bucket: x\n", "discord"},
		{"x-ratelimit-remaining: x\n", ""},
		{"RateLimit: \"a\";r=x\n", ""},
		{"RateLimit: limit=x\n", ""},
		{"Age: 4\nx-ratelimit-remaining: 3\n", ""},
		{"Age: 4\nx-ratelimit-remaining: 3\nRetry-After: 3\n", "retry-after"},
		{"x-ratelimit-limit: 3\nx-ratelimit-limit: 3\nx-ratelimit-limit: 3\n", "x-ratelimit"},
		{"x-ratelimit-limit: 3\nx-ratelimit-used: 3\n", "github"},
		{"x-ratelimit-remaining: 3\nx-ratelimit-reset-after: 3\n", "discord"},
		// What vendors share goes to whom the rest belongs.
		{"ratelimit-remaining: 3\nx-rate-limit: 3\n", "zendesk"},
		// The dialect is that of the quota, which is the draft's.
		{"ratelimit-remaining: 3\nsforce-limit-info: api-usage=1/9\n", "ietf"},
	} {
		if got := judge(429, false, c.head).Dialect; got != c.want {
			t.Errorf("%q: got %q, want %q", c.head, got, c.want)
		}
	}
}

// Malformed values are ignored whole.
func TestMalformed(t *testing.T) {
	for _, line := range []string{
		"x-shopify-shop-api-call-limit: 32/40; 5",
		"x-shopify-shop-api-call-limit: /40",
		"x-shopify-shop-api-call-limit: ",
		"sforce-limit-info: api-usage",
		"sforce-limit-info: api-usage=1/2(x",
		"zendesk-ratelimit-x: total=100; remaining=x; resets=41",
		"zendesk-ratelimit-x: total=100; remaining",
		"zendesk-ratelimit-x: total=100; resets=soon",
		"zendesk-ratelimit-x: color=5",
		"zendesk-ratelimit-x: ",
		"x-ms-ratelimit-remaining-resource: a;1,b",
		"x-ms-ratelimit-remaining-resource: 5",
		"x-ms-ratelimit-remaining-subscription-reads: many",
		"x-hubspot-ratelimit-interval-milliseconds: 1s",
		"x-ratelimit-fillrate: -1",
		"x-ratelimit-fillrate: 5", // per nobody knows what
		"x-ratelimit-interval-seconds: 1m",
		"anthropic-ratelimit-tokens-reset: 45",
		"anthropic-ratelimit-unified-reset: 2026-11-29T12:00:45Z",
		"anthropic-ratelimit-unified-status: ",
		"x-amzn-ratelimit-limit: 0.0000000000000000000000000000000000000001",
		"stripe-should-retry: perhaps",
	} {
		if got := judge(200, false, line); got.Quota != (Quota{}) || got.HasExhausted || got.Retry != NoAdvice {
			t.Errorf("%s: got %+v, want nothing", line, got)
		}
	}
}

func TestAdvice(t *testing.T) {
	for _, c := range []struct {
		head string
		want Advice
	}{
		{"", NoAdvice},
		{"Stripe-Should-Retry: true\n", DoRetry},
		{"Stripe-Should-Retry: FALSE\n", DoNotRetry},
		{"x-should-retry: true\nstripe-should-retry: false\n", DoNotRetry},
		{"x-should-retry: false\nx-should-retry: true\n", DoNotRetry},
	} {
		if got := judge(429, false, c.head).Retry; got != c.want {
			t.Errorf("%q: got %v, want %v", c.head, got, c.want)
		}
	}
}

// Whose limit it is: of strangers as well, or of the exit's provider.
func TestWhoseLimit(t *testing.T) {
	for _, c := range []struct {
		name   string
		status int
		head   string
		want   Kind
		delay  time.Duration
	}{
		{"user", 429, "X-RateLimit-Scope: user\nRetry-After: 5\n", Limited, 5 * time.Second},
		{"global", 429, "X-RateLimit-Scope: global\nX-RateLimit-Global: true\nRetry-After: 5\n", Limited, 5 * time.Second},
		{"shared", 429, "X-RateLimit-Scope: shared\nRetry-After: 5\n", Capacity, 5 * time.Second},
		{"shared without Retry-After", 429, "X-RateLimit-Scope: shared\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset-After: 3\n", Capacity, 3 * time.Second},
		{"shared, but an answer", 200, "X-RateLimit-Scope: shared\nRetry-After: 5\n", OK, 0},
		{"the exit's provider", 429, "x-brd-error-code: bucket_rate_limit\nRetry-After: 5\n", ExitTrouble, 5 * time.Second},
		{"the exit's provider forbids", 403, "X-Luminati-Error: Forbidden\n", ExitTrouble, 0},
		{"the exit's provider, in an answer", 200, "x-brd-error: x\n", OK, 0},
		{"capacity is no shortage", 503, "x-ratelimit-remaining: 0\nx-ratelimit-reset: 5\n", Capacity, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := judge(c.status, false, c.head); got.Kind != c.want || got.Delay != c.delay {
				t.Errorf("got %v, delay %v; want %v, delay %v", got.Kind, got.Delay, c.want, c.delay)
			}
		})
	}
}

// An answer that is no limit closes the lane all the same if it says that
// nothing is left.
func TestExhausted(t *testing.T) {
	const out = "x-ratelimit-remaining: 0\nx-ratelimit-reset: 1795953605\n"
	for _, c := range []struct {
		name string
		h    Head
		head string
		want time.Duration
	}{
		{"success", Head{Status: 200}, out, 6 * time.Second},
		{"not found", Head{Status: 404}, out, 6 * time.Second},
		{"error", Head{Status: 500}, out, 6 * time.Second},
		{"redirect", Head{Status: 301}, out, 6 * time.Second},
		{"limit", Head{Status: 429}, out + "Retry-After: 2\n", 6 * time.Second},
		{"by the origin's clock", Head{Status: 200}, out + "Date: Sun, 29 Nov 2026 12:00:03 GMT\n", 3 * time.Second},
		{"the latest", Head{Status: 200}, out + "ratelimit-remaining: 0\nratelimit-reset: 9\n", 9 * time.Second},
		{"a list", Head{Status: 200}, "RateLimit: \"a\";r=0;t=4, \"b\";r=9;t=60\n", 4 * time.Second},
		{"parts of a millisecond", Head{Status: 200}, "x-ratelimit-remaining: 0\nx-ratelimit-reset-after: 0.0001\n", time.Millisecond},
		{"the sanity maximum", Head{Status: 200}, "x-ratelimit-remaining: 0\nx-ratelimit-reset: 999999\n", MaxDelay},
		{"the same instant in two forms", Head{Status: 200}, "x-ratelimit-reset: 1795953605000\n" + out, 6 * time.Second},
		{"the same instant, the other way round", Head{Status: 200}, out + "x-ratelimit-reset: 1795953605000\n", 6 * time.Second},
		{"something left", Head{Status: 200}, "x-ratelimit-remaining: 1\nx-ratelimit-reset: 5\n", 0},
		{"until nobody knows", Head{Status: 200}, "x-ratelimit-remaining: 0\n", 0},
		{"over", Head{Status: 200}, "x-ratelimit-remaining: 0\nx-ratelimit-reset: 1795953599\n", 0},
		{"cached", Head{Status: 200}, "Age: 1\n" + out, 0},
		{"fresh from the cache", Head{Status: 200}, "Age: 0\n" + out, 6 * time.Second},
		{"headers off", Head{Status: 200, RetryAfterOnly: true}, out, 0},
		{"another dialect", Head{Status: 200, Only: Builtin("ietf")}, out, 0},
		{"a tunnel", Head{Status: 200, Connect: true}, out, 0},
		{"trouble of the exit", Head{Status: 429, Connect: true}, out, 0},
		{"used up", Head{Status: 200}, "x-ratelimit-limit: 60\nx-ratelimit-used: 61\nx-ratelimit-reset: 5\n", 5 * time.Second},
		{"a bucket of unknown size", Head{Status: 200}, "x-ratelimit-remaining-requests: 0\nx-ratelimit-reset-requests: 5s\n", 5 * time.Second},
		{"a bucket that fills by stamps", Head{Status: 200}, "anthropic-ratelimit-requests-limit: 2\nanthropic-ratelimit-requests-remaining: 0\nanthropic-ratelimit-requests-reset: 2026-11-29T12:00:10Z\n", 6 * time.Second},
		{"a bucket of size 0", Head{Status: 200}, "x-ratelimit-limit-requests: 0\nx-ratelimit-remaining-requests: 0\nx-ratelimit-reset-requests: 5s\n", 5 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.h.At = t0
			feed(&c.h, c.head)
			got := c.h.Verdict(nil)
			if got.Exhausted != c.want || got.HasExhausted != (c.want > 0) {
				t.Errorf("got %v (%v), want %v", got.Exhausted, got.HasExhausted, c.want)
			}
		})
	}
}

// A limit that CONNECT ran into is the exit's; a tunnel says nothing of the
// destination's.
func TestQuotaOfConnect(t *testing.T) {
	const head = "ratelimit-limit: 10\nratelimit-remaining: 0\nratelimit-reset: 7\n"
	if got := judge(429, true, head); got.Delay != 7*time.Second || got.Quota.Limit != 10 || got.Dialect != "ietf" {
		t.Errorf("429: got %+v, want a delay of 7s and the quota", got)
	}
	if got := judge(200, true, head); got.Quota != (Quota{}) {
		t.Errorf("200: got %+v, want no quota", got)
	}
}

func TestCost(t *testing.T) {
	for _, c := range []struct {
		head string
		want uint64
		has  bool
	}{
		{"X-Cost: 7\n", 7, true},
		{"x-cost: \t7 \n", 7, true},
		{"x-cost: 0\n", 0, true},
		{"x-cost: 2.000\n", 2, true},
		{"x-cost: 2.0001\n", 3, true},
		{"x-cost: .5\n", 1, true},
		{"x-cost: 999999999999999999999999\n", 1e9, true},
		{"x-cost: 1000000000.5\n", 1e9, true},
		{"x-cost: 3\nx-cost: 12\nx-cost: 4\n", 12, true},
		{"x-cost: -1\n", 0, false},
		{"x-cost: 1e3\n", 0, false},
		{"x-cost: 1.2.3\n", 0, false},
		{"x-cost: .\n", 0, false},
		{"x-cost:\n", 0, false},
		{"x-cost: x\nx-cost: 5\n", 5, true},
		{"other: 5\n", 0, false},
		{"Age: 3\nx-cost: 5\n", 0, false}, // what another request did cost
	} {
		for _, h := range []Head{{Status: 200}, {Status: 429, RetryAfterOnly: true}, {Status: 503, Only: Builtin("slack")}} {
			h.At, h.CostField = t0, "x-cost"
			feed(&h, c.head)
			if got := h.Verdict(nil); got.Cost != c.want || got.HasCost != c.has {
				t.Errorf("%q: got %d (%v), want %d (%v)", c.head, got.Cost, got.HasCost, c.want, c.has)
			}
		}
	}
	// A field of a dialect can be the cost as well.
	h := Head{Status: 200, At: t0, CostField: "ratelimit-limit"}
	feed(&h, "RateLimit-Limit: 5\n")
	if got := h.Verdict(nil); got.Cost != 5 || got.Quota.Limit != 5 {
		t.Errorf("got cost %d and limit %d, want 5 and 5", got.Cost, got.Quota.Limit)
	}
	if got := judge(200, false, ": 5\n"); got.HasCost {
		t.Error("a cost without a field for it")
	}
}

func TestSkew(t *testing.T) {
	for _, c := range []struct {
		head string
		want time.Duration
		has  bool
	}{
		{"Date: Sun, 29 Nov 2026 12:01:30 GMT\n", 90 * time.Second, true},
		{"Date: Sunday, 29-Nov-26 11:00:00 GMT\n", -time.Hour, true},
		{"date: sun nov 29 12:00:00 2026\n", 0, true},
		{"Date: today\n", 0, false},
		{"Date: today\nDate: Sun, 29 Nov 2026 12:00:05 GMT\n", 5 * time.Second, true},
		{"Date: " + strings.Repeat("x", 100) + "\nDate: Sun, 29 Nov 2026 12:00:05 GMT\n", 5 * time.Second, true},
		{"Date:\n", 0, false},
		{"", 0, false},
		{"Age: 60\nDate: Sun, 29 Nov 2026 11:59:00 GMT\n", 0, false}, // it may be the cache's age
	} {
		h := Head{Status: 200, At: t0}
		feed(&h, c.head)
		if got, ok := h.Skew(); got != c.want || ok != c.has {
			t.Errorf("%q: got %v (%v), want %v (%v)", c.head, got, ok, c.want, c.has)
		}
	}
}

// More limits than are looked at: which ones are does not depend on the order.
func TestManyCounters(t *testing.T) {
	var lines []string
	for _, prefix := range []string{
		"x-rate-limit-", "x-ratelimit-", "ratelimit-", "x-app-limit-24hour-", "x-user-limit-24hour-",
		"anthropic-ratelimit-requests-", "anthropic-ratelimit-tokens-", "anthropic-ratelimit-input-tokens-",
		"anthropic-ratelimit-output-tokens-",
	} {
		lines = append(lines, prefix+"limit: 5\n", prefix+"remaining: 3\n")
	}
	lines = append(lines, "sforce-limit-info: a=9/9\n", "x-shopify-shop-api-call-limit: 9/9\n", "x-hubspot-ratelimit-max: 5\n")
	want := judge(429, false, strings.Join(lines, ""))
	if want.Quota.Limit != 5 || want.Quota.Remaining != 3 {
		t.Errorf("got %+v, want the first counter of the table", want)
	}
	slices.Reverse(lines)
	if got := judge(429, false, strings.Join(lines, "")); got != want {
		t.Errorf("got %+v in reverse, want %+v", got, want)
	}
}

// The table fits into what is compiled of it, and repeats nothing.
func TestTable(t *testing.T) {
	if n := len(auto.fields); n > 64*len(fieldSet{}) || n > 255 {
		t.Errorf("%d fields do not fit", n)
	}
	counters := int32(0)
	seen := map[string]bool{}
	for _, e := range table {
		if seen[e.name] || !validName(e.name, isNameByte) {
			t.Errorf("name %q", e.name)
		}
		seen[e.name] = true
		names := map[string]bool{}
		for _, r := range e.fields {
			if names[r.Header] || r.Header != strings.ToLower(r.Header) {
				t.Errorf("%s: %q is there twice or not in lower case", e.name, r.Header)
			}
			names[r.Header] = true
			if r.Says <= SaysMark {
				if err := r.check(); err != nil {
					t.Errorf("%s: %s: %v", e.name, r.Header, err)
				}
			}
		}
		d := Builtin(e.name)
		if d == nil || d.Name != e.name {
			t.Fatalf("%s: got %v", e.name, d)
		}
		for _, f := range d.index.fields {
			if f.counter >= firstBuiltin {
				counters = max(counters, f.counter-firstBuiltin)
			}
			if got, _ := d.index.find([]byte(strings.ToUpper(f.name))); got == nil || got.name != f.name {
				t.Errorf("%s: %s is not found", e.name, f.name)
			}
			if got, _ := auto.find([]byte(f.name)); got == nil {
				t.Errorf("%s: %s is not found among all", e.name, f.name)
			}
		}
	}
	if counters >= 64 {
		t.Errorf("%d counters do not fit", counters)
	}
	if names := BuiltinNames(); len(names) != len(table) || !slices.IsSorted(names) {
		t.Errorf("got names %v", names)
	}
	if got := Builtin("nobody"); got != nil {
		t.Errorf("got %v for an unknown name", got)
	}
}
