// SPDX-License-Identifier: Apache-2.0

package verdict

import "time"

// Windows that names or manuals of vendors tell.
const (
	second = time.Second
	day    = 24 * time.Hour
)

// entry is a row of the table.
type entry struct {
	name   string
	fields []FieldRule
}

// Counters that several dialects share, since their fields have one name.
const (
	counterDraft = "ratelimit"
	counterX     = "x-ratelimit"
	counterXRate = "x-rate-limit"
)

// table is the built-in dialects. Its order decides twice: of two rules for one
// field name the first holds where all are believed, and of two dialects that
// explain an answer equally well the first gives its name. So those that no
// vendor owns come first.
//
// Sources are the vendors' manuals of 2026, or what their answers say.
var table = []entry{
	// The IETF draft "RateLimit header fields for HTTP": versions 03 to 06 as
	// three fields, 07 as a dictionary, 08 and later as lists. GitLab sends
	// the three with a reset since 1970.
	{"ietf", []FieldRule{
		{Header: "ratelimit", Says: SaysRateLimit, counter: counterDraft},
		{Header: "ratelimit-policy", Says: SaysPolicy, counter: counterDraft},
		{Header: "ratelimit-limit", Says: SaysLimit, counter: counterDraft},
		{Header: "ratelimit-remaining", Says: SaysRemaining, counter: counterDraft},
		{Header: "ratelimit-reset", Says: SaysReset, counter: counterDraft},
	}},
	{"x-ratelimit", []FieldRule{
		{Header: "x-ratelimit-limit", Says: SaysLimit, counter: counterX},
		{Header: "x-ratelimit-remaining", Says: SaysRemaining, counter: counterX},
		{Header: "x-ratelimit-reset", Says: SaysReset, counter: counterX},
	}},
	{"x-rate-limit", []FieldRule{
		{Header: "x-rate-limit-limit", Says: SaysLimit, counter: counterXRate},
		{Header: "x-rate-limit-remaining", Says: SaysRemaining, counter: counterXRate},
		{Header: "x-rate-limit-reset", Says: SaysReset, counter: counterXRate},
	}},
	// The window is told of a field that others have, too: without that, every
	// answer with x-ratelimit-used would be taken to speak of it.
	{"reddit", []FieldRule{
		{Header: "x-ratelimit-used", Says: SaysUsed, counter: counterX},
		{Header: "x-ratelimit-remaining", Says: SaysRemaining, Window: 600 * second, counter: counterX},
		{Header: "x-ratelimit-reset", Says: SaysReset, Unit: UnitSeconds, counter: counterX},
	}},
	{"github", []FieldRule{
		{Header: "x-ratelimit-limit", Says: SaysLimit, counter: counterX},
		{Header: "x-ratelimit-remaining", Says: SaysRemaining, counter: counterX},
		{Header: "x-ratelimit-used", Says: SaysUsed, counter: counterX},
		{Header: "x-ratelimit-reset", Says: SaysReset, Unit: UnitEpoch, counter: counterX},
		{Header: "x-ratelimit-resource", Says: SaysMark, counter: counterX},
	}},
	{"discord", discord},
	// Before version 8 of Discord's API, Retry-After counted milliseconds.
	{"discord-v6", append([]FieldRule{
		{Header: "retry-after", Says: SaysRetryAfter, Unit: UnitMilli, counter: counterX},
	}, discord...)},
	// Confluence and Jira Data Center: a bucket of limit units.
	{"confluence", []FieldRule{
		{Header: "x-ratelimit-limit", Says: SaysLimit, counter: counterX},
		{Header: "x-ratelimit-remaining", Says: SaysRemaining, counter: counterX},
		{Header: "x-ratelimit-fillrate", Says: SaysFill, counter: counterX},
		{Header: "x-ratelimit-interval-seconds", Says: SaysInterval, Unit: UnitSeconds, counter: counterX},
	}},
	// X, formerly Twitter: windows of 15 minutes and of a day at once.
	{"twitter", []FieldRule{
		{Header: "x-rate-limit-limit", Says: SaysLimit, Window: 900 * second, counter: counterXRate},
		{Header: "x-rate-limit-remaining", Says: SaysRemaining, Window: 900 * second, counter: counterXRate},
		{Header: "x-rate-limit-reset", Says: SaysReset, Unit: UnitEpoch, counter: counterXRate},
		{Header: "x-app-limit-24hour-limit", Says: SaysLimit, Window: day, Group: "requests-app-day"},
		{Header: "x-app-limit-24hour-remaining", Says: SaysRemaining, Window: day, Group: "requests-app-day"},
		{Header: "x-app-limit-24hour-reset", Says: SaysReset, Unit: UnitEpoch, Group: "requests-app-day"},
		{Header: "x-user-limit-24hour-limit", Says: SaysLimit, Window: day, Group: "requests-user-day"},
		{Header: "x-user-limit-24hour-remaining", Says: SaysRemaining, Window: day, Group: "requests-user-day"},
		{Header: "x-user-limit-24hour-reset", Says: SaysReset, Unit: UnitEpoch, Group: "requests-user-day"},
	}},
	// OpenAI writes durations; servers that speak its language write other
	// forms, too.
	{"openai", []FieldRule{
		{Header: "x-ratelimit-limit-requests", Says: SaysLimit},
		{Header: "x-ratelimit-remaining-requests", Says: SaysRemaining},
		{Header: "x-ratelimit-reset-requests", Says: SaysReset, ToFull: true},
		{Header: "x-ratelimit-limit-tokens", Says: SaysLimit, Group: "tokens"},
		{Header: "x-ratelimit-remaining-tokens", Says: SaysRemaining, Group: "tokens"},
		{Header: "x-ratelimit-reset-tokens", Says: SaysReset, Group: "tokens", ToFull: true},
		{Header: "x-should-retry", Says: SaysShouldRetry},
	}},
	// The limits are buckets; the unified quota, of subscriptions, is windows.
	{"anthropic", []FieldRule{
		{Header: "anthropic-ratelimit-requests-limit", Says: SaysLimit},
		{Header: "anthropic-ratelimit-requests-remaining", Says: SaysRemaining},
		{Header: "anthropic-ratelimit-requests-reset", Says: SaysReset, Unit: UnitDate, ToFull: true},
		{Header: "anthropic-ratelimit-tokens-limit", Says: SaysLimit, Group: "tokens"},
		{Header: "anthropic-ratelimit-tokens-remaining", Says: SaysRemaining, Group: "tokens"},
		{Header: "anthropic-ratelimit-tokens-reset", Says: SaysReset, Unit: UnitDate, Group: "tokens", ToFull: true},
		{Header: "anthropic-ratelimit-input-tokens-limit", Says: SaysLimit, Group: "input-tokens"},
		{Header: "anthropic-ratelimit-input-tokens-remaining", Says: SaysRemaining, Group: "input-tokens"},
		{Header: "anthropic-ratelimit-input-tokens-reset", Says: SaysReset, Unit: UnitDate, Group: "input-tokens", ToFull: true},
		{Header: "anthropic-ratelimit-output-tokens-limit", Says: SaysLimit, Group: "output-tokens"},
		{Header: "anthropic-ratelimit-output-tokens-remaining", Says: SaysRemaining, Group: "output-tokens"},
		{Header: "anthropic-ratelimit-output-tokens-reset", Says: SaysReset, Unit: UnitDate, Group: "output-tokens", ToFull: true},
		{Header: "anthropic-ratelimit-unified-status", Says: SaysStatus, Group: "unified"},
		{Header: "anthropic-ratelimit-unified-reset", Says: SaysReset, Unit: UnitEpoch, Group: "unified"},
		{Header: "x-should-retry", Says: SaysShouldRetry},
	}},
	{"stripe", []FieldRule{
		{Header: "stripe-should-retry", Says: SaysShouldRetry},
		{Header: "stripe-rate-limited-reason", Says: SaysMark},
	}},
	// The REST API: a bucket that leaks, 2/s for most shops, which it does
	// not say.
	{"shopify", []FieldRule{
		{Header: "x-shopify-shop-api-call-limit", Says: SaysUsedLimit},
	}},
	{"slack", retryAfterAlone},
	{"hubspot", []FieldRule{
		{Header: "x-hubspot-ratelimit-max", Says: SaysLimit},
		{Header: "x-hubspot-ratelimit-remaining", Says: SaysRemaining},
		{Header: "x-hubspot-ratelimit-interval-milliseconds", Says: SaysWindow, Unit: UnitMilli},
		{Header: "x-hubspot-ratelimit-secondly", Says: SaysLimit, Window: second, Group: "requests-second"},
		{Header: "x-hubspot-ratelimit-secondly-remaining", Says: SaysRemaining, Window: second, Group: "requests-second"},
		{Header: "x-hubspot-ratelimit-daily", Says: SaysLimit, Window: day, Group: "requests-day"},
		{Header: "x-hubspot-ratelimit-daily-remaining", Says: SaysRemaining, Window: day, Group: "requests-day"},
	}},
	{"notion", retryAfterAlone},
	// Amazon's Selling Partner API.
	{"sp-api", []FieldRule{
		{Header: "x-amzn-ratelimit-limit", Says: SaysRate},
	}},
	{"cloudflare", []FieldRule{
		{Header: "ratelimit", Says: SaysRateLimit, counter: counterDraft},
		{Header: "ratelimit-policy", Says: SaysPolicy, counter: counterDraft},
	}},
	// The account's minute twice, and one field for each endpoint that has a
	// limit of its own.
	{"zendesk", []FieldRule{
		{Header: "ratelimit-limit", Says: SaysLimit, counter: counterDraft},
		{Header: "ratelimit-remaining", Says: SaysRemaining, counter: counterDraft},
		{Header: "ratelimit-reset", Says: SaysReset, Unit: UnitSeconds, counter: counterDraft},
		{Header: "x-rate-limit", Says: SaysLimit, counter: counterXRate},
		{Header: "x-rate-limit-remaining", Says: SaysRemaining, counter: counterXRate},
		{Header: "zendesk-ratelimit-*", Says: SaysList, Unit: UnitSeconds, Group: "requests-endpoint"},
	}},
	// The last 24 hours.
	{"salesforce", []FieldRule{
		{Header: "sforce-limit-info", Says: SaysUsedLimit, Window: day},
	}},
	{"google", retryAfterAlone},
	// Azure Resource Manager: reads, writes and deletes of subscription and
	// tenant, of which an answer tells those that it took from, and those of
	// one provider of resources.
	{"azure", []FieldRule{
		{Header: "x-ms-ratelimit-remaining-resource", Says: SaysRemainingList, Group: "requests-resource"},
		{Header: "x-ms-ratelimit-remaining-*", Says: SaysRemaining},
	}},
	{"cosmos", retryAfterAlone},
	{"docker", []FieldRule{
		{Header: "ratelimit-limit", Says: SaysLimit, counter: counterDraft},
		{Header: "ratelimit-remaining", Says: SaysRemaining, counter: counterDraft},
		{Header: "docker-ratelimit-source", Says: SaysMark, counter: counterDraft},
	}},
	{"spotify", retryAfterAlone},
	{nameRetryAfter, retryAfterAlone},
}

// discord tells the reset twice; the one that counts from now goes first.
var discord = []FieldRule{
	{Header: "x-ratelimit-limit", Says: SaysLimit, counter: counterX},
	{Header: "x-ratelimit-remaining", Says: SaysRemaining, counter: counterX},
	{Header: "x-ratelimit-reset", Says: SaysReset, Unit: UnitEpoch, counter: counterX},
	{Header: "x-ratelimit-reset-after", Says: SaysResetAfter, counter: counterX},
	{Header: "x-ratelimit-bucket", Says: SaysMark, counter: counterX},
	{Header: "x-ratelimit-global", Says: SaysMark, counter: counterX},
	{Header: "x-ratelimit-scope", Says: saysScope, counter: counterX},
}

// nameRetryAfter is the dialect of those who tell nothing else.
const nameRetryAfter = "retry-after"

// retryAfterAlone is the family that every dialect has.
var retryAfterAlone []FieldRule
