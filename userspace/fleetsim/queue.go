// SPDX-License-Identifier: Apache-2.0

package fleetsim

import "github.com/egressd/egressd/policy/ledger"

// event is something that happens at an instant of virtual time.
type event struct {
	at   ledger.Time
	seq  uint64 // events of one instant happen in the order of their making
	gen  uint32 // of what it is about: one that is out of date means nothing
	call uint32 // place in run.calls
	host int32
	kind eventKind
	slot uint8 // of the host's calls
}

type eventKind uint8

const (
	wake      eventKind = iota // a host looks at its lane
	request                    // a request arrives at some host
	arrive                     // a call is at the store
	reply                      // an answer is at its host
	timeout                    // a call is given up
	published                  // what the store published is at a host
	lose                       // hosts lose the store
	find                       // … and have it again
	fail                       // the store fails
	recovery                   // … and is back
	snapshot                   // what a replica knows
	refuse                     // the origin refuses a request of some host
	finish
)

// queue is a heap of events, four children to a parent. The zero queue is
// empty.
type queue struct {
	heap []event
	seq  uint64
}

func (e *event) before(o *event) bool {
	return e.at < o.at || e.at == o.at && e.seq < o.seq
}

func (q *queue) push(e event) {
	q.seq++
	e.seq = q.seq
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
