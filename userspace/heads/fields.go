// SPDX-License-Identifier: Apache-2.0

package heads

import (
	"github.com/egressd/egressd/userspace/h2"
	"github.com/egressd/egressd/userspace/http1"
)

// fieldList is the fields of a head: lines of HTTP/1 or a block of HTTP/2.
type fieldList struct {
	head  []byte
	block []h2.Field
}

func (l *fieldList) each(yield func(name, value []byte) bool) {
	if l.head != nil {
		http1.Fields(l.head, yield)
		return
	}
	for i := range l.block {
		f := &l.block[i]
		if f.Unknown || len(f.Name) > 0 && f.Name[0] == ':' {
			continue
		}
		if !yield(f.Name, f.Value) {
			return
		}
	}
}

// text keeps strings of the request before, so that a client that asks for the
// same host again and again makes none.
type text struct{ method, path, host, scheme, protocol string }

// same returns b as a string: last if that is what b says.
func same(last string, b []byte) string {
	if last == string(b) {
		return last
	}
	return string(b)
}
