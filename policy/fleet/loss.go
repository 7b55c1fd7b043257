// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"time"
)

// Loss is what a budget does while the store is lost, once the units that the
// host holds are spent.
type Loss uint8

// What may be done without the store.
const (
	// LossShare goes on with the rate divided by the hosts there were, or were
	// configured if that is more, one unit at a time, and closes after Grace.
	LossShare Loss = iota
	// LossClosed sends nothing.
	LossClosed
	// LossOpen goes on with the whole rate on each host: what all hosts send
	// together is no longer bounded by the budget.
	LossOpen
)

var lossNames = [...]string{LossShare: "share", LossClosed: "closed", LossOpen: "open"}

// String is the name that the policy file uses.
func (l Loss) String() string {
	if int(l) < len(lossNames) {
		return lossNames[l]
	}
	return fmt.Sprintf("loss %d", uint8(l))
}

// ParseLoss is the inverse of Loss.String.
func ParseLoss(s string) (Loss, error) {
	for l, name := range lossNames {
		if s == name {
			return Loss(l), nil
		}
	}
	return 0, fmt.Errorf("%q is none of share, closed, open", s)
}

// Mode is where a lane's units come from now.
type Mode uint8

// The modes.
const (
	Together Mode = iota // from the store
	Shared               // LossShare
	Shut                 // LossClosed, or a share whose Grace is over or whose divisor nobody knows
	Alone                // LossOpen
	// Returning: from the store, which is back, but no faster than a share while
	// others may not have found it yet.
	Returning
)

var modeNames = [...]string{Together: "fleet", Shared: "share", Shut: "closed", Alone: "open", Returning: "returning"}

// String is the name of the mode.
func (m Mode) String() string {
	if int(m) < len(modeNames) {
		return modeNames[m]
	}
	return fmt.Sprintf("mode %d", uint8(m))
}

const (
	// DefaultTimeout of a call.
	DefaultTimeout = 75 * time.Millisecond
	minTimeout     = 50 * time.Millisecond
	// DefaultGrace is for how long a share is spent.
	DefaultGrace = 10 * time.Minute

	// breakerFailures in a row, and the store is lost. With one message of
	// twenty lost, a tenth of the calls fail and a thousandth of the times
	// three do.
	breakerFailures = 3
	retryDelay      = 25 * time.Millisecond
	retryMost       = 24 * time.Hour
	probeDelay      = 250 * time.Millisecond
	probeMost       = 2 * time.Second
	returnLeast     = 100 * time.Millisecond
)

// probe is the longest that a host waits, in the mean, before it looks again
// whether the store is back.
func probe(hosts int) time.Duration { return max(probeMost, spread(hosts)) }

// settle is how long a host that found the store again keeps to its share: the
// others have found it, too, by then.
func settle(hosts int) time.Duration { return 2*probe(hosts) + spread(hosts) }
