// SPDX-License-Identifier: Apache-2.0

package tlsread

import (
	"crypto/sha256"
	"crypto/sha512"
	"fmt"
	"hash"
)

// suite is what of a cipher suite matters once the handshake has agreed on its
// secrets. How it agreed (ECDHE, DHE, RSA, PSK) does not.
type suite struct {
	hash     func() hash.Hash
	hashSize int
	keySize  int
	chacha   bool
}

var (
	aes128 = &suite{sha256.New, sha256.Size, 16, false}
	aes256 = &suite{sha512.New384, sha512.Size384, 32, false}
	chacha = &suite{sha256.New, sha256.Size, 32, true}
)

// suites13 are the cipher suites of TLS 1.3 (RFC 8446 §B.4), without CCM.
var suites13 = map[uint16]*suite{0x1301: aes128, 0x1302: aes256, 0x1303: chacha}

// suites12 are those of TLS 1.2 with the same ciphers: RFC 5288, 5289, 5487 and
// 8442 for GCM, RFC 7905 for ChaCha20-Poly1305.
var suites12 = map[uint16]*suite{
	0x009c: aes128, 0x009d: aes256, // RSA
	0x009e: aes128, 0x009f: aes256, // DHE_RSA
	0x00a0: aes128, 0x00a1: aes256, // DH_RSA
	0x00a2: aes128, 0x00a3: aes256, // DHE_DSS
	0x00a4: aes128, 0x00a5: aes256, // DH_DSS
	0x00a6: aes128, 0x00a7: aes256, // DH_anon
	0x00a8: aes128, 0x00a9: aes256, // PSK
	0x00aa: aes128, 0x00ab: aes256, // DHE_PSK
	0x00ac: aes128, 0x00ad: aes256, // RSA_PSK
	0xc02b: aes128, 0xc02c: aes256, // ECDHE_ECDSA
	0xc02d: aes128, 0xc02e: aes256, // ECDH_ECDSA
	0xc02f: aes128, 0xc030: aes256, // ECDHE_RSA
	0xc031: aes128, 0xc032: aes256, // ECDH_RSA
	0xd001: aes128, 0xd002: aes256, // ECDHE_PSK
	0xcca8: chacha, // ECDHE_RSA
	0xcca9: chacha, // ECDHE_ECDSA
	0xccaa: chacha, // DHE_RSA
	0xccab: chacha, // PSK
	0xccac: chacha, // ECDHE_PSK
	0xccad: chacha, // DHE_PSK
	0xccae: chacha, // RSA_PSK
}

// suiteOf finds the suite of a connection, or says why it is not read.
func suiteOf(p *Params) (*suite, error) {
	var s *suite
	switch p.Version {
	case version12:
		s = suites12[p.Suite]
	case version13:
		s = suites13[p.Suite]
	default:
		return nil, unsupported(fmt.Sprintf("version %#04x", p.Version))
	}
	if s == nil {
		return nil, unsupported(fmt.Sprintf("cipher suite %#04x", p.Suite))
	}
	if p.Compressed {
		return nil, unsupported("compression")
	}
	return s, nil
}
