// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"crypto/tls"
	"io"
	"net/http"
	"testing"
)

// benchOrigin is an origin and a relay in front of it; ways are how to get
// there: with and without TLS ended on the way.
func benchOrigin(b *testing.B, body []byte, run func(b *testing.B, client *http.Client, url string)) {
	o := startOrigin(b, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(body)
	}), func(c *tls.Config, _ *originCA) { c.NextProtos = nil })
	r := newRelay(b, o.addr(), o.ca.pool)
	for _, way := range []struct{ name, port string }{
		{"directly", port(o.addr())}, {"terminated", port(r.addr())},
	} {
		b.Run(way.name, func(b *testing.B) {
			client := goClient(r, false, func(c *tls.Config) { c.RootCAs.AddCert(o.ca.cert) })
			defer client.CloseIdleConnections()
			run(b, client, "https://localhost:"+way.port+"/")
		})
	}
}

func benchGet(b *testing.B, client *http.Client, url string) {
	resp, err := client.Get(url)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		b.Fatal(err)
	}
	_ = resp.Body.Close()
}

func BenchmarkConnection(b *testing.B) {
	benchOrigin(b, []byte("hello"), func(b *testing.B, client *http.Client, url string) {
		for b.Loop() {
			benchGet(b, client, url)
			client.CloseIdleConnections()
		}
	})
}

func BenchmarkRequest(b *testing.B) {
	benchOrigin(b, []byte("hello"), func(b *testing.B, client *http.Client, url string) {
		benchGet(b, client, url)
		for b.Loop() {
			benchGet(b, client, url)
		}
	})
}

func BenchmarkBody(b *testing.B) {
	body := make([]byte, 16<<20)
	benchOrigin(b, body, func(b *testing.B, client *http.Client, url string) {
		b.SetBytes(int64(len(body)))
		for b.Loop() {
			benchGet(b, client, url)
		}
	})
}

func BenchmarkPlan(b *testing.B) {
	ca, _ := mustAuthority(b, AuthorityOptions{})
	t, err := New(Config{CA: ca})
	if err != nil {
		b.Fatal(err)
	}
	first := goHello(b, &tls.Config{ServerName: "localhost"})
	b.ReportAllocs()
	for b.Loop() {
		if p, why := t.Plan(first, ""); p == nil {
			b.Fatal(why)
		}
	}
}

func BenchmarkLeaf(b *testing.B) {
	ca, _ := mustAuthority(b, AuthorityOptions{})
	for b.Loop() {
		if _, err := ca.sign("example.com"); err != nil {
			b.Fatal(err)
		}
	}
}
