// SPDX-License-Identifier: Apache-2.0

package sniff

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// captured returns what a client of crypto/tls sends first.
func captured(tb testing.TB, config *tls.Config) []byte {
	tb.Helper()
	config.InsecureSkipVerify = true
	client, server := net.Pipe()
	done := make(chan error, 1)
	go func() { done <- tls.Client(client, config).Handshake() }()
	var b []byte
	for status := Incomplete; status != Complete; _, status = ClientHello(b) {
		if status == NotTLS {
			tb.Fatalf("crypto/tls sent no hello: %x", b)
		}
		piece := make([]byte, MaxHello)
		n, err := server.Read(piece)
		if err != nil {
			tb.Fatalf("read hello: %v", err)
		}
		b = append(b, piece[:n]...)
	}
	server.Close()
	if err := <-done; err == nil {
		tb.Fatal("the handshake succeeded without a server")
	}
	client.Close()
	return b
}

// hello describes a ClientHello to build.
type hello struct {
	session    int
	extensions []extension
	noBlock    bool   // no extensions block at all
	trailing   []byte // after the extensions
}

type extension struct {
	kind uint16
	data []byte
}

func vector8(b ...byte) []byte { return append([]byte{byte(len(b))}, b...) }

func vector16(b ...byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(b))), b...)
}

// message is the handshake message. Its random is 1, 2, … 32.
func (h hello) message() []byte {
	body := binary.BigEndian.AppendUint16(nil, 0x0303)
	for i := range 32 {
		body = append(body, byte(i+1))
	}
	body = append(body, vector8(make([]byte, h.session)...)...)
	body = append(body, vector16(0x1a, 0x1a, 0x13, 0x01)...) // GREASE first
	body = append(body, vector8(0)...)
	if !h.noBlock {
		var block []byte
		for _, e := range h.extensions {
			block = binary.BigEndian.AppendUint16(block, e.kind)
			block = append(block, vector16(e.data...)...)
		}
		body = append(body, vector16(block...)...)
	}
	body = append(body, h.trailing...)
	return append([]byte{typeClientHello, byte(len(body) >> 16), byte(len(body) >> 8), byte(len(body))}, body...)
}

// records splits a message over records of size bytes.
func records(message []byte, size int) (out []byte) {
	for part := range slices.Chunk(message, size) {
		out = append(out, recordHandshake, 3, 1)
		out = append(out, vector16(part...)...)
	}
	return out
}

func sni(names ...string) extension {
	var list []byte
	for _, n := range names {
		list = append(list, 0)
		list = append(list, vector16([]byte(n)...)...)
	}
	return extension{extServerName, vector16(list...)}
}

func alpn(names ...string) extension {
	var list []byte
	for _, n := range names {
		list = append(list, vector8([]byte(n)...)...)
	}
	return extension{extALPN, vector16(list...)}
}

var greaseExtension = extension{0x3a3a, []byte{0}}

// checkHello wants h from b, NeedMore from every proper prefix of its first n
// bytes, and nothing changed by what follows.
func checkHello(t *testing.T, b []byte, want Hello) {
	t.Helper()
	original := bytes.Clone(b)
	for i := range len(b) {
		if got, status := ClientHello(b[:i]); status != Incomplete || !reflect.DeepEqual(got, Hello{}) {
			t.Fatalf("of %d of %d bytes: status %d, %+v", i, len(b), status, got)
		}
		if got := First(b[:i]); i >= 6 && got != TLS {
			t.Fatalf("First of %d bytes = %v, want %v", i, got, TLS)
		}
	}
	for _, rest := range []string{"", "\x16\x03\x01\x00\x01x", "early data"} {
		got, status := ClientHello(append(bytes.Clone(b), rest...))
		if status != Complete || !reflect.DeepEqual(got, want) {
			t.Errorf("with %q after it: status %d\n got %+v\nwant %+v", rest, status, got, want)
		}
	}
	if !bytes.Equal(b, original) {
		t.Error("ClientHello changed its input")
	}
}

func TestClientHelloOfCryptoTLS(t *testing.T) {
	for _, tt := range []struct {
		name   string
		config *tls.Config
		want   Hello
	}{
		{"plain", &tls.Config{ServerName: "Store.Example.com."}, Hello{SNI: "store.example.com"}},
		{"alpn", &tls.Config{ServerName: "store.example.com", NextProtos: []string{"h2", "http/1.1"}}, Hello{SNI: "store.example.com", ALPN: []string{"h2", "http/1.1"}}},
		{"address", &tls.Config{ServerName: "192.0.2.1"}, Hello{}},
		{"TLS 1.2", &tls.Config{ServerName: "a", MaxVersion: tls.VersionTLS12}, Hello{SNI: "a"}},
		{"classical key shares", &tls.Config{ServerName: "a.example", CurvePreferences: []tls.CurveID{tls.X25519}}, Hello{SNI: "a.example"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := captured(t, tt.config)
			got, _ := ClientHello(b)
			if got.Random == [32]byte{} || !bytes.Contains(b, got.Random[:]) {
				t.Errorf("random = %x, want bytes of the hello", got.Random)
			}
			tt.want.Random = got.Random
			checkHello(t, b, tt.want)
			message := b[recordHeader:]
			for _, size := range []int{11, 100} {
				checkHello(t, records(message, size), tt.want)
			}
		})
	}
}

// A hello beyond 16 KiB does not fit one record.
func TestClientHelloOfManyRecords(t *testing.T) {
	var protos []string
	for i := range 120 {
		protos = append(protos, strings.Repeat(string(rune('a'+i%26)), 200))
	}
	b := captured(t, &tls.Config{ServerName: "store.example.com", NextProtos: protos})
	if len(b) <= maxRecord {
		t.Fatalf("hello of %d bytes, want more than a record", len(b))
	}
	got, status := ClientHello(b)
	if status != Complete || got.SNI != "store.example.com" || !slices.Equal(got.ALPN, protos[:maxALPN]) {
		t.Errorf("status %d, SNI %q, %d protocols", status, got.SNI, len(got.ALPN))
	}
}

// The files hold the first flight of curl 7.88, openssl s_client 3.0 (once with
// -noservername -tls1_2), Python 3.11 and Node 20.
func TestClientHelloOfOtherClients(t *testing.T) {
	for _, tt := range []struct {
		file string
		want Hello
	}{
		{"curl.bin", Hello{SNI: "store.example.com", ALPN: []string{"h2", "http/1.1"}}},
		{"openssl.bin", Hello{SNI: "store.example.com", ALPN: []string{"h2", "http/1.1"}}},
		{"openssl_tls12.bin", Hello{}},
		{"python.bin", Hello{SNI: "store.example.com"}},
		{"node.bin", Hello{SNI: "store.example.com", ALPN: []string{"http/1.1"}}},
	} {
		t.Run(tt.file, func(t *testing.T) {
			b, err := os.ReadFile(filepath.Join("testdata", tt.file))
			if err != nil {
				t.Fatal(err)
			}
			copy(tt.want.Random[:], b[recordHeader+messageHeader+2:])
			checkHello(t, b, tt.want)
		})
	}
}

func TestClientHello(t *testing.T) {
	var random [32]byte
	for i := range random {
		random[i] = byte(i + 1)
	}
	for _, tt := range []struct {
		name string
		h    hello
		want Hello
	}{
		{"no extensions block", hello{noBlock: true}, Hello{}},
		{"no extensions", hello{}, Hello{}},
		{"session", hello{session: 32, extensions: []extension{sni("a.example")}}, Hello{SNI: "a.example"}},
		{"grease", hello{extensions: []extension{greaseExtension, sni("a.example"), alpn("\x2a\x2a", "h2", "\x2a\x3a"), {0xfafa, nil}}},
			Hello{SNI: "a.example", ALPN: []string{"h2", "\x2a\x3a"}}},
		{"ech", hello{extensions: []extension{sni("public.example"), {extECH, make([]byte, 200)}}}, Hello{SNI: "public.example", ECH: true}},
		{"upper case and dot", hello{extensions: []extension{sni("A.eXample.")}}, Hello{SNI: "a.example"}},
		{"IPv4 as name", hello{extensions: []extension{sni("192.0.2.1")}}, Hello{}},
		{"IPv6 as name", hello{extensions: []extension{sni("2001:db8::1")}}, Hello{}},
		{"IPv6 in brackets", hello{extensions: []extension{sni("[2001:db8::1]")}}, Hello{}},
		{"name with a port", hello{extensions: []extension{sni("a.example:443")}}, Hello{}},
		{"name with a NUL", hello{extensions: []extension{sni("a.example\x00.b")}}, Hello{}},
		{"name beyond ASCII", hello{extensions: []extension{sni("caf\u00e9.example")}}, Hello{}},
		{"empty name", hello{extensions: []extension{sni("")}}, Hello{}},
		{"overlong name", hello{extensions: []extension{sni(strings.Repeat("a.", 127))}}, Hello{SNI: strings.TrimSuffix(strings.Repeat("a.", 127), ".")}},
		{"too long a name", hello{extensions: []extension{sni(strings.Repeat("a.", 127) + "b")}}, Hello{}},
		{"empty list of names", hello{extensions: []extension{sni()}}, Hello{}},
		{"other type of name", hello{extensions: []extension{{extServerName, vector16(append([]byte{9}, vector16('x')...)...)}}}, Hello{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.want.Random = random
			for _, size := range []int{1 << 14, 7, 1} {
				checkHello(t, records(tt.h.message(), size), tt.want)
			}
		})
	}
}

func TestClientHelloRefuses(t *testing.T) {
	valid := records(hello{extensions: []extension{sni("a.example")}}.message(), 1<<14)
	edit := func(at int, c byte) []byte {
		b := bytes.Clone(valid)
		b[at] = c
		return b
	}
	whole := func(h hello) []byte { return records(h.message(), 1<<14) }
	two := records(hello{extensions: []extension{sni("a.example")}}.message(), 50)
	second := recordHeader + 50
	editSecond := func(at int, c byte) []byte {
		b := bytes.Clone(two)
		b[second+at] = c
		return b
	}
	for _, tt := range []struct {
		name string
		b    []byte
	}{
		{"HTTP", []byte("GET / HTTP/1.1\r\n")},
		{"alert", edit(0, 21)},
		{"application data", edit(0, 23)},
		{"other version", edit(1, 2)},
		{"ServerHello", edit(5, 2)},
		{"start of a ServerHello", []byte("\x16\x03\x01\x00\x05\x02")},
		{"message too long", edit(6, 2)},
		{"message longer than its fields", edit(8, valid[8]-1)},
		{"alert between two records", editSecond(0, 21)},
		{"other version in the second record", editSecond(1, 2)},
		{"empty second record", append(bytes.Clone(two[:second]), 22, 3, 1, 0, 0)},
		{"second record too long", append(bytes.Clone(two[:second]), 22, 3, 1, 0x40, 1)},
		{"session beyond the end", edit(recordHeader+messageHeader+2+32, 255)},
		{"half a length of the extensions", whole(hello{session: 0, noBlock: true, trailing: []byte{1}})},
		{"text after the extensions", whole(hello{trailing: []byte{0}})},
		{"two names", whole(hello{extensions: []extension{sni("a.example", "b.example")}})},
		{"two lists of names", whole(hello{extensions: []extension{sni("a.example"), sni("a.example")}})},
		{"name beyond its list", whole(hello{extensions: []extension{{extServerName, []byte{0, 4, 0, 0, 9, 'a'}}}})},
		{"text after the names", whole(hello{extensions: []extension{{extServerName, append(sni("a").data, 0)}}})},
		{"no list of names", whole(hello{extensions: []extension{{extServerName, nil}}})},
		{"two lists of protocols", whole(hello{extensions: []extension{alpn("h2"), alpn("h2")}})},
		{"empty protocol", whole(hello{extensions: []extension{alpn("h2", "")}})},
		{"protocol beyond its list", whole(hello{extensions: []extension{{extALPN, []byte{0, 2, 9, 'h'}}}})},
		{"text after the protocols", whole(hello{extensions: []extension{{extALPN, append(alpn("h2").data, 0)}}})},
		{"ECH twice", whole(hello{extensions: []extension{{extECH, nil}, {extECH, nil}}})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got, status := ClientHello(tt.b); status != NotTLS || !reflect.DeepEqual(got, Hello{}) {
				t.Errorf("ClientHello(%x) = %+v, %d, want NotTLS", tt.b, got, status)
			}
		})
	}
}

func TestClientHelloLimit(t *testing.T) {
	// One record header for every byte: the hello itself is small.
	message := hello{extensions: []extension{sni("a.example"), {21, make([]byte, 12000)}}}.message()
	b := records(message, 1)
	if len(b) <= MaxHello {
		t.Fatalf("stream of %d bytes, want more than %d", len(b), MaxHello)
	}
	if _, status := ClientHello(b[:MaxHello-1]); status != Incomplete {
		t.Errorf("below the limit: status %d, want Incomplete", status)
	}
	if _, status := ClientHello(b[:MaxHello]); status != NotTLS {
		t.Errorf("at the limit: status %d, want NotTLS", status)
	}
	if _, status := ClientHello(records(message, 100)); status != Complete {
		t.Errorf("in larger records: status %d, want Complete", status)
	}
}

func FuzzClientHello(f *testing.F) {
	files, err := filepath.Glob("testdata/*.bin")
	if err != nil || len(files) == 0 {
		f.Fatalf("captured hellos: %v, %v", files, err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, uint(100), uint16(300))
		f.Add(records(b[recordHeader:], 40), uint(50), uint16(1))
	}
	f.Add(records(hello{extensions: []extension{greaseExtension, sni("a.example"), alpn("h2"), {extECH, []byte{1}}}}.message(), 9), uint(7), uint16(2))
	f.Fuzz(func(t *testing.T, b []byte, i uint, size uint16) {
		h, status := ClientHello(b)
		// An answer never changes as more bytes arrive.
		if early, s := ClientHello(b[:i%uint(len(b)+1)]); s != Incomplete && (s != status || !reflect.DeepEqual(early, h)) {
			t.Fatalf("early %+v, %d, then %+v, %d", early, s, h, status)
		}
		if status != Complete {
			if !reflect.DeepEqual(h, Hello{}) {
				t.Fatalf("status %d with %+v", status, h)
			}
			return
		}
		if h.SNI != "" {
			if name, port, ok := CanonicalHost(h.SNI); name != h.SNI || port != 0 || !ok {
				t.Fatalf("SNI %q is not canonical: %q", h.SNI, name)
			}
		}
		if len(h.ALPN) > maxALPN {
			t.Fatalf("%d protocols", len(h.ALPN))
		}
		// How the message is cut into records is no part of it.
		message, _ := handshake(b)
		full := binary.BigEndian.AppendUint32(nil, uint32(typeClientHello)<<24|uint32(len(message)))
		again := records(append(full, message...), 1+int(size)%maxRecord)
		if len(again) > MaxHello {
			return
		}
		if got, s := ClientHello(again); s != Complete || !reflect.DeepEqual(got, h) {
			t.Fatalf("in other records: %+v, %d, want %+v", got, s, h)
		}
	})
}

func BenchmarkClientHello(b *testing.B) {
	hello, err := os.ReadFile("testdata/curl.bin")
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, status := ClientHello(hello); status != Complete {
			b.Fatal(status)
		}
	}
}
