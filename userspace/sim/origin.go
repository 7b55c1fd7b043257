// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"net/http"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

// answer is what the origin made of a request.
type answer struct {
	status     int           // 0: there was no connection
	retryAfter time.Duration // 0: no such field
	served     bool          // it holds a place among those under way
	quota      quota
	hasQuota   bool
	dialect    Headers // in which it is told
}

// origin is the other side: it limits, escalates and breaks down as its
// workload says.
type origin struct {
	*Origin
	exits []exitState // one where the limit is shared
	start ledger.Time // outages count from here
}

// exitState is what the origin knows of an exit.
type exitState struct {
	limiter *limiter
	asked   time.Duration // the last Retry-After
	round   ledger.Time   // until when the round lasts: who comes by then gets the same
	refused ledger.Time   // when the last refusal was
}

func newOrigin(o *Origin, exits int, start ledger.Time) *origin {
	if o.Limit.Shared {
		exits = 1
	}
	n := &origin{Origin: o, exits: make([]exitState, exits), start: start}
	for i := range n.exits {
		n.exits[i].limiter = newLimiter(&o.Limit)
	}
	return n
}

func (o *origin) exit(n int) *exitState { return &o.exits[n%len(o.exits)] }

// judge answers the request that arrives at now through an exit.
func (o *origin) judge(exit int, now ledger.Time) answer {
	since := now.Sub(o.start)
	for _, out := range o.Outages {
		if out.From <= since && since < out.To {
			return answer{status: out.Status, retryAfter: out.RetryAfter}
		}
	}
	e := o.exit(exit)
	a := answer{status: http.StatusOK}
	if e.limiter.take(now) {
		a.served = true
	} else {
		a.status = o.Refusal.Status
		a.retryAfter = e.refuse(&o.Refusal, now)
	}
	if o.Headers != HeadersNone {
		a.quota, a.hasQuota = e.limiter.quota(now)
		a.dialect = o.Headers
	}
	return a
}

// done ends a request that was answered.
func (o *origin) done(exit int, a answer) {
	if a.served {
		o.exit(exit).limiter.done()
	}
}

// refuse is the Retry-After of a refusal.
func (e *exitState) refuse(r *Refusal, now ledger.Time) time.Duration {
	switch {
	case e.asked == 0, r.Forget > 0 && now.Sub(e.refused) >= r.Forget:
		e.asked = r.RetryAfter
		e.round = now.Add(e.asked)
	case now >= e.round:
		e.asked = min(inSeconds(time.Duration(float64(e.asked)*r.Factor)), r.Max)
		e.round = now.Add(e.asked)
	}
	e.refused = now
	return e.asked
}

// inSeconds rounds up to whole seconds.
func inSeconds(d time.Duration) time.Duration {
	return (d + time.Second - 1) / time.Second * time.Second
}
