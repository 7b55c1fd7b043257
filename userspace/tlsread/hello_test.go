// SPDX-License-Identifier: Apache-2.0

package tlsread

import (
	"slices"
	"testing"

	"github.com/egressd/egressd/userspace/sniff"
)

// inRecords puts a message into records of so many bytes.
func inRecords(kind ContentType, m []byte, size int) []byte {
	s := new(sealer)
	for part := range slices.Chunk(m, size) {
		s.raw(kind, part...)
	}
	return s.out
}

// helloTests are first bytes of servers that have a ServerHello. The hello
// ends behind all of them.
func helloTests() map[string]struct {
	wire []byte
	want Params
} {
	random := [32]byte{1, 2, 3}
	hello13 := serverHelloMessage(version13, 0x1302, random)
	hello12 := serverHelloMessage(version12, 0xc02f, random)
	retry := serverHelloMessage(version13, 0x1302, retryRandom)
	warning := inRecords(Alert, []byte{1, 112}, 2)
	ccs := inRecords(ChangeCipherSpec, []byte{1}, 1)
	record := func(m []byte) []byte { return inRecords(Handshake, m, 1<<14) }
	compressed := slices.Clone(hello12)
	compressed[len(compressed)-1] = 1
	want12 := Params{Version: version12, Suite: 0xc02f, ServerRandom: random}
	want13 := Params{Version: version13, Suite: 0x1302, ServerRandom: random}
	retried := want13
	retried.Retried = true
	return map[string]struct {
		wire []byte
		want Params
	}{
		"1.2":                         {record(hello12), want12},
		"1.3":                         {record(hello13), want13},
		"split":                       {inRecords(Handshake, hello13, 3), want13},
		"byte by byte":                {inRecords(Handshake, hello12, 1), want12},
		"after a warning":             {slices.Concat(warning, record(hello12)), want12},
		"warning in its middle":       {slices.Concat(record(hello12[:9]), warning, record(hello12[9:])), want12},
		"retried":                     {slices.Concat(record(retry), record(hello13)), retried},
		"retried, CCS":                {slices.Concat(record(retry), ccs, record(hello13)), retried},
		"retried, in one record":      {record(slices.Concat(retry, hello13)), retried},
		"retried, split across":       {inRecords(Handshake, slices.Concat(retry, hello13), 60), retried},
		"compressed":                  {record(compressed), Params{Version: version12, Suite: 0xc02f, ServerRandom: random, Compressed: true}},
		"a draft":                     {record(serverHelloMessage(0x7f1c, 0x1301, random)), Params{Version: 0x7f1c, Suite: 0x1301, ServerRandom: random}},
		"long, with other extensions": {record(longHello(random)), want12},
	}
}

// longHello is a ServerHello of TLS 1.2 with an extension of 9 KiB.
func longHello(random [32]byte) []byte {
	body := serverHelloMessage(version12, 0xc02f, random)[messageHeader:]
	const n = 9 << 10
	body = append(body, byte((n+4)>>8), byte((n+4)&0xff), 0xff, 1, byte(n>>8), 0)
	return message(typeServerHello, append(body, make([]byte, n)...)...)
}

func TestServerHello(t *testing.T) {
	for name, tt := range helloTests() {
		t.Run(name, func(t *testing.T) {
			before := slices.Clone(tt.wire)
			for n := range tt.wire {
				if p, status := ServerHello(tt.wire[:n]); status != sniff.Incomplete || p != (Params{}) {
					t.Fatalf("of %d bytes of %d: status %d, %+v", n, len(tt.wire), status, p)
				}
			}
			for _, more := range [][]byte{nil, {0xff, 0xff}, make([]byte, maxHello)} {
				if p, status := ServerHello(slices.Concat(tt.wire, more)); status != sniff.Complete || p != tt.want {
					t.Errorf("with %d bytes behind it: status %d, %+v, want %+v", len(more), status, p, tt.want)
				}
			}
			if !slices.Equal(tt.wire, before) {
				t.Error("what was read is not what it was")
			}
		})
	}
}

// A certificate that shares the record is not waited for.
func TestServerHelloSharesItsRecord(t *testing.T) {
	hello := serverHelloMessage(version12, 0xc02f, [32]byte{1})
	wire := inRecords(Handshake, append(slices.Clone(hello), message(11, filled(4000)...)...), 1<<14)
	end := recordHeader + len(hello)
	if _, status := ServerHello(wire[:end-1]); status != sniff.Incomplete {
		t.Errorf("a byte short: status %d", status)
	}
	if p, status := ServerHello(wire[:end]); status != sniff.Complete || p.Suite != 0xc02f {
		t.Errorf("status %d, %+v", status, p)
	}
}

func TestServerHelloRefuses(t *testing.T) {
	random := [32]byte{1}
	hello13 := serverHelloMessage(version13, 0x1302, random)
	hello12 := serverHelloMessage(version12, 0xc02f, random)
	retry := serverHelloMessage(version13, 0x1302, retryRandom)
	ccs := inRecords(ChangeCipherSpec, []byte{1}, 1)
	record := func(m []byte) []byte { return inRecords(Handshake, m, 1<<14) }
	twice := slices.Concat(hello13[messageHeader:len(hello13)-8], []byte{0, 12}, hello13[len(hello13)-6:], hello13[len(hello13)-6:])
	selects := func(version, compression byte, more ...byte) []byte {
		b := slices.Clone(hello13[messageHeader:])
		b[len(b)-1], b[len(b)-9] = version, compression
		return message(typeServerHello, append(b, more...)...)
	}
	for name, wire := range map[string][]byte{
		"HTTP":                      []byte("HTTP/1.1 400 Bad Request\r\n"),
		"SSH":                       []byte("SSH-2.0-x"),
		"one byte":                  {0},
		"SSL 2":                     {22, 2},
		"a version of records":      {22, 3, 5},
		"application data":          inRecords(ApplicationData, filled(40), 40),
		"fatal alert":               inRecords(Alert, []byte{2, 40}, 2),
		"long alert":                inRecords(Alert, []byte{1, 40, 1}, 3),
		"CCS first":                 ccs,
		"long CCS":                  slices.Concat(record(retry), inRecords(ChangeCipherSpec, []byte{1, 1}, 2)),
		"empty record":              {22, 3, 3, 0, 0},
		"long record":               {22, 3, 3, 0x40, 1},
		"a ClientHello":             record(clientHelloMessage()),
		"another message":           record(message(11, filled(100)...)),
		"a message without end":     record([]byte{typeServerHello, 1, 0, 1}),
		"no body":                   record(message(typeServerHello)),
		"cut short":                 record(message(typeServerHello, hello12[messageHeader:len(hello12)-1]...)),
		"cut extensions":            record(message(typeServerHello, hello13[messageHeader:len(hello13)-1]...)),
		"more behind extensions":    record(selects(4, 0, 0)),
		"compression in TLS 1.3":    record(selects(4, 1)),
		"a version of three bytes":  record(message(typeServerHello, slices.Concat(hello13[messageHeader:len(hello13)-8], []byte{0, 7, 0, 43, 0, 3, 3, 4, 0})...)),
		"a version twice":           record(message(typeServerHello, twice...)),
		"retried twice":             slices.Concat(record(retry), record(retry)),
		"retried, then TLS 1.2":     slices.Concat(record(retry), record(hello12)),
		"a retry of TLS 1.2":        record(serverHelloMessage(version12, 0xc02f, retryRandom)),
		"retried, then data":        slices.Concat(record(retry), inRecords(ApplicationData, filled(40), 40)),
		"one that does not end":     inRecords(Handshake, slices.Concat([]byte{typeServerHello, 0, 0xff, 0xff}, make([]byte, maxHello)), 1<<14),
		"nothing but warnings":      inRecords(Alert, slices.Repeat([]byte{1, 112}, maxHello/7+1), 2),
		"a hello in crumbs, no end": inRecords(Handshake, slices.Concat([]byte{typeServerHello, 0, 0xf0, 0}, make([]byte, maxHello/6)), 1),
	} {
		if p, status := ServerHello(wire); status != sniff.NotTLS || p != (Params{}) {
			t.Errorf("%s: status %d, %+v", name, status, p)
		}
	}
}

func TestOffersEarlyData(t *testing.T) {
	for _, tt := range []struct {
		message    []byte
		offers, ok bool
	}{
		{clientHelloMessage(), false, true},
		{clientHelloMessage(extSupportedVersions), false, true},
		{clientHelloMessage(extSupportedVersions, extEarlyData), true, true},
		{clientHelloMessage(extEarlyData, extEarlyData), false, false},
		{message(typeClientHello), false, false},
		{clientHelloMessage(extEarlyData)[:48], false, false},
	} {
		if offers, ok := offersEarlyData(tt.message[messageHeader:]); offers != tt.offers || ok != tt.ok {
			t.Errorf("%d bytes: %v, %v, want %v, %v", len(tt.message), offers, ok, tt.offers, tt.ok)
		}
	}
}
