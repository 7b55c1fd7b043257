// SPDX-License-Identifier: Apache-2.0

package sniff

import (
	"bytes"
	"strings"
	"testing"
)

var firsts = []struct {
	name   string
	stream string
	want   Protocol
	at     int // bytes after which the answer is known, before: NeedMore
}{
	{"get", "GET / HTTP/1.1\r\n", HTTP1, 5},
	{"own method", "M-SEARCH /x HTTP/1.1\r\n", HTTP1, 10},
	{"empty lines first", "\r\n\r\nGET / HTTP/1.1\r\n", HTTP1, 9},
	{"absolute target", "GET http://a/ HTTP/1.1\r\n", HTTP1, 24},
	{"connect", "CONNECT a:443 HTTP/1.1\r\n", HTTP1, 24},
	{"options", "OPTIONS * HTTP/1.1\r\n", HTTP1, 20},
	{"method in lower case", "get / HTTP/1.1\r\n", HTTP1, 16},
	{"HTTP/0.9", "GET /\r\n", HTTP1, 5},
	{"bare LF", "GET / HTTP/1.1\n", HTTP1, 5},
	{"tabs between the parts", "GET\t/\tHTTP/1.1\r\n", HTTP1, 16},
	{"bare CR", "GE\rT / HTTP/1.1\r\n", HTTP1, 17},
	{"bracket in the method", "GE[T / HTTP/1.1\r\n", HTTP1, 17},
	{"text beyond ASCII", "GET caf\xc3\xa9 HTTP/1.1\r\n", HTTP1, 20},
	{"endless line", strings.Repeat("x", maxLine+5), HTTP1, maxLine + 1},
	{"HTTP/2", preface + "\x00\x00", HTTP2, len(preface)},
	{"almost HTTP/2", "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", HTTP1, 19},
	{"TLS 1.0 record", "\x16\x03\x01\x02\x00\x01\x00\x01", TLS, 6},
	{"TLS 1.2 record", "\x16\x03\x03\x00\x01\x01", TLS, 6},
	{"TLS alert", "\x15\x03\x01\x00\x02\x02\x28", Opaque, 1},
	{"TLS of another major version", "\x16\x02\x01", Opaque, 2},
	{"TLS of another minor version", "\x16\x03\x05", Opaque, 3},
	{"empty TLS record", "\x16\x03\x01\x00\x00\x01", Opaque, 5},
	{"long TLS record", "\x16\x03\x01\x40\x01\x01", Opaque, 5},
	{"TLS ServerHello", "\x16\x03\x01\x00\x05\x02", Opaque, 6},
	{"SOCKS4", "\x04\x01\x00\x50", SOCKS4, 2},
	{"SOCKS4 bind", "\x04\x02\x00\x50", SOCKS4, 2},
	{"not SOCKS4", "\x04\x03", Opaque, 2},
	{"SOCKS5", "\x05\x01\x00", SOCKS5, 2},
	{"not SOCKS5", "\x05\x00", Opaque, 2},
	{"SSH", "SSH-2.0-OpenSSH_9.2\r\n", Opaque, 21},
	{"Redis", "*1\r\n$4\r\nPING\r\n", Opaque, 4},
	{"Redis inline", "GET key\r\n", Opaque, 9},
	{"memcached", "get key\r\n", Opaque, 9},
	{"SMTP", "EHLO a.example\r\n", Opaque, 16},
	{"AMQP", "AMQP\x00\x00\x09\x01", Opaque, 5},
	{"PostgreSQL", "\x00\x00\x00\x08\x04\xd2\x16\x2f", Opaque, 1},
	{"MongoDB with a letter for a length", "A\x00\x00\x00", Opaque, 2},
	{"bytes beyond ASCII", "\xff\xfe", Opaque, 1},
	{"space first", " GET / HTTP/1.1\r\n", Opaque, 1},
	{"many empty lines", strings.Repeat("\r\n", 5), Opaque, 9},
	{"control byte before HTTP/", "0\x19HTTP/1.1\n", Opaque, 2},
	{"DEL in a line", "QUIT\x7f", Opaque, 5},
}

func TestFirst(t *testing.T) {
	for _, tt := range firsts {
		t.Run(tt.name, func(t *testing.T) {
			for i := range len(tt.stream) + 1 {
				want := tt.want
				if i < tt.at {
					want = NeedMore
				}
				if got := First([]byte(tt.stream[:i])); got != want {
					t.Errorf("First of %d bytes of %q = %v, want %v", i, tt.stream[:min(i, 40)], got, want)
				}
			}
		})
	}
}

func TestProtocolString(t *testing.T) {
	want := []string{"unknown", "http1", "http2", "tls", "socks4", "socks5", "opaque"}
	for i, w := range want {
		if got := Protocol(i).String(); got != w {
			t.Errorf("Protocol(%d) = %q, want %q", i, got, w)
		}
	}
}

func FuzzFirst(f *testing.F) {
	for _, tt := range firsts {
		if len(tt.stream) < 1000 {
			f.Add([]byte(tt.stream), uint(3))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, i uint) {
		whole := First(b)
		// An answer never changes as more bytes arrive.
		prefix := b[:i%uint(len(b)+1)]
		if early := First(prefix); early != NeedMore && early != whole {
			t.Fatalf("First(%q) = %v, but First(%q) = %v", prefix, early, b, whole)
		}
		// Nothing that could be a request passes unseen.
		if line, _, ok := bytes.Cut(b, []byte("\n")); ok && len(line) > 0 && isToken[line[0]] && bytes.HasSuffix(line, []byte(" HTTP/1.1\r")) {
			clean := bytes.IndexFunc(line[:len(line)-1], func(r rune) bool { return r < ' ' || r == 0x7f }) < 0
			if clean && whole != HTTP1 {
				t.Fatalf("First(%q) = %v, want %v", b, whole, HTTP1)
			}
		}
		if _, status := ClientHello(b); status == Complete && whole != TLS {
			t.Fatalf("First = %v of a ClientHello", whole)
		}
	})
}

func BenchmarkFirst(b *testing.B) {
	head := []byte("GET /api/v2/products HTTP/1.1\r\nHost: store.example.com\r\n\r\n")
	b.ReportAllocs()
	for b.Loop() {
		if got := First(head); got != HTTP1 {
			b.Fatal(got)
		}
	}
}
