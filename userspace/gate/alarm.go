// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

// Alarm wakes the gate. Set and Close are not called at the same time as each
// other or themselves.
type Alarm interface {
	// Set has fire called at the given instant or soon after, instead of what
	// was set before. It must not call fire itself.
	Set(at ledger.Time)
	// Close ends it. A call of fire that runs already may end later.
	Close() error
}

// timer is an Alarm by the timers of the runtime: up to a millisecond late,
// since the network poller sleeps for whole ones, but it runs everywhere, and
// by the time of a testing/synctest bubble.
type timer struct {
	now func() ledger.Time
	t   *time.Timer
}

func newTimer(now func() ledger.Time, fire func()) *timer {
	t := time.AfterFunc(time.Hour, fire)
	t.Stop()
	return &timer{now: now, t: t}
}

// Timer makes an Alarm for Config that uses the timers of the runtime.
func Timer(now func() ledger.Time, fire func()) (Alarm, error) {
	return newTimer(now, fire), nil
}

func (a *timer) Set(at ledger.Time) { a.t.Reset(max(at.Sub(a.now()), 0)) }

func (a *timer) Close() error {
	a.t.Stop()
	return nil
}
