// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

// Unit is what Take took.
type Unit struct {
	Epoch uint64 // of the lane when it was taken: what Penalize and Reward need
	grant string // of the batch; "" for a unit of the host's own
	end   ledger.Time
	guard time.Duration
	tat   ledger.Time // that a unit of the host's own left behind
	span  time.Duration
}

// Late reports whether at now what the unit was taken for may no longer be
// written: the bound counts on its having gone by then.
func (u *Unit) Late(now ledger.Time) bool { return u.grant != "" && now > u.end.Add(u.guard) }

// Refill is a batch of units as a local source of tokens would take it: unit i,
// from 0, may go no earlier than From + i·Every and no later than Until +
// i·Every.
type Refill struct {
	Units uint64
	From  ledger.Time
	Until ledger.Time
	Every time.Duration // 0: all at once
}

// batch is what is left of an answer's units.
type batch struct {
	Refill
	grant    string
	guard    time.Duration // of each unit's life, that is left for the write to the socket
	got      ledger.Time
	loose    uint64 // taken and brought back: may go at once
	looseEnd ledger.Time
	offered  bool // to the store, to be given back
}

// expire drops the units whose end is before now and returns their number.
func (b *batch) expire(now ledger.Time) (lost uint64) {
	if b.loose > 0 && b.looseEnd < now {
		lost, b.loose = b.loose, 0
	}
	if b.Units == 0 || b.Until >= now {
		return lost
	}
	n := b.Units
	if b.Every > 0 {
		n = min(n, uint64(now.Sub(b.Until)-1)/uint64(b.Every)+1)
	}
	b.skip(n)
	return lost + n
}

// skip moves on by n units.
func (b *batch) skip(n uint64) {
	b.Units -= n
	d := b.Every * time.Duration(n)
	b.From, b.Until = b.From.Add(d), b.Until.Add(d)
}

// take takes a unit that may go at now, which is not after the batch's end.
func (b *batch) take(now ledger.Time) (end ledger.Time, ok bool) {
	if b.loose > 0 {
		b.loose--
		return b.looseEnd, true
	}
	if b.Units == 0 || now < b.From {
		return 0, false
	}
	end = b.Until
	b.skip(1)
	return end, true
}

// return1 brings back a unit that was taken and not sent.
func (b *batch) return1(end ledger.Time) {
	if b.loose == 0 || end < b.looseEnd {
		b.looseEnd = end
	}
	b.loose++
}

// left is how many units there are, whenever they may go.
func (b *batch) left() uint64 { return b.Units + b.loose }

// own is the pace of a host that is left to itself: GCRA.
type own struct{ tat ledger.Time }

// take takes a unit at now, or says how long it takes until there is one.
func (o *own) take(now ledger.Time, every time.Duration, burst uint64) (wait time.Duration, ok bool) {
	if wait = o.wait(now, every, burst); wait > 0 {
		return wait, false
	}
	o.tat = max(o.tat, now).Add(every)
	return 0, true
}

// wait is how long it takes from now until there is a unit.
func (o *own) wait(now ledger.Time, every time.Duration, burst uint64) time.Duration {
	return max(0, o.tat.Sub(now.Add(every*time.Duration(max(burst, 1)-1))))
}

// credit is how many units are there at now if none were taken for a while:
// what is asked for in batches comes in batches.
func (o *own) credit(now ledger.Time, every time.Duration) uint64 {
	if now < o.tat {
		return 0
	}
	return 1 + uint64(min(now.Sub(o.tat), hold))/uint64(max(every, 1))
}

// spend takes as many as credit said at most.
func (o *own) spend(now ledger.Time, every time.Duration, units uint64) {
	o.tat = max(o.tat, now.Add(-hold)).Add(every * time.Duration(units))
}
