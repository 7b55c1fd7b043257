// SPDX-License-Identifier: Apache-2.0

package tlsread

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"fmt"

	"golang.org/x/crypto/chacha20"
	"golang.org/x/crypto/chacha20poly1305"
)

const (
	nonceSize = 12
	// saltSize and explicitSize are the parts of a nonce of AES-GCM in TLS 1.2
	// that follow from the secret and that stand in the record (RFC 5288 §3).
	saltSize     = 4
	explicitSize = nonceSize - saltSize
)

// protection is how the records of a direction are protected under one key.
type protection struct {
	version uint16
	aead    cipher.AEAD
	block   cipher.Block // nil with ChaCha20
	key     []byte       // of ChaCha20
	iv      [nonceSize]byte
	inside  int    // bytes of the nonce that stand in each record
	seq     uint64 // of the next record

	// What is handed to the cipher lives here, since behind an interface it
	// would be allocated for every record.
	nonce  [nonceSize]byte
	extra  [13]byte
	stream [64]byte
}

// newProtection makes the protection by a key and an IV, which it takes over.
func newProtection(s *suite, version uint16, key, iv []byte) (*protection, error) {
	p := &protection{version: version}
	copy(p.iv[:], iv)
	var err error
	if s.chacha {
		p.key = key
		if p.aead, err = chacha20poly1305.New(key); err != nil {
			return nil, fmt.Errorf("use chacha20-poly1305 key: %w", err)
		}
		return p, nil
	}
	if version == version12 {
		p.inside = explicitSize
	}
	if p.block, err = aes.NewCipher(key); err != nil {
		return nil, fmt.Errorf("use aes key: %w", err)
	}
	if p.aead, err = cipher.NewGCM(p.block); err != nil {
		return nil, fmt.Errorf("use gcm: %w", err)
	}
	return p, nil
}

// overhead is the number of bytes by which the body of a record is longer than
// what it protects: in TLS 1.3 that is content, type and padding.
func (p *protection) overhead() int { return p.inside + tagSize }

// open decrypts a record into dst, which it does not grow if there is room for
// the body. It counts the record only if it is authentic.
func (p *protection) open(dst, record []byte) (inner []byte, ok bool) {
	body := record[recordHeader:]
	if len(body) < p.overhead() {
		return nil, false
	}
	extra := record[:recordHeader] // RFC 8446 §5.2
	if p.version == version12 {    // RFC 5246 §6.2.3.3
		binary.BigEndian.PutUint64(p.extra[:], p.seq)
		copy(p.extra[8:], record[:3])
		binary.BigEndian.PutUint16(p.extra[11:], uint16(len(body)-p.overhead()))
		extra = p.extra[:]
	}
	p.setNonce(body[:p.inside])
	inner, err := p.aead.Open(dst[:0], p.nonce[:], body[p.inside:], extra)
	if err != nil {
		return nil, false
	}
	p.seq++
	return inner, true
}

// setNonce makes the nonce of the next record (RFC 8446 §5.3, RFC 7905 §2,
// RFC 5288 §3).
func (p *protection) setNonce(inside []byte) {
	p.nonce = p.iv
	if len(inside) > 0 {
		copy(p.nonce[saltSize:], inside)
		return
	}
	low := p.nonce[nonceSize-8:]
	binary.BigEndian.PutUint64(low, binary.BigEndian.Uint64(low)^p.seq)
}

// isData reports whether the next record of TLS 1.3 is application data, by the
// byte c in which it has its type, the last one that is encrypted. Index is the
// number of those before it. That the record is authentic is not checked.
func (p *protection) isData(c byte, index int) bool {
	p.setNonce(nil)
	if p.block != nil {
		// GCM encrypts by counters from 2 on; 1 is for the tag (NIST SP
		// 800-38D §7.1).
		in, out := p.stream[:aes.BlockSize], p.stream[aes.BlockSize:2*aes.BlockSize]
		copy(in, p.nonce[:])
		binary.BigEndian.PutUint32(in[nonceSize:], uint32(2+index/aes.BlockSize))
		p.block.Encrypt(out, in)
		return ContentType(c^out[index%aes.BlockSize]) == ApplicationData
	}
	s, err := chacha20.NewUnauthenticatedCipher(p.key, p.nonce[:])
	if err != nil {
		return false
	}
	// ChaCha20 encrypts from 1 on; 0 is for the tag's key (RFC 8439 §2.8).
	const block = len(p.stream)
	s.SetCounter(uint32(1 + index/block))
	p.stream = [block]byte{}
	s.XORKeyStream(p.stream[:], p.stream[:])
	return ContentType(c^p.stream[index%block]) == ApplicationData
}

// unpad splits what a record of TLS 1.3 protects into content and type
// (RFC 8446 §5.4). Its type is Unread if there is nothing but padding.
func unpad(inner []byte) (content []byte, kind ContentType, padded bool) {
	trimmed := bytes.TrimRight(inner, "\x00")
	if len(trimmed) == 0 {
		return nil, Unread, true
	}
	last := len(trimmed) - 1
	return trimmed[:last], ContentType(trimmed[last]), len(trimmed) < len(inner)
}
