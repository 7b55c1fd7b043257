// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"slices"

	"github.com/egressd/egressd/policy"
)

// Join makes of w, which was dispatched for a tunnel, the waiter of the request
// that is sent through it first. lanes are those of the request, the most
// specific first: of each, w has a unit already, or more has, which was
// dispatched for the rest, and may be nil if there is none. What more has is
// reported by w from now on.
//
// Lanes that w was dispatched for and that the request does not fall into are
// left as if there had been no answer.
func (g *Gate) Join(w, more *Waiter, lanes []*policy.Lane) {
	if w.phase != dispatched {
		return
	}
	tunnel := *w
	w.n, w.enforced = 0, 0
	if more != nil {
		more.phase = idle
		w.entered, w.sent = more.entered, more.sent
	}
	var kept uint16 // bit i: of the i-th lane of the tunnel
	for _, l := range lanes {
		from := &tunnel
		i := slices.Index(tunnel.lanes[:tunnel.n], l)
		if i >= 0 {
			kept |= 1 << i
		} else if from = more; more != nil {
			i = slices.Index(more.lanes[:more.n], l)
		}
		if i < 0 {
			continue
		}
		w.lanes[w.n], w.grants[w.n] = l, from.grants[i]
		if from.held(i) {
			w.enforced |= 1 << w.n
		}
		w.n++
	}
	left := Waiter{phase: dispatched}
	for i, l := range tunnel.lanes[:tunnel.n] {
		if kept>>i&1 == 0 {
			left.lanes[left.n], left.grants[left.n] = l, tunnel.grants[i]
			left.n++
		}
	}
	g.endProbes(&left)
	g.release(&left)
}
