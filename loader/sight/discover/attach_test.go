// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/loader/sight"
)

const refusal = "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n"

// mustServe answers every connection with the refusal.
func mustServe(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	cert := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	ln, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				c.Read(make([]byte, 4096))
				c.Write([]byte(refusal))
				c.Read(make([]byte, 1))
			}()
		}
	}()
	return ln.Addr().String()
}

// What is found can be probed, and probing it shows what the program reads
// while the program goes on.
func TestFoundIsProbed(t *testing.T) {
	g := mustGroup(t)
	s, err := sight.Open(sight.Config{Root: g.root, Cgroups: []string{g.path}})
	if err != nil {
		t.Skipf("cannot load programs: %v", err)
	}
	t.Cleanup(func() { s.Close() })
	seen := make(chan sight.Event, 1000)
	ctx, cancel := context.WithCancel(context.Background())
	ran := make(chan error)
	go func() {
		ran <- s.Run(ctx, func(e sight.Event) {
			e.Data = append([]byte(nil), e.Data...)
			select {
			case seen <- e:
			default:
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-ran
	})
	addr := mustServe(t)
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	w := g.watch(lookout{pauses: pauses{never, never}})
	attach := func(id fileID, libs ...sight.Library) {
		t.Helper()
		w.wants(id, Found)
		for _, lib := range libs {
			probes, err := s.Attach(w.target(id, lib))
			if err != nil {
				t.Fatalf("attach %s: %v", lib, err)
			}
			t.Cleanup(func() { probes.Close() })
		}
	}
	expect := func(what string, c *child) {
		t.Helper()
		for deadline := time.After(20 * time.Second); ; {
			select {
			case e := <-seen:
				if int(e.PID) == c.pid() && e.Dir == sight.Read && strings.HasPrefix(refusal, string(e.Data)) && len(e.Data) > 0 {
					if err := c.cmd.Process.Signal(syscall.Signal(0)); err != nil {
						t.Errorf("%s: it has ended: %v", what, err)
					}
					return
				}
			case <-deadline:
				t.Fatalf("%s: nothing was seen of the answer", what)
			}
		}
	}

	ssl, crypto := mustFind(t, "libssl.so.3"), mustFind(t, "libcrypto.so.3")
	c := g.python()
	c.do("import ssl, http.client")
	attach(mustID(t, ssl), sight.OpenSSL)
	attach(mustID(t, crypto), sight.LibCrypto)
	c.do("h = http.client.HTTPSConnection('127.0.0.1', %s, context=ssl._create_unverified_context())", port)
	c.do("h.request('GET', '/'); r = h.getresponse(); assert r.status == 429")
	expect("python", c)

	// A first process makes the file of a Go program known, a second one is
	// probed from its start.
	for _, b := range []goBuild{{}, {mode: "pie", ldflags: "-s -w"}} {
		program := mustBuildGo(t, b)
		g.start(program)
		attach(mustID(t, program), sight.GoTLS)
		expect(b.String(), g.start(program, addr))
	}

	// A copy that is deleted while it is mapped.
	gnutls := filepath.Join(t.TempDir(), "copy")
	mustCopy(t, mustFind(t, "libgnutls.so.30"), gnutls)
	c = g.python()
	c.do("import ctypes, os; ctypes.CDLL(%q); os.remove(%q)", gnutls, gnutls)
	m := mustMap(t, c.pid(), func(m mapping) bool { return strings.HasPrefix(m.path, gnutls) })
	attach(m.file, sight.GnuTLS)
}
