// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
)

// Follow has a lane follow what its fleet has heard, and looks at its queue: to
// be called after every answer of the store and every word from it.
func (g *Gate) Follow(l *policy.Lane) {
	now := g.cfg.Now()
	before := ledger.Time(l.Cell.OpenUntil.Load())
	until, slower := l.Follow(now)
	if until == 0 {
		g.wake(l)
		if slower {
			g.review(l)
		}
		return
	}
	l.NoteClosed(policy.Closure{At: now, Delay: until.Sub(now), Fleet: true})
	g.told(l, slower, before, now)
	g.review(l)
}
