// SPDX-License-Identifier: Apache-2.0

package socks

import (
	"bytes"
	"encoding/binary"
	"net/netip"
)

// Client consumes the next message of the client at the start of b.
func (o *Observer) Client(b []byte) (n int, ev Event, err error) {
	switch {
	case o.err != nil:
		return 0, None, o.err
	case len(b) == 0:
		return 0, None, nil
	case o.opaque, o.server >= sendsTunnel, o.client == sendsPayload && o.command.tunnels():
		return len(b), o.rest(), nil
	case o.client == sendsPayload:
		return 0, None, nil // nothing is due of the client before the reply
	case o.client == sendsRequest:
		return o.request5(b)
	case o.client == sendsNext:
		return o.next(b)
	case b[0] == 4:
		return o.request4(b)
	case b[0] == 5:
		return o.greeting(b)
	}
	return o.fail(errVersion)
}

// greeting reads VER NMETHODS METHODS (RFC 1928 §3).
func (o *Observer) greeting(b []byte) (int, Event, error) {
	if len(b) < 2 {
		return 0, None, nil
	}
	n := 2 + int(b[1])
	switch {
	case n == 2:
		return o.fail(errNoMethods)
	case len(b) < n:
		return 0, None, nil
	}
	for _, method := range b[2:n] {
		switch method {
		case methodNone:
			o.offers |= offersNone
		case methodUserPassword:
			o.offers |= offersUserPassword
		default:
			o.offers |= offersOther
		}
	}
	o.version, o.client = 5, sendsNext
	return n, Greeting, nil
}

// next reads what follows the greeting. Before the proxy has chosen, the
// version in the first byte tells an authentication from a request, unless
// another method is in play whose messages may look the same.
func (o *Observer) next(b []byte) (int, Event, error) {
	switch {
	case o.server == sendsAuthResult:
		return o.auth(b)
	case o.server == sendsReply:
		return o.request5(b)
	case o.offers&offersOther != 0:
		return 0, None, nil
	case b[0] == 1 && o.offers&offersUserPassword != 0:
		return o.auth(b)
	case b[0] == 5 && o.offers&offersNone != 0:
		return o.request5(b)
	}
	return 0, None, nil
}

// auth reads VER ULEN UNAME PLEN PASSWD (RFC 1929 §2). Empty names and
// passwords are no less whole, though the RFC wants a byte.
func (o *Observer) auth(b []byte) (int, Event, error) {
	if b[0] != 1 {
		return o.fail(errAuthVersion)
	}
	if len(b) < 2 {
		return 0, None, nil
	}
	end := 2 + int(b[1])
	if len(b) <= end {
		return 0, None, nil
	}
	n := end + 1 + int(b[end])
	if len(b) < n {
		return 0, None, nil
	}
	o.user, o.authed, o.client = string(b[2:end]), true, sendsRequest
	return n, Auth, nil
}

// Address types of RFC 1928 §5, and the length of an address.
const (
	addressIPv4   = 1
	addressDomain = 3
	addressIPv6   = 4

	lenIPv4 = 4
	lenIPv6 = 16
	lenPort = 2
)

// request5 reads VER CMD RSV ATYP DST.ADDR DST.PORT (RFC 1928 §4).
func (o *Observer) request5(b []byte) (int, Event, error) {
	const head = 4
	if b[0] != 5 {
		return o.fail(errVersion)
	}
	if len(b) < head+1 {
		return 0, None, nil
	}
	start, n := head, 0
	switch b[3] {
	case addressIPv4:
		n = head + lenIPv4 + lenPort
	case addressIPv6:
		n = head + lenIPv6 + lenPort
	case addressDomain:
		start++
		n = start + int(b[head]) + lenPort
	default:
		return o.fail(errAddressType)
	}
	if len(b) < n {
		return 0, None, nil
	}
	host := b[start : n-lenPort]
	if b[3] == addressDomain {
		name, ok := hostName(host)
		if !ok {
			return o.fail(errHost)
		}
		o.host = name
	} else {
		o.host = addrText(host)
	}
	o.port = binary.BigEndian.Uint16(b[n-lenPort:])
	o.command, o.client = Command(b[1]), sendsPayload
	return n, Request, nil
}

// request4 reads VN CD DSTPORT DSTIP USERID NUL and, if DSTIP is 0.0.0.x with
// an x other than 0, a domain name and its NUL (SOCKS4a).
func (o *Observer) request4(b []byte) (int, Event, error) {
	const head = 8
	if len(b) < head {
		return 0, None, nil
	}
	user, whole, fits := text(b[head:])
	switch {
	case !fits:
		return o.fail(errLongUser)
	case !whole:
		return 0, None, nil
	}
	n := head + len(user) + 1
	ip := b[4:head]
	host := addrText(ip)
	if ip[0] == 0 && ip[1] == 0 && ip[2] == 0 && ip[3] != 0 {
		domain, whole, fits := text(b[n:])
		switch {
		case !fits:
			return o.fail(errLongDomain)
		case !whole:
			return 0, None, nil
		}
		n += len(domain) + 1
		var ok bool
		if host, ok = hostName(domain); !ok {
			return o.fail(errHost)
		}
	}
	o.user, o.host, o.port = string(user), host, binary.BigEndian.Uint16(b[2:])
	o.version, o.command = 4, Command(b[1])
	o.client, o.server = sendsPayload, sendsReply
	return n, Request, nil
}

// text returns the bytes of b before its first NUL. whole is false if there is
// no NUL yet, fits if it is not within 256 bytes.
func text(b []byte) (s []byte, whole, fits bool) {
	const most = 255
	if i := bytes.IndexByte(b[:min(len(b), most+1)], 0); i >= 0 {
		return b[:i], true, true
	}
	return nil, false, len(b) <= most
}

// addrText returns the text of an address of 4 or 16 bytes, an IPv4-mapped one
// as IPv4.
func addrText(b []byte) string {
	addr, _ := netip.AddrFromSlice(b)
	return addr.Unmap().String()
}
