// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"slices"

	"github.com/egressd/egressd/policy/ledger"
)

// timers is a heap of queues by deadline. Every queue with a member is in it,
// since no one waits forever.
type timers struct{ heap []*queue }

// all are the queues that have members.
func (t *timers) all() []*queue { return slices.Clone(t.heap) }

// first is the earliest deadline, or never.
func (t *timers) first() ledger.Time {
	if len(t.heap) == 0 {
		return never
	}
	return t.heap[0].at
}

// set gives q a deadline; never takes it out.
func (t *timers) set(q *queue, at ledger.Time) {
	switch {
	case q.slot >= 0 && q.at == at:
		return
	case at == never:
		if q.slot >= 0 {
			t.remove(q)
		}
		return
	case q.slot < 0:
		q.slot = len(t.heap)
		t.heap = append(t.heap, q)
	}
	q.at = at
	t.fix(q.slot)
}

func (t *timers) pop() *queue {
	q := t.heap[0]
	t.remove(q)
	return q
}

func (t *timers) remove(q *queue) {
	i, end := q.slot, len(t.heap)-1
	t.swap(i, end)
	t.heap[end] = nil
	t.heap = t.heap[:end]
	q.slot = -1
	if i < end {
		t.fix(i)
	}
}

func (t *timers) swap(i, k int) {
	h := t.heap
	h[i], h[k] = h[k], h[i]
	h[i].slot, h[k].slot = i, k
}

func (t *timers) fix(i int) {
	for i > 0 {
		up := (i - 1) / 2
		if t.heap[up].at <= t.heap[i].at {
			break
		}
		t.swap(i, up)
		i = up
	}
	for {
		down := 2*i + 1
		if down >= len(t.heap) {
			return
		}
		if down+1 < len(t.heap) && t.heap[down+1].at < t.heap[down].at {
			down++
		}
		if t.heap[i].at <= t.heap[down].at {
			return
		}
		t.swap(i, down)
		i = down
	}
}
