// SPDX-License-Identifier: Apache-2.0

// Package ledger holds the cells in which budgets are kept: fixed records of
// integers that the daemon and the kernel programs change side by side,
// without locks, in one piece of shared memory.
//
// A Cell is only ever used in place. Copying one copies its words without
// their meaning: the kernel would go on changing the original.
package ledger

import (
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"
)

// Time is an instant of CLOCK_MONOTONIC in nanoseconds: the clock of
// bpf_ktime_get_ns and of every word in the ledger. It starts near zero at
// boot and never goes back.
type Time uint64

// Add returns t+d. A sum below zero is zero, one above the range its end.
func (t Time) Add(d time.Duration) Time {
	if d < 0 {
		if back := Time(-d); back < t {
			return t - back
		}
		return 0
	}
	if sum := t + Time(d); sum >= t {
		return sum
	}
	return ^Time(0)
}

// Sub returns t-u, which is negative when u is later. Differences beyond the
// range of time.Duration are cut to it.
func (t Time) Sub(u Time) time.Duration {
	const limit = Time(1<<63 - 1)
	if t >= u {
		return time.Duration(min(t-u, limit))
	}
	return -time.Duration(min(u-t, limit))
}

// CellSize is the size of a Cell in bytes, in Go and in bpf/cell.h.
const CellSize = 128

// Bits of Cell.Flags. bpf/cell.h has the same names.
const (
	// FlagHalf is set by a penalty and says: after the lane reopens, one
	// probe goes first. It falls when an answer to a request of the current
	// epoch is a success.
	FlagHalf uint64 = 1 << iota
	// FlagProbing says that the probe is under way. Only meaningful together
	// with FlagHalf.
	FlagProbing
	// FlagQueued says that somebody waits in the lane's queue: who comes by the
	// kernel joins it rather than overtake. The gate keeps it.
	FlagQueued
)

// Cell is the state of one lane. All words are read and written atomically;
// the zero Cell grants everything (interval 0).
//
// The layout is shared with bpf/cell.h: 16 words of 8 bytes.
type Cell struct {
	TAT          atomic.Uint64 // theoretical arrival time of GCRA, Time
	OpenUntil    atomic.Uint64 // the lane is closed before this Time (the cooldown)
	Interval     atomic.Uint64 // ns per unit of cost now; a slowed lane has more than BaseInterval
	Tolerance    atomic.Uint64 // ns by which TAT may be ahead: (burst-1)*BaseInterval
	Epoch        atomic.Uint64 // grows by one with every penalty that slowed the lane
	Flags        atomic.Uint64
	BaseInterval atomic.Uint64    // ns per unit of cost that the policy allows
	Granted      atomic.Uint64    // units granted, without those given back
	Held         atomic.Uint64    // requests that had to wait
	Refused      atomic.Uint64    // requests refused locally
	Limited      atomic.Uint64    // answers that were limits (429 and the like)
	Window       [3]atomic.Uint64 // what package window keeps of a lane that has one
	_            [2]uint64
}

// Cells views mem, whose start must be 8-byte aligned, as cells. The result
// shares mem and is valid only as long as mem is.
func Cells(mem []byte) ([]Cell, error) {
	if len(mem)%CellSize != 0 {
		return nil, fmt.Errorf("ledger memory of %d bytes is no multiple of %d", len(mem), CellSize)
	}
	if len(mem) == 0 {
		return nil, nil
	}
	p := unsafe.Pointer(unsafe.SliceData(mem))
	if uintptr(p)%8 != 0 {
		return nil, fmt.Errorf("ledger memory is not aligned to 8 bytes")
	}
	return unsafe.Slice((*Cell)(p), len(mem)/CellSize), nil
}

// Grant is what a Take took: what Refund, Penalize and Reward need to know of
// it later. The zero Grant stands for nothing taken.
type Grant struct {
	Epoch uint64 // Cell.Epoch when the unit was taken
	TAT   uint64 // Cell.TAT that the unit left behind
	Span  uint64 // ns by which it moved Cell.TAT
	Cost  uint64 // units
	Seq   uint64 // Cell.Granted, these included: what it grows by later was granted later
	Probe bool   // it is the probe of a lane that reopens: see FlagProbing
}

// Acquire takes cost units at now and reports whether they were granted. If
// not, wait says how long it takes at least until they could be: by the
// cooldown, by the pace, or, for a probe under way, zero (nobody can say).
//
// It is GCRA by compare-and-swap: in any window of length d no more than
// burst + rate*d units are granted, whoever else takes from the cell in the
// kernel or here. A cost above the burst is granted by a full bucket, which
// then is in debt: for what goes beyond the burst, and no more. Safe for
// concurrent use; never allocates.
func (c *Cell) Acquire(now Time, cost uint64) (wait time.Duration, granted bool) {
	_, wait, granted = c.Take(now, cost)
	return wait, granted
}

// Take is Acquire for callers that will hear how the unit fared.
func (c *Cell) Take(now Time, cost uint64) (g Grant, wait time.Duration, granted bool) {
	// The epoch is read first: a penalty that falls between here and the swap
	// below closes the lane before it changes the epoch, so that no unit is
	// ever counted to an epoch that began after it was taken.
	g.Epoch = c.Epoch.Load()
	if c.Flags.Load()&FlagHalf != 0 {
		if wait, g.Probe = c.takeProbe(now, cost); !g.Probe {
			return Grant{}, wait, false
		}
	}
	for {
		if until := Time(c.OpenUntil.Load()); now < until {
			break
		}
		tat := c.TAT.Load()
		base := max(tat, uint64(now))
		interval := c.Interval.Load()
		if base-uint64(now) > room(c.Tolerance.Load(), interval, cost) {
			break
		}
		g.Span = cost * interval
		g.TAT = base + g.Span
		if c.TAT.CompareAndSwap(tat, g.TAT) {
			g.Cost, g.Seq = cost, c.Granted.Add(cost)
			return g, 0, true
		}
	}
	if g.Probe {
		c.EndProbe()
	}
	return Grant{}, c.wait(now, cost), false
}

// takeProbe makes the caller the probe, if the lane is ready for one and none is
// under way. If not, wait is as in Acquire.
func (c *Cell) takeProbe(now Time, cost uint64) (wait time.Duration, ok bool) {
	for {
		f := c.Flags.Load()
		if wait = c.wait(now, cost); wait > 0 || f&FlagProbing != 0 {
			return wait, false
		}
		if c.Flags.CompareAndSwap(f, f|FlagProbing) {
			return 0, true
		}
	}
}

// room is how far TAT may be ahead for cost units to be granted at once.
func room(tolerance, interval, cost uint64) uint64 {
	if cost <= 1 {
		return tolerance
	}
	more := (cost - 1) * interval
	return tolerance - min(tolerance, more)
}

// Peek reports, without taking anything, whether Take would grant cost units
// at now. If not, wait is as in Acquire.
func (c *Cell) Peek(now Time, cost uint64) (wait time.Duration, ready bool) {
	if wait = c.wait(now, cost); wait > 0 {
		return wait, false
	}
	return 0, c.Flags.Load()&(FlagHalf|FlagProbing) != FlagHalf|FlagProbing
}

// wait is the time from now until the cooldown and the pace allow the next
// cost units; zero if they allow them now.
func (c *Cell) wait(now Time, cost uint64) time.Duration {
	at := max(Time(c.OpenUntil.Load()), now)
	ahead := Time(room(c.Tolerance.Load(), c.Interval.Load(), cost))
	if tat := Time(c.TAT.Load()); tat > ahead {
		at = max(at, tat-ahead)
	}
	return at.Sub(now)
}

// After is the time from now until the cooldown and the present pace allow a
// request of cost units that comes after ahead others of that cost; zero if it
// might go now. It is what someone who joins a queue has to expect, if nothing
// else happens.
func (c *Cell) After(now Time, ahead, cost uint64) time.Duration {
	from := max(Time(c.OpenUntil.Load()), now)
	interval := c.Interval.Load()
	at := max(Time(c.TAT.Load()), from).Add(time.Duration(min(ahead*cost*interval, 1<<62)))
	return max(from, at.Add(-time.Duration(room(c.Tolerance.Load(), interval, cost)))).Sub(now)
}

// EndProbe says that the probe under way came to nothing (no answer, or no
// dispatch): the next request becomes the probe.
func (c *Cell) EndProbe() {
	c.Flags.And(^FlagProbing)
}

// Probing reports whether the lane waits for the answer to its probe.
func (c *Cell) Probing() bool {
	return c.Flags.Load()&(FlagHalf|FlagProbing) == FlagHalf|FlagProbing
}

// SetQueued says whether somebody waits in the lane's queue: see FlagQueued.
func (c *Cell) SetQueued(queued bool) {
	if queued {
		c.Flags.Or(FlagQueued)
	} else {
		c.Flags.And(^FlagQueued)
	}
}
