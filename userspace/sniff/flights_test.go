// SPDX-License-Identifier: Apache-2.0

package sniff

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// tlsRecord is a TLS record with a body of n bytes, the first of which is given.
func tlsRecord(kind byte, n int, first byte) []byte {
	b := make([]byte, recordHeader+n)
	b[0], b[1], b[2] = kind, 3, 3
	binary.BigEndian.PutUint16(b[3:], uint16(n))
	if n > 0 {
		b[recordHeader] = first
	}
	return b
}

func TestFlights(t *testing.T) {
	hello, ccs := tlsRecord(recordHandshake, 500, typeClientHello), tlsRecord(recordCCS, 1, 1)
	finished, request := tlsRecord(recordData, 53, 0), tlsRecord(recordData, 300, 0)
	exchange, closing := tlsRecord(recordHandshake, 70, 16), tlsRecord(recordData, 19, 0)
	ack := tlsRecord(recordData, 13+17, 0)
	server := []byte(nil) // stands for bytes of the server
	for _, tt := range []struct {
		name string
		h2   bool
		say  [][]byte
		want int
	}{
		{"TLS 1.3", false, [][]byte{hello, server, ccs, finished, request, server, request, server}, 2},
		{"without a CCS", false, [][]byte{hello, server, finished, request}, 1},
		{"tickets before the request", false, [][]byte{hello, server, ccs, finished, server, request, server, request}, 2},
		{"a second hello", false, [][]byte{hello, server, hello, server, ccs, finished, server, request}, 1},
		{"TLS 1.2", false, [][]byte{hello, server, exchange, ccs, tlsRecord(recordHandshake, 40, 0), server, request, server, request}, 2},
		{"TLS 1.2, resumed, short first request", false, [][]byte{hello, server, ccs, tlsRecord(recordHandshake, 40, 0), tlsRecord(recordData, 50, 0)}, 1},
		{"early data", false, [][]byte{hello, request, server, tlsRecord(recordData, 21, 0), finished, server, request}, 2},
		{"a request in parts", false, [][]byte{hello, server, finished, request, request, request, server, request}, 2},
		{"close_notify begins nothing", false, [][]byte{hello, server, finished, request, server, closing}, 1},
		{"an alert in the clear", false, [][]byte{hello, server, tlsRecord(recordAlert, 2, 1)}, 0},
		{"acknowledgements of HTTP/2", true, [][]byte{hello, server, finished, request, server, ack, server, ack, ack, request}, 2},
		{"the same from HTTP/1", false, [][]byte{hello, server, finished, request, server, tlsRecord(recordData, 36, 0), server, request}, 3},
		{"an empty record", false, [][]byte{hello, server, finished, tlsRecord(recordData, 0, 0), request}, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, piece := range []int{1 << 20, 1, 7} {
				f := Flights{H2: tt.h2}
				var pending []byte
				flights := 0
				for _, b := range tt.say {
					if b == nil {
						f.Server()
						continue
					}
					for len(b) > 0 {
						n := min(piece, len(b))
						pending = append(pending, b[:n]...)
						b = b[n:]
						for {
							took, flight := f.Client(pending)
							pending = pending[took:]
							if !flight {
								break
							}
							flights++
						}
					}
				}
				if flights != tt.want || f.Count() != tt.want || f.Lost() || len(pending) > 0 {
					t.Errorf("in pieces of %d: %d flights, counted %d, lost %v, %d bytes left, want %d flights", piece, flights, f.Count(), f.Lost(), len(pending), tt.want)
				}
			}
		})
	}
}

func TestFlightsLost(t *testing.T) {
	for name, b := range map[string][]byte{
		"another protocol": []byte("GET / HTTP/1.1\r\n"),
		"another type":     {24, 3, 3, 0, 1, 0},
		"another version":  {23, 2, 0, 0, 1, 0},
		"too long":         {23, 3, 3, 0xff, 0xff, 0},
	} {
		var f Flights
		n, flight := f.Client(append(tlsRecord(recordHandshake, 10, typeClientHello), b...))
		if n != 15+len(b) || flight || !f.Lost() {
			t.Errorf("%s: n = %d, flight %v, lost %v, want all let through and lost", name, n, flight, f.Lost())
		}
		if n, flight := f.Client(tlsRecord(recordData, 400, 0)); n != 405 || flight {
			t.Errorf("%s: after it n = %d, flight %v", name, n, flight)
		}
	}
}

// relay counts the flights of all connections that it hands on to addr.
type relay struct {
	addr string
	h2   bool

	mu      sync.Mutex
	flights int
}

func (r *relay) serve(ln net.Listener) {
	for {
		client, err := ln.Accept()
		if err != nil {
			return
		}
		go r.pass(client)
	}
}

func (r *relay) pass(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", r.addr)
	if err != nil {
		return
	}
	defer server.Close()
	var mu sync.Mutex
	f := Flights{H2: r.h2}
	go func() {
		b := make([]byte, 16<<10)
		for {
			n, err := server.Read(b)
			mu.Lock()
			f.Server()
			mu.Unlock()
			if _, werr := client.Write(b[:n]); err != nil || werr != nil {
				client.Close()
				return
			}
		}
	}()
	var pending []byte
	b := make([]byte, 16<<10)
	for {
		n, err := client.Read(b)
		pending = append(pending, b[:n]...)
		for {
			mu.Lock()
			took, flight := f.Client(pending)
			mu.Unlock()
			if _, werr := server.Write(pending[:took]); werr != nil {
				return
			}
			pending = pending[took:]
			if !flight {
				break
			}
			r.mu.Lock()
			r.flights++
			r.mu.Unlock()
		}
		if err != nil {
			return
		}
	}
}

// With HTTP/1.1, flights are requests, whatever the version of TLS, new
// sessions or resumed, bodies or none.
func TestFlightsOfRealClients(t *testing.T) {
	for _, tt := range []struct {
		name   string
		client *tls.Config
		server *tls.Config
		h2     bool
	}{
		{name: "TLS 1.3"},
		{name: "TLS 1.2", client: &tls.Config{MaxVersion: tls.VersionTLS12}},
		{name: "hello retry", server: &tls.Config{CurvePreferences: []tls.CurveID{tls.CurveP521}}},
		{name: "no tickets", server: &tls.Config{SessionTicketsDisabled: true}},
		{name: "TLS 1.3 HTTP/2", h2: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var served atomic.Int64
			origin := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				served.Add(1)
				_, _ = io.Copy(io.Discard, r.Body)
				_, _ = io.WriteString(w, strings.Repeat("x", 100<<10))
			}))
			origin.EnableHTTP2 = tt.h2
			origin.TLS = tt.server.Clone() // nil stays nil
			origin.StartTLS()
			defer origin.Close()
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			r := &relay{addr: origin.Listener.Addr().String(), h2: tt.h2}
			go r.serve(ln)

			config := new(tls.Config)
			if tt.client != nil {
				config = tt.client.Clone()
			}
			config.RootCAs = x509.NewCertPool()
			config.RootCAs.AddCert(origin.Certificate())
			config.ServerName = "example.com"
			config.ClientSessionCache = tls.NewLRUClientSessionCache(4)
			const connections, each = 3, 5
			for range connections {
				transport := &http.Transport{TLSClientConfig: config, ForceAttemptHTTP2: tt.h2}
				client := &http.Client{Transport: transport}
				for i := range each {
					// A body of its own record or two.
					resp, err := client.Post(fmt.Sprintf("https://%s/", ln.Addr()), "text/plain", strings.NewReader(strings.Repeat("y", i*10_000)))
					if err != nil {
						t.Fatal(err)
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
				transport.CloseIdleConnections()
			}
			want := int(served.Load())
			r.mu.Lock()
			defer r.mu.Unlock()
			switch {
			case !tt.h2 && r.flights != want:
				t.Errorf("%d flights for %d requests", r.flights, want)
			case tt.h2 && (r.flights < want*3/4 || r.flights > want*2):
				t.Errorf("%d flights for %d requests, one after the other, want about as many", r.flights, want)
			}
			t.Logf("%d flights, %d requests", r.flights, want)
		})
	}
}

func FuzzFlights(f *testing.F) {
	f.Add(append(tlsRecord(recordHandshake, 30, 1), tlsRecord(recordData, 60, 0)...), uint8(3), true)
	f.Add([]byte("GET / HTTP/1.1"), uint8(1), false)
	f.Fuzz(func(t *testing.T, b []byte, cut uint8, h2 bool) {
		run := func(piece int) (passed []byte, count int) {
			f := Flights{H2: h2}
			var pending []byte
			for rest := b; len(rest) > 0; {
				n := min(piece, len(rest))
				pending, rest = append(pending, rest[:n]...), rest[n:]
				for {
					took, flight := f.Client(pending)
					if took < 0 || took > len(pending) {
						t.Fatalf("took %d of %d", took, len(pending))
					}
					passed, pending = append(passed, pending[:took]...), pending[took:]
					if !flight {
						break
					}
				}
				if len(pending) > recordHeader {
					t.Fatalf("%d bytes are kept though nothing holds them", len(pending))
				}
			}
			return append(passed, pending...), f.Count()
		}
		whole, count := run(len(b) + 1)
		parts, count2 := run(int(cut)%16 + 1)
		if !bytes.Equal(whole, b) || !bytes.Equal(parts, b) {
			t.Error("bytes were lost")
		}
		if count != count2 {
			t.Errorf("whole %d flights, in parts %d", count, count2)
		}
	})
}
