// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
)

// fuzzCuts splits stream at two places, which need not be in order or inside.
func fuzzCuts(stream []byte, i, j uint) [][]byte {
	a := int(i % uint(len(stream)+1))
	c := a + int(j%uint(len(stream)-a+1))
	return [][]byte{stream[:a], stream[a:c], stream[c:]}
}

func FuzzParseRequest(f *testing.F) {
	for _, tt := range acceptedRequests {
		f.Add([]byte(tt.stream), uint(7), uint(40))
	}
	for _, tt := range refusedRequests {
		f.Add([]byte(tt.stream), uint(20), uint(3))
	}
	f.Fuzz(func(t *testing.T, stream []byte, i, j uint) {
		whole := driveRequest(t, stream)
		if cut := driveRequest(t, fuzzCuts(stream, i, j)...); cut != whole {
			t.Fatalf("cut stream:\n got %+v\nwant %+v", cut, whole)
		}
		if whole.reason != "" || whole.length == 0 {
			return
		}
		var h RequestHead
		n, err := ParseRequest(&h, stream, 0)
		if err != nil {
			t.Fatalf("second ParseRequest = %v", err)
		}
		// What follows the message is no part of the judgement.
		if whole.done {
			end := whole.length + whole.body
			if again := driveRequest(t, stream[:end]); again != whole {
				t.Fatalf("message alone:\n got %+v\nwant %+v", again, whole)
			}
		}
		Fields(stream[:n], func(name, value []byte) bool {
			if len(name) == 0 || !all(name, isToken) || !all(value, isValue) {
				t.Fatalf("field %q: %q", name, value)
			}
			return true
		})
		compareRequest(t, stream, &h, whole)
	})
}

// compareRequest holds an accepted request against what net/http makes of it.
func compareRequest(t *testing.T, stream []byte, h *RequestHead, got outcome) {
	t.Helper()
	// net/http knows no empty lines before a request.
	trimmed := bytes.TrimLeft(stream[:h.Len], "\r\n")
	skipped := h.Len - len(trimmed)
	source := bytes.NewReader(stream[skipped:])
	reader := bufio.NewReader(source)
	req, err := http.ReadRequest(reader)
	if err != nil {
		return
	}
	if req.Method != string(h.Method) || req.RequestURI != string(h.Target) {
		t.Fatalf("net/http: %q %q, want %q %q", req.Method, req.RequestURI, h.Method, h.Target)
	}
	if req.Host != string(h.Authority) {
		t.Fatalf("net/http: host %q, want %q", req.Host, h.Authority)
	}
	if req.ProtoMinor != int(h.Minor) {
		t.Fatalf("net/http: minor %d, want %d", req.ProtoMinor, h.Minor)
	}
	if h.Form == Authority {
		return // no body, and the tunnel is nobody's message
	}
	_, err = io.Copy(io.Discard, req.Body)
	end := len(stream) - source.Len() - reader.Buffered()
	switch {
	case got.done && err != nil:
		// net/http is stricter on trailers and on wasteful chunks, but never
		// because it wants more of the stream.
		if err == io.ErrUnexpectedEOF || err == io.EOF {
			t.Fatalf("net/http: %v, want the end at %d of %d", err, got.length+got.body, len(stream))
		}
	case got.done && end != got.length+got.body:
		t.Fatalf("net/http: end at %d, want %d", end, got.length+got.body)
	case !got.done && err == nil:
		t.Fatalf("net/http: end at %d, want more than %d", end, len(stream))
	}
}

func FuzzParseResponse(f *testing.F) {
	for _, tt := range responses {
		f.Add([]byte(tt.stream), uint8(tt.kind), uint(7), uint(40))
	}
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length : 1\r\n\r\nx"), uint8(0), uint(3), uint(1))
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n 2\r\n\r\nx"), uint8(0), uint(3), uint(1))
	f.Fuzz(func(t *testing.T, stream []byte, bits uint8, i, j uint) {
		k := Kind(bits) & (ForHEAD | ForCONNECT | ForUpgrade)
		whole := driveResponse(t, k, stream)
		if cut := driveResponse(t, k, fuzzCuts(stream, i, j)...); cut != whole {
			t.Fatalf("cut stream:\n got %+v\nwant %+v", cut, whole)
		}
		if whole.reason != "" || whole.length == 0 {
			return
		}
		var h ResponseHead
		if _, err := ParseResponse(&h, stream, 0, k); err != nil {
			t.Fatalf("second ParseResponse = %v", err)
		}
		if h.Status < 100 || h.Status > 999 || h.Interim && h.Tunnel || (h.Interim || h.Tunnel) && !h.Body.Done() {
			t.Fatalf("head: %s", whole.head)
		}
		Fields(stream[:h.Len], func(name, value []byte) bool { return true })
		compareResponse(t, stream, &h, k, whole)
	})
}

// compareResponse holds an accepted response against what net/http makes of it.
func compareResponse(t *testing.T, stream []byte, h *ResponseHead, k Kind, got outcome) {
	t.Helper()
	if h.Interim || h.Tunnel || h.Minor == 0 {
		return // net/http frames none of these like a proxy must
	}
	trimmed := bytes.TrimLeft(stream[:h.Len], "\r\n")
	source := bytes.NewReader(stream[h.Len-len(trimmed):])
	reader := bufio.NewReader(source)
	method := "GET"
	if k&ForHEAD != 0 {
		method = "HEAD"
	}
	resp, err := http.ReadResponse(reader, &http.Request{Method: method})
	if err != nil {
		return
	}
	if resp.StatusCode != h.Status {
		t.Fatalf("net/http: status %d, want %d", resp.StatusCode, h.Status)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	end := len(stream) - source.Len() - reader.Buffered()
	switch {
	case h.Body.Kind() == BodyUntilClose:
	case err == nil && got.done && end != got.length+got.body:
		t.Fatalf("net/http: end at %d, want %d", end, got.length+got.body)
	case err == nil && !got.done:
		t.Fatalf("net/http: end at %d, want more than %d", end, len(stream))
	case err == io.ErrUnexpectedEOF && got.done:
		t.Fatalf("net/http: %v, want the end at %d", err, got.length+got.body)
	}
}

func FuzzBody(f *testing.F) {
	for _, s := range []string{"5\r\nhello\r\n0\r\n\r\nGET", "3\nabc\n0\n\n", "1;x=\"y\"\r\nz\r\n00\r\nX: y\r\n\r\n", "ffffffffffffffff\r\n", strings.Repeat("1\r\nx\r\n", 9)} {
		f.Add([]byte(s), true, uint(2), uint(5))
		f.Add([]byte(s), false, uint(2), uint(5))
	}
	f.Fuzz(func(t *testing.T, stream []byte, strict bool, i, j uint) {
		whole := chunkedBody(strict)
		total, done, err := whole.Scan(stream)
		if total > len(stream) || done && err != nil || err == nil && !done && total != len(stream) {
			t.Fatalf("Scan = %d, %t, %v of %d", total, done, err, len(stream))
		}
		// In pieces, and with data that is skipped unseen, nothing changes.
		pieces := chunkedBody(strict)
		sum := 0
		var got bool
		var gotErr error
		for _, p := range fuzzCuts(stream, i, j) {
			if skip := min(pieces.Remaining(), uint64(len(p))); skip > 0 {
				pieces.Skip(skip)
				sum += int(skip)
				p = p[skip:]
			}
			var n int
			n, got, gotErr = pieces.Scan(p)
			sum += n
			if got || gotErr != nil {
				break
			}
		}
		if sum != total || got != done || gotErr != err || pieces != whole {
			t.Fatalf("in pieces: %d, %t, %v, want %d, %t, %v", sum, got, gotErr, total, done, err)
		}
		// What passes for requests passes for responses too.
		if strict && done {
			lenient := chunkedBody(false)
			if n, ok, err := lenient.Scan(stream); n != total || !ok || err != nil {
				t.Fatalf("as a response: %d, %t, %v, want %d, true, nil", n, ok, err, total)
			}
		}
	})
}

// fragments are what messages, and attacks on their framing, are made of.
var fragments = []string{
	"\r\n", "\n", "\r", " ", "\t", ":", ",", ";", "\x00", "\x0b", "\"", "=", "x", "0", "1", "5", "a", "-", "+",
	"GET ", "POST ", "HEAD ", "CONNECT ", "OPTIONS ", "/ ", "/a?b ", "* ", "a:443 ", "http://", "u@", "[::1]", "a", "b.example", "HTTP/1.1\r\n", "HTTP/1.0\r\n",
	"GET / HTTP/1.1\r\nHost: a\r\n", "POST / HTTP/1.1\r\nHost: a\r\n", "Host: ", "Host: b\r\n",
	"Content-Length: ", "Content-Length: 5\r\n", "Content-Length: 0\r\n", "Content-Length: 12\r\n", "content-length:5\r\n", "Content-Length\r\n",
	"Transfer-Encoding: ", "Transfer-Encoding: chunked\r\n", "transfer-encoding:\tchunked \r\n", "chunked", "gzip", "identity",
	"Connection: ", "keep-alive", "close", "Upgrade: websocket\r\nConnection: Upgrade\r\n", "Expect: 100-continue\r\n", "X: y\r\n", "X: ",
	"hello", "5\r\nhello\r\n", "1\r\nx\r\n", "0\r\n", "0\r\n\r\n", "\r\n\r\n", "5;x=y\r\nhello\r\n", "a\r\n0123456789\r\n",
	"HTTP/1.1 200 OK\r\n", "HTTP/1.0 200 OK\r\n", "HTTP/1.1 204 No Content\r\n", "HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 101 Switching Protocols\r\n", "HTTP/1.1 304\n", "200",
}

// compose makes a stream of the fragments that the recipe's bytes number. A
// byte beyond their number stands for the byte after it.
func compose(recipe []byte) (stream []byte) {
	for i := 0; i < len(recipe); i++ {
		switch c := int(recipe[i]); {
		case c < len(fragments):
			stream = append(stream, fragments[c]...)
		case i+1 < len(recipe):
			i++
			stream = append(stream, recipe[i])
		}
	}
	return stream
}

// recipe finds fragments that make s, the longest first.
func recipe(tb testing.TB, s string) (out []byte) {
	tb.Helper()
	for len(s) > 0 {
		best := -1
		for i, f := range fragments {
			if strings.HasPrefix(s, f) && (best < 0 || len(f) > len(fragments[best])) {
				best = i
			}
		}
		if best < 0 {
			out = append(out, 255, s[0])
			s = s[1:]
			continue
		}
		out = append(out, byte(best))
		s = s[len(fragments[best]):]
	}
	return out
}

// FuzzComposed explores the grammar rather than the bytes: requests and
// responses put together from fragments.
func FuzzComposed(f *testing.F) {
	for _, tt := range acceptedRequests {
		f.Add(recipe(f, tt.stream), uint8(0), uint(7))
	}
	for _, tt := range refusedRequests {
		if len(tt.stream) < 1000 {
			f.Add(recipe(f, tt.stream), uint8(0), uint(20))
		}
	}
	for _, tt := range responses {
		f.Add(recipe(f, tt.stream), uint8(tt.kind), uint(9))
	}
	f.Fuzz(func(t *testing.T, recipe []byte, bits uint8, i uint) {
		stream := compose(recipe)
		pieces := fuzzCuts(stream, i, i/3)

		whole := driveRequest(t, stream)
		if cut := driveRequest(t, pieces...); cut != whole {
			t.Fatalf("cut request %q:\n got %+v\nwant %+v", stream, cut, whole)
		}
		var h RequestHead
		if n, err := ParseRequest(&h, stream, 0); n > 0 && err == nil && whole.reason == "" {
			compareRequest(t, stream, &h, whole)
		}

		k := Kind(bits) & (ForHEAD | ForCONNECT | ForUpgrade)
		whole = driveResponse(t, k, stream)
		if cut := driveResponse(t, k, pieces...); cut != whole {
			t.Fatalf("cut response %q:\n got %+v\nwant %+v", stream, cut, whole)
		}
		var r ResponseHead
		if n, err := ParseResponse(&r, stream, 0, k); n > 0 && err == nil && whole.reason == "" {
			compareResponse(t, stream, &r, k, whole)
		}
	})
}

func TestCompose(t *testing.T) {
	if got := compose(recipe(t, scraperRequest)); string(got) != scraperRequest {
		t.Errorf("compose(recipe) = %q, want %q", got, scraperRequest)
	}
	if len(fragments) > 200 {
		t.Errorf("%d fragments leave too few bytes for others", len(fragments))
	}
}
