// SPDX-License-Identifier: Apache-2.0

package http1

import "bytes"

// Fields calls yield for every field line of a head that ParseRequest or
// ParseResponse accepted, in order, until yield returns false. Names are as
// sent; values are without the white space around them. The value of a folded
// field includes its line breaks (RFC 9112 §5.2: read them as spaces). Lines
// of a response that are no fields are left out.
//
// Both slices are views into head. Fields does not allocate, nor does a yield
// that keeps no reference.
func Fields(head []byte, yield func(name, value []byte) bool) {
	started := false
	for at := 0; ; {
		start := at
		end, next := anyLine(head, at)
		if next == 0 {
			return
		}
		at = next
		if !started { // the start line, and empty lines before it
			started = end > start
			continue
		}
		if end == start {
			return
		}
		for at < len(head) && (head[at] == ' ' || head[at] == '\t') {
			if end, next = anyLine(head, at); next == 0 {
				return
			}
			at = next
		}
		field := head[start:end]
		i := bytes.IndexByte(field, ':')
		if i <= 0 {
			continue
		}
		if !yield(trim(field[:i]), trim(field[i+1:])) {
			return
		}
	}
}

// Field returns the value of the first field with that name, which is given in
// lower case.
func Field(head []byte, name string) (value []byte, ok bool) {
	Fields(head, func(n, v []byte) bool {
		if ok = equalFold(n, name); ok {
			value = v
		}
		return !ok
	})
	return value, ok
}

// EqualFold reports whether the field name b is name, which is given in lower
// case, in any case (RFC 9110 §5.1).
func EqualFold(b []byte, name string) bool { return equalFold(b, name) }
