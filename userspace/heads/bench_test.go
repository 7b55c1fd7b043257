// SPDX-License-Identifier: Apache-2.0

package heads

import (
	"bytes"
	"testing"

	"github.com/egressd/egressd/userspace/h2"
)

// run reads the same bytes again and again, after what starts a connection.
func run(b *testing.B, r reader, start, again []byte, heads int) {
	b.Helper()
	read := func(p []byte) (found int) {
		for len(p) > 0 {
			n, ev, err := r.Next(p)
			if err != nil {
				b.Fatal(err)
			}
			p = p[n:]
			if ev.Kind == RequestHead || ev.Kind == ResponseHead {
				found++
			}
		}
		return found
	}
	read(start)
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if read(again) != heads {
			b.Fatal("a head was not found")
		}
	}
}

var benchRequest = []string{
	":method", "GET", ":scheme", "https", ":authority", "store.example.com", ":path", "/api/items?page=2",
	"user-agent", "python-httpx/0.27.0", "accept", "*/*", "accept-encoding", "gzip, deflate, br", "cookie", "session=0123456789abcdef",
}

var benchResponse = []string{
	":status", "200", "server", "nginx", "date", "Sun, 29 Nov 2026 12:00:00 GMT", "content-type", "application/json",
	"content-length", "2", "ratelimit-remaining", "17", "ratelimit-reset", "30", "vary", "accept-encoding",
}

func BenchmarkRequestHTTP1(b *testing.B) {
	head := []byte("GET /api/items?page=2 HTTP/1.1\r\nHost: store.example.com\r\nUser-Agent: python-httpx/0.27.0\r\nAccept: */*\r\n" +
		"Accept-Encoding: gzip, deflate, br\r\nConnection: keep-alive\r\nCookie: session=0123456789abcdef\r\n\r\n")
	run(b, newClient(), nil, head, 1)
}

func BenchmarkResponseHTTP1(b *testing.B) {
	head := []byte("HTTP/1.1 200 OK\r\nServer: nginx\r\nDate: Sun, 29 Nov 2026 12:00:00 GMT\r\nContent-Type: application/json\r\n" +
		"Content-Length: 2\r\nRateLimit-Remaining: 17\r\nRateLimit-Reset: 30\r\nVary: Accept-Encoding\r\n\r\n{}")
	run(b, new(Server), nil, head, 1)
}

// The fields are in the table already: what a connection sees from its second
// request on. A server does not mind one number again and again; a Client wants
// ever higher ones, which are written into the frame.
func BenchmarkRequestHTTP2(b *testing.B) {
	f := newFrames(true).headers(1, h2.EndStream, benchRequest...)
	start := bytes.Clone(f.out)
	f.out = nil
	again := f.headers(1, h2.EndStream, benchRequest...).out
	c := new(Client)
	run(b, &rising{Client: c}, start, again, 1)
}

// rising counts the stream in the header of a frame up.
type rising struct {
	*Client
	stream uint32
}

func (r *rising) Next(p []byte) (int, Event, error) {
	if len(p) >= h2.FrameHeaderLen && p[3] == byte(h2.Headers) && !r.begun {
		r.stream += 2
		p[5], p[6], p[7], p[8] = byte(r.stream>>24)&0x7f, byte(r.stream>>16), byte(r.stream>>8), byte(r.stream)|1
	}
	return r.Client.Next(p)
}

func BenchmarkResponseHTTP2(b *testing.B) {
	f := newFrames(false).headers(1, 0, benchResponse...)
	start := bytes.Clone(f.out)
	f.out = nil
	again := f.headers(1, 0, benchResponse...).data(1, h2.EndStream, "{}").out
	run(b, new(Server), start, again, 1)
}

// Every field is a literal in Huffman code that enters the table.
func BenchmarkResponseHTTP2Literals(b *testing.B) {
	f := newFrames(false)
	start := bytes.Clone(f.out)
	f.out = nil
	again := f.headers(1, h2.EndStream, benchResponse...).out
	run(b, new(Server), start, again, 1)
}
