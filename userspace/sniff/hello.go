// SPDX-License-Identifier: Apache-2.0

package sniff

import (
	"encoding/binary"
	"net/netip"
)

// Hello is what a ClientHello says (RFC 8446 §4.1.2).
type Hello struct {
	// SNI is the host name of the server_name extension (RFC 6066 §3) as
	// CanonicalHost spells it. Empty if there is none, or none that is a host
	// name: an address is not. With ECH it is the public name of the outer
	// hello, not the host that is meant.
	SNI string
	// ALPN is the protocols offered, in order, at most maxALPN, without
	// GREASE (RFC 8701).
	ALPN []string
	// Random is the client random: with it the key log of a process is joined
	// to the connection.
	Random [32]byte
	// ECH says that the hello has the encrypted_client_hello extension, be it
	// real or GREASE, which look alike.
	ECH bool
}

// Status is how far ClientHello came.
type Status uint8

// Statuses of ClientHello.
const (
	Incomplete Status = iota // more bytes are needed
	Complete                 // the Hello is valid
	NotTLS                   // not a ClientHello, or a malformed one
)

const (
	// MaxHello is the number of bytes, record headers included, within which a
	// ClientHello must end. One with post-quantum key shares takes about 2 KiB.
	MaxHello = 64 << 10

	maxALPN = 16

	recordHandshake = 22
	typeClientHello = 1
	recordHeader    = 5
	messageHeader   = 4
	maxRecord       = 1 << 14 // RFC 8446 §5.1: of plaintext

	extServerName = 0
	extALPN       = 16
	extECH        = 0xfe0d // RFC 9849
)

// ClientHello reads the ClientHello at the start of b, the first bytes that a
// client sent. The message may be spread over any number of TLS records, and b
// may end anywhere. It never reads beyond the message.
func ClientHello(b []byte) (Hello, Status) {
	full := len(b) >= MaxHello
	b = b[:min(len(b), MaxHello)]
	message, status := handshake(b)
	if status == Incomplete && full {
		status = NotTLS
	}
	if status != Complete {
		return Hello{}, status
	}
	h, ok := parseHello(message)
	if !ok {
		return Hello{}, NotTLS
	}
	return h, Complete
}

// validRecordLength reports whether the record header b has a length that a
// handshake record may have; empty ones are forbidden (RFC 8446 §5.1).
func validRecordLength(b []byte) bool {
	n := binary.BigEndian.Uint16(b[3:])
	return n > 0 && n <= maxRecord
}

// handshake returns the body of the ClientHello message, put together from its
// records. It copies only if there is more than one.
func handshake(b []byte) ([]byte, Status) {
	// First count, so that a hello that trickles in is copied but once.
	var header [messageHeader]byte
	have, want, records := 0, messageHeader, 0
	for at := 0; have < want; records++ {
		fragment, next, status := record(b, at)
		if status == NotTLS {
			return nil, NotTLS
		}
		if have < messageHeader {
			copy(header[have:], fragment)
		}
		have += len(fragment)
		if have > 0 && header[0] != typeClientHello {
			return nil, NotTLS
		}
		if have >= messageHeader {
			want = messageHeader + int(binary.BigEndian.Uint32(header[:])&0xffffff)
		}
		if want > MaxHello {
			return nil, NotTLS
		}
		if have < want && status == Incomplete {
			return nil, Incomplete
		}
		at = next
	}
	if records == 1 {
		return b[recordHeader+messageHeader : recordHeader+want], Complete
	}
	message := make([]byte, 0, have)
	for at := 0; len(message) < want; {
		var fragment []byte
		fragment, at, _ = record(b, at)
		message = append(message, fragment...)
	}
	return message[messageHeader:want], Complete
}

// record returns what b has of the fragment in the handshake record at at, and
// where the next record starts. The status says whether that is all of it.
func record(b []byte, at int) (fragment []byte, next int, status Status) {
	b = b[at:]
	switch {
	case len(b) > 0 && b[0] != recordHandshake,
		len(b) > 1 && b[1] != 3,
		len(b) > 2 && b[2] > 4,
		len(b) >= recordHeader && !validRecordLength(b):
		return nil, at, NotTLS
	case len(b) < recordHeader:
		return nil, at, Incomplete
	}
	n := int(binary.BigEndian.Uint16(b[3:]))
	b = b[recordHeader:]
	if len(b) < n {
		return b, at, Incomplete
	}
	return b[:n], at + recordHeader + n, Complete
}

// parseHello reads the body of a ClientHello.
func parseHello(b []byte) (h Hello, ok bool) {
	c := cursor{b, true}
	c.take(2) // legacy_version
	copy(h.Random[:], c.take(len(h.Random)))
	c.vector8()  // legacy_session_id
	c.vector16() // cipher_suites
	c.vector8()  // legacy_compression_methods
	if !c.ok || len(c.rest) == 0 {
		return h, c.ok
	}
	extensions := cursor{c.vector16(), true}
	if !c.ok || len(c.rest) > 0 {
		return h, false
	}
	var hasName, hasALPN bool
	for len(extensions.rest) > 0 {
		kind := extensions.uint16()
		data := extensions.vector16()
		if !extensions.ok {
			return h, false
		}
		valid := true
		switch kind {
		case extServerName:
			valid = !hasName && h.serverName(data)
			hasName = true
		case extALPN:
			valid = !hasALPN && h.protocols(data)
			hasALPN = true
		case extECH:
			valid = !h.ECH
			h.ECH = true
		}
		if !valid {
			return h, false
		}
	}
	return h, true
}

// serverName reads a ServerNameList. It has one entry of each type at most;
// host_name is the only type there is.
func (h *Hello) serverName(data []byte) (ok bool) {
	c := cursor{data, true}
	list := cursor{c.vector16(), true}
	if !c.ok || len(c.rest) > 0 {
		return false
	}
	const hostName = 0
	seen := false
	for len(list.rest) > 0 {
		kind, name := list.uint8(), list.vector16()
		if !list.ok || kind == hostName && seen {
			return false
		}
		if kind == hostName {
			seen = true
			h.SNI = canonicalName(name)
		}
	}
	return true
}

// canonicalName is the name as CanonicalHost spells it, or empty if it is none
// or an address.
func canonicalName(name []byte) string {
	var buf [maxName]byte
	out, ok := appendName(buf[:0], name)
	if !ok {
		return ""
	}
	s := string(out)
	if _, err := netip.ParseAddr(s); err == nil {
		return ""
	}
	return s
}

// protocols reads a ProtocolNameList (RFC 7301 §3.1).
func (h *Hello) protocols(data []byte) (ok bool) {
	c := cursor{data, true}
	list := cursor{c.vector16(), true}
	if !c.ok || len(c.rest) > 0 {
		return false
	}
	for len(list.rest) > 0 {
		name := list.vector8()
		if !list.ok || len(name) == 0 {
			return false
		}
		if len(h.ALPN) < maxALPN && !grease(name) {
			h.ALPN = append(h.ALPN, string(name))
		}
	}
	return true
}

// grease reports whether an ALPN entry is a reserved one (RFC 8701 §2).
func grease(name []byte) bool {
	return len(name) == 2 && name[0] == name[1] && name[0]&0x0f == 0x0a
}

// cursor reads from the front of rest. Once something was missing, ok is false
// and everything read is empty.
type cursor struct {
	rest []byte
	ok   bool
}

func (c *cursor) take(n int) []byte {
	if !c.ok || len(c.rest) < n {
		c.rest, c.ok = nil, false
		return nil
	}
	out := c.rest[:n]
	c.rest = c.rest[n:]
	return out
}

func (c *cursor) uint8() uint8 {
	if b := c.take(1); c.ok {
		return b[0]
	}
	return 0
}

func (c *cursor) uint16() uint16 {
	if b := c.take(2); c.ok {
		return binary.BigEndian.Uint16(b)
	}
	return 0
}

func (c *cursor) vector8() []byte  { return c.take(int(c.uint8())) }
func (c *cursor) vector16() []byte { return c.take(int(c.uint16())) }
