// SPDX-License-Identifier: Apache-2.0

package heads

import (
	"slices"
	"testing"

	"github.com/egressd/egressd/userspace/h2"
)

// strip cuts the places off events.
func strip(lines []string) []string {
	out := slices.Clone(lines)
	for i, line := range out {
		for k := range line {
			if line[k] == ':' {
				out[i] = line[k+2:]
				break
			}
			if line[k] < '0' || line[k] > '9' {
				break
			}
		}
	}
	return out
}

func TestLateServer(t *testing.T) {
	limited := []string{":status", "429", "retry-after", "17"}
	before := newFrames(false).headers(1, 0, limited...).headers(3, h2.EndStream, ":status", "201", "x-old", "1").data(1, 0, "body")
	joined := len(before.out)
	after := before.headers(5, h2.EndStream, limited...).headers(7, 0, ":status", "200", "x-new", "2").data(7, h2.EndStream, "b").
		headers(9, 0, append(limited, "x-new", "2")...).headers(9, h2.EndStream, ":status", "429"). // trailers, as far as can be known
		headers(11, 0, ":status", "503", "x-old", "2").headers(13, h2.EndStream, ":status", "503", "x-old", "2").
		headers(1, h2.EndStream, "x-sum", "3").out[joined:]
	want := []string{
		"response 5 0 end partial {}", "response 7 200 {x-new=2}", "end 7",
		"response 9 0 partial {x-new=2}", "end 9",
		"response 11 503 partial {}", "response 13 503 end partial {}", "end 1",
	}
	for _, tt := range []struct {
		name   string
		pieces [][]byte
		want   []string
	}{
		{"at a frame", [][]byte{after}, want},
		{"in the middle of a body first", [][]byte{[]byte("some text, nothing more"), make([]byte, 40), after}, want},
		{"with a frame that is cut", [][]byte{after[:12], after[12:]}, want},
		{"http/1 in a body", [][]byte{[]byte("body"), []byte("HTTP/1.1 429 Too Many\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n")}, []string{"response 0 429 end {Retry-After=3 Content-Length=0}"}},
		{"at the start", [][]byte{newFrames(false).headers(1, h2.EndStream, limited...).out}, []string{"response 1 429 end {retry-after=17}"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := events(NewLateServer(), tt.pieces...)
			if err != nil || !slices.Equal(strip(got), tt.want) {
				t.Errorf("got %q, %v\nwant %q", strip(got), err, tt.want)
			}
		})
	}
}

func TestStartsFrames(t *testing.T) {
	for _, tt := range []struct {
		name string
		in   []byte
		want bool
	}{
		{"too little to know", []byte{0, 0, 1, 0, 0, 0, 0, 0}, false},
		{"a header", []byte{0, 0, 1, 0, 1, 0, 0, 0, 1}, true},
		{"half a second one", []byte{0, 0, 1, 0, 1, 0, 0, 0, 1, 'x', 0xff, 0xff}, true},
		{"a second one that cannot be", []byte{0, 0, 1, 0, 1, 0, 0, 0, 1, 'x', 0, 0, 1, 0, 0, 0, 0, 0, 0}, false},
		{"a second one that is unusual", []byte{0, 0, 1, 0, 1, 0, 0, 0, 1, 'x', 0, 0, 1, 0, 2, 0, 0, 0, 1}, false},
		{"zeros", make([]byte, 40), false},
		{"an unknown type", []byte{0, 0, 1, 99, 0, 0, 0, 0, 1, 'x'}, false},
		{"flags that data does not have", []byte{0, 0, 1, 0, 2, 0, 0, 0, 1, 'x'}, false},
		{"a block without its start", []byte{0, 0, 1, 9, 4, 0, 0, 0, 1, 'x'}, false},
		{"a block with it", []byte{0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 9, 4, 0, 0, 0, 1}, true},
		{"text", []byte("Retry-After: 3"), false},
	} {
		if got := startsFrames(tt.in); got != tt.want {
			t.Errorf("%s: %t, want %t", tt.name, got, tt.want)
		}
	}
}

func TestLateClient(t *testing.T) {
	get := []string{":method", "GET", ":scheme", "https", ":authority", "example.com", ":path", "/a"}
	before := newFrames(true).headers(1, 0, get...).data(1, 0, "x")
	joined := len(before.out)
	after := before.headers(1, h2.EndStream, "x-sum", "3").headers(3, h2.EndStream, get...).
		headers(5, h2.EndStream, ":method", "GET", ":scheme", "https", ":authority", "example.com", ":path", "/b").
		headers(7, h2.EndStream, ":method", "GET", ":scheme", "https", ":authority", "other", ":path", "/b").out[joined:]
	for _, tt := range []struct {
		name   string
		pieces [][]byte
		want   []string
	}{
		{"at a frame", [][]byte{[]byte("body"), after}, []string{
			"begin 1", "end 1",
			"begin 3", "request 3 GET host= path= scheme=https end partial {}",
			"begin 5", "request 5 GET host= path=/b scheme=https end partial {}",
			"begin 7", "request 7 GET host=other path=/b scheme=https end {}",
		}},
		{"at the start", [][]byte{newFrames(true).headers(1, h2.EndStream, get...).out}, []string{"begin 1", "request 1 GET host=example.com path=/a scheme=https end {}"}},
		{"http/1", [][]byte{[]byte("GETTING somewhere"), []byte("GET /x HTTP/1.1\r\nHost: h\r\n\r\n")}, []string{"begin 0", "request 0 GET host=h path=/x scheme= end {Host=h}"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := events(NewLateClient(), tt.pieces...)
			if err != nil || !slices.Equal(strip(got), tt.want) {
				t.Errorf("got %q, %v\nwant %q", strip(got), err, tt.want)
			}
		})
	}
}

// Streams that never end take no more memory than a few.
func TestStreamsAreBounded(t *testing.T) {
	var s streams
	for i := range uint32(10 * maxStreams) {
		s.add(2*i + 1)
		s.add(2*i + 1)
	}
	if len(s.list) != maxStreams || !s.has(20*maxStreams-1) || s.has(1) {
		t.Errorf("%d streams, newest %t, oldest %t", len(s.list), s.has(20*maxStreams-1), s.has(1))
	}
	s.remove(20*maxStreams - 1)
	if len(s.list) != maxStreams-1 || s.has(20*maxStreams-1) {
		t.Errorf("%d streams after one was removed", len(s.list))
	}
}
