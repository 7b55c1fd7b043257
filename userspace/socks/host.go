// SPDX-License-Identifier: Apache-2.0

package socks

import (
	"bytes"

	"github.com/egressd/egressd/userspace/sniff"
)

// hostName brings a domain name of a request into the spelling of
// sniff.CanonicalHost. Clients also write addresses there, those of IPv6 with
// or without brackets, but never a port. A name with a NUL inside is none:
// proxies that are written in C would read another one.
func hostName(b []byte) (string, bool) {
	var whole [2 + 255]byte
	if bytes.IndexByte(b, ':') >= 0 {
		if b[0] != '[' {
			b = append(append(append(whole[:0], '['), b...), ']')
		}
		if b[len(b)-1] != ']' {
			return "", false
		}
	}
	var buf [255]byte
	name, _, ok := sniff.AppendHost(buf[:0], b)
	return string(name), ok
}
