// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"bytes"
	"encoding/hex"
	"errors"

	"github.com/egressd/egressd/userspace/sniff"
	"github.com/egressd/egressd/userspace/tlsread"
)

// errECH says that the origin has ECH: what the client sent may have been a
// real one, for a name that only the two know.
var errECH = errors.New("the origin answered to ECH")

const typeEncryptedExtensions = 8

// echWitness finds out whether an origin has ECH. Real ECH and what browsers
// send in its place look alike (RFC 9849 §6.2); but a client sends a real one
// only to an origin that has it, which then offers configurations for another
// try (§7.1). The TLS library does not tell of those, so the origin's first
// records are read once more, with the keys of the handshake.
type echWitness struct {
	records []byte
	secrets tlsread.Secrets
}

// Write takes a line of a key log (RFC 9850).
func (w *echWitness) Write(line []byte) (int, error) {
	fields := bytes.Fields(line)
	if len(fields) != 3 {
		return len(line), nil
	}
	secret := make([]byte, hex.DecodedLen(len(fields[2])))
	if _, err := hex.Decode(secret, fields[2]); err != nil {
		return 0, err
	}
	switch string(fields[0]) {
	case "SERVER_HANDSHAKE_TRAFFIC_SECRET":
		w.secrets.ServerHandshake = secret
	case "SERVER_TRAFFIC_SECRET_0":
		w.secrets.ServerTraffic = secret
	default:
		clear(secret)
	}
	return len(line), nil
}

// hear takes what the origin sent.
func (w *echWitness) hear(b []byte) {
	if len(w.records) < maxHello {
		w.records = append(w.records, b...)
	}
}

// forget zeroes the keys.
func (w *echWitness) forget() {
	clear(w.secrets.ServerHandshake)
	clear(w.secrets.ServerTraffic)
	w.records = nil
}

// answered reports whether the origin has ECH. What cannot be read counts as
// if it had.
func (w *echWitness) answered() bool {
	p, status := tlsread.ServerHello(w.records)
	if status != sniff.Complete {
		return true
	}
	if p.Version != versionTLS13 {
		return false // ECH is of TLS 1.3
	}
	r, err := tlsread.NewReader(tlsread.Server, &p, &w.secrets)
	if err != nil {
		return true
	}
	var messages []byte
	for rest := w.records; ; {
		n, kind, plain, err := r.Next(rest)
		if err != nil || n == 0 {
			return true
		}
		rest = rest[n:]
		if kind == recordHandshake {
			messages = append(messages, plain...)
		}
		if found, answered := echIn(messages); found {
			return answered
		}
	}
}

// echIn looks for EncryptedExtensions among whole handshake messages, and for
// ECH in them.
func echIn(messages []byte) (found, answered bool) {
	c := cursor{messages, true}
	for {
		kind := c.uint8()
		high := int(c.uint8())
		body := cursor{c.take(high<<16 | int(c.uint16())), true}
		if !c.ok {
			return false, false
		}
		if kind != typeEncryptedExtensions {
			continue
		}
		list := cursor{body.vector16(), body.ok}
		for len(list.rest) > 0 && list.ok {
			id := list.uint16()
			list.vector16()
			if id == extECH {
				return true, true
			}
		}
		return true, false
	}
}
