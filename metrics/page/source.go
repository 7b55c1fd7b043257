// SPDX-License-Identifier: Apache-2.0

package page

import (
	"time"

	"github.com/egressd/egressd/policy"
)

// Source is what the page shows. Its methods are called one after the other,
// once a second while somebody looks and not at all while nobody does. The
// caller owns what they return.
//
// What it gives is read by whoever reaches the address: names of hosts, exits
// and lanes, but no user name, password, header or query of a request.
type Source interface {
	Status() Status
	// Lanes gives every lane that exists.
	Lanes() []Lane
	// Exits gives every exit that a request left by, with at most n seconds of
	// its past. All of them end at until.
	Exits(n int) (all []Exit, until time.Time)
	// Events gives at most the last n things that happened, the oldest first.
	Events(n int) []Event
}

// Status is how the daemon fares.
type Status struct {
	Version string
	Started time.Time
	// Attached is false while every connection goes past egressd, and
	// CanaryFailed and ReloadFailed tell of the last self-test and the last
	// reading of the policy file.
	Attached, CanaryFailed, ReloadFailed bool
}

// Lane is one lane.
type Lane struct {
	ID          string // unique
	Budget      string
	Destination string // as a client named it; "" where the budget does not tell them apart
	Exit        string // its identity; "" likewise
	Path        string // "" likewise; without a query
	// CountedBy is the Exit.Name under which the lane's requests are counted,
	// policy.AllExits where the budget does not tell exits apart.
	CountedBy string
	Per       policy.Per
	Mode      string
	Auto      bool    // the budget's rate is learned from the origin
	Rate      float64 // requests per second that may go now; 0: any number
	Base      float64 // … that the budget allows
	Burst     float64 // requests that may go at once after a pause

	Waiting, InFlight int64
	Concurrency       int    // that may be in flight; 0: any number
	Sent              uint64 // requests let through
	Refused, Limited  uint64

	ClosedFor time.Duration // zero or less: open
	Reason    string        // of being closed
	Probing   bool          // open for one probe only
	Stalled   time.Duration // without a success, where that is worth a look
	Window    *policy.Usage // of the budget's window
	Quota     *policy.Usage // of what the origin's answers tell
}

// Exit is one exit.
type Exit struct {
	Name string
	// Seconds are the requests of the last seconds that are over, the oldest
	// first; there are none from before the first request.
	Seconds     []float64
	TooMany     uint64 // answers 429 since the daemon started
	Lockstep    float64
	HasLockstep bool
}

// Event is one thing that happened.
type Event struct {
	At     time.Time
	Mono   uint64 // the same in nanoseconds of CLOCK_MONOTONIC, which never jumps
	Kind   string
	Lane   string
	Wait   time.Duration
	Detail string
}

// same reports whether e and f look the same. Their wall clocks may differ, since
// those are told anew each time.
func (e *Event) same(f *Event) bool {
	return e.Mono == f.Mono && e.Kind == f.Kind && e.Lane == f.Lane && e.Wait == f.Wait && e.Detail == f.Detail
}
