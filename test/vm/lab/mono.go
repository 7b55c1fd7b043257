// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"time"

	"golang.org/x/sys/unix"
)

// Mono is a time of CLOCK_MONOTONIC: what the ledger and the kernel's programs
// use, in every namespace the same.
type Mono time.Duration

// Now reads the clock.
func Now() Mono {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err) // the clock is there on every kernel
	}
	return Mono(ts.Nano())
}

// Sub is the time from u to m.
func (m Mono) Sub(u Mono) time.Duration { return time.Duration(m - u) }
