// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"container/heap"

	"github.com/egressd/egressd/policy/ledger"
)

// timer is one timeout of a connection, with the coarseness of a loop's tick.
type timer struct {
	at    ledger.Time
	index int // in the heap, 1-based; 0 = not running
	fire  func()
}

// timers is a loop's heap of running timers.
type timers struct{ h timerHeap }

func (t *timers) start(tm *timer, at ledger.Time) {
	tm.at = at
	if tm.index > 0 {
		heap.Fix(&t.h, tm.index-1)
		return
	}
	heap.Push(&t.h, tm)
}

func (t *timers) stop(tm *timer) {
	if tm.index > 0 {
		heap.Remove(&t.h, tm.index-1)
	}
}

func (t *timers) expire(now ledger.Time) {
	for len(t.h) > 0 && t.h[0].at <= now {
		heap.Pop(&t.h).(*timer).fire()
	}
}

type timerHeap []*timer

func (h timerHeap) Len() int           { return len(h) }
func (h timerHeap) Less(i, j int) bool { return h[i].at < h[j].at }
func (h timerHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i+1, j+1
}
func (h *timerHeap) Push(x any) {
	tm := x.(*timer)
	*h = append(*h, tm)
	tm.index = len(*h)
}
func (h *timerHeap) Pop() any {
	old := *h
	tm := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	tm.index = 0
	return tm
}
