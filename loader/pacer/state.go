// SPDX-License-Identifier: Apache-2.0

package pacer

import (
	"net/netip"
	"time"
)

// State is what is known of the namespace. Immutable.
type State struct {
	// Ready says that at least one destination is paced.
	Ready bool
	// Horizon is the longest time ahead for which all paced devices hold a
	// packet. What asks for more is dropped by fq.
	Horizon time.Duration
	// Outside are the destinations that may leave by something else than a
	// paced device: addresses of the namespace itself, and what some route of
	// any table leads to another device. A prefix counts for all that is
	// within it, also where a longer route is paced. None lies within another,
	// and they are in order. Empty unless Ready.
	//
	// It holds for sockets that are not bound to a device; for those that are,
	// see Device.Paced. What netfilter leads elsewhere is beyond it.
	Outside []netip.Prefix
	// Devices are those that are up and that a route uses, or that have fq; in
	// order of their index, lo left out.
	Devices []Device
}

// Device is one network device of the namespace.
type Device struct {
	Name  string
	Index int
	// Qdisc is its root qdisc in words: "fq", "mq+fq", "noqueue".
	Qdisc string
	// FQ says that the device itself has fq, in each of its queues.
	FQ bool
	// Horizon is that of its fq, the shortest of several. 0 without fq.
	Horizon time.Duration
	// Attached is how our program is there: "tcx", "clsact" or "".
	Attached string
	// Ours says that the qdisc was installed by egressd.
	Ours bool
	// Lower are the devices by which the packets of one that has no queue
	// (VLAN, bond, team) leave.
	Lower []string
	// Routed says that a unicast route uses it, Default that a default route
	// does; by itself, or as one of Lower.
	Routed, Default bool
	// Paced says that all that leaves by it meets our program, then fq.
	Paced bool
	// Foreign are the programs and filters of others at its egress hook. They run
	// after ours, and could set another time.
	Foreign []string
	// Why says, unless Paced, what is missing.
	Why string
}

// Holds reports whether the fq of the device is of use: it holds packets for a
// second at least.
func (d Device) Holds() bool { return d.FQ && d.Horizon >= minHorizon }

// Ways to attach a program.
const (
	byTCX    = "tcx"
	byClsact = "clsact"
)

// minHorizon is the shortest horizon with which a device counts as paced: with
// less, hardly a turn could be waited for.
const minHorizon = time.Second

// maxOutside bounds State.Outside per address family. More prefixes become one
// that covers them all.
const maxOutside = 4096
