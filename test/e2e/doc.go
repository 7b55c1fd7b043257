// SPDX-License-Identifier: Apache-2.0

// Package e2e tests egressd as its users run it: the real binary, real kernel
// programs at a cgroup made for the test, unchanged clients, and real origins
// on the loopback or in namespaces made for the test. It has no code but
// tests. They need root.
//
// Every test makes what it needs and takes it away again. At the end the
// package looks for what is left: programs, cgroups, namespaces, pins and
// processes. Tests run with the binary that TestMain builds; with
// EGRESSD_RACE=1 it has the race detector in it.
package e2e
