// SPDX-License-Identifier: Apache-2.0

package fleetsim

import (
	"math"
	"slices"
	"time"

	"github.com/egressd/egressd/policy/fleet"
	"github.com/egressd/egressd/policy/ledger"
)

// Result is what a simulation showed. Times are in milliseconds.
type Result struct {
	Hosts      int     `json:"hosts"`
	Rate       float64 `json:"rate_per_second"`
	Burst      uint64  `json:"burst"`
	Scheme     string  `json:"scheme"`
	OnLoss     string  `json:"on_loss"`
	Seed       uint64  `json:"seed"`
	DurationMS float64 `json:"duration_ms"`

	Sent uint64  `json:"sent"`
	Used float64 `json:"used"` // of rate·duration
	// Least and Most are the sends of the host with the fewest and the most.
	Least uint64 `json:"least_of_a_host"`
	Most  uint64 `json:"most_of_a_host"`
	// Excess is the most by which the sends of a window exceeded burst + rate·τ,
	// over windows of any length; below zero the burst was never used up.
	// Where hosts that lived on shares were allowed a rate of their own beside
	// the store's, it counts as allowed.
	Excess float64  `json:"excess"`
	Bound  *float64 `json:"bound"` // of Excess; null: there is none
	Within bool     `json:"within_bound"`
	// Windows are the busiest of some lengths.
	Windows []Window `json:"windows"`

	Calls     map[string]uint64 `json:"calls"`
	CallsEach float64           `json:"calls_per_request"`
	Failed    uint64            `json:"calls_failed"`
	Expired   uint64            `json:"units_expired"`
	Void      uint64            `json:"units_void"`
	Given     uint64            `json:"units_given_back"`
	Alone     uint64            `json:"sent_without_store"`

	Refused uint64 `json:"refused"` // requests that found a host's queue full
	WaitP50 ms     `json:"wait_p50_ms"`
	WaitP99 ms     `json:"wait_p99_ms"`

	Cooldown Cooldown `json:"cooldown"`
	Events   uint64   `json:"events"`
}

type ms = float64

// Window is the busiest window of one length.
type Window struct {
	LengthMS ms      `json:"length_ms"`
	Sent     int     `json:"sent"`
	Limit    float64 `json:"limit"` // burst + rate·τ
}

// Cooldown is what a refusal by the origin did, after the end of the duration.
type Cooldown struct {
	Half   ms     `json:"half_ms"` // until half of the hosts were closed
	All    ms     `json:"all_ms"`  // until the last of them was
	Missed int    `json:"missed"`  // hosts that did not hear of it, within the time it was looked at
	Sent   uint64 `json:"sent"`    // by hosts that had not heard yet
}

// tally counts what is sent.
type tally struct {
	rate  float64
	level float64 // of a bucket without bottom that drains at the rate
	last  ledger.Time
	extra float64 // rate that is allowed beside, now
	peak  float64
	sends []ledger.Time
}

// drain brings the bucket up to now.
func (t *tally) drain(now ledger.Time) {
	t.level = max(0, t.level-now.Sub(t.last).Seconds()*(t.rate+t.extra))
	t.last = now
}

// send counts one. The highest level that the bucket ever has is the maximum
// over all windows of what was sent less what the rate gives.
func (t *tally) send(now ledger.Time) {
	t.drain(now)
	t.level++
	t.peak = max(t.peak, t.level)
	t.sends = append(t.sends, now)
}

// allow changes the rate that is allowed beside.
func (t *tally) allow(extra float64, now ledger.Time) {
	t.drain(now)
	t.extra = extra
}

// busiest is the most in any window of length d, both ends included.
func (t *tally) busiest(d time.Duration) (most int) {
	first := 0
	for i, at := range t.sends {
		for t.sends[first].Add(d) < at {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}

// figures makes the result of what happened until the end of the duration.
func (r *run) figures() *Result {
	o := r.o
	res := &Result{
		Hosts: o.Hosts, Rate: 1 / o.Limit.Interval.Seconds(), Burst: o.Limit.Burst, Scheme: fleet.SchemeOf(o.Limit).String(),
		OnLoss: o.Loss.String(), Seed: o.Seed, DurationMS: millis(o.Duration),
		Sent: uint64(len(r.tally.sends)), Excess: r.tally.peak - float64(o.Limit.Burst),
		Calls: map[string]uint64{}, Refused: r.refused, Least: math.MaxUint64,
	}
	res.Used = float64(res.Sent) / (res.Rate * o.Duration.Seconds())
	for i := range r.hosts {
		h := &r.hosts[i]
		res.Least, res.Most = min(res.Least, h.sent), max(res.Most, h.sent)
		s := h.lane.Stats()
		res.Failed += s.Failures
		res.Expired += s.Expired
		res.Void += s.Void
		res.Given += s.Given
		res.Alone += s.Local
		for k, n := range s.Calls {
			if n > 0 {
				res.Calls[fleet.Kind(k).String()] += n
			}
		}
	}
	calls := uint64(0)
	for _, n := range res.Calls {
		calls += n
	}
	res.CallsEach = float64(calls) / float64(max(res.Sent, 1))
	if bound := r.bound(); !math.IsInf(bound, 1) {
		res.Bound = &bound
		res.Within = res.Excess <= bound+1e-9 // what rounding adds where the bound is met
	}
	for _, d := range []time.Duration{time.Second, 10 * time.Second, time.Minute} {
		if d <= o.Duration {
			w := Window{LengthMS: millis(d), Sent: r.tally.busiest(d), Limit: float64(o.Limit.Burst) + res.Rate*d.Seconds()}
			res.Windows = append(res.Windows, w)
		}
	}
	if len(r.waits) > 0 {
		slices.Sort(r.waits)
		res.WaitP50 = millis(time.Duration(r.waits[len(r.waits)/2]))
		res.WaitP99 = millis(time.Duration(r.waits[len(r.waits)*99/100]))
	}
	return res
}

// bound is what Excess may be in this run.
func (r *run) bound() float64 {
	o := r.o
	scheme := fleet.SchemeOf(o.Limit)
	b := fleet.Bound(o.Limit, scheme, o.Hosts, fleet.Term)
	if !o.Known && scheme == fleet.Leases {
		// Hosts that come find the others with batches for fewer.
		b = o.Limit.Rate() * fleet.Term.Seconds()
	}
	for _, f := range o.Faults {
		b += fleet.Failover(o.Limit, o.Hosts)
		if f.Memory == Kept && f.For == 0 {
			b -= fleet.Failover(o.Limit, o.Hosts) - 1
		}
	}
	if r.alone {
		switch o.Loss {
		case fleet.LossShare:
			b += float64(max(1, len(o.Cuts)+len(o.Faults))) * fleet.Outage(o.Limit, o.Hosts)
		case fleet.LossOpen:
			return math.Inf(1)
		}
	}
	return b
}

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
