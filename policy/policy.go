// SPDX-License-Identifier: Apache-2.0

// Package policy is the pure core of egressd: what a budget is, which lanes a
// request falls into, and what an answer does to them. It does no I/O and
// reads no clock; the instant is an argument everywhere.
//
// A *Policy is immutable once compiled. An Engine swaps one for another while
// lanes, which hold the state, live on.
package policy

import (
	"net/netip"
	"time"
)

// Policy is a policy file, compiled. Immutable; safe for concurrent use.
type Policy struct {
	Scope   Scope
	Exits   []Exit
	Budgets []*Budget
	Metrics Metrics
	Admin   Admin
}

// Scope says who is shaped.
type Scope struct {
	Cgroups []string // cgroup v2 paths from the root of the hierarchy; default ["/"]
	Exclude []string // paths whose processes, and those below, stay untouched
}

// Metrics is where the daemon answers Prometheus. Empty Listen: nowhere.
type Metrics struct{ Listen string }

// Admin is the daemon's control socket. Empty Socket: none.
type Admin struct{ Socket string }

// DirectExit is the name of the exit that nothing else names.
const DirectExit = "direct"

// Exit names an identity that the origin sees. Exactly one of Interface,
// Source and Mark is set. A flow's exit is the first in file order that fits.
type Exit struct {
	Name      string
	Interface string     // a socket bound to this device (SO_BINDTODEVICE)
	Source    netip.Addr // a socket bound to this source address
	Mark      uint32     // a socket with this SO_MARK
}

// Per is the set of properties that tell lanes of one budget apart.
type Per uint8

// The properties of Per. PerDestination is the host, or the address where a
// connection has no host.
const (
	PerDestination Per = 1 << iota
	PerExit
)

// Unit is what a budget counts.
type Unit uint8

// Units.
const (
	Requests    Unit = iota // each HTTP request; a connection whose inside is not seen counts as one
	Connections             // each connection, whatever it carries
)

// Mode says what a budget does with what it measures.
type Mode uint8

// Modes.
const (
	Enforce Mode = iota
	Shadow       // measure, never hold or refuse
	Off          // as if the budget were not in the file
)

// OnFull is what happens to a request that may not wait.
type OnFull uint8

// Answers to a request beyond max_wait or queue.max.
const (
	Refuse OnFull = iota // 429 with Retry-After and Proxy-Status; a reset for opaque connections
	Drop                 // a reset
)

// Rate is a number of units in a time. The zero Rate is no limit.
type Rate struct {
	Count float64       // > 0
	Every time.Duration // > 0
}

// Interval is the time between two units at an even pace, rounded up to whole
// nanoseconds so that the pace never exceeds the rate.
func (r Rate) Interval() time.Duration {
	if r.Count <= 0 {
		return 0
	}
	exact := float64(r.Every) / r.Count
	d := time.Duration(exact)
	if float64(d) < exact {
		d++
	}
	return d
}

// PerSecond is the rate in units per second.
func (r Rate) PerSecond() float64 {
	if r.Every <= 0 {
		return 0
	}
	return r.Count / r.Every.Seconds()
}

// Budget is one rule: which traffic, and how much of it.
type Budget struct {
	Name     string
	Match    Match
	Per      Per
	Rate     Rate
	Burst    float64 // units that may go at once after idle; >= 1
	Unit     Unit
	Queue    Queue
	OnFull   OnFull
	Cooldown Cooldown
	Recovery Recovery
	Mode     Mode
	// FailClosed refuses in the kernel what would otherwise go untouched
	// because the daemon cannot take it.
	FailClosed bool
	// HeadersOff believes the Retry-After family alone: fields of rate limits
	// (RateLimit, X-RateLimit-Remaining and the like) do nothing.
	HeadersOff bool
}

// Match selects traffic. Empty fields select everything.
type Match struct {
	Hosts   []HostPattern
	Ports   []uint16 // never empty after compilation: 80 and 443 unless the file says otherwise
	Path    string   // prefix of the path, from "/"
	Methods []string // upper case
	// PortsNamed says that the file wrote the ports in so many words, which
	// opts loopback and link-local destinations on them in.
	PortsNamed bool
}

// HostPattern is one entry of hosts. Exactly one field is set.
type HostPattern struct {
	Name   string       // exact host, lower case, or an address in canonical text
	Suffix string       // ".store.example.com" for "*.store.example.com"
	Any    bool         // "*"
	Prefix netip.Prefix // a CIDR
}

// Queue bounds the gate.
type Queue struct {
	Max     int           // requests waiting in one lane
	MaxWait time.Duration // predicted waits above it are refused at once
}

// Cooldown says how limits of an origin close a lane.
type Cooldown struct {
	Default  time.Duration // when the origin gave no usable delay
	Max      time.Duration // sanity maximum, at most 24 h
	Spread   float64       // share of the delay by which the reopening may be later, 0..1
	Statuses []int         // that are limits; default 429
}

// Recovery is how a lane slows on a limit and returns.
type Recovery struct {
	Factor float64 // rate after a penalty, 0 < f <= 1
	Step   float64 // growth per success, >= 1
}
