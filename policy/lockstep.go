// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

// What a score of ExitMeter.Lockstep means: below SomeLockstep nothing, above
// FullLockstep that the clients of the exit go in lockstep.
const (
	SomeLockstep = 0.3
	FullLockstep = 0.6
)

// Bounds of ExitMeter.Lockstep.
const (
	minLag   = 2   // slots: what comes back within the next one is no rhythm
	minSlots = 128 // below that, chance alone reaches scores that look like something
	minLags  = 4   // and so many lags: less is no repetition
	// fineLag is the delay below which slots of a second are too coarse.
	fineLag = 2 * time.Second
	// Clients come back as late as an answer and their own work take. These
	// are slots, of a second and of a tenth.
	lateSeconds, lateTenths = 1, 3
)

// NoteDelay records that an answer through the exit asked for a delay: that of
// a verdict, whatever its kind. d of zero or less says nothing.
func (m *ExitMeter) NoteDelay(d time.Duration) {
	if d <= 0 {
		return
	}
	if d < fineLag && m.tenths.Load() == nil {
		m.tenths.CompareAndSwap(nil, new(slots))
	}
	if m.delay.Load() != int64(d) { // spares the cache line
		m.delay.Store(int64(d))
	}
}

// Lockstep tells how far the requests of the exit come in bursts that return
// after the delay that was last asked: 0 for not at all, 1 for nothing else.
// known is false where that cannot be told: no delay was asked, it is below
// 200 ms or above 128 s, or there is not enough of the past. See Lockstep in
// docs/EXITS.md for the definition and for what the numbers mean.
func (m *ExitMeter) Lockstep(now ledger.Time) (score float64, known bool) {
	d := time.Duration(m.delay.Load())
	s, width, late := &m.seconds, time.Second, lateSeconds
	if d < fineLag {
		s, width, late = m.tenths.Load(), tenth, lateTenths
	}
	lag := int(d / width)
	if lag < minLag || lag > maxSlots/minLags {
		return 0, false
	}
	var past [maxSlots]float64
	m.mu.Lock()
	x := s.window(past[:0], uint64(now)/uint64(width))
	m.mu.Unlock()
	if len(x) < max(minSlots, minLags*lag) {
		return 0, false
	}
	return lockstep(x, lag, late), true
}

// lockstep is the score of a series: its autocorrelation at the lag, or up to
// late slots after it, as far as it rises above that at all lesser lags, times
// the share of the variance that chance and even pacing do not explain.
//
// The subtraction takes out trends: a load that changes slowly is like
// itself at every lag. The factor is 1 - mean/variance. Independent requests
// have a variance that is their mean, and a paced stream, which is as
// periodic as can be, has less.
func lockstep(x []float64, lag, late int) float64 {
	n := float64(len(x))
	mean := 0.0
	for _, v := range x {
		mean += v / n
	}
	energy := 0.0
	for i, v := range x {
		x[i] = v - mean
		energy += x[i] * x[i]
	}
	bursty := 1 - mean*n/energy
	if energy == 0 || bursty <= 0 {
		return 0
	}
	best, least := 0.0, 1.0
	for k := 1; k <= lag+late; k++ {
		sum := 0.0
		for i, v := range x[k:] {
			sum += v * x[i]
		}
		r := sum / energy * n / float64(len(x)-k)
		if k >= lag {
			best = max(best, r-max(0, least))
		}
		least = min(least, r)
	}
	return min(best, 1) * bursty
}
