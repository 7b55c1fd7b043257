// SPDX-License-Identifier: Apache-2.0

// Package model is a store for fleet in memory: what a real one has to do, in
// few lines, for simulations and as the yardstick of tests. It reads no clock;
// its Time is the store's own and may jump.
package model

import (
	"fmt"
	"time"

	"github.com/egressd/egressd/policy/fleet"
	"github.com/egressd/egressd/policy/ledger"
)

// lane is what the store keeps of one.
type lane struct {
	limit     fleet.Limit
	tat       ledger.Time // theoretical arrival time of GCRA
	openUntil ledger.Time
	interval  time.Duration
	epoch     uint64
	run       uint64      // of the store, that last wrote the lane
	born      ledger.Time // when that run first did
	grants    uint64
	hosts     alive
	last      last // what may be given back
}

// last is the grant at the tail of a lane.
type last struct {
	grant string
	end   ledger.Time // tat that it left behind
	units uint64
}

// Store is a store. The zero Store is empty and of run 0. It is not safe for
// concurrent use.
type Store struct {
	// Publish is called with what changed for all hosts of a lane, if it is not
	// nil.
	Publish func(lane string, a fleet.Answer)

	lanes map[string]*lane
	now   ledger.Time
	run   uint64
	calls [fleet.Watch + 1]uint64
}

// Calls is how many calls of each kind there were.
func (s *Store) Calls() [fleet.Watch + 1]uint64 { return s.calls }

// Restart begins another run of the store with the data it has.
func (s *Store) Restart() { s.run++ }

// Clear forgets all lanes and begins another run.
func (s *Store) Clear() {
	s.lanes = nil
	s.run++
}

// Clone is a replica of the store as it is now.
func (s *Store) Clone() *Store {
	c := &Store{now: s.now, run: s.run, lanes: map[string]*lane{}}
	for name, l := range s.lanes {
		x := *l
		x.hosts = l.hosts.clone()
		c.lanes[name] = &x
	}
	return c
}

// FailOver replaces the data by those of a replica and begins another run. The
// replica must not be used any more.
func (s *Store) FailOver(replica *Store) {
	s.lanes = replica.lanes
	s.run++
}

// Do is the answer to a call that the store takes up at now, by its own clock,
// which may go back: the store's time then stands still.
func (s *Store) Do(now ledger.Time, c *fleet.Call) (a fleet.Answer) {
	s.now = max(s.now, now)
	s.calls[c.Kind]++
	l := s.lane(c)
	l.hosts.beat(c.Host, s.now)
	before := [3]uint64{l.epoch, uint64(l.openUntil), uint64(l.interval)}
	switch c.Kind {
	case fleet.Book, fleet.Lease:
		s.grant(l, c, &a)
	case fleet.Give:
		a.Granted = l.takeBack(c)
	case fleet.Close:
		s.shut(l, c)
	case fleet.Reward:
		if c.Epoch == l.epoch && s.now >= l.openUntil && c.Step > 1 {
			l.interval = max(c.Limit.Interval, time.Duration(float64(l.interval)/c.Step))
		}
	}
	a.Epoch, a.Interval, a.Hosts = l.epoch, l.interval, l.hosts.count(s.now)
	a.OpenAfter = max(0, l.openUntil.Sub(s.now))
	a.Young = s.now < l.born.Add(fleet.Youth) && l.run > 0
	if s.Publish != nil && before != [3]uint64{l.epoch, uint64(l.openUntil), uint64(l.interval)} {
		p := a
		p.Granted, p.Grant = 0, ""
		s.Publish(c.Lane, p)
	}
	return a
}

// lane finds or makes the lane of a call. What another run wrote, or nobody,
// starts with an empty bucket; so does a changed limit.
func (s *Store) lane(c *fleet.Call) *lane {
	l := s.lanes[c.Lane]
	if l == nil {
		l = &lane{limit: c.Limit, interval: c.Limit.Interval, run: s.run, born: s.now}
		if s.lanes == nil {
			s.lanes = map[string]*lane{}
		}
		s.lanes[c.Lane] = l
		if s.run > 0 {
			l.empty(s.now)
		}
		return l
	}
	if l.run != s.run {
		l.run, l.born = s.run, s.now
		l.empty(s.now)
	}
	if l.limit != c.Limit {
		slowed := float64(l.interval) / float64(max(l.limit.Interval, 1))
		l.limit, l.interval = c.Limit, time.Duration(slowed*float64(c.Limit.Interval))
		l.empty(s.now)
	}
	return l
}

// tolerance is by how much tat may be ahead.
func (l *lane) tolerance() time.Duration {
	return time.Duration(max(l.limit.Burst, 1)-1) * l.limit.Interval
}

// empty empties the bucket.
func (l *lane) empty(at ledger.Time) {
	l.tat = max(l.tat, at.Add(l.tolerance()+l.interval))
	l.last = last{}
}

// grant answers Book and Lease. Units go at once if the bucket has them. If it
// has less than half of them, they are booked ahead, one after the other: who
// asks for a batch does not want it in small pieces, and who finds nothing does
// not have to ask again.
func (s *Store) grant(l *lane, c *fleet.Call, a *fleet.Answer) {
	units, tol := max(c.Units, 1), l.tolerance()
	base := max(l.tat, s.now)
	there := uint64(0)
	switch ahead := base.Sub(s.now); {
	case ahead > tol || s.now < l.openUntil:
	case l.interval == 0:
		there = units
	default:
		there = 1 + uint64(tol-ahead)/uint64(l.interval)
	}
	if 2*there >= units {
		units = min(units, there)
	} else {
		// No slot may lie behind its theoretical arrival time, not by the least
		// After either.
		base = max(base, l.openUntil.Add(tol), s.now.Add(time.Microsecond))
		a.After = max(base.Add(-tol).Sub(s.now), time.Microsecond)
		if a.After > fleet.Ahead+l.interval {
			a.Retry, a.After = a.After-fleet.Ahead, 0
			return
		}
	}
	l.tat = base.Add(l.interval * time.Duration(units))
	l.grants++
	a.Granted, a.Term = units, c.Term
	a.Grant = fmt.Sprintf("%08d-%016d", s.run, l.grants)
	l.last = last{a.Grant, l.tat, units}
}

// takeBack makes undone what was granted last, of which so many units were not
// used. Others are lost: a slot in the middle cannot be granted twice.
func (l *lane) takeBack(c *fleet.Call) uint64 {
	if l.last.grant != c.Grant || l.last.end != l.tat {
		return 0
	}
	units := min(c.Units, l.last.units)
	l.tat = l.tat.Add(-l.interval * time.Duration(units))
	l.last = last{}
	return units
}

// shut answers Close.
func (s *Store) shut(l *lane, c *fleet.Call) {
	longer := false
	if until := s.now.Add(c.Until); c.Until > 0 && until > l.openUntil {
		l.openUntil, longer = until, true
	}
	switch {
	case c.Epoch == l.epoch:
		l.epoch++
		l.interval = fleet.Slow(l.interval, l.limit, c.Factor)
	case c.Epoch > l.epoch:
		// The store forgot, and hears of it: after the penalty the next epoch begins.
		l.epoch = c.Epoch + 1
		if c.Factor > 0 && c.Factor < 1 {
			l.interval = max(l.interval, time.Duration(float64(l.limit.Interval)/c.Factor))
		}
	case !longer:
		return
	}
	l.tat = max(l.tat, max(l.openUntil, s.now).Add(l.tolerance()))
	l.last = last{}
}
