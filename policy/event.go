// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

// EventKind says what happened. The set is closed.
type EventKind string

// Kinds of events.
const (
	EventDispatch     EventKind = "dispatch"      // a request was let go; only recorded while someone listens
	EventCooldown     EventKind = "cooldown"      // a lane was closed, or for longer than it was
	EventPenalty      EventKind = "penalty"       // a lane was closed and slowed
	EventReopened     EventKind = "reopened"      // the probe succeeded
	EventRamp         EventKind = "ramp"          // a slowed lane is twice as fast as when that was last told, or as fast as its budget again
	EventUntouched    EventKind = "untouched"     // connections that the policy names went past; Detail is the gate of the hook
	EventRefused      EventKind = "refused"       // a request was refused here
	EventStalled      EventKind = "stalled"       // a lane had no success for long; once for each time
	EventRetry        EventKind = "retry"         // a request was repeated, and its client not told
	EventReload       EventKind = "reload"        // a new policy is in force
	EventReloadFailed EventKind = "reload_failed" // a new policy was bad; the old one stays
	EventCanary       EventKind = "canary"        // the self-test changed its mind
	EventExitSwitch   EventKind = "exit_switch"   // requests of a pool left by another exit, as the one whose turn it was is closed; the first of them
	EventUnreachable  EventKind = "unreachable"   // the destination could not be reached
	EventExitMismatch EventKind = "exit_mismatch" // the client's exit could not be kept
	EventObserved     EventKind = "observed"      // an answer was seen inside a TLS connection; only recorded while someone listens
	EventAsked        EventKind = "asked"         // an answer asked for less, or was a block or trouble of the exit; only recorded while someone listens
)

// Event is one thing that happened. Events are small values: keeping many
// allocates nothing but the strings that their makers did.
type Event struct {
	At     ledger.Time
	Kind   EventKind
	Lane   string        // id of the lane, "" where none is concerned
	Wait   time.Duration // dispatch: the time in the gate; cooldown, penalty: until the lane opens; refused, asked: Retry-After; retry: since the answer before
	Detail string        // for people
	// Of dispatch and asked: the process whose request it is, and a number that
	// two requests for the same share, by a secret of this process; 0 where that
	// is not known.
	Process  uint32
	Job      uint64
	Told     float64 // asked: the limit that the answer told, in requests per second; 0: none
	Extended bool    // cooldown, penalty: the lane was closed already
	Rate     float64 // ramp: requests per second that the lane grants now
	Count    uint64  // untouched: connections
	// Suppressed is the number of events of the same kind and lane before this
	// one that were left out, as there were too many.
	Suppressed uint64
}
