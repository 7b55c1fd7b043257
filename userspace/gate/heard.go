// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
)

// Heard reports an answer to a request that went to no gate of its own, as
// nobody saw it leave: only the answer was seen. lanes are those of the
// request, the most specific first; rotating is as in Waiter. A limit closes
// and slows the lane that Done would have chosen, unless it is closed already:
// then this may be late news of the same, and only extends. A success rewards
// none, since nobody knows when its request left.
func (g *Gate) Heard(lanes []*policy.Lane, rotating bool, v verdict.Verdict, rnd float64, now ledger.Time) {
	w := Waiter{Rotating: rotating, sent: now}
	w.n = copy(w.lanes[:], lanes)
	for i, l := range w.lanes[:w.n] {
		if l.Enforced() {
			w.enforced |= 1 << i
		}
	}
	i := w.judged()
	if tally := w.tally(); tally != nil && v.Kind != verdict.OK && v.Kind != verdict.Error {
		tally.CountLimited(v.Kind)
	}
	g.asked(&w, &v, now)
	switch v.Kind {
	case verdict.Limited:
		for k, l := range w.lanes[:w.n] {
			if !w.held(k) {
				l.Cell.Limited.Add(1)
			}
		}
		if i >= 0 {
			l := w.lanes[i]
			if now >= ledger.Time(l.Cell.OpenUntil.Load()) {
				w.grants[i].Epoch = l.Cell.Epoch.Load()
			}
			g.penalize(l, &w.grants[i], &v, rnd, now)
		}
	case verdict.Capacity:
		if i >= 0 {
			g.close(w.lanes[i], &w.grants[i], &v, rnd, now)
		}
	}
	g.learn(&w, &v, now)
}
