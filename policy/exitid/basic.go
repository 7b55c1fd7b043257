// SPDX-License-Identifier: Apache-2.0

package exitid

import "strings"

// BasicUser returns the user name out of the value of a Proxy-Authorization
// field, if its scheme is Basic (RFC 7617). ok is false for other schemes, for
// what is not base64 with its padding, for user names that are empty or longer
// than MaxUser or have control characters, and if there is no password, be it
// an empty one. The password is not decoded.
func BasicUser(value []byte) (user string, ok bool) {
	const scheme = "basic"
	value = trimSpace(value)
	if len(value) <= len(scheme) || !strings.EqualFold(string(value[:len(scheme)]), scheme) || value[len(scheme)] != ' ' {
		return "", false
	}
	code := trimSpace(value[len(scheme):])
	if len(code) == 0 || len(code)%4 != 0 || !isBase64(code) {
		return "", false
	}
	var buf [256]byte
	name := buf[:0]
	bits, have := uint(0), 0
	for _, c := range code {
		if c == '=' {
			break
		}
		// A byte is looked at as soon as its 8 bits are there, so at most the
		// 4 bits that share a digit with the colon are of the password.
		bits, have = bits<<6|uint(base64Value[c]-1), have+6
		if have < 8 {
			continue
		}
		have -= 8
		b := byte(bits >> have)
		bits &= 1<<have - 1
		switch {
		case b == ':':
			return string(name), len(name) > 0
		case b < ' ', b == 0x7f, len(name) == MaxUser:
			return "", false
		}
		name = append(name, b)
	}
	return "", false
}

// trimSpace takes the optional white space off a field value (RFC 9110 §5.6.3).
func trimSpace(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	for len(b) > 0 && (b[len(b)-1] == ' ' || b[len(b)-1] == '\t') {
		b = b[:len(b)-1]
	}
	return b
}

// isBase64 reports whether b is digits followed by at most two "=".
func isBase64(b []byte) bool {
	for range 2 {
		if n := len(b); n > 0 && b[n-1] == '=' {
			b = b[:n-1]
		}
	}
	for _, c := range b {
		if base64Value[c] == 0 {
			return false
		}
	}
	return true
}

// base64Value is one more than the value of a digit of base64 (RFC 4648 §4), 0
// for what is none.
var base64Value = func() (t [256]byte) {
	const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
	for i := range len(digits) {
		t[digits[i]] = byte(i + 1)
	}
	return t
}()
