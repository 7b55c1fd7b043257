// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strings"
	"time"

	"github.com/egressd/egressd/policy"
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
		if !v.budget(b) {
			return
		}
		if b.Name == "" {
			b.Name = fmt.Sprintf("budget-%d", number)
		}
		if names[b.Name] {
			v.reject("the name %s is taken by a budget above; choose another", b.Name)
			return
		}
		names[b.Name] = true
		budgets = append(budgets, b)
	})
	return budgets
}

// budget reads one budget into b, which holds the defaults.
func (v value) budget(b *policy.Budget) bool {
	before := len(v.r.errs)
	var match, burst *value // where they were given
	ok := v.mapping(
		field{"name", func(v value) { b.Name, _ = v.name() }},
		field{"match", func(v value) { match = &v; v.match(&b.Match) }},
		field{"per", func(v value) { b.Per = v.per() }},
		field{"rate", func(v value) { b.Rate = v.rate() }},
		field{"burst", func(v value) { burst = &v; b.Burst = v.burst() }},
		field{"window", unsupported},
		field{"concurrency", unsupported},
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
		field{"retry", unsupported},
		field{"headers", func(v value) { b.HeadersOff = v.headersOff() }},
		field{"tls", value.tls},
		field{"mode", func(v value) {
			switch s, _ := v.word("enforce", "shadow", "off"); s {
			case "shadow":
				b.Mode = policy.Shadow
			case "off":
				b.Mode = policy.Off
			}
		}},
		field{"fail", func(v value) {
			s, _ := v.word("open", "closed")
			b.FailClosed = s == "closed"
		}},
	)
	if !ok {
		return false
	}
	if !v.has("rate") {
		v.reject("rate is missing; write how much may go, as in rate: 1/s")
	}
	if burst != nil && b.Burst > 0 {
		if err := checkBurst(b.Burst, b.Rate); err != nil {
			burst.reject("%v", err)
		}
	}
	if match != nil && b.Unit == policy.Connections && (b.Match.Path != "" || len(b.Match.Methods) > 0) {
		match.reject("a connection has no path and no method; remove them, or write unit: requests")
	}
	return len(v.r.errs) == before
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
		default:
			v.notYet(s, "use destination and exit")
			return
		}
		if per&bit != 0 {
			v.reject("%s is listed twice; remove one", s)
		}
		per |= bit
	})
	return per
}

func (v value) rate() policy.Rate {
	s, ok := v.scalar("a rate, as in 1/s, 90/min or 5000/h")
	if !ok {
		return policy.Rate{}
	}
	r, err := parseRate(s)
	if err != nil {
		v.reject("%v", err)
	}
	return r
}

func (v value) burst() float64 {
	n, ok := v.number(fmt.Sprintf("a number from 1 to %d", maxBurst), func(x float64) bool { return 0 < x && x <= maxBurst })
	if ok && n < 1 {
		v.notYet(fmt.Sprintf("%s, less than one unit,", v.node.Value), "use 1 or more")
	}
	return n
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
			if s, ok := v.word("none", "process", "cgroup", "uid"); ok && s != "none" {
				v.notYet(s, "use none")
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
			if s := v.statuses(); len(s) > 0 {
				c.Statuses = s
			}
		}},
	)
	switch {
	case c.Default <= c.Max:
	case def != nil:
		def.reject("is more than max (%s); write a shorter one", shortDuration(c.Max))
	default:
		c.Default = c.Max // nobody asked for the default
	}
}

// share reads a part of something: 10% or 0.1.
func (v value) share() (float64, bool) {
	if percent, ok := strings.CutSuffix(v.node.Value, "%"); ok {
		if x, err := parseDecimal(percent); err == nil && x <= 100 {
			return x / 100, true
		}
	} else if x, err := parseDecimal(v.node.Value); err == nil && x <= 1 {
		return x, true
	}
	v.reject("must be a share from 0%% to 100%%%s; write it as 10%% or 0.1", v.butIs())
	return 0, false
}

// statuses reads the status codes that are limits. Some origins made codes of
// their own for it, up to 999.
func (v value) statuses() []int {
	var statuses []int
	seen := map[int]bool{}
	v.list("[429, 430]", "leave it out for [429]", func(v value) {
		if n, ok := v.integer(400, 999); ok && once(v, seen, n) {
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
		step.reject("is 1, so that a lane once slowed never returns to its rate; write more, as in 1.1, or factor: 1")
	}
}

// headersOff reads which rate-limit fields of answers are believed: all that
// are known, or none.
func (v value) headersOff() bool {
	s, ok := v.text("auto")
	switch {
	case !ok || s == "auto":
	case s == "off":
		return true
	case s == "":
		v.reject("must be auto or off%s", v.butIs())
	default:
		v.notYet(fmt.Sprintf("the dialect %q", clip(s)), "use auto or off")
	}
	return false
}
