// SPDX-License-Identifier: Apache-2.0

// Package heads reads the heads of requests and answers out of the plaintext of
// a connection, whether that is HTTP/1.x or HTTP/2: a copy of what TLS carries,
// or cleartext that is passed on as it came. It tells where a request begins,
// what it asks for, what was answered and where each message ends. It does no
// I/O, changes no byte, and how the stream was cut into pieces changes nothing
// that it tells.
//
// Client reads the client's direction and Server the server's. They know nothing
// of one another and may be used by different goroutines; each by one at a time.
//
// What cannot be followed beyond doubt is ErrDoubt, and stays: it is for the
// caller to go on without looking.
package heads

import (
	"errors"
	"fmt"

	"github.com/egressd/egressd/userspace/http1"
)

// ErrDoubt says that what follows cannot be followed. It is wrapped with the
// reason: an error of http1 or h2, or one of this package.
var ErrDoubt = errors.New("cannot be followed")

// Reasons of this package.
var (
	errNotHTTP  = errors.New("neither HTTP/1 nor HTTP/2")
	errSettings = errors.New("http/2 without settings at its start")
	errStream   = errors.New("http/2 stream with a wrong number")
	errLeading  = errors.New("empty lines without end")
	errPipeline = errors.New("too many requests without an answer")
)

func doubt(why error) error { return fmt.Errorf("%w: %w", ErrDoubt, why) }

// tableLimit is the size in bytes that the header table of a direction may be
// set to. The reader of one direction does not see what the other one allowed;
// browsers allow as much as this.
const tableLimit = 64 << 10

// EventKind says what happened at a place in the stream.
type EventKind uint8

// Kinds of events.
const (
	None         EventKind = iota
	Begin                  // a request begins here
	RequestHead            // the head of a request ended here
	ResponseHead           // the head of a response ended here
	End                    // the message ended here
	Reset                  // HTTP/2: the sender gave the stream up
	GoAway                 // HTTP/2: the sender takes no streams above Stream
)

// Event is what Next found. Request and Response are valid until the next call
// of the same Client or Server.
type Event struct {
	Kind     EventKind
	Stream   uint32 // 0 in HTTP/1
	Code     uint32 // of Reset and GoAway: RFC 9113 §7
	Request  *Request
	Response *Response
}

// Request is the head of a request. Its strings outlive it.
type Request struct {
	Stream uint32 // 0 in HTTP/1
	Method string
	// Path is without query; "/" for an absolute target without one, empty for
	// "OPTIONS *" and CONNECT.
	Path string
	// Host is the host and port that the request names, as sent: that of the
	// target, else :authority, else the Host field. It may be empty.
	Host string
	// Scheme is that of an absolute target or of :scheme.
	Scheme string
	// Protocol is that of an extended CONNECT (RFC 8441), or what an upgrade of
	// HTTP/1.1 offers.
	Protocol string
	// Kind is what the framing of the answer depends on, for Server.Expect.
	Kind http1.Kind
	// End says that the request has no body: it ended with its head, and no
	// event End follows.
	End bool
	// Partial says that fields of the head are not known, since the reader joined
	// late. Method, Path and Host are then empty where they are not known.
	Partial bool
	// Malformed says that a server has to refuse the request (RFC 9113 §8.1.1):
	// pseudo-header fields are missing, twice, unknown or too late, or two fields
	// name different hosts. HTTP/1 requests of that sort are ErrDoubt.
	Malformed bool
	// IdempotencyKey says that there is such a field and that it is not empty.
	IdempotencyKey bool

	list fieldList
}

// Fields calls yield for every field in order, until it returns false; not for
// pseudo-header fields nor for what is not known. Names are in lower case in
// HTTP/2 and as sent in HTTP/1. The slices are valid until the next call of the
// Client.
func (r *Request) Fields(yield func(name, value []byte) bool) { r.list.each(yield) }

// Response is the head of a response.
type Response struct {
	Stream uint32 // 0 in HTTP/1
	// Status is 0 if it is not known, since the reader joined late. It is then
	// none of those that HPACK has an index for: 200, 204, 206, 304, 400, 404 and
	// 500 are always known.
	Status int
	// Interim says that another head follows for the same request.
	Interim bool
	// Partial says that fields of the head are not known.
	Partial bool
	// End says that no body follows: the response ended with its head, and no
	// event End follows.
	End bool
	// Tunnel says that the connection is opaque from here on: 101, or 2xx to
	// CONNECT, both of HTTP/1.
	Tunnel bool
	// Close says that the connection takes no further request; HTTP/1 only.
	Close bool

	list fieldList
}

// Fields is Request.Fields for a response; the slices are valid until the next
// call of the Server.
func (r *Response) Fields(yield func(name, value []byte) bool) { r.list.each(yield) }
