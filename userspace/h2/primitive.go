// SPDX-License-Identifier: Apache-2.0

package h2

import "golang.org/x/net/http2/hpack"

// maxIntegerBytes is the number of bytes that an integer may have after its
// first. Nine hold 63 bits; more would be padding without end.
const maxIntegerBytes = 9

// readInteger reads an integer with a prefix of bits bits (RFC 7541 §5.1) off
// the start of p, which is not empty.
func readInteger(p []byte, bits uint8) (v uint64, rest []byte, err error) {
	full := uint64(1)<<bits - 1
	if v = uint64(p[0]) & full; v < full {
		return v, p[1:], nil
	}
	for i, c := range p[1:] {
		if i == maxIntegerBytes {
			return 0, nil, ErrInteger
		}
		v += uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			return v, p[i+2:], nil
		}
	}
	if len(p) > maxIntegerBytes {
		return 0, nil, ErrInteger
	}
	return 0, nil, ErrTruncated
}

// appendInteger appends v with a prefix of bits bits; the first byte begins
// with the bits of pattern.
func appendInteger(dst []byte, pattern byte, bits uint8, v uint64) []byte {
	full := uint64(1)<<bits - 1
	if v < full {
		return append(dst, pattern|byte(v))
	}
	dst = append(dst, pattern|byte(full))
	for v -= full; v >= 0x80; v >>= 7 {
		dst = append(dst, byte(v)|0x80)
	}
	return append(dst, byte(v))
}

// scratch is memory for strings that were Huffman-coded. What was cut off it
// stays valid when it grows.
type scratch struct{ b []byte }

// Write appends p; it is what the Huffman decoder writes to.
func (s *scratch) Write(p []byte) (int, error) {
	s.b = append(s.b, p...)
	return len(p), nil
}

// keepBytes is the size in bytes of memory that is kept for the next block; what
// a rare large one needed is given back.
const keepBytes = 8 << 10

// reuse empties b for the next block.
func reuse(b []byte) []byte {
	if cap(b) > keepBytes {
		return nil
	}
	return b[:0]
}

// readString reads a string (RFC 7541 §5.2) off the start of p. It is a view
// into p or, if it was Huffman-coded, into s.
func readString(p []byte, s *scratch) (v []byte, huffman bool, rest []byte, err error) {
	if len(p) == 0 {
		return nil, false, nil, ErrTruncated
	}
	huffman = p[0]&0x80 != 0
	n, p, err := readInteger(p, 7)
	if err != nil {
		return nil, false, nil, err
	}
	if n > uint64(len(p)) {
		return nil, false, nil, ErrTruncated
	}
	v, rest = p[:n:n], p[n:]
	if !huffman {
		return v, false, rest, nil
	}
	start := len(s.b)
	if _, err := hpack.HuffmanDecode(s, v); err != nil {
		return nil, false, nil, ErrHuffman
	}
	return s.b[start:len(s.b):len(s.b)], true, rest, nil
}

// appendString appends v as a string, Huffman-coded or not.
func appendString(dst, v []byte, huffman bool) []byte {
	if !huffman {
		return append(appendInteger(dst, 0, 7, uint64(len(v))), v...)
	}
	s := string(v)
	dst = appendInteger(dst, 0x80, 7, hpack.HuffmanEncodeLength(s))
	return hpack.AppendHuffmanString(dst, s)
}

// shorter reports whether Huffman coding makes v shorter.
func shorter(v []byte) bool { return hpack.HuffmanEncodeLength(string(v)) < uint64(len(v)) }
