// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"

	"github.com/egressd/egressd/policy/ledger"
)

// Flow is one connection of a client, as the connect hook wrote it down.
type Flow struct {
	Cookie  uint64         // socket cookie of the client's TCP socket
	Netns   uint64         // cookie of the client's network namespace
	Dest    netip.AddrPort // what the client asked for; v4-mapped addresses unmapped
	Source  netip.Addr     // the address the client bound, or the zero Addr
	Ifindex uint32         // device the client's socket is bound to, or 0
	Mark    uint32         // SO_MARK of the client's socket
	UID     uint32         // in the initial user namespace
	PID     uint32         // thread group id in the initial pid namespace
	Cgroup  uint64         // cgroup v2 id
	Exit    string         // name of the exit, DirectExit if no other
	At      ledger.Time    // when connect() was called
	Command string         // comm of the client, at most 15 bytes
}

// Redirects is what a policy names in the kernel's terms: connections that
// must be looked at by the proxy. The rest stays untouched.
type Redirects struct {
	Ports    []PortRedirect
	Prefixes []PrefixRedirect
	Exits    []Exit // in file order
	// Endpoints are the proxies among them, by address, and the pools. They
	// are looked at whatever else is named.
	Endpoints []Endpoint
}

// Endpoint is an address at which the proxy of an exit listens, or where
// clients reach a pool.
type Endpoint struct {
	Addr netip.AddrPort
	Exit string // Identity of the exit, without port and session; name of the pool
}

// PortRedirect names a TCP port at any address. Loopback and link-local
// addresses count only if Local is set.
type PortRedirect struct {
	Port       uint16
	Local      bool
	FailClosed bool
	// Ask says that budgets name hosts at this port: Engine.Target has an
	// answer for each address, if its names are known. Set is what holds for
	// the others.
	Ask bool
	// Kernel says that one of these answers may leave connections to the kernel
	// plane.
	Kernel bool
	Set    PlaneSet
}

// PrefixRedirect names TCP ports of an address range, loopback included.
type PrefixRedirect struct {
	Prefix     netip.Prefix
	Port       uint16 // one port; several ports are several entries
	FailClosed bool
	Set        PlaneSet // of this range and all that are around it
}
