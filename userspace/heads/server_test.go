// SPDX-License-Identifier: Apache-2.0

package heads

import (
	"errors"
	"math"
	"testing"

	"github.com/egressd/egressd/userspace/h2"
	"github.com/egressd/egressd/userspace/http1"
)

func TestServerOfHTTP1(t *testing.T) {
	for _, tt := range []struct {
		name, stream string
		kinds        []http1.Kind
		want         []string
		err          error
	}{
		{
			"answers of every framing", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello" +
				"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nHTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nTransfer-Encoding: chunked\r\n\r\n" +
				"3;x=y\r\nabc\r\n0\r\n\r\nHTTP/1.1 204 No Content\r\n\r\nHTTP/1.1 408 Late\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
			[]http1.Kind{0, http1.ForHEAD, 0, 0},
			[]string{
				"response 0 100 interim {}", "response 0 200 {Content-Length=5}", "end 0",
				"response 0 200 end {Content-Length=99}",
				"response 0 429 {Retry-After=7 Transfer-Encoding=chunked}", "end 0",
				"response 0 204 end {}",
				"response 0 408 end close {Content-Length=0 Connection=close}",
			},
			nil,
		},
		{
			"an interim answer keeps its request", "HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nHTTP/1.1 304 N\r\n\r\n",
			[]http1.Kind{http1.ForHEAD},
			[]string{"response 0 103 interim {Link=x}", "response 0 200 end {Content-Length=9}", "response 0 304 end {}"}, nil,
		},
		{
			"until close", "HTTP/1.1 200 OK\r\n\r\nall the rest HTTP/1.1 200 OK\r\n\r\n", nil,
			[]string{"response 0 200 close {}"}, nil,
		},
		{
			"connect", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n\x16\x03\x03HTTP/1.1 429", []http1.Kind{http1.ForCONNECT},
			[]string{"response 0 200 tunnel {Content-Length=5}"}, nil,
		},
		{
			"upgrade", "HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\n\r\n\x81\x05hello", []http1.Kind{http1.ForUpgrade},
			[]string{"response 0 101 tunnel {Upgrade=websocket}"}, nil,
		},
		{"upgrade that nobody asked for", "HTTP/1.1 101 Switching\r\n\r\n", nil, nil, ErrDoubt},
		{"body to head", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello\n", []http1.Kind{http1.ForHEAD}, []string{"response 0 200 end {Content-Length=5}"}, ErrDoubt},
		{"not http", "SSH-2.0-x\r\n", nil, nil, errNotHTTP},
		{"not http at all", "\x16\x03\x03\x00", nil, nil, errNotHTTP},
	} {
		t.Run(tt.name, func(t *testing.T) {
			check(t, expecting(tt.kinds...), []byte(tt.stream), tt.want, tt.err)
		})
	}
}

func TestServerOfHTTP2(t *testing.T) {
	limited := []string{":status", "429", "retry-after", "17"}
	cut := newFrames(false)
	block := cut.block(limited...)
	cut.raw(h2.Headers, h2.EndStream, 1, block[:1]).raw(h2.Continuation, h2.EndHeaders, 1, block[1:]).headers(3, h2.EndStream, limited...)
	pushed := newFrames(false)
	block = pushed.block(":method", "GET", ":path", "/style", "x-pushed", "yes")
	pushed.raw(h2.PushPromise, h2.Padded, 1, "\x02\x00\x00\x00\x02"+block[:5]+"\x00\x00").raw(h2.Continuation, h2.EndHeaders, 1, block[5:]).
		headers(2, 0, ":status", "200", "x-pushed", "yes").data(2, h2.EndStream, "p").headers(1, h2.EndStream, ":status", "404", "x-pushed", "yes")
	for _, tt := range []struct {
		name   string
		stream []byte
		want   []string
		err    error
	}{
		{
			"answers that overlap", newFrames(false).raw(h2.Settings, h2.Ack, 0, "").headers(1, 0, ":status", "103", "link", "l").
				headers(1, 0, ":status", "200", "server", "s").headers(3, h2.EndStream, limited...).data(1, 0, "abc").
				headers(5, 0, limited...).data(1, h2.EndStream, "d").data(5, h2.EndStream, "").raw(h2.Ping, 0, 0, "12345678").out,
			[]string{
				"response 1 103 interim {link=l}", "response 1 200 {server=s}", "response 3 429 end {retry-after=17}",
				"response 5 429 {retry-after=17}", "end 1", "end 5",
			},
			nil,
		},
		{
			"trailers", newFrames(false).headers(1, 0, ":status", "200").data(1, 0, "x").headers(1, h2.EndStream, "grpc-status", "8").
				headers(3, h2.EndStream, ":status", "200", "grpc-status", "8").out,
			[]string{"response 1 200 {}", "end 1", "response 3 200 end {grpc-status=8}"}, nil,
		},
		{
			"given up", newFrames(false).headers(1, 0, ":status", "200").raw(h2.RSTStream, 0, 1, "\x00\x00\x00\x02").
				raw(h2.RSTStream, 0, 3, "\x00\x00\x00\x07").raw(h2.GoAway, 0, 0, "\x00\x00\x00\x01\x00\x00\x00\x0b").out,
			[]string{"response 1 200 {}", "reset 1 code 2", "reset 3 code 7", "goaway 1 code 11"}, nil,
		},
		{"continuation", cut.out, []string{"response 1 429 end {retry-after=17}", "response 3 429 end {retry-after=17}"}, nil},
		{"push", pushed.out, []string{"response 2 200 {x-pushed=yes}", "end 2", "response 1 404 end {x-pushed=yes}"}, nil},
		{"an interim answer is never the end", newFrames(false).headers(1, h2.EndStream, ":status", "100").out, []string{"response 1 100 interim {}"}, nil},
		{"no status is no head", newFrames(false).headers(1, 0, "a", "b").headers(3, 0, ":status", "2xx").headers(5, 0).out, nil, nil},
		{"no settings", newFrames(false).headers(1, h2.EndStream, limited...).out[15:], nil, errSettings},
	} {
		t.Run(tt.name, func(t *testing.T) { check(t, expecting(), tt.stream, tt.want, tt.err) })
	}
}

func TestSkippable(t *testing.T) {
	one := func(head string) []byte { return []byte("HTTP/1.1 200 OK\r\n" + head + "\r\n") }
	for _, tt := range []struct {
		name   string
		stream []byte
		want   int64
	}{
		{"before anything", nil, 0},
		{"in a head", []byte("HTTP/1.1 200"), 0},
		{"known length but its last byte", one("Content-Length: 100\r\n"), 99},
		{"one byte", one("Content-Length: 1\r\n"), 0},
		{"chunk", append(one("Transfer-Encoding: chunked\r\n"), "10\r\nabc"...), 13},
		{"chunk size", append(one("Transfer-Encoding: chunked\r\n"), "10"...), 0},
		{"until close", one(""), math.MaxInt64},
		{"after the end", append(one("Content-Length: 1\r\n"), 'x'), 0},
		{"data", newFrames(false).data(1, 0, "0123456789").out[:15+9+3], 7},
		{"data that ends the stream", newFrames(false).data(1, h2.EndStream, "0123456789").out[:15+9+3], 6},
		{"headers", newFrames(false).headers(1, 0, ":status", "429").out[:15+9+1], 0},
		{"what nobody knows", newFrames(false).raw(99, 1, 1, "0123").out[:15+9], 4},
		{"between frames", newFrames(false).data(1, 0, "0123456789").out, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := new(Server)
			if _, err := events(s, tt.stream); err != nil {
				t.Fatal(err)
			}
			if got := s.Skippable(); got != tt.want {
				t.Errorf("Skippable = %d, want %d", got, tt.want)
			}
		})
	}
}

func TestEndsAtEOF(t *testing.T) {
	for _, tt := range []struct {
		name   string
		kind   http1.Kind
		stream []byte
		want   bool
	}{
		{"nothing", 0, nil, true},
		{"half a head", 0, []byte("HTTP/1.1 2"), false},
		{"an interim head", 0, []byte("HTTP/1.1 100 Continue\r\n\r\n"), false},
		{"half a body", 0, []byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\na"), false},
		{"a whole body", 0, []byte("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na"), true},
		{"until close", 0, []byte("HTTP/1.1 200 OK\r\n\r\na"), true},
		{"tunnel", http1.ForCONNECT, []byte("HTTP/1.1 200 OK\r\n\r\na"), true},
		{"frames", 0, newFrames(false).out, true},
		{"half a frame", 0, newFrames(false).out[:12], false},
		{"half a header", 0, newFrames(false).data(1, 0, "").out[:15+4], false},
		{"half a block", 0, newFrames(false).raw(h2.Headers, 0, 1, "").out, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := new(Server)
			s.Expect(tt.kind)
			if _, err := events(s, tt.stream); err != nil {
				t.Fatal(err)
			}
			if got := s.EndsAtEOF(); got != tt.want {
				t.Errorf("EndsAtEOF = %t, want %t", got, tt.want)
			}
		})
	}
}

func TestTooManyExpected(t *testing.T) {
	s := new(Server)
	for range maxExpected {
		s.Expect(0)
	}
	if _, _, err := s.Next([]byte("HTTP")); err != nil {
		t.Fatal(err)
	}
	s.Expect(0) // the first is being answered
	s.Expect(0)
	if _, _, err := s.Next([]byte("/1.1")); !errors.Is(err, errPipeline) || !errors.Is(err, ErrDoubt) {
		t.Errorf("err = %v, want %v", err, errPipeline)
	}
}
