// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

// ExitMeter shows how the requests of one exit lie in time: how many fell into
// each second. A shared budget that works makes a ceiling; clients in lockstep
// make a sawtooth, many empty seconds and a few full ones: see Lockstep.
//
// It needs no timer: a second is accounted when the next request comes, or by
// whoever reads it. Safe for concurrent use; Count does not allocate.
type ExitMeter struct {
	Exit string

	seconds slots
	tenths  atomic.Pointer[slots] // nil until a delay is asked that seconds are too coarse for
	delay   atomic.Int64          // ns, that was last asked; 0: none

	mu      sync.Mutex               // taken once a slot, and by readers
	empty   uint64                   // seconds without a request between others
	sum     uint64                   // requests in finished seconds
	highest uint64                   // … in one of them
	buckets [len(meterBounds)]uint64 // finished seconds, by their count; …
	above   uint64                   // … those above the last bound, …
	fine    [fineBuckets]uint64      // … and by finer bounds
}

// meterBounds are requests in one second.
var meterBounds = [...]float64{0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000}

// FineSchema is the schema of Histogram.Fine: 8 buckets from each power of two
// to the next.
const FineSchema = 3

const fineBuckets = countBits<<FineSchema + 1

// tenth is the width of a finer slot.
const tenth = 100 * time.Millisecond

// Count counts a request that was dispatched at now.
func (m *ExitMeter) Count(now ledger.Time) {
	if second := uint64(now) / uint64(time.Second); !m.seconds.count(second) {
		m.mu.Lock()
		if was := m.seconds.begin(second); was != 0 {
			m.finish(was, second)
		}
		m.mu.Unlock()
	}
	if s := m.tenths.Load(); s != nil {
		if slot := uint64(now) / uint64(tenth); !s.count(slot) {
			m.mu.Lock()
			s.begin(slot)
			m.mu.Unlock()
		}
	}
}

// finish accounts a second that ended and the empty ones before next. Under
// m.mu.
func (m *ExitMeter) finish(was, next uint64) {
	n := was & countMask
	if i := meterBucket(n); i < len(m.buckets) {
		m.buckets[i]++
	} else {
		m.above++
	}
	m.fine[fineBucket(n)]++
	m.sum += n
	m.highest = max(m.highest, n)
	m.empty += next - was>>countBits - 1
}

func meterBucket(n uint64) int {
	i := 0
	for i < len(meterBounds) && float64(n) > meterBounds[i] {
		i++
	}
	return i
}

// fineBucket is the least i with n <= 2^(i/8), for n of at least 1.
func fineBucket(n uint64) int { return int(math.Ceil(math.Log2(float64(n)) * (1 << FineSchema))) }

// Seconds is the distribution of requests per second over all seconds from
// the first request until the one before now. Its first bucket holds the
// seconds without any.
func (m *ExitMeter) Seconds(now ledger.Time) Histogram {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := Histogram{Bounds: meterBounds[:], Counts: append(m.buckets[:len(m.buckets):len(m.buckets)], m.above), Sum: float64(m.sum), Fine: map[int]int64{}}
	for i, n := range m.fine {
		if n > 0 {
			out.Fine[i] = int64(n)
		}
	}
	out.Counts[0] += m.empty
	second := uint64(now) / uint64(time.Second)
	if open := m.seconds.open.Load(); open != 0 && open>>countBits < second {
		n := open & countMask
		out.Counts[meterBucket(n)]++
		out.Fine[fineBucket(n)]++
		out.Counts[0] += second - open>>countBits - 1
		out.Sum += float64(n)
	}
	return out
}

// Highest is the largest number of requests in any one second, the present one
// included.
func (m *ExitMeter) Highest() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return max(m.highest, m.seconds.open.Load()&countMask)
}

// recently is the number of seconds over which PerSecond looks.
const recently = 10

// PerSecond is the number of requests per second over the ten seconds before
// the present one.
func (m *ExitMeter) PerSecond(now ledger.Time) float64 {
	var out [recently]float64
	m.mu.Lock()
	last := m.seconds.window(out[:0], uint64(now)/uint64(time.Second))
	m.mu.Unlock()
	sum := 0.0
	for _, n := range last {
		sum += n
	}
	return sum / recently
}

// slots counts by slots of time. Counting in a slot that has begun takes no
// lock.
type slots struct {
	// open is the slot being counted, above its count; 0 before the first.
	// Both change in one swap, so that no request is ever counted to the
	// wrong slot.
	open atomic.Uint64

	// Guarded by the meter's mu.
	first uint64           // the slot that was the first
	past  [maxSlots]uint64 // finished slots like open, each at its number modulo maxSlots
}

// maxSlots is how many slots are remembered.
const maxSlots = 512

const (
	countBits = 24
	countMask = 1<<countBits - 1
)

// count counts one in slot, or in one that has begun after it: a little late.
// It reports false if slot must begin first.
func (s *slots) count(slot uint64) bool {
	for {
		open := s.open.Load()
		if open == 0 || open>>countBits < slot {
			return false
		}
		if open&countMask == countMask || s.open.CompareAndSwap(open, open+1) {
			return true
		}
	}
}

// begin counts the first one in slot and returns the slot that ended by that,
// like open: 0 if there was none, or if slot had begun meanwhile. Under the
// meter's mu.
func (s *slots) begin(slot uint64) (was uint64) {
	for !s.count(slot) {
		was = s.open.Load() // from now on it only grows: count after it found it too old
		if !s.open.CompareAndSwap(was, slot<<countBits|1) {
			continue
		}
		if was == 0 {
			s.first = slot
		} else {
			s.past[was>>countBits%maxSlots] = was
		}
		return was
	}
	return 0
}

// window appends the counts of the slots before now to out, the oldest first:
// at most cap(out) and maxSlots, and none from before the first request. Under
// the meter's mu.
func (s *slots) window(out []float64, now uint64) []float64 {
	open := s.open.Load()
	if open == 0 {
		return out
	}
	from := max(s.first, now-min(now, uint64(min(cap(out)-len(out), maxSlots))))
	for slot := from; slot < now; slot++ {
		n := uint64(0)
		if was := s.past[slot%maxSlots]; open>>countBits == slot {
			n = open & countMask
		} else if was>>countBits == slot {
			n = was & countMask
		}
		out = append(out, float64(n))
	}
	return out
}
