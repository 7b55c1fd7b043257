// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"slices"
	"time"

	"github.com/egressd/egressd/policy"
)

// exitSeen is an exit with what follows from its lanes.
type exitSeen struct {
	Exit
	perSecond float64 // over the last ten seconds
	lanes     int
	closed    int
	longest   time.Duration // until the last of its lanes opens
	waiting   int64
	// budget is how many requests per second the policy allows the exit in all,
	// and rate how many may go now; 0: unknown, or any number.
	budget, rate float64
}

// activity is what makes an exit worth a place.
func (e *exitSeen) activity() float64 {
	sum := 0.0
	for _, n := range e.Seconds {
		sum += n
	}
	return sum
}

// exitsOf joins exits with their lanes, in the order of their names. Lanes that
// do not tell exits apart are those of the only exit or, where there are more, of
// policy.AllExits, which sends what they all do.
func exitsOf(exits []Exit, lanes []laneSeen) []exitSeen {
	slices.SortFunc(exits, func(a, b Exit) int { return cmp.Compare(a.Name, b.Name) })
	shared := slices.ContainsFunc(lanes, func(l laneSeen) bool { return l.CountedBy == policy.AllExits })
	whole := policy.AllExits
	switch {
	case shared && len(exits) == 1:
		whole = exits[0].Name
	case shared && len(exits) > 1:
		exits = append(exits, sum(exits))
	}
	seen := make([]exitSeen, len(exits))
	at := make(map[string]int, len(exits))
	for i, e := range exits {
		seen[i] = exitSeen{Exit: e, perSecond: mean(e.Seconds, 10)}
		at[e.Name] = i
	}
	ceilings := make([]ceiling, len(exits))
	for i := range lanes {
		l := &lanes[i]
		name := l.CountedBy
		if name == policy.AllExits {
			name = whole
		}
		n, ok := at[name]
		if !ok {
			continue
		}
		e := &seen[n]
		e.lanes++
		e.waiting += l.Waiting
		if l.closed() {
			e.closed++
			e.longest = max(e.longest, l.ClosedFor)
		}
		ceilings[n].add(l)
	}
	for i := range seen {
		seen[i].budget, seen[i].rate = ceilings[i].of(seen[i].perSecond)
	}
	// An exit that never sent and has no lane has nothing to show.
	return slices.DeleteFunc(seen, func(e exitSeen) bool { return e.lanes == 0 && len(e.Seconds) == 0 })
}

// sum is all exits as one.
func sum(exits []Exit) Exit {
	all := Exit{Name: policy.AllExits}
	for _, e := range exits {
		all.TooMany += e.TooMany
		if more := len(e.Seconds) - len(all.Seconds); more > 0 {
			all.Seconds = append(make([]float64, more, len(e.Seconds)), all.Seconds...)
		}
		late := len(all.Seconds) - len(e.Seconds)
		for i, n := range e.Seconds {
			all.Seconds[late+i] += n
		}
	}
	return all
}

// mean is that of the last n numbers; those that are not there are zero.
func mean(numbers []float64, n int) float64 {
	total := 0.0
	for _, x := range numbers[max(0, len(numbers)-n):] {
		total += x
	}
	return total / float64(n)
}

// ceiling finds out how much the lanes of an exit allow in all.
//
// A request takes from one lane of each shape that a budget for it has. So the
// lanes of one shape add up, and a shape that all requests fall into bounds them
// all; the narrowest such shape is the ceiling. Where each shape has only some of
// the requests, they add up, too.
type ceiling struct {
	shapes []shape
}

// shape is the lanes of one policy.Per.
type shape struct {
	per          policy.Per
	budget, rate float64
	sent         float64 // per second
	open         bool    // some lane has no rate
	unknown      bool    // of some lane it is not known what it sends
}

// covers is the share of an exit's requests that all of them are taken for. What
// an exit and what its lanes sent is counted over seconds that are not the same.
const covers = 0.8

func (c *ceiling) add(l *laneSeen) {
	if l.Budget == policy.ExitBudget {
		return // it only closes
	}
	i := slices.IndexFunc(c.shapes, func(s shape) bool { return s.per == l.Per })
	if i < 0 {
		i = len(c.shapes)
		c.shapes = append(c.shapes, shape{per: l.Per})
	}
	s := &c.shapes[i]
	s.budget += l.Base
	s.rate += l.Rate
	s.sent += l.perSecond
	s.open = s.open || l.Base <= 0
	s.unknown = s.unknown || !l.known
}

// of is the ceiling of an exit that sends so many requests per second; 0 where
// there is none, or it is not known yet.
func (c *ceiling) of(perSecond float64) (budget, rate float64) {
	if len(c.shapes) == 1 && !c.shapes[0].open {
		return c.shapes[0].budget, c.shapes[0].rate
	}
	var parts shape // of those that cover less than everything
	covered := false
	for _, s := range c.shapes {
		if s.unknown || perSecond == 0 {
			return 0, 0
		}
		if s.sent < covers*perSecond {
			parts.budget += s.budget
			parts.rate += s.rate
			parts.sent += s.sent
			parts.open = parts.open || s.open
			continue
		}
		covered = true
		if s.open {
			continue
		}
		if budget == 0 || s.budget < budget {
			budget = s.budget
		}
		if rate == 0 || s.rate < rate {
			rate = s.rate
		}
	}
	if covered || parts.open || parts.sent < covers*perSecond {
		return budget, rate
	}
	return parts.budget, parts.rate
}
