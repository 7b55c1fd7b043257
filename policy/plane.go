// SPDX-License-Identifier: Apache-2.0

package policy

import "time"

// PlaneRule is what one budget asks of the kernel plane for a destination: to
// take a unit of a lane for each connection, or to mind the lane's cooldown.
type PlaneRule struct {
	Budget string // its name: with the destination and the exit it is the lane's key
	Per    Per    // of PerDestination and PerExit: what tells lanes apart
	// ByName says that the lane's destination is the name of the Target; else
	// it is the address.
	ByName bool
	// Guard says that nothing is taken: connections that go around the proxy
	// shall stay away while the lane is closed.
	Guard      bool
	Shadow     bool // nothing is held or refused
	FailClosed bool // what cannot be held while the daemon is away is refused
	Drop       bool // on_full: drop
	// Fair says that who waits is served in fair turns, which only the proxy's
	// queue knows.
	Fair      bool
	Interval  time.Duration // per connection; 0: no rate
	Tolerance time.Duration // (burst-1) * interval
	MaxWait   time.Duration // longer waits are refused at once
	MaxQueue  int           // so many may wait
}

// PlaneSet is all that the budgets ask of the kernel plane for a destination.
// At most MaxPlaneRules.
type PlaneSet struct {
	// Proxy says that connections go to the proxy: some budget that wants them
	// is not the kernel's. All rules are guards then.
	Proxy bool
	Rules []PlaneRule
}

// MaxPlaneRules is the number of shapes that the kernel plane knows:
// destination and exit, destination, exit, neither.
const MaxPlaneRules = 4

// PlaneTarget is a destination that the kernel plane knows by its address.
type PlaneTarget struct {
	Set  PlaneSet
	Name string // destination of the lanes of rules that are ByName; "" where no rule is
}

// PlaneLanes is where the kernel plane finds, and makes, the cells of lanes. The
// engine calls Claim and Release one at a time.
type PlaneLanes interface {
	// Claim says that the lane has the cell. Where the kernel has given the
	// lane a cell already, that one is the lane's, and is returned. A lane that
	// the kernel plane cannot know keeps its cell.
	Claim(key LaneKey, cell uint32) (uint32, error)
	// Release says that the lane is no more.
	Release(key LaneKey) error
}
