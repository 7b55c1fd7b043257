// SPDX-License-Identifier: Apache-2.0

package feedback

import (
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

// bucket is a limit of which the origin tells when it will be whole again: a
// token bucket, which refills all the time. Its rate is what is missing by the
// time that it takes.
type bucket struct {
	limit    uint64
	interval time.Duration // between units that come back; 0: unknown
	missing  uint64        // the most that interval was taken from
	recent   time.Duration // the same as interval, of the answers since it was last set
	answers  int           // that recent was taken from
	full     ledger.Time   // when it would be full
	heard    ledger.Time   // when the latest answer came that set full
	trust    ledger.Time   // nothing is known from here on
}

// sure reports whether the rate is good to an eighth: remaining is rounded
// down, so that one unit less may be missing.
func (b *bucket) sure() bool { return b.missing >= 8 }

// observe takes in what w says. If nothing is left, it returns when the next
// unit comes.
func (b *bucket) observe(w *word) (empty ledger.Time) {
	if w.limit == 0 || !w.hasRemaining || w.guessed {
		return 0
	}
	if b.limit != w.limit {
		*b = bucket{limit: w.limit}
	}
	b.trust = w.received.Add(MaxTrust)
	missing := w.limit - w.remaining
	b.refills(missing, w)
	if b.interval > 0 {
		full := w.received.Add(min(w.reset, b.span())).Add(times(w.out(), b.interval))
		if w.dispatched >= b.heard {
			b.full, b.heard = full, w.received
		} else {
			b.full = max(b.full, full)
		}
	}
	if w.remaining > 0 {
		return 0
	}
	if b.interval == 0 {
		return w.received.Add(divide(w.reset, w.limit))
	}
	return w.received.Add(min(max(w.reset-times(w.limit-1, b.interval), 0), b.interval))
}

// generation is after how many answers the rate of those before is forgotten,
// so that a limit that was raised is noticed.
const generation = 64

// refills learns the rate. Each answer names one that is too high by less than
// a unit in missing, so the slowest of some counts, until one shows that it
// cannot be so slow. Rounding must not make more than an eighth of the time.
func (b *bucket) refills(missing uint64, w *word) {
	if missing == 0 || w.reset < 8*w.quantum {
		return
	}
	interval := min(divide(w.reset, missing), MaxInterval)
	if missing > 1 && divide(w.reset+w.quantum, missing-1) < b.interval {
		b.interval, b.missing, b.recent, b.answers = 0, 0, 0, 0
	}
	b.interval, b.recent = max(b.interval, interval), max(b.recent, interval)
	b.missing = max(b.missing, missing)
	if b.answers++; b.answers == generation {
		b.interval, b.recent, b.answers = b.recent, 0, 0
	}
}

// span is the time in which an empty bucket fills.
func (b *bucket) span() time.Duration { return times(b.limit, b.interval) }

func (b *bucket) left(now ledger.Time) uint64 {
	return uint64(max(0, b.span()-max(0, b.full.Sub(now))) / b.interval)
}

func (b *bucket) take(now ledger.Time, cost uint64) {
	if b.interval > 0 {
		b.full = max(b.full, now).Add(times(min(cost, b.limit), b.interval))
	}
}

func (b *bucket) give(cost uint64) {
	if b.interval > 0 {
		b.full = b.full.Add(-times(min(cost, b.limit), b.interval))
	}
}

// wait is the time from now until the cost may go after ahead other units.
func (b *bucket) wait(now ledger.Time, ahead, cost uint64) time.Duration {
	if b.interval == 0 {
		return 0
	}
	at := max(b.full, now).Add(times(sum(ahead, min(cost, b.limit)), b.interval))
	return max(0, at.Add(-b.span()).Sub(now))
}
