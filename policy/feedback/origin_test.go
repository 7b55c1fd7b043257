// SPDX-License-Identifier: Apache-2.0

package feedback

import (
	"container/heap"
	"time"

	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
)

const t0 = ledger.Time(1_000_000 * time.Second)

// origin is a server with a limit. serve judges one request at now, which
// never goes back; a request that is refused costs nothing. retry is how long
// a refused client has to wait.
type origin interface {
	serve(now ledger.Time) (q verdict.Quota, retry time.Duration, ok bool)
}

// fixedWindow counts in windows that begin at multiples of length.
type fixedWindow struct {
	limit  uint64
	length time.Duration
	unit   time.Duration // reset is rounded up to it
	window bool          // it tells the length

	index uint64
	used  uint64
}

func (o *fixedWindow) serve(now ledger.Time) (verdict.Quota, time.Duration, bool) {
	if i := uint64(now) / uint64(o.length); i != o.index {
		o.index, o.used = i, 0
	}
	ok := o.used < o.limit
	if ok {
		o.used++
	}
	end := ledger.Time((o.index + 1) * uint64(o.length))
	q := quota(o.limit, less(o.limit, o.used), roundUp(end.Sub(now), o.unit))
	if o.window {
		q.Window = o.length
	}
	return q, end.Sub(now), ok
}

// slidingLog allows limit requests in any window.
type slidingLog struct {
	limit  uint64
	length time.Duration
	unit   time.Duration
	oldest bool // reset is when the oldest request is forgotten, not all

	sent []ledger.Time
}

func (o *slidingLog) serve(now ledger.Time) (verdict.Quota, time.Duration, bool) {
	for len(o.sent) > 0 && now.Sub(o.sent[0]) >= o.length {
		o.sent = o.sent[1:]
	}
	ok := uint64(len(o.sent)) < o.limit
	if ok {
		o.sent = append(o.sent, now)
	}
	next := o.sent[0].Add(o.length).Sub(now)
	reset := o.length
	if o.oldest {
		reset = next
	}
	q := quota(o.limit, o.limit-uint64(len(o.sent)), roundUp(reset, o.unit))
	q.Window = o.length
	return q, next, ok
}

// tokenBucket holds limit tokens and gains one per interval.
type tokenBucket struct {
	limit    uint64
	interval time.Duration
	silent   bool // it tells nothing

	full ledger.Time // when it will be full
}

func (o *tokenBucket) serve(now ledger.Time) (verdict.Quota, time.Duration, bool) {
	span := times(o.limit, o.interval)
	full := max(o.full, now).Add(o.interval)
	retry := full.Sub(now) - span
	ok := retry <= 0
	if ok {
		o.full = full
	}
	if o.silent {
		return verdict.Quota{}, retry, ok
	}
	missing := o.full.Sub(now)
	q := quota(o.limit, uint64(max(0, span-missing)/o.interval), roundUp(missing, time.Millisecond))
	q.ToFull = true
	return q, retry, ok
}

func quota(limit, remaining uint64, reset time.Duration) verdict.Quota {
	return verdict.Quota{
		Limit: int64(limit), HasLimit: true,
		Remaining: int64(remaining), HasRemaining: true,
		Reset: reset, HasReset: true,
	}
}

func roundUp(d, unit time.Duration) time.Duration { return (d + unit - 1) / unit * unit }

// agenda is what will happen, in the order of time.
type agenda struct {
	now    ledger.Time
	events events
	count  int
}

type event struct {
	at    ledger.Time
	order int
	do    func()
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].order < e[j].order
}
func (e events) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *events) Push(x any)   { *e = append(*e, x.(event)) }
func (e *events) Pop() any {
	last := len(*e) - 1
	x := (*e)[last]
	*e = (*e)[:last]
	return x
}

func (a *agenda) after(d time.Duration, do func()) {
	a.count++
	heap.Push(&a.events, event{a.now.Add(max(d, 0)), a.count, do})
}

func (a *agenda) run(until ledger.Time) {
	for len(a.events) > 0 && a.events[0].at <= until {
		e := heap.Pop(&a.events).(event)
		a.now = e.at
		e.do()
	}
	a.now = until
}
