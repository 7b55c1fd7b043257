// SPDX-License-Identifier: Apache-2.0

// Package lab is a small network for tests: namespaces joined by pairs of
// devices, with or without the qdisc fq, servers that write down when connections
// come, and an ear at a device that counts who sends SYNs.
//
// Its tests are those that want a machine for themselves: the daemon at the
// root cgroup, with fq and modules loaded. They run in the machines of
// `make test-vm`. Outside of one, those that would change the host are skipped; inside,
// none is ever skipped.
//
// All of it needs root. Nothing here touches the namespace, the devices or the
// qdiscs of the caller.
package lab
