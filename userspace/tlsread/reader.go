// SPDX-License-Identifier: Apache-2.0

package tlsread

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
)

// Side is an end of a connection.
type Side uint8

// Sides of a connection.
const (
	Client Side = iota
	Server
)

// phase is how far the handshake came, as the direction that is read shows.
type phase uint8

const (
	hellos  phase = iota // no record was protected
	sealed               // the rest of the handshake
	traffic              // after the Finished of this side
)

// maxUnread is the number of bytes of a handshake that may pass while its keys
// are not known. Each record of it is tried with the key of application data.
const maxUnread = 256 << 10

// Reader reads what one side of a connection sends. Use NewReader.
type Reader struct {
	side   Side
	v13    bool
	suite  *suite
	phase  phase
	keys   *protection // of the phase; nil while those of the handshake are unknown
	next   *protection // of application data in TLS 1.3, until it begins
	secret []byte      // that keys or next follow from, in TLS 1.3

	messages messages
	early    bool // the ClientHello offered early data
	padded   bool // a record was longer than what it holds
	unread   int  // bytes of records that no key opened
	skim     skim
	buf      []byte
	err      error
}

// NewReader makes the reader of what a side sends, before its first record.
// It needs Secrets.Master in TLS 1.2 and the traffic secret of the side in
// TLS 1.3. The error is ErrUnsupported or ErrNoKeys, with the reason.
func NewReader(side Side, p *Params, s *Secrets) (*Reader, error) {
	suite, err := suiteOf(p)
	if err != nil {
		return nil, err
	}
	if s == nil {
		s = new(Secrets)
	}
	r := &Reader{side: side, v13: p.Version == version13, suite: suite}
	if !r.v13 {
		if err := checkSecret("master secret", s.Master, masterSize); err != nil {
			return nil, err
		}
		if r.keys, err = protect12(suite, side, p, s.Master); err != nil {
			return nil, err
		}
		return r, nil
	}
	handshake, secret := s.of(side)
	if err := checkSecret("traffic secret", secret, suite.hashSize); err != nil {
		return nil, err
	}
	r.secret = slices.Clone(secret)
	if r.next, err = protect13(suite, r.secret); err != nil {
		return nil, err
	}
	if len(handshake) == 0 {
		return r, nil
	}
	if err := checkSecret("handshake secret", handshake, suite.hashSize); err != nil {
		return nil, err
	}
	if r.keys, err = protect13(suite, handshake); err != nil {
		return nil, err
	}
	return r, nil
}

// masterSize is the length of a master secret (RFC 5246 §8.1).
const masterSize = 48

func checkSecret(name string, secret []byte, size int) error {
	switch len(secret) {
	case size:
		return nil
	case 0:
		return fmt.Errorf("%w: %s", ErrNoKeys, name)
	}
	return fmt.Errorf("%w: %s of %d bytes, not %d", ErrNoKeys, name, len(secret), size)
}

// Buffer lends the reader a buffer to decrypt into, which must not overlap with
// what Next is given. Without it, or where it is too short for a record, the
// reader makes one of its own. Readers that take turns may share one, since
// its content is not needed for the next call.
func (r *Reader) Buffer(b []byte) { r.buf = b[:0] }

// Err is the error that ended the reader, if one did.
func (r *Reader) Err() error { return r.err }

// Next reads the record that b begins with; n is its length, or 0 if b does
// not hold all of it yet. Kind is the type of what it holds, and plain its
// content, which is valid until the next call or until b changes. A record
// that is not protected is a part of b; ChangeCipherSpec never is protected.
//
// The error is ErrAuth, ErrRecord, ErrEarlyData or ErrUnsupported, with the
// reason. After one, all calls return it.
func (r *Reader) Next(b []byte) (n int, kind ContentType, plain []byte, err error) {
	if r.err == nil && r.Skimming() {
		r.err = malformed("read from its middle")
	}
	if r.err != nil {
		return 0, Unread, nil, r.err
	}
	if len(b) < recordHeader {
		return 0, Unread, nil, nil
	}
	length, err := r.header(b)
	if err == nil {
		n = recordHeader + length
		if len(b) < n {
			return 0, Unread, nil, nil
		}
		kind, plain, err = r.record(b[:n])
	}
	if err != nil {
		r.err = err
		return 0, Unread, nil, err
	}
	return n, kind, plain, nil
}

// header judges the header of a record and returns the length of its body.
func (r *Reader) header(b []byte) (int, error) {
	length := int(binary.BigEndian.Uint16(b[3:]))
	switch {
	case b[0] < byte(ChangeCipherSpec) || b[0] > byte(ApplicationData):
		return 0, malformed("unknown type")
	case b[1] != 3 || b[2] > 4:
		return 0, malformed("unknown version")
	case length > maxBody12 || r.v13 && length > maxBody13:
		return 0, malformed("too long")
	}
	return length, nil
}

// record reads a whole record.
func (r *Reader) record(b []byte) (ContentType, []byte, error) {
	kind, plain := ContentType(b[0]), b[recordHeader:]
	if r.protected(kind) {
		var err error
		if kind, plain, err = r.open(b); err != nil {
			return Unread, nil, err
		}
	} else if r.phase != hellos && kind != ChangeCipherSpec {
		return Unread, nil, malformed("unprotected after the hellos")
	}
	if len(plain) > maxPlain {
		return Unread, nil, malformed("too much plaintext")
	}
	return kind, plain, r.accept(kind, plain)
}

// protected reports whether a record of a type is protected. In TLS 1.3 all
// that are look like application data (RFC 8446 §5.2).
func (r *Reader) protected(kind ContentType) bool {
	if r.v13 {
		return kind == ApplicationData
	}
	return r.phase != hellos
}

// open decrypts a protected record.
func (r *Reader) open(b []byte) (ContentType, []byte, error) {
	if cap(r.buf) < len(b) {
		r.buf = make([]byte, 0, roundUp(len(b)))
	}
	if !r.v13 {
		plain, ok := r.keys.open(r.buf, b)
		if !ok {
			return Unread, nil, fmt.Errorf("%w: record %d under its key", ErrAuth, r.keys.seq)
		}
		return ContentType(b[0]), plain, nil
	}
	if r.phase == hellos {
		if r.messages.pending() {
			return Unread, nil, malformed("hello that does not end")
		}
		r.phase = sealed
	}
	inner, ok := r.open13(b)
	switch {
	case ok:
	case r.phase == sealed && r.early && (r.keys == nil || r.keys.seq == 0):
		return Unread, nil, ErrEarlyData
	case r.keys == nil && r.unread+len(b) <= maxUnread:
		r.unread += len(b)
		return Unread, nil, nil
	case r.keys == nil:
		return Unread, nil, fmt.Errorf("%w: none in %d bytes", ErrAuth, r.unread)
	default:
		return Unread, nil, fmt.Errorf("%w: record %d under its key", ErrAuth, r.keys.seq)
	}
	if len(inner) > maxPlain+1 {
		return Unread, nil, malformed("too much plaintext")
	}
	plain, kind, padded := unpad(inner)
	r.padded = r.padded || padded
	if kind < Alert || kind > ApplicationData {
		return Unread, nil, malformed("unknown type inside")
	}
	return kind, plain, nil
}

// open13 decrypts a record of TLS 1.3. Where the keys of the handshake are not
// known, the first record that those of application data open ends it: that
// they authenticate another is as good as impossible.
func (r *Reader) open13(b []byte) (inner []byte, ok bool) {
	if r.keys != nil {
		return r.keys.open(r.buf, b)
	}
	if inner, ok = r.next.open(r.buf, b); ok {
		r.keys, r.next, r.phase = r.next, nil, traffic
	}
	return inner, ok
}

// accept judges the content of a record by its type and what went before, and
// moves on from it.
func (r *Reader) accept(kind ContentType, plain []byte) error {
	if r.messages.pending() && kind != Handshake && !(r.v13 && kind == ChangeCipherSpec) {
		return malformed("handshake message is interrupted")
	}
	switch kind {
	case Handshake:
		if len(plain) == 0 {
			return malformed("empty handshake record")
		}
		return r.follow(plain)
	case ChangeCipherSpec:
		return r.change(plain)
	case Alert:
		if len(plain) != 2 {
			return malformed("alert")
		}
	case ApplicationData:
		if r.phase != traffic {
			return malformed("application data before the handshake ended")
		}
	}
	return nil
}

// change reads a ChangeCipherSpec. In TLS 1.3 it means nothing (RFC 8446 §5),
// but has no place after the handshake; in TLS 1.2 keys come into use by it.
func (r *Reader) change(plain []byte) error {
	if !bytes.Equal(plain, []byte{1}) {
		return malformed("change cipher spec")
	}
	switch {
	case r.v13 && r.phase != traffic:
	case !r.v13 && r.phase == hellos:
		r.phase = sealed
	default:
		return malformed("change cipher spec after the handshake")
	}
	return nil
}

// roundUp is the size of the buffer for a record of n bytes, so that it is
// allocated a few times at most.
func roundUp(n int) int {
	const small = 2 << 10
	if n <= small {
		return small
	}
	return recordHeader + maxBody12
}
