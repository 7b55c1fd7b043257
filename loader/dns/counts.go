// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"fmt"

	"github.com/egressd/egressd/loader"
)

// Counts are messages since Open, by what became of them.
type Counts struct {
	Sent     uint64 // to Run
	Lost     uint64 // not, because the ring was full
	Query    uint64 // from port 53, but no response to a standard query
	Negative uint64 // errors, and answers without a record
	Short    uint64 // shorter than a header
	Large    uint64 // longer than MaxMessage
	// Split counts segments of TCP with the beginning of a message but not all
	// of it, or of connections older than the program.
	Split     uint64
	Extension uint64 // packets of IPv6 with extension headers
	Unread    uint64 // bytes that could not be read
}

// Counts reads the counters.
func (r *Reader) Counts() (Counts, error) {
	var totals [dnsTallyTALLY_MAX]uint64
	var perCPU []uint64
	for i := range totals {
		if err := r.objs.Tallies.Lookup(uint32(i), &perCPU); err != nil {
			return Counts{}, fmt.Errorf("read counters of DNS answers: %w", err)
		}
		for _, n := range perCPU {
			totals[i] += n
		}
	}
	return Counts{
		Sent:      totals[dnsTallyTALLY_SENT],
		Lost:      totals[dnsTallyTALLY_LOST],
		Query:     totals[dnsTallyTALLY_QUERY],
		Negative:  totals[dnsTallyTALLY_NEGATIVE],
		Short:     totals[dnsTallyTALLY_SHORT],
		Large:     totals[dnsTallyTALLY_LARGE],
		Split:     totals[dnsTallyTALLY_SPLIT],
		Extension: totals[dnsTallyTALLY_EXTENSION],
		Unread:    totals[dnsTallyTALLY_UNREAD],
	}, nil
}

// Program returns the cost of the program. It stays zero unless
// loader.EnableStats is, or was, in effect.
func (r *Reader) Program() (loader.Program, error) {
	stats, err := r.objs.AnswersIn.Stats()
	if err != nil {
		return loader.Program{}, fmt.Errorf("read cost of the reader of DNS answers: %w", err)
	}
	return loader.Program{Name: dnsProgAnswersIn, Runs: stats.RunCount, Runtime: stats.Runtime}, nil
}
