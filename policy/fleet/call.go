// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"math"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

// Flight is a call under way.
type Flight struct {
	Call
	Sent    ledger.Time
	closure uint64
	step    float64
}

// breaker is what the host makes of calls that fail.
type breaker struct {
	failures int
	retryAt  ledger.Time // no call before, after a failure
	lost     bool
	since    ledger.Time
	probeAt  ledger.Time // when it looks whether the store is back
	backAt   ledger.Time // it is: when this host goes back to it; 0: it is not
}

// Next is the call that is due at now, if any. The caller makes it, gives it up
// after Timeout, and reports with Answered or Failed, once. There are two under
// way at most, and the second is a Close.
func (l *Lane) Next(now ledger.Time) (f Flight, due bool) {
	l.advance(now)
	if l.closeAt() <= now {
		return l.sendClose(now), true
	}
	kind, units, at := l.plan(now)
	if at > now {
		return Flight{}, false
	}
	f = l.flight(kind, now)
	l.busy = true
	switch kind {
	case Book, Lease:
		f.Units = units
		if now < l.settled {
			l.own.spend(now, l.share(), units)
		}
		f.Term = Ahead
		if kind == Lease {
			f.Term = Term
		}
	case Reward:
		f.Step, f.step = l.merit.step, l.merit.step
		l.merit = merit{at: now.Add(max(probeDelay, spread(l.Hosts())))}
	case Give:
		b := l.idle()
		f.Grant, f.Units = b.grant, b.Units
		l.stats.Given += b.Units
		b.Units, b.offered = 0, true // forgotten first: it cannot be spent twice
	}
	return f, true
}

// Wake is when Next is worth asking after now, if nothing else happens; false
// if never.
func (l *Lane) Wake(now ledger.Time) (at ledger.Time, ok bool) {
	l.advance(now)
	_, _, at = l.plan(now)
	at = min(at, l.closeAt())
	if l.breaker.lost && l.breaker.backAt != 0 {
		at = min(at, l.breaker.backAt)
	}
	return at, at != never
}

// flight begins a call.
func (l *Lane) flight(kind Kind, now ledger.Time) Flight {
	l.stats.Calls[kind]++
	l.calledAt, l.early = now, l.c.Chance()/8
	return Flight{
		Sent: now,
		Call: Call{Lane: l.c.Lane, Host: l.c.Host, Limit: l.c.Limit, Kind: kind, Epoch: l.copy.epoch},
	}
}

// closeAt is when the store is told of a cooldown.
func (l *Lane) closeAt() ledger.Time {
	c := &l.close
	if len(c.due) == 0 || c.busy {
		return never
	}
	if l.breaker.lost && l.breaker.backAt == 0 {
		if l.busy {
			return never // the probe
		}
		return l.breaker.probeAt
	}
	return max(c.at, l.breaker.retryAt)
}

func (l *Lane) sendClose(now ledger.Time) Flight {
	f := l.flight(Close, now)
	first := l.close.due[0]
	f.Epoch, f.Factor, f.Until = first.epoch, first.factor, ceilMicro(l.copy.remaining(now))
	f.closure, l.close.busy = first.number, true
	return f
}

// plan is the ordinary call that comes next, and when.
func (l *Lane) plan(now ledger.Time) (kind Kind, units uint64, at ledger.Time) {
	if l.busy {
		return 0, 0, never
	}
	br := &l.breaker
	if br.lost && br.backAt == 0 {
		if l.close.busy || len(l.close.due) > 0 {
			return 0, 0, never // that is the probe
		}
		return Watch, 0, br.probeAt
	}
	kind, at = 0, never
	consider := func(k Kind, t ledger.Time) {
		if t = max(t, br.retryAt); t < at && (kind == 0 || at > now) {
			kind, at = k, t
		}
	}
	if !br.lost {
		if units = l.need(now); units > 0 {
			k := Lease
			if l.scheme == Slots {
				k = Book
			}
			t := max(l.grantAt, l.copy.gateAt)
			if now < l.settled {
				// In no smaller pieces than otherwise, and nothing that is not the
				// host's by its share.
				t = max(t, min(l.settled, l.own.tat.Add(l.share()*time.Duration((units-1)/2))))
				units = min(units, l.own.credit(now, l.share()))
			}
			consider(k, t)
		}
		if l.merit.step > 1 {
			consider(Reward, l.merit.at)
		}
		if b := l.idle(); b != nil {
			consider(Give, l.giveAt(b))
		}
	}
	if l.inUse(now) {
		consider(Watch, l.beatAt(now))
	}
	return kind, units, at
}

// beatAt is when the next call comes at the latest: see beat.
func (l *Lane) beatAt(now ledger.Time) ledger.Time {
	every := beatMost
	if l.scheme == Unbounded || l.waiting > 0 || l.slowOrClosed(now) || l.breaker.lost || len(l.batches) > 0 {
		every = beat(l.Hosts())
	}
	return l.calledAt.Add(every - time.Duration(l.early*float64(every)))
}

// inUse reports whether the host counts as one of the lane's.
func (l *Lane) inUse(now ledger.Time) bool {
	return l.waiting > 0 || l.slowOrClosed(now) || l.breaker.lost ||
		l.used != 0 && now < l.used.Add(Alive) || len(l.batches) > 0
}

// need is how many units to ask for at now.
func (l *Lane) need(now ledger.Time) uint64 {
	waiting := uint64(max(l.waiting, 0))
	var want, reserve uint64
	most := Batch(l.c.Limit, l.Hosts())
	switch l.scheme {
	case Slots:
		want = min(waiting, most)
		reserve = want
	case Leases:
		if l.hosts > 0 && now > l.told.Add(2*beat(l.Hosts())) {
			most = 1 // others may have come: the answer tells
		}
		pace := l.paceAt(now)
		// What waits, and what will surely come while the units last.
		want = min(waiting+uint64(max(0, pace*reach.Seconds()-1)), most)
		// The next batch is there before what is left of this one is spent.
		reserve = want / 2
		if l.took > 0 {
			reserve = min(reserve, uint64(pace*(2*l.took+lead).Seconds()))
		}
	default:
		return 0
	}
	held := l.held()
	if held >= want || held > reserve {
		return 0
	}
	return want - held
}

// idle is the batch that could be given back: the last one, since the store
// takes back from the end only, while nothing waits.
func (l *Lane) idle() *batch {
	if l.waiting > 0 || len(l.batches) == 0 {
		return nil
	}
	b := &l.batches[len(l.batches)-1]
	if b.Units == 0 || b.offered {
		return nil
	}
	return b
}

// giveAt is when an idle batch goes back: after a while without requests, unless
// what went before lets expect that the batch will still be spent. Where others
// take meanwhile, what is offered is of no use to them.
func (l *Lane) giveAt(b *batch) ledger.Time {
	at := max(l.used, b.got).Add(hold)
	if l.scheme != Leases {
		return at
	}
	spend := math.Inf(1)
	if pace := l.paceAt(l.used); pace > 0 {
		spend = float64(b.Units) / pace
	}
	return max(at, b.Until.Add(-time.Duration(min(spend, Term.Seconds())*float64(time.Second))))
}

// Answered takes in, at now, the answer to a call.
func (l *Lane) Answered(f Flight, a Answer, now ledger.Time) {
	l.advance(now)
	l.landed(&f)
	l.timed(now.Sub(f.Sent))
	br := &l.breaker
	br.failures, br.retryAt = 0, 0
	if a.Hosts > 0 {
		l.hosts, l.told = a.Hosts, max(l.told, f.Sent)
	}
	if br.lost && br.backAt == 0 {
		br.backAt = now.Add(l.jitter(max(returnLeast, spread(l.Hosts()))))
	}
	if a.Young && !l.young {
		l.restarted(now)
	}
	l.young = a.Young
	if f.Kind == Close {
		l.close.told(f.closure)
	}
	l.learn(&a, f.Sent, now)
	if f.Kind != Book && f.Kind != Lease {
		return
	}
	a.Granted = min(a.Granted, f.Units)
	l.stats.Granted += a.Granted
	if a.Granted > 0 {
		l.dry = 0
	}
	switch {
	case a.Granted == 0:
		// Who is told so again and again asks less often, though as often as its
		// turn may come.
		wait := min(max(a.Retry, retryDelay), retryMost)
		turn := min(l.share(), beatMost)
		wait = max(wait, min(wait<<min(l.dry, 8), turn))
		l.dry++
		l.grantAt = now.Add(wait + l.jitter(max(wait/2, min(spread(l.Hosts()), time.Second))))
	case a.Epoch != l.copy.epoch:
		l.stats.Void += a.Granted // of an epoch that is over
	default:
		l.batches = append(l.batches, l.batch(&f, &a, now))
	}
}

// batch is what an answer granted. Its slots are counted from the receipt of
// the answer and their ends from the sending of the call: one is after, the
// other before the store's own time.
func (l *Lane) batch(f *Flight, a *Answer, now ledger.Time) batch {
	b := batch{grant: a.Grant, got: now}
	b.Units, b.From = a.Granted, now.Add(a.After)
	life := Term - Guard
	b.guard = Guard
	if f.Kind == Book {
		// Half an interval is left for who is kept from running.
		b.guard = l.c.Limit.Interval / 2
		life = l.c.Timeout + b.guard
	} else if a.Term > 0 {
		life = min(life, a.Term-Guard)
	}
	b.Until = f.Sent.Add(a.After + life)
	if a.After > 0 {
		b.Every = max(a.Interval, l.c.Limit.Interval)
	}
	return b
}

// restarted gives up the slots that a store granted which is no more and that
// are still ahead: the new one does not know of them.
func (l *Lane) restarted(now ledger.Time) {
	for i := range l.batches {
		b := &l.batches[i]
		keep := uint64(0)
		if b.From <= now {
			keep = b.Units
			if b.Every > 0 {
				keep = min(keep, uint64(now.Sub(b.From)/b.Every)+1)
			}
		}
		l.stats.Void += b.Units - keep
		b.Units, b.offered = keep, true
	}
}

// Failed says at now that a call brought no answer in time.
func (l *Lane) Failed(f Flight, now ledger.Time) {
	l.advance(now)
	l.landed(&f)
	l.timed(l.c.Timeout)
	l.stats.Failures++
	if f.Kind == Reward && f.Epoch == l.copy.epoch {
		l.merit.step = max(l.merit.step, 1) * f.step
	}
	br := &l.breaker
	br.failures++
	br.retryAt = now.Add(retryDelay + l.jitter(retryDelay))
	if br.failures < breakerFailures && !br.lost {
		return
	}
	if !br.lost {
		br.lost, br.since = true, now
		if l.c.Loss == LossShare {
			// Not all hosts begin with a unit at once.
			l.own.tat = max(l.own.tat, now.Add(l.jitter(l.share())))
		}
	}
	every := max(min(probeDelay<<min(max(br.failures-breakerFailures, 0), 8), probeMost), spread(l.Hosts()))
	br.backAt, br.probeAt = 0, now.Add(every/2+l.jitter(every))
}

// timed takes in how long a call took: the longest of late.
func (l *Lane) timed(took time.Duration) {
	l.took = min(max(took, l.took-(l.took-took)/8, 1), l.c.Timeout)
}

// landed ends a call.
func (l *Lane) landed(f *Flight) {
	if f.Kind == Close {
		l.close.busy = false
		return
	}
	l.busy = false
}
