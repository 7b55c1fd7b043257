// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"strings"
	"testing"
)

// typicalResponse is an answer as a CDN in front of an API sends it.
const typicalResponse = "HTTP/1.1 200 OK\r\n" +
	"Date: Sat, 29 Nov 2025 14:52:11 GMT\r\n" +
	"Content-Type: application/json; charset=utf-8\r\n" +
	"Content-Length: 13\r\n" +
	"Connection: keep-alive\r\n" +
	"Cache-Control: max-age=0, private, must-revalidate\r\n" +
	"ETag: W/\"5f1d7a84c0b94d1f\"\r\n" +
	"X-RateLimit-Limit: 60\r\n" +
	"X-RateLimit-Remaining: 57\r\n" +
	"Server: nginx\r\n" +
	"\r\n" +
	"{\"id\": 8471}\n"

var responses = []struct {
	name   string
	kind   Kind
	stream string
	want   string // describeResponse
	body   int    // bytes of the body in the stream
	done   bool   // the message ends in the stream
}{
	{"typical", 0, typicalResponse, "200 minor=1 interim=false tunnel=false close=false body=1/13", 13, true},
	{"two in a row", 0, "HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxHTTP/1.1 200 OK\r\n\r\n", "200 minor=1 interim=false tunnel=false close=false body=1/1", 1, true},
	{"no reason", 0, "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", "200 minor=1 interim=false tunnel=false close=false body=1/0", 0, true},
	{"empty reason", 0, "HTTP/1.1 429 \r\nContent-Length: 0\r\n\r\n", "429 minor=1 interim=false tunnel=false close=false body=1/0", 0, true},
	{"two spaces", 0, "HTTP/1.1  200  OK\r\nContent-Length: 0\r\n\r\n", "200 minor=1 interim=false tunnel=false close=false body=1/0", 0, true},
	{"lower case and later version", 0, "http/1.7 200 OK\r\nContent-Length: 0\r\n\r\n", "200 minor=1 interim=false tunnel=false close=false body=1/0", 0, true},
	{"empty lines first", 0, "\r\n\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "200 minor=1 interim=false tunnel=false close=false body=1/0", 0, true},
	{"bare LF", 0, "HTTP/1.1 200 OK\nContent-Length: 2\n\nab", "200 minor=1 interim=false tunnel=false close=false body=1/2", 2, true},
	{"mixed line ends", 0, "HTTP/1.1 200 OK\r\nContent-Length: 2\n\r\nab", "200 minor=1 interim=false tunnel=false close=false body=1/2", 2, true},
	{"line without colon", 0, "HTTP/1.1 200 OK\r\nContent-Length 7\r\n: x\r\nContent-Length: 2\r\n\r\nab", "200 minor=1 interim=false tunnel=false close=false body=1/2", 2, true},
	{"folded field", 0, "HTTP/1.1 200 OK\r\nX: y\r\n z\r\n\tContent-Length: 7\r\nContent-Length: 2\r\n\r\nab", "200 minor=1 interim=false tunnel=false close=false body=1/2", 2, true},
	{"folded field after the framing", 0, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX: y\r\n z\r\n\r\nab", "200 minor=1 interim=false tunnel=false close=false body=1/2", 2, true},
	{"space before another colon", 0, "HTTP/1.1 200 OK\r\nServer : x\r\nContent-Length: 0\r\n\r\n", "200 minor=1 interim=false tunnel=false close=false body=1/0", 0, true},
	{"control byte in a value", 0, "HTTP/1.1 200 OK\r\nX: \x01\xff\r\nContent-Length: 0\r\n\r\n", "200 minor=1 interim=false tunnel=false close=false body=1/0", 0, true},
	{"close", 0, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", "200 minor=1 interim=false tunnel=false close=true body=1/0", 0, true},
	{"HTTP/1.0", 0, "HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\nx", "200 minor=0 interim=false tunnel=false close=true body=1/1", 1, true},
	{"HTTP/1.0 keep-alive", 0, "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\nx", "200 minor=0 interim=false tunnel=false close=false body=1/1", 1, true},
	{"until close", 0, "HTTP/1.1 200 OK\r\n\r\nabc", "200 minor=1 interim=false tunnel=false close=true body=3/18446744073709551615", 3, false},
	{"until close in spite of keep-alive", 0, "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\n\r\nabc", "200 minor=0 interim=false tunnel=false close=true body=3/18446744073709551615", 3, false},
	{"chunked", 0, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nHTTP", "200 minor=1 interim=false tunnel=false close=false body=2/0", 13, true},
	{"chunked with LF", 0, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\n0\nX: y\n\nHTTP", "200 minor=1 interim=false tunnel=false close=false body=2/0", 14, true},
	{"chunked with padding", 0, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3 \t \r\nabc\r\n0  \r\n\r\n", "200 minor=1 interim=false tunnel=false close=false body=2/0", 18, true},
	{"odd trailers", 0, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nno colon\r\nX : y\r\n z\r\n\xff: \x01\r\n\r\nG", "200 minor=1 interim=false tunnel=false close=false body=2/0", 32, true},
	{"gzip, chunked", 0, "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, Chunked\r\n\r\n0\r\n\r\n", "200 minor=1 interim=false tunnel=false close=false body=2/0", 5, true},
	{"chunked in the second field", 0, "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nTransfer-Encoding: chunked;q=1,\r\n\r\n0\r\n\r\n", "200 minor=1 interim=false tunnel=false close=false body=2/0", 5, true},
	{"chunked not last", 0, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", "200 minor=1 interim=false tunnel=false close=true body=3/18446744073709551615", 5, false},
	{"unknown coding", 0, "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nContent-Length: 2\r\n\r\n0\r\n\r\n", "200 minor=1 interim=false tunnel=false close=true body=3/18446744073709551615", 5, false},
	{"identity", 0, "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 2\r\n\r\nab", "200 minor=1 interim=false tunnel=false close=false body=1/2", 2, true},
	{"chunked in HTTP/1.0", 0, "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "200 minor=0 interim=false tunnel=false close=true body=3/18446744073709551615", 5, false},
	{"coding wins over length", 0, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "200 minor=1 interim=false tunnel=false close=true body=2/0", 5, true},
	{"coding wins over bad length", 0, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: x\r\n\r\n0\r\n\r\n", "200 minor=1 interim=false tunnel=false close=true body=2/0", 5, true},
	{"equal lengths", 0, "HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\nContent-Length: 2\r\n\r\nab", "200 minor=1 interim=false tunnel=false close=false body=1/2", 2, true},
	{"HEAD", ForHEAD, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nHTTP/1.1", "200 minor=1 interim=false tunnel=false close=false body=0/0", 0, true},
	{"chunked to HEAD", ForHEAD, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nHTTP/1.1", "200 minor=1 interim=false tunnel=false close=false body=0/0", 0, true},
	{"HEAD without framing", ForHEAD, "HTTP/1.1 200 OK\r\n\r\nHTTP/1.1", "200 minor=1 interim=false tunnel=false close=false body=0/0", 0, true},
	{"204", 0, "HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nHTTP/1.1", "204 minor=1 interim=false tunnel=false close=false body=0/0", 0, true},
	{"304", 0, "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nHTTP/1.1", "304 minor=1 interim=false tunnel=false close=false body=0/0", 0, true},
	{"100", 0, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n", "100 minor=1 interim=true tunnel=false close=false body=0/0", 0, true},
	{"103", 0, "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\n", "103 minor=1 interim=true tunnel=false close=false body=0/0", 0, true},
	{"HTTP/1.0 100", 0, "HTTP/1.0 100 Continue\n\n", "100 minor=0 interim=true tunnel=false close=false body=0/0", 0, true},
	{"101", ForUpgrade, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n\x81\x00", "101 minor=1 interim=false tunnel=true close=false body=0/0", 0, true},
	{"refused upgrade", ForUpgrade, "HTTP/1.1 400 Bad Request\r\nContent-Length: 1\r\n\r\nx", "400 minor=1 interim=false tunnel=false close=false body=1/1", 1, true},
	{"2xx to CONNECT", ForCONNECT, "HTTP/1.1 299 Fine\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\nabc", "299 minor=1 interim=false tunnel=true close=false body=0/0", 0, true},
	{"HTTP/1.0 to CONNECT", ForCONNECT, "HTTP/1.0 200 Connection established\r\n\r\nabc", "200 minor=0 interim=false tunnel=true close=true body=0/0", 0, true},
	{"100 to CONNECT", ForCONNECT, "HTTP/1.1 100 Continue\r\n\r\n", "100 minor=1 interim=true tunnel=false close=false body=0/0", 0, true},
	{"429 to CONNECT", ForCONNECT, "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3\r\nContent-Length: 3\r\n\r\nabc", "429 minor=1 interim=false tunnel=false close=false body=1/3", 3, true},
	{"205", 0, "HTTP/1.1 205 Reset Content\r\nContent-Length: 0\r\n\r\n", "205 minor=1 interim=false tunnel=false close=false body=1/0", 0, true},
	{"status of no class", 0, "HTTP/1.1 999 Request denied\r\nContent-Length: 0\r\n\r\n", "999 minor=1 interim=false tunnel=false close=false body=1/0", 0, true},
}

func TestParseResponse(t *testing.T) {
	for _, tt := range responses {
		t.Run(tt.name, func(t *testing.T) {
			var h ResponseHead
			n, err := ParseResponse(&h, b(tt.stream), 0, tt.kind)
			if err != nil || n == 0 || h.Len != n {
				t.Fatalf("ParseResponse = %d, %v, Len %d", n, err, h.Len)
			}
			if got := describeResponse(&h); got != tt.want {
				t.Errorf("head:\n got %s\nwant %s", got, tt.want)
			}
			body, done, err := h.Body.Scan(b(tt.stream)[n:])
			if body != tt.body || done != tt.done || err != nil {
				t.Errorf("body = %d, %t, %v, want %d, %t, nil", body, done, err, tt.body, tt.done)
			}
			if got, want := h.Body.EndsAtEOF(), tt.done || h.Body.Kind() == BodyUntilClose; got != want {
				t.Errorf("EndsAtEOF = %t, want %t", got, want)
			}
			checkSplits(t, b(tt.stream), func(p ...[]byte) outcome { return driveResponse(t, tt.kind, p...) })
		})
	}
}

func TestParseResponseRefuses(t *testing.T) {
	ok := func(fields string) string { return "HTTP/1.1 200 OK\r\n" + fields + "\r\n\r\n" }
	chunks := func(body string) string { return ok("Transfer-Encoding: chunked") + body }
	for _, tt := range []struct {
		name, stream, reason string
	}{
		{"no status line", "hello, this is no HTTP\r\n\r\n", "malformed status line"},
		{"request", scraperRequest, "malformed status line"},
		{"HTTP/2", "HTTP/2 200\r\n\r\n", "malformed status line"},
		{"HTTP/2.0", "HTTP/2.0 200 OK\r\n\r\n", "malformed status line"},
		{"short", "HTTP/1.1 20\r\n\r\n", "malformed status line"},
		{"four digits", "HTTP/1.1 2000 OK\r\n\r\n", "malformed status line"},
		{"letters", "HTTP/1.1 2OO OK\r\n\r\n", "malformed status line"},
		{"below 100", "HTTP/1.1 099 OK\r\n\r\n", "malformed status line"},
		{"no space", "HTTP/1.1200 OK\r\n\r\n", "malformed status line"},
		{"too many empty lines", "\n\n\n\n\nHTTP/1.1 200 OK\r\n\r\n", "malformed status line"},
		{"differing lengths", ok("Content-Length: 1\r\nContent-Length: 2"), "differing content-lengths"},
		{"differing lengths in a list", ok("Content-Length: 1, 2"), "differing content-lengths"},
		{"empty length", ok("Content-Length:"), "invalid content-length"},
		{"empty length in a list", ok("Content-Length: 1,"), "invalid content-length"},
		{"negative length", ok("Content-Length: -1"), "invalid content-length"},
		{"plus length", ok("Content-Length: +1"), "invalid content-length"},
		{"huge length", ok("Content-Length: 9223372036854775808"), "invalid content-length"},
		{"bad then good length", ok("Content-Length: x\r\nContent-Length: 1"), "invalid content-length"},
		{"chunked twice", ok("Transfer-Encoding: chunked, chunked"), "repeated transfer-encoding"},
		{"chunked in two fields", ok("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), "repeated transfer-encoding"},
		{"space before the colon of a length", ok("Content-Length : 1"), "space before colon"},
		{"control before a coding", ok("\x0bTransfer-Encoding: chunked"), "space before colon"},
		{"folded length", ok("Content-Length: 1\r\n 2"), "folded field"},
		{"folded coding", ok("Transfer-Encoding:\r\n chunked"), "folded field"},
		{"folded connection", ok("Connection:\r\n close"), "folded field"},
		{"fold after the status line", ok(" Content-Length: 1"), "folded field"},
		{"bare CR in a value", ok("X: y\rContent-Length: 1"), "bare cr"},
		{"bare CR before the line end", ok("X: y\r"), "bare cr"},
		{"bare CR in the reason", "HTTP/1.1 200 O\rK\r\n\r\n", "bare cr"},
		{"NUL", ok("X: \x00"), "invalid field value"},
		{"101 unasked", "HTTP/1.1 101 Switching Protocols\r\n\r\n", "unexpected upgrade"},
		{"bare LF after an extension", chunks("1;x\nx\r\n"), "bare lf"},
		{"bare CR after a chunk size", chunks("1\rx\r\n"), "bare cr"},
		{"endless padding", chunks("1" + strings.Repeat(" ", 5000)), "chunk extension too long"},
		{"text after the padding", chunks("1 x\r\n"), "invalid chunk size"},
		{"chunk longer than its size", chunks("1\r\nxy\r\n"), "invalid chunk end"},
		{"fold as first trailer", chunks("0\r\n x\r\n\r\n"), "folded field"},
		{"fold as first trailer after an extension", chunks("0;x\r\n x\r\n\r\n"), "folded field"},
		{"NUL in a trailer", chunks("0\r\nX: \x00\r\n\r\n"), "invalid field value"},
		{"NUL in a trailer's name", chunks("0\r\nX\x00: y\r\n\r\n"), "invalid field name"},
		{"NUL first in a trailer", chunks("0\r\n\x00X: y\r\n\r\n"), "invalid field name"},
		{"bare CR in a trailer", chunks("0\r\nX: y\rz\r\n\r\n"), "bare cr"},
		{"head too large", ok("X: " + strings.Repeat("x", MaxHead)), "head too large"},
		{"too many fields", ok(strings.Repeat("X: y\n", MaxFields) + "X: y"), "too many fields"},
		{"trailers too large", chunks("0\r\n" + strings.Repeat("X: 0123456789abcdefghijklm\r\n", MaxHead/28+1)), "trailers too large"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := driveResponse(t, 0, b(tt.stream))
			if got.reason != tt.reason {
				t.Fatalf("reason = %q, want %q (outcome %+v)", got.reason, tt.reason, got)
			}
			if len(tt.stream) < 1000 {
				checkSplits(t, b(tt.stream), func(p ...[]byte) outcome { return driveResponse(t, 0, p...) })
			}
			var h ResponseHead
			if _, err := ParseResponse(&h, b(tt.stream), 0, 0); err != nil && err.(*Error).Status != 502 {
				t.Errorf("status = %d, want 502", err.(*Error).Status)
			}
		})
	}
}
