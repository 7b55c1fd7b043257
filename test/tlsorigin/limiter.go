// SPDX-License-Identifier: Apache-2.0

package tlsorigin

import (
	"sync"
	"time"
)

// limiter lets a client's request pass if an interval has gone by since the last
// one that passed, as nginx does with limit_req and no burst. What is limited
// costs the client nothing.
type limiter struct {
	every time.Duration // 0: everything passes
	mu    sync.Mutex
	last  map[string]int64 // by client, ns
}

// allow decides on a request at now; if it is limited, wait is how long the
// client would have to wait.
func (l *limiter) allow(client string, now int64) (ok bool, wait time.Duration) {
	if l.every == 0 {
		return true, 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if last, known := l.last[client]; known {
		if wait = l.every - time.Duration(now-last); wait > 0 {
			return false, wait
		}
	}
	l.last[client] = now
	return true, 0
}
