// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"
	"fmt"

	"github.com/egressd/egressd/policy"
)

// Wait is Enter for goroutines: it blocks until w is granted, refused or ctx
// ends. Outcome.State is then Granted or Refused; after an error, which is
// that of ctx, nothing was taken and nothing is to be reported. Wait uses
// w.Notify.
func (g *Gate) Wait(ctx context.Context, w *Waiter, lanes []*policy.Lane) (Outcome, error) {
	if w.done == nil {
		w.done = make(chan struct{}, 1)
	}
	w.Notify = func() { w.done <- struct{}{} }
	out := g.Enter(w, lanes, g.cfg.Now())
	if out.State != Queued {
		return out, nil
	}
	select {
	case <-w.done:
		return w.outcome, nil
	case <-ctx.Done():
	}
	if !g.Leave(w) {
		<-w.done // the decision fell at the same time
		if w.outcome.State == Granted {
			g.Abort(w, true, g.cfg.Now())
		}
	}
	return Outcome{State: Refused}, fmt.Errorf("wait in the gate: %w", context.Cause(ctx))
}
