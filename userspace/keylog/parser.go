// SPDX-License-Identifier: Apache-2.0

package keylog

import (
	"bytes"
	"encoding/hex"
)

// Label says which secret of a session a line holds.
type Label uint8

// Labels of secrets that are kept (RFC 9850 section 2).
const (
	Master          Label = iota // CLIENT_RANDOM: the master secret, up to TLS 1.2
	ClientHandshake              // CLIENT_HANDSHAKE_TRAFFIC_SECRET
	ServerHandshake              // SERVER_HANDSHAKE_TRAFFIC_SECRET
	ClientTraffic                // CLIENT_TRAFFIC_SECRET_0
	ServerTraffic                // SERVER_TRAFFIC_SECRET_0
	numLabels
)

// labels are those of the format. Of TLS 1.3, the order is that in which a
// session makes them.
var labels = map[string]Label{
	"CLIENT_RANDOM":                   Master,
	"CLIENT_HANDSHAKE_TRAFFIC_SECRET": ClientHandshake,
	"SERVER_HANDSHAKE_TRAFFIC_SECRET": ServerHandshake,
	"CLIENT_TRAFFIC_SECRET_0":         ClientTraffic,
	"SERVER_TRAFFIC_SECRET_0":         ServerTraffic,
}

const (
	randomSize = 32 // bytes of a client random
	maxSecret  = 48 // bytes: a master secret, or a secret of SHA-384
	shaSize    = 32 // bytes of a secret of SHA-256

	// maxLine bounds a line without its end. The longest of a secret that is
	// kept has 193 bytes; a longer one may hold a configuration for ECH.
	maxLine = 512
)

// Line is a line with a secret.
type Line struct {
	Label  Label
	Random [randomSize]byte // of the ClientHello
	// Secret belongs to the parser, which overwrites it when the line has been
	// dealt with.
	Secret []byte
}

// Parser reads a key log that arrives in pieces. Pieces may be cut anywhere;
// what they yield does not depend on it. The zero Parser is ready. One
// goroutine uses it.
//
// Writers that share a pipe may tear lines apart only if these are longer than
// PIPE_BUF, 4096 bytes, which none of a secret is.
type Parser struct {
	partial [maxLine]byte // the line so far
	n       int
	skip    bool // the line is too long: pass over the rest of it

	counts LineCounts
}

// LineCounts says what a parser met.
type LineCounts struct {
	Lines   uint64 // with a secret that is kept
	Other   uint64 // comments, empty lines, and secrets that nobody needs
	Garbage uint64 // what is no line of a key log
}

// Counts says what the parser has met so far. A line counts when it has ended.
func (p *Parser) Counts() LineCounts { return p.counts }

// Feed reads b and calls f for each line with a secret. It keeps nothing of b
// but an unfinished line.
func (p *Parser) Feed(b []byte, f func(*Line)) {
	for len(b) > 0 {
		end := bytes.IndexByte(b, '\n')
		if end < 0 {
			p.keep(b)
			return
		}
		part := b[:end]
		b = b[end+1:]
		switch {
		case p.skip:
			p.skip = false
		case p.n == 0 && len(part) <= maxLine:
			p.line(part, f)
		default:
			p.keep(part)
			if !p.skip {
				p.line(p.partial[:p.n], f)
			}
			p.skip = false
		}
		p.forget()
	}
}

// keep appends to the unfinished line.
func (p *Parser) keep(b []byte) {
	switch {
	case p.skip:
	case len(b) > maxLine-p.n:
		p.forget()
		p.skip = true
		p.counts.Garbage++
	default:
		p.n += copy(p.partial[p.n:], b)
	}
}

// forget overwrites the unfinished line.
func (p *Parser) forget() {
	clear(p.partial[:p.n])
	p.n = 0
}

// line reads one line, without its end.
func (p *Parser) line(text []byte, f func(*Line)) {
	text = bytes.TrimSuffix(text, []byte("\r"))
	if len(bytes.TrimSpace(text)) == 0 || text[0] == '#' {
		p.counts.Other++
		return
	}
	label, rest, _ := bytes.Cut(text, []byte(" "))
	random, secret, ok := bytes.Cut(rest, []byte(" "))
	var scratch [maxSecret]byte
	var l Line
	if !ok || !isLabel(label) || !decode(l.Random[:], random) {
		p.counts.Garbage++
		return
	}
	var known bool
	if l.Label, known = labels[string(label)]; !known {
		if isHex(secret) {
			p.counts.Other++
		} else {
			p.counts.Garbage++
		}
		return
	}
	n := len(secret) / 2
	if !(n == maxSecret || n == shaSize && l.Label != Master) || !decode(scratch[:n], secret) {
		clear(scratch[:])
		p.counts.Garbage++
		return
	}
	l.Secret = scratch[:n]
	p.counts.Lines++
	f(&l)
	clear(scratch[:])
}

// decode reads text as the hexadecimal digits of exactly len(to) bytes.
func decode(to, text []byte) bool {
	if len(text) != 2*len(to) {
		return false
	}
	_, err := hex.Decode(to, text)
	return err == nil
}

// isHex reports whether text is hexadecimal digits of whole bytes, and some.
func isHex(text []byte) bool {
	for _, c := range text {
		if !('0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'f') {
			return false
		}
	}
	return len(text) > 0 && len(text)%2 == 0
}

// isLabel reports whether text is a label of the format, known or not.
func isLabel(text []byte) bool {
	for _, c := range text {
		if !('A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_') {
			return false
		}
	}
	return len(text) > 0
}
