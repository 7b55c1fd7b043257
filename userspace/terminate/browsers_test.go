// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"crypto/ecdh"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	utls "github.com/bogdanfinn/utls"
)

// parrots imitate browsers: GREASE, shuffled extensions, padding, compressed
// certificates, application settings, hybrid key shares, several key shares,
// ECH that is none.
var parrots = map[string]utls.ClientHelloID{
	"Chrome 83":  utls.HelloChrome_83,
	"Chrome 100": utls.HelloChrome_100,
	"Chrome 120": utls.HelloChrome_120,
	"Chrome 131": utls.HelloChrome_131,
	"Chrome 133": utls.HelloChrome_133,
	"Firefox 99": utls.HelloFirefox_99, "Firefox 120": utls.HelloFirefox_120,
	"Safari 16": utls.HelloSafari_16_0,
	"iOS 14":    utls.HelloIOS_14,
}

// parrotGet asks once as a browser does, in HTTP/1.1 whatever was negotiated:
// an origin of the tests that chose HTTP/2 would end it, so it offers none.
func parrotGet(t *testing.T, id utls.ClientHelloID, addr string, r *relay) (string, error) {
	t.Helper()
	c, err := net.Dial("tcp4", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	u := utls.UClient(c, &utls.Config{ServerName: "localhost", RootCAs: r.trust(), OmitEmptyPsk: true}, id, false, false, false)
	if err := u.Handshake(); err != nil {
		return "", fmt.Errorf("handshake: %w", err)
	}
	if _, err := io.WriteString(u, "GET /x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); err != nil {
		return "", err
	}
	got, err := io.ReadAll(u)
	return string(got), err
}

func TestBrowsersKeepTheirShape(t *testing.T) {
	for name, id := range parrots {
		for _, curve := range []tls.CurveID{0, tls.CurveP256, tls.X25519} {
			t.Run(fmt.Sprint(name, " ", curve), func(t *testing.T) {
				o := startOrigin(t, nil, func(c *tls.Config, _ *originCA) {
					c.NextProtos = []string{"http/1.1"}
					if curve != 0 {
						c.CurvePreferences = []tls.CurveID{curve}
					}
				})
				r := newRelay(t, o.addr(), o.ca.pool)
				got, err := parrotGet(t, id, r.addr(), r)
				whys, kinds, last := r.seen()
				if err != nil || len(kinds) != 1 || kinds[0] != OK {
					t.Fatalf("got %v; %q %v %v", err, whys, kinds, last.Err)
				}
				if !strings.Contains(got, "GET /x 0 bytes over HTTP/1.1") {
					t.Errorf("got %q", got)
				}
				mine, theirs := mustHello(t, r.sent()), mustHello(t, o.seen()[0].hello.seen())
				if !sameShape(mine, theirs) || fmt.Sprint(mine.fragments) != fmt.Sprint(theirs.fragments) {
					t.Errorf("the origin got another hello than the client sent:\n%+v\n%+v", mine, theirs)
				}
			})
		}
	}
}

// TestKindsOfBrowsers proves that connections of one browser are of one kind,
// whatever it draws anew each time.
func TestKindsOfBrowsers(t *testing.T) {
	kinds := map[memoryKey]string{}
	for name, id := range parrots {
		var first memoryKey
		for i := range 5 {
			u := utls.UClient(nil, &utls.Config{ServerName: strings.Repeat("a", 1+i) + ".example"}, id, true, false, false)
			if err := u.BuildHandshakeState(); err != nil {
				t.Fatal(err)
			}
			h, err := parseHello(u.HandshakeState.Hello.Raw)
			if err != nil {
				t.Fatal(err)
			}
			key := h.key("x.example")
			if i == 0 {
				first = key
			}
			if key != first {
				t.Errorf("%s: connection %d is of another kind", name, i)
			}
			if key == h.key("y.example") {
				t.Errorf("%s: the name does not count", name)
			}
		}
		if other, ok := kinds[first]; ok {
			t.Errorf("%s and %s are of one kind", name, other)
		}
		kinds[first] = name
	}
}

// echKey makes a key for ECH and its configuration, with a public name.
func echKey(t *testing.T) (tls.EncryptedClientHelloKey, []byte) {
	t.Helper()
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	const (
		kem, kdf, aead = 0x20, 1, 1 // DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, AES-128-GCM
		public         = "public.example"
	)
	var c []byte
	c = append(c, 7) // config_id
	c = binary.BigEndian.AppendUint16(c, kem)
	c = binary.BigEndian.AppendUint16(c, 32)
	c = append(c, key.PublicKey().Bytes()...)
	c = binary.BigEndian.AppendUint16(c, 4)
	c = binary.BigEndian.AppendUint16(c, kdf)
	c = binary.BigEndian.AppendUint16(c, aead)
	c = append(c, 32, byte(len(public)))
	c = append(c, public...)
	c = append(c, 0, 0) // extensions
	config := binary.BigEndian.AppendUint16([]byte{0xfe, 0x0d}, uint16(len(c)))
	config = append(config, c...)
	list := binary.BigEndian.AppendUint16(nil, uint16(len(config)))
	list = append(list, config...)
	return tls.EncryptedClientHelloKey{Config: config, PrivateKey: key.Bytes(), SendAsRetry: true}, list
}

// TestECH is that of an origin which has ECH: real or not, the connection is
// passed through, since nobody but the client could make it again.
func TestECH(t *testing.T) {
	key, list := echKey(t)
	o := startOrigin(t, nil, func(c *tls.Config, ca *originCA) {
		c.EncryptedClientHelloKeys = []tls.EncryptedClientHelloKey{key}
		c.Certificates = []tls.Certificate{ca.issue(t, func(c *x509.Certificate) {
			c.DNSNames = append(c.DNSNames, "public.example")
		})}
	})
	r := newRelay(t, o.addr(), o.ca.pool)
	for i := range 2 {
		c, err := tls.Dial("tcp4", r.addr(), &tls.Config{
			ServerName: "localhost", RootCAs: o.ca.pool, EncryptedClientHelloConfigList: list,
		})
		if err != nil {
			_, _, last := r.seen()
			t.Fatalf("%v; %v", err, last.Err)
		}
		if !c.ConnectionState().ECHAccepted {
			t.Errorf("connection %d: ECH was not accepted", i)
		}
		_ = c.Close()
	}
	if whys, kinds, _ := r.seen(); len(kinds) != 1 || kinds[0] != ShapeLost || whys[1] != WhyECH {
		t.Errorf("got %v %q, want one %v, and that remembered", kinds, whys, ShapeLost)
	}
}

// TestResumption: what the client has of the origin cannot be used here, and
// from here it gets nothing to resume.
func TestResumption(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		o := startOrigin(t, nil, func(c *tls.Config, _ *originCA) { c.NextProtos = nil })
		r := newRelay(t, o.addr(), o.ca.pool)
		cache := tls.NewLRUClientSessionCache(8)
		get := func(addr string) (resumed bool) {
			t.Helper()
			pool := r.trust()
			pool.AddCert(o.ca.cert)
			c, err := tls.Dial("tcp4", addr, &tls.Config{
				ServerName: "localhost", RootCAs: pool, ClientSessionCache: cache, MaxVersion: version,
			})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadAll(c); err != nil {
				t.Fatal(err)
			}
			return c.ConnectionState().DidResume
		}
		for range 2 {
			if get(r.addr()) {
				t.Error("a session was resumed through the relay")
			}
		}
		get(o.addr()) // brings a ticket of the origin's
		if !get(r.addr()) {
			t.Error("the origin's own session was not resumed")
		}
		whys, kinds, _ := r.seen()
		if len(kinds) != 2 || kinds[0] != OK || kinds[1] != OK || whys[2] != WhyResumption {
			t.Errorf("%s: got %v %q, want two terminated and %s", tls.VersionName(version), kinds, whys, WhyResumption)
		}
	}
}
