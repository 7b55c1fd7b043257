// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"
)

// What is remembered between two looks.
const (
	history    = 120              // seconds of an exit that are shown
	rateSpan   = 10               // looks over which the rate of a lane is taken: a lane of one request in five seconds would flicker otherwise
	step       = every * 9 / 10   // at least, between two looks that count for that
	forgetting = 15 * time.Second // without a look, after which it begins anew
	keptEvents = 200
	overBy     = 1.05 // times its budget, from which on a lane is said to be over it
)

// sight is a daemon at one instant. Nothing in it changes but the memory of what
// was written of it.
type sight struct {
	seq    uint64
	at     time.Time
	status Status
	lanes  []laneSeen
	exits  []exitSeen
	until  time.Time
	events []eventSeen

	mu      sync.Mutex
	written map[query]*writing
}

// writing is a State in JSON, made once.
type writing struct {
	once sync.Once
	text []byte
}

type laneSeen struct {
	Lane
	names     string  // what is searched, in lower case
	perSecond float64 // meaningful if known
	known     bool
	over      bool // it sent more than its budget allows, as only one that is not held can
}

// use is the share of its budget that a lane sends; 0 where it has none.
func (l *laneSeen) use() float64 {
	if l.Base <= 0 {
		return 0
	}
	return l.perSecond / l.Base
}

// atOnce is how many requests may go together after a pause.
func (l *Lane) atOnce() float64 {
	if l.Window != nil {
		return max(l.Burst, float64(l.Window.Limit))
	}
	return l.Burst
}

func (l *laneSeen) closed() bool { return l.ClosedFor > 0 }

// slowed reports whether fewer requests may go than the budget allows. Rates
// are whole nanoseconds apart, so that equal ones may differ by a little.
func (l *laneSeen) slowed() bool { return l.Probing || l.Rate < l.Base*0.999 }

type eventSeen struct {
	Event
	id uint64 // grows by one
}

// eyes see a source again and again, and what changed between. The zero eyes
// are ready. Not safe for concurrent use.
type eyes struct {
	seq    uint64
	last   time.Time // look
	steps  []time.Time
	tracks map[string]*track // by lane
	events []eventSeen
	nextID uint64
}

// track is what a lane had sent at each of eyes.steps, and a lane that was not
// there yet nothing.
type track struct {
	names string
	sent  []uint64
	seq   uint64 // of the look that last saw it
	step  uint64 // … that last counted
}

// see takes a look at now.
func (e *eyes) see(src Source, now time.Time) *sight {
	if now.Sub(e.last) > forgetting {
		e.steps, e.tracks = nil, make(map[string]*track)
	}
	e.last = now
	e.seq++
	s := &sight{seq: e.seq, at: now, status: src.Status(), written: make(map[query]*writing)}
	s.lanes = e.rates(src.Lanes(), now)
	exits, until := src.Exits(history)
	s.until = until
	s.exits = exitsOf(exits, s.lanes)
	s.events = e.number(src.Events(keptEvents))
	return s
}

// rates finds out how much lanes send.
func (e *eyes) rates(lanes []Lane, now time.Time) []laneSeen {
	seen := make([]laneSeen, len(lanes))
	for i := range lanes {
		l := &lanes[i]
		t := e.tracks[l.ID]
		if t == nil {
			t = &track{sent: make([]uint64, len(e.steps), rateSpan+1), names: strings.ToLower(l.ID)}
			e.tracks[l.ID] = t
		}
		t.seq = e.seq
		seen[i] = laneSeen{Lane: *l, names: t.names}
		if len(e.steps) == 0 {
			continue
		}
		// A count that fell is that of another lane, which took over the name.
		if l.Sent < t.sent[len(t.sent)-1] {
			clear(t.sent)
		}
		if d := now.Sub(e.steps[0]); d >= step {
			seen[i].known = true
			sent := float64(l.Sent - t.sent[0])
			seen[i].perSecond = sent / d.Seconds()
			seen[i].over = l.Base > 0 && sent > l.atOnce()+1+l.Base*d.Seconds()*overBy
		}
	}
	if n := len(e.steps); n == 0 || now.Sub(e.steps[n-1]) >= step {
		e.step(lanes, now)
	}
	return seen
}

// step has this look count for the rates of later ones.
func (e *eyes) step(lanes []Lane, now time.Time) {
	full := len(e.steps) > rateSpan
	if full {
		e.steps = slices.Delete(e.steps, 0, 1)
	}
	e.steps = append(e.steps, now)
	for i := range lanes {
		t := e.tracks[lanes[i].ID]
		if t.step == e.seq {
			continue // two lanes of one name
		}
		t.step = e.seq
		if full {
			t.sent = slices.Delete(t.sent, 0, 1)
		}
		t.sent = append(t.sent, lanes[i].Sent)
	}
	for id, t := range e.tracks {
		if t.seq != e.seq {
			delete(e.tracks, id)
		}
	}
}

// number gives events their numbers: those that were there at the last look keep
// theirs. Of events that look the same, it does not matter which is which.
func (e *eyes) number(events []Event) []eventSeen {
	gone := 0 // of those that were there, as far as can be seen
	for gone < len(e.events) && !begins(e.events[gone:], events) {
		gone++
	}
	out := make([]eventSeen, len(events))
	for i := range events {
		out[i].Event = events[i]
		if gone+i < len(e.events) {
			out[i].id = e.events[gone+i].id
			continue
		}
		e.nextID++
		out[i].id = e.nextID
	}
	e.events = out
	return out
}

// begins reports whether events begin with old.
func begins(old []eventSeen, events []Event) bool {
	if len(old) > len(events) {
		return false
	}
	for i := range old {
		if !old[i].same(&events[i]) {
			return false
		}
	}
	return true
}

// byName orders lanes whose order does not matter otherwise.
func byName(a, b *laneSeen) int { return cmp.Compare(a.ID, b.ID) }
