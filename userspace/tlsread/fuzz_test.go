// SPDX-License-Identifier: Apache-2.0

package tlsread

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/egressd/egressd/userspace/sniff"
)

// What is read of a ServerHello does not depend on how much is there, once it
// is enough.
func FuzzServerHello(f *testing.F) {
	for _, tt := range helloTests() {
		f.Add(tt.wire, uint16(60))
	}
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n"), uint16(1))
	f.Fuzz(func(t *testing.T, wire []byte, cut uint16) {
		whole, status := ServerHello(wire)
		if status != sniff.Complete && whole != (Params{}) {
			t.Errorf("status %d with %+v", status, whole)
		}
		part, early := ServerHello(wire[:int(cut)%(len(wire)+1)])
		if early != sniff.Incomplete && (early != status || part != whole) {
			t.Errorf("status %d, %+v of %d bytes, but %d, %+v of all", early, part, cut, status, whole)
		}
	})
}

// Any bytes are read without harm, and the same in any pieces.
func FuzzNext(f *testing.F) {
	for _, suite := range []uint16{0x1301, 0xc02f} {
		for _, side := range []Side{Client, Server} {
			s := newSealer(f, side, versionOf(suite), suite)
			if suite == 0x1301 {
				s.shaken()
			} else {
				s.shaken12()
			}
			f.Add(s.data(10).record(Handshake, keyUpdate(0)...).out, uint8(side), suite == 0x1301, uint8(3))
		}
	}
	f.Fuzz(func(t *testing.T, wire []byte, side uint8, v13 bool, piece uint8) {
		suite := uint16(0xc02f)
		if v13 {
			suite = 0x1301
		}
		s := newSealer(t, Side(side%2), versionOf(suite), suite)
		whole := read(s.mustReader(s.secrets()), wire, 1<<20, 0)
		parts := read(s.mustReader(s.secrets()), wire, int(piece)+1, 0)
		if !slices.Equal(whole.kinds, parts.kinds) || !bytes.Equal(whole.data, parts.data) || whole.left != parts.left || !sameError(whole.err, parts.err) {
			t.Errorf("whole %v, %d bytes, %d left, %v; in pieces of %d: %v, %d bytes, %d left, %v",
				whole.kinds, len(whole.data), whole.left, whole.err, piece, parts.kinds, len(parts.data), parts.left, parts.err)
		}
	})
}

func versionOf(suite uint16) uint16 {
	if suites13[suite] != nil {
		return version13
	}
	return version12
}

func sameError(a, b error) bool {
	return (a == nil) == (b == nil) && (a == nil || a.Error() == b.Error())
}

// script writes a connection by the bytes of an input, and returns what of it
// is application data. Padded says that records may be padded, or be long ones
// that are not data.
func script(s *sealer, input []byte) (data []byte, padded bool) {
	v13 := s.params.Version == version13
	if v13 {
		s.shaken()
	} else {
		s.shaken12()
	}
	for len(input) >= 3 {
		op, n := input[0], (int(input[1])<<8|int(input[2]))%(maxPlain+1)
		input = input[3:]
		content := filled(n)
		switch {
		default:
			s.record(ApplicationData, content...)
			data = append(data, content...)
		case op%8 == 1 && v13:
			s.record(Handshake, keyUpdate(op/8%2)...).useNext()
		case op%8 == 2 && v13: // a ticket in two records
			ticket := message(4, filled(n%900)...)
			s.record(Handshake, ticket[:n%3+1]...).record(Handshake, ticket[n%3+1:]...)
		case op%8 == 3 && v13:
			padded = true
			content = content[:n/2]
			s.padded(ApplicationData, n/2, content...)
			data = append(data, content...)
		case op%8 == 4 && v13 && n > 4:
			padded = true
			s.record(Handshake, message(4, filled(n-4)...)...)
		case op%8 == 5:
			s.record(Alert, 1, 90)
		}
	}
	return data, padded
}

var fuzzSuites = []uint16{0x1301, 0x1302, 0x1303, 0xc02f, 0xc030, 0xcca8}

// Of what a sealer wrote all is read, however it is cut and skimmed, and once
// a bit was changed nothing that was not sent.
func FuzzReader(f *testing.F) {
	f.Add([]byte{0, 16, 0, 1, 0, 0, 0, 63, 0, 2, 1, 0, 0, 0, 9}, uint8(0), uint16(700), uint16(0x3fff), uint32(900))
	f.Add([]byte{0, 16, 0, 3, 8, 0, 0, 63, 0, 9, 0, 0, 0, 9, 9}, uint8(1), uint16(0), uint16(5000), uint32(8000))
	f.Add([]byte{0, 16, 0, 4, 8, 0, 0, 63, 0, 9, 0, 0, 5, 0, 0}, uint8(2), uint16(3000), uint16(1), uint32(99))
	f.Add([]byte{0, 16, 0, 0, 8, 0, 0, 0, 0, 5, 0, 0, 0, 3, 0}, uint8(9), uint16(40), uint16(0xffff), uint32(3000))
	f.Add([]byte{0, 3, 231, 0, 4, 1, 0, 4, 0, 5, 0, 0, 0, 3, 0}, uint8(11), uint16(1), uint16(0xffff), uint32(3000))
	f.Fuzz(func(t *testing.T, input []byte, kind uint8, piece, want uint16, flip uint32) {
		input = input[:min(len(input), 24)] // eight records
		suite := fuzzSuites[int(kind)%len(fuzzSuites)]
		s := newSealer(t, Side(kind/6%2), versionOf(suite), suite)
		data, padded := script(s, input)

		got := read(s.mustReader(s.secrets()), s.out, int(piece)+1, 0)
		if got.err != nil || got.left > 0 || !bytes.Equal(got.data, data) {
			t.Fatalf("error %v, %d left, %d bytes of data, want %d", got.err, got.left, len(got.data), len(data))
		}
		skimmed := read(s.mustReader(s.secrets()), s.out, int(piece)+1, int64(want))
		switch doubt := padded && errors.Is(skimmed.err, ErrDoubt); {
		case doubt:
		case skimmed.err != nil || skimmed.left > 0 || len(skimmed.data)+int(skimmed.past) != len(data):
			t.Fatalf("skimmed: error %v, %d left, %d and %d bytes, want %d", skimmed.err, skimmed.left, skimmed.past, len(skimmed.data), len(data))
		}

		wire := bytes.Clone(s.out)
		at := int(flip>>3) % len(wire)
		wire[at] ^= 1 << (flip & 7)
		got = read(s.mustReader(s.secrets()), wire, int(piece)+1, 0)
		if !bytes.HasPrefix(data, got.data) {
			t.Fatalf("bit %d of byte %d: %d bytes of data that were not sent", flip&7, at, len(got.data))
		}
	})
}
