// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"io"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"
	"time"
)

// web is an origin that speaks HTTP, in this process. It answers with the
// address that it sees its client at.
type web struct {
	port     int
	requests atomic.Int64
	limited  atomic.Int64 // seconds of Retry-After for the next request, once
}

func newWeb(t testing.TB) *web {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &web{port: l.Addr().(*net.TCPAddr).Port}
	server := &http.Server{Handler: w, ReadHeaderTimeout: time.Minute}
	done := make(chan struct{})
	go func() {
		defer close(done)
		server.Serve(l)
	}()
	t.Cleanup(func() {
		server.Close()
		<-done
	})
	return w
}

func (w *web) addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(w.port)) }

func (w *web) ServeHTTP(out http.ResponseWriter, r *http.Request) {
	w.requests.Add(1)
	if s := w.limited.Swap(0); s > 0 {
		out.Header().Set("Retry-After", strconv.FormatInt(s, 10))
		out.WriteHeader(http.StatusTooManyRequests)
	}
	io.WriteString(out, r.RemoteAddr)
}
