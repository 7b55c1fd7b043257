// SPDX-License-Identifier: Apache-2.0

package sniff

import "encoding/binary"

// Flights tells the requests of a TLS connection apart without reading them:
// application data that a client sends after the server has answered is a new
// flight. With HTTP/1.1 a flight is a request, or several that were pipelined.
// With HTTP/2, where requests overlap, it is an approximation: requests that
// leave together are one flight, one that leaves while an answer is still
// coming begins another, and a few are too short to be told from
// acknowledgements.
//
// It looks at record headers alone (RFC 8446 §5.1), never at what is in them.
// The zero Flights is ready to see a connection from its ClientHello on.
type Flights struct {
	// H2 says that the client may speak HTTP/2 (it offered it by ALPN):
	// records that have the lengths of acknowledgements begin nothing.
	H2 bool

	left   int  // bytes of the client's record that are still to come
	begun  bool // Client returned a flight, and is called for it again
	lost   bool
	older  bool // TLS 1.2 or before: the client ended the handshake by records of that type
	hellos int  // ClientHellos seen; a second one follows a HelloRetryRequest
	heard  bool // the server has said something
	ended  bool // the client's Finished went by
	open   bool // application data was sent and not answered yet
	count  int
}

// Types of records.
const (
	recordCCS   = 20
	recordAlert = 21
	recordData  = 23
)

const (
	// maxFinished is the length of the body of a record that holds no more
	// than the Finished of TLS 1.3: type, length, a hash of at most 48 bytes,
	// the real type and a tag of 16.
	maxFinished = 4 + 48 + 1 + 16
	// maxNoRequest is the length of the body of a record that holds no request
	// of HTTP/1, whose shortest has 18 bytes, but a close_notify, a KeyUpdate
	// or nothing.
	maxNoRequest = 17 + 1 + 16
	// maxBody is the length of a record's body, by TLS 1.2, which allows more.
	maxBody = 1<<14 + 2048
)

// ResumeFlights is for a connection that is looked at from the middle on: after
// its handshake, at the beginning of a record of the client.
func ResumeFlights(h2 bool) Flights { return Flights{H2: h2, ended: true, heard: true, count: 1} }

// Record is the length of the whole record of TLS that b begins with, its
// header included; 0 if more of it is to come, and -1 if b begins with none.
func Record(b []byte) int {
	if len(b) > 0 && (b[0] < recordCCS || b[0] > recordData) || len(b) > 1 && b[1] != 3 {
		return -1
	}
	if len(b) < recordHeader {
		return 0
	}
	n := int(binary.BigEndian.Uint16(b[3:]))
	switch {
	case n > maxBody:
		return -1
	case len(b) < recordHeader+n:
		return 0
	}
	return recordHeader + n
}

// Count is the number of flights that have begun.
func (f *Flights) Count() int { return f.count }

// Lost reports whether what the client sends is no longer a series of TLS
// records. Flights are not told apart any more then.
func (f *Flights) Lost() bool { return f.lost }

// Client looks at the next bytes of the client, all that came after those of
// the last call. The first n may be handed on. If flight is true, b[n:] begins
// with a new flight: once it may go, Client is called with b[n:] again.
// Otherwise n is len(b), or less by the part of a header that is too short to
// tell; that part comes again, with what follows it.
func (f *Flights) Client(b []byte) (n int, flight bool) {
	for n < len(b) {
		if f.lost {
			return len(b), false
		}
		if f.left > 0 {
			take := min(f.left, len(b)-n)
			f.left -= take
			n += take
			continue
		}
		rest := b[n:]
		if len(rest) < recordHeader {
			return n, false
		}
		length := int(binary.BigEndian.Uint16(rest[3:]))
		first := byte(0)
		if rest[0] == recordHandshake && length > 0 {
			if len(rest) == recordHeader {
				return n, false
			}
			first = rest[recordHeader]
		}
		if rest[0] < recordCCS || rest[0] > recordData || rest[1] != 3 || length > maxBody {
			f.lost = true
			return len(b), false
		}
		if f.begins(rest[0], length, first) {
			if !f.begun {
				f.begun = true
				return n, true
			}
			f.open = true
			f.count++
		}
		f.begun = false
		f.left = recordHeader + length
	}
	return n, false
}

// begins decides on a record of the client and reports whether it begins a
// flight. It is asked twice about one that does.
func (f *Flights) begins(kind byte, length int, first byte) bool {
	switch kind {
	case recordHandshake:
		if !f.ended && f.hellos < 2 && first == typeClientHello {
			f.hellos++
			return false
		}
		f.older, f.ended = true, true
		return false
	case recordData:
	default:
		return false
	}
	if !f.ended && !f.older && length <= maxFinished {
		f.ended = length > maxNoRequest // shorter is the end of early data
		return false
	}
	f.ended = f.ended || f.heard // before that it is early data
	if f.open || length <= maxNoRequest {
		return false
	}
	return f.count == 0 || !f.H2 || !f.acknowledges(length)
}

// acknowledges reports whether a record of HTTP/2 with a body of that length
// may hold no more than frames by which a client acknowledges what came
// (RFC 9113 §6): SETTINGS of 9 bytes, WINDOW_UPDATE and RST_STREAM of 13, PING of
// 17. A request with few fields, all known to the server, may be as short, and
// is then not noticed.
func (f *Flights) acknowledges(length int) bool {
	overhead := 1 + 16 // the real type and a tag
	if f.older {
		overhead = 8 + 16 // a nonce and a tag, with AES-GCM
	}
	switch length - overhead {
	case 9, 13, 17, 9 + 13, 2 * 13, 13 + 17, 3 * 13:
		return true
	}
	return false
}

// Server notes that bytes of the server came after all that Client has seen.
func (f *Flights) Server() { f.heard, f.open = true, false }
