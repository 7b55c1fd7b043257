// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"math"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
)

// asked tells whoever listens to single requests of an answer that is no
// success. Lanes that only measure have no other event of it.
func (g *Gate) asked(w *Waiter, v *verdict.Verdict, now ledger.Time) {
	if w.n == 0 || v.Kind == verdict.OK || v.Kind == verdict.Error || g.cfg.Events == nil || !g.cfg.Events.Dispatches() {
		return
	}
	g.cfg.Events.Emit(policy.Event{
		At: now, Kind: policy.EventAsked, Lane: w.lanes[0].ID(), Wait: v.Delay, Detail: v.Kind.String(),
		Process: w.Client.Process, Job: w.Job, Told: told(&v.Quota),
	})
}

// told is the limit of requests that an answer told, per second; 0 if it told
// none, or not for how long a time it is.
func told(q *verdict.Quota) float64 {
	rate := q.PerSecond
	if q.HasLimit && q.Window > 0 && !q.Other && q.Limit > 0 {
		if r := float64(q.Limit) / q.Window.Seconds(); rate == 0 || r < rate {
			rate = r
		}
	}
	if math.IsInf(rate, 0) || math.IsNaN(rate) {
		return 0
	}
	return rate
}
