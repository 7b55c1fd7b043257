// SPDX-License-Identifier: Apache-2.0

package sight

// Library is a family of TLS implementations: what the functions of a Target
// take and return.
type Library uint8

// The families that can be probed.
const (
	// OpenSSL is libssl, shared or linked into a program.
	OpenSSL Library = iota + 1
	// LibCrypto is the library of BIO_write beside a shared libssl.
	LibCrypto
	// GnuTLS is libgnutls.
	GnuTLS
	// GoTLS is crypto/tls of Go, or a fork of it.
	GoTLS
)

// String returns the name of the family.
func (l Library) String() string {
	switch l {
	case OpenSSL:
		return "openssl"
	case LibCrypto:
		return "libcrypto"
	case GnuTLS:
		return "gnutls"
	case GoTLS:
		return "go"
	}
	return "unknown"
}

// Target is an executable file with functions to probe. A probe hangs on the
// inode: it sees every process that maps the file, now or later.
type Target struct {
	Library Library
	// Path leads to the file at the time of Attach: /proc/PID/map_files/A-B,
	// or /proc/PID/root/… It may be gone later.
	Path string
	// Dev and Inode are those of the file as /proc/PID/maps tells them; the
	// device in the encoding of unix.Mkdev. An Inode of 0 is not compared.
	Dev, Inode uint64
	Probes     []Probe
	// BuildID is the file's, in hexadecimal, or "".
	BuildID string
	// Name is the mapped path, for people.
	Name string
}

// Probe is one function of a Target.
type Probe struct {
	// Symbol is the function's name. Functions that the family of the target
	// does not know are passed over by Attach. In Go what counts is the end:
	// tls.(*Conn).Read, tls.(*Conn).Write, (*UConn).Read, (*UConn).Write.
	Symbol string
	// Entry is where the function begins, as an offset in the file.
	Entry uint64
	// Returns are the offsets in the file of all RET instructions of the
	// function. They are needed for Go, whose stacks move, and not used
	// elsewhere.
	Returns []uint64
}
