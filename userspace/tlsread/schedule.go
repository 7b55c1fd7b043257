// SPDX-License-Identifier: Apache-2.0

package tlsread

import (
	"crypto/hkdf"
	"crypto/hmac"
	"fmt"

	"golang.org/x/crypto/cryptobyte"
)

// expandLabel is HKDF-Expand-Label of RFC 8446 §7.1, without a context.
func expandLabel(s *suite, secret []byte, label string, size int) ([]byte, error) {
	var info cryptobyte.Builder
	info.AddUint16(uint16(size))
	info.AddUint8LengthPrefixed(func(b *cryptobyte.Builder) { b.AddBytes([]byte("tls13 " + label)) })
	info.AddUint8(0)
	encoded, err := info.Bytes()
	if err != nil {
		return nil, fmt.Errorf("encode label %q: %w", label, err)
	}
	out, err := hkdf.Expand(s.hash, secret, string(encoded), size)
	if err != nil {
		return nil, fmt.Errorf("expand label %q: %w", label, err)
	}
	return out, nil
}

// protect13 makes the protection of TLS 1.3 that a traffic secret gives
// (RFC 8446 §7.3).
func protect13(s *suite, secret []byte) (*protection, error) {
	key, err := expandLabel(s, secret, "key", s.keySize)
	if err != nil {
		return nil, err
	}
	iv, err := expandLabel(s, secret, "iv", nonceSize)
	if err != nil {
		return nil, err
	}
	return newProtection(s, version13, key, iv)
}

// protect12 makes the protection of TLS 1.2 of what a side sends (RFC 5246
// §6.3).
func protect12(s *suite, side Side, p *Params, master []byte) (*protection, error) {
	ivSize := saltSize
	if s.chacha {
		ivSize = nonceSize // RFC 7905 §2
	}
	seed := append(append([]byte("key expansion"), p.ServerRandom[:]...), p.ClientRandom[:]...)
	block := prf12(s, master, seed, 2*s.keySize+2*ivSize)
	keys, ivs := block[:2*s.keySize], block[2*s.keySize:]
	if side == Server {
		return newProtection(s, version12, keys[s.keySize:], ivs[ivSize:])
	}
	return newProtection(s, version12, keys[:s.keySize], ivs[:ivSize])
}

// prf12 is the pseudorandom function of TLS 1.2, of which seed begins with the
// label (RFC 5246 §5).
func prf12(s *suite, secret, seed []byte, size int) []byte {
	out := make([]byte, 0, size+s.hashSize)
	mac := hmac.New(s.hash, secret)
	for a := seed; len(out) < size; {
		mac.Reset()
		mac.Write(a)
		a = mac.Sum(nil)
		mac.Reset()
		mac.Write(a)
		mac.Write(seed)
		out = mac.Sum(out)
	}
	return out[:size]
}
