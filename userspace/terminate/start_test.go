// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"crypto/tls"
	"io"
	"net/http"
	"strings"
	"testing"
)

// goClient is an HTTP client that dials the relay whatever the URL says.
func goClient(r *relay, h2 bool, change func(*tls.Config)) *http.Client {
	cfg := &tls.Config{RootCAs: r.trust()}
	if change != nil {
		change(cfg)
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, ForceAttemptHTTP2: h2}}
}

// url is that of path at the relay.
func (r *relay) url(host, path string) string {
	_, port, _ := strings.Cut(r.addr(), ":")
	return "https://" + host + ":" + port + path
}

func TestGoClient(t *testing.T) {
	o := startOrigin(t, nil, nil)
	for _, test := range []struct {
		name string
		h2   bool
		max  uint16
		want string
	}{
		{"TLS 1.3, HTTP/1.1", false, 0, "POST /x 5 bytes over HTTP/1.1"},
		{"TLS 1.3, HTTP/2", true, 0, "POST /x 5 bytes over HTTP/2.0"},
		{"TLS 1.2, HTTP/1.1", false, tls.VersionTLS12, "POST /x 5 bytes over HTTP/1.1"},
		{"TLS 1.2, HTTP/2", true, tls.VersionTLS12, "POST /x 5 bytes over HTTP/2.0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newRelay(t, o.addr(), o.ca.pool)
			client := goClient(r, test.h2, func(c *tls.Config) { c.MaxVersion = test.max })
			defer client.CloseIdleConnections()
			for range 3 {
				resp, err := client.Post(r.url("localhost", "/x"), "text/plain", strings.NewReader("hello"))
				if err != nil {
					_, _, last := r.seen()
					t.Fatalf("%v; %+v", err, last)
				}
				body, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if err != nil || string(body) != test.want {
					t.Fatalf("got %q, %v, want %q", body, err, test.want)
				}
			}
			if whys, kinds, _ := r.seen(); len(kinds) != 1 || kinds[0] != OK || whys[0] != "" {
				t.Errorf("got %v %v, want one connection, terminated", whys, kinds)
			}
		})
	}
}
