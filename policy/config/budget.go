// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/config/strict"
	"github.com/egressd/egressd/policy/fleet"
)

// Bounds of what is counted in memory.
const (
	maxBurst = 1_000_000_000
	maxQueue = 1_000_000
	maxStep  = 100
)

func (v value) budgets() []*policy.Budget {
	var budgets []*policy.Budget
	names := map[string]bool{}
	number := 0
	v.list("[{rate: 1/s}]", "", func(v value) {
		number++
		b := defaultBudget()
		b.TLS, b.Flights = v.r.tls.mode, v.r.tls.flights
		if !v.budget(b) {
			return
		}
		if b.Name == "" {
			b.Name = fmt.Sprintf("budget-%d", number)
		}
		if b.Name == policy.ExitBudget {
			v.Reject("the name %s is that of the lanes which hold the trouble of proxies; choose another", b.Name)
			return
		}
		if names[b.Name] {
			v.Reject("the name %s is taken by a budget above; choose another", b.Name)
			return
		}
		names[b.Name] = true
		budgets = append(budgets, b)
		if Shapes(budgets) > policy.MaxShapes {
			v.Reject("per is unlike those of the budgets above, which have %d different ones, the most there may be; write one of theirs", policy.MaxShapes)
			budgets = budgets[:len(budgets)-1]
		}
	})
	return budgets
}

// Shapes is the number of different per among the budgets that are not off. A
// policy has at most policy.MaxShapes.
func Shapes(budgets []*policy.Budget) int {
	var seen [math.MaxUint8 + 1]bool
	n := 0
	for _, b := range budgets {
		if b.Mode != policy.Off && !seen[b.Per] {
			seen[b.Per] = true
			n++
		}
	}
	return n
}

// budget reads one budget into b, which holds the defaults.
func (v value) budget(b *policy.Budget) bool {
	before := len(v.r.Errs)
	start := autoStart
	alone, loss := false, (*fleet.Loss)(nil)
	ok := v.mapping(
		field{"name", func(v value) { b.Name, _ = v.name() }},
		field{"match", func(v value) { v.match(&b.Match) }},
		field{"per", func(v value) { b.Per = v.per() }},
		field{"rate", func(v value) { b.Rate, b.Auto = v.rateOrAuto() }},
		field{"start", func(v value) { start = v.rate() }},
		field{"burst", func(v value) { b.Burst = v.burst() }},
		field{"window", func(v value) { v.window(&b.Window) }},
		field{"concurrency", func(v value) { b.Concurrency, _ = v.integer(1, maxConcurrency) }},
		field{"cost", func(v value) { v.cost(&b.Cost) }},
		field{"unit", func(v value) {
			if s, _ := v.word("requests", "connections"); s == "connections" {
				b.Unit = policy.Connections
			}
		}},
		field{"queue", func(v value) { v.queue(&b.Queue) }},
		field{"on_full", func(v value) {
			if s, _ := v.word("refuse", "drop"); s == "drop" {
				b.OnFull = policy.Drop
			}
		}},
		field{"cooldown", func(v value) { v.cooldown(&b.Cooldown) }},
		field{"recovery", func(v value) { v.recovery(&b.Recovery) }},
		field{"retry", func(v value) { v.retry(&b.Retry) }},
		field{"headers", func(v value) { b.HeadersOff, b.Dialect = v.headers() }},
		field{"tls", func(v value) { v.tlsOfBudget(b) }},
		field{"mode", func(v value) {
			switch s, _ := v.word("enforce", "shadow", "off"); s {
			case "shadow":
				b.Mode = policy.Shadow
			case "off":
				b.Mode = policy.Off
			}
		}},
		field{"fleet", func(v value) {
			with, ok := v.boolean()
			alone = ok && !with
		}},
		field{"on_loss", func(v value) { loss = new(v.loss(fleet.LossShare)) }},
		field{"fail", func(v value) {
			s, _ := v.word("open", "closed")
			b.FailClosed = s == "closed"
		}},
	)
	if !ok {
		return false
	}
	if b.Auto {
		b.Rate = start
	}
	v.checkLimits(b)
	v.shared(b, alone, loss)
	if b.Unit == policy.Connections {
		v.checkConnections(b)
	}
	return len(v.r.Errs) == before
}

// checkConnections rejects what only a request has, in a budget that counts
// connections.
func (v value) checkConnections(b *policy.Budget) {
	const instead = "or write unit: requests"
	if match, ok := v.at("match"); ok && (b.Match.Path != "" || len(b.Match.Methods) > 0) {
		match.Reject("a connection has no path and no method; remove them, %s", instead)
	}
	if per, ok := v.at("per"); ok && b.Per&policy.PerPath != 0 {
		per.Reject("a connection has no path; remove path, %s", instead)
	}
	if cost, ok := v.at("cost"); ok && b.Cost.Header != "" {
		cost.Reject("a connection has no answer to read %s from; remove header, %s", b.Cost.Header, instead)
	}
	if retry, ok := v.at("retry"); ok {
		retry.Reject("a connection is not repeated; remove it, %s", instead)
	}
}

func (v value) per() policy.Per {
	var per policy.Per
	v.list("[destination, exit], or [] for one lane", "", func(v value) {
		s, ok := v.word("destination", "site", "exit", "session", "path")
		if !ok {
			return
		}
		var bit policy.Per
		switch s {
		case "destination":
			bit = policy.PerDestination
		case "exit":
			bit = policy.PerExit
		case "session":
			bit = policy.PerSession
		case "path":
			bit = policy.PerPath
		default:
			bit = policy.PerSite
		}
		switch both := policy.PerSite | policy.PerDestination; {
		case per&bit != 0:
			v.Reject("%s is listed twice; remove one", s)
		case bit&both != 0 && per&both != 0:
			v.Reject("destination and site exclude each other, as every destination is part of its site; keep one")
		}
		per |= bit
	})
	return per
}

// fairWords are the values of queue.fair_by, each at the index of its constant.
var fairWords = []string{
	policy.FairNone:    "none",
	policy.FairProcess: "process",
	policy.FairCgroup:  "cgroup",
	policy.FairUID:     "uid",
}

func (v value) queue(q *policy.Queue) {
	v.mapping(
		field{"max", func(v value) {
			if n, ok := v.integer(0, maxQueue); ok {
				q.Max = n
			}
		}},
		field{"max_wait", func(v value) {
			if d, ok := v.duration(0, maxCooldown); ok {
				q.MaxWait = d
			}
		}},
		field{"fair_by", func(v value) {
			if s, ok := v.word(fairWords...); ok {
				q.FairBy = policy.FairBy(slices.Index(fairWords, s))
			}
		}},
	)
}

func (v value) cooldown(c *policy.Cooldown) {
	var def *value
	v.mapping(
		field{"default", func(v value) {
			if d, ok := v.duration(time.Millisecond, maxCooldown); ok {
				c.Default, def = d, &v
			}
		}},
		field{"max", func(v value) {
			if d, ok := v.duration(time.Millisecond, maxCooldown); ok {
				c.Max = d
			}
		}},
		field{"spread", func(v value) {
			if x, ok := v.share(); ok {
				c.Spread = x
			}
		}},
		field{"statuses", func(v value) {
			// Some origins made codes of their own for it, up to 999.
			if s := v.statuses("[429, 430]", "leave it out for [429]", 999); len(s) > 0 {
				c.Statuses = s
			}
		}},
	)
	switch {
	case c.Default <= c.Max:
	case def != nil:
		def.Reject("is more than max (%s); write a shorter one", strict.Duration(c.Max))
	default:
		c.Default = c.Max // nobody asked for the default
	}
}

// share reads a part of something: 10% or 0.1.
func (v value) share() (float64, bool) {
	if percent, ok := strings.CutSuffix(v.Raw(), "%"); ok {
		if x, err := strict.ParseDecimal(percent); err == nil && x <= 100 {
			return x / 100, true
		}
	} else if x, err := strict.ParseDecimal(v.Raw()); err == nil && x <= 1 {
		return x, true
	}
	v.Reject("must be a share from 0%% to 100%%%s; write it as 10%% or 0.1", v.butIs())
	return 0, false
}

// statuses reads a list of status codes from 400 to high.
func (v value) statuses(example, empty string, high int) []int {
	var statuses []int
	seen := map[int]bool{}
	v.list(example, empty, func(v value) {
		if n, ok := v.integer(400, high); ok && once(v, seen, n) {
			statuses = append(statuses, n)
		}
	})
	return statuses
}

func (v value) recovery(r *policy.Recovery) {
	var step *value
	v.mapping(
		field{"factor", func(v value) {
			if x, ok := v.number("a number above 0, at most 1", func(x float64) bool { return 0 < x && x <= 1 }); ok {
				r.Factor = x
			}
		}},
		field{"step", func(v value) {
			if x, ok := v.number(fmt.Sprintf("a number from 1 to %d", maxStep), func(x float64) bool { return 1 <= x && x <= maxStep }); ok {
				r.Step, step = x, &v
			}
		}},
	)
	if step != nil && r.Step == 1 && r.Factor < 1 {
		step.Reject("is 1, so that a lane once slowed never returns to its rate; write more, as in 1.1, or factor: 1")
	}
}
