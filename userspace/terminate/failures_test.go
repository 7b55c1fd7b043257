// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestBadOriginCertificate(t *testing.T) {
	host, dir := mustAuthority(t, AuthorityOptions{})
	_ = dir
	for _, test := range []struct {
		name  string
		alert string // as Go words it
		cert  func(*originCA) tls.Certificate
	}{
		{"expired", "expired certificate", func(ca *originCA) tls.Certificate {
			return ca.issue(t, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
		}},
		{"not yet valid", "expired certificate", func(ca *originCA) tls.Certificate {
			return ca.issue(t, func(c *x509.Certificate) { c.NotBefore = time.Now().Add(time.Minute) })
		}},
		{"another name", "unknown certificate", func(ca *originCA) tls.Certificate {
			return ca.issue(t, func(c *x509.Certificate) { c.DNSNames = []string{"example.com"} })
		}},
		{"for clients", "bad certificate", func(ca *originCA) tls.Certificate {
			return ca.issue(t, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} })
		}},
		{"another authority", "unknown certificate authority", func(*originCA) tls.Certificate {
			return newOriginCA(t).issue(t, nil)
		}},
		{"this host's own authority", "unknown certificate authority", func(*originCA) tls.Certificate {
			leaf, err := host.Leaf("localhost")
			if err != nil {
				t.Fatal(err)
			}
			return *leaf
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := startOrigin(t, nil, func(c *tls.Config, ca *originCA) {
				c.Certificates = []tls.Certificate{test.cert(ca)}
			})
			// The system's store has the host's authority once it is installed.
			o.ca.pool.AddCert(host.Certificate())
			r := newRelay(t, o.addr(), o.ca.pool, func(_ *relay, c *Config) { c.CA = host })
			for range 3 { // nothing is remembered of it
				_, err := goClient(r, true, func(c *tls.Config) { c.InsecureSkipVerify = true }).Get(r.url("localhost", "/"))
				if err == nil || !strings.Contains(err.Error(), test.alert) {
					t.Errorf("got %v, want an alert: %s", err, test.alert)
				}
			}
			for _, kind := range r.waitKinds(3) {
				if kind != BadCertificate {
					t.Errorf("got %v, want %v", kind, BadCertificate)
				}
			}
			for _, c := range o.seen() {
				if b := c.plain.seen(); len(b) > 0 {
					t.Errorf("the origin was sent %q", b)
				}
			}
		})
	}
}

// TestUntrusted is that of clients which trust the origin and not the host's
// authority: their next connection, or the one after it, is passed through.
func TestUntrusted(t *testing.T) {
	o := startOrigin(t, nil, nil)
	ca := pemFile(t, o.ca.cert)
	for _, c := range clients {
		t.Run(c.name, func(t *testing.T) {
			r := newRelay(t, o.addr(), o.ca.pool)
			url := "https://localhost:" + port(r.addr()) + "/x"
			if out, err := c.fetch(t, url, ca); err == nil && strings.Contains(out, "GET /x") {
				t.Fatalf("the first connection: got %q, want a failure", out)
			}
			for try := 2; ; try++ {
				out, err := c.fetch(t, url, ca)
				if err == nil && strings.Contains(out, "GET /x 0 bytes over "+c.proto) {
					t.Logf("connection %d was passed through", try)
					break
				}
				if whys, kinds, last := r.seen(); try > maxStrikes {
					t.Fatalf("connection %d: got %q, %v; %v %v %v", try, out, err, whys, kinds, last.Err)
				}
			}
			if whys, _, _ := r.seen(); whys[len(whys)-1] != WhyUntrusted {
				t.Errorf("got %q, want %s at last", whys, WhyUntrusted)
			}
		})
	}
}

func TestClientCertificateAsked(t *testing.T) {
	ca := newOriginCA(t)
	for _, version := range []string{"TLSv1.3", "TLSv1.2"} {
		addr := startNginx(t, ca, "ssl_protocols "+version+"; ssl_verify_client optional_no_ca;")
		r := newRelay(t, addr, ca.pool)
		for range 2 {
			// The client sees the origin's own certificate.
			c := goClient(r, false, func(c *tls.Config) { c.RootCAs = ca.pool })
			resp, err := c.Get(r.url("localhost", "/"))
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			c.CloseIdleConnections()
		}
		whys, kinds, _ := r.seen()
		if len(kinds) != 1 || kinds[0] != ShapeLost || whys[1] != WhyClientCert {
			t.Errorf("%s: got %v %q, want %v, then %s", version, kinds, whys, ShapeLost, WhyClientCert)
		}
	}
}

func TestNoNameAndNoAddressInTheCertificate(t *testing.T) {
	o := startOrigin(t, nil, func(c *tls.Config, ca *originCA) {
		c.Certificates = []tls.Certificate{ca.issue(t, func(c *x509.Certificate) { c.IPAddresses = nil })}
	})
	r := newRelay(t, o.addr(), o.ca.pool, func(r *relay, _ *Config) { r.host = "127.0.0.1" })
	// A client that has a name in mind and does not say it.
	conn, err := tls.Dial("tcp4", r.addr(), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got := conn.ConnectionState().PeerCertificates[0].Issuer.CommonName; got != o.ca.cert.Subject.CommonName {
		t.Errorf("got a certificate of %q, want the origin's own", got)
	}
	if _, kinds, last := r.seen(); len(kinds) != 1 || kinds[0] != ShapeLost || last.Why != WhyName {
		t.Errorf("got %v %s, want %v %s", kinds, last.Why, ShapeLost, WhyName)
	}
}

func TestAddressWithoutName(t *testing.T) {
	o := startOrigin(t, nil, nil)
	r := newRelay(t, o.addr(), o.ca.pool, func(r *relay, _ *Config) { r.host = "127.0.0.1" })
	resp, err := goClient(r, false, nil).Get(r.url("127.0.0.1", "/"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, kinds, _ := r.seen(); len(kinds) != 1 || kinds[0] != OK {
		t.Errorf("got %v, want %v", kinds, OK)
	}
}

// TestOriginBreaks is that of an origin that hangs up on the hello.
func TestOriginBreaks(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = c.Read(make([]byte, 4096))
			_ = c.Close()
		}
	}()
	r := newRelay(t, ln.Addr().String(), x509.NewCertPool())
	for range 3 {
		if _, err := tls.Dial("tcp4", r.addr(), &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"}); !errors.Is(err, io.EOF) {
			t.Errorf("got %v, want the end that the origin made", err)
		}
	}
	whys, kinds, _ := r.seen()
	if len(kinds) != 2 || kinds[0] != UpstreamFailed || kinds[1] != UpstreamFailed || whys[2] != WhyOrigin {
		t.Errorf("got %v %q, want two tries and %s", kinds, whys, WhyOrigin)
	}
}

func TestHelloRetry(t *testing.T) {
	for name, curve := range map[string]tls.CurveID{"P-384": tls.CurveP384, "P-521": tls.CurveP521} {
		o := startOrigin(t, nil, func(c *tls.Config, _ *originCA) { c.CurvePreferences = []tls.CurveID{curve} })
		r := newRelay(t, o.addr(), o.ca.pool)
		for _, c := range []client{clients[0], clients[3], clients[8]} {
			out, err := c.fetch(t, "https://localhost:"+port(r.addr())+"/x", r.caFile)
			if err != nil || !strings.Contains(out, "GET /x") {
				_, _, last := r.seen()
				t.Errorf("%s %s: got %q, %v; %v", name, c.name, out, err, last.Err)
			}
		}
		if _, kinds, _ := r.seen(); len(kinds) != 3 || kinds[0] != OK || kinds[1] != OK || kinds[2] != OK {
			t.Errorf("%s: got %v, want all terminated", name, kinds)
		}
	}
}

// TestEachKeyShare makes the origin choose each share that clients send.
func TestEachKeyShare(t *testing.T) {
	for _, test := range []struct {
		name   string
		curve  tls.CurveID
		client func(t *testing.T, r *relay) error
	}{
		{"GnuTLS, P-256", tls.CurveP256, wgetOnce},
		{"GnuTLS, X25519", tls.X25519, wgetOnce},
		{"Go, X25519MLKEM768", tls.X25519MLKEM768, goOnce},
		{"Go, X25519", tls.X25519, goOnce},
		{"Go, P-256 after a retry", tls.CurveP256, goOnce},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := startOrigin(t, nil, func(c *tls.Config, _ *originCA) { c.CurvePreferences = []tls.CurveID{test.curve} })
			r := newRelay(t, o.addr(), o.ca.pool)
			if err := test.client(t, r); err != nil {
				t.Error(err)
			}
			if _, kinds, last := r.seen(); len(kinds) != 1 || kinds[0] != OK {
				t.Fatalf("got %v %v, want %v", kinds, last.Err, OK)
			}
			mine, theirs := mustHello(t, r.sent()), mustHello(t, o.seen()[0].hello.seen())
			if !sameShape(mine, theirs) || mine.sharedX25519() != theirs.sharedX25519() {
				t.Errorf("the origin got another hello: shared key %v, want %v", theirs.sharedX25519(), mine.sharedX25519())
			}
		})
	}
}

func wgetOnce(t *testing.T, r *relay) error {
	_, err := clients[3].fetch(t, "https://localhost:"+port(r.addr())+"/x", r.caFile)
	return err
}

func goOnce(t *testing.T, r *relay) error {
	client := goClient(r, true, nil)
	defer client.CloseIdleConnections()
	resp, err := client.Get(r.url("localhost", "/"))
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("got status %d", resp.StatusCode)
	}
	return nil
}

// TestSilentClients is that of clients which look at the certificate after the
// handshake and then only hang up: the third one is passed through, unless one
// has asked for something meanwhile.
func TestSilentClients(t *testing.T) {
	o := startOrigin(t, nil, nil)
	silent := func(r *relay) {
		t.Helper()
		c, err := tls.Dial("tcp4", r.addr(), &tls.Config{InsecureSkipVerify: true, ServerName: "localhost"})
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
		waitRunning(t, r, 0)
	}
	r := newRelay(t, o.addr(), o.ca.pool)
	for range maxStrikes + 1 {
		silent(r)
	}
	if whys, _, _ := r.seen(); whys[maxStrikes-1] != "" || whys[maxStrikes] != WhyUntrusted {
		t.Errorf("got %q, want the last one %s", whys, WhyUntrusted)
	}
	r = newRelay(t, o.addr(), o.ca.pool)
	speak := func() {
		c, err := tls.Dial("tcp4", r.addr(), &tls.Config{RootCAs: r.trust(), ServerName: "localhost"})
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
	}
	speak()
	for range maxStrikes + 1 {
		silent(r)
	}
	if whys, _, _ := r.seen(); whys[len(whys)-1] != "" {
		t.Errorf("got %q of a client that trusts", whys)
	}
}

// TestRecordsAreKept is that of a client which spreads its hello over records.
func TestRecordsAreKept(t *testing.T) {
	o := startOrigin(t, nil, nil)
	r := newRelay(t, o.addr(), o.ca.pool)
	raw, err := net.Dial("tcp4", r.addr())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	c := tls.Client(&splitHello{Conn: raw}, &tls.Config{RootCAs: r.trust(), ServerName: "localhost"})
	if err := c.Handshake(); err != nil {
		t.Fatal(err)
	}
	mine, theirs := mustHello(t, r.sent()), mustHello(t, o.seen()[0].hello.seen())
	if len(mine.fragments) < 3 || !slices.Equal(mine.fragments, theirs.fragments) || theirs.fragments[0].version != 0x0303 {
		t.Errorf("got the records %v, want %v", theirs.fragments, mine.fragments)
	}
}

// splitHello is a connection whose first write, a hello, goes out in small
// records of TLS 1.2.
type splitHello struct {
	net.Conn
	sent bool
}

func (c *splitHello) Write(b []byte) (int, error) {
	if c.sent {
		return c.Conn.Write(b)
	}
	c.sent = true
	split := asRecords(b[recordHeader:], 400)
	for at := 0; at < len(split); at += recordHeader + 400 {
		split[at+2] = 3
	}
	if _, err := c.Conn.Write(split); err != nil {
		return 0, err
	}
	return len(b), nil
}
