// SPDX-License-Identifier: Apache-2.0

package tlsread

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// plain is a connection of which both directions are written down as the
// server knows them.
type plain struct {
	net.Conn
	mu   sync.Mutex
	sent [2][]byte
}

func (p *plain) Read(b []byte) (int, error) {
	n, err := p.Conn.Read(b)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent[Client] = append(p.sent[Client], b[:n]...)
	return n, err
}

func (p *plain) Write(b []byte) (int, error) {
	n, err := p.Conn.Write(b)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sent[Server] = append(p.sent[Server], b[:n]...)
	return n, err
}

// answer reads a request of HTTP/1.1 and answers it at length.
func answer(conn net.Conn) error {
	request, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, request.Body); err != nil {
		return err
	}
	body := strings.Repeat("answer\n", 20_000)
	response := http.Response{
		StatusCode: http.StatusOK, ProtoMajor: 1, ProtoMinor: 1, Close: true,
		ContentLength: int64(len(body)), Body: io.NopCloser(strings.NewReader(body)),
	}
	return response.Write(conn)
}

// The key logs of other programs than openssl are those of what they sent.
func TestClients(t *testing.T) {
	const variable = "SSLKEYLOGFILE="
	python := `import ssl, sys, urllib.request
c = ssl._create_unverified_context()
urllib.request.urlopen(sys.argv[1], context=c).read()`
	node := `require("https").get(process.argv[1], {rejectUnauthorized: false}, r => r.resume())`
	for _, tt := range []struct {
		name      string
		version   uint16
		arguments []string // KEYS and URL stand for themselves
		variable  string
	}{
		{"curl", tls.VersionTLS13, []string{"curl", "-sk", "--http1.1", "-d", "a=1", "-o", "/dev/null", "URL"}, variable},
		{"curl, TLS 1.2", tls.VersionTLS12, []string{"curl", "-sk", "--http1.1", "-o", "/dev/null", "URL"}, variable},
		{"python", tls.VersionTLS13, []string{"python3", "-c", python, "URL"}, variable},
		{"python, TLS 1.2", tls.VersionTLS12, []string{"python3", "-c", python, "URL"}, variable},
		{"wget (GnuTLS)", tls.VersionTLS13, []string{"wget", "-q", "--no-check-certificate", "-O", "/dev/null", "URL"}, variable},
		{"wget (GnuTLS), TLS 1.2", tls.VersionTLS12, []string{"wget", "-q", "--no-check-certificate", "-O", "/dev/null", "URL"}, variable},
		{"node", tls.VersionTLS13, []string{"node", "--tls-keylog=KEYS", "-e", node, "URL"}, ""},
		{"node, TLS 1.2", tls.VersionTLS12, []string{"node", "--tls-keylog=KEYS", "-e", node, "URL"}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path, err := exec.LookPath(tt.arguments[0])
			if err != nil {
				t.Skipf("%s is not installed", tt.arguments[0])
			}
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer ln.Close()
			config := &tls.Config{Certificates: []tls.Certificate{mustCertificate(t, true)}, MaxVersion: tt.version}
			seen, failed := make(chan *plain, 1), make(chan error, 1)
			go func() {
				raw, err := ln.Accept()
				if err != nil {
					return // the listener was closed
				}
				defer raw.Close()
				p := &plain{Conn: tls.Server(raw, config)}
				err = answer(p)
				_ = p.Conn.(*tls.Conn).CloseWrite() // a client may be gone
				_, _ = io.Copy(io.Discard, p)
				seen <- p
				failed <- err
			}()
			relay := mustRelay(t, ln.Addr().String())
			log := filepath.Join(t.TempDir(), "keys")
			arguments := make([]string, 0, len(tt.arguments))
			for _, a := range tt.arguments[1:] {
				arguments = append(arguments, strings.NewReplacer("KEYS", log, "URL", "https://"+relay.listen+"/").Replace(a))
			}
			command := exec.Command(path, arguments...)
			command.Env = os.Environ()
			if tt.variable != "" {
				command.Env = append(command.Env, tt.variable+log)
			}
			if out, err := command.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			c := relay.mustReceive(t)
			p := <-seen
			if err := <-failed; err != nil {
				t.Fatalf("the server: %v", err)
			}
			keys, err := os.ReadFile(log)
			if err != nil {
				t.Fatal(err)
			}
			c.log, c.bulk = string(keys), true
			c.check(t, p.sent)
		})
	}
}
