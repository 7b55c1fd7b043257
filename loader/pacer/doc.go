// SPDX-License-Identifier: Apache-2.0

// Package pacer knows which destinations of a network namespace leave through
// the queueing discipline fq, and keeps a program in front of it.
//
// fq sends a packet at the time that the packet carries (earliest departure
// time, EDT). A program at the egress hook of the device writes that time into
// the SYN of a connection that has to wait for its turn. No other qdisc looks at
// it (fq_codel, pfifo_fast and noqueue send at once), and so nothing may be
// promised to a connection that leaves by another device: State says which
// destinations are sure to leave by fq, and Outside which are not.
//
// The program is attached by tcx (Linux 6.6), whose links end with the process,
// or as a filter of clsact, which outlives it: the next Open removes what is
// left, and the program must do nothing by itself once the daemon's heartbeat is
// old. It comes before the programs of others, and must return TC_ACT_UNSPEC
// (TCX_NEXT), so that they run as if it were not there.
//
// Qdiscs are changed only where Config.Install asks for it, only those that the
// kernel chose by itself (handle 0), and Close lets the kernel choose again.
// After a kill -9 they stay, harmless, until the next Open or Clean knows them by
// their handle.
//
// One Pacer per network namespace: a second one would take the filters of the
// first for leftovers.
package pacer
