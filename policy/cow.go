// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"slices"
	"sync/atomic"
)

// fetch returns the value of k in a map that is copied on each write: reads
// take no lock, and keys are few and never leave. What goes beyond maxTallies
// shares the value of other.
func fetch[K comparable, V any](p *atomic.Pointer[map[K]*V], k, other K, create func(K) (K, *V)) *V {
	for {
		old := p.Load()
		if v := (*old)[k]; v != nil {
			return v
		}
		if len(*old) >= maxTallies {
			k = other
			if v := (*old)[k]; v != nil {
				return v
			}
		}
		next := maps.Clone(*old)
		kept, v := create(k) // k may be a view of a buffer
		next[kept] = v
		if p.CompareAndSwap(old, &next) {
			return v
		}
	}
}

func values[K comparable, V any](p *atomic.Pointer[map[K]*V]) []*V {
	return slices.Collect(maps.Values(*p.Load()))
}
