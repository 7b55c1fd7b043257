// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"math"
	"math/rand/v2"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

// never is when that is due which is not.
const never = ^ledger.Time(0)

// Config is what a Lane is made for.
type Config struct {
	Lane  string // policy.LaneKey.String()
	Host  string // identity of host and boot
	Limit Limit
	Loss  Loss
	// Hosts is the number of hosts there should be, 0 if nobody told: no share
	// is made for fewer.
	Hosts int
	// Grace is how long LossShare goes on, from the loss of the store; 0 stands
	// for DefaultGrace.
	Grace time.Duration
	// Timeout of a call, between 50 and 100 ms; 0 stands for DefaultTimeout. The
	// caller keeps it.
	Timeout time.Duration
	// Chance is a number in [0, 1) whenever it is called; nil stands for the
	// source of math/rand/v2.
	Chance func() float64
}

// Lane is one host's part in a lane that a fleet shares. It starts nothing, and
// its caller owns the clock: the times given to it must not go back. What the
// host holds ends while the machine sleeps: a caller whose clock stands still
// then says so by Slept.
//
// It is not safe for concurrent use.
type Lane struct {
	c      Config
	scheme Scheme
	hosts  int         // as the store told last; 0: never
	told   ledger.Time // when the call was made that it answered

	batches []batch
	own     own

	copy  state
	close closing
	merit merit

	waiting  int         // requests that could go if there were units
	pace     float64     // units per second that went, in the mean of the last second
	pacedAt  ledger.Time // when that was so
	paceFrom ledger.Time // when the first of them went
	used     ledger.Time // when last a unit was taken or a request waited; 0: never

	busy     bool          // a call is under way, beside that of close
	grantAt  ledger.Time   // no units are asked for before
	dry      int           // answers in a row that granted nothing
	calledAt ledger.Time   // when last a call was made
	early    float64       // by which part of its interval the next heartbeat is early
	took     time.Duration // that calls take, the longest of late; 0: nobody knows
	breaker  breaker
	settled  ledger.Time // until then the host keeps to its share
	young    bool

	stats Stats
}

// Stats are counts since New.
type Stats struct {
	Calls    [Watch + 1]uint64 // made, by Kind
	Failures uint64            // calls that failed
	Granted  uint64            // units that the store granted
	Expired  uint64            // of them, not used in time
	Void     uint64            // of them, dropped by a cooldown or a new store
	Given    uint64            // of them, offered to the store again
	Local    uint64            // units that went without the store
}

// New makes a lane that has heard nothing of the store.
func New(c Config) *Lane {
	if c.Grace <= 0 {
		c.Grace = DefaultGrace
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	c.Timeout = min(max(c.Timeout, minTimeout), MaxTimeout)
	if c.Chance == nil {
		c.Chance = rand.Float64
	}
	c.Limit.Burst = max(c.Limit.Burst, 1)
	l := &Lane{c: c, scheme: SchemeOf(c.Limit)}
	l.copy.interval = c.Limit.Interval
	return l
}

// Timeout is how long a call of the lane may take.
func (l *Lane) Timeout() time.Duration { return l.c.Timeout }

// Scheme is how the lane comes by units while it has the store.
func (l *Lane) Scheme() Scheme { return l.scheme }

// Hosts is the number of hosts that the lane reckons with: as the store told,
// or as configured if that is more; 0 if nobody knows.
func (l *Lane) Hosts() int { return max(l.hosts, l.c.Hosts) }

// Stats are the lane's counts.
func (l *Lane) Stats() Stats { return l.stats }

// Bound is what the lane's present way of coming by units may send over its
// limit, all hosts together: see the function Bound. It is +Inf where there is
// no bound.
func (l *Lane) Bound(now ledger.Time) float64 {
	switch l.Mode(now) {
	case Together, Returning:
		return Bound(l.c.Limit, l.scheme, l.Hosts(), Term)
	case Shared:
		return Bound(l.c.Limit, Share, l.Hosts(), Term)
	case Alone:
		if l.scheme != Unbounded {
			return math.Inf(1)
		}
	}
	return 0
}

// Reconfigure puts another limit and rule for the loss in force at now. Units
// that were granted under a slower limit stay good; all others are dropped.
func (l *Lane) Reconfigure(limit Limit, loss Loss, now ledger.Time) {
	l.advance(now)
	limit.Burst = max(limit.Burst, 1)
	if limit != l.c.Limit {
		slowed := l.copy.slowed(l.c.Limit)
		if SchemeOf(limit) != l.scheme || limit.Interval > l.c.Limit.Interval || limit.Burst < l.c.Limit.Burst {
			l.void()
		}
		l.scheme = SchemeOf(limit)
		l.copy.interval = stretch(limit.Interval, slowed)
		l.c.Limit = limit
	}
	l.c.Loss = loss
}

// Want says at now how many requests wait for a unit.
func (l *Lane) Want(n int, now ledger.Time) {
	l.waiting = n
	if n > 0 {
		l.used = now
	}
}

// Take takes one unit at now for a request that is sent at once: the write to
// the socket comes next. If there is none, wait is how long it takes at least
// until there is; zero where only the store can say, after Next.
func (l *Lane) Take(now ledger.Time) (u Unit, wait time.Duration, ok bool) {
	l.advance(now)
	l.used = now
	if now < l.copy.openUntil {
		return Unit{}, l.copy.openUntil.Sub(now), false
	}
	u.Epoch = l.copy.epoch
	if l.scheme == Unbounded {
		return u, 0, true
	}
	for i := range l.batches {
		b := &l.batches[i]
		if end, ok := b.take(now); ok {
			u.grant, u.end, u.guard = b.grant, end, b.guard
			l.went(now)
			return u, 0, true
		}
	}
	if from := l.first(); from != never {
		return Unit{}, from.Sub(now), false
	}
	return l.takeOwn(u, now)
}

// Peek reports whether Take would give a unit at now, and wait as Take would if
// not.
func (l *Lane) Peek(now ledger.Time) (wait time.Duration, ready bool) {
	l.advance(now)
	switch {
	case now < l.copy.openUntil:
		return l.copy.openUntil.Sub(now), false
	case l.scheme == Unbounded:
		return 0, true
	}
	if from := l.first(); from != never {
		wait = max(0, from.Sub(now))
		return wait, wait == 0
	}
	every, burst, alone := l.alone(now)
	if !alone {
		return 0, false
	}
	wait = l.own.wait(now, every, burst)
	return wait, wait == 0
}

// first is when the first of the units that the host holds may go, or never.
// What is past may go at once.
func (l *Lane) first() ledger.Time {
	from := never
	for i := range l.batches {
		b := &l.batches[i]
		switch {
		case b.loose > 0:
			return 0
		case b.Units > 0:
			from = min(from, b.From)
		}
	}
	return from
}

// takeOwn takes a unit of the host's own, if it is left to itself.
func (l *Lane) takeOwn(u Unit, now ledger.Time) (_ Unit, wait time.Duration, ok bool) {
	every, burst, alone := l.alone(now)
	if !alone {
		return Unit{}, 0, false
	}
	if wait, ok = l.own.take(now, every, burst); !ok {
		return Unit{}, wait, false
	}
	u.tat, u.span = l.own.tat, every
	l.stats.Local++
	l.went(now)
	return u, 0, true
}

// alone is the pace of the host's own at now, if it is left to itself.
func (l *Lane) alone(now ledger.Time) (every time.Duration, burst uint64, alone bool) {
	switch l.Mode(now) {
	case Shared:
		return l.share(), 1, true
	case Alone:
		return l.copy.interval, l.c.Limit.Burst, true
	default:
		return 0, 0, false
	}
}

// Return brings back at now a unit that Take gave for a request that never
// reached the wire.
func (l *Lane) Return(u Unit, now ledger.Time) {
	l.advance(now)
	if u.Epoch != l.copy.epoch {
		return // the bucket was emptied since
	}
	if u.grant == "" {
		if u.span > 0 && l.own.tat == u.tat {
			l.own.tat = l.own.tat.Add(-u.span)
		}
		return
	}
	if u.end < now {
		l.stats.Expired++
		return
	}
	for i := range l.batches {
		if b := &l.batches[i]; b.grant == u.grant {
			b.return1(u.end)
			return
		}
	}
	l.batches = append(l.batches, batch{grant: u.grant, guard: u.guard, loose: 1, looseEnd: u.end, got: now, offered: true})
}

// Slept says that the machine slept before now, while the clock of the lane stood
// still: what the host holds is over, and what it knows is old.
func (l *Lane) Slept(now ledger.Time) {
	l.void()
	l.calledAt = 0
}

// Held is how many units of the store the host holds at now.
func (l *Lane) Held(now ledger.Time) uint64 {
	l.advance(now)
	return l.held()
}

// Refills are the units that the host holds at now, for a local source of
// tokens that is to be set by them. Who takes from there must not take here.
func (l *Lane) Refills(now ledger.Time) []Refill {
	l.advance(now)
	var all []Refill
	for i := range l.batches {
		b := &l.batches[i]
		if b.Units > 0 {
			all = append(all, b.Refill)
		}
		if b.loose > 0 {
			all = append(all, Refill{Units: b.loose, From: now, Until: b.looseEnd})
		}
	}
	return all
}

// Mode is where the lane's units come from at now, once it holds none.
func (l *Lane) Mode(now ledger.Time) Mode {
	l.advance(now)
	if !l.breaker.lost {
		if now < l.settled {
			return Returning
		}
		return Together
	}
	switch l.c.Loss {
	case LossOpen:
		return Alone
	case LossShare:
		if l.Hosts() > 0 && now < l.breaker.since.Add(l.c.Grace) {
			return Shared
		}
	}
	return Shut
}

// share is the interval of the host's share.
func (l *Lane) share() time.Duration {
	return stretch(l.copy.interval, float64(max(l.Hosts(), 1)))
}

func (l *Lane) held() (n uint64) {
	for i := range l.batches {
		n += l.batches[i].left()
	}
	return n
}

// advance drops what is over at now.
func (l *Lane) advance(now ledger.Time) {
	if l.breaker.lost && l.breaker.backAt != 0 && now >= l.breaker.backAt {
		l.breaker = breaker{}
		if l.c.Loss == LossShare && l.scheme != Unbounded {
			l.settled = now.Add(settle(l.Hosts()))
		}
	}
	kept := l.batches[:0]
	for i := range l.batches {
		b := &l.batches[i]
		l.stats.Expired += b.expire(now)
		if b.left() > 0 {
			kept = append(kept, *b)
		}
	}
	l.batches = kept
}

// void drops all that the host holds.
func (l *Lane) void() {
	l.stats.Void += l.held()
	l.batches = l.batches[:0]
}

// went counts a unit that goes at now.
func (l *Lane) went(now ledger.Time) {
	const forgotten = 0.05 // units
	if l.pace = l.fresh(now); l.pace < forgotten {
		l.paceFrom = now
	}
	l.pace++
	l.pacedAt = now
}

// fresh is how many units went before now, those of a second ago counting a third.
func (l *Lane) fresh(now ledger.Time) float64 {
	return l.pace * math.Exp(-max(0, now.Sub(l.pacedAt)).Seconds())
}

// paceAt is how many units went per second before now, the older ones counting
// less. What began a moment ago counts as if it had gone on for a while, but for
// the first unit, which says nothing of others.
func (l *Lane) paceAt(now ledger.Time) float64 {
	const least = 250 * time.Millisecond
	missing := math.Exp(-max(now.Sub(l.paceFrom), least).Seconds())
	return max(0, l.fresh(now)-missing) / (1 - missing)
}

// stretch is d times f, cut to the range.
func stretch(d time.Duration, f float64) time.Duration {
	x := math.Ceil(float64(d) * f)
	if x >= math.MaxInt64 {
		return math.MaxInt64
	}
	return time.Duration(x)
}

// jitter is a random part of d.
func (l *Lane) jitter(d time.Duration) time.Duration {
	return time.Duration(l.c.Chance() * float64(d))
}
