// SPDX-License-Identifier: Apache-2.0

package heads

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"

	"github.com/egressd/egressd/userspace/h2"
	"github.com/egressd/egressd/userspace/http1"
)

// describe gives an event as text.
func describe(ev Event) string {
	flag := func(set bool, name string) string {
		if set {
			return " " + name
		}
		return ""
	}
	var fields []string
	add := func(name, value []byte) bool {
		fields = append(fields, fmt.Sprintf("%s=%s", name, value))
		return true
	}
	out := fmt.Sprintf("?%d", ev.Kind)
	switch ev.Kind {
	case Begin:
		return fmt.Sprintf("begin %d", ev.Stream)
	case End:
		return fmt.Sprintf("end %d", ev.Stream)
	case Reset:
		return fmt.Sprintf("reset %d code %d", ev.Stream, ev.Code)
	case GoAway:
		return fmt.Sprintf("goaway %d code %d", ev.Stream, ev.Code)
	case RequestHead:
		r := ev.Request
		r.Fields(add)
		out = fmt.Sprintf("request %d %s host=%s path=%s scheme=%s", r.Stream, r.Method, r.Host, r.Path, r.Scheme) +
			flag(r.Protocol != "", "protocol="+r.Protocol) + flag(r.Kind != 0, fmt.Sprintf("kind=%d", r.Kind)) +
			flag(r.End, "end") + flag(r.Partial, "partial") + flag(r.Malformed, "malformed") + flag(r.IdempotencyKey, "key")
		if r.Stream != ev.Stream {
			out += " on another stream"
		}
	case ResponseHead:
		r := ev.Response
		r.Fields(add)
		out = fmt.Sprintf("response %d %d", r.Stream, r.Status) +
			flag(r.Interim, "interim") + flag(r.End, "end") + flag(r.Partial, "partial") + flag(r.Tunnel, "tunnel") + flag(r.Close, "close")
		if r.Stream != ev.Stream {
			out += " on another stream"
		}
	}
	return out + " {" + strings.Join(fields, " ") + "}"
}

// reader is a Client or a Server.
type reader interface {
	Next(b []byte) (n int, ev Event, err error)
	Skippable() int64
	Skip(n int64)
}

// events gives pieces to r and returns what it tells, with the place of each
// event but Begin, which may come some bytes late where the stream was cut. The
// memory of each piece is used again, as a caller would.
func events(r reader, pieces ...[]byte) (out []string, err error) {
	at := 0
	var memory []byte
	for _, p := range pieces {
		memory = append(memory[:0], p...)
		b := memory
		for {
			n, ev, err := r.Next(b)
			if err != nil {
				return out, err
			}
			if n < 0 || n > len(b) {
				return out, fmt.Errorf("%d of %d bytes", n, len(b))
			}
			at += n
			b = b[n:]
			switch ev.Kind {
			case None:
				if len(b) > 0 {
					return out, fmt.Errorf("%d of %d bytes are left without an event", len(b), len(p))
				}
			case Begin:
				out = append(out, describe(ev))
				continue
			default:
				out = append(out, fmt.Sprintf("%d: %s", at, describe(ev)))
				continue
			}
			break
		}
		for i := range memory {
			memory[i] = 0xee
		}
	}
	return out, nil
}

// skipping is events for a stream of which nothing is looked at that may be
// skipped, in pieces of at most size bytes.
func skipping(r reader, stream []byte, size int) (out []string, skipped int, err error) {
	at := 0
	for at < len(stream) {
		if n := min(r.Skippable(), int64(len(stream)-at)); n > 0 {
			r.Skip(n)
			at += int(n)
			skipped += int(n)
			continue
		}
		n, ev, err := r.Next(stream[at:min(at+size, len(stream))])
		if err != nil {
			return out, skipped, err
		}
		at += n
		switch ev.Kind {
		case None:
		case Begin:
			out = append(out, describe(ev))
		default:
			out = append(out, fmt.Sprintf("%d: %s", at, describe(ev)))
		}
	}
	return out, skipped, nil
}

// check wants these events however the stream is cut. fresh makes a reader.
func check(t *testing.T, fresh func() reader, stream []byte, want []string, wantErr error) {
	t.Helper()
	compare := func(how string, got []string, err error) {
		t.Helper()
		stripped := make([]string, len(got))
		for i, line := range got {
			stripped[i] = line
			if _, after, ok := strings.Cut(line, ": "); ok && line[0] <= '9' {
				stripped[i] = after
			}
		}
		if !slices.Equal(stripped, want) || !errors.Is(err, wantErr) || err != nil && !errors.Is(err, ErrDoubt) {
			t.Fatalf("%s: got\n  %s\n%v\nwant\n  %s\n%v", how, strings.Join(stripped, "\n  "), err, strings.Join(want, "\n  "), wantErr)
		}
	}
	whole, err := events(fresh(), stream)
	compare("whole", whole, err)
	single := make([][]byte, len(stream))
	same := func(how string, got []string, err error) {
		t.Helper()
		if !slices.Equal(got, whole) || !errors.Is(err, wantErr) {
			t.Fatalf("%s: got\n  %s\n%v\nwant\n  %s", how, strings.Join(got, "\n  "), err, strings.Join(whole, "\n  "))
		}
	}
	for i := range stream {
		got, err := events(fresh(), stream[:i], stream[i:])
		same(fmt.Sprintf("cut at %d", i), got, err)
		single[i] = stream[i : i+1]
	}
	got, err := events(fresh(), single...)
	same("byte by byte", got, err)
	for _, size := range []int{1, 7, len(stream) + 1} {
		got, _, err := skipping(fresh(), stream, size)
		same(fmt.Sprintf("skipping, %d bytes at once", size), got, err)
	}
}

// frames writes one direction of HTTP/2.
type frames struct {
	buf bytes.Buffer
	enc *hpack.Encoder
	out []byte
}

func newFrames(preface bool) *frames {
	f := new(frames)
	f.enc = hpack.NewEncoder(&f.buf)
	if preface {
		f.out = append(f.out, h2.Preface...)
	}
	return f.raw(h2.Settings, 0, 0, "\x00\x03\x00\x00\x00\x64")
}

func (f *frames) raw(typ h2.FrameType, flags h2.Flags, stream uint32, payload string) *frames {
	f.out = h2.AppendFrameHeader(f.out, h2.FrameHeader{Length: uint32(len(payload)), Type: typ, Flags: flags, Stream: stream})
	f.out = append(f.out, payload...)
	return f
}

// block encodes fields, given as names and values.
func (f *frames) block(fields ...string) string {
	f.buf.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = f.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]}) // to memory
	}
	return f.buf.String()
}

func (f *frames) headers(stream uint32, flags h2.Flags, fields ...string) *frames {
	return f.raw(h2.Headers, flags|h2.EndHeaders, stream, f.block(fields...))
}

func (f *frames) data(stream uint32, flags h2.Flags, payload string) *frames {
	return f.raw(h2.Data, flags, stream, payload)
}

func newClient() reader { return new(Client) }

// expecting makes a Server that was told of requests of these kinds.
func expecting(kinds ...http1.Kind) func() reader {
	return func() reader {
		s := new(Server)
		for _, k := range kinds {
			s.Expect(k)
		}
		return s
	}
}
