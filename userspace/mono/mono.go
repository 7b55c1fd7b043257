// SPDX-License-Identifier: Apache-2.0

// Package mono tells the time of the ledger, CLOCK_MONOTONIC, by the clock of
// the Go runtime: the same counter, read without a system call.
package mono

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy/ledger"
)

// Clock tells ledger time. The zero Clock is not usable; copies are the same
// clock. Safe for concurrent use.
type Clock struct {
	base   time.Time
	offset ledger.Time
}

// NewClock compares the runtime's clock with CLOCK_MONOTONIC. A clock made in
// a bubble of testing/synctest runs by the bubble's time from then on.
//
// The two are read one after the other, so that the clock is behind
// CLOCK_MONOTONIC by what a reading takes, some ten nanoseconds, and never
// ahead: what waits for an instant of the ledger is not let go before it.
func NewClock() (Clock, error) {
	var best Clock
	var span time.Duration
	for i := range 16 { // the reading that was disturbed least counts
		var ts unix.Timespec
		before := time.Now()
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			return Clock{}, fmt.Errorf("read CLOCK_MONOTONIC: %w", err)
		}
		after := time.Now()
		if d := after.Sub(before); i == 0 || d < span {
			best, span = Clock{base: after, offset: ledger.Time(ts.Nano())}, d
		}
	}
	return best, nil
}

// process is the clock of Now. It is compared once, when the program starts.
var process = func() Clock {
	c, err := NewClock()
	if err != nil {
		panic(err) // cannot be: the clock is older than the oldest kernel we run on
	}
	return c
}()

// Now is the present instant.
func Now() ledger.Time { return process.Now() }

// At makes a clock that says t now. It is for tests that want round numbers.
func At(t ledger.Time) Clock { return Clock{base: time.Now(), offset: t} }

// Now is the present instant. It costs about as much as time.Now.
func (c Clock) Now() ledger.Time { return c.offset.Add(time.Since(c.base)) }

// Time is the wall-clock time of an instant, by the present relation of the
// two clocks: for people, not for decisions.
func (c Clock) Time(t ledger.Time) time.Time {
	now := time.Now()
	return now.Add(t.Sub(c.offset.Add(now.Sub(c.base))))
}
