// SPDX-License-Identifier: Apache-2.0

package policy

import "time"

// Proxy is a forward proxy as an exit. What an origin sees is told by the port
// and by the user name, as far as the provider tells exits apart by them.
type Proxy struct {
	Host        string // name, or address in canonical text
	First, Last uint16 // its ports
	PerPort     bool   // each port is an exit of its own
	// Lifetime is how long a session keeps its address: after it the lane
	// forgets a cooldown, since another address takes over. 0: for good.
	Lifetime time.Duration
	// Rotating says that each connection has an address of its own: a limit
	// touches no lane of the exit, but ends the connection.
	Rotating bool
}
