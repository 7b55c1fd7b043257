// SPDX-License-Identifier: Apache-2.0

package admin

// Question is what explain is asked: a request as a client would make it.
type Question struct {
	URL    string
	Method string // "" for GET
	Exit   string // full identity of an exit; "" for the direct one
}

// Explanation is what the policy makes of one request, and what would become
// of it now.
type Explanation struct {
	URL     string `json:"url"`
	Method  string `json:"method"`
	Host    string `json:"host"` // as budgets see it
	Port    uint16 `json:"port"`
	Path    string `json:"path"`
	Address string `json:"address,omitempty"` // of a name, where it decides anything
	Exit    string `json:"exit"`
	// Led says whether connections to it are led to the proxy at all; LedWhy
	// gives the reason.
	Led    bool   `json:"led"`
	LedWhy string `json:"led_why"`
	// Inside says how far its TLS is looked into; empty without TLS.
	Inside string `json:"inside,omitempty"`
	// Budgets has one entry for each budget of the file, in its order, and one
	// for the lane of the exit's own trouble where there is one.
	Budgets []Matched `json:"budgets"`
	// Next is what would become of the request; nil where no daemon was asked.
	Next  *Next    `json:"next,omitempty"`
	Notes []string `json:"notes,omitempty"` // what the answer takes for granted
}

// Matched is what one budget makes of a request.
type Matched struct {
	Budget  string `json:"budget"`
	Matches bool   `json:"matches"`
	// Why says by what it matches, or the first thing by which it does not.
	Why    string `json:"why"`
	Allows string `json:"allows,omitempty"` // the budget in words
	Lane   string `json:"lane,omitempty"`   // id, where it matches
	// State is the lane; nil where no daemon was asked, or no request has come
	// to the lane yet.
	State *Lane `json:"state,omitempty"`
	// Wait is how long a request that came now would have to wait in this lane,
	// in seconds, after Ahead others. Where AtMost is set, clients take turns
	// and a new one has at most so many before it.
	Wait   float64  `json:"wait_s"`
	Ahead  int64    `json:"ahead"`
	AtMost bool     `json:"ahead_at_most,omitempty"`
	Before []Waiter `json:"before,omitempty"`
	// Answer is what has to be answered before the lane lets anything go; then
	// Wait is only the least.
	Answer string `json:"waits_for_answer,omitempty"`
}

// Waiter is one process of those who wait in a lane.
type Waiter struct {
	PID     uint32 `json:"pid"`
	Command string `json:"command"`
	Waiting int    `json:"waiting"` // connections
}

// Next is what would become of a request that came now.
type Next struct {
	// Outcome is "untouched", "unlimited", "now", "waits" or "refused".
	Outcome string  `json:"outcome"`
	Wait    float64 `json:"wait_s"`             // until it goes; of a refusal: Retry-After
	Lane    string  `json:"lane,omitempty"`     // that decides
	Reason  string  `json:"reason,omitempty"`   // of a refusal
	MaxWait float64 `json:"max_wait_s"`         // that its budgets allow; 0 where none holds it
	AtLeast bool    `json:"at_least,omitempty"` // an answer under way decides when exactly
}

// Outcomes of Next.
const (
	NextUntouched = "untouched" // it does not come to egressd
	NextUnlimited = "unlimited" // no budget holds it
	NextNow       = "now"
	NextWaits     = "waits"
	NextRefused   = "refused"
)
