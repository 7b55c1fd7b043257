// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
)

// MaxLanes is the largest number of lanes of one request: one for each shape,
// for the request itself and once more for the connection that it opens.
const MaxLanes = 2 * MaxShapes

// Lane is what shares fate: one budget, destination and exit. It owns a cell
// of the ledger. Lanes are made by Engine.Select and live until they have been
// idle and their cell is wanted; whoever holds one a little longer than that
// keeps an orphan, which is harmless.
//
// Safe for concurrent use.
type Lane struct {
	Key    LaneKey
	Number uint32       // of the cell; 0 for a lane outside the shared ledger
	Cell   *ledger.Cell // its state
	Label  string       // the metrics label of the destination: what the policy file wrote, never what a client sent
	Meter  *ExitMeter   // of the lane's exit, nil where the budget does not tell exits apart
	Tally  *Tally       // counters under Label and the lane's exit, AllExits where the budget does not tell exits apart

	// InFlight counts requests that were dispatched and not answered, and
	// connections that were let through and are open: see Take, Hold and
	// Release. Waiting counts those held in the gate, which keeps it.
	InFlight, Waiting atomic.Int64

	// Retries is what the lane may still repeat by itself.
	Retries RetryBudget

	// Queue belongs to the gate, which guards it by its own lock.
	Queue any

	id      string
	owner   *owner
	hash    uint64
	next    atomic.Pointer[Lane] // in the engine's table
	used    atomic.Uint64        // ledger.Time of the last Select
	budget  atomic.Pointer[Budget]
	limits  atomic.Pointer[limits]  // beside the cell; nil: none
	learned atomic.Pointer[lessons] // what answers told; nil: nothing yet
	shared  atomic.Pointer[Shared]  // with other hosts; nil: it is this host's alone
	slack   ledger.Slack
	retired atomic.Bool
	strikes atomic.Int32
	born    atomic.Uint64 // ledger.Time at which the exit's present address was first used
	trouble atomic.Uint64 // ledger.Time of the first penalty since the last success; 0: none
	stalled atomic.Bool   // … and that was reported
	last    atomic.Pointer[Closure]
}

// ID is Key.String, made once.
func (l *Lane) ID() string { return l.id }

// Budget is the rule in force for the lane. It changes with Engine.Swap.
func (l *Lane) Budget() *Budget { return l.budget.Load() }

// LastUsed is the latest instant at which something may last have fallen into
// the lane: a request, or a connection of the kernel plane. That leaves no
// trace but in its cell, whose TAT no grant leaves behind its own time.
func (l *Lane) LastUsed() ledger.Time { return ledger.Time(max(l.used.Load(), l.Cell.TAT.Load())) }

// Enforced reports whether the lane may hold and refuse: its budget is in
// force and in mode Enforce.
func (l *Lane) Enforced() bool {
	return l.Budget().Mode == Enforce && !l.retired.Load()
}

// Closure is why a lane was last closed.
type Closure struct {
	At     ledger.Time
	Kind   verdict.Kind
	Delay  time.Duration // that was applied, without spread
	Given  bool          // the origin named the delay
	Manual bool          // by the operator
	Quota  bool          // the origin told that nothing is left, maybe without refusing
	Fleet  bool          // another host was told
}

// Reason is the closure in words: "limited, 3s as asked".
func (c Closure) Reason() string {
	switch {
	case c.Manual:
		return "operator"
	case c.Fleet:
		return fmt.Sprintf("another host of the fleet was refused, opens in %v", c.Delay.Round(time.Millisecond))
	case c.Quota:
		return fmt.Sprintf("quota used up, opens in %v as told", c.Delay)
	case c.Given:
		return fmt.Sprintf("%s, %v as asked", c.Kind, c.Delay)
	}
	return fmt.Sprintf("%s, %v by default", c.Kind, c.Delay)
}

// Closed tells why the lane was last closed; false if it never was.
func (l *Lane) Closed() (Closure, bool) {
	if c := l.last.Load(); c != nil {
		return *c, true
	}
	return Closure{}, false
}

// NoteClosed records why the lane is closed now.
func (l *Lane) NoteClosed(c Closure) { l.last.Store(&c) }

// Target is the lane that a verdict touches: the most specific of a request's
// lanes that is enforced, or nil. A limit of one destination must not close a
// lane that others share. That of ExitBudget is touched by trouble of the exit
// alone.
func Target(lanes []*Lane) *Lane {
	for _, l := range lanes {
		if l.Enforced() && l.Key.Budget != ExitBudget {
			return l
		}
	}
	return nil
}

// idle reports whether the lane's state is that of a lane made anew, and
// nobody uses it.
func (l *Lane) idle(now ledger.Time) bool {
	c := l.Cell
	if l.Waiting.Load() > 0 || l.InFlight.Load() > 0 ||
		c.TAT.Load() > uint64(now) || c.OpenUntil.Load() > uint64(now) ||
		c.Interval.Load() > c.BaseInterval.Load() || c.Flags.Load()&ledger.FlagHalf != 0 {
		return false
	}
	if x := l.limits.Load(); x != nil && x.window != nil {
		if used, _ := x.window.Used(now); used > 0 {
			return false
		}
	}
	if s := l.shared.Load(); s != nil && !s.idle(now) {
		return false
	}
	k := l.learned.Load()
	return k == nil || k.idle(now)
}
