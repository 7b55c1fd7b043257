// SPDX-License-Identifier: Apache-2.0

package events

import (
	"slices"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
)

// Limits of the events of one kind and lane: a thousand refusals within a
// second say no more than ten of them, and would push out everything else.
const (
	limitBurst = 10
	limitEvery = time.Second     // one more after the burst
	limitQuiet = 5 * time.Second // after it, the last one left out is told by itself
	maxLimited = 1 << 14         // kinds and lanes that are told apart
)

// Limit has the log leave out events where there are too many of a kind in a
// lane, and say so in the next one: see policy.Event.Suppressed. Who does so
// calls Settle every now and then.
func (l *Log) Limit() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.limit = &limiter{lanes: make(map[limitKey]*limited)}
}

// Settle tells the last of those events that were left out and that none has
// followed for some seconds, so that no count is lost, and forgets lanes that are
// quiet.
func (l *Log) Settle(now ledger.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.limit == nil || l.closed {
		return
	}
	for _, ev := range l.limit.settle(now) {
		l.record(ev, false)
	}
}

// limiter knows how many events of each kind and lane there were of late. Under
// the mutex of its log.
type limiter struct{ lanes map[limitKey]*limited }

type limitKey struct {
	kind policy.EventKind
	lane string
}

// limited is a bucket of limitBurst events.
type limited struct {
	full ledger.Time // when the bucket is full again
	out  uint64      // left out since the last one told
	last policy.Event
}

// admit reports whether an event is told. If so, it tells how many before it
// were not.
func (l *limiter) admit(ev *policy.Event) bool {
	key := limitKey{ev.Kind, ev.Lane}
	b := l.lanes[key]
	if b == nil {
		if len(l.lanes) >= maxLimited {
			key.lane = "" // all that come now share one
		}
		if b = l.lanes[key]; b == nil {
			b = new(limited)
			l.lanes[key] = b
		}
	}
	next := max(b.full, ev.At).Add(limitEvery)
	if next.Sub(ev.At) > limitBurst*limitEvery {
		b.out++
		b.last = *ev
		return false
	}
	b.full = next
	ev.Suppressed, b.out = b.out, 0
	return true
}

// settle gives the events that are to be told by themselves, in their order.
func (l *limiter) settle(now ledger.Time) (out []policy.Event) {
	for key, b := range l.lanes {
		switch {
		case b.out > 0 && now.Sub(b.last.At) >= limitQuiet:
			ev := b.last
			ev.Suppressed, b.out = b.out-1, 0 // it is one of them
			out = append(out, ev)
		case b.out == 0 && now >= b.full:
			delete(l.lanes, key)
		}
	}
	slices.SortFunc(out, func(a, b policy.Event) int { return int(a.At.Sub(b.At)) })
	return out
}
