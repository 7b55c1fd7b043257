// SPDX-License-Identifier: Apache-2.0

package tlsorigin

import (
	"errors"

	"golang.org/x/crypto/cryptobyte"
)

// Hello is a ClientHello (RFC 8446 §4.1.2) as far as fingerprints are made of
// it. Lists are in the order of the wire, GREASE values included.
type Hello struct {
	Version    uint16 // legacy_version
	Random     [32]byte
	Ciphers    []uint16
	Extensions []uint16
	SNI        string   // host name of server_name
	HasSNI     bool     // the extension is there, with whatever in it
	ALPN       []string // protocols offered
	Groups     []uint16 // supported_groups
	Points     []uint8  // ec_point_formats
	Signatures []uint16 // signature_algorithms
	Versions   []uint16 // supported_versions
}

// Extensions that are looked into.
const (
	extServerName = 0
	extGroups     = 10
	extPoints     = 11
	extSignatures = 13
	extALPN       = 16
	extVersions   = 43
)

var errHello = errors.New("malformed ClientHello")

// helloMessage takes the ClientHello out of the records at the start of b, the
// first bytes of a connection. message is nil as long as b does not hold all
// of it.
func helloMessage(b []byte) (message []byte, err error) {
	const record, header = 5, 4
	var body []byte
	for len(b) >= record {
		n := int(b[3])<<8 | int(b[4])
		if b[0] != 22 || n == 0 || n > 1<<14 {
			return nil, errHello
		}
		body = append(body, b[record:min(len(b), record+n)]...)
		if len(body) >= header {
			size := header + int(body[1])<<16 + int(body[2])<<8 + int(body[3])
			if body[0] != 1 || size > 1<<17 {
				return nil, errHello
			}
			if len(body) >= size {
				return body[:size], nil
			}
		}
		b = b[min(len(b), record+n):]
	}
	return nil, nil
}

// ParseHello reads a ClientHello, its handshake header included.
func ParseHello(message []byte) (*Hello, error) {
	h := new(Hello)
	s := cryptobyte.String(message)
	var kind uint8
	var body, session, ciphers, compression, extensions cryptobyte.String
	var random []byte
	if !s.ReadUint8(&kind) || kind != 1 || !s.ReadUint24LengthPrefixed(&body) || !s.Empty() ||
		!body.ReadUint16(&h.Version) || !body.ReadBytes(&random, len(h.Random)) ||
		!body.ReadUint8LengthPrefixed(&session) || !body.ReadUint16LengthPrefixed(&ciphers) ||
		!body.ReadUint8LengthPrefixed(&compression) {
		return nil, errHello
	}
	copy(h.Random[:], random)
	if !words(ciphers, &h.Ciphers) {
		return nil, errHello
	}
	if body.Empty() { // extensions are optional (RFC 5246 §7.4.1.2)
		return h, nil
	}
	if !body.ReadUint16LengthPrefixed(&extensions) || !body.Empty() {
		return nil, errHello
	}
	for !extensions.Empty() {
		var id uint16
		var data cryptobyte.String
		if !extensions.ReadUint16(&id) || !extensions.ReadUint16LengthPrefixed(&data) {
			return nil, errHello
		}
		h.Extensions = append(h.Extensions, id)
		if !h.extension(id, data) {
			return nil, errHello
		}
	}
	return h, nil
}

// extension reads what is in an extension that fingerprints look into.
func (h *Hello) extension(id uint16, data cryptobyte.String) bool {
	var list cryptobyte.String
	switch id {
	case extServerName:
		h.HasSNI = true
		var kind uint8
		var name cryptobyte.String
		if !data.ReadUint16LengthPrefixed(&list) || !list.ReadUint8(&kind) || !list.ReadUint16LengthPrefixed(&name) {
			return false
		}
		h.SNI = string(name)
	case extGroups:
		return data.ReadUint16LengthPrefixed(&list) && words(list, &h.Groups)
	case extPoints:
		if !data.ReadUint8LengthPrefixed(&list) {
			return false
		}
		h.Points = []uint8(list)
	case extSignatures:
		return data.ReadUint16LengthPrefixed(&list) && words(list, &h.Signatures)
	case extVersions:
		return data.ReadUint8LengthPrefixed(&list) && words(list, &h.Versions)
	case extALPN:
		if !data.ReadUint16LengthPrefixed(&list) {
			return false
		}
		for !list.Empty() {
			var protocol cryptobyte.String
			if !list.ReadUint8LengthPrefixed(&protocol) {
				return false
			}
			h.ALPN = append(h.ALPN, string(protocol))
		}
	}
	return true
}

// words reads numbers of two bytes until s is empty.
func words(s cryptobyte.String, into *[]uint16) bool {
	for !s.Empty() {
		var w uint16
		if !s.ReadUint16(&w) {
			return false
		}
		*into = append(*into, w)
	}
	return true
}
