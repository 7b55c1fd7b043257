// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"github.com/egressd/egressd/policy/feedback"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
)

// lessons is what answers told of a lane.
type lessons struct {
	tracker feedback.Tracker
	auto    feedback.Auto
}

// lessons returns what answers told of the lane, with the pace that follows
// from it at now in force; nil if they told nothing.
func (l *Lane) lessons(now ledger.Time) *lessons {
	k := l.learned.Load()
	if k == nil {
		return nil
	}
	if end := k.tracker.Next(); end != 0 && now >= end {
		l.pace(now)
	}
	return k
}

// teach is lessons, made on demand.
func (l *Lane) teach() *lessons {
	if k := l.learned.Load(); k != nil {
		return k
	}
	l.learned.CompareAndSwap(nil, new(lessons))
	return l.learned.Load()
}

func (k *lessons) idle(now ledger.Time) bool {
	_, until, known := k.tracker.Left(now)
	return !known || until <= now
}

// pace puts the pace in force that follows from the lane's budget and from
// what was learned: the slower of both, or, where the budget leaves the rate
// to the origin, what was learned.
func (l *Lane) pace(now ledger.Time) {
	b := l.Budget()
	interval, burst := b.Interval(), b.Burst
	k := l.learned.Load()
	if k != nil {
		told, _ := k.tracker.Current(now)
		if b.Auto {
			if found := time.Duration(l.Cell.BaseInterval.Load()); found > 0 {
				interval = found
			}
			if interval = k.auto.Learned(now, interval, told); told > 0 && k.tracker.Sure() {
				interval = k.auto.Raise(now, interval)
			}
		} else {
			interval = max(interval, told)
		}
	} else if found := time.Duration(l.Cell.BaseInterval.Load()); b.Auto && found > 0 {
		interval = found // what it had learned before the daemon ended
	}
	l.Cell.Configure(interval, tolerance(burst, interval), now)
}

// tolerance is how far GCRA may run ahead, which makes the burst. Fractions of
// a unit are kept: a burst of 1.5 earns its second unit in half an interval.
func tolerance(burst float64, interval time.Duration) time.Duration {
	if burst <= 1 {
		return 0
	}
	return time.Duration((burst - 1) * float64(interval))
}

// Learn takes what an answer, received at now to the request of g, dispatched
// at sent, told of the lane's limit. It reports until when the lane is closed
// by that, 0 if it is not, and whether the lane became stricter: then those who
// wait may have to be told.
func (l *Lane) Learn(v *verdict.Verdict, g *Grant, sent, now ledger.Time) (until ledger.Time, stricter bool) {
	q := &v.Quota
	if !q.HasLimit && !q.HasRemaining && q.PerSecond == 0 && !v.HasExhausted || q.Other && !v.HasExhausted {
		return 0, false
	}
	k, granted := l.teach(), l.Cell.Granted.Load()
	advice := k.tracker.Observe(feedback.Observation{
		Quota:        *q,
		Dispatched:   sent,
		Received:     now,
		After:        granted - min(g.Seq, granted),
		Before:       g.before,
		Exhausted:    v.Exhausted,
		HasExhausted: v.HasExhausted,
	}, now)
	if advice.Changed {
		before := l.Cell.BaseInterval.Load()
		l.pace(now)
		stricter = l.Cell.BaseInterval.Load() > before
	}
	if x := l.limits.Load(); x != nil && x.window != nil && q.HasReset && q.Reset > 0 && !q.ToFull {
		x.window.Align(now.Add(q.Reset), now)
	}
	if s := l.shared.Load(); s != nil && stricter {
		s.slow(times64(time.Duration(l.Cell.BaseInterval.Load()), l.Cost()), now)
	}
	if advice.Close > now && l.Close(g, advice.Close, now) {
		return advice.Close, true
	}
	return 0, stricter
}

// Settle says that the request of g was answered at now: see
// ledger.Cell.Settle.
func (l *Lane) Settle(g *Grant, now ledger.Time) { l.Cell.Settle(g.Grant, now, &l.slack) }

// Correct settles what the request of g did cost, once the origin told.
func (l *Lane) Correct(g *Grant, cost uint64, now ledger.Time) {
	if g.Cost == 0 {
		return
	}
	l.Cell.Correct(g.Grant, cost, now)
	if x := l.limits.Load(); x != nil && x.window != nil && cost > g.Cost {
		x.window.Debit(cost-g.Cost, now)
	}
}

// slowest is the interval of the rate under which no penalty slows a lane
// whose budget allows more: one in two seconds.
const slowest = 2 * time.Second

// Penalize records that the origin refused, at now, the request of g, and
// wants none before until. It reports whether the lane was slowed: see
// ledger.Cell.Penalize.
func (l *Lane) Penalize(g *Grant, until, now ledger.Time) (slowed bool) {
	slowed = l.slow(g.Epoch, until, now)
	if s := l.shared.Load(); s != nil {
		s.penalize(g.fleet, until.Sub(now), l.Budget().Recovery.Factor, now)
	}
	return slowed
}

// slow is Penalize on this host, for a request of the epoch.
func (l *Lane) slow(epoch uint64, until, now ledger.Time) (slowed bool) {
	b := l.Budget()
	factor := b.Recovery.Factor
	if b.Auto {
		factor = 1 // it is the budget that shrinks
	}
	l.trouble.CompareAndSwap(0, uint64(now))
	slowed = l.Cell.Penalize(now, epoch, until, factor, slowest)
	if !slowed {
		return false
	}
	l.strikes.Add(1)
	if b.Auto {
		k, base := l.teach(), time.Duration(l.Cell.BaseInterval.Load())
		next := k.auto.Limited(now, base, b.Recovery.Factor)
		l.Cell.Configure(next, tolerance(b.Burst, next), now)
	}
	return true
}

// Reward records that the origin answered the request of g at now, and that
// the answer is no limit. held says that the request had to wait, which is
// when a budget that is learned may grow. It reports whether this was the
// success that ends probing: see ledger.Cell.Reward.
func (l *Lane) Reward(g *Grant, held bool, now ledger.Time) (reopened bool) {
	b, c := l.Budget(), l.Cell
	if c.Epoch.Load() == g.Epoch && uint64(now) >= c.OpenUntil.Load() {
		if l.strikes.Load() != 0 {
			l.strikes.Store(0)
		}
		if l.trouble.Load() != 0 {
			l.trouble.Store(0)
			l.stalled.Store(false)
		}
		if b.Auto && g.Cost > 0 {
			base := time.Duration(c.BaseInterval.Load())
			if next := l.teach().auto.Success(now, base, held); next != base {
				c.Configure(next, tolerance(b.Burst, next), now)
			}
		}
	}
	if s := l.shared.Load(); s != nil && g.fleet != nil && g.fleet.from == s {
		s.reward(g.fleet, b.Recovery.Step, times64(time.Duration(c.BaseInterval.Load()), l.Cost()), now)
	}
	return c.Reward(now, g.Epoch, b.Recovery.Step)
}

// Strikes is the number of penalties that slowed the lane since its last
// success.
func (l *Lane) Strikes() int { return int(l.strikes.Load()) }

// Stall is how long a lane may go without a success before it counts as
// stalled.
const Stall = 15 * time.Minute

// Stalled is how long the lane has had no success since its first penalty, and
// whether that is long enough to be reported.
func (l *Lane) Stalled(now ledger.Time) (time.Duration, bool) {
	since := ledger.Time(l.trouble.Load())
	if since == 0 {
		return 0, false
	}
	d := now.Sub(since)
	return d, d >= Stall
}

// ReportStall is Stalled for the one who reports it: true once for each stall.
func (l *Lane) ReportStall(now ledger.Time) (time.Duration, bool) {
	d, yes := l.Stalled(now)
	return d, yes && l.stalled.CompareAndSwap(false, true)
}
