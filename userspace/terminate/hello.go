// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
)

// errHello says that bytes are not a ClientHello that can be read.
var errHello = errors.New("malformed ClientHello")

const (
	recordAlert     = 21
	recordHandshake = 22
	recordHeader    = 5
	messageHeader   = 4
	maxHello        = 64 << 10

	typeClientHello = 1
	typeServerHello = 2

	randomLength = 32
)

// Extensions that a hello may have for its connection to be terminated; the
// numbers are IANA's.
const (
	extServerName      = 0
	extStatusRequest   = 5
	extGroups          = 10
	extPointFormats    = 11
	extSignatures      = 13
	extALPN            = 16
	extSCT             = 18
	extPadding         = 21
	extEncryptThenMAC  = 22
	extExtendedMaster  = 23
	extCompressCert    = 27
	extRecordSizeLimit = 28
	extDelegated       = 34
	extSessionTicket   = 35
	extPreSharedKey    = 41
	extEarlyData       = 42
	extVersions        = 43
	extPSKModes        = 45
	extCertAuthorities = 47
	extPostHandshake   = 49
	extSignaturesCert  = 50
	extKeyShare        = 51
	extALPS            = 17513
	extALPSNew         = 17613
	extECH             = 0xfe0d
	extRenegotiation   = 0xff01
)

// extension is one of a ClientHello, its body as it was sent.
type extension struct {
	id   uint16
	body []byte
}

// share is a key share (RFC 8446 §4.2.8).
type share struct {
	group uint16
	data  []byte
}

// fragment is how a record carried a part of the message.
type fragment struct {
	version uint16 // of the record header
	length  int    // of the part
}

// hello is a ClientHello (RFC 8446 §4.1.2) with all that makes its shape. It
// refers to the bytes it was read from.
type hello struct {
	fragments   []fragment
	version     uint16 // legacy_version
	random      []byte
	sessionID   []byte
	suites      []uint16
	compression []byte
	extensions  []extension

	// What extensions say; nil where they are missing.
	groups      []uint16
	signatures  []uint16
	versions    []uint16
	protocols   []string // ALPN, GREASE included
	shares      []share
	compressors []uint16 // of certificates (RFC 8879)
	pskModes    []byte
}

// readHello reads the ClientHello at the start of b, which must have all of it.
func readHello(b []byte) (*hello, error) {
	message, fragments, err := joinRecords(b)
	if err != nil {
		return nil, err
	}
	h, err := parseHello(message)
	if err != nil {
		return nil, err
	}
	h.fragments = fragments
	return h, nil
}

// joinRecords puts the first handshake message of b together, header included.
// A record that goes on after its end is an error: that is not how a hello is
// sent (RFC 8446 §5.1).
func joinRecords(b []byte) (message []byte, fragments []fragment, err error) {
	want := messageHeader
	for len(message) < want {
		if len(b) < recordHeader || b[0] != recordHandshake {
			return nil, nil, errHello
		}
		n := int(binary.BigEndian.Uint16(b[3:]))
		if n == 0 || len(b) < recordHeader+n {
			return nil, nil, errHello
		}
		fragments = append(fragments, fragment{binary.BigEndian.Uint16(b[1:]), n})
		message = append(message, b[recordHeader:recordHeader+n]...)
		b = b[recordHeader+n:]
		if len(message) >= messageHeader {
			want = messageHeader + int(binary.BigEndian.Uint32(message)&0xffffff)
		}
		if want > maxHello {
			return nil, nil, errHello
		}
	}
	if len(message) != want {
		return nil, nil, errHello
	}
	return message, fragments, nil
}

// parseHello reads a ClientHello message, header included.
func parseHello(message []byte) (*hello, error) {
	if len(message) < messageHeader || message[0] != typeClientHello {
		return nil, errHello
	}
	c := cursor{message[messageHeader:], true}
	h := &hello{
		version:     c.uint16(),
		random:      c.take(randomLength),
		sessionID:   c.vector8(),
		suites:      words(c.vector16()),
		compression: c.vector8(),
	}
	if !c.ok || len(h.suites) == 0 || len(h.compression) == 0 || len(h.sessionID) > 32 {
		return nil, errHello
	}
	if len(c.rest) == 0 {
		return h, nil
	}
	list := cursor{c.vector16(), true}
	if !c.ok || len(c.rest) > 0 {
		return nil, errHello
	}
	for len(list.rest) > 0 {
		e := extension{list.uint16(), list.vector16()}
		if !list.ok || h.find(e.id) != nil || !h.read(e) {
			return nil, errHello
		}
		h.extensions = append(h.extensions, e)
	}
	return h, nil
}

// find returns the extension with that number, nil if there is none.
func (h *hello) find(id uint16) *extension {
	for i := range h.extensions {
		if h.extensions[i].id == id {
			return &h.extensions[i]
		}
	}
	return nil
}

// read takes from e what is needed of it.
func (h *hello) read(e extension) bool {
	c := cursor{e.body, true}
	switch e.id {
	case extGroups:
		h.groups = words(c.vector16())
	case extSignatures:
		h.signatures = words(c.vector16())
	case extVersions:
		h.versions = words(c.vector8())
	case extCompressCert:
		h.compressors = words(c.vector8())
	case extPSKModes:
		h.pskModes = c.vector8()
	case extALPN:
		list := cursor{c.vector16(), true}
		for len(list.rest) > 0 && list.ok {
			h.protocols = append(h.protocols, string(list.vector8()))
		}
		c.ok = c.ok && list.ok && !slices.Contains(h.protocols, "")
	case extKeyShare:
		list := cursor{c.vector16(), true}
		for len(list.rest) > 0 && list.ok {
			h.shares = append(h.shares, share{list.uint16(), list.vector16()})
		}
		c.ok = c.ok && list.ok
	default:
		return true
	}
	return c.ok && len(c.rest) == 0
}

// has reports whether the hello has the extension.
func (h *hello) has(id uint16) bool { return h.find(id) != nil }

// offers reports whether the hello offers the version: by the extension, or by
// legacy_version where there is none (RFC 8446 §4.2.1).
func (h *hello) offers(version uint16) bool {
	if h.has(extVersions) {
		return slices.Contains(h.versions, version)
	}
	return version <= h.version && version < versionTLS13
}

// sameShape reports whether a and b differ at most in what is new in each
// connection: the random, the bytes of the session id and of the key shares.
func sameShape(a, b *hello) bool {
	if a.version != b.version || len(a.sessionID) != len(b.sessionID) ||
		!slices.Equal(a.suites, b.suites) || !bytes.Equal(a.compression, b.compression) {
		return false
	}
	return slices.EqualFunc(a.extensions, b.extensions, func(x, y extension) bool {
		if x.id != y.id {
			return false
		}
		if x.id == extKeyShare {
			return slices.EqualFunc(a.shares, b.shares, func(p, q share) bool {
				return p.group == q.group && len(p.data) == len(q.data)
			})
		}
		return bytes.Equal(x.body, y.body)
	})
}

// grease reports whether v is a reserved value (RFC 8701 §2).
func grease(v uint16) bool { return v&0x0f0f == 0x0a0a && v>>8 == v&0xff }

// words reads 16-bit numbers; nil if b is empty or ends within one.
func words(b []byte) []uint16 {
	if len(b)%2 != 0 {
		return nil
	}
	out := make([]uint16, 0, len(b)/2)
	for ; len(b) > 0; b = b[2:] {
		out = append(out, binary.BigEndian.Uint16(b))
	}
	return out
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
	out := c.rest[:n:n]
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
