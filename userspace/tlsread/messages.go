// SPDX-License-Identifier: Apache-2.0

package tlsread

import "encoding/binary"

// messages follows the handshake messages of a direction, which may be split
// over records or share one (RFC 8446 §5.1).
type messages struct {
	head [messageHeader]byte
	have int    // bytes of head
	left int    // bytes of the body that are still to come
	body []byte // of a message that is kept
}

// pending reports whether a message has begun and not ended.
func (m *messages) pending() bool { return m.have > 0 }

// follow reads a fragment: the content of one record of the handshake.
func (r *Reader) follow(fragment []byte) error {
	m := &r.messages
	for len(fragment) > 0 {
		if m.have < messageHeader {
			n := copy(m.head[m.have:], fragment)
			m.have, fragment = m.have+n, fragment[n:]
			if m.have < messageHeader {
				return nil
			}
			m.left = int(binary.BigEndian.Uint32(m.head[:]) & 0xffffff)
			if err := r.begin(m.head[0], m.left); err != nil {
				return err
			}
		}
		n := min(m.left, len(fragment))
		if r.keeps(m.head[0]) {
			m.body = append(m.body, fragment[:n]...)
		}
		m.left, fragment = m.left-n, fragment[n:]
		if m.left > 0 {
			return nil
		}
		m.have = 0
		if err := r.end(m.head[0], m.body, len(fragment) == 0); err != nil {
			return err
		}
		m.body = nil
	}
	return nil
}

// keeps reports whether the body of a message is needed.
func (r *Reader) keeps(kind byte) bool {
	return r.v13 && (kind == typeClientHello || kind == typeKeyUpdate)
}

// begin judges a message by its header.
func (r *Reader) begin(kind byte, length int) error {
	if !r.v13 {
		if r.phase != hellos && (kind == typeClientHello || kind == typeServerHello) {
			return unsupported("renegotiation")
		}
		return nil
	}
	hello := byte(typeClientHello)
	if r.side == Server {
		hello = typeServerHello
	}
	switch {
	case (kind == hello) != (r.phase == hellos):
		return malformed("handshake message out of place")
	case kind == hello && length > maxHello:
		return malformed("hello too long")
	case kind == typeKeyUpdate && (r.phase != traffic || length != 1):
		return malformed("key update")
	}
	return nil
}

// end acts on a message that is complete. Last says that its record has no
// more, as must be where a key ends (RFC 8446 §5.1).
func (r *Reader) end(kind byte, body []byte, last bool) error {
	switch {
	case r.v13 && kind == typeClientHello:
		offers, ok := offersEarlyData(body)
		if !ok {
			return malformed("client hello")
		}
		r.early = offers
	case r.v13 && kind == typeKeyUpdate:
		if body[0] > 1 || !last {
			return malformed("key update")
		}
		return r.update()
	case kind == typeFinished && r.phase == sealed:
		if !last {
			return malformed("data after finished")
		}
		r.phase = traffic
		if r.v13 {
			r.keys, r.next = r.next, nil
		}
	}
	return nil
}

// update moves on to the next generation of keys (RFC 8446 §7.2).
func (r *Reader) update() error {
	secret, err := expandLabel(r.suite, r.secret, "traffic upd", r.suite.hashSize)
	if err != nil {
		return err
	}
	keys, err := protect13(r.suite, secret)
	if err != nil {
		return err
	}
	clear(r.secret)
	r.secret, r.keys = secret, keys
	return nil
}
