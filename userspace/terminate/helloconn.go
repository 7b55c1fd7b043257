// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
)

// helloRetry is the random of a HelloRetryRequest (RFC 8446 §4.1.3).
var helloRetry = [randomLength]byte{
	0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91,
	0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
}

// helloConn is the connection to an origin below TLS. It sends the ClientHello
// in records like the client's, and holds the origin's first message until it
// knows which key share was chosen. For one goroutine until the handshake ends.
type helloConn struct {
	net.Conn
	hello   *hello
	chosen  func(group uint16)
	witness *echWitness // sees what is read, until TLS is established; or nil

	sent  bool
	heard bool
	held  []byte // read and not yet handed on
}

// Write sends b; the first one is the ClientHello.
func (c *helloConn) Write(b []byte) (int, error) {
	if c.sent {
		return c.Conn.Write(b)
	}
	c.sent = true
	framed, err := c.hello.frame(b)
	if err != nil {
		return 0, err
	}
	if _, err := c.Conn.Write(framed); err != nil {
		return 0, err
	}
	return len(b), nil
}

// frame puts the message in the records b into records like those of h.
func (h *hello) frame(b []byte) ([]byte, error) {
	message, _, err := joinRecords(b)
	if err != nil {
		return nil, fmt.Errorf("frame the ClientHello: %w", err)
	}
	var out []byte
	for _, f := range h.fragments {
		if f.length > len(message) {
			return nil, errShape
		}
		out = append(out, recordHandshake)
		out = binary.BigEndian.AppendUint16(out, f.version)
		out = binary.BigEndian.AppendUint16(out, uint16(f.length))
		out = append(out, message[:f.length]...)
		message = message[f.length:]
	}
	if len(message) > 0 {
		return nil, errShape
	}
	return out, nil
}

// Read returns what the origin sends, nothing before its first message is
// whole.
func (c *helloConn) Read(b []byte) (int, error) {
	for !c.heard {
		group, status := chosenGroup(c.held)
		if status == nil || len(c.held) > maxHello {
			c.heard = true
			if group != 0 && c.chosen != nil {
				c.chosen(group)
			}
			break
		}
		var buf [4096]byte
		n, err := c.next(buf[:])
		c.held = append(c.held, buf[:n]...)
		if err != nil {
			if len(c.held) == 0 {
				return 0, err
			}
			c.heard = true // let TLS judge what there is; the error comes again
		}
	}
	if len(c.held) > 0 {
		n := copy(b, c.held)
		c.held = c.held[n:]
		return n, nil
	}
	return c.next(b)
}

// next reads from the origin.
func (c *helloConn) next(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.witness != nil {
		c.witness.hear(b[:n])
	}
	return n, err
}

// errMore says that a ServerHello is not whole yet.
var errMore = errors.New("more is needed")

// chosenGroup reads the group of the key share in the ServerHello that b
// begins with: 0 if there is none, which a HelloRetryRequest or an older version
// of TLS may have, or if b begins with something else.
func chosenGroup(b []byte) (uint16, error) {
	var message []byte
	want := messageHeader
	for len(message) < want {
		switch {
		case len(b) > 0 && b[0] != recordHandshake:
			return 0, nil // an alert, or no TLS at all
		case len(b) < recordHeader:
			return 0, errMore
		}
		n := int(binary.BigEndian.Uint16(b[3:]))
		if n == 0 {
			return 0, nil
		}
		if len(b) < recordHeader+n {
			return 0, errMore
		}
		message = append(message, b[recordHeader:recordHeader+n]...)
		b = b[recordHeader+n:]
		if len(message) >= messageHeader {
			want = messageHeader + int(binary.BigEndian.Uint32(message)&0xffffff)
		}
		if want > maxHello {
			return 0, nil
		}
	}
	if message[0] != typeServerHello {
		return 0, nil
	}
	c := cursor{message[messageHeader:want], true}
	c.take(2) // legacy_version
	random := c.take(randomLength)
	c.vector8() // legacy_session_id_echo
	c.take(3)   // cipher_suite and legacy_compression_method
	list := cursor{c.vector16(), c.ok}
	if !c.ok || [randomLength]byte(random) == helloRetry {
		return 0, nil
	}
	for len(list.rest) > 0 && list.ok {
		id, body := list.uint16(), cursor{list.vector16(), true}
		if id == extKeyShare {
			return body.uint16(), nil
		}
	}
	return 0, nil
}
