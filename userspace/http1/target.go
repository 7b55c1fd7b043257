// SPDX-License-Identifier: Apache-2.0

package http1

import "bytes"

// rootPath is the path of an absolute target without one.
var rootPath = []byte("/")

// target reads h.Target, which has no controls or spaces, into the fields that
// depend on it.
func (h *RequestHead) target() *Error {
	t := h.Target
	switch {
	case string(h.Method) == "CONNECT":
		h.Form = Authority
		host, port, ok := splitAuthority(t)
		if !ok || len(host) == 0 || port == 0 {
			return inRequest(invalidTarget)
		}
		h.Authority, h.Host, h.Port = t, host, port
		return nil
	case len(t) > 0 && t[0] == '/':
		h.Form = Origin
		h.Path = pathOf(t)
		return nil
	case string(t) == "*" && string(h.Method) == "OPTIONS":
		h.Form = Asterisk
		return nil
	}
	return h.absolute(t)
}

// absolute reads "scheme://[userinfo@]host[:port][/path][?query]".
func (h *RequestHead) absolute(t []byte) *Error {
	i := bytes.IndexByte(t, ':')
	if i <= 0 || !letter(t[0]) || !all(t[:i], isScheme) || len(t) < i+3 || t[i+1] != '/' || t[i+2] != '/' {
		return inRequest(invalidTarget)
	}
	h.Form = Absolute
	h.Scheme = t[:i:i]
	t = t[i+3:]
	end := bytes.IndexAny(t, "/?#")
	if end < 0 {
		end = len(t)
	}
	authority, rest := t[:end:end], t[end:]
	// An "@" in the userinfo is not possible: the first one ends it, and the
	// host has none.
	if at := bytes.IndexByte(authority, '@'); at >= 0 {
		if !all(authority[:at], isUserinfo) {
			return inRequest(invalidTarget)
		}
		authority = authority[at+1:]
	}
	host, port, ok := splitAuthority(authority)
	if !ok || len(host) == 0 {
		return inRequest(invalidTarget)
	}
	h.Authority, h.Host, h.Port = authority, host, port
	h.Path = rootPath
	if len(rest) > 0 && rest[0] == '/' {
		h.Path = pathOf(rest)
	}
	return nil
}

// pathOf cuts the query off. A fragment has no place in a target (RFC 9112
// §3.2.1), but readers that take one cut it off too.
func pathOf(t []byte) []byte {
	if i := bytes.IndexByte(t, '?'); i >= 0 {
		t = t[:i:i]
	}
	if i := bytes.IndexByte(t, '#'); i >= 0 {
		t = t[:i:i]
	}
	return t
}

func letter(c byte) bool { return lower[c]-'a' < 26 }

// splitAuthority splits host[:port]. The host keeps its brackets; it may be
// empty only if there is no port either. The port is 0 if none is named, as in
// "host" and "host:"; a written 0 is an error.
func splitAuthority(b []byte) (host []byte, port uint16, ok bool) {
	i := 0
	if len(b) > 0 && b[0] == '[' {
		end := bytes.IndexByte(b, ']')
		if end < len("[::") || !all(b[1:end], isIPv6) {
			return nil, 0, false
		}
		i = end + 1
	} else {
		for i < len(b) && class[b[i]]&isName != 0 {
			i++
		}
	}
	host = b[:i:i]
	switch {
	case i == len(b):
		return host, 0, true
	case b[i] != ':' || i == 0 || len(b) > i+1+5:
		return nil, 0, false
	}
	digits := b[i+1:]
	if len(digits) == 0 {
		return host, 0, true
	}
	n, ok := decimal(digits)
	if !ok || n == 0 || n > 65535 {
		return nil, 0, false
	}
	return host, uint16(n), true
}
