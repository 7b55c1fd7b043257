// SPDX-License-Identifier: Apache-2.0

package tlsread

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// sealer writes what a side sends, record by record, also what no real one
// would. It shares the derivation of keys with the reader; that those are the
// keys of TLS is what the tests with real peers show.
type sealer struct {
	t      testing.TB
	side   Side
	params Params
	suite  *suite
	keys   *protection // nil: records are not protected
	secret []byte
	out    []byte
}

// testSecrets are secrets of a suite, all different.
func testSecrets(size int) *Secrets {
	fill := func(b byte, n int) []byte { return bytes.Repeat([]byte{b}, n) }
	return &Secrets{
		Master:          fill(1, masterSize),
		ClientHandshake: fill(2, size), ServerHandshake: fill(3, size),
		ClientTraffic: fill(4, size), ServerTraffic: fill(5, size),
	}
}

func newSealer(t testing.TB, side Side, version, suite uint16) *sealer {
	t.Helper()
	s := &sealer{t: t, side: side, params: Params{Version: version, Suite: suite, ClientRandom: [32]byte{7}, ServerRandom: [32]byte{8}}}
	var err error
	if s.suite, err = suiteOf(&s.params); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *sealer) secrets() *Secrets { return testSecrets(s.suite.hashSize) }

// mustReader makes the reader of what the sealer writes.
func (s *sealer) mustReader(secrets *Secrets) *Reader {
	s.t.Helper()
	r, err := NewReader(s.side, &s.params, secrets)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// use protects what follows by a secret of TLS 1.3.
func (s *sealer) use(secret []byte) *sealer {
	s.t.Helper()
	var err error
	if s.keys, err = protect13(s.suite, secret); err != nil {
		s.t.Fatal(err)
	}
	s.secret = secret
	return s
}

func (s *sealer) useHandshake() *sealer {
	handshake, _ := s.secrets().of(s.side)
	return s.use(handshake)
}

func (s *sealer) useTraffic() *sealer {
	_, secret := s.secrets().of(s.side)
	return s.use(secret)
}

// useNext goes on to the next generation of keys.
func (s *sealer) useNext() *sealer {
	s.t.Helper()
	secret, err := expandLabel(s.suite, s.secret, "traffic upd", s.suite.hashSize)
	if err != nil {
		s.t.Fatal(err)
	}
	return s.use(secret)
}

// use12 protects what follows by the keys of TLS 1.2.
func (s *sealer) use12() *sealer {
	s.t.Helper()
	var err error
	if s.keys, err = protect12(s.suite, s.side, &s.params, s.secrets().Master); err != nil {
		s.t.Fatal(err)
	}
	return s
}

// raw writes a record as it is.
func (s *sealer) raw(kind ContentType, body ...byte) *sealer {
	s.out = append(s.out, byte(kind), 3, 3)
	s.out = binary.BigEndian.AppendUint16(s.out, uint16(len(body)))
	s.out = append(s.out, body...)
	return s
}

// record writes a record under the keys in use, if there are any.
func (s *sealer) record(kind ContentType, content ...byte) *sealer {
	return s.padded(kind, 0, content...)
}

// padded is record with padding.
func (s *sealer) padded(kind ContentType, padding int, content ...byte) *sealer {
	p := s.keys
	if p == nil {
		return s.raw(kind, content...)
	}
	if p.version == version13 {
		inner := append(append(bytes.Clone(content), byte(kind)), make([]byte, padding)...)
		return s.inner(inner)
	}
	explicit := binary.BigEndian.AppendUint64(nil, p.seq^0xabcdef)[:p.inside]
	extra := binary.BigEndian.AppendUint64(nil, p.seq)
	extra = append(extra, byte(kind), 3, 3)
	extra = binary.BigEndian.AppendUint16(extra, uint16(len(content)))
	p.setNonce(explicit)
	body := p.aead.Seal(explicit, p.nonce[:], content, extra)
	p.seq++
	return s.raw(kind, body...)
}

// inner writes a record of TLS 1.3 that protects just that.
func (s *sealer) inner(inner []byte) *sealer {
	p := s.keys
	extra := binary.BigEndian.AppendUint16([]byte{byte(ApplicationData), 3, 3}, uint16(len(inner)+tagSize))
	p.setNonce(nil)
	body := p.aead.Seal(nil, p.nonce[:], inner, extra)
	p.seq++
	return s.raw(ApplicationData, body...)
}

// data writes n bytes of application data.
func (s *sealer) data(n int) *sealer { return s.record(ApplicationData, filled(n)...) }

// filled are n bytes of which no two neighbours are the same.
func filled(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + n)
	}
	return b
}

// message is a handshake message.
func message(kind byte, body ...byte) []byte {
	n := len(body)
	return append([]byte{kind, byte(n >> 16), byte(n >> 8), byte(n)}, body...)
}

// clientHelloMessage is the message with extensions that hold nothing.
func clientHelloMessage(extensions ...uint16) []byte {
	body := append([]byte{3, 3}, make([]byte, 32)...)
	body = append(body, 0, 0, 2, 0x13, 0x01, 1, 0)
	body = binary.BigEndian.AppendUint16(body, uint16(4*len(extensions)))
	for _, e := range extensions {
		body = binary.BigEndian.AppendUint16(body, e)
		body = append(body, 0, 0)
	}
	return message(typeClientHello, body...)
}

// serverHelloMessage is the message with the extension that chooses TLS 1.3, or in
// TLS 1.2 without extensions.
func serverHelloMessage(version, suite uint16, random [32]byte) []byte {
	body := append([]byte{3, 3}, random[:]...)
	body = append(body, 0)
	body = binary.BigEndian.AppendUint16(body, suite)
	body = append(body, 0)
	if version != version12 {
		body = append(body, 0, 6, 0, extSupportedVersions, 0, 2)
		body = binary.BigEndian.AppendUint16(body, version)
	}
	return message(typeServerHello, body...)
}

// hello writes the hello of the side.
func (s *sealer) hello() *sealer {
	if s.side == Client {
		return s.raw(Handshake, clientHelloMessage()...)
	}
	return s.raw(Handshake, serverHelloMessage(s.params.Version, s.params.Suite, s.params.ServerRandom)...)
}

// shaken writes a handshake of TLS 1.3 and goes on to application data.
func (s *sealer) shaken() *sealer {
	return s.hello().raw(ChangeCipherSpec, 1).useHandshake().record(Handshake, finished()...).useTraffic()
}

// shaken12 is shaken of TLS 1.2.
func (s *sealer) shaken12() *sealer {
	return s.hello().raw(ChangeCipherSpec, 1).use12().record(Handshake, message(typeFinished, make([]byte, 12)...)...)
}

func finished() []byte              { return message(typeFinished, make([]byte, 32)...) }
func keyUpdate(request byte) []byte { return message(typeKeyUpdate, request) }
