// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/config/strict"
)

func (v value) match(m *policy.Match) {
	v.mapping(
		field{"hosts", func(v value) { m.Hosts = v.hosts() }},
		field{"ports", func(v value) {
			if ports := v.ports(); len(ports) > 0 {
				m.Ports, m.PortsNamed = ports, true
			}
		}},
		field{"path", func(v value) { m.Path = v.pathPrefix() }},
		field{"methods", func(v value) { m.Methods = v.methods() }},
	)
}

func (v value) hosts() []policy.HostPattern {
	var hosts []policy.HostPattern
	seen := map[policy.HostPattern]bool{}
	v.list(`[store.example.com, "*.store.example.com"]`, "leave it out to match every host", func(v value) {
		s, ok := v.text("store.example.com")
		if !ok {
			return
		}
		h, err := parseHost(s)
		switch {
		case err != nil:
			v.Reject("%v", err)
		case seen[h]:
			v.Reject("%q is listed twice; remove one", s)
		default:
			seen[h] = true
			hosts = append(hosts, h)
		}
	})
	return hosts
}

func (v value) ports() []uint16 {
	var ports []uint16
	seen := map[int]bool{}
	v.list("[80, 443]", "leave it out for [80, 443]", func(v value) {
		if n, ok := v.integer(1, 65535); ok && once(v, seen, n) {
			ports = append(ports, uint16(n))
		}
	})
	return ports
}

func (v value) pathPrefix() string {
	s, ok := v.text("/api/")
	switch {
	case !ok:
	case !strings.HasPrefix(s, "/"):
		v.Reject("%q must begin with a slash; write the start of the path, as in /api/", strict.Clip(s))
	case strings.ContainsFunc(s, func(c rune) bool { return c <= ' ' || c >= 0x7f || c == '?' || c == '#' }):
		v.Reject("%q is no path as it is sent; leave out the query, and write other letters as %%XX", strict.Clip(s))
	default:
		return s
	}
	return ""
}

func (v value) methods() []string {
	var methods []string
	seen := map[string]bool{}
	v.list("[GET, HEAD]", "leave it out to match every method", func(v value) {
		s, ok := v.text("GET")
		switch {
		case !ok:
		case !isToken(s, maxMethod):
			v.Reject("%q is no method; write one as in GET", strict.Clip(s))
		case s != strings.ToUpper(s):
			v.Reject("%q must be in upper case; write %s", s, strings.ToUpper(strict.Clip(s)))
		case once(v, seen, s):
			methods = append(methods, s)
		}
	})
	return methods
}

// maxMethod bounds the name of a method; the longest that is registered has 17
// letters.
const maxMethod = 40

// isToken reports whether s is a token of RFC 9110 section 5.6.2, of at most
// so many characters.
func isToken(s string, most int) bool {
	for i := range len(s) {
		if !isAlphanumeric(s[i]) && strings.IndexByte("!#$%&'*+-.^_`|~", s[i]) < 0 {
			return false
		}
	}
	return s != "" && len(s) <= most
}

// parseHost reads a host pattern: a name, "*.name", "*", an address with or
// without brackets, or a CIDR. Its errors are the end of a message.
func parseHost(s string) (policy.HostPattern, error) {
	var none policy.HostPattern
	switch {
	case s == "":
		return none, errors.New("is empty; write a host name, or * for every host")
	case s == "*":
		return policy.HostPattern{Any: true}, nil
	case strings.Contains(s, "://"):
		return none, fmt.Errorf("%q is a URL; write the host name alone", strict.Clip(s))
	case strings.ContainsFunc(s, isControl):
		return none, fmt.Errorf("%q has a control character; write the host name alone", strict.Clip(s))
	case !isASCII(s):
		return none, fmt.Errorf("%q is not ASCII; write the name as it is sent, with labels as in xn--bcher-kva", strict.Clip(s))
	}
	if bare, ok := strings.CutPrefix(s, "["); ok {
		bare, ok = strings.CutSuffix(bare, "]")
		if a, err := netip.ParseAddr(bare); ok && err == nil && a.Is6() {
			return addressPattern(s, a)
		}
		if p, err := netip.ParsePrefix(bare); ok && err == nil && p.Addr().Is6() {
			return prefixPattern(s, p)
		}
		if host, port, ok := strings.Cut(s, "]:"); ok {
			return none, fmt.Errorf("%q names a port; write %s here and %s under ports", strict.Clip(s), strict.Clip(host)+"]", strict.Clip(port))
		}
		return none, fmt.Errorf("%q is no IPv6 address in brackets; write it as [2001:db8::1]", strict.Clip(s))
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return addressPattern(s, a)
	}
	if p, err := netip.ParsePrefix(s); err == nil {
		return prefixPattern(s, p)
	}
	if strings.Contains(s, "/") {
		return none, fmt.Errorf("%q is no CIDR; write it as 203.0.113.0/24, and a path under match.path", strict.Clip(s))
	}
	if host, port, ok := strings.Cut(s, ":"); ok && isDigits(port) {
		return none, fmt.Errorf("%q names a port; write %s here and %s under ports", strict.Clip(s), strict.Clip(host), strict.Clip(port))
	}
	name := strings.TrimSuffix(strings.ToLower(s), ".")
	if suffix, ok := strings.CutPrefix(name, "*"); ok && strings.HasPrefix(suffix, ".") && policy.IsHostName(suffix[1:]) {
		return policy.HostPattern{Suffix: suffix}, nil
	}
	switch {
	case strings.Contains(s, "*"):
		return none, fmt.Errorf("%q has a * that is not the whole first label; write it as *.example.com, or * for every host", strict.Clip(s))
	case !policy.IsHostName(name):
		return none, fmt.Errorf("%q is neither a host name nor an address; write it as store.example.com, 203.0.113.7 or 203.0.113.0/24", strict.Clip(s))
	}
	return policy.HostPattern{Name: name}, nil
}

// addressPattern is the pattern of one address: its canonical text, since
// that is what stands for a host without a name.
func addressPattern(s string, a netip.Addr) (policy.HostPattern, error) {
	if a.Zone() != "" {
		return policy.HostPattern{}, fmt.Errorf("%q names a zone; write the address alone", strict.Clip(s))
	}
	return policy.HostPattern{Name: a.Unmap().String()}, nil
}

// prefixPattern is the pattern of a CIDR. Bits beyond the length are dropped,
// and a v4-mapped one becomes that of IPv4, as destinations do.
func prefixPattern(s string, p netip.Prefix) (policy.HostPattern, error) {
	if p.Addr().Is4In6() {
		if p.Bits() < 96 {
			return policy.HostPattern{}, fmt.Errorf("%q covers more than IPv4; write it as 203.0.113.0/24", strict.Clip(s))
		}
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return policy.HostPattern{Prefix: p.Masked()}, nil
}

func isASCII(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}
