// SPDX-License-Identifier: Apache-2.0

package sight

import (
	"errors"
	"fmt"
	"strings"
)

// hook is a program and whether it runs at an instruction or at the return of
// a function. The order is that of attaching.
type hook uint8

const (
	hookLeave hook = iota
	hookGoLeave
	hookFree
	hookBIOWrite
	hookSetFD
	hookGoEnter
	hookEnter
	numHooks
)

func (h hook) String() string {
	return [numHooks]string{"return", "RET of Go", "SSL_free", "BIO_write", "SSL_set_fd", "entry of Go", "entry"}[h]
}

// onReturn tells a return probe. Never one of Go: it puts an address on the
// stack that Go does not know, and the process dies.
func (h hook) onReturn() bool { return h == hookLeave }

// place is where a program hangs.
type place struct {
	offset uint64 // in the file
	cookie uint64 // what FUNC_* of bpf/sight.bpf.c says of the function
}

// The bits of an attach cookie, FUNC_* of bpf/sight.bpf.c.
const (
	funcRead      = 0
	funcWrite     = 1
	funcHandshake = 2
	funcEx        = 0x4
	funcEx2       = 0x8
	funcLong      = 0x10
	funcCovered   = 0x20
	funcLibrary   = 8 // shift
)

// function is how one is probed.
type function struct {
	hook hook
	bits uint64
}

// openssl are the functions of libssl and libcrypto, which may be one file.
var openssl = map[string]function{
	"SSL_read":         {hookEnter, funcRead},
	"SSL_read_ex":      {hookEnter, funcRead | funcEx},
	"SSL_write":        {hookEnter, funcWrite},
	"SSL_write_ex":     {hookEnter, funcWrite | funcEx},
	"SSL_write_ex2":    {hookEnter, funcWrite | funcEx2},
	"SSL_do_handshake": {hookEnter, funcHandshake},
	"SSL_connect":      {hookEnter, funcHandshake},
	"SSL_set_fd":       {hookSetFD, 0},
	"SSL_free":         {hookFree, 0},
	"BIO_write":        {hookBIOWrite, 0},
}

var gnutls = map[string]function{
	"gnutls_record_recv": {hookEnter, funcRead | funcLong},
	"gnutls_record_send": {hookEnter, funcWrite | funcLong},
}

// functionOf tells how to probe a function of a library.
func functionOf(l Library, symbol string) (function, bool) {
	switch l {
	case OpenSSL, LibCrypto:
		f, ok := openssl[symbol]
		return f, ok
	case GnuTLS:
		f, ok := gnutls[symbol]
		return f, ok
	case GoTLS:
		return goFunction(symbol)
	}
	return function{}, false
}

// goFunction knows the methods of crypto/tls and its forks by their ends. A
// UConn of a fork begins with a pointer to its Conn.
func goFunction(symbol string) (function, bool) {
	bits := uint64(funcRead)
	receiver, read := strings.CutSuffix(symbol, ".Read")
	if !read {
		var write bool
		if receiver, write = strings.CutSuffix(symbol, ".Write"); !write {
			return function{}, false
		}
		bits = funcWrite
	}
	switch {
	case strings.HasSuffix(receiver, "tls.(*Conn)"):
		return function{hookGoEnter, bits}, true
	case strings.HasSuffix(receiver, "tls.(*UConn)"):
		return function{hookGoEnter, bits | funcCovered}, true
	}
	return function{}, false
}

// planOf is where each program goes for a target.
func planOf(t Target) (plans [numHooks][]place, err error) {
	known := 0
	for _, p := range t.Probes {
		f, ok := functionOf(t.Library, p.Symbol)
		if !ok {
			continue
		}
		if p.Entry == 0 {
			return plans, fmt.Errorf("%s: no offset", p.Symbol)
		}
		known++
		at := place{p.Entry, f.bits | uint64(t.Library)<<funcLibrary}
		if t.Library == LibCrypto {
			at.cookie = f.bits | uint64(OpenSSL)<<funcLibrary
		}
		plans[f.hook] = append(plans[f.hook], at)
		switch f.hook {
		case hookEnter:
			plans[hookLeave] = append(plans[hookLeave], at)
		case hookGoEnter:
			if len(p.Returns) == 0 {
				return plans, fmt.Errorf("%s: no return is known", p.Symbol)
			}
			for _, offset := range p.Returns {
				plans[hookGoLeave] = append(plans[hookGoLeave], place{offset, at.cookie})
			}
		}
	}
	if known == 0 {
		return plans, errors.New("no function to probe")
	}
	return plans, nil
}
