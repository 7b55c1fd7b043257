// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"math"
	"time"
)

// Scheme is how hosts come by units.
type Scheme uint8

// The schemes.
const (
	// Unbounded: the lane has no rate; hosts share its cooldowns only.
	Unbounded Scheme = iota
	// Slots: each request has a slot of its own, booked when it is there to
	// send. Exact pacing over all hosts, one call each.
	Slots
	// Leases: batches, booked ahead of the requests that will spend them.
	Leases
	// Share: a fixed part of the rate for each host, without the store.
	Share
)

var schemeNames = [...]string{Unbounded: "unbounded", Slots: "slots", Leases: "leases", Share: "share"}

// String is the name of the scheme.
func (s Scheme) String() string {
	if int(s) < len(schemeNames) {
		return schemeNames[s]
	}
	return fmt.Sprintf("scheme %d", uint8(s))
}

const (
	// slotsAbove is the interval above which every request can afford a call of
	// its own: below 10/s.
	slotsAbove = 100 * time.Millisecond
	// hold is for how long the units last that all hosts may hold together.
	hold = 100 * time.Millisecond
	// reach is the part of Term for which a host asks ahead of its requests. Of
	// those that come in 0.7 s at random, at pace a second in the mean, there are
	// pace·reach - 1 or more in 97 of 100 cases, so that few units expire unused.
	reach = 400 * time.Millisecond
	// lead is by how much earlier than calls take a host asks for the next batch.
	lead = 2 * time.Millisecond
	// Term is for how long units of a lease are good.
	Term = time.Second
	// Guard is the part of Term that is not used: a process may be kept from
	// running for so long between Take and the write to the socket.
	Guard = 250 * time.Millisecond
	// slotsHeld is how many slots a host may hold: one that is due, and one
	// that is booked meanwhile.
	slotsHeld = 2
	// MaxTimeout bounds a call.
	MaxTimeout = 100 * time.Millisecond
)

// SchemeOf is the scheme for a limit. It depends on nothing else, so that all
// hosts choose alike.
func SchemeOf(l Limit) Scheme {
	switch {
	case l.Interval <= 0:
		return Unbounded
	case l.Interval > slotsAbove:
		return Slots
	default:
		return Leases
	}
}

// Rate is the limit in units per second.
func (l Limit) Rate() float64 {
	if l.Interval <= 0 {
		return math.Inf(1)
	}
	return float64(time.Second) / float64(l.Interval)
}

// Batch is how many units of the limit a host may hold at once, used or not,
// asked for or granted, where so many hosts are alive. It is what the rate
// gives in a tenth of a second, or the burst if that is more, divided by the
// hosts; and no more than can be spent before they expire.
func Batch(l Limit, hosts int) uint64 {
	switch SchemeOf(l) {
	case Slots:
		return slotsHeld
	case Leases:
		all := max(l.Rate()*hold.Seconds(), float64(l.Burst))
		each := math.Ceil(all / float64(max(hosts, 1)))
		return uint64(max(1, min(each, l.Rate()*(Term-Guard).Seconds())))
	default:
		return 0
	}
}

// Bound is the number of units by which the sends of all hosts together can
// exceed burst + rate·τ in some window of length τ, however long the window.
// Sends are counted where the hosts write them. The bound holds for any loss,
// delay and reordering of calls and answers, for hosts that stop or stall for
// no longer than Guard (half an interval with slots), and for clocks of any
// skew; it needs that clocks of hosts run at the same speed, to within what a
// term is long. What the store's own trouble adds is Failover and Apart. For
// leases, term is the life of a unit: Term.
//
// Proof. The slots that the store gave out in its life, in the order of
// granting, are those of GCRA: unit i has a theoretical arrival time t(i) with
// t(i+1) ≥ t(i) + T, and a slot s(i) with s(i) ≤ t(i) ≤ s(i) + (B-1)·T. If the
// units i…i+n-1 have slots in [a, b], then a ≤ s(i) ≤ t(i) and
// t(i+n-1) ≤ b + (B-1)·T, so (n-1)·T ≤ b-a + (B-1)·T:
// n ≤ B + R·(b-a). (1)
// Taking units out of the sequence, which is what happens to those that are
// lost, expire, or are given back at its tail, leaves (1) true.
//
// With a life L, a unit is sent in [s, s+L], since the host counts the slot from
// the receipt of the answer and the end from the sending of the call, one
// after and one before the store's own "now". All sends in [a, b] have slots
// in [a-L, b], so by (1) they are no more than B + R·(b-a) + R·L: the excess
// is R·L. For slots L is the timeout of a call and one interval, hence
// 1 + R·timeout; for leases it is term.
//
// With K = Batch(limit, hosts) as the most that a host holds, all hosts hold no
// more than hosts·K units whose slots are before a. When a host asks, and for
// how many up to K, does not matter to that. What else is sent in [a, b]
// has its slot there, so the excess is hosts·K at most. For leases the smaller
// of the two counts. hosts·K needs that hosts agree on their number: for two
// heartbeats and a Term after it grew it may be a part more, though never more
// than R·L. A host that was not told the number for two heartbeats asks for one
// unit first.
//
// For shares, each of hosts sends at most 1 + τ/(hosts·T): the excess is
// hosts - B, which is below hosts. It needs that there are no more hosts than
// the shares were made for.
func Bound(l Limit, s Scheme, hosts int, term time.Duration) float64 {
	if l.Interval <= 0 {
		return 0
	}
	hosts = max(hosts, 1)
	switch s {
	case Slots:
		return 1 + l.Rate()*MaxTimeout.Seconds()
	case Leases:
		return min(float64(hosts)*float64(Batch(l, hosts)), l.Rate()*term.Seconds())
	case Share:
		return float64(hosts)
	default:
		return 0
	}
}

// Failover is the number of units that one restart of the store, or a replica
// that takes over, adds to Bound, whatever it forgot. The store starts with an
// empty bucket, so that a new sequence of slots begins, which conforms to rate
// alone; and the slots of the old one that are still ahead are given up by each
// host with the first answer that it gets, after a heartbeat at most. Those of
// hosts that hear nothing end after Ahead.
func Failover(l Limit, hosts int) float64 {
	if l.Interval <= 0 {
		return 0
	}
	return l.Rate()*min(beat(hosts)+breakerFailures*(MaxTimeout+2*retryDelay), Ahead).Seconds() + 1
}

// Outage is the number of units that one loss of the store adds to Bound under
// LossShare, from the first host that loses it to the last that is back and
// settled, where all lose it. Where some keep it, Apart comes to it.
//
// Proof. With the first failure, hosts hold no more than hosts·K units, slots
// that are still ahead included. From then on until it has settled, each host
// takes from one GCRA of its own, with the interval hosts·T: units of its share,
// and later those that it asks the store for, of which no more than K go at once.
// That is 1 + K + τ/(hosts·T) for each, rate·τ for all and hosts·(1 + K) beside.
// Meanwhile the store's bucket may have filled: a burst more.
func Outage(l Limit, hosts int) float64 {
	if l.Interval <= 0 {
		return 0
	}
	n := float64(max(hosts, 1))
	return n*(1+2*float64(Batch(l, hosts))) + float64(l.Burst)
}

// Apart is the rate, in units per second, that comes on top while cut of hosts
// live on shares and the others have the store to themselves: a store cannot
// tell hosts that it does not hear from those that are gone. It lasts as long as
// the partition, and no longer than the budget's Grace. Hosts that had no use for
// the lane, and so did not notice a loss of less than beatMost, count as those
// that have the store, until the others are back.
func Apart(l Limit, cut, hosts int) float64 {
	if l.Interval <= 0 || hosts <= 0 {
		return 0
	}
	return l.Rate() * float64(cut) / float64(hosts)
}

const (
	beatEvery = time.Second     // the least between two heartbeats
	beatMost  = 5 * time.Second // and the most: with thousands of hosts, or nothing that could go
	perHost   = time.Millisecond
)

// beat is how often a host calls at least while requests may go by what it knows
// of the lane: each second, or as often as makes a thousand calls per second of
// all hosts. A host that holds no unit, has nothing waiting and knows of no
// slow-down calls every beatMost, to stay alive: before it sends anything it has
// to ask, and the answer tells all that a heartbeat would have told.
func beat(hosts int) time.Duration {
	return min(max(beatEvery, time.Duration(hosts)*perHost), beatMost)
}

// spread is the time over which hosts spread what they all want to do at once.
func spread(hosts int) time.Duration {
	return min(time.Duration(max(hosts, 1))*perHost, beatMost)
}
