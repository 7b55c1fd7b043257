// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// origin is an HTTP server of the test that writes down when requests came,
// and answers with the address that they came from.
type origin struct {
	port int

	mu       sync.Mutex
	received []time.Time
	limitFor time.Duration    // the next request gets a 429 with this Retry-After
	look     func(client int) // is told of the port of each client, while the client waits
}

// newOrigin starts an origin on the loopback.
func newOrigin(t testing.TB) *origin {
	t.Helper()
	o := new(origin)
	o.port = serve(t, o)
	return o
}

// serve has h answer on a free port of 127.0.0.1 and ::1, which it returns.
func serve(t testing.TB, h http.Handler) (port int) {
	t.Helper()
	return serveBy(t, h, (*httptest.Server).Start)
}

// serveBy is serve with servers that start starts.
func serveBy(t testing.TB, h http.Handler, start func(*httptest.Server)) (port int) {
	t.Helper()
	listeners, err := listenBoth()
	if err != nil {
		t.Fatal(err)
	}
	for _, ln := range listeners {
		server := httptest.NewUnstartedServer(h)
		server.Listener.Close()
		server.Listener = ln
		start(server)
		t.Cleanup(func() {
			server.CloseClientConnections()
			server.Close()
		})
	}
	return listeners[0].Addr().(*net.TCPAddr).Port
}

// listenBoth opens one free port on 127.0.0.1 and ::1.
func listenBoth() ([]net.Listener, error) {
	var last error
	for range 20 {
		v4, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		port := v4.Addr().(*net.TCPAddr).Port
		v6, err := net.Listen("tcp6", hostPort("::1", port))
		if err == nil {
			return []net.Listener{v4, v6}, nil
		}
		last = err
		v4.Close()
	}
	return nil, last
}

func (o *origin) addr() string { return hostPort("127.0.0.1", o.port) }

func (o *origin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	now := time.Now()
	o.mu.Lock()
	o.received = append(o.received, now)
	limit, look := o.limitFor, o.look
	o.limitFor = 0
	o.mu.Unlock()
	if look != nil {
		look(int(netip.MustParseAddrPort(r.RemoteAddr).Port()))
	}
	if limit > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(limit/time.Second)))
		w.WriteHeader(http.StatusTooManyRequests)
	}
	_, _ = io.WriteString(w, r.RemoteAddr)
}

// limitNext makes the origin answer the next request with a 429.
func (o *origin) limitNext(retryAfter time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.limitFor = retryAfter
}

// times are when requests came.
func (o *origin) times() []time.Time {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]time.Time(nil), o.received...)
}

func (o *origin) count() int { return len(o.times()) }

// cutHead splits an answer of an origin.
func cutHead(text []byte) (head, body string, ok bool) {
	return strings.Cut(string(text), "\r\n\r\n")
}

// serveOrigin is the origin of another process, or namespace. It tells its
// port and serves until it is killed.
func serveOrigin(out io.Writer) error {
	listeners, err := listenBoth()
	if err != nil {
		return err
	}
	if err := json.NewEncoder(out).Encode(listeners[0].Addr().(*net.TCPAddr).Port); err != nil {
		return err
	}
	failed := make(chan error)
	for _, ln := range listeners {
		go func() { failed <- http.Serve(ln, new(origin)) }()
	}
	return errors.Join(<-failed, fmt.Errorf("the origin has ended"))
}
