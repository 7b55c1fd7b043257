// SPDX-License-Identifier: Apache-2.0

package tlsread

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// process is a program of the openssl command that is spoken to line by line.
type process struct {
	t     *testing.T
	stdin io.Writer
	done  chan struct{}

	mu  sync.Mutex
	out bytes.Buffer
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.Write(b)
}

func (p *process) printed() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out.String()
}

// await waits until the process has printed a text so many times.
func (p *process) await(text string, times int) {
	p.t.Helper()
	for range 1000 {
		if strings.Count(p.printed(), text) >= times {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	out := p.printed()
	p.t.Fatalf("%q was not printed %d times, but at the end: %s", text, times, out[max(0, len(out)-1000):])
}

func (p *process) say(text string) {
	p.t.Helper()
	if _, err := io.WriteString(p.stdin, text); err != nil {
		p.t.Fatal(err)
	}
}

// mustOpenssl starts the openssl command, which ends with the test at the
// latest.
func mustOpenssl(t *testing.T, arguments ...string) *process {
	t.Helper()
	path, err := exec.LookPath("openssl")
	if err != nil {
		t.Skip("openssl is not installed")
	}
	command := exec.Command(path, arguments...)
	p := &process{t: t, done: make(chan struct{})}
	command.Stdout, command.Stderr = p, p
	if p.stdin, err = command.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = command.Wait() // what it printed tells what it did
	}()
	t.Cleanup(func() {
		_ = command.Process.Kill()
		<-p.done
	})
	return p
}

// relay takes one connection after the other to an address and writes down
// both directions of each.
type relay struct {
	listen   string
	captures chan *capture
	passed   [2]atomic.Int64 // bytes of each side
}

func mustRelay(t *testing.T, addr string) *relay {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	r := &relay{listen: ln.Addr().String(), captures: make(chan *capture, 10)}
	go func() {
		for {
			client, err := ln.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp", addr)
			if err != nil {
				client.Close()
				continue
			}
			go r.pass(client, server)
		}
	}()
	return r
}

// pass hands a connection on until both ends have ended.
func (r *relay) pass(client, server net.Conn) {
	c := new(capture)
	var both sync.WaitGroup
	both.Go(func() { c.client = r.pump(server, client, Client) })
	both.Go(func() { c.server = r.pump(client, server, Server) })
	both.Wait()
	client.Close()
	server.Close()
	r.captures <- c
}

// pump hands on what comes, and its end, and returns all of it.
func (r *relay) pump(to, from net.Conn, side Side) (seen []byte) {
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		seen = append(seen, b[:n]...)
		if n > 0 {
			if _, err := to.Write(b[:n]); err != nil {
				return seen
			}
			r.passed[side].Add(int64(n))
		}
		if err != nil {
			_ = to.(*net.TCPConn).CloseWrite() // fails if it has gone
			return seen
		}
	}
}

// mustReceive waits for the next capture.
func (r *relay) mustReceive(t *testing.T) *capture {
	t.Helper()
	select {
	case c := <-r.captures:
		return c
	case <-time.After(20 * time.Second):
		t.Fatal("the connection did not end")
		return nil
	}
}

// mustPEM writes a certificate and its key into one file.
func mustPEM(t *testing.T, useRSA bool) string {
	t.Helper()
	cert := mustCertificate(t, useRSA)
	key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	out := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]})
	out = append(out, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})...)
	path := filepath.Join(t.TempDir(), "pair.pem")
	if err := os.WriteFile(path, out, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

var accepting = regexp.MustCompile(`ACCEPT \S*:(\d+)`)

// mustServe starts openssl s_server and returns its address.
func mustServe(t *testing.T, arguments ...string) (server *process, addr string) {
	t.Helper()
	server = mustOpenssl(t, append([]string{"s_server", "-accept", "127.0.0.1:0"}, arguments...)...)
	server.await("ACCEPT", 1)
	var port []string
	for range 100 {
		if port = accepting.FindStringSubmatch(server.printed()); port != nil {
			return server, "127.0.0.1:" + port[1]
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("no port: %s", server.printed())
	return nil, ""
}

// step is what is typed to one of the ends: a text that is sent to the other
// one or, if it is a key, a command.
type step struct {
	by   Side
	text string
	done string // what the end prints when it obeyed; empty: it sends something
}

func (s step) command() bool { return len(s.text) == 2 }

// line is text of n bytes that no end takes for a command.
func line(n int, name string) string {
	return strings.Repeat("x", max(0, n-len(name)-1)) + name + "\n"
}

// play types the steps to both ends of a connection, each when the one before
// was done, and returns what each side sent.
func (r *relay) play(t *testing.T, ends [2]*process, steps []step) (sent [2][]byte) {
	t.Helper()
	for _, s := range steps {
		end, sees, passed := ends[s.by], ends[s.by], r.passed[s.by].Load()
		mark := s.done
		if !s.command() {
			sees, mark = ends[1-s.by], s.text[max(0, len(s.text)-8):]
			sent[s.by] = append(sent[s.by], s.text...)
		}
		before := strings.Count(sees.printed(), mark)
		end.say(s.text)
		if mark != "" {
			sees.await(mark, before+1)
			continue
		}
		for range 1000 {
			if r.passed[s.by].Load() > passed {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		if r.passed[s.by].Load() == passed {
			t.Fatalf("nothing was sent at %q", s.text)
		}
	}
	return sent
}

// connect plays the steps between openssl s_client, through the relay, and a
// server. The capture has the client's key log.
func (r *relay) connect(t *testing.T, server *process, client []string, steps []step) (*capture, [2][]byte, *process) {
	t.Helper()
	log := filepath.Join(t.TempDir(), "keys")
	end := mustOpenssl(t, append([]string{"s_client", "-connect", r.listen, "-keylogfile", log}, client...)...)
	end.await("Verify return code", 1)
	sent := r.play(t, [2]*process{end, server}, steps)
	end.say("Q\n")
	c := r.mustReceive(t)
	keys, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	c.log = string(keys)
	return c, sent, end
}

// converse does that with a server of its own.
func converse(t *testing.T, server, client []string, steps []step) (*capture, [2][]byte, *process) {
	t.Helper()
	serverEnd, addr := mustServe(t, server...)
	return mustRelay(t, addr).connect(t, serverEnd, client, steps)
}

// dialog is a few lines each way, short and long.
func dialog() []step {
	return []step{
		{by: Client, text: line(30, "<c-one>")},
		{by: Server, text: line(90_000, "<s-one>")},
		{by: Client, text: line(8000, "<c-two>")},
		{by: Server, text: line(4, "<s-two>")},
	}
}

func TestOpenssl(t *testing.T) {
	rsa := mustPEM(t, true)
	with := func(arguments ...string) []string { return append([]string{"-cert", rsa, "-key", rsa}, arguments...) }
	psk := []string{"-psk", "0123456789abcdef"}
	for _, tt := range []struct {
		name           string
		server, client []string
		suite          uint16
		retried        bool
	}{
		{"1.3 AES 128", with(), []string{"-ciphersuites", "TLS_AES_128_GCM_SHA256"}, 0x1301, false},
		{"1.3 AES 256", with(), []string{"-ciphersuites", "TLS_AES_256_GCM_SHA384"}, 0x1302, false},
		{"1.3 ChaCha20", with(), []string{"-ciphersuites", "TLS_CHACHA20_POLY1305_SHA256"}, 0x1303, false},
		{"1.3 retried", with("-groups", "P-521"), []string{"-groups", "X25519:P-521"}, 0x1302, true},
		{"1.3 padded", with("-record_padding", "512"), []string{"-record_padding", "1000"}, 0x1302, false},
		{"1.3 in small records", with("-max_send_frag", "512"), []string{"-max_send_frag", "600"}, 0x1302, false},
		{"1.3 without middlebox compatibility", with("-no_middlebox"), []string{"-no_middlebox"}, 0x1302, false},
		{"1.3 client certificate", with("-Verify", "1"), []string{"-cert", rsa, "-key", rsa}, 0x1302, false},
		{"1.3 PSK", append([]string{"-nocert"}, psk...), psk, 0x1303, false},
		{"1.2 ECDHE AES 128", with("-tls1_2"), []string{"-cipher", "ECDHE-RSA-AES128-GCM-SHA256"}, 0xc02f, false},
		{"1.2 ECDHE AES 256", with("-tls1_2"), []string{"-cipher", "ECDHE-RSA-AES256-GCM-SHA384"}, 0xc030, false},
		{"1.2 ECDHE ChaCha20", with("-tls1_2"), []string{"-cipher", "ECDHE-RSA-CHACHA20-POLY1305"}, 0xcca8, false},
		{"1.2 DHE AES 128", with("-tls1_2"), []string{"-cipher", "DHE-RSA-AES128-GCM-SHA256"}, 0x009e, false},
		{"1.2 DHE AES 256", with("-tls1_2"), []string{"-cipher", "DHE-RSA-AES256-GCM-SHA384"}, 0x009f, false},
		{"1.2 DHE ChaCha20", with("-tls1_2"), []string{"-cipher", "DHE-RSA-CHACHA20-POLY1305"}, 0xccaa, false},
		{"1.2 RSA AES 128", with("-tls1_2"), []string{"-cipher", "AES128-GCM-SHA256"}, 0x009c, false},
		{"1.2 RSA AES 256", with("-tls1_2"), []string{"-cipher", "AES256-GCM-SHA384"}, 0x009d, false},
		{"1.2 PSK", append([]string{"-nocert", "-tls1_2"}, psk...), append([]string{"-cipher", "PSK-AES256-GCM-SHA384"}, psk...), 0x00a9, false},
		{"1.2 DHE PSK", append([]string{"-nocert", "-tls1_2"}, psk...), append([]string{"-cipher", "DHE-PSK-CHACHA20-POLY1305"}, psk...), 0xccad, false},
		{"1.2 ECDHE PSK", append([]string{"-nocert", "-tls1_2"}, psk...), append([]string{"-cipher", "ECDHE-PSK-CHACHA20-POLY1305"}, psk...), 0xccac, false},
		{"1.2 in small records", with("-tls1_2", "-max_send_frag", "512"), nil, 0xc030, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, sent, _ := converse(t, tt.server, tt.client, dialog())
			p, _ := c.mustParams(t)
			if p.Suite != tt.suite || p.Retried != tt.retried {
				t.Errorf("ServerHello = suite %#04x, retried %v, want %#04x, %v", p.Suite, p.Retried, tt.suite, tt.retried)
			}
			c.bulk = !strings.Contains(tt.name, "padded") && !strings.Contains(tt.name, "small")
			c.check(t, sent)
		})
	}
}

// Either end may change its keys, and ask the other to.
func TestOpensslKeyUpdates(t *testing.T) {
	rsa := mustPEM(t, true)
	const done = "KEYUPDATE" // of s_client
	for _, suite := range []string{"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"} {
		steps := slices.Concat(
			dialog(), []step{{Client, "K\n", done}},
			dialog(), []step{{Client, "k\n", done}, {Client, "k\n", done}},
			dialog(), []step{{Server, "K\n", ""}, {Server, "k\n", ""}},
			dialog(), []step{{Server, "K\n", ""}, {Client, "K\n", done}},
			dialog(),
		)
		c, sent, _ := converse(t, []string{"-cert", rsa, "-key", rsa}, []string{"-ciphersuites", suite}, steps)
		c.check(t, sent)
		p, s := c.mustParams(t)
		for _, side := range []Side{Client, Server} {
			r, err := NewReader(side, p, s)
			if err != nil {
				t.Fatal(err)
			}
			_, first := s.of(side)
			if read(r, c.wire(side), 1<<30, 0); bytes.Equal(r.secret, first) {
				t.Errorf("%s: side %d has its first keys still", suite, side)
			}
		}
	}
}

// A session is resumed with keys of its own, in TLS 1.2 with the same master
// secret, which openssl logs again.
func TestOpensslResumption(t *testing.T) {
	rsa := mustPEM(t, true)
	for _, version := range []string{"-tls1_3", "-tls1_2"} {
		server, addr := mustServe(t, "-cert", rsa, "-key", rsa)
		relay := mustRelay(t, addr)
		session := filepath.Join(t.TempDir(), "session")
		c, sent, _ := relay.connect(t, server, []string{version, "-sess_out", session}, dialog())
		c.check(t, sent)
		c, sent, end := relay.connect(t, server, []string{version, "-sess_in", session}, dialog())
		end.await("Reused, TLSv", 1)
		c.check(t, sent)
	}
}

// Renegotiation is not followed, and not misread.
func TestOpensslRenegotiation(t *testing.T) {
	rsa := mustPEM(t, true)
	steps := append(dialog(), step{Client, "R\n", "RENEGOTIATING"})
	steps = append(steps, dialog()...)
	c, sent, _ := converse(t, []string{"-cert", rsa, "-key", rsa, "-tls1_2", "-client_renegotiation"}, []string{"-tls1_2"}, steps)
	p, s := c.mustParams(t)
	for _, side := range []Side{Client, Server} {
		r, err := NewReader(side, p, s)
		if err != nil {
			t.Fatal(err)
		}
		got := read(r, c.wire(side), 1<<30, 0)
		if want := sent[side][:len(sent[side])/2]; !errors.Is(got.err, ErrUnsupported) || !bytes.Equal(got.data, want) {
			t.Errorf("side %d: error %v, %d bytes of data, want %d", side, got.err, len(got.data), len(want))
		}
	}
}

// Certificates may be asked for after the handshake (RFC 8446 §4.6.2).
func TestOpensslAuthenticationAfterHandshake(t *testing.T) {
	rsa := mustPEM(t, true)
	steps := append(dialog(), step{Server, "c\n", ""})
	steps = append(steps, dialog()...)
	c, sent, end := converse(t, []string{"-cert", rsa, "-key", rsa, "-verify", "1"}, []string{"-enable_pha", "-cert", rsa, "-key", rsa}, steps)
	c.check(t, sent)
	p, s := c.mustParams(t)
	r, err := NewReader(Client, p, s)
	if err != nil {
		t.Fatal(err)
	}
	kinds := read(r, c.client, 1<<30, 0).kinds
	if first := slices.Index(kinds, ApplicationData); !slices.Contains(kinds[first:], Handshake) {
		t.Errorf("no certificate after application data: %v\n%s", kinds, end.printed())
	}
}

// Early data is said not to be read, whether the server took it or not; what
// the server sent is read.
func TestOpensslEarlyData(t *testing.T) {
	rsa := mustPEM(t, true)
	early := filepath.Join(t.TempDir(), "early")
	if err := os.WriteFile(early, []byte("<early-data>\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name   string
		again  bool // the server that is resumed with is another
		status string
	}{
		{"accepted", false, "Early data was accepted"},
		{"rejected", true, "Early data was rejected"},
	} {
		arguments := []string{"-cert", rsa, "-key", rsa, "-early_data"}
		server, addr := mustServe(t, arguments...)
		relay := mustRelay(t, addr)
		session := filepath.Join(t.TempDir(), "session")
		c, sent, _ := relay.connect(t, server, []string{"-sess_out", session}, dialog())
		c.check(t, sent)
		if tt.again {
			server, addr = mustServe(t, arguments...)
			relay = mustRelay(t, addr)
		}
		c, sent, end := relay.connect(t, server, []string{"-sess_in", session, "-early_data", early}, dialog())
		end.await(tt.status, 1)
		p, s := c.mustParams(t)
		late := &Secrets{ClientTraffic: s.ClientTraffic, ServerTraffic: s.ServerTraffic}
		for name, s := range map[string]*Secrets{"all": s, "without those of the handshake": late} {
			r, err := NewReader(Client, p, s)
			if err != nil {
				t.Fatal(err)
			}
			if got := read(r, c.client, 1<<30, 0); !errors.Is(got.err, ErrEarlyData) || len(got.data) > 0 {
				t.Errorf("%s, keys %s: the client: error %v, %d bytes of data", tt.name, name, got.err, len(got.data))
			}
			if r, err = NewReader(Server, p, s); err != nil {
				t.Fatal(err)
			}
			if got := read(r, c.server, 1<<30, 0); got.err != nil || !bytes.Equal(got.data, sent[Server]) {
				t.Errorf("%s, keys %s: the server: error %v, %d bytes of data, want %d", tt.name, name, got.err, len(got.data), len(sent[Server]))
			}
		}
	}
}
