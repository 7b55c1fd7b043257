// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
)

// secret is an HTTPS origin that writes down when requests came.
type secret struct {
	*httptest.Server
	mu sync.Mutex
	at []time.Time
}

func newSecret(t testing.TB, h2 bool, answer string) *secret {
	t.Helper()
	s := new(secret)
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.at = append(s.at, time.Now())
		s.mu.Unlock()
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, answer)
	}))
	s.EnableHTTP2 = h2
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func (s *secret) dest() netip.AddrPort { return s.Listener.Addr().(*net.TCPAddr).AddrPort() }

func (s *secret) times() []time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]time.Time(nil), s.at...)
}

// client is an HTTP client whose connections go through the bench.
func (s *secret) client(b *bench, h2 bool) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return b.connect(s.dest()), nil },
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		ForceAttemptHTTP2: h2,
	}}
}

// The requests of one TLS connection are paced although nobody reads them.
func TestFlightsArePaced(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		t.Run(fmt.Sprint("HTTP/2 ", h2), func(t *testing.T) {
			s := newSecret(t, h2, "answer")
			b := start(t, budget("origin.test", perSecond(5)))
			client := s.client(b, h2)
			for i := range 6 {
				resp, err := client.Post("https://origin.test/", "text/plain", strings.NewReader(strings.Repeat("x", i*5000)))
				if err != nil {
					t.Fatal(err)
				}
				if body, _ := io.ReadAll(resp.Body); string(body) != "answer" {
					t.Fatalf("body = %q", body)
				}
				resp.Body.Close()
			}
			at := s.times()
			least := time.Second
			if h2 {
				least = 800 * time.Millisecond // one may be too short to be noticed
			}
			if got := at[5].Sub(at[0]); got < least-50*time.Millisecond {
				t.Errorf("6 requests at 5/s within %v, want at least %v", got, least)
			}
			lane := b.engine.Lanes()[0]
			got := lane.Cell.Granted.Load()
			if want := uint64(6); !h2 && got != want || h2 && (got < want-1 || got > 2*want) {
				t.Errorf("%d units for 6 requests on one connection", got)
			}
			if n := lane.InFlight.Load(); n != 0 {
				t.Errorf("%d under way after all were answered", n)
			}
		})
	}
}

// Budgets that do not ask for it, and those that count connections, see one
// unit for a TLS connection.
func TestFlightsNotPaced(t *testing.T) {
	for _, change := range []func(*policy.Budget){
		func(b *policy.Budget) { b.Flights = false },
		func(b *policy.Budget) { b.Unit = policy.Connections },
	} {
		s := newSecret(t, false, "answer")
		rule := budget("origin.test", perSecond(1))
		change(rule)
		b := start(t, rule)
		client := s.client(b, false)
		for range 5 {
			resp, err := client.Get("https://origin.test/")
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		if got := b.engine.Lanes()[0].Cell.Granted.Load(); got != 1 {
			t.Errorf("%d units for one connection, want 1", got)
		}
	}
}

// A flight that may not wait ends the connection; one that waits does not hold
// up what the server sends; a client that goes leaves its place.
func TestFlightsHeld(t *testing.T) {
	s := newSecret(t, false, "answer")
	rule := budget("origin.test", policy.Rate{Count: 1, Every: time.Hour})
	b := start(t, rule)
	say := func(c *tls.Conn) { mustWrite(t, c, "GET / HTTP/1.1\r\nHost: origin.test\r\n\r\n") }
	open := func() (*tls.Conn, *net.TCPConn) {
		raw := b.connect(s.dest())
		return tls.Client(raw, &tls.Config{ServerName: "origin.test", InsecureSkipVerify: true}), raw
	}
	c, _ := open()
	say(c)
	head := make([]byte, 12)
	if _, err := io.ReadFull(c, head); err != nil || string(head) != "HTTP/1.1 200" {
		t.Fatalf("first answer %q, %v", head, err)
	}
	say(c)
	if _, err := io.Copy(io.Discard, c); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a flight that would wait an hour: %v, want a reset", err)
	}

	waiting := budget("origin.test", policy.Rate{Count: 1, Every: time.Hour})
	waiting.Queue.MaxWait = 2 * time.Hour
	b = start(t, waiting)
	c, raw := open()
	say(c)
	if _, err := io.ReadFull(c, head); err != nil {
		t.Fatal(err)
	}
	before := len(s.times())
	say(c)
	lane := b.engine.Lanes()[0]
	waitFor(t, "the flight to wait", func() bool { return lane.Waiting.Load() == 1 })
	if n := len(s.times()); n != before {
		t.Errorf("the origin received %d requests while the next was held", n-before)
	}
	raw.Close()
	waitFor(t, "the place to be left", func() bool { return lane.Waiting.Load() == 0 })
	waitFor(t, "the connection to end", func() bool { return b.conns.Load() == 0 })
}

// The places of a budget are those of connections, and a flight takes none
// beside that of its own.
func TestFlightsKeepPlaces(t *testing.T) {
	s := newSecret(t, false, "answer")
	rule := budget("origin.test", plenty)
	rule.Concurrency = 1
	b := start(t, rule)
	client := s.client(b, false)
	for range 5 {
		resp, err := client.Get("https://origin.test/")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	lane := b.engine.Lanes()[0]
	if got := lane.InFlight.Load(); got != 1 {
		t.Errorf("%d under way while one connection is open, want 1", got)
	}
	client.CloseIdleConnections()
	waitFor(t, "the place to be free", func() bool { return lane.InFlight.Load() == 0 })
}

// What is no TLS behind a ClientHello passes as it is, and bulk both ways.
func TestFlightsPassAll(t *testing.T) {
	got := make(chan []byte, 1)
	dest := origin(t, func(c *net.TCPConn) {
		b, _ := io.ReadAll(c)
		_, _ = c.Write(bytes.Repeat([]byte("y"), 1<<20))
		c.CloseWrite()
		got <- b
	})
	b := start(t, budget("origin.test", perSecond(1)))
	client := b.connect(dest)
	text := append([]byte(hello(t, "origin.test")), bytes.Repeat([]byte("no records at all"), 50_000)...)
	go func() {
		_, _ = client.Write(text)
		client.CloseWrite()
	}()
	back, err := io.ReadAll(client)
	if err != nil || len(back) != 1<<20 {
		t.Errorf("%d bytes came back, %v, want 1 MiB", len(back), err)
	}
	if sent := <-got; !bytes.Equal(sent, text) {
		t.Errorf("%d bytes arrived of %d, or others", len(sent), len(text))
	}

	s := newSecret(t, false, strings.Repeat("z", 8<<20))
	b = start(t, budget("origin.test", plenty))
	resp, err := s.client(b, false).Post("https://origin.test/", "text/plain", strings.NewReader(strings.Repeat("x", 8<<20)))
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(resp.Body); err != nil || len(body) != 8<<20 {
		t.Errorf("%d bytes, %v", len(body), err)
	}
	resp.Body.Close()
}
