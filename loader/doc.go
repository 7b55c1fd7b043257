// SPDX-License-Identifier: Apache-2.0

// Package loader is egressd's hand in the kernel: it loads the programs of
// bpf/, attaches them to cgroups, tells them what policy names, hands the flow
// records to the proxy, and reads the counters.
//
// A Kernel owns everything it opened. Its links are never pinned: when the
// process dies, however it dies, the kernel detaches the programs and every
// connection is native again. The memory of Cells belongs to the Kernel as
// well; touching it after Close faults.
package loader
