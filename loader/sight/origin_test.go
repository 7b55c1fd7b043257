// SPDX-License-Identifier: Apache-2.0

package sight_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// origin answers 429 to everything over TLS and in cleartext, and knows the
// truth of each connection: the cookie of the client's socket and the client
// random. It tells the cookie in its answers.
type origin struct {
	port, plain int

	mu     sync.Mutex
	conns  map[string]*truth // by nameOf, which a later connection may have again
	met    []*truth          // all that were in conns
	missed int               // connections whose client's socket was not found
	asked  map[string]uint64 // path → cookie
	answer int               // TLS answers given
}

type truth struct {
	cookie uint64
	random [32]byte
}

const (
	cookieField = "X-Cookie"
	answerBody  = "slow down\n"
)

func newOrigin(t testing.TB) *origin {
	t.Helper()
	o := &origin{conns: make(map[string]*truth), asked: make(map[string]uint64)}
	secure, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	clear, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o.port = secure.Addr().(*net.TCPAddr).Port
	o.plain = clear.Addr().(*net.TCPAddr).Port
	base := &tls.Config{Certificates: []tls.Certificate{selfSigned(t)}, NextProtos: []string{"h2", "http/1.1"}}
	s := &http.Server{
		Handler:  http.HandlerFunc(o.serve),
		ErrorLog: log.New(io.Discard, "", 0),
		TLSConfig: &tls.Config{
			NextProtos:   base.NextProtos,
			Certificates: base.Certificates,
			GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
				conf := base.Clone()
				conf.KeyLogWriter = &randomReader{o: o, conn: nameOf(hello.Conn.RemoteAddr(), hello.Conn.LocalAddr())}
				return conf, nil
			},
		},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			o.meet(c)
			return ctx
		},
	}
	go s.ServeTLS(secure, "", "")
	go s.Serve(clear)
	t.Cleanup(func() { s.Close() })
	return o
}

// nameOf names a connection. A client's port alone does not: it may have one
// to each port of the origin.
func nameOf(client, server net.Addr) string { return client.String() + " " + server.String() }

// meet learns the cookie of the client's socket, and so makes it, as the hook
// at connect() does.
func (o *origin) meet(c net.Conn) {
	sock, err := netlink.SocketGet(c.RemoteAddr(), c.LocalAddr())
	o.mu.Lock()
	defer o.mu.Unlock()
	name := nameOf(c.RemoteAddr(), c.LocalAddr())
	delete(o.conns, name)
	if err != nil {
		o.missed++ // gone already
		return
	}
	o.conns[name] = &truth{cookie: cookieOf(sock)}
	o.met = append(o.met, o.conns[name])
}

func (o *origin) serve(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	c := o.conns[r.RemoteAddr+" "+r.Context().Value(http.LocalAddrContextKey).(net.Addr).String()]
	if c == nil {
		c = new(truth)
	}
	if r.TLS != nil {
		o.asked[r.RequestURI] = c.cookie
		o.answer++
	}
	o.mu.Unlock()
	w.Header().Set(cookieField, strconv.FormatUint(c.cookie, 10))
	w.Header().Set("Retry-After", "17")
	w.Header().Set("X-RateLimit-Limit", "100")
	w.WriteHeader(http.StatusTooManyRequests)
	if n, err := strconv.Atoi(r.URL.Query().Get("body")); err == nil {
		w.Write(bytes.Repeat([]byte("x"), n))
	}
	io.WriteString(w, answerBody)
}

// cookie of the connection on which path was asked for.
func (o *origin) cookieOf(path string) (uint64, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	c, ok := o.asked[path]
	return c, ok
}

// randoms by cookie.
func (o *origin) randoms() map[uint64][32]byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	m := make(map[uint64][32]byte)
	for _, c := range o.met {
		m[c.cookie] = c.random
	}
	return m
}

func (o *origin) answers() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.answer
}

// randomReader takes the client random out of the key log, whose lines are
// "LABEL RANDOM SECRET".
type randomReader struct {
	o    *origin
	conn string
}

func (r *randomReader) Write(line []byte) (int, error) {
	fields := bytes.Fields(line)
	if len(fields) != 3 {
		return 0, fmt.Errorf("key log line of %d fields", len(fields))
	}
	r.o.mu.Lock()
	defer r.o.mu.Unlock()
	if c := r.o.conns[r.conn]; c != nil {
		if _, err := hex.Decode(c.random[:], fields[1]); err != nil {
			return 0, err
		}
	}
	return len(line), nil
}

// get asks for something from this process.
func get(t testing.TB, url string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer client.CloseIdleConnections()
	r, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
}

// tlsProxy takes CONNECT over TLS, and knows its client's socket.
type tlsProxy struct {
	addr   string
	mu     sync.Mutex
	client uint64
}

func newTLSProxy(t testing.TB) *tlsProxy {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	p := &tlsProxy{addr: ln.Addr().String()}
	conf := &tls.Config{Certificates: []tls.Certificate{selfSigned(t)}}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go p.serve(c, conf)
		}
	}()
	return p
}

func (p *tlsProxy) serve(c net.Conn, conf *tls.Config) {
	defer c.Close()
	if sock, err := netlink.SocketGet(c.RemoteAddr(), c.LocalAddr()); err == nil {
		p.mu.Lock()
		p.client = cookieOf(sock)
		p.mu.Unlock()
	}
	down := tls.Server(c, conf)
	r, err := http.ReadRequest(bufio.NewReader(down))
	if err != nil || r.Method != http.MethodConnect {
		return
	}
	up, err := net.Dial("tcp", r.Host)
	if err != nil {
		return
	}
	defer up.Close()
	io.WriteString(down, "HTTP/1.1 200 OK\r\n\r\n")
	go io.Copy(up, down)
	io.Copy(down, up)
}

func (p *tlsProxy) cookie() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.client
}

func cookieOf(s *netlink.Socket) uint64 {
	return uint64(s.ID.Cookie[1])<<32 | uint64(s.ID.Cookie[0])
}

// pemFiles are a certificate and its key.
func pemFiles(t testing.TB) (certificate, key string) {
	t.Helper()
	c := selfSigned(t)
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certificate, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{
		certificate: {Type: "CERTIFICATE", Bytes: c.Certificate[0]},
		key:         {Type: "PRIVATE KEY", Bytes: der},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certificate, key
}

func selfSigned(t testing.TB) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "localhost"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
		IPAddresses:  []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}
