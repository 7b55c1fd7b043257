// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"fmt"
	"strings"
	"testing"
)

// scraperRequest is a request as a browser-like scraper sends it.
const scraperRequest = "GET /api/v2/products/8471?page=3&sort=price HTTP/1.1\r\n" +
	"Host: store.example.com\r\n" +
	"Connection: keep-alive\r\n" +
	"sec-ch-ua: \"Chromium\";v=\"130\", \"Not?A_Brand\";v=\"99\"\r\n" +
	"sec-ch-ua-mobile: ?0\r\n" +
	"User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130.0.0.0 Safari/537.36\r\n" +
	"Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8\r\n" +
	"Accept-Encoding: gzip, deflate, br\r\n" +
	"Accept-Language: en-GB,en;q=0.9\r\n" +
	"Referer: https://store.example.com/api/v2/products?page=2\r\n" +
	"Cookie: session=5f1d7a84c0b94d1f; consent=1\r\n" +
	"\r\n"

// acceptedRequests are streams that start with a valid request; body is how
// many bytes follow its head.
var acceptedRequests = []struct {
	name   string
	stream string
	want   RequestHead // Len and Body apart
	kind   BodyKind
	body   int
	open   bool // the message is not complete within the stream
}{
	{name: "typical", stream: scraperRequest,
		want: RequestHead{Method: b("GET"), Target: b("/api/v2/products/8471?page=3&sort=price"), Authority: b("store.example.com"),
			Host: b("store.example.com"), Path: b("/api/v2/products/8471"), Minor: 1}},
	{name: "pipelined", stream: "GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /2 HTTP/1.1\r\nHost: b\r\n\r\n",
		want: RequestHead{Method: b("GET"), Target: b("/"), Authority: b("a"), Host: b("a"), Path: b("/"), Minor: 1}},
	{name: "odd case and spacing", stream: "GET / HTTP/1.1\r\nhOST:\t a:8080 \t\r\nX:\r\n\r\n",
		want: RequestHead{Method: b("GET"), Target: b("/"), Authority: b("a:8080"), Host: b("a"), Port: 8080, Path: b("/"), Minor: 1}},
	{name: "empty port", stream: "GET / HTTP/1.1\r\nHost: a:\r\n\r\n",
		want: RequestHead{Method: b("GET"), Target: b("/"), Authority: b("a:"), Host: b("a"), Path: b("/"), Minor: 1}},
	{name: "empty host", stream: "GET / HTTP/1.1\r\nHost:\r\n\r\n",
		want: RequestHead{Method: b("GET"), Target: b("/"), Path: b("/"), Minor: 1}},
	{name: "IPv6 host", stream: "GET / HTTP/1.1\r\nHost: [2001:DB8::1]:81\r\n\r\n",
		want: RequestHead{Method: b("GET"), Target: b("/"), Authority: b("[2001:DB8::1]:81"), Host: b("[2001:DB8::1]"), Port: 81, Path: b("/"), Minor: 1}},
	{name: "HTTP/1.0 without host", stream: "GET / HTTP/1.0\r\n\r\n",
		want: RequestHead{Method: b("GET"), Target: b("/"), Path: b("/"), Close: true}},
	{name: "HTTP/1.0 keep-alive", stream: "GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n",
		want: RequestHead{Method: b("GET"), Target: b("/"), Path: b("/")}},
	{name: "HTTP/1.0 has no expectations", stream: "POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nx",
		want: RequestHead{Method: b("POST"), Target: b("/"), Path: b("/"), Close: true}, kind: BodyLength, body: 1},
	{name: "close", stream: "GET / HTTP/1.1\r\nHost: a\r\nConnection: TE , Close\r\n\r\n",
		want: RequestHead{Method: b("GET"), Target: b("/"), Authority: b("a"), Host: b("a"), Path: b("/"), Minor: 1, Close: true}},
	{name: "close wins over keep-alive", stream: "GET / HTTP/1.0\r\nConnection: keep-alive\r\nConnection: close\r\n\r\n",
		want: RequestHead{Method: b("GET"), Target: b("/"), Path: b("/"), Close: true}},
	{name: "leading empty lines", stream: "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
		want: RequestHead{Method: b("GET"), Target: b("/"), Authority: b("a"), Host: b("a"), Path: b("/"), Minor: 1}},
	{name: "length", stream: "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 005\r\n\r\nhelloGET",
		want: RequestHead{Method: b("POST"), Target: b("/"), Authority: b("a"), Host: b("a"), Path: b("/"), Minor: 1}, kind: BodyLength, body: 5},
	{name: "length of nothing", stream: "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\nGET",
		want: RequestHead{Method: b("POST"), Target: b("/"), Authority: b("a"), Host: b("a"), Path: b("/"), Minor: 1}, kind: BodyLength},
	{name: "largest length", stream: "PUT / HTTP/1.1\r\nHost: a\r\nContent-Length: 9223372036854775807\r\n\r\nx",
		want: RequestHead{Method: b("PUT"), Target: b("/"), Authority: b("a"), Host: b("a"), Path: b("/"), Minor: 1}, kind: BodyLength, body: 1, open: true},
	{name: "body of a GET", stream: "GET / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcd",
		want: RequestHead{Method: b("GET"), Target: b("/"), Authority: b("a"), Host: b("a"), Path: b("/"), Minor: 1}, kind: BodyLength, body: 3},
	{name: "chunked", stream: "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\nGET",
		want: RequestHead{Method: b("POST"), Target: b("/"), Authority: b("a"), Host: b("a"), Path: b("/"), Minor: 1}, kind: BodyChunked, body: 15},
	{name: "chunked with extensions and trailers",
		stream: "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n00A;x=\"y z\";q\r\n0123456789\r\n0;last\r\nDigest: a=b\r\nX:\r\n\r\nG",
		want:   RequestHead{Method: b("POST"), Target: b("/"), Authority: b("a"), Host: b("a"), Path: b("/"), Minor: 1}, kind: BodyChunked, body: 54},
	{name: "expect", stream: "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\nContent-Length: 2\r\n\r\n",
		want: RequestHead{Method: b("POST"), Target: b("/"), Authority: b("a"), Host: b("a"), Path: b("/"), Minor: 1, Expect100: true}, kind: BodyLength, open: true},
	{name: "upgrade", stream: "GET /ws HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n\r\n",
		want: RequestHead{Method: b("GET"), Target: b("/ws"), Authority: b("a"), Host: b("a"), Path: b("/ws"), Minor: 1, Upgrade: true}},
	{name: "upgrade without the option", stream: "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\n\r\n",
		want: RequestHead{Method: b("GET"), Target: b("/"), Authority: b("a"), Host: b("a"), Path: b("/"), Minor: 1}},
	{name: "absolute", stream: "GET http://Store.example.com/a/b?c HTTP/1.1\r\nHost: store.example.com\r\n\r\n",
		want: RequestHead{Method: b("GET"), Target: b("http://Store.example.com/a/b?c"), Scheme: b("http"), Authority: b("Store.example.com"),
			Host: b("Store.example.com"), Path: b("/a/b"), Form: Absolute, Minor: 1}},
	{name: "absolute wins over host", stream: "GET HTTPS://u:p%40@a:8443?q HTTP/1.1\r\nHost: b\r\n\r\n",
		want: RequestHead{Method: b("GET"), Target: b("HTTPS://u:p%40@a:8443?q"), Scheme: b("HTTPS"), Authority: b("a:8443"), Host: b("a"), Port: 8443,
			Path: b("/"), Form: Absolute, Minor: 1}},
	{name: "absolute of IPv6", stream: "GET http://[::1]:80/ HTTP/1.0\r\n\r\n",
		want: RequestHead{Method: b("GET"), Target: b("http://[::1]:80/"), Scheme: b("http"), Authority: b("[::1]:80"), Host: b("[::1]"), Port: 80,
			Path: b("/"), Form: Absolute, Close: true}},
	{name: "query before a slash", stream: "GET http://a?b/c HTTP/1.0\r\n\r\n",
		want: RequestHead{Method: b("GET"), Target: b("http://a?b/c"), Scheme: b("http"), Authority: b("a"), Host: b("a"), Path: b("/"), Form: Absolute, Close: true}},
	{name: "fragment", stream: "GET /a#b?c HTTP/1.0\r\n\r\n",
		want: RequestHead{Method: b("GET"), Target: b("/a#b?c"), Path: b("/a"), Close: true}},
	{name: "bytes beyond ASCII in the target", stream: "GET /caf\xc3\xa9 HTTP/1.0\r\n\r\n",
		want: RequestHead{Method: b("GET"), Target: b("/caf\xc3\xa9"), Path: b("/caf\xc3\xa9"), Close: true}},
	{name: "connect", stream: "CONNECT a.example:443 HTTP/1.1\r\nHost: b.example\r\n\r\n\x16\x03\x01",
		want: RequestHead{Method: b("CONNECT"), Target: b("a.example:443"), Authority: b("a.example:443"), Host: b("a.example"), Port: 443, Form: Authority, Minor: 1}},
	{name: "connect without host", stream: "CONNECT [::1]:443 HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
		want: RequestHead{Method: b("CONNECT"), Target: b("[::1]:443"), Authority: b("[::1]:443"), Host: b("[::1]"), Port: 443, Form: Authority, Minor: 1}, kind: BodyLength},
	{name: "asterisk", stream: "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n",
		want: RequestHead{Method: b("OPTIONS"), Target: b("*"), Authority: b("a"), Host: b("a"), Form: Asterisk, Minor: 1}},
	{name: "method of token bytes", stream: "M-SEARCH!#$%&'*+.^_`|~9 / HTTP/1.0\r\n\r\n",
		want: RequestHead{Method: b("M-SEARCH!#$%&'*+.^_`|~9"), Target: b("/"), Path: b("/"), Close: true}},
	{name: "obs-text and tab in a value", stream: "GET / HTTP/1.0\r\nX: caf\xe9\tau lait, un peu plus long\r\n\r\n",
		want: RequestHead{Method: b("GET"), Target: b("/"), Path: b("/"), Close: true}},
}

func b(s string) []byte { return []byte(s) }

func TestParseRequestAccepts(t *testing.T) {
	for _, tt := range acceptedRequests {
		t.Run(tt.name, func(t *testing.T) {
			var h RequestHead
			n, err := ParseRequest(&h, b(tt.stream), 0)
			if err != nil || n == 0 {
				t.Fatalf("ParseRequest = %d, %v", n, err)
			}
			want := tt.want
			want.Body = h.Body // judged below
			if got, want := describeRequest(&h), describeRequest(&want); got != want {
				t.Errorf("head:\n got %s\nwant %s", got, want)
			}
			if want := len(tt.stream) - len(strings.TrimLeft(tt.stream, "\r\n")) + strings.Index(strings.TrimLeft(tt.stream, "\r\n"), "\r\n\r\n") + 4; n != want || h.Len != want {
				t.Errorf("length = %d, Len = %d, want %d", n, h.Len, want)
			}
			if got := h.Body.Kind(); got != tt.kind {
				t.Errorf("body kind = %d, want %d", got, tt.kind)
			}
			got, done, err := h.Body.Scan(b(tt.stream)[n:])
			if err != nil || got != tt.body || done == tt.open {
				t.Errorf("body = %d, %t, %v, want %d, %t, nil", got, done, err, tt.body, !tt.open)
			}
			checkSplits(t, b(tt.stream), func(p ...[]byte) outcome { return driveRequest(t, p...) })
		})
	}
}

// refusedRequests are streams that could be framed in more than one way, or
// break a rule that keeps them from it. Each has its reason.
var refusedRequests = []struct {
	name, stream, reason string
}{
	// Framing: which bytes are the body (RFC 9112 §6.3, §11.2).
	{"length then coding", post("Content-Length: 4\r\nTransfer-Encoding: chunked"), "content-length and transfer-encoding"},
	{"coding then length", post("Transfer-Encoding: chunked\r\nContent-Length: 4"), "content-length and transfer-encoding"},
	{"coding and length of nothing", post("Transfer-Encoding: chunked\r\nContent-Length: 0"), "content-length and transfer-encoding"},
	{"unknown coding and length", post("Transfer-Encoding: x\r\nContent-Length: 0"), "content-length and transfer-encoding"},
	{"differing lengths", post("Content-Length: 4\r\nContent-Length: 5"), "repeated content-length"},
	{"equal lengths", post("Content-Length: 4\r\nContent-Length: 4"), "repeated content-length"},
	{"lengths in other case", post("Content-Length: 4\r\ncontent-LENGTH: 5"), "repeated content-length"},
	{"list of lengths", post("Content-Length: 4, 4"), "invalid content-length"},
	{"list of lengths without space", post("Content-Length: 4,5"), "invalid content-length"},
	{"empty length", post("Content-Length:"), "invalid content-length"},
	{"blank length", post("Content-Length: \t "), "invalid content-length"},
	{"plus length", post("Content-Length: +4"), "invalid content-length"},
	{"minus length", post("Content-Length: -4"), "invalid content-length"},
	{"minus zero length", post("Content-Length: -0"), "invalid content-length"},
	{"hexadecimal length", post("Content-Length: 0x4"), "invalid content-length"},
	{"length with a fraction", post("Content-Length: 4.0"), "invalid content-length"},
	{"length with an exponent", post("Content-Length: 4e0"), "invalid content-length"},
	{"length with inner space", post("Content-Length: 4 4"), "invalid content-length"},
	{"length in other digits", post("Content-Length: \xd9\xa4"), "invalid content-length"},
	{"length with underscore", post("Content-Length: 1_0"), "invalid content-length"},
	{"quoted length", post("Content-Length: \"4\""), "invalid content-length"},
	{"length of 2^63", post("Content-Length: 9223372036854775808"), "invalid content-length"},
	{"length of 2^64", post("Content-Length: 18446744073709551616"), "invalid content-length"},
	{"length of 2^64 and 4", post("Content-Length: 18446744073709551620"), "invalid content-length"},
	{"unknown coding", post("Transfer-Encoding: gzip"), "unsupported transfer-encoding"},
	{"coding before chunked", post("Transfer-Encoding: gzip, chunked"), "unsupported transfer-encoding"},
	{"chunked not last", post("Transfer-Encoding: chunked, gzip"), "unsupported transfer-encoding"},
	{"chunked twice in a list", post("Transfer-Encoding: chunked, chunked"), "unsupported transfer-encoding"},
	{"chunked twice in two fields", post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked"), "repeated transfer-encoding"},
	{"codings in two fields", post("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked"), "repeated transfer-encoding"},
	{"identity", post("Transfer-Encoding: identity"), "unsupported transfer-encoding"},
	{"empty coding", post("Transfer-Encoding:"), "unsupported transfer-encoding"},
	{"chunked in a list of one", post("Transfer-Encoding: chunked,"), "unsupported transfer-encoding"},
	{"chunked after a comma", post("Transfer-Encoding: ,chunked"), "unsupported transfer-encoding"},
	{"chunked with parameter", post("Transfer-Encoding: chunked;q=1"), "unsupported transfer-encoding"},
	{"quoted chunked", post("Transfer-Encoding: \"chunked\""), "unsupported transfer-encoding"},
	{"xchunked", post("Transfer-Encoding: xchunked"), "unsupported transfer-encoding"},
	{"Kelvin sign in chunked", post("Transfer-Encoding: chun\u212aed"), "unsupported transfer-encoding"},
	{"vertical tab before chunked", post("Transfer-Encoding: \x0bchunked"), "invalid field value"},
	{"form feed after chunked", post("Transfer-Encoding: chunked\x0c"), "invalid field value"},
	{"chunked in HTTP/1.0", "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "transfer-encoding in http/1.0"},
	{"length in connect", "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\nContent-Length: 5\r\n\r\nhello", "content in connect"},
	{"chunked in connect", "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "content in connect"},

	// Lines: where a field ends and which name it has (RFC 9112 §2.2, §5).
	{"bare LF after the request line", "GET / HTTP/1.1\nHost: a\r\n\r\n", "bare lf"},
	{"bare LF after a field", get("X: y\nZ: w"), "bare lf"},
	{"bare LF as the end", "GET / HTTP/1.1\r\nHost: a\r\n\n", "bare lf"},
	{"leading bare LF", "\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "bare lf"},
	{"bare CR in a value", get("X: y\rTransfer-Encoding: chunked"), "bare cr"},
	{"bare CR before CRLF", get("X: y\r"), "bare cr"},
	{"bare CR in a name", get("X\r: y"), "bare cr"},
	{"bare CR before a name", get("\rX: y"), "bare cr"},
	{"bare CR in the target", "GET /\rx HTTP/1.1\r\nHost: a\r\n\r\n", "bare cr"},
	{"bare CR in the method", "GE\rT / HTTP/1.1\r\nHost: a\r\n\r\n", "bare cr"},
	{"bare CR after the version", "GET / HTTP/1.1\r\r\nHost: a\r\n\r\n", "bare cr"},
	{"bare CR as the last line", "GET / HTTP/1.1\r\nHost: a\r\n\r\r\n", "bare cr"},
	{"folded field", get("X: y\r\n z"), "folded field"},
	{"field folded by a tab", get("X: y\r\n\tz"), "folded field"},
	{"folded length", post("Content-Length:\r\n 4"), "folded field"},
	{"space before the first field", "GET / HTTP/1.1\r\n Host: a\r\n\r\n", "folded field"},
	{"line of a space", get("X: y\r\n "), "folded field"},
	{"space before the colon", post("Content-Length : 4"), "space before colon"},
	{"tab before the colon", post("Transfer-Encoding\t: chunked"), "space before colon"},
	{"space in a name", get("X Y: z"), "space before colon"},
	{"empty name", get(": x"), "invalid field name"},
	{"no colon", get("X"), "invalid field name"},
	{"NUL in a name", post("Content-Length\x00: 4"), "invalid field name"},
	{"bytes beyond ASCII in a name", get("X\xff: y"), "invalid field name"},
	{"parentheses in a name", get("X(y): z"), "invalid field name"},
	{"vertical tab before the colon", post("Content-Length\x0b: 4"), "invalid field name"},
	{"NUL in a value", get("X: a\x00b"), "invalid field value"},
	{"NUL in a long value", get("X: 0123456789abcdef\x00fedcba9876543210"), "invalid field value"},
	{"escape in a value", get("X: \x1b[0m"), "invalid field value"},
	{"DEL in a value", get("X: 01234567\x7f89abcdef"), "invalid field value"},
	{"NUL in the length", post("Content-Length: 4\x00"), "invalid field value"},

	// Request line.
	{"no method", " / HTTP/1.1\r\nHost: a\r\n\r\n", "invalid method"},
	{"method with a bracket", "GE[T / HTTP/1.1\r\nHost: a\r\n\r\n", "invalid method"},
	{"method and tab", "GET\t/ HTTP/1.1\r\nHost: a\r\n\r\n", "invalid method"},
	{"method alone", "GET\r\nHost: a\r\n\r\n", "malformed request line"},
	{"HTTP/0.9", "GET /\r\n\r\n", "malformed request line"},
	{"no target", "GET HTTP/1.1\r\nHost: a\r\n\r\n", "malformed request line"},
	{"empty target", "GET  HTTP/1.1\r\nHost: a\r\n\r\n", "invalid target"},
	{"space in the target", "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", "invalid target"},
	{"version in the target", "GET /a HTTP/1.1 HTTP/1.1\r\nHost: a\r\n\r\n", "invalid target"},
	{"two spaces before the target", "GET  / HTTP/1.1\r\nHost: a\r\n\r\n", "invalid target"},
	{"two spaces before the version", "GET /  HTTP/1.1\r\nHost: a\r\n\r\n", "invalid target"},
	{"space after the version", "GET / HTTP/1.1 \r\nHost: a\r\n\r\n", "malformed request line"},
	{"tab before the version", "GET /\tHTTP/1.1\r\nHost: a\r\n\r\n", "malformed request line"},
	{"tab in the target", "GET /a\tb HTTP/1.1\r\nHost: a\r\n\r\n", "invalid target"},
	{"NUL in the target", "GET /a\x00b HTTP/1.1\r\nHost: a\r\n\r\n", "invalid target"},
	{"NUL in a long target", "GET /0123456789\x00abcdef HTTP/1.1\r\nHost: a\r\n\r\n", "invalid target"},
	{"DEL in the target", "GET /a\x7f HTTP/1.1\r\nHost: a\r\n\r\n", "invalid target"},
	{"version in lower case", "GET / http/1.1\r\nHost: a\r\n\r\n", "malformed request line"},
	{"version without a point", "GET / HTTP/11.\r\nHost: a\r\n\r\n", "malformed request line"},
	{"version of two digits", "GET / HTTP/1.11\r\nHost: a\r\n\r\n", "malformed request line"},
	{"other protocol", "GET / RTSP/1.0\r\nHost: a\r\n\r\n", "malformed request line"},
	{"HTTP/1.2", "GET / HTTP/1.2\r\nHost: a\r\n\r\n", "unsupported version"},
	{"HTTP/2.0", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "unsupported version"},
	{"HTTP/0.9 written", "GET / HTTP/0.9\r\nHost: a\r\n\r\n", "unsupported version"},
	{"too many empty lines", "\r\n\r\n\r\n\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n", "invalid method"},

	// Target and Host: who is meant (RFC 9112 §3.2).
	{"authority without connect", "GET a:80 HTTP/1.1\r\nHost: a\r\n\r\n", "invalid target"},
	{"bare name", "GET a HTTP/1.1\r\nHost: a\r\n\r\n", "invalid target"},
	{"asterisk without options", "GET * HTTP/1.1\r\nHost: a\r\n\r\n", "invalid target"},
	{"asterisk and more", "OPTIONS ** HTTP/1.1\r\nHost: a\r\n\r\n", "invalid target"},
	{"no scheme", "GET ://a/ HTTP/1.1\r\nHost: a\r\n\r\n", "invalid target"},
	{"scheme with a digit first", "GET 1a://a/ HTTP/1.1\r\nHost: a\r\n\r\n", "invalid target"},
	{"scheme with an underscore", "GET h_p://a/ HTTP/1.1\r\nHost: a\r\n\r\n", "invalid target"},
	{"one slash", "GET http:/a HTTP/1.1\r\nHost: a\r\n\r\n", "invalid target"},
	{"absolute without authority", "GET http:/// HTTP/1.1\r\nHost: a\r\n\r\n", "invalid target"},
	{"absolute of userinfo alone", "GET http://u@/ HTTP/1.1\r\nHost: a\r\n\r\n", "invalid target"},
	{"absolute of a port alone", "GET http://:80/ HTTP/1.1\r\nHost: a\r\n\r\n", "invalid target"},
	{"two userinfos", "GET http://b@c@a/ HTTP/1.1\r\nHost: a\r\n\r\n", "invalid target"},
	{"backslash in the authority", "GET http://b\\@a/ HTTP/1.1\r\nHost: a\r\n\r\n", "invalid target"},
	{"percent in the authority", "GET http://%61/ HTTP/1.1\r\nHost: a\r\n\r\n", "invalid target"},
	{"bad port in the target", "GET http://a:65536/ HTTP/1.1\r\nHost: a\r\n\r\n", "invalid target"},
	{"connect without port", "CONNECT a HTTP/1.1\r\nHost: a\r\n\r\n", "invalid target"},
	{"connect with an empty port", "CONNECT a: HTTP/1.1\r\nHost: a\r\n\r\n", "invalid target"},
	{"connect without name", "CONNECT :443 HTTP/1.1\r\nHost: a\r\n\r\n", "invalid target"},
	{"connect to a path", "CONNECT / HTTP/1.1\r\nHost: a\r\n\r\n", "invalid target"},
	{"connect to a URL", "CONNECT http://a:80/ HTTP/1.1\r\nHost: a\r\n\r\n", "invalid target"},
	{"connect with userinfo", "CONNECT u@a:443 HTTP/1.1\r\nHost: a\r\n\r\n", "invalid target"},
	{"missing host", "GET / HTTP/1.1\r\nX: y\r\n\r\n", "missing host"},
	{"missing host beside an absolute target", "GET http://a/ HTTP/1.1\r\n\r\n", "missing host"},
	{"two hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "repeated host"},
	{"two equal hosts", "GET / HTTP/1.1\r\nHost: a\r\nhost: a\r\n\r\n", "repeated host"},
	{"two hosts in HTTP/1.0", "GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", "repeated host"},
	{"two hosts in connect", "CONNECT a:1 HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "repeated host"},
	{"list of hosts", host("a, b"), "invalid host"},
	{"host with a path", host("a/b"), "invalid host"},
	{"host with userinfo", host("u@a"), "invalid host"},
	{"host with a scheme", host("http://a"), "invalid host"},
	{"host with a percent", host("%61"), "invalid host"},
	{"host beyond ASCII", host("caf\xc3\xa9.example"), "invalid host"},
	{"host with a backslash", host("a\\b"), "invalid host"},
	{"host with a query", host("a?b"), "invalid host"},
	{"host of a port alone", host(":80"), "invalid host"},
	{"host with two ports", host("a:80:81"), "invalid host"},
	{"host with a name for a port", host("a:http"), "invalid host"},
	{"host with a signed port", host("a:+80"), "invalid host"},
	{"host with port 0", host("a:0"), "invalid host"},
	{"host with port 65536", host("a:65536"), "invalid host"},
	{"host with a long port", host("a:000080"), "invalid host"},
	{"host with an open bracket", host("[::1"), "invalid host"},
	{"host with empty brackets", host("[]"), "invalid host"},
	{"host with a zone", host("[fe80::1%eth0]"), "invalid host"},
	{"host with text after the bracket", host("[::1]a"), "invalid host"},
	{"host of bare IPv6", host("::1"), "invalid host"},
	{"bad host beside an absolute target", "GET http://a/ HTTP/1.1\r\nHost: a b\r\n\r\n", "invalid host"},

	// Chunks (RFC 9112 §7.1).
	{"no chunk size", chunks("\r\n"), "invalid chunk size"},
	{"chunk of extension alone", chunks(";x\r\n"), "invalid chunk size"},
	{"chunk size with a sign", chunks("+5\r\nhello\r\n"), "invalid chunk size"},
	{"negative chunk size", chunks("-5\r\nhello\r\n"), "invalid chunk size"},
	{"chunk size with 0x", chunks("0x5\r\nhello\r\n"), "invalid chunk size"},
	{"chunk size after a space", chunks(" 5\r\nhello\r\n"), "invalid chunk size"},
	{"space after the chunk size", chunks("5 \r\nhello\r\n"), "invalid chunk size"},
	{"space before the extension", chunks("5 ;x\r\nhello\r\n"), "invalid chunk size"},
	{"chunk size beyond hexadecimal", chunks("5g\r\nhello\r\n"), "invalid chunk size"},
	{"chunk size with underscore", chunks("1_0\r\n"), "invalid chunk size"},
	{"chunk size with a comma", chunks("5,5\r\nhello\r\n"), "invalid chunk size"},
	{"chunk size of 17 digits", chunks("00000000000000005\r\nhello\r\n"), "invalid chunk size"},
	{"chunk size of 2^63", chunks("8000000000000000\r\n"), "invalid chunk size"},
	{"chunk size of 2^64 and 5", chunks("10000000000000005\r\nhello\r\n"), "invalid chunk size"},
	{"bare LF after the chunk size", chunks("5\nhello\r\n"), "bare lf"},
	{"bare CR after the chunk size", chunks("5\rhello\r\n"), "bare cr"},
	{"two CRs after the chunk size", chunks("5\r\r\nhello\r\n"), "bare cr"},
	{"bare LF after the extension", chunks("5;x\nhello\r\n"), "bare lf"},
	{"bare CR in the extension", chunks("5;x\ry\r\nhello\r\n"), "bare cr"},
	{"NUL in the extension", chunks("5;x\x00\r\nhello\r\n"), "invalid chunk extension"},
	{"extension of 4 KiB", chunks("5;" + strings.Repeat("x", 4096) + "\r\n"), "chunk extension too long"},
	{"chunk shorter than its size", chunks("5\r\nhell\r\n0\r\n\r\n"), "invalid chunk end"},
	{"chunk longer than its size", chunks("5\r\nhello!\r\n"), "invalid chunk end"},
	{"bare LF after the data", chunks("5\r\nhello\n0\r\n\r\n"), "invalid chunk end"},
	{"bare CR after the data", chunks("5\r\nhello\r0\r\n\r\n"), "invalid chunk end"},
	{"bare LF as the last line", chunks("0\r\n\n"), "bare lf"},
	{"bare LF after a trailer", chunks("0\r\nX: y\n\r\n"), "bare lf"},
	{"bare CR in a trailer", chunks("0\r\nX: y\rz\r\n\r\n"), "bare cr"},
	{"bare CR as the last line", chunks("0\r\n\rG"), "bare cr"},
	{"folded trailer", chunks("0\r\nX: y\r\n z\r\n\r\n"), "folded field"},
	{"space before the first trailer", chunks("0\r\n X: y\r\n\r\n"), "folded field"},
	{"space before a trailer's colon", chunks("0\r\nX : y\r\n\r\n"), "space before colon"},
	{"trailer without colon", chunks("0\r\nGET\r\n\r\n"), "invalid field name"},
	{"trailer without name", chunks("0\r\n: y\r\n\r\n"), "invalid field name"},
	{"request for a trailer", chunks("0\r\nGET / HTTP/1.1\r\n\r\n"), "space before colon"},
	{"NUL in a trailer", chunks("0\r\nX: \x00\r\n\r\n"), "invalid field value"},
	{"NUL in a trailer's name", chunks("0\r\nX\x00: y\r\n\r\n"), "invalid field name"},
}

func get(fields string) string {
	return "GET / HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n\r\n"
}

func post(fields string) string {
	return "POST / HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n\r\n0\r\n\r\n"
}

func host(value string) string {
	return "GET / HTTP/1.1\r\nHost: " + value + "\r\n\r\n"
}

func chunks(body string) string {
	return "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n" + body
}

func TestParseRequestRefuses(t *testing.T) {
	for _, tt := range refusedRequests {
		t.Run(tt.name, func(t *testing.T) {
			got := driveRequest(t, b(tt.stream))
			if got.reason != tt.reason {
				t.Fatalf("%q: reason = %q, want %q (outcome %+v)", tt.stream, got.reason, tt.reason, got)
			}
			if len(tt.stream) < 1000 {
				checkSplits(t, b(tt.stream), func(p ...[]byte) outcome { return driveRequest(t, p...) })
			}
		})
	}
}

func TestParseRequestLimits(t *testing.T) {
	start := "GET / HTTP/1.1\r\nHost: a\r\nX: "
	fill := func(n int) string { return start + strings.Repeat("x", n-len(start)-4) + "\r\n\r\n" }
	many := func(n int) string {
		return "GET / HTTP/1.0\r\n" + strings.Repeat("X:\r\n", n) + "\r\n"
	}
	for _, tt := range []struct {
		name, head, reason string
		status             int
	}{
		{"largest head", fill(MaxHead), "", 0},
		{"head of a byte more", fill(MaxHead + 1), "head too large", 431},
		{"endless line", strings.Repeat("x", MaxHead), "head too large", 431},
		{"error beyond the limit", fill(MaxHead+100) + "\n", "head too large", 431},
		{"most fields", many(MaxFields), "", 0},
		{"a field more", many(MaxFields + 1), "too many fields", 431},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var h RequestHead
			n, err := ParseRequest(&h, b(tt.head), 0)
			if got := reasonOf(t, err); got != tt.reason {
				t.Fatalf("reason = %q, want %q", got, tt.reason)
			}
			if err == nil {
				if n != len(tt.head) {
					t.Errorf("length = %d, want %d", n, len(tt.head))
				}
				return
			}
			if got := err.(*Error).Status; got != tt.status {
				t.Errorf("status = %d, want %d", got, tt.status)
			}
			// Arriving in segments changes nothing.
			for seen, size := 0, 1448; ; seen += size {
				end := min(seen+size, len(tt.head))
				_, err := ParseRequest(&h, b(tt.head)[:end], seen)
				if got := reasonOf(t, err); got == tt.reason {
					break
				} else if got != "" || end == len(tt.head) {
					t.Fatalf("in segments: reason at %d = %q, want %q", end, got, tt.reason)
				}
			}
		})
	}
}

func TestParseRequestNeedsMore(t *testing.T) {
	for i := range len(scraperRequest) {
		h := RequestHead{Method: b("stale")}
		n, err := ParseRequest(&h, b(scraperRequest)[:i], 0)
		if n != 0 || err != nil || h.Method != nil {
			t.Fatalf("of %d bytes: ParseRequest = %d, %v, method %q, want 0, nil and nothing", i, n, err, h.Method)
		}
	}
}

// A wrong seen costs time, or the answer until more arrives, but never sense.
func TestParseRequestSeen(t *testing.T) {
	var h RequestHead
	for _, seen := range []int{-1, 0, len(scraperRequest) - 1, len(scraperRequest), len(scraperRequest) + 1, 2 * MaxHead} {
		if n, err := ParseRequest(&h, b(scraperRequest), seen); n != len(scraperRequest) || err != nil {
			t.Errorf("seen %d: ParseRequest = %d, %v, want %d, nil", seen, n, err, len(scraperRequest))
		}
	}
	endless := b(strings.Repeat("x", MaxHead+10))
	for _, seen := range []int{0, 10, MaxHead, MaxHead + 10} {
		if n, err := ParseRequest(&h, endless, seen); n != 0 || reasonOf(t, err) != "head too large" {
			t.Errorf("seen %d: ParseRequest = %d, %v, want the limit", seen, n, err)
		}
	}
}

func TestRequestKind(t *testing.T) {
	for _, tt := range []struct {
		head string
		want Kind
	}{
		{"GET / HTTP/1.0\r\n\r\n", 0},
		{"HEAD / HTTP/1.0\r\n\r\n", ForHEAD},
		{"head / HTTP/1.0\r\n\r\n", 0}, // methods are case-sensitive
		{"CONNECT a:1 HTTP/1.0\r\n\r\n", ForCONNECT},
		{"GET / HTTP/1.1\r\nHost: a\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n", ForUpgrade},
	} {
		var h RequestHead
		if _, err := ParseRequest(&h, b(tt.head), 0); err != nil {
			t.Fatal(err)
		}
		if got := h.Kind(); got != tt.want {
			t.Errorf("%q: kind = %d, want %d", tt.head, got, tt.want)
		}
	}
}

func TestErrorsAreClosedSet(t *testing.T) {
	seen := map[string]bool{}
	for i, r := range Reasons() {
		if r == "" || seen[r] {
			t.Errorf("reason %d is %q: empty or there twice", i, r)
		}
		seen[r] = true
		if got := inResponse(reason(i)); got.Reason != r || got.Status != 502 {
			t.Errorf("in a response: %+v, want %q with status 502", got, r)
		}
		if got := inRequest(reason(i)).Status; got < 400 || got > 599 {
			t.Errorf("%q: status = %d", r, got)
		}
	}
	if got, want := fmt.Sprint(ErrInvalidHost), "http/1: invalid host"; got != want {
		t.Errorf("error text = %q, want %q", got, want)
	}
}
