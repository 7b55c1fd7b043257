// SPDX-License-Identifier: Apache-2.0

// Package h2 reads the frames and header blocks of HTTP/2 (RFC 9113) and HPACK
// (RFC 7541) out of a byte stream, and writes the few frames that egressd sends
// itself. It does no I/O and starts no goroutine; no value in it is safe for
// concurrent use.
//
// Framer finds the frames of one direction, Collector the header blocks in
// them, Decoder the fields in a block. Translator writes blocks anew for a peer
// that does not get all of them. What is read is judged only as far as it is
// needed to follow the stream: a request that is malformed by the rules of HTTP
// is for its receiver to refuse.
package h2

import "bytes"

// Limits of what is read.
const (
	// MaxBlock is the size in bytes of a header block, as it is on the wire.
	MaxBlock = 64 << 10
	// MaxFields is the number of fields that a header block may have.
	MaxFields = 1000
	// MaxField is the size in bytes that the name and the value of a field may
	// have together.
	MaxField = 64 << 10
	// MaxList is the size of the field list of a block as RFC 9113 §6.5.2 counts
	// it: 32 bytes more than name and value for each field.
	MaxList = 256 << 10
)

// Preface is what a client sends first (RFC 9113 §3.4).
const Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// PrefaceLen returns how many bytes at the start of b, at most len(Preface),
// are a start of the preface. A connection is HTTP/2 if they are all of it, may
// yet be if they are all of b, and is not otherwise.
func PrefaceLen(b []byte) int {
	b = b[:min(len(b), len(Preface))]
	if bytes.Equal(b, prefaceBytes[:len(b)]) {
		return len(b)
	}
	n := 0
	for b[n] == Preface[n] {
		n++
	}
	return n
}

var prefaceBytes = []byte(Preface)
