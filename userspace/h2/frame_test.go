// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// follow gives pieces to a framer and a collector and tells what they found.
func follow(pieces [][]byte, limit uint32) (found []string, err error) {
	var f Framer
	var c Collector
	if limit > 0 {
		f.SetMaxFrameSize(limit)
	}
	var payload []byte
	for _, p := range pieces {
		for len(p) > 0 {
			peeked, complete := f.Peek(p)
			n, part, err := f.Next(p)
			if err != nil {
				return found, err
			}
			if n == 0 || n > len(p) {
				return found, fmt.Errorf("%d of %d bytes", n, len(p))
			}
			piece := p[:n]
			p = p[n:]
			h := f.Frame()
			if complete != (part == PartHeader) {
				return found, fmt.Errorf("peek: %t, part %d", complete, part)
			}
			switch part {
			case PartNone:
				continue
			case PartHeader:
				if peeked != h {
					return found, fmt.Errorf("peek: %+v, next: %+v", peeked, h)
				}
				payload = payload[:0]
				if h.Type == Headers || h.Type == PushPromise || h.Type == Continuation {
					if err := c.Begin(h); err != nil {
						return found, err
					}
				}
				if h.Length > 0 {
					continue
				}
				piece = nil
			}
			payload = append(payload, piece...)
			if h.Type == Headers || h.Type == PushPromise || h.Type == Continuation {
				done, err := c.Add(piece, f.Left())
				if err != nil {
					return found, err
				}
				if done {
					b := c.Block()
					found = append(found, fmt.Sprintf("block %+v %d %x %q", b.Frame, b.Promised, b.Priority, b.Block))
				}
				continue
			}
			if f.Left() == 0 {
				found = append(found, fmt.Sprintf("%+v %q", h, payload))
			}
		}
	}
	return found, nil
}

// cuts gives the ways in which the tests cut a stream.
func cuts(stream []byte, yield func(pieces [][]byte)) {
	single := make([][]byte, len(stream))
	for i := range stream {
		yield([][]byte{stream[:i], stream[i:]})
		single[i] = stream[i : i+1]
	}
	yield(single)
}

func checkFollow(t *testing.T, stream []byte, limit uint32) ([]string, error) {
	t.Helper()
	want, wantErr := follow([][]byte{stream}, limit)
	cuts(stream, func(pieces [][]byte) {
		if got, err := follow(pieces, limit); !slices.Equal(got, want) || !errors.Is(err, wantErr) {
			t.Errorf("cut stream: got %q, %v\nwant %q, %v", got, err, want, wantErr)
		}
	})
	return want, wantErr
}

func TestFrames(t *testing.T) {
	stream := slices.Concat(
		raw(Settings, 0, 0, "\x00\x05\x00\x00N \x00\x02\x00\x00\x00\x00"),
		raw(Settings, Ack, 0, ""),
		raw(WindowUpdate, 0, 0, "\x00\x00\x00d"),
		raw(Headers, EndStream|EndHeaders, 1, "abc"),
		raw(Headers, Padded|PriorityFlag, 3, "\x07\x80\x00\x00\x01\x09de\x00\x00\x00\x00\x00\x00\x00"),
		raw(Continuation, 0, 3, ""),
		raw(Continuation, 0, 3, "fgh"),
		raw(Continuation, EndHeaders, 3, "i"),
		raw(Data, 0, 3, "body"),
		raw(Data, EndStream|Padded, 3, "\x02x\x00\x00"),
		raw(Ping, Ack, 0, "\x01\x02\x03\x00\x00\x00\x00\x00"),
		raw(Priority, 0, 5, "\x00\x00\x00\x00\x01"),
		raw(PushPromise, EndHeaders|Padded, 1, "\x01\x80\x00\x00\x02push\x00"), // the reserved bit is set
		raw(RSTStream, 0, 5, "\x00\x00\x00\b"),
		raw(GoAway, 0, 0, "\x00\x00\x00\a\x00\x00\x00\x00bye"),
		raw(0xf0, 0xff, 9, "what is this"),
		raw(Data, EndStream, 9, ""),
	)
	got, err := checkFollow(t, stream, 0)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`{Length:12 Stream:0 Type:4 Flags:0} "\x00\x05\x00\x00N \x00\x02\x00\x00\x00\x00"`,
		`{Length:0 Stream:0 Type:4 Flags:1} ""`,
		`{Length:4 Stream:0 Type:8 Flags:0} "\x00\x00\x00d"`,
		`block {Length:3 Stream:1 Type:1 Flags:5} 0 0000000000 "abc"`,
		`block {Length:15 Stream:3 Type:1 Flags:40} 0 8000000109 "defghi"`,
		`{Length:4 Stream:3 Type:0 Flags:0} "body"`,
		`{Length:4 Stream:3 Type:0 Flags:9} "\x02x\x00\x00"`,
		`{Length:8 Stream:0 Type:6 Flags:1} "\x01\x02\x03\x00\x00\x00\x00\x00"`,
		`{Length:5 Stream:5 Type:2 Flags:0} "\x00\x00\x00\x00\x01"`,
		`block {Length:10 Stream:1 Type:5 Flags:12} 2 0000000000 "push"`,
		`{Length:4 Stream:5 Type:3 Flags:0} "\x00\x00\x00\b"`,
		`{Length:11 Stream:0 Type:7 Flags:0} "\x00\x00\x00\a\x00\x00\x00\x00bye"`,
		`{Length:12 Stream:9 Type:240 Flags:255} "what is this"`,
		`{Length:0 Stream:9 Type:0 Flags:1} ""`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	var settings []string
	ParseSettings(stream[FrameHeaderLen:FrameHeaderLen+12], func(s Setting, v uint32) bool {
		settings = append(settings, fmt.Sprintf("%d=%d", s, v))
		return true
	})
	if want := []string{"5=20000", "2=0"}; !slices.Equal(settings, want) {
		t.Errorf("settings = %q, want %q", settings, want)
	}
}

// raw is a frame as it is on the wire, right or wrong.
func raw(typ FrameType, flags Flags, stream uint32, payload string) []byte {
	h := FrameHeader{Length: uint32(len(payload)), Type: typ, Flags: flags, Stream: stream}
	return append(AppendFrameHeader(nil, h), payload...)
}

func TestFramesThatAreRefused(t *testing.T) {
	long := strings.Repeat("x", DefaultMaxFrameSize+1)
	big := strings.Repeat("x", MaxBlock/4)
	for _, tt := range []struct {
		name   string
		frames [][]byte
		limit  uint32
		want   error
	}{
		{"data of stream 0", [][]byte{raw(Data, 0, 0, "a")}, 0, ErrStream},
		{"headers of stream 0", [][]byte{raw(Headers, EndHeaders, 0, "a")}, 0, ErrStream},
		{"priority of stream 0", [][]byte{raw(Priority, 0, 0, "12345")}, 0, ErrStream},
		{"reset of stream 0", [][]byte{raw(RSTStream, 0, 0, "1234")}, 0, ErrStream},
		{"promise on stream 0", [][]byte{raw(PushPromise, EndHeaders, 0, "1234")}, 0, ErrStream},
		{"settings of a stream", [][]byte{raw(Settings, 0, 1, "")}, 0, ErrStream},
		{"ping of a stream", [][]byte{raw(Ping, 0, 1, "12345678")}, 0, ErrStream},
		{"goaway of a stream", [][]byte{raw(GoAway, 0, 1, "12345678")}, 0, ErrStream},
		{"short reset", [][]byte{raw(RSTStream, 0, 1, "123")}, 0, ErrFrameSize},
		{"short promise", [][]byte{raw(PushPromise, EndHeaders, 1, "123")}, 0, ErrFrameSize},
		{"odd settings", [][]byte{raw(Settings, 0, 0, "12345")}, 0, ErrFrameSize},
		{"acknowledgement with settings", [][]byte{raw(Settings, Ack, 0, "123456")}, 0, ErrFrameSize},
		{"long ping", [][]byte{raw(Ping, 0, 0, "123456789")}, 0, ErrFrameSize},
		{"short goaway", [][]byte{raw(GoAway, 0, 0, "1234567")}, 0, ErrFrameSize},
		{"long window update", [][]byte{raw(WindowUpdate, 0, 0, "12345")}, 0, ErrFrameSize},
		{"priority of another length is the stream's affair", [][]byte{raw(Priority, 0, 1, "1")}, 0, nil},
		{"long data", [][]byte{raw(Data, 0, 1, long)}, 0, ErrFrameTooLong},
		{"long data that is allowed", [][]byte{raw(Data, 0, 1, long)}, DefaultMaxFrameSize + 1, nil},
		{"long unknown frame", [][]byte{raw(77, 0, 1, long)}, 0, ErrFrameTooLong},
		{"continuation of nothing", [][]byte{raw(Continuation, EndHeaders, 1, "a")}, 0, ErrContinuation},
		{"continuation of another stream", [][]byte{raw(Headers, 0, 1, "a"), raw(Continuation, EndHeaders, 3, "a")}, 0, ErrContinuation},
		{"continuation after the end", [][]byte{raw(Headers, EndHeaders, 1, "a"), raw(Continuation, EndHeaders, 1, "a")}, 0, ErrContinuation},
		{"interrupted block", [][]byte{raw(Headers, 0, 1, "a"), raw(Data, 0, 1, "a")}, 0, ErrContinuation},
		{"block interrupted by an unknown frame", [][]byte{raw(PushPromise, 0, 1, "1234"), raw(77, 0, 0, "a")}, 0, ErrContinuation},
		{"all padding", [][]byte{raw(Headers, EndHeaders|Padded, 1, "\x03abc")}, 0, nil},
		{"too much padding", [][]byte{raw(Headers, EndHeaders|Padded, 1, "\x04abc")}, 0, ErrPadding},
		{"padding over priority", [][]byte{raw(Headers, EndHeaders|Padded|PriorityFlag, 1, "\x0112345")}, 0, ErrPadding},
		{"padding without a length", [][]byte{raw(Headers, EndHeaders|Padded, 1, "")}, 0, ErrFrameSize},
		{"no room for priority", [][]byte{raw(Headers, EndHeaders|PriorityFlag, 1, "1234")}, 0, ErrFrameSize},
		{"no room for the promised stream", [][]byte{raw(PushPromise, EndHeaders|Padded, 1, "\x00123")}, 0, ErrFrameSize},
		{"long block", [][]byte{raw(Headers, 0, 1, big), raw(Continuation, 0, 1, big), raw(Continuation, 0, 1, big), raw(Continuation, EndHeaders, 1, big)}, 0, nil},
		{"too long block", [][]byte{
			raw(Headers, 0, 1, big), raw(Continuation, 0, 1, big), raw(Continuation, 0, 1, big),
			raw(Continuation, 0, 1, big), raw(Continuation, 0, 1, "a"),
		}, 0, ErrBlockTooLong},
		{"too long headers", [][]byte{raw(Headers, EndHeaders, 1, strings.Repeat(big, 4)+"x")}, HardMaxFrameSize, ErrBlockTooLong},
		{"too long headers by their header", [][]byte{raw(Headers, EndHeaders, 1, strings.Repeat(big, 5))[:FrameHeaderLen]}, HardMaxFrameSize, ErrBlockTooLong},
		{"much too long headers", [][]byte{raw(Headers, EndHeaders, 1, strings.Repeat(big, 5))}, HardMaxFrameSize, ErrBlockTooLong},
	} {
		t.Run(tt.name, func(t *testing.T) {
			stream := slices.Concat(tt.frames...)
			var err error
			if len(stream) < 200 {
				_, err = checkFollow(t, stream, tt.limit)
			} else {
				_, err = follow([][]byte{stream}, tt.limit)
			}
			if !errors.Is(err, tt.want) {
				t.Errorf("err = %v, want %v", err, tt.want)
			}
		})
	}
}

func TestErrorsOfTheFramerStay(t *testing.T) {
	var f Framer
	bad := raw(Data, 0, 0, "a")
	for range 2 {
		if n, _, err := f.Next(bad); n != 0 || !errors.Is(err, ErrStream) {
			t.Fatalf("Next = %d, %v", n, err)
		}
		bad = raw(Ping, 0, 0, "12345678")
	}
}

func TestReservedBit(t *testing.T) {
	if h := ParseFrameHeader([]byte{1, 2, 3, 4, 5, 0xff, 0xff, 0xff, 0xff}); h != (FrameHeader{0x010203, 1<<31 - 1, 4, 5}) {
		t.Errorf("header %+v", h)
	}
}

func TestSkippedPayload(t *testing.T) {
	var f Framer
	frame := raw(Data, 0, 1, "0123456789")
	if n, part, err := f.Next(frame[:FrameHeaderLen]); n != FrameHeaderLen || part != PartHeader || err != nil || f.Left() != 10 {
		t.Fatalf("Next = %d, %d, %v; %d left", n, part, err, f.Left())
	}
	f.Skip(7)
	if f.Between() || f.Left() != 3 {
		t.Fatalf("%d left after 7 of 10", f.Left())
	}
	if n, part, err := f.Next([]byte("789x")); n != 3 || part != PartPayload || err != nil || !f.Between() {
		t.Fatalf("Next = %d, %d, %v; %d left", n, part, err, f.Left())
	}
}

func TestPrefaceLen(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want int
	}{
		{"", 0},
		{"P", 1},
		{"POST / HTTP/1.1", 1},
		{"PRI * HTTP/2.0\r\n", 16},
		{"PRI * HTTP/1.1\r\n", 11},
		{Preface, len(Preface)},
		{Preface + "\x00", len(Preface)},
		{"GET", 0},
	} {
		if got := PrefaceLen([]byte(tt.in)); got != tt.want {
			t.Errorf("PrefaceLen(%q) = %d, want %d", tt.in, got, tt.want)
		}
	}
}

func FuzzFrames(f *testing.F) {
	f.Add(slices.Concat(raw(Settings, 0, 0, ""), raw(Headers, Padded|PriorityFlag, 1, "\x01\x00\x00\x00\x03\x07ab"), raw(Continuation, EndHeaders, 1, "c")), uint(12), uint(3))
	f.Add(slices.Concat(raw(Data, EndStream, 1, "abc"), raw(RSTStream, 0, 3, "1234"), raw(200, 3, 3, "zz")), uint(9), uint(1))
	f.Add(slices.Concat(raw(PushPromise, 0, 1, "\x00\x00\x00\x02x"), raw(Continuation, 0, 1, ""), raw(Continuation, EndHeaders, 1, "")), uint(2), uint(20))
	f.Fuzz(func(t *testing.T, stream []byte, i, j uint) {
		want, wantErr := follow([][]byte{stream}, 0)
		a := int(i % uint(len(stream)+1))
		c := a + int(j%uint(len(stream)-a+1))
		got, err := follow([][]byte{stream[:a], stream[a:c], stream[c:]}, 0)
		if !slices.Equal(got, want) || !errors.Is(err, wantErr) {
			t.Fatalf("cut stream: got %q, %v\nwant %q, %v", got, err, want, wantErr)
		}
	})
}
