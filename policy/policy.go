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

	"github.com/egressd/egressd/policy/verdict"
)

// Policy is a policy file, compiled. Immutable; safe for concurrent use.
type Policy struct {
	Scope   Scope
	Exits   []Exit
	Pools   []*Pool
	Budgets []*Budget
	Metrics Metrics
	Events  Events
	Admin   Admin
	// Dialects are those that the file adds to the built-in ones, by name.
	Dialects []*verdict.Dialect
	TLS      TLS
	QUIC     QUICMode
	Qdisc    QdiscMode
	// Fleet is with whom budgets are held together; nil: with nobody.
	Fleet *Fleet
}

// Scope says who is shaped.
type Scope struct {
	Cgroups []string // cgroup v2 paths from the root of the hierarchy; default ["/"]
	Exclude []string // paths whose processes, and those below, stay untouched
}

// Metrics is where the daemon answers Prometheus. Empty Listen: nowhere.
type Metrics struct {
	Listen string
	// WebConfigFile is the name of a file that tells of TLS and logins, as the
	// exporters of Prometheus have it; "" for neither.
	WebConfigFile string
}

// Events is where events are written down: EventsAuto, EventsOff, EventsStderr,
// EventsJournald or the absolute name of a file.
type Events struct{ Log string }

// Values of Events.Log that are no file.
const (
	EventsAuto     = "auto" // journald, where it takes what the daemon writes to stderr
	EventsOff      = "off"
	EventsStderr   = "stderr"
	EventsJournald = "journald"
)

// Admin is the daemon's control socket. Empty Socket: none.
type Admin struct{ Socket string }

// DirectExit is the name of the exit that nothing else names.
const DirectExit = "direct"

// Exit names an identity that the origin sees. Exactly one of Interface,
// Source, Mark, UIDs and Proxy is set. A flow's exit is the first in file order
// that fits, but what goes to a proxy has that proxy's.
type Exit struct {
	Name string
	// SameAs is the name of the exit whose lanes and counts this one shares,
	// as both are one identity; "" for none.
	SameAs    string
	Interface string     // what leaves by this device, or is bound to it
	Source    netip.Addr // what has this source address
	Mark      uint32     // a socket with this SO_MARK
	UIDs      UIDRange   // a socket of these users
	// Rebind redirects sockets that are bound to Interface (SO_BINDTODEVICE),
	// too: see bpf/connect.h. The client then no longer sees its own binding.
	Rebind bool
	Proxy  *Proxy
	Price  float64 // of 10^9 bytes through the exit, in whatever currency; 0: not known
}

// Identity is the name under which the exit's lanes and counts go.
func (e *Exit) Identity() string {
	if e.SameAs != "" {
		return e.SameAs
	}
	return e.Name
}

// UIDRange is a range of user ids, both ends included. The zero range is none:
// user 0 alone is written {0, 0} with Set.
type UIDRange struct {
	First, Last uint32
	Set         bool
}

// Per is the set of properties that tell lanes of one budget apart.
type Per uint8

// The properties of Per. PerDestination is the host, or the address where a
// connection has no host; PerSite the domain that was registered for it, which
// excludes PerDestination. PerSession is what the user name at a forward proxy
// tells, PerPath the path of a request without its query. Of two sets the
// greater is the more specific.
const (
	PerExit Per = 1 << iota
	PerSite
	PerDestination
	PerSession
	PerPath
)

// MaxShapes is the largest number of different Per among the budgets of a
// policy: so many lanes a request falls into at most, and once more as many
// for the connection that it opens.
const MaxShapes = 6

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

// Budget is one rule: which traffic, and how much of it. What limits it all
// hold together: rate, window and concurrency.
type Budget struct {
	Name  string
	Match Match
	Per   Per
	// Rate is the budget's rate; zero is none. Where Auto is set, it is only
	// where a lane begins: it learns the rest from the origin.
	Rate        Rate
	Auto        bool
	Burst       float64 // units that may go at once after idle; > 0, below 1 as 1
	Window      Window  // zero: none
	Concurrency int     // requests, or connections, under way at once; 0: any number
	Cost        Cost
	Unit        Unit
	Queue       Queue
	OnFull      OnFull
	Cooldown    Cooldown
	Recovery    Recovery
	Mode        Mode
	// FailClosed refuses in the kernel what would otherwise go untouched
	// because the daemon cannot take it.
	FailClosed bool
	// HeadersOff believes the Retry-After family alone: fields of rate limits
	// (RateLimit, X-RateLimit-Remaining and the like) do nothing.
	HeadersOff bool
	// Dialect, if not nil, is the only one whose fields are believed besides
	// the Retry-After family.
	Dialect *verdict.Dialect
	Retry   Retry
	// TLS is how far connections under the budget are looked into.
	TLS TLSMode
	// Fleet is with whom the budget's lanes are held together; nil: this host has
	// them for itself.
	Fleet *Fleet
	// Flights paces what is not seen into by flights (see sniff.Flights), not
	// by connections alone. Only where Unit is Requests.
	Flights bool
}

// WindowKind is how a window counts.
type WindowKind uint8

// Kinds of windows.
const (
	Sliding WindowKind = iota // in every stretch of time as long as the window
	Fixed                     // from one boundary of the origin's own window to the next
)

// Window is a number of units in a time. The zero Window is no limit.
type Window struct {
	Limit uint64        // units
	Per   time.Duration // length
	Kind  WindowKind
}

// Cost is what a request takes from rate and window.
type Cost struct {
	Units uint64 // at dispatch; 0 stands for 1
	// Header, if not empty, is a response field, in lower case, that tells
	// what the request did cost: the difference is settled when it arrives.
	Header string
}

// AtDispatch is the number of units that a request takes when it goes.
func (c Cost) AtDispatch() uint64 { return max(c.Units, 1) }

// FairBy is whom a lane's queue treats as one client.
type FairBy uint8

// Clients of a queue.
const (
	FairNone    FairBy = iota // all are one: first come, first served
	FairProcess               // each process
	FairCgroup                // each cgroup: a service, a container
	FairUID                   // each user
)

// Client says who a request came from, as far as queues tell clients apart.
type Client struct {
	Process uint32 // thread group id in the initial pid namespace
	UID     uint32
	Cgroup  uint64 // cgroup v2 id
}

// Key is the client under a rule of fairness. All are 0 under FairNone.
func (c Client) Key(by FairBy) uint64 {
	switch by {
	case FairProcess:
		return uint64(c.Process)
	case FairCgroup:
		return c.Cgroup
	case FairUID:
		return uint64(c.UID)
	}
	return 0
}

// Retry says whether the proxy itself repeats requests that an origin refused.
// Only requests that may be repeated are: of the idempotent methods (RFC 9110
// section 9.2.2), or with an Idempotency-Key.
type Retry struct {
	Absorb   bool
	Attempts int   // in all, the first included; >= 2 where Absorb is set
	MaxBody  int64 // bytes of a request body that is kept for repeating
	Statuses []int // that are repeated, besides the limits of Cooldown
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
	FairBy  FairBy        // whose turn it is, of those who wait
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
