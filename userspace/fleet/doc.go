// SPDX-License-Identifier: Apache-2.0

// Package fleet is the store through which hosts hold budgets together: a Redis
// server, or one that speaks its protocol and runs its scripts. It implements
// the Store of policy/fleet.
//
// # What is kept
//
// For each lane a hash with one GCRA for all hosts, a set of hosts with the end
// of their heartbeats, the grants that may still be given back, and slots that
// were. The four keys share a hash tag, so that one call is one script in one
// slot of a cluster, and begin with the version of their schema. All of them
// expire: an idle lane after an hour, and no earlier than its bucket is full
// and its cooldown over.
//
// # Time
//
// The only clock is the server's, read once in each script, in whole
// microseconds; what hosts get and give are spans. The time of a lane never
// goes back. A step of the server's clock by d, forward, costs at most a full
// bucket or rate·d units, whichever is less; backward it holds grants up for less
// than a second.
//
// # What holds
//
// The slots of a lane conform to its limit: in any window of length τ lie at
// most burst + rate·τ of them, over all hosts, whatever calls were lost,
// repeated or late. A call that is repeated after a broken connection carries
// the same identity and gets the same grant; one that the server comes to run
// long after the host gave up takes nothing. What is given back goes to others
// only as if it had never been granted.
//
// # Loss of history
//
// After FLUSHALL, a restart without a snapshot, or a failover to a replica that
// lagged behind, a lane begins with an empty bucket. Each host remembers what
// it last saw of it, and tells with its first call after trouble; the latest
// that anyone saw holds. Where that shows that history was lost, nothing is
// granted for Config.Learn, so that the others come to tell. What can be
// exceeded by then are slots of hosts that did not call in that time; and of a
// lane that no calling host remembers, one unit.
package fleet
