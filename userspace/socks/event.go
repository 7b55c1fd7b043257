// SPDX-License-Identifier: Apache-2.0

package socks

// Event is what the bytes just consumed were.
type Event uint8

// Events. All but None come with n > 0.
const (
	None Event = iota // nothing consumed: more bytes are needed, or the proxy's answer

	// Of the client.
	Greeting // SOCKS5: the methods that the client offers
	Auth     // SOCKS5: user name and password; User is known
	Request  // Command, Host and Port are known; in SOCKS4 User too

	// Of the proxy.
	MethodChosen // SOCKS5: no authentication, or user name and password
	AuthResult   // SOCKS5: the password was accepted
	Reply        // BIND: the proxy listens; a second reply tells of the peer
	Done         // the request is granted
	Failed       // the request is refused, or no method or password was accepted: see Outcome

	// Of either.
	Payload // bytes of the tunnel; of the client also those sent before the reply
	Opaque  // bytes that cannot be or need not be understood, and all after them
)

// String returns the name of e.
func (e Event) String() string {
	switch e {
	case Greeting:
		return "greeting"
	case Auth:
		return "auth"
	case Request:
		return "request"
	case MethodChosen:
		return "method chosen"
	case AuthResult:
		return "auth result"
	case Reply:
		return "reply"
	case Done:
		return "done"
	case Failed:
		return "failed"
	case Payload:
		return "payload"
	case Opaque:
		return "opaque"
	}
	return "none"
}

// Command is what a client asks for, as it is on the wire. Values without a
// name here are requests as well: whether to serve them is up to the proxy.
type Command uint8

// Commands. SOCKS4 knows the first two.
const (
	Connect   Command = 1
	Bind      Command = 2
	Associate Command = 3 // UDP: the connection stays open, its datagrams go elsewhere
)

// String returns the name of c.
func (c Command) String() string {
	switch c {
	case Connect:
		return "connect"
	case Bind:
		return "bind"
	case Associate:
		return "udp associate"
	}
	return "unknown"
}

// tunnels reports whether the connection carries bytes of a destination once
// the request is granted.
func (c Command) tunnels() bool { return c == Connect || c == Bind }
