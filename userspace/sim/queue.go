// SPDX-License-Identifier: Apache-2.0

package sim

// event is something that happens to a worker.
type event struct {
	worker int32
	kind   eventKind
}

type eventKind uint8

const (
	wake    eventKind = iota // it begins, or tries again
	pass                     // its own process lets it go
	decided                  // the gate has decided on it
	arrive                   // its request is at the origin
	reply                    // its answer is here
)
