// SPDX-License-Identifier: Apache-2.0

package tlsread

import (
	"encoding/binary"
	"slices"

	"golang.org/x/crypto/cryptobyte"

	"github.com/egressd/egressd/userspace/sniff"
)

// Params is what the hellos of a connection settled.
type Params struct {
	// Version is the one that the server chose: 0x0303 is TLS 1.2.
	Version uint16
	// Suite is the cipher suite by its number in IANA's registry.
	Suite uint16
	// ClientRandom is that of the ClientHello (sniff.Hello tells it). The keys
	// of TLS 1.2 depend on it.
	ClientRandom [32]byte
	// ServerRandom is that of the ServerHello.
	ServerRandom [32]byte
	// Retried says that a HelloRetryRequest came first (RFC 8446 §4.1.4).
	Retried bool
	// Compressed says that TLS 1.2 compresses what it protects.
	Compressed bool
}

// retryRandom is the random by which a ServerHello is a HelloRetryRequest
// (RFC 8446 §4.1.3): the SHA-256 of that name.
var retryRandom = [32]byte{
	0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
	0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
}

// ServerHello reads the ServerHello at the start of b, the first bytes that a
// server sent. The message may be spread over any number of records, and b may
// end anywhere; what follows the message is not looked at. After a
// HelloRetryRequest the second ServerHello is the one that counts.
// ClientRandom is left zero. The statuses are those of sniff.ClientHello:
// NotTLS is also a server that refused the connection by an alert.
func ServerHello(b []byte) (Params, sniff.Status) {
	full := len(b) >= maxHello
	b = b[:min(len(b), maxHello)]
	p, status := serverHello(b)
	if status == sniff.Incomplete && full {
		status = sniff.NotTLS
	}
	if status != sniff.Complete {
		return Params{}, status
	}
	return p, status
}

func serverHello(b []byte) (Params, sniff.Status) {
	var stream []byte // of handshake messages, copied only from a second record on
	retried := false
	for {
		kind, body, whole, ok := clearRecord(b)
		if !ok {
			return Params{}, sniff.NotTLS
		}
		switch kind {
		case Handshake:
			if stream == nil {
				stream = slices.Clip(body)
			} else {
				stream = append(stream, body...)
			}
		case Alert:
			// A warning goes before the ServerHello where the server does not
			// know the name that it was asked for (RFC 6066 §3).
			if len(body) > 0 && body[0] != 1 {
				return Params{}, sniff.NotTLS
			}
		case ChangeCipherSpec:
			if !retried {
				return Params{}, sniff.NotTLS
			}
		}
		for len(stream) > 0 {
			message, rest, status := helloMessage(stream)
			if status == sniff.NotTLS {
				return Params{}, sniff.NotTLS
			}
			if status == sniff.Incomplete {
				break
			}
			p, ok := parseServerHello(message)
			again := p.ServerRandom == retryRandom
			if !ok || retried && (again || p.Version != version13) || again && p.Version != version13 {
				return Params{}, sniff.NotTLS
			}
			if !again {
				p.Retried = retried
				return p, sniff.Complete
			}
			retried, stream = true, rest
		}
		if !whole {
			return Params{}, sniff.Incomplete
		}
		b = b[recordHeader+len(body):]
	}
}

// clearRecord returns what b has of the body of the record that it begins
// with. It is not ok if that is no record that is sent before keys are in use.
// A kind of Unread means that there are too few bytes to tell anything.
func clearRecord(b []byte) (kind ContentType, body []byte, whole, ok bool) {
	if len(b) > 0 && (b[0] < byte(ChangeCipherSpec) || b[0] > byte(Handshake)) ||
		len(b) > 1 && b[1] != 3 || len(b) > 2 && b[2] > 4 {
		return Unread, nil, false, false
	}
	if len(b) < recordHeader {
		return Unread, nil, false, true
	}
	kind = ContentType(b[0])
	n := int(binary.BigEndian.Uint16(b[3:]))
	body = b[recordHeader:]
	valid := n > 0 && n <= maxPlain // empty ones are forbidden (RFC 8446 §5.1)
	switch kind {
	case ChangeCipherSpec:
		valid = n == 1
	case Alert:
		valid = n == 2
	}
	if len(body) < n {
		return kind, body, false, valid
	}
	return kind, body[:n], true, valid
}

// helloMessage returns the body of the ServerHello that stream begins with,
// and what follows.
func helloMessage(stream []byte) (body, rest []byte, status sniff.Status) {
	if stream[0] != typeServerHello {
		return nil, nil, sniff.NotTLS
	}
	if len(stream) < messageHeader {
		return nil, nil, sniff.Incomplete
	}
	n := int(binary.BigEndian.Uint32(stream) & 0xffffff)
	if n > maxHello {
		return nil, nil, sniff.NotTLS
	}
	stream = stream[messageHeader:]
	if len(stream) < n {
		return nil, nil, sniff.Incomplete
	}
	return stream[:n], stream[n:], sniff.Complete
}

// parseServerHello reads the body of a ServerHello (RFC 8446 §4.1.3, RFC 5246
// §7.4.1.3).
func parseServerHello(b []byte) (p Params, ok bool) {
	s := cryptobyte.String(b)
	var session, extensions cryptobyte.String
	var compression uint8
	if !s.ReadUint16(&p.Version) || !s.CopyBytes(p.ServerRandom[:]) || !s.ReadUint8LengthPrefixed(&session) ||
		!s.ReadUint16(&p.Suite) || !s.ReadUint8(&compression) {
		return p, false
	}
	p.Compressed = compression != 0
	if s.Empty() {
		return p, true
	}
	if !s.ReadUint16LengthPrefixed(&extensions) || !s.Empty() {
		return p, false
	}
	chosen, seen, ok := extension(extensions, extSupportedVersions)
	if ok && seen {
		ok = chosen.ReadUint16(&p.Version) && chosen.Empty() && !p.Compressed
	}
	return p, ok
}

// extension looks for an extension in a list of them. It is not ok if the list
// is malformed or has it twice.
func extension(list cryptobyte.String, want uint16) (data cryptobyte.String, seen, ok bool) {
	for !list.Empty() {
		var kind uint16
		var d cryptobyte.String
		if !list.ReadUint16(&kind) || !list.ReadUint16LengthPrefixed(&d) || kind == want && seen {
			return nil, false, false
		}
		if kind == want {
			data, seen = d, true
		}
	}
	return data, seen, true
}

// offersEarlyData reports whether a ClientHello, of which b is the body, says
// that early data may follow (RFC 8446 §4.2.10).
func offersEarlyData(b []byte) (offers, ok bool) {
	s := cryptobyte.String(b)
	var session, suites, compression, extensions cryptobyte.String
	if !s.Skip(2+32) || !s.ReadUint8LengthPrefixed(&session) ||
		!s.ReadUint16LengthPrefixed(&suites) || !s.ReadUint8LengthPrefixed(&compression) ||
		!s.ReadUint16LengthPrefixed(&extensions) {
		return false, false
	}
	_, offers, ok = extension(extensions, extEarlyData)
	return offers, ok
}
