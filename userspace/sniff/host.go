// SPDX-License-Identifier: Apache-2.0

package sniff

import (
	"bytes"
	"net/netip"
)

// maxName is the length of the longest host name (RFC 1035 §2.3.4, as text).
const maxName = 253

// CanonicalHost brings host[:port] into the one spelling that policy compares:
// names in lower case without the trailing dot, IPv6 literals without brackets
// in canonical text, IPv4-mapped ones as IPv4. A-labels of internationalised
// names stay as they are. port is 0 if none is written.
//
// ok is false for what is no host: empty or overlong names and labels, bytes
// other than letters, digits, "-" and "_" in a label, IPv6 zones, bad ports.
func CanonicalHost(host string) (name string, port uint16, ok bool) {
	var buf [maxName]byte
	out, port, ok := AppendHost(buf[:0], []byte(host))
	return string(out), port, ok
}

// AppendHost is CanonicalHost for bytes: it appends the name to dst, and
// nothing if ok is false. It allocates only to grow dst, and for IPv6.
func AppendHost(dst, host []byte) (out []byte, port uint16, ok bool) {
	if len(host) > 0 && host[0] == '[' {
		return appendIPv6(dst, host)
	}
	if i := bytes.LastIndexByte(host, ':'); i >= 0 {
		if port, ok = parsePort(host[i+1:]); !ok {
			return dst, 0, false
		}
		host = host[:i]
	}
	if out, ok = appendName(dst, host); !ok {
		return dst, 0, false
	}
	return out, port, true
}

// appendName appends a host name or IPv4 address in lower case.
func appendName(dst, host []byte) ([]byte, bool) {
	if n := len(host); n > 0 && host[n-1] == '.' {
		host = host[:n-1]
	}
	if len(host) == 0 || len(host) > maxName {
		return dst, false
	}
	start, label := len(dst), 0
	for _, c := range host {
		switch {
		case 'a' <= c && c <= 'z', '0' <= c && c <= '9', c == '-', c == '_':
		case 'A' <= c && c <= 'Z':
			c += 'a' - 'A'
		case c == '.' && label > 0:
			dst = append(dst, c)
			label = 0
			continue
		default:
			return dst[:start], false
		}
		if label++; label > 63 {
			return dst[:start], false
		}
		dst = append(dst, c)
	}
	if label == 0 {
		return dst[:start], false
	}
	return dst, true
}

// appendIPv6 appends the address of "[address]" or "[address]:port".
func appendIPv6(dst, host []byte) ([]byte, uint16, bool) {
	end := bytes.IndexByte(host, ']')
	if end < 0 {
		return dst, 0, false
	}
	var port uint16
	if rest := host[end+1:]; len(rest) > 0 {
		var ok bool
		if port, ok = parsePort(rest[1:]); !ok || rest[0] != ':' {
			return dst, 0, false
		}
	}
	addr, err := netip.ParseAddr(string(host[1:end]))
	if err != nil || !addr.Is6() || addr.Zone() != "" {
		return dst, 0, false
	}
	return addr.Unmap().AppendTo(dst), port, true
}

// parsePort reads the text after the colon: empty, or 1 to 65535.
func parsePort(b []byte) (uint16, bool) {
	if len(b) > 5 {
		return 0, false
	}
	n := 0
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int(c-'0')
	}
	return uint16(n), n <= 65535 && (n > 0 || len(b) == 0)
}
