// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
)

// httpOrigin is a server that counts its requests and answers 200.
func httpOrigin(t testing.TB, handler http.HandlerFunc) (netip.AddrPort, *atomic.Int64) {
	t.Helper()
	var n atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.Add(1)
		if handler != nil {
			handler(w, r)
		}
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().(*net.TCPAddr).AddrPort(), &n
}

// roundTrip sends one request and reads its answer.
func roundTrip(t testing.TB, c net.Conn, request string) *http.Response {
	t.Helper()
	mustWrite(t, c, request)
	return readResponse(t, bufio.NewReader(c), strings.Fields(request)[0])
}

func readResponse(t testing.TB, r *bufio.Reader, method string) *http.Response {
	t.Helper()
	resp, err := http.ReadResponse(r, &http.Request{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body = io.NopCloser(bytes.NewReader(body))
	return resp
}

func perSecond(n float64) policy.Rate { return policy.Rate{Count: n, Every: time.Second} }

// The second request of a connection waits for its turn.
func TestRequestsArePaced(t *testing.T) {
	dest, n := httpOrigin(t, nil)
	b := start(t, budget("origin.test", perSecond(5)))
	client := b.connect(dest)
	began := time.Now()
	for range 3 {
		if resp := roundTrip(t, client, simpleGet); resp.StatusCode != 200 {
			t.Fatalf("status = %d, want 200", resp.StatusCode)
		}
	}
	if got := time.Since(began); got < 400*time.Millisecond {
		t.Errorf("3 requests at 5/s took %v, want at least 400ms", got)
	}
	if got := n.Load(); got != 3 {
		t.Errorf("origin saw %d requests, want 3", got)
	}
}

// Pipelined requests are paced too, and answered in order.
func TestPipelinedRequests(t *testing.T) {
	dest, n := httpOrigin(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.URL.Path) })
	b := start(t, budget("origin.test", perSecond(10)))
	client := b.connect(dest)
	var all strings.Builder
	for i := range 5 {
		fmt.Fprintf(&all, "GET /%d HTTP/1.1\r\nHost: origin.test\r\n\r\n", i)
	}
	began := time.Now()
	mustWrite(t, client, all.String())
	r := bufio.NewReader(client)
	for i := range 5 {
		resp := readResponse(t, r, "GET")
		if body, _ := io.ReadAll(resp.Body); string(body) != "/"+strconv.Itoa(i) {
			t.Fatalf("answer %d is %q", i, body)
		}
	}
	if got := time.Since(began); got < 400*time.Millisecond {
		t.Errorf("5 requests at 10/s took %v, want at least 400ms", got)
	}
	if got := n.Load(); got != 5 {
		t.Errorf("origin saw %d requests, want 5", got)
	}
}

// What the proxy says itself is no traffic of the origin.
func TestOwnAnswersAreNotCountedAsBytes(t *testing.T) {
	dest, _ := httpOrigin(t, nil)
	rule := budget("origin.test", policy.Rate{Count: 1, Every: time.Hour})
	rule.Queue.MaxWait = time.Second
	b := start(t, rule)
	client := b.connect(dest)
	size := func(resp *http.Response) (n uint64) {
		var head bytes.Buffer
		resp.Write(&head)
		return uint64(head.Len())
	}
	first := size(roundTrip(t, client, simpleGet))
	var refusals uint64
	for range 20 {
		resp := roundTrip(t, client, simpleGet)
		if resp.StatusCode != http.StatusTooManyRequests {
			t.Fatalf("status = %d, want 429", resp.StatusCode)
		}
		refusals += size(resp)
	}
	client.Close()
	tally := b.engine.Lanes()[0].Tally
	waitFor(t, "the bytes to be noted", func() bool { return len(b.Flows()) == 0 })
	// The head may be longer than net/http writes it anew, but not by much.
	if got := tally.Bytes(policy.Received); got == 0 || got > first+200 {
		t.Errorf("received %d bytes, want about %d, and not the %d of refusals", got, first, refusals)
	}
	if got, want := tally.Bytes(policy.Sent), uint64(len(simpleGet)); got != want {
		t.Errorf("sent %d bytes, want %d", got, want)
	}
}

// A held request holds no connection at the origin, and a client that leaves
// costs nothing.
func TestHeldClientLeaves(t *testing.T) {
	dest, n := httpOrigin(t, nil)
	rule := budget("origin.test", policy.Rate{Count: 1, Every: time.Hour})
	rule.Queue.MaxWait = 24 * time.Hour
	b := start(t, rule)
	roundTrip(t, b.connect(dest), simpleGet)
	granted := b.engine.Lanes()[0].Cell.Granted.Load()
	for _, leave := range []func(*net.TCPConn){
		func(c *net.TCPConn) { c.Close() },
		func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
	} {
		client := b.connect(dest)
		mustWrite(t, client, simpleGet)
		waitFor(t, "request held", func() bool { return b.engine.Lanes()[0].Waiting.Load() == 1 })
		leave(client)
		waitFor(t, "client gone", func() bool { return b.engine.Lanes()[0].Waiting.Load() == 0 })
	}
	if got := b.engine.Lanes()[0].Cell.Granted.Load(); got != granted {
		t.Errorf("granted = %d, want %d as before", got, granted)
	}
	if got := n.Load(); got != 1 {
		t.Errorf("origin saw %d requests, want 1", got)
	}
}

// A client that only ended its sending is not gone.
func TestHeldHalfClosedClient(t *testing.T) {
	dest, _ := httpOrigin(t, nil)
	b := start(t, budget("origin.test", perSecond(2)))
	roundTrip(t, b.connect(dest), simpleGet)
	client := b.connect(dest)
	mustWrite(t, client, simpleGet)
	client.CloseWrite()
	waitFor(t, "request held", func() bool { return b.engine.Lanes()[0].Waiting.Load() == 1 })
	if resp := readResponse(t, bufio.NewReader(client), "GET"); resp.StatusCode != 200 {
		t.Errorf("status = %d, want 200", resp.StatusCode)
	}
}

// What would wait too long is answered here, in words that name egressd, and
// the connection can go on.
func TestRefusal(t *testing.T) {
	dest, n := httpOrigin(t, nil)
	rule := budget("origin.test", policy.Rate{Count: 1, Every: time.Minute})
	rule.Queue.MaxWait = time.Second
	b := start(t, rule)
	client := b.connect(dest)
	roundTrip(t, client, simpleGet)
	for _, request := range []string{
		simpleGet,
		"POST / HTTP/1.1\r\nHost: origin.test\r\nContent-Length: 5\r\n\r\nhello",
		"POST / HTTP/1.1\r\nHost: origin.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
		"HEAD / HTTP/1.1\r\nHost: origin.test\r\n\r\n",
		simpleGet,
	} {
		resp := roundTrip(t, client, request)
		after, err := strconv.Atoi(resp.Header.Get("Retry-After"))
		if resp.StatusCode != 429 || err != nil || after < 50 || after > 60 {
			t.Errorf("%.10q: status %d, Retry-After %q; want 429 and about 60", request, resp.StatusCode, resp.Header.Get("Retry-After"))
		}
		if got := resp.Header.Get("Proxy-Status"); !strings.HasPrefix(got, "egressd;") || !strings.Contains(got, "max_wait") {
			t.Errorf("Proxy-Status = %q, want egressd and max_wait in it", got)
		}
	}
	if got := n.Load(); got != 1 {
		t.Errorf("origin saw %d requests, want 1", got)
	}
	if got := b.engine.Lanes()[0].Tally.Refused(policy.RefusedMaxWait); got != 5 {
		t.Errorf("refused = %d, want 5", got)
	}
}

// on_full: drop and connections without a language for it get a reset.
func TestRefusalByReset(t *testing.T) {
	dest, _ := httpOrigin(t, nil)
	for _, tc := range []struct {
		name, request string
		onFull        policy.OnFull
	}{
		{"drop", simpleGet, policy.Drop},
		{"opaque", "\x00\x01\x02", policy.Refuse},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rule := budget("", policy.Rate{Count: 1, Every: time.Minute})
			rule.Match.Hosts = []policy.HostPattern{{Any: true}}
			rule.Per = 0
			rule.Queue.MaxWait = time.Second
			rule.OnFull = tc.onFull
			b := start(t, rule)
			roundTrip(t, b.connect(dest), simpleGet)
			client := b.connect(dest)
			mustWrite(t, client, tc.request)
			mustEnd(t, client, true)
		})
	}
}

// Requests that two readers could frame differently reach no origin.
func TestAmbiguousRequest(t *testing.T) {
	for _, request := range []string{
		"POST / HTTP/1.1\r\nHost: origin.test\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: origin.test\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
		"GET / HTTP/1.1\nHost: origin.test\n\n",
		"GET / HTTP/1.1\r\nHost: origin.test\r\nHost: other.test\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: origin..test\r\n\r\n",
		"POST / HTTP/1.1\r\nHost : origin.test\r\nContent-Length: 5\r\n\r\nhello",
	} {
		dest, n := httpOrigin(t, nil)
		b := start(t, budget("origin.test", plenty))
		client := b.connect(dest)
		resp := roundTrip(t, client, request)
		if resp.StatusCode != 400 || resp.Header.Get("Proxy-Status") == "" || !resp.Close {
			t.Errorf("%q: status %d, headers %v; want 400, Proxy-Status and a closed connection", request, resp.StatusCode, resp.Header)
		}
		mustEnd(t, client, false)
		if got := n.Load(); got != 0 {
			t.Errorf("%q: origin saw %d requests, want none", request, got)
		}
	}
}

// A chunk size that cannot be read breaks the connection in mid-request: what
// follows must not be taken for another request.
func TestAmbiguousChunk(t *testing.T) {
	got := make(chan string, 1)
	b := start(t, budget("origin.test", plenty))
	client := b.connect(origin(t, func(c *net.TCPConn) {
		all, _ := io.ReadAll(c)
		got <- string(all)
	}))
	head := "POST / HTTP/1.1\r\nHost: origin.test\r\nTransfer-Encoding: chunked\r\n\r\n"
	mustWrite(t, client, head+"5\r\nhello\r\n")
	waitFor(t, "request under way", func() bool { f := b.Flows(); return len(f) == 1 && f[0].State == "sending" })
	mustWrite(t, client, "0x5\r\nGET /smuggled HTTP/1.1\r\n\r\n")
	mustEnd(t, client, true)
	if all := <-got; strings.Contains(all, "smuggled") {
		t.Errorf("origin got %q", all)
	}
}

// A limit closes the lane; who waits is held until it reopens.
func TestLimitClosesLane(t *testing.T) {
	var limited atomic.Bool
	dest, _ := httpOrigin(t, func(w http.ResponseWriter, r *http.Request) {
		if limited.CompareAndSwap(false, true) {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(429)
		}
	})
	b := start(t, budget("origin.test", perSecond(1000)))
	client := b.connect(dest)
	if resp := roundTrip(t, client, simpleGet); resp.StatusCode != 429 || resp.Header.Get("Proxy-Status") != "" {
		t.Fatalf("status %d, Proxy-Status %q; want the origin's own 429", resp.StatusCode, resp.Header.Get("Proxy-Status"))
	}
	began := time.Now()
	if resp := roundTrip(t, client, simpleGet); resp.StatusCode != 200 {
		t.Fatalf("status = %d, want 200", resp.StatusCode)
	}
	if got := time.Since(began); got < 950*time.Millisecond {
		t.Errorf("next request after %v, want at least 1s", got)
	}
}

// A connection that the origin ends while the next request is held is replaced
// unseen.
func TestOriginClosesWhileHeld(t *testing.T) {
	var conns atomic.Int64
	dest := origin(t, func(c *net.TCPConn) {
		conns.Add(1)
		mustRead(t, c, simpleGet)
		mustWrite(t, c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		time.Sleep(50 * time.Millisecond)
	})
	b := start(t, budget("origin.test", perSecond(2)))
	client := b.connect(dest)
	mustWrite(t, client, simpleGet+simpleGet)
	for range 2 {
		mustRead(t, client, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	}
	if got := conns.Load(); got != 2 {
		t.Errorf("origin saw %d connections, want 2", got)
	}
}

// In protocols where the server speaks first the connection is made although
// the client says nothing.
func TestServerSpeaksFirst(t *testing.T) {
	b := start(t, budget("origin.test", plenty))
	client := b.connect(origin(t, func(c *net.TCPConn) {
		mustWrite(t, c, "220 hello\r\n")
		mustRead(t, c, "EHLO me\r\n")
		mustWrite(t, c, "250 ok\r\n")
	}))
	mustRead(t, client, "220 hello\r\n")
	mustWrite(t, client, "EHLO me\r\n")
	mustRead(t, client, "250 ok\r\n")
	mustEnd(t, client, false)
}

// Where connections are counted and nothing else, the origin sees none before
// its turn, also if the client says nothing.
func TestSilentConnectionsHaveTurns(t *testing.T) {
	var mu sync.Mutex
	var seen []time.Time
	dest := origin(t, func(c *net.TCPConn) {
		mu.Lock()
		seen = append(seen, time.Now())
		mu.Unlock()
		mustWrite(t, c, "220 hello\r\n")
	})
	conns := budget("", perSecond(2))
	conns.Match.Hosts = []policy.HostPattern{{Prefix: netip.MustParsePrefix("127.0.0.0/8")}}
	conns.Unit = policy.Connections
	b := start(t, conns)
	var clients []net.Conn
	for range 3 {
		clients = append(clients, b.connect(dest))
	}
	for _, c := range clients {
		mustRead(t, c, "220 hello\r\n")
	}
	mu.Lock()
	defer mu.Unlock()
	if len(seen) != 3 {
		t.Fatalf("origin saw %d connections, want 3", len(seen))
	}
	// What the origin does with one takes time, which only makes gaps shorter
	// by as much as it is late for the first.
	if got := seen[2].Sub(seen[0]); got < 800*time.Millisecond {
		t.Errorf("three connections at 2/s within %v", got)
	}
}

// A TLS connection falls into the lane of its SNI, and its bytes pass.
func TestTLSConnectionsArePacedBySNI(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "secret") }))
	defer s.Close()
	dest := s.Listener.Addr().(*net.TCPAddr).AddrPort()
	b := start(t, budget("origin.test", perSecond(4)))
	began := time.Now()
	for range 3 {
		c := tls.Client(b.connect(dest), &tls.Config{ServerName: "Origin.TEST", InsecureSkipVerify: true})
		resp := roundTrip(t, c, "GET / HTTP/1.1\r\nHost: origin.test\r\nConnection: close\r\n\r\n")
		if body, _ := io.ReadAll(resp.Body); string(body) != "secret" {
			t.Fatalf("body = %q", body)
		}
	}
	if got := time.Since(began); got < 500*time.Millisecond {
		t.Errorf("3 connections at 4/s took %v, want at least 500ms", got)
	}
	lanes := b.engine.Lanes()
	if len(lanes) != 1 || lanes[0].Key.Destination != "origin.test" || lanes[0].Cell.Granted.Load() != 3 {
		t.Errorf("lanes = %v, want origin.test alone with 3 granted", lanes)
	}
}

// Budgets that count connections charge an HTTP connection once, those that
// count requests each request.
func TestUnits(t *testing.T) {
	dest, _ := httpOrigin(t, nil)
	requests := budget("origin.test", plenty)
	conns := budget("origin.test", plenty)
	conns.Name, conns.Unit = "conns", policy.Connections
	b := start(t, requests, conns)
	for range 2 {
		client := b.connect(dest)
		for range 3 {
			roundTrip(t, client, simpleGet)
		}
	}
	for _, l := range b.engine.Lanes() {
		want := uint64(6)
		if l.Key.Budget == "conns" {
			want = 2
		}
		if got := l.Cell.Granted.Load(); got != want {
			t.Errorf("lane %s: granted %d, want %d", l.ID(), got, want)
		}
	}
}

// What no budget wants passes whatever it is, and charges nothing.
func TestUnwantedHost(t *testing.T) {
	dest, n := httpOrigin(t, nil)
	b := start(t, budget("origin.test", policy.Rate{Count: 1, Every: time.Hour}))
	client := b.connect(dest)
	for range 3 {
		roundTrip(t, client, "GET / HTTP/1.1\r\nHost: else.test\r\n\r\n")
	}
	if got := n.Load(); got != 3 {
		t.Errorf("origin saw %d requests, want 3", got)
	}
	if l := b.engine.Lanes(); len(l) != 0 {
		t.Errorf("lanes = %v, want none", l)
	}
}

// Much through a tunnel, both ways at once: nothing is lost or reordered.
func TestBulkTunnel(t *testing.T) {
	const size = 32 << 20
	pattern := func(n int) []byte {
		p := make([]byte, n)
		for i := range p {
			p[i] = byte(i*7 + i>>11)
		}
		return p
	}
	data := pattern(size)
	b := start(t)
	client := b.connect(origin(t, func(c *net.TCPConn) {
		go c.Write(data)
		got, err := io.ReadAll(io.LimitReader(c, size+1))
		if err != nil || !bytes.Equal(got, append([]byte{0}, data...)) {
			t.Errorf("origin got %d bytes, %v; want the %d sent", len(got), err, size+1)
		}
	}))
	go func() {
		client.Write([]byte{0})
		client.Write(data)
		client.CloseWrite()
	}()
	got, err := io.ReadAll(client)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("client got %d bytes, %v; want the %d sent", len(got), err, size)
	}
}
