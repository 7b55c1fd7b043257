// SPDX-License-Identifier: Apache-2.0

package tlsorigin

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

func TestHelloMessage(t *testing.T) {
	want := chrome().message()
	for _, size := range []int{1, 3, 100, 1 << 14} {
		all := append(records(want, size), "what follows"...)
		end := len(all) - len("what follows")
		for n := range all {
			got, err := helloMessage(all[:n])
			if err != nil {
				t.Fatalf("records of %d bytes, %d read: %v", size, n, err)
			}
			if (got != nil) != (n >= end) {
				t.Fatalf("records of %d bytes: got a message %v after %d of %d bytes", size, got != nil, n, end)
			}
			if got != nil && !bytes.Equal(got, want) {
				t.Fatalf("records of %d bytes: got message %x, want %x", size, got, want)
			}
		}
	}
	for name, b := range map[string][]byte{
		"no TLS": []byte("GET / HTTP/1.1\r\n"), "no hello": records([]byte{2, 0, 0, 1, 0}, 100), "empty record": {22, 3, 1, 0, 0},
		"record too long": {22, 3, 1, 0x40, 1},
	} {
		if got, err := helloMessage(b); err == nil {
			t.Errorf("%s: got %x, want an error", name, got)
		}
	}
}

func TestParseHello(t *testing.T) {
	h, err := ParseHello(chrome().message())
	if err != nil {
		t.Fatal(err)
	}
	if h.SNI != "example.test" || !h.HasSNI || !reflect.DeepEqual(h.ALPN, []string{"h2", "http/1.1"}) ||
		!reflect.DeepEqual(h.Versions, []uint16{0x4a4a, 0x0304, 0x0303}) || len(h.Extensions) != 18 {
		t.Errorf("got %+v", h)
	}
	whole := chrome().message()
	for n := range whole {
		if _, err := ParseHello(whole[:n]); err == nil {
			t.Errorf("got no error for %d of %d bytes", n, len(whole))
		}
	}
}

func FuzzHello(f *testing.F) {
	f.Add(records(chrome().message(), 1<<14))
	f.Add(records(chrome().message(), 7))
	f.Add(records(helloParts{version: 769, ciphers: []uint16{4}}.message(), 100))
	real, err := filepath.Glob("../../userspace/sniff/testdata/*.bin")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range real {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		message, err := helloMessage(b)
		if err != nil || message == nil {
			return
		}
		// More bytes change nothing of what is complete.
		again, err := helloMessage(append(bytes.Clone(b), 0))
		if err != nil || !bytes.Equal(again, message) {
			t.Fatalf("with a byte more got %x, %v, want %x", again, err, message)
		}
		h, err := ParseHello(message)
		if err != nil {
			return
		}
		if sum, raw := h.JA4(); len(sum) != 36 || raw[:11] != sum[:11] {
			t.Errorf("got JA4 %q, raw %q", sum, raw)
		}
	})
}
