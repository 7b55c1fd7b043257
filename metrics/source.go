// SPDX-License-Identifier: Apache-2.0

// Package metrics answers Prometheus: it mirrors what the engine, the proxy
// and the kernel have counted, in metrics made anew for each scrape, and
// serves them over HTTP.
//
// It keeps no counters of its own but those about itself, so nothing has to be
// told when something is counted. Its labels are names that the policy file
// wrote, or sets that the code closes; everything else is `other`. Never an
// address, a user name or a path: a label lives as long as the server that
// stores it.
package metrics

import (
	"time"

	"github.com/egressd/egressd/policy"
)

// Source is what a scrape reads. Its methods are called from several
// goroutines at once and must be quick: a scrape waits for them. The caller
// of a method owns what it returns.
type Source interface {
	// Lanes gives the state of every lane that exists now.
	Lanes() []Lane
	// Tallies gives what has been counted since the daemon started. Counts
	// must never fall, also when the lanes that made them are gone.
	Tallies() Tallies
	// Kernel gives what the programs counted. An error leaves the kernel's
	// families out of this scrape and is counted.
	Kernel() (Kernel, error)
	// Reload tells how the last reading of the policy file ended.
	Reload() Reload
}

// Lane is the state of a lane. Lanes with the same labels are merged.
type Lane struct {
	Destination string
	Exit        string
	Waiting     int           // requests in the gate
	Cooldown    time.Duration // until it opens; zero or less for an open lane
	Rate        float64       // units per second now
	Budget      float64       // units per second that the policy allows
	Fleet       *LaneFleet    // nil: the lane is this host's alone
}

// LaneFleet is a lane's part in a fleet.
type LaneFleet struct {
	Mode  string  // where its units come from: the store, or what is done without it
	Hosts int     // that it reckons with
	Bound float64 // requests that all hosts may send beyond the limit; +Inf: any number
}

// FleetCalls are the calls of a kind to the store of the fleet.
type FleetCalls struct {
	Kind       string
	OK, Failed uint64
	Seconds    float64 // that they took together
}

// Tallies are the counts of the proxy plane.
type Tallies struct {
	Pairs []Tally
	Exits []ExitSeconds
	// Prices has the exits whose price the policy tells.
	Prices []ExitPrice
	// Switches count requests of pools that left by another exit than the one
	// whose turn it was.
	Switches []ExitSwitches
	// ExitMismatches counts connections whose exit could not be kept.
	ExitMismatches uint64
	TLS            TLS
	// Fleet has the calls to the store of the fleet, if there is one.
	Fleet []FleetCalls
	// EventsLost counts events that the event log could not take.
	EventsLost uint64
	// Dropped counts the keys for which the source itself had no room.
	Dropped uint64
}

// TLS is how the inside of TLS connections is seen.
type TLS struct {
	Open    []Count // connections now, by source
	Answers []Count // by source
	Doubts  []Count // connections, by reason
	Unknown uint64  // answers of no known connection
	Shared  uint64  // requests that left together with another
}

// Tally is what was counted for a destination and an exit. Tallies with the
// same labels are added up.
type Tally struct {
	Destination string
	Exit        string
	Requests    []Count          // answered, by status code
	Refused     []Count          // refused here, by reason
	Retried     uint64           // sent again here
	Limited     []Count          // answers that were limits, by kind
	Wait        policy.Histogram // seconds
	Sent        uint64           // bytes from clients to the destination
	Received    uint64           // bytes from the destination to clients
	Outcomes    []OutcomeBytes   // bytes on the exit, all outcomes
}

// OutcomeBytes is what exchanges of one outcome moved through an exit, as its
// provider meters it.
type OutcomeBytes struct {
	Outcome        string
	Sent, Received uint64
}

// Count is a number with the value of its one further label.
type Count struct {
	Label string
	N     uint64
}

// ExitSeconds is the distribution of the requests that an exit sent within
// each second since its first, and what it looks like.
type ExitSeconds struct {
	Exit    string
	Seconds policy.Histogram // requests
	// Lockstep is the score of policy.ExitMeter.Lockstep, 0 to 1; HasLockstep
	// says that there is one.
	Lockstep    float64
	HasLockstep bool
}

// ExitPrice is the price of 10^9 bytes through an exit.
type ExitPrice struct {
	Exit  string
	Price float64
}

// ExitSwitches is a number of requests of a pool that left by the exit To, as
// From was closed. Those with the same labels are added up.
type ExitSwitches struct {
	Pool, From, To string
	N              uint64
}

// Kernel is what the programs counted.
type Kernel struct {
	Connections []Connections
	QUIC        []QUIC
	Untouched   []Count       // by reason, all reasons
	Programs    []ProgramTime // empty where the kernel keeps no run times
	Dropped     uint64        // keys for which the maps had no room
}

// Connections are attempts to connect.
type Connections struct {
	Destination string
	Exit        string
	Outcomes    []Count
	Retransmits uint64 // segments that the clients' sockets sent again
	// Handshakes of connections that the proxy has no part in, and the time
	// that they took in all.
	Handshakes    uint64
	HandshakeTime time.Duration
}

// QUIC is UDP to what policy names. Of it, what has the same labels is added up.
type QUIC struct {
	Destination string
	Exit        string
	Outcomes    []Count // untouched and refused
}

// ProgramTime is the time that one kernel program has run.
type ProgramTime struct {
	Program string
	Time    time.Duration
}

// Reload is how the last reading of the policy file ended.
type Reload struct {
	OK   bool      // the last attempt
	Last time.Time // of the last success
}

// Build names the binary.
type Build struct {
	Version   string
	Revision  string
	GoVersion string
}
