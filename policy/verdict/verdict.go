// SPDX-License-Identifier: Apache-2.0

// Package verdict reads from the head of an answer what the origin, or the
// exit in front of it, said about a limit.
//
// It is pure: the instant of receipt is an argument, no clock is read and
// nothing is allocated. A verdict judges the answer alone. Which lane it
// closes, and for how long beyond the delay that was given, is decided by
// package policy.
package verdict

import "time"

// MaxDelay is the sanity maximum of Verdict.Delay: an origin that asks for
// more is not believed further than this.
const MaxDelay = 24 * time.Hour

// Kind is what an answer means for the lane that it came through.
type Kind uint8

// Kinds.
const (
	// OK is an answer: nothing to hold against the lane. Client errors that
	// are no limit (404, a bare 403) are answers too.
	OK Kind = iota
	// Limited is the origin's word that this exit sends too much.
	Limited
	// Capacity is trouble of the origin that hits everyone (503, 529, a limit
	// that is shared with strangers): another exit will not be treated better
	// for having sent less.
	Capacity
	// Challenge is a block to be solved by a browser. Waiting does not help.
	Challenge
	// ExitTrouble is an answer of the exit's provider, to CONNECT or marked
	// as its own; it says nothing about the destination.
	ExitTrouble
	// Error is a server error that is no limit: no reward, no penalty.
	Error
)

var kindNames = [...]string{
	OK:          "ok",
	Limited:     "limited",
	Capacity:    "capacity",
	Challenge:   "challenge",
	ExitTrouble: "exit-trouble",
	Error:       "error",
}

// String returns the kind as it is written in events and in metrics.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return "unknown"
}

// MarshalText implements encoding.TextMarshaler with the text of String.
func (k Kind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// Advice is what an answer says about sending the same request again.
type Advice uint8

// Advices.
const (
	NoAdvice Advice = iota
	DoRetry
	DoNotRetry
)

// Verdict is an answer, judged. The zero Verdict is an OK that says nothing.
type Verdict struct {
	Kind Kind
	// Delay is the time, from receipt, that was asked for before the next
	// request: whole milliseconds, rounded up, at most MaxDelay.
	Delay time.Duration
	// HasDelay reports whether a usable delay was given; it is Delay > 0.
	// Without one the local back-off applies.
	HasDelay bool
	// Quota is what was told of the limit. Of an answer to CONNECT it is the
	// exit's, and only told where Kind is ExitTrouble.
	Quota Quota
	// Exhausted is the time, from receipt, until which nothing is left, by an
	// answer that may well be no limit itself: whole milliseconds, at most
	// MaxDelay. The next request before it would be refused. HasExhausted is
	// Exhausted > 0.
	Exhausted    time.Duration
	HasExhausted bool
	// Cost is what the request did cost by Head.CostField: units, rounded up,
	// at most 1e9.
	Cost    uint64
	HasCost bool
	// Retry is what the answer says about sending the same request again.
	Retry Advice
	// Dialect is the name of the dialect that told the quota, or else of that
	// which the answer speaks: "retry-after" if it told no more than a delay,
	// empty if it told nothing.
	Dialect string
}
