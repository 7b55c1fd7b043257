// SPDX-License-Identifier: Apache-2.0

package fleetsim

// event is something that happens at an instant of virtual time.
type event struct {
	gen  uint32 // of what it is about: one that is out of date means nothing
	call uint32 // place in run.calls
	host int32
	kind eventKind
	slot uint8 // of the host's calls
}

type eventKind uint8

const (
	wake      eventKind = iota // a host looks at its lane
	request                    // a request arrives at some host
	arrive                     // a call is at the store
	reply                      // an answer is at its host
	timeout                    // a call is given up
	published                  // what the store published is at a host
	lose                       // hosts lose the store
	find                       // … and have it again
	fail                       // the store fails
	recovery                   // … and is back
	snapshot                   // what a replica knows
	refuse                     // the origin refuses a request of some host
	finish
)
