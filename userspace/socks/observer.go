// SPDX-License-Identifier: Apache-2.0

package socks

// Observer follows one handshake. The zero value is ready. It keeps no slice
// that it was given, and is not safe for concurrent use.
//
// Client and Server consume at most one message a call: n is its length, and
// the caller forwards those bytes before, or instead of, showing more. They
// return n == 0 and None if the message is not whole yet; the caller then
// calls again with the same bytes and more. Client also does so where a client
// has not waited for an answer without which its bytes make no sense: the
// caller holds them and calls again after the next event of Server.
//
// A client may go ahead of the proxy as far as its messages can be told
// apart, with the bytes for the destination too; those are Payload. A proxy
// may not, so bytes must be shown to Client before they are forwarded.
//
// An error is final: every later call returns it. What to do with the
// connection then is up to the caller.
type Observer struct {
	user, host string
	err        *Error
	port       uint16
	version    byte
	command    Command
	code       byte
	outcome    Outcome
	client     clientState
	server     serverState
	offers     offers
	authed     bool // an Auth was seen
	opaque     bool // nothing can be understood any more
}

// clientState is what the client sends next.
type clientState uint8

const (
	sendsFirst   clientState = iota // a greeting, or a SOCKS4 request
	sendsNext                       // SOCKS5: Auth or Request, by the method
	sendsRequest                    // SOCKS5, after Auth
	sendsPayload
)

// serverState is what the proxy sends next.
type serverState uint8

const (
	sendsMethod serverState = iota
	sendsAuthResult
	sendsReply
	sendsSecondReply // BIND
	sendsTunnel      // granted; from here on nothing is read
	sendsNothing     // failed
)

// Methods of RFC 1928 §3.
const (
	methodNone         = 0
	methodUserPassword = 2
	methodNotAny       = 0xff
)

// offers are the methods that a client offers.
type offers uint8

const (
	offersNone offers = 1 << iota
	offersUserPassword
	offersOther
)

// Version is the protocol: 4, which includes 4a, or 5; 0 before the first
// message.
func (o *Observer) Version() int { return int(o.version) }

// User is the user name of Auth, or the user id of a SOCKS4 Request: up to 255
// bytes as the client sent them, in no particular encoding. Empty if none was
// told.
func (o *Observer) User() string { return o.user }

// Command is what the Request asks for.
func (o *Observer) Command() Command { return o.command }

// Host is the destination of the Request: a host name as sniff.CanonicalHost
// spells it, or the text of an address. For Associate it is where the client's
// datagrams will come from, mostly unspecified.
func (o *Observer) Host() string { return o.host }

// Port is the port of the destination of the Request.
func (o *Observer) Port() uint16 { return o.port }

// Outcome is what the last reply means, or the method or the authentication
// that failed.
func (o *Observer) Outcome() Outcome { return o.outcome }

// Code is the byte of the proxy that Outcome was read from.
func (o *Observer) Code() byte { return o.code }

// rest is the event for bytes after the handshake.
func (o *Observer) rest() Event {
	if o.opaque || o.server == sendsNothing || !o.command.tunnels() {
		return Opaque
	}
	return Payload
}

// fail makes err final.
func (o *Observer) fail(err *Error) (int, Event, error) {
	o.err = err
	return 0, None, err
}
