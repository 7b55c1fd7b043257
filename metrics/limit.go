// SPDX-License-Identifier: Apache-2.0

package metrics

import "sync"

// Other is the value of a label whose own value is not shown.
const Other = "other"

// pair is the part of a label set that configuration, and so the world,
// decides.
type pair struct{ destination, exit string }

// limiter bounds the pairs that each family shows. A pair that came in time
// keeps its name for the life of the process, so that a counter never jumps
// from one series to another; a later one is shown as other.
type limiter struct {
	max int

	mu      sync.Mutex
	shown   map[string]map[pair]struct{} // by family
	dropped map[pair]struct{}            // at most maxRemembered
}

// maxRemembered bounds the memory of pairs that were not shown. Pairs beyond
// it are still shown as other, but no longer counted.
const maxRemembered = 1 << 16

func newLimiter(limit int) *limiter {
	return &limiter{
		max:     limit,
		shown:   make(map[string]map[pair]struct{}),
		dropped: make(map[pair]struct{}),
	}
}

// admit returns p, or the pair under which family shows it.
func (l *limiter) admit(family string, p pair) pair {
	l.mu.Lock()
	defer l.mu.Unlock()
	shown := l.shown[family]
	if shown == nil {
		shown = make(map[pair]struct{})
		l.shown[family] = shown
	}
	if _, ok := shown[p]; ok {
		return p
	}
	if len(shown) < l.max {
		shown[p] = struct{}{}
		return p
	}
	if _, ok := l.dropped[p]; !ok && len(l.dropped) < maxRemembered {
		l.dropped[p] = struct{}{}
	}
	return pair{Other, Other}
}

// count is the number of different pairs that some family did not show.
func (l *limiter) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.dropped)
}
