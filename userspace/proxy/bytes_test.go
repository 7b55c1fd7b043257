// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
)

// step is one act of a scripted connection, seen from the client: it sends
// bytes that must reach the origin as they are, or the origin does and they
// must reach the client. Where got is set, that is what must reach the origin
// for now.
type step struct {
	send, receive string
	got           string
}

// TestBytesArriveAsSent plays scripts over a connection whose host is
// budgeted, whole and cut into single bytes, and compares every byte.
func TestBytesArriveAsSent(t *testing.T) {
	const get = "GET /a?b=c HTTP/1.1\r\nhOsT:  Origin.Test \r\nX-b: 1\r\nx-A:\t2\r\nx-b: 3\r\nUser-Agent:\r\n\r\n"
	long := strings.Repeat("0123456789abcdef", 64<<10/4)
	for _, tc := range []struct {
		name  string
		steps []step
	}{
		{"headers keep order, case and spacing", []step{{send: get}, {receive: "HTTP/1.1 200 Fine\r\nx-Z: 1\r\nCONTENT-length: 2\r\nx-z:2\r\n\r\nhi"}}},
		{"keep-alive", []step{
			{send: get}, {receive: "HTTP/1.1 204 No Content\r\n\r\n"},
			{send: get}, {receive: "HTTP/1.1 304 Not Modified\r\nContent-Length: 99\r\n\r\n"},
			{send: get}, {receive: "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
		}},
		{"HEAD", []step{
			{send: "HEAD / HTTP/1.1\r\nHost: origin.test\r\n\r\n"}, {receive: "HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n"},
			{send: get}, {receive: "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx"},
		}},
		{"request body with Content-Length", []step{{send: "POST / HTTP/1.1\r\nHost: origin.test\r\nContent-Length: 5\r\n\r\nhello"}, {receive: "HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"}}},
		{"large bodies both ways", []step{
			{send: fmt.Sprintf("PUT / HTTP/1.1\r\nHost: origin.test\r\nContent-Length: %d\r\n\r\n%s", len(long), long)},
			{receive: fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(long), long)},
			{send: get}, {receive: "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
		}},
		{"chunked with extensions and trailers", []step{
			{send: "POST / HTTP/1.1\r\nHost: origin.test\r\nTransfer-Encoding: chunked\r\n\r\n5;ext=1\r\nhello\r\n00\r\nX-Trailer: t\r\n\r\n"},
			{receive: "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\nA\r\n0123456789\r\n0\r\nX-Sum: 1\r\n\r\n"},
			{send: get}, {receive: "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
		}},
		{"interim responses", []step{{send: get}, {receive: "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"}, {receive: "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"}}},
		{"Expect: 100-continue", []step{
			{send: "POST / HTTP/1.1\r\nHost: origin.test\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"},
			{receive: "HTTP/1.1 100 Continue\r\n\r\n"}, {send: "body"}, {receive: "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
		}},
		{"upgrade becomes a tunnel", []step{
			{send: "GET /ws HTTP/1.1\r\nHost: origin.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"},
			{receive: "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x00\x01server first"},
			{send: "\xff\xfeGET / not http"}, {receive: "more"}, {send: long}, {receive: long},
		}},
		{"CONNECT becomes a tunnel", []step{
			{send: "CONNECT origin.test:443 HTTP/1.1\r\nHost: origin.test:443\r\nProxy-Authorization: Basic eDp5\r\n\r\n"},
			{receive: "HTTP/1.1 200 Connection established\r\n\r\n"}, {send: "\x16\x03\x01"}, {receive: "\x16\x03\x03"},
		}},
		{"absolute form", []step{{send: "GET http://Origin.test:80/x HTTP/1.1\r\nHost: other.test\r\n\r\n"}, {receive: "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"}}},
		{"answer before the body was sent", []step{
			{send: "POST / HTTP/1.1\r\nHost: origin.test\r\nContent-Length: 6\r\n\r\nabc"}, {receive: "HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\n\r\n"}, {send: "def"},
			{send: get}, {receive: "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
		}},
		{"HTTP/1.0 with keep-alive", []step{
			{send: "GET / HTTP/1.0\r\nHost: origin.test\r\nConnection: keep-alive\r\n\r\n"}, {receive: "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nx"},
			{send: get}, {receive: "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
		}},
		{"lenient response lines", []step{{send: get}, {receive: "HTTP/1.1 200\nContent-Length: 2\n\nok"}}},
		{"head longer than a buffer", []step{
			{send: "GET / HTTP/1.1\r\nHost: origin.test\r\nCookie: " + long[:50<<10] + "\r\n\r\n"},
			{receive: "HTTP/1.1 200 OK\r\nSet-Cookie: " + long[:50<<10] + "\r\nContent-Length: 0\r\n\r\n"},
			{send: get}, {receive: "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"},
		}},
	} {
		for _, cut := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s/cut=%d", tc.name, cut), func(t *testing.T) {
				b := start(t, budget("origin.test", plenty))
				play(t, b, tc.steps, cut)
			})
		}
	}
}

// play runs the script; cut is the size of the pieces in which short bytes are
// written, 0 for all at once.
func play(t *testing.T, b *bench, steps []step, cut int) {
	t.Helper()
	conns := make(chan *net.TCPConn, 1)
	quit := make(chan struct{})
	dest := origin(t, func(c *net.TCPConn) { conns <- c; <-quit })
	defer close(quit)
	client := b.connect(dest)
	defer client.Close()
	var upstream *net.TCPConn
	for i, s := range steps {
		text, reader := s.receive, client
		if text == "" {
			if s.send != "" {
				go pieces(client, s.send, cut)
			}
			if upstream == nil {
				upstream = <-conns
			}
			if text, reader = s.got, upstream; text == "" {
				text = s.send
			}
		} else {
			go pieces(upstream, text, cut)
		}
		got := make([]byte, len(text))
		n, err := io.ReadFull(reader, got)
		if err != nil || !bytes.Equal(got, []byte(text)) {
			t.Fatalf("step %d: got %d bytes %q, %v; want %d bytes %q", i, n, clip(got[:n]), err, len(text), clip([]byte(text)))
		}
	}
}

func pieces(w io.Writer, text string, cut int) {
	if cut == 0 || len(text) > 4096 {
		io.WriteString(w, text)
		return
	}
	for len(text) > 0 {
		n := min(cut, len(text))
		if _, err := io.WriteString(w, text[:n]); err != nil {
			return
		}
		text = text[n:]
	}
}

func clip(b []byte) []byte { return b[:min(len(b), 200)] }
