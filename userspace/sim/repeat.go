// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
	"github.com/egressd/egressd/userspace/gate"
)

// repeat takes a request that was refused to the gate again, where its budget
// absorbs that, by the rules of the proxy. If it reports false, the client gets
// the answer.
func (g *guard) repeat(h *held, a *answer, v verdict.Verdict, now ledger.Time) (out gate.Outcome, ok bool) {
	lane := policy.Target(h.lanes)
	if lane == nil || !repeatable(g.facts.Method) || v.Kind == verdict.Challenge {
		return out, false
	}
	rule := lane.Budget()
	if !rule.Retry.Absorb || h.attempts >= rule.Retry.Attempts ||
		!slices.Contains(rule.Cooldown.Statuses, a.status) && !slices.Contains(rule.Retry.Statuses, a.status) {
		return out, false
	}
	if !lane.Retries.Withdraw() {
		return out, false
	}
	h.drawn = lane
	g.choose(h, now)
	h.waiter.Since = h.since
	if h.inTime(now) {
		if out = g.gate.Enter(&h.waiter, h.lanes, now); out.State != gate.Refused {
			h.attempts++
			return out, true
		}
	}
	h.undraw()
	return out, false
}

// repeating says that the request in hand is one that egressd repeats.
func (h *held) repeating() bool { return h.attempts > 1 }

// undraw gives back what was taken for an attempt that is not made.
func (h *held) undraw() {
	if h.drawn != nil {
		h.drawn.Retries.Return()
		h.drawn = nil
	}
}

// repeatable reports whether requests of a method may be sent twice
// (RFC 9110 section 9.2.2).
func repeatable(method string) bool {
	return method != http.MethodPost && method != http.MethodPatch
}

// inTime reports whether the gate would let the request go soon enough, as it
// now looks.
func (h *held) inTime(now ledger.Time) bool {
	after, most := time.Duration(0), time.Duration(math.MaxInt64)
	for _, l := range h.lanes {
		if l.Enforced() {
			after = max(after, l.After(now, uint64(l.Waiting.Load())))
			most = min(most, l.Budget().Queue.MaxWait)
		}
	}
	return now.Sub(h.since)+after <= most
}
