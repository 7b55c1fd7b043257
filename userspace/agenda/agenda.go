// SPDX-License-Identifier: Apache-2.0

// Package agenda keeps what is to happen in a simulation, in the order of
// virtual time.
package agenda

import "github.com/egressd/egressd/policy/ledger"

// Queue is a heap of events, four children to a parent: it is shallow, and
// the children lie beside each other. Events of one instant come out in the
// order in which they were pushed. The zero Queue is empty. It is not safe for
// concurrent use.
type Queue[E any] struct {
	heap []entry[E]
	seq  uint64
}

type entry[E any] struct {
	at    ledger.Time
	seq   uint64
	event E
}

func (e *entry[E]) before(o *entry[E]) bool {
	return e.at < o.at || e.at == o.at && e.seq < o.seq
}

// Next is the instant of the earliest event; false if there is none.
func (q *Queue[E]) Next() (at ledger.Time, ok bool) {
	if len(q.heap) == 0 {
		return 0, false
	}
	return q.heap[0].at, true
}

// Push puts an event in.
func (q *Queue[E]) Push(at ledger.Time, event E) {
	q.seq++
	e := entry[E]{at: at, seq: q.seq, event: event}
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

// Pop takes out the earliest event, with its instant. There must be one.
func (q *Queue[E]) Pop() (ledger.Time, E) {
	first := q.heap[0]
	last := len(q.heap) - 1
	e := q.heap[last]
	q.heap = q.heap[:last]
	if last == 0 {
		return first.at, first.event
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
	return first.at, first.event
}
