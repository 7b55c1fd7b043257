// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"testing"

	"golang.org/x/net/http2"
)

func discardLog() *log.Logger { return log.New(io.Discard, "", 0) }

// origin is an HTTPS server that keeps the bytes with which each connection
// began, before and after TLS.
type origin struct {
	ln      net.Listener
	ca      *originCA
	config  *tls.Config
	handler http.Handler
	tasks   sync.WaitGroup
	stop    context.CancelFunc

	mu    sync.Mutex
	conns []*originConn
}

// originConn is what began a connection.
type originConn struct{ hello, plain *recorder }

// recorder is a connection whose first bytes are kept.
type recorder struct {
	net.Conn
	mu    sync.Mutex
	first []byte
}

func (c *recorder) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	if len(c.first) < 8192 {
		c.first = append(c.first, b[:n]...)
	}
	c.mu.Unlock()
	return n, err
}

func (c *recorder) seen() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.Clone(c.first)
}

// echo answers with what was asked for.
var echo = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	_, _ = fmt.Fprintf(w, "%s %s %d bytes over %s", r.Method, r.URL.Path, len(body), r.Proto)
})

// startOrigin starts an origin; handler is nil for echo, change may alter its
// side of TLS.
func startOrigin(tb testing.TB, handler http.Handler, change func(*tls.Config, *originCA)) *origin {
	tb.Helper()
	if handler == nil {
		handler = echo
	}
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	o := &origin{ln: ln, ca: newOriginCA(tb), handler: handler}
	o.config = &tls.Config{
		Certificates: []tls.Certificate{o.ca.issue(tb, nil)},
		NextProtos:   []string{"h2", "http/1.1"},
	}
	if change != nil {
		change(o.config, o.ca)
	}
	ctx, stop := context.WithCancel(context.Background())
	o.stop = stop
	o.tasks.Go(func() { o.accept(ctx) })
	tb.Cleanup(func() {
		_ = ln.Close()
		stop()
		o.tasks.Wait()
	})
	return o
}

func (o *origin) addr() string { return o.ln.Addr().String() }

func (o *origin) accept(ctx context.Context) {
	for {
		c, err := o.ln.Accept()
		if err != nil {
			return
		}
		o.tasks.Go(func() {
			defer context.AfterFunc(ctx, func() { _ = c.Close() })()
			o.serve(c)
		})
	}
}

func (o *origin) serve(c net.Conn) {
	defer c.Close()
	raw := &recorder{Conn: c}
	secure := tls.Server(raw, o.config)
	plain := &recorder{Conn: secure}
	o.mu.Lock()
	o.conns = append(o.conns, &originConn{raw, plain})
	o.mu.Unlock()
	if secure.Handshake() != nil {
		return
	}
	if secure.ConnectionState().NegotiatedProtocol == "h2" {
		//lint:ignore SA1019 nothing else serves HTTP/2 on a connection that is tapped
		new(http2.Server).ServeConn(plain, &http2.ServeConnOpts{
			Handler: o.handler, BaseConfig: &http.Server{ErrorLog: discardLog()},
		})
		return
	}
	done := make(chan struct{})
	server := &http.Server{Handler: o.handler, ErrorLog: discardLog(), ConnState: func(_ net.Conn, s http.ConnState) {
		if s == http.StateClosed {
			close(done)
		}
	}}
	go func() { _ = server.Serve(&oneConn{conn: plain, done: done}) }()
	<-done
	_ = server.Close()
}

// seen is what began each connection so far.
func (o *origin) seen() []*originConn {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]*originConn(nil), o.conns...)
}

// oneConn is a listener with a single connection.
type oneConn struct {
	conn net.Conn
	once sync.Once
	done chan struct{}
}

func (l *oneConn) Accept() (c net.Conn, err error) {
	l.once.Do(func() { c = l.conn })
	if c != nil {
		return c, nil
	}
	<-l.done
	return nil, net.ErrClosed
}

func (l *oneConn) Close() error   { return nil }
func (l *oneConn) Addr() net.Addr { return l.conn.LocalAddr() }
