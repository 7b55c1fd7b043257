// SPDX-License-Identifier: Apache-2.0

// Package events keeps the last things that happened and tells them to whoever
// listens.
//
// A listener that does not keep up loses events, and is told how many; it
// never slows down what it listens to.
package events

import (
	"sync"
	"sync/atomic"

	"github.com/egressd/egressd/policy"
)

// DefaultKept is the number of events that a Log remembers if its maker does
// not say.
const DefaultKept = 4096

// New makes a log that remembers the last n events; 0 means DefaultKept.
func New(n int) *Log {
	if n <= 0 {
		n = DefaultKept
	}
	return &Log{kept: n, subs: map[*Subscription]struct{}{}}
}

// Log is a bounded memory of events, and their distribution. Made by New. Safe
// for concurrent use.
type Log struct {
	dispatches atomic.Int32 // subscribers that asked for dispatch events

	kept   int
	mu     sync.Mutex
	ring   []policy.Event
	next   int // where the oldest event is, once the ring is full
	subs   map[*Subscription]struct{}
	limit  *limiter // nil: none
	closed bool
}

// Dispatches reports whether anyone wants dispatch events and those of single
// answers. There is one for each request, so who would make one asks first: it
// costs a load.
func (l *Log) Dispatches() bool { return l.dispatches.Load() > 0 }

// Emit records an event. Dispatch events, and those of single answers, are
// passed on but not remembered: they would push out everything
// else.
func (l *Log) Emit(ev policy.Event) {
	dispatch := ev.Kind == policy.EventDispatch || ev.Kind == policy.EventObserved || ev.Kind == policy.EventAsked
	if dispatch && !l.Dispatches() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	if !dispatch && l.limit != nil && !l.limit.admit(&ev) {
		return
	}
	l.record(ev, dispatch)
}

// record remembers an event and tells who listens. Under l.mu.
func (l *Log) record(ev policy.Event, dispatch bool) {
	if !dispatch {
		if len(l.ring) < l.kept {
			l.ring = append(l.ring, ev)
		} else {
			l.ring[l.next] = ev
			l.next = (l.next + 1) % l.kept
		}
	}
	for s := range l.subs {
		if dispatch && !s.dispatches {
			continue
		}
		select {
		case s.ch <- ev:
		default:
			s.dropped.Add(1)
		}
	}
}

// Recent gives at most the last n events, the oldest first.
func (l *Log) Recent(n int) []policy.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.recent(n)
}

func (l *Log) recent(n int) []policy.Event {
	n = max(0, min(n, len(l.ring)))
	out := make([]policy.Event, 0, n)
	for i := len(l.ring) - n; i < len(l.ring); i++ {
		out = append(out, l.ring[(l.next+i)%len(l.ring)])
	}
	return out
}

// Subscription is a listener. Its owner reads C until it is closed, or calls
// Close.
type Subscription struct {
	C <-chan policy.Event // closed when the log or the subscription is

	log        *Log
	ch         chan policy.Event
	dispatches bool
	dropped    atomic.Uint64
}

// Options of a subscription.
type Options struct {
	Buffer     int  // events that may lie unread; 0 means 256
	Dispatches bool // dispatch events too
}

// Subscribe gives the last recent events at once, and a subscription that
// goes on without a gap or a repetition.
func (l *Log) Subscribe(recent int, o Options) ([]policy.Event, *Subscription) {
	if o.Buffer <= 0 {
		o.Buffer = 256
	}
	ch := make(chan policy.Event, o.Buffer)
	s := &Subscription{C: ch, log: l, ch: ch, dispatches: o.Dispatches}
	l.mu.Lock()
	defer l.mu.Unlock()
	past := l.recent(recent)
	if l.closed {
		close(ch)
		return past, s
	}
	l.subs[s] = struct{}{}
	if o.Dispatches {
		l.dispatches.Add(1)
	}
	return past, s
}

// Dropped is the number of events that were lost because C was full.
func (s *Subscription) Dropped() uint64 { return s.dropped.Load() }

// Close ends the subscription and closes C. It may be called more than once.
func (s *Subscription) Close() {
	s.log.mu.Lock()
	defer s.log.mu.Unlock()
	s.log.end(s)
}

func (l *Log) end(s *Subscription) {
	if _, live := l.subs[s]; !live {
		return
	}
	delete(l.subs, s)
	if s.dispatches {
		l.dispatches.Add(-1)
	}
	close(s.ch)
}

// Close ends all subscriptions. Later events are not recorded.
func (l *Log) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for s := range l.subs {
		l.end(s)
	}
}
