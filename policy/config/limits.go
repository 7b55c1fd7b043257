// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strings"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/config/strict"
)

// Bounds of what limits a budget beside its rate.
const (
	maxWindow      = 31 * 24 * time.Hour
	maxWindowLimit = 1_000_000_000
	maxConcurrency = 1_000_000
	maxCost        = 1_000_000
)

// autoRate stands for a rate that lanes learn.
const autoRate = "auto"

// autoStart is where lanes of rate: auto begin.
var autoStart = policy.Rate{Count: 1, Every: time.Second}

// rateOrAuto reads a rate, or that there is none to begin with.
func (v value) rateOrAuto() (r policy.Rate, auto bool) {
	if v.IsScalar() && v.Raw() == autoRate {
		return r, true
	}
	return v.rate(), false
}

func (v value) rate() policy.Rate {
	s, ok := v.scalar("a rate, as in 1/s, 90/min or 5000/h")
	if !ok {
		return policy.Rate{}
	}
	r, err := parseRate(s)
	if err != nil {
		v.Reject("%v", err)
	}
	return r
}

func (v value) burst() float64 {
	n, _ := v.number(burstWanted, isBurst)
	return n
}

// burstWanted says which numbers are bursts.
var burstWanted = fmt.Sprintf("a number above 0, at most %d", maxBurst)

func isBurst(x float64) bool { return 0 < x && x <= maxBurst }

func (v value) window(w *policy.Window) {
	ok := v.mapping(
		field{"limit", func(v value) {
			n, _ := v.integer(1, maxWindowLimit)
			w.Limit = uint64(n)
		}},
		field{"per", func(v value) { w.Per, _ = v.duration(time.Millisecond, maxWindow) }},
		field{"kind", func(v value) {
			if s, _ := v.word("sliding", "fixed"); s == "fixed" {
				w.Kind = policy.Fixed
			}
		}},
	)
	switch {
	case !ok:
	case !v.Has("limit"):
		v.Reject("limit is missing; write how much may go in the window, as in limit: 100")
	case !v.Has("per"):
		v.Reject("per is missing; write how long the window is, as in per: 1m")
	}
}

// cost reads what a request takes: a number, or more about it.
func (v value) cost(c *policy.Cost) {
	units := func(v value) {
		n, _ := v.integer(1, maxCost)
		c.Units = uint64(n)
	}
	if v.IsScalar() {
		units(v)
		return
	}
	v.mapping(
		field{"units", units},
		field{"header", func(v value) { c.Header = v.fieldName("x-request-cost") }},
	)
}

// maxFieldName bounds the names of fields; those of vendors reach 41 letters.
const maxFieldName = 64

// fieldName reads the name of a header field, in lower case.
func (v value) fieldName(example string) string {
	s, ok := v.text(example)
	if ok && !isToken(s, maxFieldName) {
		v.Reject("%q is no name of a header field; write it as %s", strict.Clip(s), example)
		return ""
	}
	return strings.ToLower(s)
}

// checkLimits rejects what does not limit, or limits to nothing, because of
// other keys of the budget.
func (v value) checkLimits(b *policy.Budget) {
	hasRate, hasWindow := v.Has("rate"), v.Has("window")
	if !hasRate && !hasWindow && !v.Has("concurrency") {
		v.Reject("nothing limits it; write at least one of rate, window and concurrency, as in rate: 1/s")
	}
	if start, ok := v.at("start"); ok && !b.Auto && (!hasRate || b.Rate.Count > 0) {
		start.Reject("is where rate: auto begins; write that too, or remove it")
	}
	if burst, ok := v.at("burst"); ok && b.Burst > 0 {
		if !hasRate {
			burst.Reject("has no rate to refill at; write one, or remove it")
		} else if err := checkBurst(b.Burst, b.Rate); err != nil {
			burst.Reject("%v", err)
		}
	}
	cost, ok := v.at("cost")
	switch {
	case !ok || b.Cost.Units == 0:
	case !hasRate && !hasWindow:
		cost.Reject("is taken from rate and window, and there is none; write one, or remove it")
	case b.Window.Limit > 0 && b.Cost.Units > b.Window.Limit:
		cost.Reject("is more than the window's limit (%d), so that nothing could go; write a lower cost", b.Window.Limit)
	case refillsLate(float64(b.Cost.Units), b.Rate):
		cost.Reject("takes more than a year to refill at %s; write a lower cost", formatRate(b.Rate))
	}
}
