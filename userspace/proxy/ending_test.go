// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/userspace/terminate"
)

// ender is an HTTPS origin, and a terminator that trusts it.
type ender struct {
	*httptest.Server
	t         *terminate.Terminator
	ca        *terminate.Authority
	authority *x509.CertPool // what clients that agreed trust
}

func newEnder(t testing.TB, h2 bool, serve http.HandlerFunc) *ender {
	t.Helper()
	s := httptest.NewUnstartedServer(serve)
	s.EnableHTTP2 = h2
	s.StartTLS()
	t.Cleanup(s.Close)
	ca, err := terminate.CreateAuthority(t.TempDir()+"/ca", terminate.AuthorityOptions{})
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	e := &ender{Server: s, ca: ca, authority: x509.NewCertPool()}
	e.authority.AddCert(ca.Certificate())
	if e.t, err = terminate.New(terminate.Config{CA: ca, Roots: roots}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.t.Close)
	return e
}

func (e *ender) dest() netip.AddrPort { return e.Listener.Addr().(*net.TCPAddr).AddrPort() }

// ending is start for budgets whose connections may be ended.
func (e *ender) ending(t testing.TB, budgets ...*policy.Budget) *bench {
	for _, b := range budgets {
		b.TLS = policy.Terminate
	}
	return startWith(t, Config{Terminator: func() *terminate.Terminator { return e.t }}, 0, budgets...)
}

// client trusts the authority alone; example.com is what httptest is certified
// for.
func (e *ender) client(b *bench, h2 bool) *http.Client {
	tr := &http.Transport{
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return b.connect(e.dest()), nil },
		TLSClientConfig:   &tls.Config{RootCAs: e.authority},
		ForceAttemptHTTP2: h2,
	}
	b.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// Requests inside TLS that ends here are paced, refused in the origin's place and
// judged like those without TLS.
func TestEnding(t *testing.T) {
	var served atomic.Int64
	e := newEnder(t, false, func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		body, _ := io.ReadAll(r.Body)
		_, _ = w.Write(body)
	})
	rule := budget("example.com", policy.Rate{Count: 20, Every: time.Hour})
	rule.Burst, rule.Match.Path = 20, "/api/"
	b := e.ending(t, rule)
	client := e.client(b, false)
	for i := range 20 {
		text := strings.Repeat("x", i*9000)
		resp, err := client.Post("https://example.com/api/", "text/plain", strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(resp.Body); err != nil || string(body) != text || resp.StatusCode != 200 {
			t.Fatalf("request %d: %d bytes of %d, status %d, %v", i, len(body), len(text), resp.StatusCode, err)
		}
		resp.Body.Close()
	}
	resp, err := client.Get("https://example.com/api/more")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 429 || !strings.Contains(resp.Header.Get("Proxy-Status"), "egressd") || resp.Header.Get("Retry-After") == "" {
		t.Errorf("over budget: %d, %v", resp.StatusCode, resp.Header)
	}
	if got := get(t, client, "https://example.com/other"); got != 200 {
		t.Errorf("a request under no budget: %d", got)
	}
	if got := served.Load(); got != 21 {
		t.Errorf("the origin saw %d requests, want 21", got)
	}
	n := b.Insight().Counts()
	if n.Open[policy.SightTerminate] != 1 || n.Open[policy.SightBlind] != 0 {
		t.Errorf("open connections: %v", n.Open)
	}
	client.CloseIdleConnections()
	waitFor(t, "the connection to end", func() bool { return b.conns.Load() == 0 && e.t.Running() == 0 })
}

// A 429 inside is absorbed where the budget says so.
func TestEndingAbsorbs(t *testing.T) {
	var served atomic.Int64
	e := newEnder(t, false, func(w http.ResponseWriter, r *http.Request) {
		if served.Add(1) == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(429)
		}
	})
	rule := budget("example.com", plenty)
	rule.Retry = policy.Retry{Absorb: true, Attempts: 3, MaxBody: 1 << 20}
	b := e.ending(t, rule)
	if got := get(t, e.client(b, false), "https://example.com/"); got != 200 || served.Load() != 2 {
		t.Errorf("status %d after %d requests, want 200 after 2", got, served.Load())
	}
}

// A client that does not trust the authority fails once and is passed through
// from then on; a bad certificate of the origin is a failure of TLS.
func TestEndingRefused(t *testing.T) {
	e := newEnder(t, false, func(http.ResponseWriter, *http.Request) {})
	b := e.ending(t, budget("example.com", plenty))
	client := e.client(b, false)
	roots := x509.NewCertPool()
	roots.AddCert(e.Certificate())
	client.Transport.(*http.Transport).TLSClientConfig.RootCAs = roots
	if _, err := client.Get("https://example.com/"); err == nil {
		t.Fatal("a client that trusts only the origin took another's certificate")
	}
	waitFor(t, "it to be noted", func() bool { return b.Insight().Counts().Doubts[policy.DoubtUntrusted] == 1 })
	if got := get(t, client, "https://example.com/"); got != 200 {
		t.Errorf("status %d of the next connection", got)
	}

	f := newEnder(t, false, func(http.ResponseWriter, *http.Request) {
		t.Error("a request reached an origin with a bad certificate")
	})
	strict, err := terminate.New(terminate.Config{CA: f.ca, Roots: x509.NewCertPool()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(strict.Close)
	f.t = strict
	bad := f.ending(t, budget("example.com", plenty))
	if _, err := f.client(bad, false).Get("https://example.com/"); err == nil || !strings.Contains(err.Error(), "certificate") && !strings.Contains(err.Error(), "tls:") {
		t.Errorf("an origin with a bad certificate: %v, want a failure of TLS", err)
	}
}

// Without an authority connections pass through, counted.
func TestEndingWithoutAuthority(t *testing.T) {
	s := newSecret(t, false, "answer")
	rule := budget("origin.test", plenty)
	rule.TLS = policy.Terminate
	b := start(t, rule)
	if got := get(t, s.client(b, false), "https://origin.test/"); got != 200 {
		t.Errorf("status %d", got)
	}
	if n := b.Insight().Counts(); n.Doubts[policy.DoubtNoAuthority] != 1 || n.Open[policy.SightBlind] != 1 {
		t.Errorf("doubts %v, open %v", n.Doubts, n.Open)
	}
}

// Many connections at once, that end in every way, leave nothing behind.
func TestEndingMany(t *testing.T) {
	e := newEnder(t, false, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/cut":
			panic(http.ErrAbortHandler)
		case "/long":
			_, _ = io.Copy(w, io.LimitReader(zeros{}, 4<<20))
		}
	})
	e.Config.ErrorLog = nil
	b := e.ending(t, budget("example.com", plenty))
	done := make(chan error, 40)
	for i := range 40 {
		go func() {
			c := tls.Client(b.connect(e.dest()), &tls.Config{RootCAs: e.authority, ServerName: "example.com"})
			defer c.Close()
			path := []string{"/", "/cut", "/long", "/long"}[i%4]
			if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: example.com\r\nConnection: close\r\n\r\n", path); err != nil {
				done <- err
				return
			}
			if i%4 == 3 { // it leaves in the middle
				_, err := io.CopyN(io.Discard, c, 1000)
				done <- err
				return
			}
			resp, err := io.ReadAll(c)
			switch {
			case path == "/cut" && err == nil && len(resp) > 0:
				done <- fmt.Errorf("an answer that was cut off came whole: %q", resp)
			case path == "/":
				done <- err
			case path == "/long" && (err != nil || len(resp) < 4<<20):
				done <- fmt.Errorf("%d bytes, %v", len(resp), err)
			default:
				done <- nil
			}
		}()
	}
	for range 40 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	waitFor(t, "the connections to end", func() bool { return b.conns.Load() == 0 && e.t.Running() == 0 })
}
