// SPDX-License-Identifier: Apache-2.0

package sniff

import (
	"strings"
	"testing"
)

func TestCanonicalHost(t *testing.T) {
	long := strings.Repeat("a", 63)
	longest := long + "." + long + "." + long + "." + long[:61] // 253
	for _, tt := range []struct {
		in   string
		name string
		port uint16
		ok   bool
	}{
		{"store.example.com", "store.example.com", 0, true},
		{"Store.EXAMPLE.com.", "store.example.com", 0, true},
		{"store.example.com.:8080", "store.example.com", 8080, true},
		{"store.example.com:", "store.example.com", 0, true},
		{"localhost", "localhost", 0, true},
		{"a_b-c.example", "a_b-c.example", 0, true},
		{"xn--Bcher-KVA.example", "xn--bcher-kva.example", 0, true},
		{"192.0.2.1:80", "192.0.2.1", 80, true},
		{"[2001:DB8:0:0::1]:443", "2001:db8::1", 443, true},
		{"[::1]", "::1", 0, true},
		{"[::ffff:192.0.2.1]", "192.0.2.1", 0, true},
		{"a:65535", "a", 65535, true},
		{"a:080", "a", 80, true},
		{longest, longest, 0, true},
		{longest + ".:1", longest, 1, true},

		{"", "", 0, false},
		{".", "", 0, false},
		{"..", "", 0, false},
		{":80", "", 0, false},
		{".a", "", 0, false},
		{"a..b", "", 0, false},
		{"a..", "", 0, false},
		{longest + "b", "", 0, false},
		{long + "a.example", "", 0, false},
		{"a:0", "", 0, false},
		{"a:65536", "", 0, false},
		{"a:000080", "", 0, false},
		{"a:-1", "", 0, false},
		{"a:80:80", "", 0, false},
		{"a b", "", 0, false},
		{"u@a", "", 0, false},
		{"a/b", "", 0, false},
		{"a%2e", "", 0, false},
		{"*.example", "", 0, false},
		{"caf\u00e9.example", "", 0, false},
		{"\u212a.example", "", 0, false},
		{"::1", "", 0, false},
		{"[::1", "", 0, false},
		{"[::1]80", "", 0, false},
		{"[::1]:x", "", 0, false},
		{"[192.0.2.1]", "", 0, false},
		{"[fe80::1%eth0]", "", 0, false},
		{"[]", "", 0, false},
		{"[a]", "", 0, false},
	} {
		name, port, ok := CanonicalHost(tt.in)
		if name != tt.name || port != tt.port || ok != tt.ok {
			t.Errorf("CanonicalHost(%q) = %q, %d, %t, want %q, %d, %t", tt.in, name, port, ok, tt.name, tt.port, tt.ok)
		}
		out, port, ok := AppendHost([]byte("x"), []byte(tt.in))
		if string(out) != "x"+tt.name || port != tt.port || ok != tt.ok {
			t.Errorf("AppendHost(%q) = %q, %d, %t, want %q, %d, %t", tt.in, out, port, ok, "x"+tt.name, tt.port, tt.ok)
		}
	}
}

func TestAppendHostAllocations(t *testing.T) {
	buf := make([]byte, 0, maxName)
	for _, host := range []string{"Store.Example.com:8080", "192.0.2.1"} {
		in := []byte(host)
		if got := testing.AllocsPerRun(100, func() { buf, _, _ = AppendHost(buf[:0], in) }); got != 0 {
			t.Errorf("AppendHost(%q): %v allocations, want 0", host, got)
		}
	}
}

func FuzzCanonicalHost(f *testing.F) {
	for _, s := range []string{"Store.example.com.:80", "[::FFFF:1.2.3.4]:1", "a..b", "[fe80::1%1]", "xn--a", ":", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, host string) {
		name, port, ok := CanonicalHost(host)
		if !ok {
			if name != "" || port != 0 {
				t.Fatalf("CanonicalHost(%q) = %q, %d and not ok", host, name, port)
			}
			return
		}
		if name == "" || strings.ToLower(name) != name || strings.HasSuffix(name, ".") {
			t.Fatalf("CanonicalHost(%q) = %q", host, name)
		}
		again := name
		if strings.Contains(name, ":") {
			again = "[" + name + "]"
		}
		if second, _, ok := CanonicalHost(again); !ok || second != name {
			t.Fatalf("CanonicalHost(%q) = %q, then %q, %t", host, name, second, ok)
		}
	})
}

func BenchmarkAppendHost(b *testing.B) {
	in, buf := []byte("store.example.com:8080"), make([]byte, 0, maxName)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, ok := AppendHost(buf, in); !ok {
			b.Fatal("not ok")
		}
	}
}
