// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
)

// MaxLanes is the largest number of lanes of one request: one for each subset
// of the properties in Per, for the request itself and once more for the
// connection that it opens.
const MaxLanes = 2 << 2

// LaneKey names a lane: a budget and the values of the properties that the
// budget tells apart. The others are "".
type LaneKey struct {
	Budget      string
	Destination string
	Exit        string
}

// String is the lane's id: "store/store.example.com/direct", with "-" for an
// empty part.
func (k LaneKey) String() string {
	return part(k.Budget) + "/" + part(k.Destination) + "/" + part(k.Exit)
}

func part(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

var errLaneKey = errors.New("a lane is written BUDGET/DESTINATION/EXIT, with - for a part that the budget does not tell apart")

// ParseLaneKey is the inverse of LaneKey.String. Budgets and destinations hold
// no slash; an exit may.
func ParseLaneKey(id string) (LaneKey, error) {
	parts := strings.SplitN(id, "/", 3)
	if len(parts) != 3 || parts[0] == "" || parts[0] == "-" || parts[1] == "" || parts[2] == "" {
		return LaneKey{}, fmt.Errorf("parse lane %q: %w", id, errLaneKey)
	}
	for i, p := range parts {
		if p == "-" {
			parts[i] = ""
		}
	}
	return LaneKey{Budget: parts[0], Destination: parts[1], Exit: parts[2]}, nil
}

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

	// InFlight counts requests that were dispatched and not answered, Waiting
	// those held in the gate. The gate keeps both.
	InFlight, Waiting atomic.Int64

	// Slack belongs to the gate: see ledger.Cell.Settle.
	Slack ledger.Slack

	// Queue belongs to the gate, which guards it by its own lock.
	Queue any

	id      string
	owner   *owner
	hash    uint64
	next    atomic.Pointer[Lane] // in the engine's table
	used    atomic.Uint64        // ledger.Time of the last Select
	budget  atomic.Pointer[Budget]
	retired atomic.Bool
	strikes atomic.Int32
	last    atomic.Pointer[Closure]
}

// ID is Key.String, made once.
func (l *Lane) ID() string { return l.id }

// Budget is the rule in force for the lane. It changes with Engine.Swap.
func (l *Lane) Budget() *Budget { return l.budget.Load() }

// LastUsed is when a request last fell into the lane.
func (l *Lane) LastUsed() ledger.Time { return ledger.Time(l.used.Load()) }

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
}

// Reason is the closure in words: "limited, 3s as asked".
func (c Closure) Reason() string {
	switch {
	case c.Manual:
		return "operator"
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

// Strike counts a penalty that slowed the lane.
func (l *Lane) Strike() { l.strikes.Add(1) }

// Strikes is the number of strikes since the last success.
func (l *Lane) Strikes() int { return int(l.strikes.Load()) }

// Absolve forgets the strikes: the lane had a success.
func (l *Lane) Absolve() {
	if l.strikes.Load() != 0 {
		l.strikes.Store(0)
	}
}

// Target is the lane that a verdict touches: the most specific of a request's
// lanes that is enforced, or nil. A limit of one destination must not close a
// lane that others share.
func Target(lanes []*Lane) *Lane {
	for _, l := range lanes {
		if l.Enforced() {
			return l
		}
	}
	return nil
}

// idle reports whether the lane's state is that of a lane made anew, and
// nobody uses it.
func (l *Lane) idle(now ledger.Time) bool {
	c := l.Cell
	return l.Waiting.Load() == 0 && l.InFlight.Load() == 0 &&
		c.TAT.Load() <= uint64(now) && c.OpenUntil.Load() <= uint64(now) &&
		c.Interval.Load() <= c.BaseInterval.Load() && c.Flags.Load()&ledger.FlagHalf == 0
}
