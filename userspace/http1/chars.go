// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// Classes of bytes, as bits of class.
const (
	isToken    = 1 << iota // tchar, RFC 9110 §5.6.2
	isValue                // VCHAR, obs-text, SP and HTAB, RFC 9110 §5.5
	isName                 // bytes of a host name or IPv4 address
	isUserinfo             // unreserved, pct-encoded, sub-delims and ":", RFC 3986 §3.2.1
	isScheme               // RFC 3986 §3.1, after the first letter
	isTarget               // what cannot end a target: no controls and no spaces
	isIPv6                 // bytes between the brackets of an IPv6 literal; no zones
)

var class = func() (t [256]uint8) {
	set := func(bit uint8, chars string) {
		for i := range len(chars) {
			t[chars[i]] |= bit
		}
	}
	const digits = "0123456789"
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	set(isToken, digits+letters+"!#$%&'*+-.^_`|~")
	set(isName, digits+letters+"-._")
	set(isUserinfo, digits+letters+"-._~%!$&'()*+,;=:")
	set(isScheme, digits+letters+"+-.")
	set(isIPv6, digits+"abcdefABCDEF:.")
	for c := range 256 {
		if c >= ' ' && c != 0x7f || c == '\t' {
			t[c] |= isValue
		}
		if c > ' ' && c != 0x7f {
			t[c] |= isTarget
		}
	}
	return t
}()

var lower = func() (t [256]byte) {
	for c := range 256 {
		t[c] = byte(c)
		if 'A' <= c && c <= 'Z' {
			t[c] += 'a' - 'A'
		}
	}
	return t
}()

// all reports whether every byte of b is of the class bit.
func all(b []byte, bit uint8) bool {
	for _, c := range b {
		if class[c]&bit == 0 {
			return false
		}
	}
	return true
}

// Words of eight equal bytes, for looking at eight bytes at once.
const (
	ones  = 0x0101010101010101
	highs = 0x80 * ones
)

// suspect marks, in their highest bits, the bytes of x that are below limit (at
// most 0x80) or DEL if their own highest bit is ignored.
func suspect(x, limit uint64) uint64 {
	x &^= highs
	return (^(x + (0x80-limit)*ones) | (x + ones)) & highs
}

// tokenEnd returns the index of the first byte of b at or after i that is no
// token byte, or len(b).
func tokenEnd(b []byte, i int) int {
	for i < len(b) && class[b[i]]&isToken != 0 {
		i++
	}
	return i
}

// valueEnd returns the index of the first byte of b at or after i that a field
// value may not have, or len(b).
func valueEnd(b []byte, i int) int {
	for i < len(b) {
		if i+8 <= len(b) {
			odd := suspect(binary.LittleEndian.Uint64(b[i:]), ' ')
			if odd == 0 {
				i += 8
				continue
			}
			i += bits.TrailingZeros64(odd) / 8
		}
		if class[b[i]]&isValue == 0 {
			break
		}
		i++
	}
	return i
}

// validTarget reports whether b has no controls and no spaces. Bytes beyond
// ASCII pass: clients send them.
func validTarget(b []byte) bool {
	for len(b) >= 8 {
		if suspect(binary.LittleEndian.Uint64(b), ' '+1) != 0 && !all(b[:8], isTarget) {
			return false
		}
		b = b[8:]
	}
	return all(b, isTarget)
}

// equalFold reports whether b is name, which is lower case, in any case.
func equalFold(b []byte, name string) bool {
	if len(b) != len(name) {
		return false
	}
	for i, c := range b {
		if lower[c] != name[i] {
			return false
		}
	}
	return true
}

// trim cuts optional white space (SP and HTAB, RFC 9110 §5.6.3) off both ends.
func trim(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	for len(b) > 0 && (b[len(b)-1] == ' ' || b[len(b)-1] == '\t') {
		b = b[:len(b)-1]
	}
	return b
}

// nextElement splits the first element off a comma-separated list. The
// element may be empty.
func nextElement(list []byte) (element, rest []byte) {
	if i := bytes.IndexByte(list, ','); i >= 0 {
		return trim(list[:i]), list[i+1:]
	}
	return trim(list), nil
}

// decimal reads b, which must be digits only, at least one.
func decimal(b []byte) (n uint64, ok bool) {
	if len(b) == 0 {
		return 0, false
	}
	for _, c := range b {
		d := uint64(c - '0')
		if d > 9 || n > (1<<63-1-d)/10 {
			return 0, false
		}
		n = n*10 + d
	}
	return n, true
}
