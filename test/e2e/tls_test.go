// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"
)

// tlsClients send the URL that they are given six requests, one after the
// other, on one connection if they can.
var tlsClients = map[string][]string{
	"curl/1.1": {"sh", "-c", `curl -sSk --http1.1 -o /dev/null "$0?[1-6]"`},
	"curl/2":   {"sh", "-c", `curl -sSk --http2 -o /dev/null "$0?[1-6]"`},
	"python": {"python3", "-c", `
import http.client, ssl, sys, urllib.parse
u = urllib.parse.urlparse(sys.argv[1])
c = http.client.HTTPSConnection(u.hostname, u.port, context=ssl._create_unverified_context(), timeout=30)
for i in range(6):
    c.request("GET", "/?%d" % i)
    c.getresponse().read()
`},
	"requests": {"/usr/bin/python3", "-W", "ignore", "-c", `
import requests, sys
with requests.Session() as s:
    for i in range(6):
        s.get(sys.argv[1] + "?%d" % i, verify=False, timeout=30).content
`},
	"node": {"env", "NODE_TLS_REJECT_UNAUTHORIZED=0", "NODE_NO_WARNINGS=1", "node", "--input-type=module", "-e", `
for (let i = 0; i < 6; i++) await (await fetch(process.argv[1] + "?" + i)).text();
`},
	"wget": {"sh", "-c", `wget -q --no-check-certificate -O /dev/null "$0?1" "$0?2" "$0?3" "$0?4" "$0?5" "$0?6"`},
}

// TestTLSIsPaced has clients send requests that nobody reads on the way.
func TestTLSIsPaced(t *testing.T) {
	t.Parallel()
	const every = 250 * time.Millisecond
	for name, command := range tlsClients {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scope := newGroup(t)
			var mu sync.Mutex
			var at []time.Time
			conns := map[string]bool{}
			port := serveBy(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				mu.Lock()
				defer mu.Unlock()
				at = append(at, time.Now())
				conns[r.RemoteAddr] = true
			}), func(s *httptest.Server) {
				s.EnableHTTP2 = true
				s.StartTLS()
			})
			d := newDaemon(t, scope, fmt.Sprintf(
				"  - {name: all, match: {hosts: [localhost], ports: [%d]}, rate: 4/s}", port))
			p := start(t, how{in: scope}, append(command, fmt.Sprintf("https://localhost:%d/", port))...)
			p.mustSucceed(t, 60*time.Second)
			mu.Lock()
			defer mu.Unlock()
			if len(at) != 6 {
				t.Fatalf("the origin received %d requests, want 6\n%s", len(at), p.stderr.String())
			}
			// What HTTP/2 hides may be one request.
			if got, least := at[5].Sub(at[0]), 4*every; got < least-every/5 {
				t.Errorf("6 requests within %v on %d connections, want at least %v", got, len(conns), least)
			}
			l := d.lane(t)
			t.Logf("%d units for 6 requests on %d connections, within %v", l.Granted, len(conns), at[5].Sub(at[0]))
		})
	}
}

// TestTLSFingerprint compares what the origin sees of a client's TLS with and
// without egressd.
func TestTLSFingerprint(t *testing.T) {
	t.Parallel()
	hello := func(t *testing.T, scope *group, command []string, budgets func(port int) string) (seen string) {
		listeners, err := listenBoth()
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewUnstartedServer(http.NotFoundHandler())
		server.StartTLS()
		defer server.Close()
		said := make(chan string, 16)
		config := server.TLS.Clone()
		config.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			said <- fmt.Sprint(h.CipherSuites, h.SupportedCurves, h.SupportedPoints, h.SignatureSchemes, h.SupportedProtos, h.SupportedVersions, h.Extensions, h.ServerName)
			return nil, nil
		}
		origin := &http.Server{Handler: http.NotFoundHandler()}
		for _, ln := range listeners {
			go func() { _ = origin.Serve(tls.NewListener(ln, config)) }()
		}
		defer origin.Close()
		port := listeners[0].Addr().(*net.TCPAddr).Port
		if budgets != nil {
			newDaemon(t, scope, budgets(port))
		}
		p := start(t, how{in: scope}, append(command, fmt.Sprintf("https://localhost:%d/", port))...)
		p.mustSucceed(t, 60*time.Second)
		select {
		case seen = <-said:
		default:
			t.Fatal("no ClientHello arrived")
		}
		return seen
	}
	for _, name := range []string{"curl/2", "python"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			scope := newGroup(t)
			want := hello(t, scope, tlsClients[name], nil)
			got := hello(t, scope, tlsClients[name], func(port int) string {
				return fmt.Sprintf("  - {name: all, match: {hosts: [localhost], ports: [%d]}, rate: 100/s}", port)
			})
			if got != want {
				t.Errorf("through egressd the origin sees\n%s\nwithout\n%s", got, want)
			}
		})
	}
}
