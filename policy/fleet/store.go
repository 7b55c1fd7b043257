// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"
	"time"
)

// Limit is a lane's rate as all hosts know it.
type Limit struct {
	Interval time.Duration // per unit
	Burst    uint64        // units that may go at once, at least 1
}

const (
	// Ahead is how far ahead of its clock a store books, beyond one interval:
	// who would come later is told to ask again.
	Ahead = 10 * time.Second
	// Alive is how long a host counts as alive after a call.
	Alive = 15 * time.Second
	// Youth is how long a store that began anew says so: longer than the rarest
	// heartbeat, so that every host in touch with it hears of it.
	Youth = 6 * time.Second
)

// Kind says what a call is for.
type Kind uint8

// The kinds of calls.
const (
	Book   Kind = iota + 1 // one slot
	Lease                  // a batch
	Give                   // gives back what was not used of a slot or a lease
	Close                  // a cooldown: the later end holds, one halving for each epoch
	Reward                 // a success of the epoch: the slowed lane gets faster
	Watch                  // a heartbeat, and the state
)

var kindNames = [...]string{Book: "book", Lease: "lease", Give: "give", Close: "close", Reward: "reward", Watch: "watch"}

// String is the name of the kind.
func (k Kind) String() string {
	if int(k) < len(kindNames) && kindNames[k] != "" {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Call is one round trip to the store for one lane; all its keys are in one
// slot.
type Call struct {
	Lane  string // policy.LaneKey.String()
	Host  string // identity of host and boot
	Limit Limit
	Kind  Kind
	Units uint64        // wanted, or given back
	Term  time.Duration // for how long a lease is wanted
	Until time.Duration // Close: closed for so long from now
	Epoch uint64        // of the host's copy: one halving for each epoch
	// Factor is by what Close slows the lane, 0 < Factor < 1, and Step by what
	// Reward makes it faster, Step > 1.
	Factor, Step float64
	Grant        string // of the lease or slot that is given back (fencing token)
}

// Answer is relative: only the store's clock and differences count.
type Answer struct {
	Granted uint64
	// After is the time from the moment the store answered until the first
	// unit's slot. If it is above zero, each further unit's slot is an Interval
	// later; if it is zero, all may go at once.
	After time.Duration
	Term  time.Duration // the lease ends after
	Grant string        // fencing token, grows
	// Epoch, OpenAfter and Interval are the lane's shared state: closed for so
	// long, slowed to.
	Epoch     uint64
	OpenAfter time.Duration
	Interval  time.Duration
	Hosts     int           // alive (heartbeats)
	Retry     time.Duration // nothing granted: ask again after
	// Young says that the store knows less than a lease time of history (an
	// empty restart, a failover): start empty.
	Young bool
}

// Store is what the hosts of a fleet share. It is safe for concurrent use, and
// each call is bounded in time. A call that fails may have taken effect all
// the same.
type Store interface {
	Do(ctx context.Context, c Call) (Answer, error)
}
