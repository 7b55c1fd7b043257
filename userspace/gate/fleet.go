// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
)

// Late reports whether w, which was dispatched, was not written for so long that
// it must not be any more: it is to be aborted, with a refund, and to enter
// again. Hosts of a fleet rely on each other's requests having gone by then. A
// connection is written when it is dialled.
func (g *Gate) Late(w *Waiter, now ledger.Time) bool {
	for i, l := range w.lanes[:w.n] {
		if w.held(i) && l.Late(&w.grants[i], now) && l.Budget().Unit == policy.Requests {
			return true
		}
	}
	return false
}

// Follow has a lane follow what its fleet has heard, and looks at its queue: to
// be called after every answer of the store and every word from it.
func (g *Gate) Follow(l *policy.Lane) {
	now := g.cfg.Now()
	before := ledger.Time(l.Cell.OpenUntil.Load())
	until, slower := l.Follow(now)
	if until == 0 {
		if slower {
			g.review(l) // which looks at the queue, too
		} else {
			g.wake(l)
		}
		return
	}
	if before <= now || until.Sub(before) >= time.Second { // else it is what this host itself was told, by the store's clock
		l.NoteClosed(policy.Closure{At: now, Delay: until.Sub(now), Fleet: true})
	}
	g.told(l, slower, before, now)
	g.review(l)
}
