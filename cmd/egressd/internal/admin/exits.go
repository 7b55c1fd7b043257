// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"fmt"
	"time"

	"github.com/egressd/egressd/policy"
)

// Using is the exits in use, in short.
type Using struct {
	Seen     int      `json:"seen"`               // that a request or a connection went through
	Closed   int      `json:"closed"`             // with a lane that is closed
	Lockstep []string `json:"lockstep,omitempty"` // whose clients are in lockstep
}

// Exits tells of all exits, From some instant To another.
type Exits struct {
	From  time.Time `json:"from"`
	To    time.Time `json:"to"`
	Exits []Exit    `json:"exits"`
	Pairs []Pair    `json:"pairs"`
}

// Exit is one exit: what went through it, and how it is now.
type Exit struct {
	Exit string `json:"exit"`
	Use
	PerSecond float64  `json:"requests_per_second"`          // in the last ten seconds
	Lockstep  *float64 `json:"lockstep_score,omitempty"`     // 0 to 1; absent where it is not known
	Closed    int      `json:"lanes_closed"`                 // of its lanes
	ClosedFor float64  `json:"longest_cooldown_s,omitempty"` // until the last of them opens
}

// Pair is what went to one destination through one exit.
type Pair struct {
	Destination string `json:"destination"`
	Exit        string `json:"exit"`
	Use
}

// Use is what went through an exit.
type Use struct {
	Requests    uint64      `json:"requests"`    // sent and ended
	TooMany     uint64      `json:"answers_429"` // … of them answered so
	Refused     uint64      `json:"refused"`     // by egressd, instead of sending them
	Connections Connections `json:"connections"`
	// Outcomes has what exchanges moved, by the names of policy.Outcome.
	Outcomes map[string]Traffic `json:"outcomes"`
	Price    float64            `json:"price_per_gb,omitempty"` // of 10^9 bytes; 0: the policy tells none

	// What follows from these, see Estimate.
	Bytes uint64   `json:"bytes"`
	Waste *float64 `json:"waste_share,omitempty"`
	Cost  *float64 `json:"estimated_cost,omitempty"`
}

// Connections are attempts to connect, as the kernel saw them.
type Connections struct {
	Redirected uint64 `json:"redirected"`
	Untouched  uint64 `json:"untouched"`
	Refused    uint64 `json:"refused"`
}

// All is the number of all attempts.
func (c Connections) All() uint64 { return c.Redirected + c.Untouched + c.Refused }

// Traffic is what exchanges moved, in bytes as the provider of an exit meters
// them.
type Traffic struct {
	Exchanges uint64 `json:"exchanges"`
	Sent      uint64 `json:"sent_bytes"`
	Received  uint64 `json:"received_bytes"`
}

// Total is the traffic of all outcomes.
func (u *Use) Total() (t Traffic) {
	for _, o := range u.Outcomes {
		t.Exchanges += o.Exchanges
		t.Sent += o.Sent
		t.Received += o.Received
	}
	return t
}

// Estimate sets Bytes to those of all outcomes both ways, Waste to the share, 0
// to 1, of those that were not useful in those whose use is seen, and Cost to
// the price of all, in the currency of the policy's prices. Waste stays nil
// where none are seen, and Cost where there is no price.
func (u *Use) Estimate() {
	t := u.Total()
	u.Bytes, u.Waste, u.Cost = t.Sent+t.Received, nil, nil
	unseen, useful := u.Outcomes[policy.Unseen.String()], u.Outcomes[policy.Useful.String()]
	if seen := u.Bytes - unseen.Sent - unseen.Received; seen > 0 {
		u.Waste = new(float64(seen-useful.Sent-useful.Received) / float64(seen))
	}
	if u.Price > 0 {
		u.Cost = new(float64(u.Bytes) / 1e9 * u.Price)
	}
}

// MaxSince is how far back a daemon remembers what went through exits.
const MaxSince = 24 * time.Hour

// ParseSince reads for how long back exits are asked for.
func ParseSince(s string) (time.Duration, error) {
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		return 0, fmt.Errorf("parse duration %q: write it with a unit, as in 15m or 1h", s)
	case d <= 0 || d > MaxSince:
		return 0, fmt.Errorf("duration %v: must be above zero and at most %v, which is what the daemon remembers", d, MaxSince)
	}
	return d, nil
}
