// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"sync"
	"time"

	"github.com/egressd/egressd/policy/fleet"
	"github.com/egressd/egressd/policy/ledger"
)

// Fleeted is who makes the calls that shared lanes have due.
type Fleeted interface {
	// Share is told of a lane that is held together with other hosts, before its
	// first call is due. wake is called when Shared.Due is to be asked at an
	// instant, or earlier; it must neither block nor call the lane.
	Share(l *Lane, s *Shared) (wake func(at ledger.Time))
	// Sleeps is how often this machine has slept, as far as anybody knows. Instants
	// of the ledger stand still meanwhile, and what a host holds ends.
	Sleeps() uint64
}

// Shared is a lane's part in a fleet: the units that other hosts know of. What
// the lane takes of its cell, it takes here, too.
//
// Safe for concurrent use. Instants may come in any order.
type Shared struct {
	with Fleeted
	wake func(at ledger.Time)

	mu    sync.Mutex // guards all below
	lane  *fleet.Lane
	now   ledger.Time // the latest instant that the lane saw
	armed ledger.Time // when Due will be asked; 0: not known
	seen  fleet.State // of what the cell was told
	slept uint64      // sleeps that the lane knows of
	debt  uint64      // units that went without having been there
	rules Fleet       // that lane was made for
}

// taken is a unit that was taken of a shared lane.
type taken struct {
	from *Shared
	unit fleet.Unit
}

// at brings an instant in order, and has the lane know if the machine slept
// before it. Under mu.
func (s *Shared) at(now ledger.Time) ledger.Time {
	s.now = max(s.now, now)
	if n := s.with.Sleeps(); n != s.slept {
		s.slept = n
		s.lane.Slept(s.now)
	}
	return s.now
}

// arm has Due called when something will be due. Under mu.
func (s *Shared) arm() {
	if at, ok := s.lane.Wake(s.now); ok && (s.armed == 0 || at < s.armed) {
		s.armed = at
		s.wake(at)
	}
}

func (s *Shared) take(now ledger.Time) (t *taken, wait time.Duration, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.arm()
	for {
		unit, wait, ok := s.lane.Take(s.at(now))
		switch {
		case !ok:
			return nil, wait, false
		case s.debt == 0 || s.lane.Scheme() == fleet.Unbounded:
			return &taken{s, unit}, 0, true
		}
		s.debt-- // this one had gone already
	}
}

// owe takes a unit for a request that goes anyway; nil if there is none, which
// later requests then wait for.
func (s *Shared) owe(now ledger.Time) *taken {
	t, _, ok := s.take(now)
	if ok {
		return t
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.debt = min(s.debt+1, mostDebt)
	return nil
}

// mostDebt bounds what is owed, lest a lane be closed by it for long.
const mostDebt = 16

func (s *Shared) peek(now ledger.Time) (wait time.Duration, ready bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lane.Peek(s.at(now))
}

func (t *taken) giveBack(now ledger.Time) {
	t.from.mu.Lock()
	defer t.from.mu.Unlock()
	t.from.lane.Return(t.unit, t.from.at(now))
	t.from.arm()
}

// cut reports whether the lane has no store, and goes nowhere without it.
func (s *Shared) cut(now ledger.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lane.Mode(s.at(now)) == fleet.Shut
}

// want says at now how many requests wait for a unit.
func (s *Shared) want(n int, now ledger.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n > 0 {
		n += int(s.debt)
	}
	s.lane.Want(n, s.at(now))
	s.arm()
}

// penalize tells the fleet that the lane is closed for delay from now on, as a
// request of t, or anybody, was refused; t may be nil. What the fleet then knows
// is what the cell was told.
func (s *Shared) penalize(t *taken, delay time.Duration, factor float64, now ledger.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	epoch := s.lane.State().Epoch
	if t != nil && t.from == s {
		epoch = t.unit.Epoch
	}
	s.lane.Penalize(epoch, delay, factor, s.at(now))
	st := s.lane.State()
	s.seen.Epoch, s.seen.Interval = st.Epoch, st.Interval
	s.seen.OpenUntil = max(s.seen.OpenUntil, now.Add(delay))
	s.arm()
}

// slow tells the fleet that the origin allows a unit per interval, if it does
// not go by less already.
func (s *Shared) slow(interval time.Duration, now ledger.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.lane.State()
	if st.Interval <= 0 || interval <= st.Interval {
		return
	}
	s.lane.Penalize(st.Epoch, 0, float64(st.Interval)/float64(interval), s.at(now))
	st = s.lane.State()
	s.seen.Epoch, s.seen.Interval = st.Epoch, st.Interval
	s.arm()
}

// reward tells the fleet of a success; base is the interval below which the
// lane would not go.
func (s *Shared) reward(t *taken, step float64, base time.Duration, now ledger.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lane.State().Interval <= base {
		return
	}
	s.lane.Reward(t.unit.Epoch, step, s.at(now))
	s.arm()
}

// idle reports whether the host holds nothing of the fleet's.
func (s *Shared) idle(now ledger.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lane.Held(s.at(now)) == 0
}

// Due are the calls to the store that are due at now, two at most. Each of them
// is to be made, given up after Timeout, and reported by Answered or Failed,
// once.
func (s *Shared) Due(now ledger.Time) (calls []fleet.Flight) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, s.armed = s.at(now), 0
	for {
		f, due := s.lane.Next(now)
		if !due {
			break
		}
		calls = append(calls, f)
	}
	s.arm()
	return calls
}

// Timeout is how long a call may take.
func (s *Shared) Timeout() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lane.Timeout()
}

// Answered takes in, at now, the answer to a call. The lane wants to know: see
// Lane.Follow.
func (s *Shared) Answered(f fleet.Flight, a fleet.Answer, now ledger.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lane.Answered(f, a, s.at(now))
	s.arm()
}

// Failed says at now that a call brought no answer in time.
func (s *Shared) Failed(f fleet.Flight, now ledger.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lane.Failed(f, s.at(now))
	s.arm()
}

// Heard takes in at now what the store published of the lane. The lane wants to
// know: see Lane.Follow.
func (s *Shared) Heard(a fleet.Answer, now ledger.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lane.Heard(a, s.at(now))
	s.arm()
}

// FleetState is what a shared lane looks like at one instant, for people and
// metrics.
type FleetState struct {
	Scheme fleet.Scheme
	Mode   fleet.Mode
	Hosts  int     // that it reckons with; 0: nobody knows
	Bound  float64 // units that all hosts together may send over burst + rate·τ; +Inf: any
	Held   uint64  // units of the store that this host holds
	Stats  fleet.Stats
}

// State shows the lane's part in the fleet at now.
func (s *Shared) State(now ledger.Time) FleetState {
	s.mu.Lock()
	defer s.mu.Unlock()
	now = s.at(now)
	return FleetState{
		Scheme: s.lane.Scheme(), Mode: s.lane.Mode(now), Hosts: s.lane.Hosts(), Bound: s.lane.Bound(now),
		Held: s.lane.Held(now), Stats: s.lane.Stats(),
	}
}

// ClosedFor is how long the fleet's cooldown of the lane lasts yet at now.
func (s *Shared) ClosedFor(now ledger.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(0, s.lane.State().OpenUntil.Sub(s.at(now)))
}

// Shared is the lane's part in a fleet; nil if it is this host's alone.
func (l *Lane) Shared() *Shared { return l.shared.Load() }

// Late reports whether at now the request of g may no longer be written, as the
// time is over for which the fleet gave the unit. It is then to be returned, and
// another to be taken.
func (l *Lane) Late(g *Grant, now ledger.Time) bool { return g.fleet != nil && g.fleet.unit.Late(now) }

// Want says at now how many of those who wait could go if the fleet gave
// units.
func (l *Lane) Want(n int, now ledger.Time) {
	if s := l.shared.Load(); s != nil {
		s.want(n, now)
	}
}

// Awaits reports whether at now nobody but the store can say when the lane has a
// unit. Who waits for it learns by Follow.
func (l *Lane) Awaits(now ledger.Time) bool {
	s := l.shared.Load()
	if s == nil {
		return false
	}
	wait, ready := s.peek(now)
	return !ready && wait == 0
}

// Cut reports whether the lane waits for a store that is lost.
func (l *Lane) Cut(now ledger.Time) bool {
	s := l.shared.Load()
	return s != nil && s.cut(now)
}

// Follow has the cell follow, at now, what the lane's fleet has heard of other
// hosts. It reports until when the lane is closed by that, 0 if it is not closed
// for longer than it was, and whether it is slower.
func (l *Lane) Follow(now ledger.Time) (until ledger.Time, slower bool) {
	s := l.shared.Load()
	if s == nil {
		return 0, false
	}
	s.mu.Lock()
	before, st := s.seen, s.lane.State()
	s.seen = st
	s.mu.Unlock()
	c := l.Cell
	if st.Epoch > before.Epoch && st.Interval > before.Interval {
		last := c.OpenUntil.Load()
		slower = l.slow(c.Epoch.Load(), st.OpenUntil, now)
		if st.OpenUntil > now && uint64(st.OpenUntil) > last {
			until = st.OpenUntil
		}
		return until, slower
	}
	if st.OpenUntil > max(now, before.OpenUntil) && c.Close(st.OpenUntil) {
		return st.OpenUntil, false
	}
	return 0, false
}

// Close keeps the lane closed until the given instant, here and on all hosts
// that share it, after a request of g was refused; g may be the zero Grant. It never shortens a cooldown. Reports
// whether it made this one longer.
func (l *Lane) Close(g *Grant, until, now ledger.Time) bool {
	longer := l.Cell.Close(until)
	if s := l.shared.Load(); s != nil && longer {
		s.penalize(g.fleet, until.Sub(now), 1, now)
	}
	return longer
}

// share makes the lane a part of the fleet, or takes it out, as its budget has
// it at now. Under the engine's lock.
func (l *Lane) share(with Fleeted, host string, now ledger.Time) {
	b := l.Budget()
	if with == nil || l.Number == 0 || l.retired.Load() || !b.shares(l.Key) {
		l.shared.Store(nil)
		return
	}
	f := b.Fleet
	rules := Fleet{Hosts: f.Hosts, Timeout: f.Timeout, Grace: f.Grace}
	if s := l.shared.Load(); s != nil && s.rules.same(&rules) {
		s.mu.Lock()
		s.lane.Reconfigure(b.FleetLimit(), f.Loss, s.at(now))
		s.arm()
		s.mu.Unlock()
		return
	}
	s := &Shared{with: with, slept: with.Sleeps(), now: now, rules: rules, lane: fleet.New(fleet.Config{
		Lane: l.id, Host: host, Limit: b.FleetLimit(), Loss: f.Loss, Hosts: f.Hosts, Grace: f.Grace, Timeout: f.Timeout,
	})}
	s.seen = s.lane.State()
	s.wake = with.Share(l, s)
	l.shared.Store(s)
}
