// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
)

// Along dispatches w at once, whatever its lanes have: it leaves with a request
// that was granted, from which it cannot be parted. What the lanes did not have
// they are owed, so that what comes later waits for it. The request's fate is
// to be reported by Done or Abort.
//
// To wait for its own turn it must not: where the lane waits for the answer to
// the request that it leaves with, that turn would never come.
func (g *Gate) Along(w *Waiter, lanes []*policy.Lane, now ledger.Time) {
	w.n = copy(w.lanes[:], lanes)
	w.entered, w.outcome, w.enforced = now, Outcome{}, 0
	for i, l := range w.lanes[:w.n] {
		if l.Enforced() {
			w.enforced |= 1 << i
		}
		w.grants[i] = l.Owe(now)
	}
	g.dispatch(w, now)
	for _, l := range w.lanes[:w.n] {
		g.review(l)
	}
}
