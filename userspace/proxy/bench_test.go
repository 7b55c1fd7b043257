// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"io"
	"net"
	"runtime"
	"testing"
	"time"
)

const shortAnswer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// plainOrigin answers each simpleGet with shortAnswer, and allocates for
// connections only.
func plainOrigin(c *net.TCPConn) {
	buf := make([]byte, len(simpleGet))
	answer := []byte(shortAnswer)
	for {
		if _, err := io.ReadFull(c, buf); err != nil {
			return
		}
		if _, err := c.Write(answer); err != nil {
			return
		}
	}
}

// ask does n exchanges without allocating.
func ask(t testing.TB, c *net.TCPConn, buf []byte, n int) {
	t.Helper()
	request := buf[:copy(buf, simpleGet)]
	answer := buf[len(request) : len(request)+len(shortAnswer)]
	for range n {
		if _, err := c.Write(request); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(c, answer); err != nil {
			t.Fatal(err)
		}
	}
}

// A request over a connection that stands costs no allocation: neither one that
// goes at once nor one that is held.
func TestRequestsDoNotAllocate(t *testing.T) {
	for _, tc := range []struct {
		name     string
		perSec   float64
		requests int
	}{
		{"free", 1e9, 20000},
		{"held", 2000, 2000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := start(t, budget("origin.test", perSecond(tc.perSec)))
			client := b.connect(origin(t, plainOrigin))
			buf := make([]byte, 4096)
			ask(t, client, buf, 200)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			ask(t, client, buf, tc.requests)
			runtime.ReadMemStats(&after)
			// The runtime has its own few, by time and not by request.
			if got := after.Mallocs - before.Mallocs; got > uint64(tc.requests/20) {
				t.Errorf("%d allocations for %d requests, want next to none", got, tc.requests)
			}
		})
	}
}

func BenchmarkRequest(b *testing.B) {
	p := start(b, budget("origin.test", plenty))
	client := p.connect(origin(b, plainOrigin))
	client.SetDeadline(time.Time{})
	buf := make([]byte, 4096)
	b.ReportAllocs()
	for b.Loop() {
		ask(b, client, buf, 1)
	}
}

// BenchmarkTunnel is one tunnel's throughput, of bytes that the origin sends
// and of bytes that it takes, next to that of a connection without a proxy.
func BenchmarkTunnel(b *testing.B) {
	const size = 64 << 20
	chunk := make([]byte, 256<<10)
	give := func(c *net.TCPConn) {
		for n := 0; n < size; n += len(chunk) {
			if _, err := c.Write(chunk); err != nil {
				return
			}
		}
	}
	take := func(b *testing.B, c *net.TCPConn) {
		b.Helper()
		for n := 0; n < size; {
			k, err := c.Read(chunk)
			if err != nil {
				b.Fatal(err)
			}
			n += k
		}
	}
	dest := origin(b, func(c *net.TCPConn) {
		c.SetDeadline(time.Time{})
		for one := []byte{0}; ; {
			if _, err := c.Read(one); err != nil {
				return
			}
			give(c)
		}
	})
	run := func(name string, client *net.TCPConn) {
		b.Run(name, func(b *testing.B) {
			client.SetDeadline(time.Time{})
			b.SetBytes(size)
			for b.Loop() {
				client.Write([]byte{0})
				take(b, client)
			}
		})
	}
	direct, err := net.DialTCP("tcp4", nil, net.TCPAddrFromAddrPort(dest))
	if err != nil {
		b.Fatal(err)
	}
	defer direct.Close()
	run("direct", direct)
	run("proxy", start(b).connect(dest))
}
