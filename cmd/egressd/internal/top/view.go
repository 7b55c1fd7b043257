// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"slices"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
)

// seen is a daemon at one instant.
type seen struct {
	at     time.Time
	status admin.Status
	lanes  []admin.Lane
	exits  []admin.Exit
	events []admin.Event
}

// recently is the number of looks over which rates are taken: a lane of one
// request in five seconds would flicker otherwise.
const recently = 10

// sparks is the number of looks that a line of an exit shows.
const sparks = 30

// view is what is shown, and how. Not safe for concurrent use.
type view struct {
	cfg    Config
	seen   seen
	err    error // of the last look, if it failed
	past   []counted
	closed map[string]closure // of the lanes that are closed
	sort   int                // in orders
	turned bool
	top    int // first lane that is shown
	paused bool
}

// closure is one time for which a lane is closed.
type closure struct {
	opens time.Time
	whole float64 // seconds, as far as they were seen
}

// counted is what one look counted.
type counted struct {
	at       time.Time
	sent     map[string]uint64 // by lane
	requests map[string]uint64 // by exit
}

// row is one lane with what follows from the looks before.
type row struct {
	admin.Lane
	perSecond float64
}

// use is how much of its budget a lane sends, 0 without one.
func (r *row) use() float64 {
	if r.BaseRate <= 0 {
		return 0
	}
	return r.perSecond / r.BaseRate
}

// orders are those in which lanes can stand, the greatest first.
var orders = []struct {
	name  string
	least func(a, b *row) int
}{
	{"use", func(a, b *row) int { return cmp.Compare(b.use(), a.use()) }},
	{"sent", func(a, b *row) int { return cmp.Compare(b.perSecond, a.perSecond) }},
	{"waiting", func(a, b *row) int { return cmp.Compare(b.Waiting, a.Waiting) }},
	{"429s", func(a, b *row) int { return cmp.Compare(b.Limited, a.Limited) }},
	{"closed", func(a, b *row) int { return cmp.Compare(b.ClosedFor, a.ClosedFor) }},
	{"name", func(a, b *row) int { return cmp.Compare(a.Lane.Lane, b.Lane.Lane) }},
}

func newView(c Config) *view { return &view{cfg: c} }

// see takes a look.
func (v *view) see(s seen) {
	if len(v.past) > 0 && s.status.Started.After(v.seen.status.Started) {
		v.past = nil // another daemon, which counts anew
	}
	v.seen, v.err = s, nil
	v.close(s.lanes)
	c := counted{at: s.at, sent: make(map[string]uint64, len(s.lanes)), requests: make(map[string]uint64, len(s.exits))}
	for _, l := range s.lanes {
		c.sent[l.Lane] = l.Sent
	}
	for _, e := range s.exits {
		c.requests[e.Exit] = e.Requests
	}
	v.past = append(v.past, c)
	if len(v.past) > sparks+1 {
		v.past = append(v.past[:0], v.past[1:]...)
	}
}

// close notes for how long lanes are closed in all. One that is closed for longer
// than it was begins anew.
func (v *view) close(lanes []admin.Lane) {
	before := v.closed
	v.closed = map[string]closure{}
	for _, l := range lanes {
		if l.Open || l.OpensAt == nil {
			continue
		}
		c := closure{opens: *l.OpensAt, whole: l.ClosedFor}
		// The instant is told anew each time, by a clock that is read anew.
		if was, known := before[l.Lane]; known && was.opens.Sub(c.opens).Abs() < 100*time.Millisecond {
			c.whole = max(c.whole, was.whole)
		}
		v.closed[l.Lane] = c
	}
}

// fail notes that a look failed. What was seen before stays.
func (v *view) fail(err error) { v.err = err }

// rows are the lanes in their order.
func (v *view) rows() []row {
	rows := make([]row, len(v.seen.lanes))
	for i, l := range v.seen.lanes {
		rows[i] = row{l, v.rate(func(c *counted) uint64 { return c.sent[l.Lane] })}
	}
	order := orders[v.sort].least
	slices.SortStableFunc(rows, func(a, b row) int {
		n := order(&a, &b)
		if v.turned {
			n = -n
		}
		return cmp.Or(n, cmp.Compare(a.Lane.Lane, b.Lane.Lane))
	})
	return rows
}

// rate is by how much a count grew per second, over the last looks.
func (v *view) rate(of func(*counted) uint64) float64 {
	if len(v.past) < 2 {
		return 0
	}
	last, first := &v.past[len(v.past)-1], &v.past[max(0, len(v.past)-1-recently)]
	now, before := of(last), of(first)
	if d := last.at.Sub(first.at); d > 0 && now > before {
		return float64(now-before) / d.Seconds()
	}
	return 0
}

// steps are by how much the requests of an exit grew, from one look to the
// next.
func (v *view) steps(exit string) []uint64 {
	out := make([]uint64, 0, sparks)
	for i := 1; i < len(v.past); i++ {
		now, before := v.past[i].requests[exit], v.past[i-1].requests[exit]
		out = append(out, now-min(before, now))
	}
	return out
}

// key is one that somebody pressed.
type key uint8

// Keys that do something.
const (
	keyQuit key = iota + 1
	keyUp
	keyDown
	keyPageUp
	keyPageDown
	keyHome
	keyLeft
	keyRight
	keyReverse
	keyPause
)

// press does what a key asks for, and reports whether that is to end.
func (v *view) press(k key, page int) (quit bool) {
	switch k {
	case keyQuit:
		return true
	case keyUp:
		v.top--
	case keyDown:
		v.top++
	case keyPageUp:
		v.top -= page
	case keyPageDown:
		v.top += page
	case keyHome:
		v.top = 0
	case keyLeft:
		v.sort = (v.sort + len(orders) - 1) % len(orders)
	case keyRight:
		v.sort = (v.sort + 1) % len(orders)
	case keyReverse:
		v.turned = !v.turned
	case keyPause:
		v.paused = !v.paused
	}
	v.top = max(0, min(v.top, len(v.seen.lanes)-1))
	return false
}
