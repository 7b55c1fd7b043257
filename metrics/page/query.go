// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// query is what a reader wants of a State. Queries that mean the same are equal.
type query struct {
	words  string // in lower case, separated by one space each
	show   string
	sort   string
	turned bool // the least first
	lanes  int
	exits  int
	events int
}

// Bounds of a query.
const (
	maxQuery = 2 << 10 // bytes, encoded
	maxWords = 256     // bytes
)

// counts are the parameters that say how many are wanted.
var counts = []struct {
	name  string
	usual int
	most  int
	of    func(*query) *int
}{
	{"lanes", 100, 500, func(q *query) *int { return &q.lanes }},
	{"exits", 12, 48, func(q *query) *int { return &q.exits }},
	{"events", 50, keptEvents, func(q *query) *int { return &q.events }},
}

// shows are the choices of lanes, by name.
var shows = map[string]func(*laneSeen) bool{
	"all":     func(*laneSeen) bool { return true },
	"closed":  (*laneSeen).closed,
	"waiting": func(l *laneSeen) bool { return l.Waiting > 0 },
	"slowed":  (*laneSeen).slowed,
}

// orders are those in which lanes can stand, by name; orders.first says which
// way round they usually do.
var orders = map[string]order{
	// What people come to look for: what is closed, who waits, what moves.
	"activity": {func(a, b *laneSeen) int {
		return cmp.Or(compareBool(a.closed(), b.closed()), compareBool(a.Waiting > 0, b.Waiting > 0), cmp.Compare(steady(a.perSecond), steady(b.perSecond)))
	}, true},
	"lane":    {func(a, b *laneSeen) int { return byName(a, b) }, false},
	"exit":    {func(a, b *laneSeen) int { return cmp.Compare(a.Exit, b.Exit) }, false},
	"sent":    {func(a, b *laneSeen) int { return cmp.Compare(a.perSecond, b.perSecond) }, true},
	"budget":  {func(a, b *laneSeen) int { return cmp.Compare(a.Base, b.Base) }, true},
	"use":     {func(a, b *laneSeen) int { return cmp.Compare(a.use(), b.use()) }, true},
	"waiting": {func(a, b *laneSeen) int { return cmp.Compare(a.Waiting, b.Waiting) }, true},
	"limited": {func(a, b *laneSeen) int { return cmp.Compare(a.Limited, b.Limited) }, true},
	"closed":  {func(a, b *laneSeen) int { return cmp.Compare(max(0, a.ClosedFor), max(0, b.ClosedFor)) }, true},
}

type order struct {
	compare func(a, b *laneSeen) int
	falling bool // usually the greatest comes first
}

// compareBool puts false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// steady is a rate in steps of a tenth of itself, so that lanes that send about
// as much do not change places each second.
func steady(x float64) float64 {
	if x <= 0 {
		return 0
	}
	return math.Round(math.Log(x) * 10)
}

// parseQuery reads the parameters of a request. All are optional; what is none
// of them is an error, as is one that stands twice.
func parseQuery(raw string) (q query, err error) {
	if len(raw) > maxQuery {
		return q, fmt.Errorf("query of %d bytes: at most %d", len(raw), maxQuery)
	}
	values, err := url.ParseQuery(raw)
	if err != nil {
		return q, fmt.Errorf("parse query: %w", err)
	}
	one := func(name, usual string) string {
		given, ok := values[name]
		delete(values, name)
		if !ok || len(given) == 1 && given[0] == "" {
			return usual
		}
		if len(given) > 1 && err == nil {
			err = fmt.Errorf("%s stands twice", name)
		}
		return given[0]
	}
	// What is no UTF-8, and some letters, are longer in lower case: the query counts
	// as it is sent on.
	q.words = strings.Join(strings.Fields(strings.ToLower(one("q", ""))), " ")
	if len(q.words) > maxWords {
		return q, fmt.Errorf("q of %d bytes: at most %d", len(q.words), maxWords)
	}
	q.show, q.sort = one("show", "all"), one("sort", "activity")
	if shows[q.show] == nil {
		return q, fmt.Errorf("show=%q: must be all, closed, waiting or slowed", q.show)
	}
	o, ok := orders[q.sort]
	if !ok {
		return q, fmt.Errorf("sort=%q: there is no such order", q.sort)
	}
	switch order := one("order", ""); order {
	case "":
	case "asc", "desc":
		q.turned = o.falling == (order == "asc")
	default:
		return q, fmt.Errorf("order=%q: must be asc or desc", order)
	}
	for _, c := range counts {
		n := c.usual
		if text := one(c.name, ""); text != "" {
			var bad error
			if n, bad = strconv.Atoi(text); bad != nil || n < 0 || n > c.most {
				return q, fmt.Errorf("%s=%q: must be a number from 0 to %d", c.name, text, c.most)
			}
		}
		*c.of(&q) = n
	}
	for name := range values {
		return q, fmt.Errorf("parameter %q: there is no such one", name)
	}
	return q, err
}

// falling reports whether the greatest comes first.
func (q *query) falling() bool { return orders[q.sort].falling != q.turned }

// choose picks the lanes that are wanted, in their order, and says how many
// there were to pick from.
func (q *query) choose(lanes []laneSeen) (chosen []*laneSeen, matched int) {
	words, show := strings.Fields(q.words), shows[q.show]
	for i := range lanes {
		if l := &lanes[i]; show(l) && contains(l.names, words) {
			chosen = append(chosen, l)
		}
	}
	compare, falling := orders[q.sort].compare, q.falling()
	slices.SortFunc(chosen, func(a, b *laneSeen) int {
		n := compare(a, b)
		if falling {
			n = -n
		}
		return cmp.Or(n, byName(a, b))
	})
	return chosen[:min(len(chosen), q.lanes)], len(chosen)
}

// chooseExits picks the exits that are wanted: those whose own name matches,
// or one of whose lanes does. Where there are too many, the busiest are kept;
// they stand in the order of their names, so that none of them jumps about.
func (q *query) chooseExits(exits []exitSeen, lanes []laneSeen) (chosen []*exitSeen, matched int) {
	words := strings.Fields(q.words)
	var with map[string]bool
	if len(words) > 0 {
		with = make(map[string]bool)
		for i := range lanes {
			if contains(lanes[i].names, words) {
				with[lanes[i].CountedBy] = true
			}
		}
	}
	for i := range exits {
		e := &exits[i]
		if len(words) == 0 || with[e.Name] || contains(strings.ToLower(e.Name), words) {
			chosen = append(chosen, e)
		}
	}
	matched = len(chosen)
	if matched > q.exits {
		slices.SortFunc(chosen, func(a, b *exitSeen) int {
			return cmp.Or(compareBool(b.closed > 0, a.closed > 0), cmp.Compare(b.activity(), a.activity()), cmp.Compare(a.Name, b.Name))
		})
		chosen = chosen[:q.exits]
		slices.SortFunc(chosen, func(a, b *exitSeen) int { return cmp.Compare(a.Name, b.Name) })
	}
	return chosen, matched
}

// chooseEvents picks the events that are wanted, the newest first.
func (q *query) chooseEvents(events []eventSeen) (chosen []*eventSeen) {
	words := strings.Fields(q.words)
	for i := len(events) - 1; i >= 0 && len(chosen) < q.events; i-- {
		e := &events[i]
		if len(words) == 0 || contains(strings.ToLower(e.Kind+" "+e.Lane+" "+e.Detail), words) {
			chosen = append(chosen, e)
		}
	}
	return chosen
}

// contains reports whether text contains all words.
func contains(text string, words []string) bool {
	for _, w := range words {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}
