// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"math"
	"testing"
	"time"
)

// t0 is some instant; stories count from it.
const t0 = Time(1_000 * time.Second)

func at(d time.Duration) Time { return t0.Add(d) }

const ms, sec = time.Millisecond, time.Second

// step is one line of a story. Steps without an action take a unit.
type step struct {
	at   time.Duration
	do   func(c *Cell, now Time)
	take int           // units that must be granted at this instant, one by one
	full bool          // and then one more, that must not be
	wait time.Duration // until the next, if full
}

func newCell(interval time.Duration, burst float64) *Cell {
	c := new(Cell)
	c.Configure(interval, time.Duration((burst-1)*float64(interval)), t0)
	return c
}

func tell(t *testing.T, c *Cell, story []step) {
	t.Helper()
	for _, s := range story {
		now := at(s.at)
		if s.do != nil {
			s.do(c, now)
		}
		for n := range s.take {
			if wait, ready := c.Peek(now, 1); !ready || wait != 0 {
				t.Fatalf("at +%v: Peek before unit %d = %v, %v, want ready", s.at, n+1, wait, ready)
			}
			if wait, ok := c.Acquire(now, 1); !ok {
				t.Fatalf("at +%v: unit %d of %d not granted, wait %v", s.at, n+1, s.take, wait)
			}
		}
		if !s.full {
			continue
		}
		tat := c.TAT.Load()
		if wait, ready := c.Peek(now, 1); ready || wait != s.wait {
			t.Fatalf("at +%v: Peek = %v, %v, want %v, false", s.at, wait, ready, s.wait)
		}
		if wait, ok := c.Acquire(now, 1); ok || wait != s.wait {
			t.Fatalf("at +%v: Acquire = %v, %v, want %v, false", s.at, wait, ok, s.wait)
		}
		if got := c.TAT.Load(); got != tat {
			t.Fatalf("at +%v: a refused Acquire moved TAT by %v", s.at, time.Duration(got-tat))
		}
	}
}

func penalize(epoch uint64, delay time.Duration, slows bool, t *testing.T) func(*Cell, Time) {
	return func(c *Cell, now Time) {
		t.Helper()
		if got := c.Penalize(now, epoch, now.Add(delay), 0.5, 2*sec); got != slows {
			t.Fatalf("at +%v: Penalize(epoch %d) slowed = %v, want %v", now.Sub(t0), epoch, got, slows)
		}
	}
}

func reward(epoch uint64, reopens bool, t *testing.T) func(*Cell, Time) {
	return func(c *Cell, now Time) {
		t.Helper()
		if got := c.Reward(now, epoch, 1.1); got != reopens {
			t.Fatalf("at +%v: Reward(epoch %d) reopened = %v, want %v", now.Sub(t0), epoch, got, reopens)
		}
	}
}

func TestStories(t *testing.T) {
	for _, tt := range []struct {
		name     string
		interval time.Duration
		burst    float64
		story    func(t *testing.T) []step
	}{
		{"pace without burst", sec, 1, func(*testing.T) []step {
			return []step{
				{take: 1, full: true, wait: sec},
				{at: sec - 1, full: true, wait: 1},
				{at: sec, take: 1, full: true, wait: sec},
				{at: 10 * sec, take: 1, full: true, wait: sec}, // idle time saves up nothing
			}
		}},
		{"burst, then pace", 100 * ms, 5, func(*testing.T) []step {
			return []step{
				{take: 5, full: true, wait: 100 * ms},
				{at: 250 * ms, take: 2, full: true, wait: 50 * ms},
				{at: 10 * sec, take: 5, full: true, wait: 100 * ms},
			}
		}},
		{"half a unit of burst", sec, 1.5, func(*testing.T) []step {
			return []step{
				{take: 1, full: true, wait: 500 * ms},
				{at: 500 * ms, take: 1, full: true, wait: sec},
			}
		}},
		{"a clock that is read late", sec, 1, func(*testing.T) []step {
			return []step{
				{at: 5 * sec, take: 1},
				{at: 3 * sec, full: true, wait: 3 * sec}, // an instant from before grants nothing
				{at: 6 * sec, take: 1},
			}
		}},
		{"no limit", 0, 1, func(t *testing.T) []step {
			return []step{
				{take: 100},
				{do: penalize(0, 3*sec, true, t), full: true, wait: 3 * sec},
				{at: 3 * sec, take: 1, full: true, wait: 0}, // the probe
				{at: 4 * sec, do: reward(1, true, t), take: 100},
			}
		}},
		{"cooldown ends exactly", 100 * ms, 5, func(t *testing.T) []step {
			return []step{
				{do: penalize(0, 3*sec, true, t), full: true, wait: 3 * sec},
				{at: 3*sec - 1, full: true, wait: 1},
				{at: 3 * sec, take: 1, full: true, wait: 200 * ms},                                  // one probe, and no burst was refilled
				{at: 3*sec + 200*ms, full: true, wait: 0},                                           // the pace allows it, the probe is under way
				{at: 3*sec + 300*ms, do: reward(1, true, t), take: 1, full: true, wait: 81_818_181}, // the ramp: 200 ms / 1.1
			}
		}},
		{"a shorter verdict shortens nothing", sec, 1, func(t *testing.T) []step {
			return []step{
				{do: penalize(0, 10*sec, true, t), full: true, wait: 10 * sec},
				{at: sec, do: penalize(1, 2*sec, true, t), full: true, wait: 9 * sec},
				{at: 2 * sec, do: func(c *Cell, now Time) {
					if c.Close(now.Add(sec)) {
						t.Error("Close reports that it made a cooldown longer that it did not")
					}
				}, full: true, wait: 8 * sec},
			}
		}},
		{"a late limit extends", 100 * ms, 5, func(t *testing.T) []step {
			return []step{
				{take: 3, full: false},
				{at: 100 * ms, do: penalize(0, 3*sec, true, t)},
				{at: 200 * ms, do: penalize(0, 5*sec, false, t), full: true, wait: 5 * sec},
				{at: 300 * ms, do: penalize(0, 1*sec, false, t), full: true, wait: 4900 * ms},
				{at: 5200 * ms, take: 1, full: true, wait: 200 * ms}, // emptied until the new end
			}
		}},
		{"a late limit after the reopening", 100 * ms, 5, func(t *testing.T) []step {
			return []step{
				{do: penalize(0, sec, true, t)},
				{at: sec, take: 1},
				{at: 1100 * ms, do: penalize(0, sec, false, t), full: true, wait: sec},
				{at: 1200 * ms, do: reward(1, false, t), full: true, wait: 900 * ms}, // success of the probe says nothing about a closed lane
				{at: 1200 * ms, do: func(c *Cell, _ Time) { c.EndProbe() }},
				{at: 2100 * ms, take: 1, full: true, wait: 200 * ms},
			}
		}},
		{"a probe that fails", sec, 1, func(t *testing.T) []step {
			return []step{
				{do: penalize(0, sec, true, t)},
				{at: sec, take: 1},
				{at: 1500 * ms, do: penalize(1, sec, true, t), full: true, wait: 1500 * ms}, // the pace of the slowed lane outlasts the cooldown
				{at: 3 * sec, take: 1, full: true, wait: 2 * sec},                           // base 1 s: the floor is half of it
			}
		}},
		{"a probe that vanishes", sec, 1, func(t *testing.T) []step {
			return []step{
				{do: penalize(0, sec, true, t)},
				{at: sec, take: 1},
				{at: 10 * sec, full: true, wait: 0},
				{at: 10 * sec, do: func(c *Cell, _ Time) { c.EndProbe() }, take: 1, full: true, wait: 2 * sec},
			}
		}},
		{"closing without a penalty keeps the bucket", sec, 3, func(*testing.T) []step {
			return []step{
				{take: 1},
				{do: func(c *Cell, now Time) { c.Close(now.Add(2 * sec)) }, full: true, wait: 2 * sec},
				{at: 2 * sec, take: 3, full: true, wait: sec},
			}
		}},
		{"the operator opens", sec, 5, func(t *testing.T) []step {
			return []step{
				{do: penalize(0, time.Hour, true, t), full: true, wait: time.Hour},
				{at: sec, do: func(c *Cell, now Time) { c.ClearCooldown(now) }, take: 1, full: true, wait: 2 * sec},
			}
		}},
		{"a limit without delay still empties", sec, 5, func(t *testing.T) []step {
			return []step{{do: penalize(0, 0, true, t), take: 1, full: true, wait: 2 * sec}}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) { tell(t, newCell(tt.interval, tt.burst), tt.story(t)) })
	}
}

func TestPenalizeSlows(t *testing.T) {
	for _, tt := range []struct {
		base   time.Duration
		factor float64
		want   []time.Duration // intervals after each penalty
	}{
		{200 * ms, 0.5, []time.Duration{400 * ms, 800 * ms, 1600 * ms, 2 * sec, 2 * sec}}, // down to 0.5/s
		{1500 * ms, 0.5, []time.Duration{3 * sec, 3 * sec}},                               // base*factor is below that
		{10 * sec, 0.5, []time.Duration{20 * sec, 20 * sec}},                              // never faster than the base rate
		{sec, 0.25, []time.Duration{4 * sec, 4 * sec}},
		{200 * ms, 1, []time.Duration{200 * ms}},
		{3, 0.7, []time.Duration{5, 8, 12}}, // rounded to the slower side
		{0, 0.5, []time.Duration{0}},
	} {
		c := newCell(tt.base, 1)
		for i, want := range tt.want {
			now := at(time.Duration(i) * time.Hour)
			c.Penalize(now, uint64(i), now.Add(sec), tt.factor, 2*sec)
			if got := time.Duration(c.Interval.Load()); got != want {
				t.Errorf("base %v, factor %v, penalty %d: interval = %v, want %v", tt.base, tt.factor, i+1, got, want)
			}
		}
	}
}

// Fifty requests under way, one after the other refused: one halving.
func TestPenalizeOncePerEpoch(t *testing.T) {
	c := newCell(200*ms, 50)
	var grants []Grant
	for range 50 {
		g, _, ok := c.Take(t0, 1)
		if !ok {
			t.Fatal("burst not granted")
		}
		grants = append(grants, g)
	}
	slowed := 0
	for i, g := range grants {
		now := at(time.Duration(i) * ms)
		if c.Penalize(now, g.Epoch, now.Add(3*sec), 0.5, 2*sec) {
			slowed++
		}
	}
	if slowed != 1 {
		t.Errorf("slowed %d times, want 1", slowed)
	}
	if got, want := time.Duration(c.Interval.Load()), 400*ms; got != want {
		t.Errorf("interval = %v, want %v", got, want)
	}
	if got, want := Time(c.OpenUntil.Load()), at(49*ms+3*sec); got != want {
		t.Errorf("open until +%v, want +%v", got.Sub(t0), want.Sub(t0))
	}
}

func TestRewardRamp(t *testing.T) {
	// 2.5/s to 5/s takes 8 successes at a step of 1.1.
	c := newCell(200*ms, 1)
	c.Penalize(t0, 0, at(sec), 0.5, 2*sec)
	n := 0
	for c.Interval.Load() > c.BaseInterval.Load() {
		c.Reward(at(2*sec), 1, 1.1)
		if n++; n > 100 {
			t.Fatal("never back at the base rate")
		}
	}
	if n != 8 {
		t.Errorf("%d successes to the base rate, want 8", n)
	}
	c.Reward(at(2*sec), 1, 1.1)
	if got, want := c.Interval.Load(), c.BaseInterval.Load(); got != want {
		t.Errorf("interval = %d after the ramp, want the base %d", got, want)
	}
}

func TestRewardIgnores(t *testing.T) {
	for _, tt := range []struct {
		name  string
		at    time.Duration
		epoch uint64
	}{
		{"an answer to a request from before the penalty", 2 * sec, 0},
		{"an answer while the lane is closed", sec - 1, 1},
		{"an epoch that never was", 2 * sec, 7},
	} {
		c := newCell(200*ms, 1)
		c.Penalize(t0, 0, at(sec), 0.5, 2*sec)
		if c.Reward(at(tt.at), tt.epoch, 1.1) {
			t.Errorf("%s reopened the lane", tt.name)
		}
		if got := time.Duration(c.Interval.Load()); got != 400*ms {
			t.Errorf("%s made the interval %v, want 400ms", tt.name, got)
		}
		if c.Flags.Load()&FlagHalf == 0 {
			t.Errorf("%s ended the probing", tt.name)
		}
	}
}

func TestRefund(t *testing.T) {
	mustTake := func(t *testing.T, c *Cell, now Time) Grant {
		t.Helper()
		g, wait, ok := c.Take(now, 1)
		if !ok {
			t.Fatalf("at +%v: not granted, wait %v", now.Sub(t0), wait)
		}
		return g
	}
	t.Run("the last unit", func(t *testing.T) {
		c := newCell(sec, 1)
		c.Refund(mustTake(t, c, t0))
		tell(t, c, []step{{at: ms, take: 1, full: true, wait: sec}})
	})
	t.Run("not after another", func(t *testing.T) {
		// What was taken at 0 and at 1 s must not, the first given back, let two
		// go at 1 s: not even if the slot of the first began when it was taken.
		c := newCell(sec, 1)
		first := mustTake(t, c, t0)
		mustTake(t, c, at(sec))
		c.Refund(first)
		tell(t, c, []step{{at: sec, full: true, wait: sec}})
	})
	t.Run("one after the other, the last first", func(t *testing.T) {
		c := newCell(sec, 3)
		mustTake(t, c, t0)
		second, third := mustTake(t, c, t0), mustTake(t, c, t0)
		c.Refund(third)
		c.Refund(second)
		tell(t, c, []step{{at: ms, take: 2, full: true, wait: sec - ms}})
	})
	t.Run("the first first is one lost", func(t *testing.T) {
		c := newCell(sec, 3)
		mustTake(t, c, t0)
		second, third := mustTake(t, c, t0), mustTake(t, c, t0)
		c.Refund(second)
		c.Refund(third)
		tell(t, c, []step{{at: ms, take: 1, full: true, wait: sec - ms}})
	})
	t.Run("not into an emptied bucket", func(t *testing.T) {
		c := newCell(sec, 5)
		g := mustTake(t, c, t0)
		c.Penalize(at(ms), 0, at(sec), 0.5, 2*sec)
		c.Refund(g)
		tell(t, c, []step{{at: sec, take: 1, full: true, wait: 2 * sec}})
	})
	t.Run("a probe", func(t *testing.T) {
		c := newCell(sec, 5)
		c.Penalize(t0, 0, at(sec), 0.5, 2*sec)
		g := mustTake(t, c, at(sec))
		if !g.Probe {
			t.Fatal("the first unit after the reopening is no probe")
		}
		c.Refund(g)
		tell(t, c, []step{{at: 1100 * ms, take: 1, full: true, wait: 1900 * ms}})
	})
	t.Run("not into a bucket that late news emptied", func(t *testing.T) {
		c := newCell(100*ms, 5)
		c.Penalize(t0, 0, at(sec), 0.5, 2*sec)
		g := mustTake(t, c, at(sec))
		c.Penalize(at(1100*ms), 0, at(2100*ms), 0.5, 2*sec)
		c.Refund(g)
		tell(t, c, []step{
			{at: 2100 * ms, take: 1},
			{at: 2100 * ms, do: reward(1, true, t), full: true, wait: 200 * ms},
		})
	})
	t.Run("not below a bucket that late news found empty", func(t *testing.T) {
		c := newCell(100*ms, 5)
		c.Penalize(t0, 0, at(sec), 0.5, 2*sec)
		g := mustTake(t, c, at(sec))
		c.Penalize(at(1050*ms), 0, at(1100*ms), 0.5, 2*sec) // moves the reopening, not TAT
		c.Refund(g)
		tell(t, c, []step{
			{at: 1100 * ms, take: 1},
			{at: 1100 * ms, do: reward(1, true, t), full: true, wait: 200 * ms},
		})
	})
	t.Run("is not counted", func(t *testing.T) {
		c := newCell(sec, 3)
		mustTake(t, c, t0)
		c.Refund(mustTake(t, c, t0))
		if got := c.Granted.Load(); got != 1 {
			t.Errorf("granted = %d, want 1", got)
		}
	})
	t.Run("twice is nothing more", func(t *testing.T) {
		c := newCell(sec, 2)
		g := mustTake(t, c, t0)
		c.Refund(g)
		c.Refund(g)
		tell(t, c, []step{{take: 2, full: true, wait: sec}})
	})
	t.Run("nothing", func(t *testing.T) {
		c := newCell(sec, 1)
		mustTake(t, c, t0)
		c.Refund(Grant{})
		tell(t, c, []step{{full: true, wait: sec}})
	})
}

func TestConfigure(t *testing.T) {
	t.Run("faster", func(t *testing.T) {
		c := newCell(10*sec, 1)
		c.Acquire(t0, 1)
		c.Configure(sec, 0, at(5*sec)) // half of the interval is over, so half of the new one is left
		tell(t, c, []step{{at: 5 * sec, full: true, wait: 500 * ms}, {at: 5500 * ms, take: 1}})
	})
	t.Run("slower", func(t *testing.T) {
		c := newCell(sec, 1)
		c.Acquire(t0, 1)
		c.Configure(10*sec, 0, at(500*ms))
		tell(t, c, []step{{at: 500 * ms, full: true, wait: 5 * sec}})
	})
	t.Run("keeps a slow-down in proportion", func(t *testing.T) {
		c := newCell(sec, 1)
		c.Penalize(t0, 0, at(sec), 0.5, 2*sec)
		c.Configure(100*ms, 0, at(2*sec))
		if got := time.Duration(c.Interval.Load()); got != 200*ms {
			t.Errorf("interval = %v, want 200ms", got)
		}
	})
	t.Run("keeps a cooldown and its empty bucket", func(t *testing.T) {
		c := newCell(sec, 2)
		c.Penalize(t0, 0, at(10*sec), 0.5, 2*sec)
		c.Configure(100*ms, 900*ms, at(sec))
		tell(t, c, []step{{at: sec, full: true, wait: 9 * sec}, {at: 10 * sec, take: 1, full: true, wait: 200 * ms}})
	})
	t.Run("same limits change nothing", func(t *testing.T) {
		c := newCell(sec, 2)
		c.Penalize(t0, 0, at(sec), 0.5, 2*sec)
		tat, interval := c.TAT.Load(), c.Interval.Load()
		c.Configure(sec, sec, at(100*ms))
		if c.TAT.Load() != tat || c.Interval.Load() != interval {
			t.Errorf("TAT, interval = %d, %d, want %d, %d", c.TAT.Load(), c.Interval.Load(), tat, interval)
		}
	})
	t.Run("to no limit and back", func(t *testing.T) {
		c := newCell(sec, 1)
		c.Acquire(t0, 1)
		c.Configure(0, 0, t0)
		tell(t, c, []step{{take: 1000}})
		c.Configure(sec, 0, at(sec))
		tell(t, c, []step{{at: sec, take: 1, full: true, wait: sec}})
	})
}

func TestAfter(t *testing.T) {
	c := newCell(sec, 3)
	for _, tt := range []struct {
		ahead uint64
		want  time.Duration
	}{{0, 0}, {2, 0}, {3, sec}, {10, 8 * sec}} {
		if got := c.After(t0, tt.ahead, 1); got != tt.want {
			t.Errorf("After(%d) = %v, want %v", tt.ahead, got, tt.want)
		}
	}
	c.Penalize(t0, 0, at(5*sec), 0.5, 2*sec)
	for _, tt := range []struct {
		ahead uint64
		want  time.Duration
	}{{0, 5 * sec}, {1, 7 * sec}, {math.MaxUint64, 1 << 62}} {
		if got := c.After(t0, tt.ahead, 1); tt.ahead < 10 && got != tt.want {
			t.Errorf("closed: After(%d) = %v, want %v", tt.ahead, got, tt.want)
		} else if got < 0 {
			t.Errorf("closed: After(%d) = %v, want no negative wait", tt.ahead, got)
		}
	}
}

func TestReset(t *testing.T) {
	c := newCell(sec, 3)
	c.Acquire(t0, 1)
	c.Held.Add(1)
	c.Refused.Add(1)
	c.Limited.Add(1)
	c.Penalize(t0, 0, at(sec), 0.5, 2*sec)
	c.Reset()
	for name, w := range map[string]uint64{
		"TAT": c.TAT.Load(), "OpenUntil": c.OpenUntil.Load(), "Interval": c.Interval.Load(), "Tolerance": c.Tolerance.Load(),
		"Epoch": c.Epoch.Load(), "Flags": c.Flags.Load(), "BaseInterval": c.BaseInterval.Load(),
		"Granted": c.Granted.Load(), "Held": c.Held.Load(), "Refused": c.Refused.Load(), "Limited": c.Limited.Load(),
	} {
		if w != 0 {
			t.Errorf("%s = %d after Reset, want 0", name, w)
		}
	}
}

func TestScale(t *testing.T) {
	for _, tt := range []struct{ v, num, den, want uint64 }{
		{10, 3, 2, 15},
		{10, 1, 3, 4}, // up
		{0, 5, 1, 0},
		{math.MaxUint64, 2, 4, 1 << 63},
		{math.MaxUint64, math.MaxUint64, 1, math.MaxUint64 / 2},
	} {
		if got := scale(tt.v, tt.num, tt.den); got != tt.want {
			t.Errorf("scale(%d, %d, %d) = %d, want %d", tt.v, tt.num, tt.den, got, tt.want)
		}
	}
}

func TestTime(t *testing.T) {
	for _, tt := range []struct {
		t    Time
		d    time.Duration
		want Time
	}{
		{5, 3, 8}, {5, -3, 2}, {5, -5, 0}, {5, -9, 0},
		{math.MaxUint64, 1, math.MaxUint64}, {0, math.MinInt64, 0},
	} {
		if got := tt.t.Add(tt.d); got != tt.want {
			t.Errorf("Time(%d).Add(%d) = %d, want %d", tt.t, int64(tt.d), got, tt.want)
		}
	}
	if got, want := Time(0).Sub(math.MaxUint64), -time.Duration(math.MaxInt64); got != want {
		t.Errorf("Sub = %d, want %d", got, want)
	}
}

func TestCells(t *testing.T) {
	if _, err := Cells(make([]byte, CellSize+8)); err == nil {
		t.Error("memory of a cell and a half was accepted")
	}
	mem := make([]Cell, 3) // aligned
	raw := bytesOf(mem)
	if _, err := Cells(raw[4 : 4+CellSize]); err == nil {
		t.Error("memory that is not aligned was accepted")
	}
	cells, err := Cells(raw)
	if err != nil || len(cells) != 3 {
		t.Fatalf("Cells = %d cells, %v, want 3", len(cells), err)
	}
	cells[2].TAT.Store(7)
	if got := mem[2].TAT.Load(); got != 7 {
		t.Errorf("TAT of the memory's third cell = %d, want 7", got)
	}
	if cells, err := Cells(nil); len(cells) != 0 || err != nil {
		t.Errorf("Cells(nil) = %v, %v, want none", cells, err)
	}
}

// Whatever becomes of a lane, only who set it takes the queue's flag away.
func TestQueuedStays(t *testing.T) {
	for _, tt := range []struct {
		name  string
		touch func(c *Cell)
		gone  bool
	}{
		{"a penalty", func(c *Cell) { c.Penalize(t0, 0, t0.Add(sec), 0.5, sec) }, false},
		{"a probe and its success", func(c *Cell) {
			c.Penalize(t0, 0, t0, 0.5, sec)
			now := t0.Add(time.Minute)
			if g, _, ok := c.Take(now, 1); !ok || !g.Probe || !c.Reward(now, g.Epoch, 1.1) {
				t.Error("no probe, or none that ends the probing")
			}
		}, false},
		{"a probe that comes to nothing", func(c *Cell) {
			c.Penalize(t0, 0, t0, 0.5, sec)
			now := t0.Add(time.Minute)
			g, _, _ := c.Take(now, 1)
			if c.Refund(g); c.Probing() {
				t.Error("the probe is still under way")
			}
		}, false},
		{"the operator", func(c *Cell) { c.Close(t0.Add(sec)); c.ClearCooldown(t0) }, false},
		{"a reload", func(c *Cell) { c.Configure(2*sec, sec, t0) }, false},
		{"units", func(c *Cell) { c.Acquire(t0, 1); c.Owe(t0, 1) }, false},
		{"another lane", (*Cell).Reset, true},
		{"who set it", func(c *Cell) { c.SetQueued(false) }, true},
	} {
		c := newCell(sec, 1)
		c.SetQueued(true)
		if tt.touch(c); (c.Flags.Load()&FlagQueued == 0) != tt.gone {
			t.Errorf("%s: flags = %b, want it gone: %v", tt.name, c.Flags.Load(), tt.gone)
		}
	}
}
