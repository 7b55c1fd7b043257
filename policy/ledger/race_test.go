// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"
)

func bytesOf(cells []Cell) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(cells))), len(cells)*CellSize)
}

func TestCellSize(t *testing.T) {
	if got := unsafe.Sizeof(Cell{}); got != CellSize {
		t.Errorf("a Cell is %d bytes, want %d", got, CellSize)
	}
}

// checkWindows fails if in any window more units were granted than
// burst + window/interval.
func checkWindows(t *testing.T, grants []Time, interval time.Duration, burst int) {
	t.Helper()
	if err := exceeds(grants, interval, burst); err != nil {
		t.Fatal(err)
	}
}

// exceeds tells where in any window more units were granted than
// burst + window/interval; nil if nowhere. It sorts grants.
func exceeds(grants []Time, interval time.Duration, burst int) error {
	slices.Sort(grants)
	// The bound holds in every window if and only if it holds in those that
	// begin and end with a grant. With a = grants[i] - i*interval it says that
	// no a falls by burst*interval or more below an earlier one.
	highest := int64(-1 << 62)
	for i, g := range grants {
		a := int64(g) - int64(i)*int64(interval)
		highest = max(highest, a)
		if a-highest <= -int64(burst)*int64(interval) {
			return fmt.Errorf("grant %d at +%v is one too many for burst %d at %v", i, g.Sub(grants[0]), burst, interval)
		}
	}
	return nil
}

// Many goroutines at one cell, by a clock that all of them move: no window
// holds more than burst + rate*d, and nothing is lost.
func TestExactUnderContention(t *testing.T) {
	const (
		workers  = 8
		interval = 100 * time.Microsecond
		burst    = 5
		span     = 200 * time.Millisecond
	)
	c := newCell(interval, burst)
	var clock atomic.Uint64
	clock.Store(uint64(t0))
	grants := make([][]Time, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(w)))
			for {
				now := Time(clock.Add(r.Uint64N(2000)))
				if now > t0.Add(span) {
					return
				}
				if _, ok := c.Acquire(now, 1); ok {
					grants[w] = append(grants[w], now)
				}
			}
		})
	}
	wg.Wait()
	all := slices.Concat(grants...)
	checkWindows(t, all, interval, burst)
	if got, want := c.Granted.Load(), uint64(len(all)); got != want {
		t.Errorf("the cell counts %d grants, %d were seen", got, want)
	}
	if got, most := len(all), burst+int(span/interval); got < most*99/100 {
		t.Errorf("%d units granted, want 99%% of %d", got, most)
	}
}

// The same with penalties, rewards and refunds in between: the bound of the
// base rate holds for what was sent, and nothing is sent in a cooldown that
// was known before.
func TestExactWithVerdicts(t *testing.T) {
	const (
		workers  = 8
		interval = 100 * time.Microsecond
		burst    = 5
	)
	c := newCell(interval, burst)
	var clock atomic.Uint64
	clock.Store(uint64(t0))
	grants := make([][]Time, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(2, uint64(w)))
			for {
				now := Time(clock.Add(r.Uint64N(2000)))
				if now > t0.Add(300*time.Millisecond) {
					return
				}
				closed := Time(c.OpenUntil.Load())
				g, _, ok := c.Take(now, 1)
				if !ok {
					continue
				}
				if now < closed {
					t.Errorf("granted %v before the end of the cooldown", closed.Sub(now))
				}
				done := Time(clock.Load())
				switch r.IntN(20) {
				case 0:
					c.Refund(g)
					continue
				case 1:
					c.Penalize(done, g.Epoch, done.Add(time.Duration(r.IntN(3))*time.Millisecond), 0.5, 0)
				default:
					c.Reward(done, g.Epoch, 1.1)
				}
				if g.Probe && c.Epoch.Load() == g.Epoch {
					c.EndProbe()
				}
				grants[w] = append(grants[w], now)
			}
		})
	}
	wg.Wait()
	all := slices.Concat(grants...)
	checkWindows(t, all, interval, burst)
	if len(all) < 100 {
		t.Errorf("only %d units were granted: the lane is stuck", len(all))
	}
}

// Of many refusals of one epoch at once, one slows.
func TestPenalizeRace(t *testing.T) {
	for range 200 {
		c := newCell(200*time.Millisecond, 1)
		var slowed atomic.Int32
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				if c.Penalize(t0, 0, t0.Add(time.Duration(i)*time.Second), 0.5, 2*time.Second) {
					slowed.Add(1)
				}
			})
		}
		wg.Wait()
		if got := slowed.Load(); got != 1 {
			t.Fatalf("slowed %d times, want 1", got)
		}
		if got, want := time.Duration(c.Interval.Load()), 400*time.Millisecond; got != want {
			t.Fatalf("interval = %v, want %v", got, want)
		}
		if got, want := Time(c.OpenUntil.Load()), t0.Add(7*time.Second); got != want {
			t.Fatalf("open until +%v, want the longest", got.Sub(t0))
		}
	}
}

// Of many who find a lane reopened, one is the probe.
func TestProbeRace(t *testing.T) {
	for range 200 {
		c := newCell(time.Millisecond, 100)
		c.Penalize(t0, 0, t0.Add(time.Second), 0.5, 0)
		var granted, probes atomic.Int32
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if g, _, ok := c.Take(t0.Add(time.Hour), 1); ok {
					granted.Add(1)
					if g.Probe {
						probes.Add(1)
					}
				}
			})
		}
		wg.Wait()
		if granted.Load() != 1 || probes.Load() != 1 {
			t.Fatalf("%d granted, %d of them probes, want one that is", granted.Load(), probes.Load())
		}
	}
}
