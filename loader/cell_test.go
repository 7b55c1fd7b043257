// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

// words copies what Acquire may change.
func words(c *ledger.Cell) [4]uint64 {
	return [4]uint64{c.TAT.Load(), c.Flags.Load(), c.Granted.Load(), c.OpenUntil.Load()}
}

// The kernel's acquire and Go's must do the same to equal cells.
func TestCellTwins(t *testing.T) {
	needRoot(t)
	k := openKernel(t, Config{Lanes: 2})
	h := loadWrappers(t, k)
	inKernel, inGo := &k.Cells()[0], &k.Cells()[1]
	random := rand.New(rand.NewPCG(1, 2))
	now := uint64(1_000_000)
	for round := range 2000 {
		if round%20 == 0 {
			interval, tolerance := random.Uint64N(1000), random.Uint64N(5000)
			openUntil, flags := now+random.Uint64N(2000), random.Uint64N(8)
			for _, c := range []*ledger.Cell{inKernel, inGo} {
				c.Interval.Store(interval)
				c.Tolerance.Store(tolerance)
				c.OpenUntil.Store(openUntil)
				c.Flags.Store(flags)
			}
		}
		now += random.Uint64N(700)
		at := now - random.Uint64N(200) // clocks of two CPUs differ
		cost := random.Uint64N(4)
		c := headersAcquireCase{Now: at, Cost: cost, Cell: 0}
		run(t, h.TestAcquire, &c)
		_, granted := inGo.Acquire(ledger.Time(at), cost)
		if (c.Granted == 1) != granted {
			t.Fatalf("round %d: kernel granted %d, Go %t", round, c.Granted, granted)
		}
		if got, want := words(inKernel), words(inGo); got != want {
			t.Fatalf("round %d: kernel left %v, Go %v", round, got, want)
		}
	}
	if inGo.Granted.Load() == 0 {
		t.Error("nothing was ever granted")
	}
}

// One cell, spinners in the kernel and here, and not one unit too many or too
// few.
//
// TAT starts at start, one second ahead of the clock. A cell that is never
// idle, that is whose TAT never falls behind the clock, has TAT = start +
// granted*interval at any time, and refuses once TAT is more than tolerance
// ahead. So after the spinners ended and the rest was taken at one instant
// end, it granted exactly floor((end-start+tolerance)/interval) + 1, which is
// rate*time + burst. Only if all spinners stood still for a second could the
// cell be idle, and even then TAT tells by how much.
func TestCellExact(t *testing.T) {
	needRoot(t)
	k := openKernel(t, Config{Lanes: 1})
	h := loadWrappers(t, k)
	const interval = 10_000 // 100 000 a second
	cell := &k.Cells()[0]
	cell.Interval.Store(interval)
	cell.BaseInterval.Store(interval)
	cell.Tolerance.Store(uint64(2*time.Second) - interval)
	start := now().Add(time.Second)
	cell.TAT.Store(uint64(start))

	var inKernel, inGo atomic.Uint64
	var spinners sync.WaitGroup
	stop := start.Add(500 * time.Millisecond)
	for range 2 {
		spinners.Go(func() {
			for now() < stop {
				c := headersSpin{Rounds: 1000}
				run(t, h.TestSpin, &c)
				inKernel.Add(c.Granted)
			}
		})
		spinners.Go(func() {
			for n := now(); n < stop; n = now() {
				if _, granted := cell.Acquire(n, 1); granted {
					inGo.Add(1)
				}
			}
		})
	}
	spinners.Wait()
	end := now()
	for {
		if _, granted := cell.Acquire(end, 1); !granted {
			break
		}
		inGo.Add(1)
	}

	total := inKernel.Load() + inGo.Load()
	idle := int64(cell.TAT.Load()-uint64(start)) - int64(total*interval)
	want := (uint64(end-start)-uint64(idle)+cell.Tolerance.Load())/interval + 1
	if idle < 0 {
		t.Errorf("granted %d units, TAT moved for %d: some were granted twice", total, (cell.TAT.Load()-uint64(start))/interval)
	}
	if total != want {
		t.Errorf("granted %d (kernel %d, Go %d), want exactly %d", total, inKernel.Load(), inGo.Load(), want)
	}
	if got := cell.Granted.Load(); got != total {
		t.Errorf("cell counted %d grants, spinners %d", got, total)
	}
	if inKernel.Load() == 0 || inGo.Load() == 0 {
		t.Errorf("kernel granted %d, Go %d: want some of each", inKernel.Load(), inGo.Load())
	}
	if idle > 0 {
		t.Logf("the machine stood still: the cell was idle for %v", time.Duration(idle))
	}
}
