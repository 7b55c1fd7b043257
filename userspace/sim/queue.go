// SPDX-License-Identifier: Apache-2.0

package sim

import "github.com/egressd/egressd/policy/ledger"

// event is something that happens to a worker.
type event struct {
	at     ledger.Time
	seq    uint64 // events of one instant happen in the order of their making
	worker int32
	kind   eventKind
}

type eventKind uint8

const (
	wake    eventKind = iota // it begins, or tries again
	pass                     // its own process lets it go
	decided                  // the gate has decided on it
	arrive                   // its request is at the origin
	reply                    // its answer is here
)

func (e *event) before(o *event) bool {
	return e.at < o.at || e.at == o.at && e.seq < o.seq
}

// queue is a heap of events, four children to a parent: it is shallow, and
// the children lie beside each other. The zero queue is empty.
type queue struct {
	heap []event
	seq  uint64
}

func (q *queue) push(at ledger.Time, kind eventKind, worker int32) {
	q.seq++
	e := event{at: at, seq: q.seq, worker: worker, kind: kind}
	q.heap = append(q.heap, e)
	i := len(q.heap) - 1
	for i > 0 {
		up := (i - 1) / 4
		if q.heap[up].before(&e) {
			break
		}
		q.heap[i] = q.heap[up]
		i = up
	}
	q.heap[i] = e
}

// pop takes out the earliest event. There must be one.
func (q *queue) pop() event {
	first := q.heap[0]
	last := len(q.heap) - 1
	e := q.heap[last]
	q.heap = q.heap[:last]
	if last == 0 {
		return first
	}
	i := 0
	for {
		down := 4*i + 1
		if down >= last {
			break
		}
		least := down
		for k := down + 1; k < min(down+4, last); k++ {
			if q.heap[k].before(&q.heap[least]) {
				least = k
			}
		}
		if e.before(&q.heap[least]) {
			break
		}
		q.heap[i] = q.heap[least]
		i = least
	}
	q.heap[i] = e
	return first
}
