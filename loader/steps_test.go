// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

// Steps of test_step in bpf/egress_test.bpf.c.
const (
	stepTake = iota
	stepUndo
	stepReserve
)

// A unit that is given back in the kernel, and one that is given back here, move
// equal cells alike, whatever became of pace and cooldown since it was taken.
func TestGiveBackTwins(t *testing.T) {
	needRoot(t)
	k := openKernel(t, Config{Lanes: 2})
	h := loadWrappers(t, k)
	inKernel, inGo := &k.Cells()[0], &k.Cells()[1]
	both := []*ledger.Cell{inKernel, inGo}
	random := rand.New(rand.NewPCG(3, 4))
	now := ledger.Time(1_000_000_000)
	given, kept := 0, 0
	for round := range 5000 {
		if round%10 == 0 {
			interval := time.Duration(random.Uint64N(1000))
			burst := time.Duration(1 + random.Uint64N(4))
			now = now.Add(time.Minute)
			for _, c := range both {
				c.Reset()
				c.Configure(interval, (burst-1)*interval, now)
			}
		}
		now = now.Add(time.Duration(random.Uint64N(500)))
		taken := headersStepCase{Step: stepTake, At: uint64(now)}
		run(t, h.TestStep, &taken)
		for _, c := range both {
			c.Flags.Store(0) // the kernel plane takes from no lane that waits for a probe
		}
		g, _, granted := inGo.Take(now, 1)
		if (taken.Tat != 0) != granted || taken.Tat != g.TAT || taken.Span != g.Span {
			t.Fatalf("round %d: kernel left TAT %d, %d later, Go %d, %d later", round, taken.Tat, taken.Span, g.TAT, g.Span)
		}
		if !granted {
			continue
		}
		change, cooldown := random.Uint64N(8), time.Duration(random.Uint64N(2000))
		pace := time.Duration(random.Uint64N(1000))
		for _, c := range both {
			switch change {
			case 0:
				c.Penalize(now, c.Epoch.Load(), now.Add(cooldown), 0.5, time.Hour)
			case 1:
				c.Close(now.Add(cooldown))
			case 2:
				c.Configure(pace, 2*pace, now)
			case 3:
				c.Take(now, 1)
			}
		}
		taken.Step = stepUndo
		run(t, h.TestStep, &taken)
		g.Epoch = inGo.Epoch.Load() // the kernel does not know it
		inGo.Refund(g)
		if got, want := words(inKernel), words(inGo); got != want {
			t.Fatalf("round %d: after change %d kernel left %v, Go %v", round, change, got, want)
		}
		if inGo.TAT.Load() < g.TAT {
			given++
		} else {
			kept++
		}
	}
	if given == 0 || kept == 0 {
		t.Errorf("%d times something was given back, and %d times nothing, want some of each", given, kept)
	}
}

// goer takes a unit in the kernel, step by step. What others do may come
// between any two of its steps.
type goer struct {
	end  int
	now  uint64 // as it read the clock
	unit headersStepCase
	went []uint64 // when the unit was sent, if it was
	next int
}

// What a goer does.
const (
	goesNow = iota
	comesBack
	reserves // goes at its turn
	putOff   // reserves, and hears then that another lane has room only later
	goerEnds
)

const goers, goerSteps = 3, 3

// later is what the other lane puts a unit off by.
const later = 150 * time.Millisecond

func (g *goer) step(t *testing.T, h *wrappers, at uint64) {
	g.next++
	do := func(step uint32, at uint64) {
		g.unit.Step, g.unit.At = step, at
		run(t, h.TestStep, &g.unit)
	}
	switch {
	case g.next == 1:
		g.now = at
	case g.next == 2 && g.end <= comesBack:
		do(stepTake, g.now)
	case g.next == 2:
		do(stepReserve, g.now)
	case g.unit.Tat == 0: // nothing was free
	case g.end == goesNow:
		g.went = append(g.went, g.now)
	case g.end == comesBack:
		do(stepUndo, g.now)
	case g.end == reserves:
		g.went = append(g.went, g.unit.Turn)
	case g.end == putOff:
		do(stepReserve, g.unit.Turn+uint64(later))
		g.went = append(g.went, g.unit.Turn)
	}
}

// orders are those in which goers can do their steps.
func orders() (all [][]int) {
	var left [goers]int
	var grow func(order []int)
	grow = func(order []int) {
		if len(order) == goers*goerSteps {
			all = append(all, slices.Clone(order))
		}
		for i := range left {
			if left[i] < goerSteps {
				left[i]++
				grow(append(order, i))
				left[i]--
			}
		}
	}
	grow(nil)
	return all
}

// In whatever order three take in the kernel, give back, reserve and are put
// off, with a penalty at any place in it: what is sent, with all that the cell
// has left at the end, keeps the bound in every window; and of a bucket that a
// penalty emptied no more than one unit is left at the reopening.
func TestStepsInEveryOrder(t *testing.T) {
	needRoot(t)
	k := openKernel(t, Config{Lanes: 1})
	h := loadWrappers(t, k)
	c := &k.Cells()[0]
	const interval = 100 * time.Millisecond
	const start = uint64(time.Hour)
	random := rand.New(rand.NewPCG(5, 6))
	seen := map[string]int{}
	for n, order := range slices.Repeat(orders(), 6) {
		burst := []int{1, 3}[n%2]
		tick := uint64(random.Int64N(int64(interval)))
		cooldown := time.Duration(random.Int64N(int64(2 * interval)))
		penalty := random.IntN(2 * len(order)) // half of the times there is none
		var all [goers]goer
		for i := range all {
			all[i].end = random.IntN(goerEnds)
		}
		c.Reset()
		c.Configure(interval, time.Duration(burst-1)*interval, ledger.Time(start))
		at, open := start, uint64(0)
		for place, i := range order {
			if place == penalty {
				c.Penalize(ledger.Time(at), 0, ledger.Time(at).Add(cooldown), 0.5, 10*interval)
				open = c.OpenUntil.Load()
			}
			all[i].step(t, h, at)
			at += tick
		}
		var sent []uint64
		for i := range all {
			sent = append(sent, all[i].went...)
			if len(all[i].went) > 0 && all[i].end == putOff && all[i].unit.Turn > all[i].now {
				seen["put off"]++
			}
			if all[i].end == comesBack && all[i].unit.Tat != 0 {
				seen["came back"]++
			}
		}
		first := slices.DeleteFunc(slices.Clone(sent), func(at uint64) bool { return at < open })
		at = max(at, open)
		left := 0
		for {
			unit := headersStepCase{Step: stepTake, At: at}
			run(t, h.TestStep, &unit)
			if unit.Tat == 0 {
				break
			}
			left++
			sent = append(sent, at)
		}
		if at == open && len(first) == 0 {
			seen["reopened"]++
			if left > 1 {
				t.Fatalf("burst %d, tick %d, penalty at %d for %v, order %v of %+v: %d units at the reopening", burst, tick, penalty, cooldown, order, all, left)
			}
		}
		slices.Sort(sent)
		for i := range sent {
			for j := i + burst; j < len(sent); j++ {
				if span := sent[j] - sent[i]; span < uint64(j-i+1-burst)*uint64(interval) {
					t.Fatalf("burst %d, tick %d, penalty at %d for %v, order %v of %+v: %d units in %v", burst, tick, penalty, cooldown, order, all, j-i+1, time.Duration(span))
				}
			}
		}
	}
	for _, what := range []string{"put off", "came back", "reopened"} {
		if seen[what] == 0 {
			t.Errorf("none was seen that %s: %v", what, seen)
		}
	}
}
