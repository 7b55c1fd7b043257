// SPDX-License-Identifier: Apache-2.0

// Package tlsread reads the plaintext of a TLS connection out of a copy of its
// records, with secrets that one of its ends told by its key log. It does no
// I/O and is no end of the connection: it builds no record, changes no byte
// and checks no certificate. TLS 1.2 and 1.3 with AES-GCM and
// ChaCha20-Poly1305 are read; the rest is refused with ErrUnsupported.
//
// A Reader sees one direction. Every record of that direction passes through
// it, from the first one on, since the number of a record is part of what its
// protection is computed from. Whatever it cannot authenticate ends it: there
// is no plaintext that was guessed. The one exception is Skim, which passes
// over bulk that nobody wants and says what it takes on trust.
//
// Nothing here is safe for concurrent use, except that different readers share
// no state.
package tlsread

import "github.com/egressd/egressd/userspace/sniff"

const (
	recordHeader  = 5
	messageHeader = 4
	tagSize       = 16 // of every AEAD that is read

	// maxPlain is the length in bytes that the plaintext of a record may have
	// (RFC 5246 §6.2.1, RFC 8446 §5.1).
	maxPlain = 1 << 14
	// maxBody12 and maxBody13 bound the body of a record: RFC 5246 §6.2.3 and
	// RFC 8446 §5.2.
	maxBody12 = maxPlain + 2048
	maxBody13 = maxPlain + 256

	// maxHello is the length in bytes within which a hello must end.
	maxHello = sniff.MaxHello

	version12 = 0x0303
	version13 = 0x0304
)

// ContentType is the type of what a record holds (RFC 8446 §5.1): of what was
// protected, if the record was.
type ContentType uint8

// Content types of records.
const (
	// Unread is a record of the handshake of TLS 1.3 for which no secret was
	// logged. Its plaintext stays unknown; application data is never Unread.
	Unread           ContentType = 0
	ChangeCipherSpec ContentType = 20
	Alert            ContentType = 21
	Handshake        ContentType = 22
	ApplicationData  ContentType = 23
)

// Types of handshake messages (RFC 8446 §4, RFC 5246 §7.4).
const (
	typeClientHello = 1
	typeServerHello = 2
	typeFinished    = 20
	typeKeyUpdate   = 24
)

// Extensions that are looked for (RFC 8446 §4.2).
const (
	extEarlyData         = 42
	extSupportedVersions = 43
)
