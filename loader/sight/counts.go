// SPDX-License-Identifier: Apache-2.0

package sight

import "fmt"

// Counts are totals since Open.
type Counts struct {
	Events  uint64 // put into the ring
	Lost    uint64 // not, because it was full
	Missed  uint64 // calls for whose notes there was no room, or of another shape than expected
	Crowded uint64 // calls of connections for which there was no room
	Unread  uint64 // memory of processes that could not be read
	Closed  uint64 // connections that ended
	// BySource counts the calls that were shown, by the proof of the socket
	// that they went through: index it by Source.
	BySource [numSources]uint64
}

// The order of enum tally in bpf/sight_scope.h.
const (
	tallyEvents = iota
	tallyLost
	tallyMissed
	tallyCrowded
	tallyUnread
	tallyClosed
	tallySources
	tallyMax = tallySources + int(numSources)
)

// Counts reads the counters.
func (s *Sight) Counts() (Counts, error) {
	var totals [tallyMax]uint64
	var perCPU []uint64
	for i := range totals {
		if err := s.objs.Tallies.Lookup(uint32(i), &perCPU); err != nil {
			return Counts{}, fmt.Errorf("read counters of probes: %w", err)
		}
		for _, n := range perCPU {
			totals[i] += n
		}
	}
	return Counts{
		Events:   totals[tallyEvents],
		Lost:     totals[tallyLost],
		Missed:   totals[tallyMissed],
		Crowded:  totals[tallyCrowded],
		Unread:   totals[tallyUnread],
		Closed:   totals[tallyClosed],
		BySource: [numSources]uint64(totals[tallySources:]),
	}, nil
}
