// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/policy/verdict"
)

// Labels that stand for many.
const (
	OtherLabel = "other" // traffic that no budget names, and what goes beyond a bound
	AllExits   = "all"   // the exit of lanes that do not tell exits apart
)

// Refusal is why a request was refused here. The set is closed.
type Refusal uint8

// Refusals.
const (
	RefusedQueueFull Refusal = iota // queue.max requests wait already
	RefusedMaxWait                  // it would wait longer than max_wait
	RefusedFraming                  // its framing is ambiguous or broken
	RefusedShutdown                 // the daemon ends
	numRefusals
)

var refusalNames = [numRefusals]string{"queue_full", "max_wait", "framing", "shutdown"}

// Refusals are all of them.
func Refusals() []Refusal {
	out := make([]Refusal, numRefusals)
	for i := range out {
		out[i] = Refusal(i)
	}
	return out
}

// String is the refusal as metrics and Proxy-Status write it.
func (r Refusal) String() string {
	if r < numRefusals {
		return refusalNames[r]
	}
	return "unknown"
}

// Direction tells the two ways of bytes apart.
type Direction uint8

// Directions, seen from the client.
const (
	Sent     Direction = iota // to the destination
	Received                  // from the destination
)

// String is the direction as metrics write it.
func (d Direction) String() string {
	if d == Sent {
		return "sent"
	}
	return "received"
}

// Tally counts what happened to the requests for one destination label through
// one exit. All methods are safe for concurrent use and allocate nothing but
// where they return a slice or map. Counts never fall.
type Tally struct {
	Destination string // Lane.Label, or OtherLabel
	Exit        string

	// Waiting is the number of requests in the gate now; the gate keeps it.
	Waiting atomic.Int64

	codes   [500]atomic.Uint64 // 100..599
	errors  atomic.Uint64
	refused [numRefusals]atomic.Uint64
	limited [verdict.Error + 1]atomic.Uint64
	retried atomic.Uint64
	bytes   [2]atomic.Uint64
	wait    histogram
	traffic [numOutcomes]traffic // see AddExchange
}

func newTally(destination, exit string) *Tally {
	return &Tally{Destination: destination, Exit: exit, wait: histogram{bounds: waitBounds, buckets: make([]atomic.Uint64, len(waitBounds)+1)}}
}

// CountCode counts an answer by its status code. A code outside 100..599
// counts as an error.
func (t *Tally) CountCode(code int) {
	if i := code - 100; i >= 0 && i < len(t.codes) {
		t.codes[i].Add(1)
		return
	}
	t.errors.Add(1)
}

// CountError counts a request that got no answer.
func (t *Tally) CountError() { t.errors.Add(1) }

// CountRefused counts a request that was refused here.
func (t *Tally) CountRefused(r Refusal) { t.refused[min(r, numRefusals-1)].Add(1) }

// CountLimited counts an answer that asks for less, by its kind.
func (t *Tally) CountLimited(k verdict.Kind) { t.limited[min(k, verdict.Error)].Add(1) }

// CountRetried counts a request that was repeated here.
func (t *Tally) CountRetried() { t.retried.Add(1) }

// AddBytes counts bytes that were moved.
func (t *Tally) AddBytes(d Direction, n uint64) { t.bytes[d&1].Add(n) }

// ObserveWait counts the time that a request spent in the gate; zero for one
// that was not held.
func (t *Tally) ObserveWait(d time.Duration) { t.wait.observe(d) }

// Codes gives the answers by status code, without those that never came.
func (t *Tally) Codes() map[int]uint64 {
	out := map[int]uint64{}
	for i := range t.codes {
		if n := t.codes[i].Load(); n > 0 {
			out[100+i] = n
		}
	}
	return out
}

// Errors is the number of requests that got no answer.
func (t *Tally) Errors() uint64 { return t.errors.Load() }

// Requests is the number of all requests that were sent and ended.
func (t *Tally) Requests() uint64 {
	n := t.errors.Load()
	for i := range t.codes {
		n += t.codes[i].Load()
	}
	return n
}

// Refused is the number of requests refused here for a reason.
func (t *Tally) Refused(r Refusal) uint64 { return t.refused[min(r, numRefusals-1)].Load() }

// Limited is the number of answers of a kind that asks for less.
func (t *Tally) Limited(k verdict.Kind) uint64 { return t.limited[min(k, verdict.Error)].Load() }

// Retried is the number of times that a request was repeated here.
func (t *Tally) Retried() uint64 { return t.retried.Load() }

// Bytes is the number of bytes moved in a direction.
func (t *Tally) Bytes(d Direction) uint64 { return t.bytes[d&1].Load() }

// Wait is the distribution of times in the gate, in seconds.
func (t *Tally) Wait() Histogram { return t.wait.snapshot() }

// Histogram counts values in buckets: Counts has one entry for each of Bounds,
// not cumulative, and one for what is above the last. Sum is in the unit of
// Bounds.
type Histogram struct {
	Bounds []float64 // ascending upper bounds; shared, not to be changed
	Counts []uint64
	Sum    float64
	// Fine, if not nil, holds the same values by the buckets of a native
	// histogram of schema FineSchema: the i-th ends at 2^(i/8). Zeros, and
	// only they, are in none.
	Fine map[int]int64
}

// Count is the number of values.
func (h Histogram) Count() (n uint64) {
	for _, c := range h.Counts {
		n += c
	}
	return n
}

// waitBounds are seconds.
var waitBounds = []float64{0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60}

// histogram counts durations; its bounds are seconds.
type histogram struct {
	bounds  []float64
	buckets []atomic.Uint64
	sum     atomic.Uint64 // ns
}

func (h *histogram) observe(d time.Duration) {
	i := 0
	if d > 0 {
		for s := d.Seconds(); i < len(h.bounds) && s > h.bounds[i]; {
			i++
		}
		h.sum.Add(uint64(d))
	}
	h.buckets[i].Add(1)
}

func (h *histogram) snapshot() Histogram {
	out := Histogram{Bounds: h.bounds, Counts: make([]uint64, len(h.buckets)), Sum: time.Duration(h.sum.Load()).Seconds()}
	for i := range h.buckets {
		out.Counts[i] = h.buckets[i].Load()
	}
	return out
}
