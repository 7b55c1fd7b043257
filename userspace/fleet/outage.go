// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"errors"
	"sync"
	"time"
)

const (
	// unheard is for how long no call worked before the log says so: on a network
	// that loses some packets, a call that fails now and then is no news.
	unheard = 250 * time.Millisecond
	// failures in a row that it takes besides: as for a lane.
	outageFailures = 3
)

// outage is what the log was told of a store that fails. Safe for concurrent use.
type outage struct {
	mu       sync.Mutex
	failures int // in a row
	since    time.Time
	told     bool
}

// failed counts a call that failed at an instant, and reports whether that is
// worth a line: once for each outage. A store that refuses does not do so by chance.
func (o *outage) failed(err error, at time.Time) (tell bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failures == 0 {
		o.since = at
	}
	o.failures++
	if o.told {
		return false
	}
	o.told = errors.Is(err, ErrRefused) || o.failures >= outageFailures && at.Sub(o.since) >= unheard
	return o.told
}

// worked ends an outage, and reports whether the log was told of it.
func (o *outage) worked() (tell bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	tell = o.told
	o.failures, o.told = 0, false
	return tell
}
