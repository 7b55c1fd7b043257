// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

// ExitMeter shows how the requests of one exit lie in time: how many fell into
// each second. A shared budget that works makes a ceiling; clients in lockstep
// make a sawtooth, many empty seconds and a few full ones.
//
// It needs no timer: a second is accounted when the next request comes, or by
// whoever reads it. Safe for concurrent use; Count does not allocate.
type ExitMeter struct {
	Exit string

	// open is the second being counted, above its count. Both change in one
	// swap, so that no request is ever counted to the wrong second.
	open    atomic.Uint64
	empty   atomic.Uint64 // seconds without a request between others
	sum     atomic.Uint64 // requests in finished seconds
	highest atomic.Uint64
	buckets [len(meterBounds) + 1]atomic.Uint64 // finished seconds, by their count
}

// meterBounds are requests in one second.
var meterBounds = [...]float64{0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000}

const (
	countBits = 24
	countMask = 1<<countBits - 1
)

// Count counts a request that was dispatched at now.
func (m *ExitMeter) Count(now ledger.Time) {
	second := uint64(now) / uint64(time.Second)
	for {
		open := m.open.Load()
		switch {
		case open>>countBits >= second && open != 0: // also for one that is a little late
			if open&countMask == countMask || m.open.CompareAndSwap(open, open+1) {
				return
			}
		case m.open.CompareAndSwap(open, second<<countBits|1):
			if open != 0 {
				m.finish(open, second)
			}
			return
		}
	}
}

// finish accounts the second in open and the empty ones before next.
func (m *ExitMeter) finish(open, next uint64) {
	n := open & countMask
	m.buckets[meterBucket(n)].Add(1)
	m.sum.Add(n)
	m.empty.Add(next - open>>countBits - 1)
	for {
		top := m.highest.Load()
		if n <= top || m.highest.CompareAndSwap(top, n) {
			return
		}
	}
}

func meterBucket(n uint64) int {
	i := 0
	for i < len(meterBounds) && float64(n) > meterBounds[i] {
		i++
	}
	return i
}

// Seconds is the distribution of requests per second over all seconds from
// the first request until the one before now. Its first bucket holds the
// seconds without any.
func (m *ExitMeter) Seconds(now ledger.Time) Histogram {
	out := Histogram{Bounds: meterBounds[:], Counts: make([]uint64, len(m.buckets)), Sum: float64(m.sum.Load())}
	for i := range m.buckets {
		out.Counts[i] = m.buckets[i].Load()
	}
	out.Counts[0] += m.empty.Load()
	second := uint64(now) / uint64(time.Second)
	if open := m.open.Load(); open != 0 && open>>countBits < second {
		out.Counts[meterBucket(open&countMask)]++
		out.Counts[0] += second - open>>countBits - 1
		out.Sum += float64(open & countMask)
	}
	return out
}

// Highest is the largest number of requests in any one second, the present one
// included.
func (m *ExitMeter) Highest() uint64 {
	return max(m.highest.Load(), m.open.Load()&countMask)
}
