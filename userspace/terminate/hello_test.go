// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"net"
	"reflect"
	"slices"
	"testing"
	"time"

	utls "github.com/bogdanfinn/utls"
)

// goHello is the first flight of a Go client.
func goHello(tb testing.TB, cfg *tls.Config) []byte {
	tb.Helper()
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	go func() { _ = tls.Client(a, cfg).Handshake() }()
	_ = b.SetDeadline(time.Now().Add(10 * time.Second))
	first, ok := readFirst(b)
	if !ok {
		tb.Fatal("no hello")
	}
	return first
}

// parrotHello is that of a browser.
func parrotHello(tb testing.TB, id utls.ClientHelloID) []byte {
	tb.Helper()
	u := utls.UClient(nil, &utls.Config{ServerName: "localhost", OmitEmptyPsk: true}, id, false, false, false)
	if err := u.BuildHandshakeState(); err != nil {
		tb.Fatal(err)
	}
	return asRecords(u.HandshakeState.Hello.Raw, len(u.HandshakeState.Hello.Raw))
}

// asRecords puts a message into records of at most size bytes.
func asRecords(message []byte, size int) []byte {
	var out []byte
	for part := range slices.Chunk(message, size) {
		out = append(out, recordHandshake, 3, 1)
		out = binary.BigEndian.AppendUint16(out, uint16(len(part)))
		out = append(out, part...)
	}
	return out
}

// change takes a hello apart, changes its extensions and puts it together.
func change(tb testing.TB, first []byte, f func([]extension) []extension) []byte {
	tb.Helper()
	message, _, err := joinRecords(first)
	if err != nil {
		tb.Fatal(err)
	}
	h := mustHello(tb, first)
	length := 2
	for _, e := range h.extensions {
		length += 4 + len(e.body)
	}
	message = slices.Clone(message[:len(message)-length])
	var list []byte
	for _, e := range f(h.extensions) {
		list = binary.BigEndian.AppendUint16(list, e.id)
		list = binary.BigEndian.AppendUint16(list, uint16(len(e.body)))
		list = append(list, e.body...)
	}
	message = binary.BigEndian.AppendUint16(message, uint16(len(list)))
	message = append(message, list...)
	message[1], message[2], message[3] = byte((len(message)-4)>>16), byte((len(message)-4)>>8), byte(len(message)-4)
	return asRecords(message, len(message))
}

// with adds an extension, or replaces it, or drops it if body is nil.
func with(id uint16, body []byte) func([]extension) []extension {
	return func(all []extension) []extension {
		all = slices.DeleteFunc(slices.Clone(all), func(e extension) bool { return e.id == id })
		if body != nil {
			all = append(all, extension{id, body})
		}
		return all
	}
}

func TestPlan(t *testing.T) {
	ca, _ := mustAuthority(t, AuthorityOptions{PermitDNS: []string{"localhost", "example.com"}})
	base := goHello(t, &tls.Config{ServerName: "localhost"})
	twelve := goHello(t, &tls.Config{ServerName: "localhost", MaxVersion: tls.VersionTLS12})
	for _, test := range []struct {
		name  string
		ca    *Authority
		first []byte
		host  string
		want  string
	}{
		{"as it is", ca, base, "", ""},
		{"TLS 1.2", ca, twelve, "", ""},
		{"a browser's", ca, parrotHello(t, utls.HelloChrome_133), "", ""},
		{"split over records", ca, asRecords(base[recordHeader:], 100), "", ""},
		{"bytes after it", ca, append(slices.Clone(base), 20, 3, 3, 0, 1, 1), "", ""},
		{"no authority", nil, base, "", WhyNoAuthority},
		{"not whole", ca, base[:len(base)-1], "", WhyMalformed},
		{"no TLS", ca, []byte("GET / HTTP/1.1\r\n\r\n"), "", WhyMalformed},
		{"another name", ca, goHello(t, &tls.Config{ServerName: "example.org"}), "localhost", WhyName},
		{"a name below", ca, goHello(t, &tls.Config{ServerName: "www.example.com"}), "", ""},
		{"a name with the domain as its end", ca, goHello(t, &tls.Config{ServerName: "badexample.com"}), "", WhyName},
		{"no name, host known", ca, change(t, base, with(extServerName, nil)), "example.com", ""},
		{"no name, host unknown", ca, change(t, base, with(extServerName, nil)), "", WhyName},
		{"no name, an address", ca, change(t, base, with(extServerName, nil)), "127.0.0.1", WhyName},
		{"an address as name", ca, change(t, base, with(extServerName, []byte("\x00\x0c\x00\x00\x09127.0.0.1"))), "localhost", WhyName},
		{"pre-shared key", ca, change(t, base, with(extPreSharedKey, []byte{0, 0, 0, 0})), "", WhyResumption},
		{"early data", ca, change(t, base, with(extEarlyData, []byte{})), "", WhyResumption},
		{"a ticket", ca, change(t, base, with(extSessionTicket, []byte{1, 2, 3})), "", WhyResumption},
		{"max_fragment_length", ca, change(t, base, with(1, []byte{1})), "", WhyExtension},
		{"heartbeat", ca, change(t, base, with(15, []byte{1})), "", WhyExtension},
		{"raw public keys", ca, change(t, base, with(20, []byte{1, 2})), "", WhyExtension},
		{"next protocol negotiation", ca, change(t, base, with(13172, []byte{})), "", WhyExtension},
		{"unknown extension", ca, change(t, base, with(0x1234, []byte{})), "", WhyExtension},
		{"GREASE", ca, change(t, base, with(0x5a5a, []byte{})), "", ""},
		{"an unknown share", ca, change(t, base, with(extKeyShare, []byte{0, 6, 0, 30, 0, 2, 1, 2})), "", WhyShape},
		{"one group twice", ca, change(t, base, with(extKeyShare, []byte{0, 12, 0, 29, 0, 2, 1, 2, 0, 29, 0, 2, 1, 2})), "", WhyShape},
		{"no share", ca, change(t, base, with(extKeyShare, []byte{0, 0})), "", WhyShape},
		{"RSA signatures only", ca, change(t, base, with(extSignatures, []byte{0, 2, 8, 4})), "", WhySuites},
		{"no group in common", ca, change(t, base, with(extGroups, []byte{0, 2, 0, 30})), "", WhySuites},
		{"an old version", ca, change(t, twelve, with(extVersions, []byte{2, 3, 2})), "", WhyVersion},
		{"an extension twice", ca, change(t, base, func(e []extension) []extension { return append(e, e[0]) }), "", WhyMalformed},
	} {
		t.Run(test.name, func(t *testing.T) {
			term, err := New(Config{CA: test.ca})
			if err != nil {
				t.Fatal(err)
			}
			plan, why := term.Plan(test.first, test.host)
			if why != test.want || (plan == nil) != (why != "") {
				t.Errorf("got %v, %q, want %q", plan != nil, why, test.want)
			}
		})
	}
	for _, why := range Reasons() {
		if why == "" {
			t.Error("a reason without a name")
		}
	}
}

func TestKeyLogIsRefused(t *testing.T) {
	t.Setenv("SSLKEYLOGFILE", t.TempDir()+"/keys")
	if _, err := New(Config{}); err != ErrKeyLog {
		t.Errorf("got %v, want %v", err, ErrKeyLog)
	}
}

// TestHelloInAnyRecords proves that the way a hello is put into records changes
// nothing of what is read, and is kept when it is sent.
func TestHelloInAnyRecords(t *testing.T) {
	for name, first := range map[string][]byte{
		"Go": goHello(t, &tls.Config{ServerName: "localhost"}), "Chrome": parrotHello(t, utls.HelloChrome_133),
	} {
		message := first[recordHeader:]
		want := mustHello(t, first)
		for size := 1; size < len(message); size += 1 + size/3 {
			split := asRecords(message, size)
			got := mustHello(t, split)
			if framed, err := got.frame(first); err != nil || !bytes.Equal(framed, split) {
				t.Errorf("%s, %d: framed otherwise, %v", name, size, err)
			}
			got.fragments = want.fragments
			if !reflect.DeepEqual(got, want) {
				t.Errorf("%s, %d: got another hello", name, size)
			}
		}
	}
}

func FuzzHello(f *testing.F) {
	f.Add(goHello(f, &tls.Config{ServerName: "localhost"}), 7)
	f.Add(goHello(f, &tls.Config{ServerName: "localhost", MaxVersion: tls.VersionTLS12}), 100)
	for _, id := range parrots {
		f.Add(parrotHello(f, id), 1000)
	}
	ca, _ := mustAuthority(f, AuthorityOptions{})
	term, err := New(Config{CA: ca})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, first []byte, size int) {
		plan, why := term.Plan(first, "localhost")
		if (plan == nil) == (why == "") {
			t.Fatalf("got plan %v and %q", plan != nil, why)
		}
		message, _, err := joinRecords(first)
		if err != nil {
			return
		}
		h, err := readHello(first)
		split, splitErr := readHello(asRecords(message, 1+(size&0x3fff)))
		if (err == nil) != (splitErr == nil) {
			t.Fatalf("got %v, in other records %v", err, splitErr)
		}
		if err != nil {
			return
		}
		split.fragments = h.fragments
		if !reflect.DeepEqual(h, split) {
			t.Fatal("got another hello in other records")
		}
		if plan == nil {
			return
		}
		// What was planned is sent as it came, or not at all.
		wire := &helloConn{Conn: noConn{}, hello: h}
		if u, err := newOrigin(wire, &utls.Config{InsecureSkipVerify: true}); err == nil {
			built, err := parseHello(u.HandshakeState.Hello.Raw)
			if err != nil || !sameShape(h, built) {
				t.Fatalf("the hello that is sent is another one: %v", err)
			}
		}
	})
}

// noConn is a connection that is not used.
type noConn struct{ net.Conn }

func FuzzServerHello(f *testing.F) {
	random := bytes.Repeat([]byte{7}, randomLength)
	seed := func(random []byte, extensions []byte) []byte {
		body := append([]byte{3, 3}, random...)
		body = append(body, 0, 0x13, 1, 0)
		body = binary.BigEndian.AppendUint16(body, uint16(len(extensions)))
		body = append(body, extensions...)
		return append([]byte{typeServerHello, 0, 0, byte(len(body))}, body...)
	}
	key := []byte{0, 51, 0, 6, 0, 29, 0, 2, 1, 2}
	f.Add(asRecords(seed(random, key), 1000), 3)
	f.Add(asRecords(seed(helloRetry[:], []byte{0, 51, 0, 2, 0, 23}), 1000), 5)
	f.Add([]byte{21, 3, 3, 0, 2, 2, 40}, 1)
	if group, err := chosenGroup(asRecords(seed(random, key), 10)); group != groupX25519 || err != nil {
		f.Fatalf("got %d, %v, want %d", group, err, groupX25519)
	}
	f.Fuzz(func(t *testing.T, b []byte, cut int) {
		whole, err := chosenGroup(b)
		if err != nil && whole != 0 {
			t.Fatal("a group and more to come")
		}
		// What was decided stays, whatever comes; before, more is asked for.
		cut &= 0xffff
		part, partErr := chosenGroup(b[:min(cut, len(b))])
		if partErr == nil && err == nil && part != whole || partErr == nil && err != nil {
			t.Fatalf("got %d, %v of a part, %d, %v of all", part, partErr, whole, err)
		}
		echIn(b)
	})
}
