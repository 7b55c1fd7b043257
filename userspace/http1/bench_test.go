// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"strings"
	"testing"
	"time"
)

var postRequest = "POST /upload HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n5\r\nhello\r\n0\r\nX: y\r\n\r\n"

func TestNoAllocations(t *testing.T) {
	request, upload, response := b(scraperRequest), b(postRequest), b(typicalResponse)
	bad := b(post("Content-Length: 4\r\nTransfer-Encoding: chunked"))
	date := time.Date(2025, 11, 29, 14, 52, 11, 0, time.UTC)
	refusal := make([]byte, 0, 1024)
	var h RequestHead
	var r ResponseHead
	for _, tt := range []struct {
		name string
		f    func()
	}{
		{"request", func() { _, _ = ParseRequest(&h, request, 0) }},
		{"request with a body", func() {
			n, _ := ParseRequest(&h, upload, 0)
			_, _, _ = h.Body.Scan(upload[n:])
		}},
		{"refused request", func() { _, _ = ParseRequest(&h, bad, 0) }},
		{"response", func() {
			n, _ := ParseResponse(&r, response, 0, 0)
			_, _, _ = r.Body.Scan(response[n:])
		}},
		{"fields", func() {
			count := 0
			Fields(response, func(name, value []byte) bool {
				count += len(value)
				return true
			})
		}},
		{"field", func() { _, _ = Field(response, "server") }},
		{"refusal", func() {
			refusal = AppendRefusal(refusal[:0], &Refusal{Status: 429, RetryAfter: time.Second, Error: "http_request_denied", Details: "x", Date: date, Body: "y"})
		}},
	} {
		if got := testing.AllocsPerRun(100, tt.f); got != 0 {
			t.Errorf("%s: %v allocations, want 0", tt.name, got)
		}
	}
}

func BenchmarkParseRequest(bm *testing.B) {
	head := b(scraperRequest)
	bm.SetBytes(int64(len(head)))
	bm.ReportAllocs()
	var h RequestHead
	for bm.Loop() {
		if n, err := ParseRequest(&h, head, 0); n != len(head) {
			bm.Fatal(n, err)
		}
	}
}

func BenchmarkParseResponse(bm *testing.B) {
	head := b(typicalResponse)
	bm.SetBytes(int64(len(head)))
	bm.ReportAllocs()
	var h ResponseHead
	for bm.Loop() {
		if n, err := ParseResponse(&h, head, 0, 0); n == 0 {
			bm.Fatal(err)
		}
	}
}

func BenchmarkFields(bm *testing.B) {
	head := b(typicalResponse)
	bm.ReportAllocs()
	for bm.Loop() {
		count := 0
		Fields(head, func(name, value []byte) bool {
			count++
			return true
		})
		if count == 0 {
			bm.Fatal("no fields")
		}
	}
}

func BenchmarkBodyLength(bm *testing.B) {
	p := make([]byte, 64<<10)
	bm.SetBytes(int64(len(p)))
	body := lengthBody(1<<62, false)
	for bm.Loop() {
		if _, done, err := body.Scan(p); done || err != nil {
			bm.Fatal(done, err)
		}
	}
}

func BenchmarkBodyChunked(bm *testing.B) {
	p := b(strings.Repeat("1000\r\n"+strings.Repeat("x", 0x1000)+"\r\n", 16))
	bm.SetBytes(int64(len(p)))
	for bm.Loop() {
		body := chunkedBody(false)
		if n, _, err := body.Scan(p); n != len(p) || err != nil {
			bm.Fatal(n, err)
		}
	}
}
