// SPDX-License-Identifier: Apache-2.0

package member

import (
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/userspace/mono"
)

// sleeps counts how often the machine has slept: CLOCK_BOOTTIME then goes on,
// CLOCK_MONOTONIC does not (clock_gettime(2)). The zero value counts from its
// first use on. Safe for concurrent use.
type sleeps struct {
	ahead atomic.Int64 // of CLOCK_BOOTTIME, in nanoseconds, when last it jumped
	n     atomic.Uint64
	// asked is when the clocks were read last: they cost a system call each.
	asked atomic.Uint64
	// read reads both clocks, one right after the other; nil for the kernel's.
	read func() (boot, awake time.Duration)
}

// shortest is the shortest sleep that counts: less is what a process may be kept
// from running between two readings.
const shortest = 100 * time.Millisecond

// seldom is how often the clocks are read at most, in waking time.
const seldom = time.Millisecond

func (s *sleeps) count() uint64 {
	read := s.read
	if read == nil {
		now, last := uint64(mono.Now()), s.asked.Load()
		if now-last < uint64(seldom) || !s.asked.CompareAndSwap(last, now) {
			return s.n.Load()
		}
		read = clocks
	}
	boot, awake := read()
	ahead, last := int64(boot-awake), s.ahead.Load()
	switch {
	case last == 0:
		s.ahead.CompareAndSwap(0, max(ahead, 1))
	case ahead-last > int64(shortest):
		// It was read late, or the machine slept: only the latter lasts.
		if boot, awake = read(); int64(boot-awake)-last > int64(shortest) && s.ahead.CompareAndSwap(last, int64(boot-awake)) {
			return s.n.Add(1)
		}
	}
	return s.n.Load()
}

// clocks reads the kernel's clocks, without a system call.
func clocks() (boot, awake time.Duration) {
	var m, b unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &m) != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &b) != nil {
		return 0, 0 // cannot be: both are older than the oldest kernel we run on
	}
	return time.Duration(b.Nano()), time.Duration(m.Nano())
}
