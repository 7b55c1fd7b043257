// SPDX-License-Identifier: Apache-2.0

// Package sim plays workloads on virtual time: workers, what they do when an
// origin refuses them, and the origin, with egressd between them or without.
//
// What stands for egressd is not a model of it. It is the policy engine and
// the gate of the daemon, with the simulation's clock and alarm. The clients
// and the origin are models, and share no code with it.
//
// A simulation is one goroutine that takes one event after another from a
// queue: no time passes between events, and the same seed gives the same
// result.
package sim
