// SPDX-License-Identifier: Apache-2.0

package http1

import (
	"math"
	"strings"
	"testing"
)

func TestBodyLimits(t *testing.T) {
	for _, tt := range []struct {
		name, stream, reason string
	}{
		{"largest extension", "0;" + strings.Repeat("x", maxChunkLine-1) + "\r\n\r\n", ""},
		{"extension of a byte more", "0;" + strings.Repeat("x", maxChunkLine) + "\r\n\r\n", "chunk extension too long"},
		{"extensions count for each chunk", strings.Repeat("1;"+strings.Repeat("x", maxChunkLine-1)+"\r\nx\r\n", 3) + "0\r\n\r\n", ""},
		{"largest chunk size", "7fffffffffffffff\r\n", ""},
		{"size of 16 digits", "0000000000000001\r\nx\r\n0000000000000000\r\n\r\n", ""},
		{"largest trailers", "0\r\nX:" + strings.Repeat("y", MaxHead-6) + "\r\n\r\n", ""},
		{"largest trailers after an extension", "0;xyz\r\nX:" + strings.Repeat("y", MaxHead-6) + "\r\n\r\n", ""},
		{"trailers of a byte more", "0\r\nX:" + strings.Repeat("y", MaxHead-5) + "\r\n\r\n", "trailers too large"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, strict := range []bool{true, false} {
				body := chunkedBody(strict)
				n, done, err := body.Scan(b(tt.stream))
				if got := reasonOf(t, err); got != tt.reason {
					t.Fatalf("strict %t: reason = %q, want %q", strict, got, tt.reason)
				}
				if complete := strings.HasSuffix(tt.stream, "\r\n\r\n"); err == nil && (n != len(tt.stream) || done != complete) {
					t.Errorf("strict %t: Scan = %d, %t, want %d, %t", strict, n, done, len(tt.stream), complete)
				}
			}
		})
	}
}

func TestBodyErrorStays(t *testing.T) {
	for _, strict := range []bool{true, false} {
		body := chunkedBody(strict)
		n, _, first := body.Scan(b("5\r\nhello!\r\n0\r\n\r\n"))
		if n != 8 || reasonOf(t, first) != "invalid chunk end" {
			t.Fatalf("Scan = %d, %v, want the error at 8", n, first)
		}
		for _, p := range []string{"", "\r\n0\r\n\r\n"} {
			if n, done, err := body.Scan(b(p)); n != 0 || done || err != first {
				t.Errorf("Scan(%q) after the error = %d, %t, %v, want 0, false, %v", p, n, done, err, first)
			}
		}
		if body.Done() || body.EndsAtEOF() || body.Remaining() != 0 {
			t.Errorf("after the error: Done %t, EndsAtEOF %t, Remaining %d", body.Done(), body.EndsAtEOF(), body.Remaining())
		}
	}
}

func TestBodyAfterEnd(t *testing.T) {
	none, length, chunked := Body{}, lengthBody(2, true), chunkedBody(true)
	for _, tt := range []struct {
		name   string
		body   *Body
		stream string
		n      int
	}{
		{"none", &none, "GET", 0},
		{"length", &length, "abGET", 2},
		{"chunked", &chunked, "0\r\n\r\nGET", 5},
	} {
		n, done, err := tt.body.Scan(b(tt.stream))
		if n != tt.n || !done || err != nil {
			t.Errorf("%s: Scan = %d, %t, %v, want %d, true, nil", tt.name, n, done, err, tt.n)
		}
		for _, p := range []string{"", "GET"} {
			if n, done, err := tt.body.Scan(b(p)); n != 0 || !done || err != nil {
				t.Errorf("%s: Scan(%q) after the end = %d, %t, %v, want 0, true, nil", tt.name, p, n, done, err)
			}
		}
	}
}

func TestBodySkip(t *testing.T) {
	body := lengthBody(10, false)
	if got := body.Remaining(); got != 10 {
		t.Errorf("Remaining = %d, want 10", got)
	}
	if body.Skip(4) || body.Remaining() != 6 {
		t.Errorf("after 4 of 10: Remaining = %d, want 6 and not done", body.Remaining())
	}
	if !body.Skip(100) || body.Remaining() != 0 || !body.Done() {
		t.Errorf("after all: Remaining = %d, Done = %t", body.Remaining(), body.Done())
	}

	body = chunkedBody(true)
	if _, _, err := body.Scan(b("a\r\n012")); err != nil {
		t.Fatal(err)
	}
	if got := body.Remaining(); got != 7 {
		t.Errorf("Remaining of the chunk = %d, want 7", got)
	}
	if body.Skip(7) || body.Remaining() != 0 {
		t.Error("a chunk's end is not the body's")
	}
	if n, done, err := body.Scan(b("\r\n0\r\n\r\n")); n != 7 || !done || err != nil {
		t.Errorf("Scan after Skip = %d, %t, %v, want 7, true, nil", n, done, err)
	}

	body = untilCloseBody()
	if body.Skip(1<<40) || body.Remaining() != math.MaxUint64 || !body.EndsAtEOF() {
		t.Errorf("until close: Remaining = %d, EndsAtEOF = %t", body.Remaining(), body.EndsAtEOF())
	}
}
