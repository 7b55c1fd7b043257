// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

// limiter is an origin's own account of one exit. It is the adversary, so it
// shares no code with the ledger.
type limiter struct {
	limit *Limit

	// The token bucket, as the instant at which it is full again.
	full     ledger.Time
	interval time.Duration

	window  []ledger.Time // sliding: ring of the last instants
	next    int           // the oldest of them, once the ring is full
	stale   int           // so many of the oldest have left the window
	begun   ledger.Time   // fixed: the window that counts now
	counted int

	inFlight int
}

func newLimiter(l *Limit) *limiter {
	return &limiter{limit: l, interval: l.Rate.Interval()}
}

// take asks for room for one request at now.
func (l *limiter) take(now ledger.Time) bool {
	ok := l.tokens(now) >= 1 && l.windowLeft(now) >= 1 &&
		(l.limit.Concurrency == 0 || l.inFlight < l.limit.Concurrency)
	if !ok && !l.limit.CountRefused {
		return false
	}
	if l.interval > 0 {
		l.full = max(l.full, now).Add(l.interval)
		// A refused request takes what there was, if it was less than one.
		l.full = min(l.full, now.Add(time.Duration(l.limit.Burst)*l.interval))
	}
	switch w := &l.limit.Window; {
	case w.Limit == 0:
	case w.Fixed:
		l.counted++
	case len(l.window) < w.Limit:
		l.window = append(l.window, now)
	default:
		l.window[l.next] = now
		l.next = (l.next + 1) % len(l.window)
		l.stale = max(l.stale-1, 0)
	}
	if ok {
		l.inFlight++
	}
	return ok
}

// done ends a request for which there was room.
func (l *limiter) done() { l.inFlight-- }

// tokens are those in the bucket, with fractions; at least 1 if there is no
// bucket. An interval is whole nanoseconds: what is exactly one is.
func (l *limiter) tokens(now ledger.Time) float64 {
	if l.interval == 0 {
		return 1
	}
	return float64(l.limit.Burst) - float64(max(l.full.Sub(now), 0))/float64(l.interval)
}

// windowLeft is what the window has left; at least 1 if there is none.
func (l *limiter) windowLeft(now ledger.Time) int {
	w := &l.limit.Window
	switch {
	case w.Limit == 0:
		return 1
	case w.Fixed:
		if begun := now - now%ledger.Time(w.Per); begun != l.begun {
			l.begun, l.counted = begun, 0
		}
		return w.Limit - min(l.counted, w.Limit)
	}
	for l.stale < len(l.window) && now.Sub(l.window[(l.next+l.stale)%len(l.window)]) >= w.Per {
		l.stale++
	}
	return w.Limit - (len(l.window) - l.stale)
}

// quota is what headers tell: the limit that is nearest to its end.
type quota struct {
	limit, left uint64
	window      time.Duration // in which limit requests may go
	reset       time.Duration // until all of them may again
}

// quota is the account at now; false if there is nothing to tell.
func (l *limiter) quota(now ledger.Time) (q quota, ok bool) {
	if w := &l.limit.Window; w.Limit > 0 {
		q = quota{limit: uint64(w.Limit), left: uint64(l.windowLeft(now)), window: w.Per}
		switch {
		case w.Fixed:
			q.reset = l.begun.Add(w.Per).Sub(now)
		case len(l.window) > 0:
			newest := l.window[(l.next+len(l.window)-1)%len(l.window)]
			q.reset = max(newest.Add(w.Per).Sub(now), 0)
		}
		ok = true
	}
	if l.interval > 0 {
		b := quota{limit: uint64(l.limit.Burst), left: uint64(max(l.tokens(now), 0)),
			window: time.Duration(l.limit.Burst) * l.interval, reset: max(l.full.Sub(now), 0)}
		if !ok || b.left < q.left {
			q = b
		}
		ok = true
	}
	return q, ok
}
