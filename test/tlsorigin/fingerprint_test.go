// SPDX-License-Identifier: Apache-2.0

package tlsorigin

import (
	"testing"

	"golang.org/x/crypto/cryptobyte"
)

// chrome is the hello that the definition of JA4 has as its example.
func chrome() helloParts {
	return helloParts{
		version: 0x0303,
		ciphers: []uint16{0x0a0a, 0x1301, 0x1302, 0x1303, 0xc02b, 0xc02f, 0xc02c, 0xc030, 0xcca9, 0xcca8, 0xc013, 0xc014, 0x009c, 0x009d, 0x002f, 0x0035},
		extensions: []extension{
			{0x3a3a, nil}, {0x001b, nil}, sniExtension("example.test"), {0x0033, nil}, alpnExtension("h2", "http/1.1"),
			{0x4469, nil}, {0x0017, nil}, {0x002d, nil},
			wordsExtension(extSignatures, 2, 0x0403, 0x0804, 0x0401, 0x0503, 0x0805, 0x0501, 0x0806, 0x0601),
			{0x0005, nil}, {0x0023, nil}, {0x0012, nil}, wordsExtension(extVersions, 1, 0x4a4a, 0x0304, 0x0303),
			{0xff01, nil}, {extPoints, []byte{1, 0}}, wordsExtension(extGroups, 2, 0xdada, 0x001d, 0x0017, 0x0018), {0x0015, nil}, {0x7a7a, nil},
		},
	}
}

func TestJA4(t *testing.T) {
	plain := func(change func(*helloParts)) helloParts {
		p := helloParts{version: 0x0303, ciphers: []uint16{0x1302, 0x1301}}
		change(&p)
		return p
	}
	for _, tt := range []struct {
		name     string
		hello    helloParts
		sum, raw string // "" is not looked at
	}{
		// FoxIO-LLC/ja4, technical details, "JA4: TLS Client Fingerprint".
		{"published", chrome(), "t13d1516h2_8daaf6152771_e5627efa2ab1",
			"t13d1516h2_002f,0035,009c,009d,1301,1302,1303,c013,c014,c02b,c02c,c02f,c030,cca8,cca9_" +
				"0005,000a,000b,000d,0012,0015,0017,001b,0023,002b,002d,0033,4469,ff01_0403,0804,0401,0503,0805,0501,0806,0601"},
		{"no extensions", plain(func(p *helloParts) { p.extensions = nil }), "", "t12i020000_1301,1302_"},
		{"nothing to hash", plain(func(p *helloParts) { p.ciphers = []uint16{0x0a0a} }), "t12i000000_000000000000_000000000000", "t12i000000__"},
		{"old", plain(func(p *helloParts) { p.version = 0x0301 }), "", "t10i020000_1301,1302_"},
		{"no such version", plain(func(p *helloParts) { p.version = 0x0305 }), "", "t00i020000_1301,1302_"},
		{"protocol of one letter", plain(func(p *helloParts) { p.extensions = []extension{alpnExtension("h")} }), "", "t12i0201hh_1301,1302_"},
		{"protocol without letters", plain(func(p *helloParts) { p.extensions = []extension{alpnExtension("\xab\xcd")} }), "", "t12i0201ad_1301,1302_"},
		{"protocol that ends in no letter", plain(func(p *helloParts) { p.extensions = []extension{alpnExtension("h2\xff")} }), "", "t12i02016f_1301,1302_"},
		{"many ciphers", plain(func(p *helloParts) {
			p.ciphers = nil
			for i := range uint16(120) {
				p.ciphers = append(p.ciphers, 0xc000+i)
			}
		}), "t12i990000_b53fbdfabeae_000000000000", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, err := ParseHello(tt.hello.message())
			if err != nil {
				t.Fatal(err)
			}
			sum, raw := h.JA4()
			if tt.sum != "" && sum != tt.sum {
				t.Errorf("got %s, want %s", sum, tt.sum)
			}
			if tt.raw != "" && raw != tt.raw {
				t.Errorf("got raw\n%s, want\n%s", raw, tt.raw)
			}
		})
	}
}

func TestJA3(t *testing.T) {
	for _, tt := range []struct {
		name      string
		hello     helloParts
		text, sum string
	}{
		// salesforce/ja3, README, "How it works".
		{"published", helloParts{
			version: 769, ciphers: []uint16{47, 53, 5, 10, 49161, 49162, 49171, 49172, 50, 56, 19, 4},
			extensions: []extension{sniExtension("example.test"), wordsExtension(extGroups, 2, 23, 24, 25), {extPoints, []byte{1, 0}}},
		}, "769,47-53-5-10-49161-49162-49171-49172-50-56-19-4,0-10-11,23-24-25,0", "ada70206e40642a3e4461f35503241d5"},
		{"published, without extensions", helloParts{version: 769, ciphers: []uint16{4, 5, 10, 9, 100, 98, 3, 6, 19, 18, 99}},
			"769,4-5-10-9-100-98-3-6-19-18-99,,,", "de350869b8c85de67a350c8d186f11e6"},
		{"with GREASE", helloParts{
			version: 771, ciphers: []uint16{0x8a8a, 4865},
			extensions: []extension{{0x5a5a, nil}, wordsExtension(extGroups, 2, 0xfafa, 29), {0x1a2a, nil}},
		}, "771,4865,10-6698,29,", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h, err := ParseHello(tt.hello.message())
			if err != nil {
				t.Fatal(err)
			}
			text, sum := h.JA3()
			if text != tt.text || tt.sum != "" && sum != tt.sum {
				t.Errorf("got %s, %s, want %s, %s", text, sum, tt.text, tt.sum)
			}
		})
	}
}

func TestHTTP2Fingerprint(t *testing.T) {
	for _, tt := range []struct {
		begin HTTP2
		want  string
	}{
		// As published for Chrome 120 and Firefox 120.
		{HTTP2{
			Settings:     []Setting{{1, 65536}, {2, 0}, {4, 6291456}, {6, 262144}},
			WindowUpdate: 15663105, Pseudo: "m,a,s,p",
		}, "1:65536;2:0;4:6291456;6:262144|15663105|0|m,a,s,p"},
		{HTTP2{
			Settings:     []Setting{{1, 65536}, {4, 131072}, {5, 16384}},
			WindowUpdate: 12517377, Pseudo: "m,p,a,s",
			Priorities: []Priority{{3, false, 0, 201}, {5, true, 3, 1}},
		}, "1:65536;4:131072;5:16384|12517377|3:0:0:201,5:1:3:1|m,p,a,s"},
	} {
		if got := tt.begin.Fingerprint(); got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
}

// helloParts are what a ClientHello is built of.
type helloParts struct {
	version    uint16
	ciphers    []uint16
	extensions []extension // nil: the hello ends before them
}

type extension struct {
	id   uint16
	data []byte
}

func (p helloParts) message() []byte {
	var b cryptobyte.Builder
	b.AddUint8(1)
	b.AddUint24LengthPrefixed(func(b *cryptobyte.Builder) {
		b.AddUint16(p.version)
		b.AddBytes(make([]byte, 32))
		b.AddUint8LengthPrefixed(func(*cryptobyte.Builder) {})
		b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) {
			for _, c := range p.ciphers {
				b.AddUint16(c)
			}
		})
		b.AddBytes([]byte{1, 0})
		if p.extensions == nil {
			return
		}
		b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) {
			for _, e := range p.extensions {
				b.AddUint16(e.id)
				b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) { b.AddBytes(e.data) })
			}
		})
	})
	return b.BytesOrPanic()
}

// records cuts a message into records of at most size bytes.
func records(message []byte, size int) (b []byte) {
	for len(message) > 0 {
		n := min(size, len(message))
		b = append(b, 22, 3, 1, byte(n>>8), byte(n))
		b = append(b, message[:n]...)
		message = message[n:]
	}
	return b
}

func sniExtension(host string) extension {
	var b cryptobyte.Builder
	b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) {
		b.AddUint8(0)
		b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) { b.AddBytes([]byte(host)) })
	})
	return extension{extServerName, b.BytesOrPanic()}
}

func alpnExtension(protocols ...string) extension {
	var b cryptobyte.Builder
	b.AddUint16LengthPrefixed(func(b *cryptobyte.Builder) {
		for _, p := range protocols {
			b.AddUint8LengthPrefixed(func(b *cryptobyte.Builder) { b.AddBytes([]byte(p)) })
		}
	})
	return extension{extALPN, b.BytesOrPanic()}
}

// wordsExtension has a list of words after a length of one or two bytes.
func wordsExtension(id uint16, length int, list ...uint16) extension {
	var b cryptobyte.Builder
	words := func(b *cryptobyte.Builder) {
		for _, w := range list {
			b.AddUint16(w)
		}
	}
	if length == 1 {
		b.AddUint8LengthPrefixed(words)
	} else {
		b.AddUint16LengthPrefixed(words)
	}
	return extension{id, b.BytesOrPanic()}
}
