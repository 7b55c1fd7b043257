// SPDX-License-Identifier: Apache-2.0

package verdict

import "bytes"

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func isLetter(c byte) bool { c |= 0x20; return 'a' <= c && c <= 'z' }

func lower(c byte) byte {
	if 'A' <= c && c <= 'Z' {
		c |= 0x20
	}
	return c
}

// is reports whether b is the word, which is in lower case, in any case.
func is(b []byte, word string) bool {
	if len(b) != len(word) || len(b) > 0 && lower(b[0]) != word[0] {
		return false
	}
	if string(b) == word { // faster, and the common case
		return true
	}
	for i := range len(word) {
		if lower(b[i]) != word[i] {
			return false
		}
	}
	return true
}

// trim takes the blanks off both ends: OWS of RFC 9110 section 5.6.3.
func trim(b []byte) []byte {
	for len(b) > 0 && (b[0] == ' ' || b[0] == '\t') {
		b = b[1:]
	}
	for len(b) > 0 && (b[len(b)-1] == ' ' || b[len(b)-1] == '\t') {
		b = b[:len(b)-1]
	}
	return b
}

// cut splits b around the first sep; more says that there was one.
func cut(b []byte, sep byte) (before, after []byte, more bool) {
	if i := bytes.IndexByte(b, sep); i >= 0 {
		return b[:i], b[i+1:], true
	}
	return b, nil, false
}

// cutWord takes the word, which is in lower case, off the front of b, where it
// may be in any case.
func cutWord(b []byte, word string) ([]byte, bool) {
	if len(b) < len(word) || !is(b[:len(word)], word) {
		return nil, false
	}
	return b[len(word):], true
}
