// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/userspace/h2"
)

// BenchmarkH2Request is what a request and its answer cost on a connection of
// HTTP/2, one after the other, over what they cost directly.
func BenchmarkH2Request(b *testing.B) {
	request := func(w *wire, stream uint32) string {
		return w.request(stream, "/api/items", "user-agent", "bench/1.0", "accept", "*/*", "x-token", strings.Repeat("t", 40))
	}
	serve := func(c *net.TCPConn) {
		c.SetDeadline(time.Time{})
		w := newWire(b, c)
		_, _ = io.ReadFull(c, make([]byte, len(h2.Preface)))
		w.write(frame(h2.Settings, 0, 0, ""))
		for {
			f, _, err := w.next()
			if err != nil {
				return
			}
			if f.Type == h2.Headers {
				w.write(w.answer(f.Stream, "200", "server", "bench", "content-length", "0"))
			}
		}
	}
	for _, direct := range []bool{true, false} {
		b.Run(fmt.Sprint("direct=", direct), func(b *testing.B) {
			dest := origin(b, serve)
			var conn *net.TCPConn
			if direct {
				var err error
				if conn, err = net.DialTCP("tcp4", nil, net.TCPAddrFromAddrPort(dest)); err != nil {
					b.Fatal(err)
				}
				defer conn.Close()
			} else {
				conn = start(b, everyone(plenty)).connect(dest)
				conn.SetDeadline(time.Time{})
			}
			w := newWire(b, conn)
			w.write(h2.Preface, frame(h2.Settings, 0, 0, ""))
			w.want("SETTINGS 0")
			stream := uint32(1)
			for b.Loop() {
				w.write(request(w, stream))
				if f, _, err := w.next(); err != nil || f.Stream != stream {
					b.Fatal(f, err)
				}
				stream += 2
			}
		})
	}
}
