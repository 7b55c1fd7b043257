// SPDX-License-Identifier: Apache-2.0

package tlsread

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"io"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/egressd/egressd/userspace/sniff"
)

// capture is what a relay saw of a connection, and the key log of an end.
type capture struct {
	client, server []byte
	log            string
	master         []byte // of the session that was resumed, if the log lacks it
	bulk           bool   // its records are long and not padded
}

// secrets looks the secrets of a client random up in the key log.
func (c *capture) secrets(random [32]byte) *Secrets {
	s := &Secrets{Master: c.master}
	lines := bufio.NewScanner(strings.NewReader(c.log))
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) != 3 || f[1] != hex.EncodeToString(random[:]) {
			continue
		}
		secret, err := hex.DecodeString(f[2])
		if err != nil {
			continue
		}
		switch f[0] {
		case "CLIENT_RANDOM":
			s.Master = secret
		case "CLIENT_HANDSHAKE_TRAFFIC_SECRET":
			s.ClientHandshake = secret
		case "SERVER_HANDSHAKE_TRAFFIC_SECRET":
			s.ServerHandshake = secret
		case "CLIENT_TRAFFIC_SECRET_0":
			s.ClientTraffic = secret
		case "SERVER_TRAFFIC_SECRET_0":
			s.ServerTraffic = secret
		}
	}
	return s
}

// mustParams reads the hellos of a capture, and its secrets.
func (c *capture) mustParams(t testing.TB) (*Params, *Secrets) {
	t.Helper()
	hello, status := sniff.ClientHello(c.client)
	if status != sniff.Complete {
		t.Fatalf("ClientHello: status %d of %d bytes", status, len(c.client))
	}
	p, status := ServerHello(c.server)
	if status != sniff.Complete {
		t.Fatalf("ServerHello: status %d of %d bytes", status, len(c.server))
	}
	p.ClientRandom = hello.Random
	return &p, c.secrets(hello.Random)
}

// wire gives the records of a side.
func (c *capture) wire(side Side) []byte {
	if side == Client {
		return c.client
	}
	return c.server
}

// reading is what a reader made of a direction.
type reading struct {
	kinds []ContentType // of the records that Next read
	data  []byte        // application data that Next read
	err   error
	left  int // bytes that no record took
	past  int64
}

// read drives a reader over wire, which comes in pieces. With want it skims
// whatever it may, up to so many bytes each time.
func read(r *Reader, wire []byte, piece int, want int64) (out reading) {
	var pending []byte
	for len(wire) > 0 {
		n := min(piece, len(wire))
		pending, wire = append(pending, wire[:n]...), wire[n:]
		for {
			n, plain := r.Skim(pending, want)
			pending, out.past = pending[n:], out.past+plain
			if r.Skimming() {
				break
			}
			n, kind, content, err := r.Next(pending)
			if err != nil {
				out.err, out.left = err, len(pending)+len(wire)
				return out
			}
			if n == 0 {
				break
			}
			out.kinds = append(out.kinds, kind)
			if kind == ApplicationData {
				out.data = append(out.data, content...)
			}
			pending = pending[n:]
		}
	}
	out.left = len(pending)
	return out
}

// check holds both directions of a capture against what was sent, with all
// keys and without those of the handshake, cut and whole, read and skimmed.
func (c *capture) check(t *testing.T, sent [2][]byte) {
	t.Helper()
	p, s := c.mustParams(t)
	if !s.Complete() {
		t.Fatalf("secrets are not complete for version %#04x", p.Version)
	}
	late := &Secrets{ClientTraffic: s.ClientTraffic, ServerTraffic: s.ServerTraffic}
	for _, side := range []Side{Client, Server} {
		for name, s := range map[string]*Secrets{"all": s, "without those of the handshake": late} {
			if !s.Complete() {
				continue
			}
			for _, piece := range []int{1 << 30, 1, 7, 1 << 10, 16 << 10} {
				r, err := NewReader(side, p, s)
				if err != nil {
					t.Fatalf("side %d, keys %s: NewReader: %v", side, name, err)
				}
				got := read(r, c.wire(side), piece, 0)
				if got.err != nil || got.left > 0 || !bytes.Equal(got.data, sent[side]) {
					t.Fatalf("side %d, keys %s, pieces of %d: error %v, %d bytes left, %d bytes of data, want %d", side, name, piece, got.err, got.left, len(got.data), len(sent[side]))
				}
				if r, err = NewReader(side, p, s); err != nil {
					t.Fatal(err)
				}
				skimmed := read(r, c.wire(side), piece, 1<<62)
				if skimmed.err != nil || skimmed.left > 0 || int(skimmed.past)+len(skimmed.data) != len(sent[side]) {
					t.Fatalf("side %d, keys %s, pieces of %d: skimmed: error %v, %d bytes left, %d and %d bytes, want %d", side, name, piece, skimmed.err, skimmed.left, skimmed.past, len(skimmed.data), len(sent[side]))
				}
				if c.bulk && len(sent[side]) > 64<<10 && skimmed.past < int64(len(sent[side]))/2 {
					t.Errorf("side %d, keys %s, pieces of %d: only %d of %d bytes were skimmed", side, name, piece, skimmed.past, len(sent[side]))
				}
			}
		}
	}
}

// tap is a connection of a client of which both directions are written down.
type tap struct {
	net.Conn
	mu      sync.Mutex
	capture capture
}

func (c *tap) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.mu.Lock()
	c.capture.server = append(c.capture.server, b[:n]...)
	c.mu.Unlock()
	return n, err
}

func (c *tap) Write(b []byte) (int, error) {
	c.mu.Lock()
	c.capture.client = append(c.capture.client, b...)
	c.mu.Unlock()
	return c.Conn.Write(b)
}

// mustCertificate makes a self-signed certificate of a kind of key.
func mustCertificate(t testing.TB, useRSA bool) tls.Certificate {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1),
		Subject:      pkix.Name{CommonName: "origin.test"},
		DNSNames:     []string{"origin.test"},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(time.Hour),
	}
	var key, public any
	if useRSA {
		k, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			t.Fatal(err)
		}
		key, public = k, k.Public()
	} else {
		k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		key, public = k, k.Public()
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// talk makes a connection between two ends of crypto/tls, on which the client
// sends each message and the server the reversed one, and returns what was
// seen and sent.
func talk(t testing.TB, client, server *tls.Config, messages [][]byte) (c *capture, sent [2][]byte, state tls.ConnectionState) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	done := make(chan error, 1)
	go func() {
		raw, err := ln.Accept()
		if err != nil {
			done <- err
			return
		}
		conn := tls.Server(raw, server)
		defer conn.Close()
		for _, m := range messages {
			b := make([]byte, len(m))
			if _, err := io.ReadFull(conn, b); err != nil {
				done <- err
				return
			}
			if _, err := conn.Write(reversed(b)); err != nil {
				done <- err
				return
			}
		}
		// Wait for the client's end, so that nothing is reset on its way.
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			done <- err
			return
		}
		done <- nil
	}()
	raw, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	var log bytes.Buffer
	client = client.Clone()
	client.KeyLogWriter, client.InsecureSkipVerify, client.ServerName = &log, true, "origin.test"
	wire := &tap{Conn: raw}
	conn := tls.Client(wire, client)
	for i, m := range messages {
		if _, err := conn.Write(m); err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
		got := make([]byte, len(m))
		if _, err := io.ReadFull(conn, got); err != nil || !bytes.Equal(got, reversed(m)) {
			t.Fatalf("answer %d: %v", i, err)
		}
		sent[Client] = append(sent[Client], m...)
		sent[Server] = append(sent[Server], got...)
	}
	state = conn.ConnectionState()
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, conn); err != nil {
		t.Fatalf("end: %v", err)
	}
	if err := <-done; err != nil {
		t.Fatalf("server: %v", err)
	}
	wire.mu.Lock()
	defer wire.mu.Unlock()
	wire.capture.log = log.String()
	wire.capture.bulk = true
	return &wire.capture, sent, state
}

func reversed(b []byte) []byte {
	out := make([]byte, len(b))
	for i, c := range b {
		out[len(b)-1-i] = c
	}
	return out
}

// someMessages are short and long ones.
func someMessages(t testing.TB) [][]byte {
	t.Helper()
	var out [][]byte
	for _, n := range []int{1, 300, 1006, 1007, 1008, 5000, 200_000, 16 << 10, 16<<10 + 1, 40} {
		b := make([]byte, n)
		if _, err := rand.Read(b); err != nil {
			t.Fatal(err)
		}
		out = append(out, b)
	}
	return out
}
