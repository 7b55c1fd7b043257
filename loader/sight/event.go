// SPDX-License-Identifier: Apache-2.0

package sight

// Kind says what an Event tells.
type Kind uint8

// The kinds of events.
const (
	// Data is one call that read or wrote plaintext.
	Data Kind = iota + 1
	// Hello is a ClientHello that a connection wrote: from here on its Random
	// is known, and all that was known of an earlier connection at the same
	// Conn is void.
	Hello
	// Close is the end of a connection: its Conn may come again for another.
	Close
)

// Dir is the direction of a call, as the process sees it.
type Dir uint8

// The directions.
const (
	// Read is plaintext of the peer.
	Read Dir = iota
	// Write is plaintext of the process.
	Write
)

// Source is the proof by which the socket of a connection is known. None of
// them is a guess.
type Source uint8

// The proofs, the weakest first.
const (
	// SourceNone means that the socket is not known.
	SourceNone Source = iota
	// SourceRecord means that the socket sent the bytes that the connection
	// encrypted.
	SourceRecord
	// SourceFD means that the process gave the connection the socket
	// (SSL_set_fd).
	SourceFD
	// SourceNested means that a call of the connection used the socket before
	// it returned.
	SourceNested
	// SourceRandom means that the connection wrote a ClientHello with this
	// Random. Who has seen it on the wire knows the connection by it.
	SourceRandom

	numSources
)

// String returns the name of the proof.
func (s Source) String() string {
	switch s {
	case SourceNone:
		return "none"
	case SourceRecord:
		return "record"
	case SourceFD:
		return "fd"
	case SourceNested:
		return "nested"
	case SourceRandom:
		return "random"
	}
	return "unknown"
}

// Event is something that a process did with TLS. Events of one connection and
// direction come in their order.
type Event struct {
	Kind Kind
	Dir  Dir // of Data
	// HTTP2 says that the connection speaks HTTP/2: its preface was seen, or,
	// in a connection joined late, what looks like one of its frames.
	HTTP2   bool
	Library Library
	// Time is CLOCK_MONOTONIC in nanoseconds at the end of the call.
	Time uint64
	// Began is when the call began, on the same clock; 0 of other kinds than
	// Data. Calls are told when they end: what another thread did meanwhile may
	// come before.
	Began uint64
	// PID and TID are in the initial pid namespace.
	PID, TID uint32
	// Conn is the SSL*, the GnuTLS session or the *tls.Conn; with the PID it
	// names a connection until Close.
	Conn uint64

	// Source is the best proof there is, SourceRandom if HasRandom. A proof
	// may come with a later event of the same Conn: it then holds for the
	// ones before as well, back to Hello or the last Close.
	Source Source
	// Cookie is that of the process's own TCP socket, 0 if it is not known;
	// CookieSource is the proof for it and never SourceRandom.
	Cookie       uint64
	CookieSource Source
	Random       [32]byte // client random, if HasRandom
	HasRandom    bool

	// Seq counts the events of this connection and direction from 0: a gap
	// is an event that was lost.
	Seq uint64
	// Offset is how many bytes of plaintext the connection had moved in this
	// direction before the call, as far as it was seen. What lies between
	// the end of one event's Data and the next one's Offset was not shown.
	Offset uint64
	// Total is how many bytes the call moved; Data may be fewer.
	Total int
	// Data is the beginning of these bytes: at most MaxHead of HTTP/1, at
	// most MaxFrames of HTTP/2. Valid until the handler returns.
	Data []byte
}

const (
	// MaxHead is how many bytes from the beginning of a head of HTTP/1 on
	// are shown, in one call or in several.
	MaxHead = 4 << 10
	// MaxFrames is how many bytes of one call are shown in HTTP/2.
	MaxFrames = 16 << 10
)
