// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math/bits"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

// short is the time over which origins are known to count, besides a second.
const short = 100 * time.Millisecond

// kind is what became of a request.
type kind uint8

const (
	served kind = iota
	limited
	failed
	refused // by egressd; it was not sent
	numKinds
)

// tally counts what happens in one run.
type tally struct {
	start ledger.Time
	from  ledger.Time // what was sent before is not counted but in series
	limit int         // the status that means a limit

	sent         int
	repeated     int // of those, by egressd itself
	kinds        [numKinds]int
	done, lost   int // jobs
	waits        histogram
	second, tick busiest
	series       [numKinds][]int32 // by the second in which it was sent
}

func newTally(w *Workload, start ledger.Time) *tally {
	t := &tally{start: start, from: start.Add(w.MeasureFrom), limit: w.Origin.Refusal.Status,
		second: busiest{width: time.Second}, tick: busiest{width: short}}
	seconds := int((w.Duration + time.Second - 1) / time.Second)
	for k := range t.series {
		t.series[k] = make([]int32, seconds)
	}
	return t
}

// send counts a request that goes now.
func (t *tally) send(now ledger.Time) {
	if now < t.from {
		return
	}
	t.sent++
	t.second.count(now.Sub(t.from))
	t.tick.count(now.Sub(t.from))
}

// repeat counts a request that egressd sends again now.
func (t *tally) repeat(now ledger.Time) {
	if now >= t.from {
		t.repeated++
	}
}

// note counts the fate of a request that was sent, or refused, at the given
// instant.
func (t *tally) note(k kind, at ledger.Time) {
	t.series[k][at.Sub(t.start)/time.Second]++
	if at >= t.from {
		t.kinds[k]++
	}
}

// end counts a job that succeeded by a request that was sent at the given
// instant, after a wait, or that was given up.
func (t *tally) end(done bool, at ledger.Time, wait time.Duration) {
	switch {
	case at < t.from:
	case done:
		t.done++
		t.waits.add(wait)
	default:
		t.lost++
	}
}

// busiest finds the most in any stretch of a width. Stretches follow upon each
// other, and times come in order.
type busiest struct {
	width time.Duration
	index int64
	n     int
	most  int
}

func (b *busiest) count(at time.Duration) {
	if i := int64(at / b.width); i != b.index {
		b.index, b.n = i, 0
	}
	b.n++
	b.most = max(b.most, b.n)
}

// histogram counts durations in buckets whose width is 1/128 of their place,
// from a microsecond on. The zero histogram is empty.
type histogram struct {
	buckets []uint64
	n       uint64
	max     time.Duration
}

const subBits = 7

func (h *histogram) add(d time.Duration) {
	i := bucketOf(uint64(d / time.Microsecond))
	for len(h.buckets) <= i {
		h.buckets = append(h.buckets, 0)
	}
	h.buckets[i]++
	h.n++
	h.max = max(h.max, d)
}

func (h *histogram) merge(o *histogram) {
	for len(h.buckets) < len(o.buckets) {
		h.buckets = append(h.buckets, 0)
	}
	for i, n := range o.buckets {
		h.buckets[i] += n
	}
	h.n += o.n
	h.max = max(h.max, o.max)
}

// quantile is the duration that the share q of all does not exceed, within
// one part in 128; 0 if there are none.
func (h *histogram) quantile(q float64) time.Duration {
	rank := uint64(q * float64(h.n))
	for i, n := range h.buckets {
		if n > rank {
			return min(time.Duration(lowestOf(i+1)-1)*time.Microsecond, h.max)
		}
		rank -= n
	}
	return h.max
}

// bucketOf is the bucket of a value: 1<<subBits of them for each doubling.
func bucketOf(v uint64) int {
	shift := max(bits.Len64(v)-subBits-1, 0)
	return shift<<subBits + int(v>>shift)
}

// lowestOf is the smallest value of a bucket.
func lowestOf(i int) uint64 {
	shift := max(i>>subBits-1, 0)
	return uint64(i-shift<<subBits) << shift
}
