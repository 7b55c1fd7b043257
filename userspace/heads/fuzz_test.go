// SPDX-License-Identifier: Apache-2.0

package heads

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/userspace/h2"
	"github.com/egressd/egressd/userspace/http1"
)

// invariant wants the same events of a stream however it is cut and whatever of
// it is passed over unseen.
func invariant(t *testing.T, fresh func() reader, stream []byte, i, j uint) []string {
	t.Helper()
	whole, wholeErr := events(fresh(), stream)
	if wholeErr != nil && !errors.Is(wholeErr, ErrDoubt) {
		t.Fatalf("whole: %v", wholeErr)
	}
	a := int(i % uint(len(stream)+1))
	c := a + int(j%uint(len(stream)-a+1))
	got, err := events(fresh(), stream[:a], stream[a:c], stream[c:])
	if !slices.Equal(got, whole) || (err == nil) != (wholeErr == nil) {
		t.Fatalf("cut at %d and %d: %q, %v\nwhole: %q, %v", a, c, got, err, whole, wholeErr)
	}
	got, _, err = skipping(fresh(), stream, 1+int(j%50))
	if !slices.Equal(got, whole) || (err == nil) != (wholeErr == nil) {
		t.Fatalf("skipping: %q, %v\nwhole: %q, %v", got, err, whole, wholeErr)
	}
	return whole
}

func FuzzClient(f *testing.F) {
	get := []string{":method", "GET", ":scheme", "https", ":authority", "a", ":path", "/a?b"}
	f.Add(newFrames(true).headers(1, h2.EndStream, get...).headers(3, 0, get...).data(3, h2.EndStream, "abc").out, uint(20), uint(30))
	f.Add(newFrames(true).headers(1, 0, get...).headers(1, h2.EndStream, "x", "y").raw(h2.RSTStream, 0, 1, "1234").out, uint(60), uint(1))
	f.Add([]byte("POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\nHost: x\r\n\r\n"), uint(3), uint(50))
	f.Add([]byte("PUT /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n\r\nPRI * HTTP/2.0\r\n\r\n"), uint(57), uint(9))
	f.Fuzz(func(t *testing.T, stream []byte, i, j uint) {
		begun := false
		for _, line := range invariant(t, newClient, stream, i, j) {
			switch {
			case strings.HasPrefix(line, "begin"):
				if begun {
					t.Fatal("begun twice")
				}
				begun = true
			case strings.Contains(line, ": request"):
				if !begun {
					t.Fatalf("%s without a begin", line)
				}
				begun = false
			}
		}
		_, _ = events(NewLateClient(), stream[:i%uint(len(stream)+1)], stream[i%uint(len(stream)+1):]) // it must not panic
	})
}

func FuzzServer(f *testing.F) {
	f.Add(newFrames(false).headers(1, 0, ":status", "200", "a", "b").data(1, h2.EndStream, "abc").headers(3, h2.EndStream, ":status", "429", "a", "b").out, uint8(0), uint(20), uint(30))
	f.Add(newFrames(false).headers(1, 0, ":status", "103").headers(1, 0, ":status", "200").headers(1, h2.EndStream, "x", "y").out, uint8(0), uint(60), uint(1))
	f.Add([]byte("HTTP/1.1 100 C\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 429 T\r\nRetry-After: 1\r\n\r\n"), uint8(0), uint(3), uint(50))
	f.Add([]byte("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"), uint8(1), uint(57), uint(9))
	f.Fuzz(func(t *testing.T, stream []byte, kind uint8, i, j uint) {
		invariant(t, expecting(http1.Kind(kind&7), http1.Kind(kind>>3&7)), stream, i, j)
		_, _ = events(NewLateServer(), stream[:i%uint(len(stream)+1)], stream[i%uint(len(stream)+1):]) // it must not panic
	})
}
