// SPDX-License-Identifier: Apache-2.0

package admin

// Counts is what tells causes of limits apart and stands in no list of lanes
// or exits. All of it counts since the daemon started and never falls, but for
// what is open now.
type Counts struct {
	Pairs []PairCounts `json:"pairs"`
	// PassedBy are the connections that the policy names and that went
	// untouched nevertheless, by the safety gate that did not hold.
	PassedBy map[string]uint64 `json:"passed_by"`
	// QUIC are the sockets and peers of UDP that went past egressd, by the
	// label of their destination.
	QUIC  map[string]uint64 `json:"quic_untouched"`
	Sight SightCounts       `json:"tls"`
	// Budgets are those in force, in the order of the file.
	Budgets []Budget `json:"budgets"`
}

// Budget is one budget of the policy in force.
type Budget struct {
	Name  string `json:"name"`
	Lines string `json:"lines"` // a policy file that has nothing else
}

// PairCounts are those of one destination label through one exit.
type PairCounts struct {
	Destination string `json:"destination"`
	Exit        string `json:"exit"`
	Sent        uint64 `json:"sent"`    // let through by the gate
	Retried     uint64 `json:"retried"` // by egressd itself
	// Limited are the answers that ask for less, by the kind of verdict, and
	// Refused what egressd refused, by reason. Zeros are left out.
	Limited map[string]uint64 `json:"limited"`
	Refused map[string]uint64 `json:"refused"`
}

// SightCounts say how TLS connections are seen.
type SightCounts struct {
	Open    map[string]int64  `json:"open"`    // now, by sight
	Answers map[string]uint64 `json:"answers"` // seen, by sight
	Doubts  map[string]uint64 `json:"doubts"`  // connections that could not be looked into, by reason
}
