// SPDX-License-Identifier: Apache-2.0

// Package sniff tells from the first bytes of a connection what is spoken on
// it and which host is meant. It does no I/O, keeps no state and changes no
// byte: who drives it calls again with more of the same stream for as long as
// the answer is NeedMore.
//
// A NeedMore never resolves itself: a protocol may wait for the server after
// bytes that could be the start of another protocol, so the driver gives up
// after a time of its own and treats the connection as Opaque.
package sniff

import "bytes"

// Protocol is what a connection speaks.
type Protocol uint8

// Protocols.
const (
	NeedMore Protocol = iota // the bytes so far fit several
	HTTP1                    // a request line of HTTP/1.x or of something that imitates it
	HTTP2                    // the connection preface of HTTP/2 without TLS (RFC 9113 §3.4)
	TLS                      // a TLS handshake record that starts with a ClientHello
	SOCKS4                   // SOCKS4 or 4a
	SOCKS5                   // RFC 1928
	Opaque                   // anything else
)

// String returns the name of p as metrics and logs show it.
func (p Protocol) String() string {
	switch p {
	case NeedMore:
		return "unknown"
	case HTTP1:
		return "http1"
	case HTTP2:
		return "http2"
	case TLS:
		return "tls"
	case SOCKS4:
		return "socks4"
	case SOCKS5:
		return "socks5"
	}
	return "opaque"
}

// preface is what an HTTP/2 client sends first.
const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

const (
	// maxLeading is the number of bytes of empty lines before a request line.
	maxLeading = 8
	// maxLine is how much of a first line is looked at. A longer one, of text
	// only, is taken as HTTP, whose parser refuses what it is not.
	maxLine = 8 << 10
)

// First tells the protocol of a connection from its first bytes.
//
// HTTP1 is wide on purpose: whatever a lenient server could take for a request
// must reach the HTTP parser, which refuses it, rather than pass as Opaque.
// So the first line of text decides unless it starts like any usual request:
// it is HTTP if it has "HTTP/" in it.
func First(b []byte) Protocol {
	if len(b) == 0 {
		return NeedMore
	}
	switch b[0] {
	case recordHandshake:
		return firstTLS(b)
	case 4:
		return firstSOCKS(b, SOCKS4, 1, 2) // commands CONNECT and BIND
	case 5:
		return firstSOCKS(b, SOCKS5, 1, 255) // number of methods
	}
	if len(b) < len(preface) && preface[:len(b)] == string(b) {
		return NeedMore
	}
	if bytes.HasPrefix(b, []byte(preface)) {
		return HTTP2
	}
	return firstHTTP(b)
}

// firstSOCKS expects the second byte to be in a range.
func firstSOCKS(b []byte, p Protocol, low, high byte) Protocol {
	switch {
	case len(b) < 2:
		return NeedMore
	case b[1] < low || b[1] > high:
		return Opaque
	}
	return p
}

func firstTLS(b []byte) Protocol {
	switch {
	case len(b) > 1 && b[1] != 3,
		len(b) > 2 && b[2] > 4,
		len(b) > 4 && !validRecordLength(b),
		len(b) > 5 && b[5] != typeClientHello:
		return Opaque
	case len(b) < 6:
		return NeedMore
	}
	return TLS
}

func firstHTTP(b []byte) Protocol {
	line := b
	for len(line) > 0 && (line[0] == '\r' || line[0] == '\n') {
		line = line[1:]
	}
	if len(b)-len(line) > maxLeading {
		return Opaque
	}
	usual, i := true, 0
	for i < len(line) && isToken[line[i]] {
		usual = usual && (line[i] < 'a' || line[i] > 'z')
		i++
	}
	switch {
	case len(line) == 0:
		return NeedMore
	case i == 0:
		return Opaque
	case usual && i+1 < len(line) && line[i] == ' ' && line[i+1] == '/':
		return HTTP1
	}
	for i, c := range line {
		switch {
		case i == maxLine:
			return HTTP1
		case c == '\n' && bytes.Contains(line[:i], []byte("HTTP/")):
			return HTTP1
		case c == '\n', c < ' ' && c != '\t' && c != '\r', c == 0x7f:
			return Opaque
		}
	}
	return NeedMore
}

// isToken has the bytes of a method (RFC 9110 §5.6.2).
var isToken = func() (t [256]bool) {
	for c := range 128 {
		switch {
		case '0' <= c && c <= '9', 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z':
			t[c] = true
		}
	}
	for _, c := range []byte("!#$%&'*+-.^_`|~") {
		t[c] = true
	}
	return t
}()
