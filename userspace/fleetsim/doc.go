// SPDX-License-Identifier: Apache-2.0

// Package fleetsim plays a fleet of hosts that share one budget through a
// store, on virtual time. What decides on each host is fleet.Lane, the code of
// the daemon; the store is fleet/model, with the semantics of the scripts. The
// network between them delays and loses messages, parts of it fail, the store
// restarts or a stale replica takes over, and each host has a clock of its own.
//
// A simulation is one goroutine that takes one event after another from a
// queue. The same options give the same result.
package fleetsim
