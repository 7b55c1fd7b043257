// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/userspace/h2"
)

// talk2 makes up what a client and an origin of HTTP/2 say, all of it by chance:
// some of it right, some of it with a fault.
func talk2(rnd *rand.Rand, faults bool) (client, server []byte) {
	c, s := newWire(nil, nil), newWire(nil, nil)
	some := func(n int) string { return strings.Repeat("x", rnd.IntN(n)) }
	pad := func(f h2.Flags, p string) (h2.Flags, string) {
		if rnd.IntN(4) > 0 {
			return f, p
		}
		n := rnd.IntN(20)
		return f | h2.Padded, string([]byte{byte(n)}) + p + strings.Repeat("\x00", n)
	}
	cut := func(flags h2.Flags, stream uint32, block string) (frames string) {
		typ := h2.Headers
		if flags, block = pad(flags, block); flags&h2.Padded != 0 {
			return frame(typ, flags|h2.EndHeaders, stream, block)
		}
		if rnd.IntN(4) == 0 {
			flags |= h2.PriorityFlag
			block = u32(rnd.Uint32()) + "\x07" + block
		}
		for len(block) > 1 && rnd.IntN(3) == 0 {
			n := 6 + rnd.IntN(len(block))
			if n >= len(block) {
				break
			}
			frames += frame(typ, flags, stream, block[:n])
			typ, flags, block = h2.Continuation, 0, block[n:]
		}
		return frames + frame(typ, flags|h2.EndHeaders, stream, block)
	}
	odd := func(b *strings.Builder, stream uint32) {
		switch rnd.IntN(9) {
		case 0:
			b.WriteString(frame(h2.Settings, 0, 0, "\x00\x03\x00\x00\x00\x64\x00\x04\x00\x01\x00\x00"))
		case 1:
			b.WriteString(frame(h2.Ping, h2.Flags(rnd.IntN(2)), 0, "12345678"))
		case 2:
			b.WriteString(frame(h2.WindowUpdate, 0, stream*rnd.Uint32N(2), u32(rnd.Uint32N(1<<16))))
		case 3:
			b.WriteString(frame(h2.Priority, 0, stream, u32(rnd.Uint32())+"\x01"))
		case 4:
			b.WriteString(frame(h2.FrameType(16+rnd.IntN(200)), h2.Flags(rnd.IntN(256)), stream*rnd.Uint32N(2), some(300)))
		case 5:
			b.WriteString(rst(stream, h2.Cancel))
		case 6:
			b.WriteString(frame(h2.Settings, h2.Ack, 0, ""))
		}
	}
	var up, down strings.Builder
	up.WriteString(frame(h2.Settings, 0, 0, "\x00\x01\x00\x00\x10\x00"))
	down.WriteString(frame(h2.Settings, 0, 0, ""))
	stream := uint32(1)
	for range 1 + rnd.IntN(12) {
		flags := h2.Flags(0)
		body := rnd.IntN(2) == 0
		if !body {
			flags = h2.EndStream
		}
		up.WriteString(cut(flags, stream, c.block(":method", "GET", ":scheme", "http", ":authority", "origin.test", ":path", "/"+some(2000), "x", some(100), "y"+some(5), some(3000))))
		odd(&up, stream)
		for body {
			body = rnd.IntN(3) > 0
			flags, data := pad(0, some(20000))
			if !body {
				flags |= h2.EndStream
			}
			up.WriteString(frame(h2.Data, flags, stream, data))
		}
		odd(&down, stream)
		down.WriteString(cut(0, stream, s.block(":status", fmt.Sprint(200+100*rnd.IntN(4)), "x", some(4000))))
		for range rnd.IntN(4) {
			down.WriteString(frame(h2.Data, 0, stream, some(16000)))
		}
		if rnd.IntN(2) == 0 {
			down.WriteString(frame(h2.Data, h2.EndStream, stream, ""))
		} else {
			down.WriteString(cut(h2.EndStream, stream, s.block("trailer", some(10))))
		}
		stream += 2 * (1 + rnd.Uint32N(3))
	}
	spoil := func(b []byte) []byte {
		if !faults {
			return b
		}
		for range max(0, rnd.IntN(6)-3) {
			switch at := rnd.IntN(len(b)); rnd.IntN(3) {
			case 0:
				b[at] ^= 1 << rnd.IntN(8)
			case 1:
				b = append(b[:at:at], b[min(len(b), at+1+rnd.IntN(30)):]...)
			default:
				b = b[:at+1]
			}
		}
		return b
	}
	return append([]byte(h2.Preface), spoil([]byte(up.String()))...), spoil([]byte(down.String()))
}

// like2 has a client and an origin talk at once through b, in pieces, and
// compares what came with what was said.
func like2(t *testing.T, b *bench, ln *net.TCPListener, seed uint64) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 2))
	said, answered := talk2(rnd, true)
	slow := rnd.IntN(4) == 0
	refused := refusals(b)
	say := func(c *net.TCPConn, text []byte, rnd *rand.Rand) {
		for len(text) > 0 {
			n := len(text)
			if rnd.IntN(3) > 0 {
				n = min(n, 1+rnd.IntN(3000))
			}
			if slow {
				time.Sleep(time.Duration(rnd.IntN(200)) * time.Microsecond)
			}
			if _, err := c.Write(text[:n]); err != nil {
				return
			}
			text = text[n:]
		}
		_ = c.CloseWrite()
	}
	flow := policy.Flow{Dest: ln.Addr().(*net.TCPAddr).AddrPort(), Exit: policy.DirectExit, UID: uint32(os.Geteuid())}
	client, err := net.DialTCP("tcp4", nil, net.TCPAddrFromAddrPort(netip.AddrPortFrom(b.hook.token(flow), b.port)))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	client.SetDeadline(time.Now().Add(10 * time.Second))
	go say(client, said, rand.New(rand.NewPCG(seed, 3)))
	got := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(client)
		got <- b
	}()
	ln.SetDeadline(time.Now().Add(10 * time.Second))
	server, err := ln.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	server.SetDeadline(time.Now().Add(10 * time.Second))
	go say(server, answered, rand.New(rand.NewPCG(seed, 4)))
	saw, err := io.ReadAll(server)
	heard := <-got
	if refusals(b) != refused {
		return // what was spoilt could be read in two ways
	}
	if !bytes.Equal(saw, said) || err != nil {
		t.Errorf("seed %d: the origin got %d bytes of %d, %v; the first %d are right", seed, len(saw), len(said), err, common(saw, said))
	}
	if !bytes.Equal(heard, answered) {
		t.Errorf("seed %d: the client got %d bytes of %d; the first %d are right", seed, len(heard), len(answered), common(heard, answered))
	}
}

// refusals is how many requests were refused as they were ambiguous.
func refusals(b *bench) (n uint64) {
	for _, label := range []string{"test", policy.OtherLabel} {
		n += b.engine.Tally(label, policy.DirectExit).Refused(policy.RefusedFraming)
	}
	return n
}

// common is how many bytes at the start of both are the same.
func common(a, b []byte) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

func newLike2(t testing.TB) (*bench, *net.TCPListener) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return start(t, everyone(plenty)), ln.(*net.TCPListener)
}

// Where nothing is held, both sides get every byte as it was sent, whether it is
// HTTP/2 or not.
func TestH2LikeDirect(t *testing.T) {
	b, ln := newLike2(t)
	for seed := range uint64(600) {
		if like2(t, b, ln, seed); t.Failed() {
			return
		}
	}
	waitFor(t, "the connections to end", func() bool { return b.conns.Load() == 0 })
	for _, l := range b.engine.Lanes() {
		if got := l.InFlight.Load(); got != 0 {
			t.Errorf("%d requests of %s are under way in the end", got, l.ID())
		}
	}
}

// FuzzH2LikeDirect looks for more.
func FuzzH2LikeDirect(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(seed)
	}
	b, ln := newLike2(f)
	f.Fuzz(func(t *testing.T, seed uint64) { like2(t, b, ln, seed) })
}

// byStream is what a client sent on each stream, in words, and the streams in
// the order of their first header block. 0 is the connection.
func byStream(t *testing.T, b []byte) (said map[uint32][]string, order []uint32) {
	t.Helper()
	said = map[uint32][]string{}
	dec := hpack.NewDecoder(4096, nil)
	b = b[len(h2.Preface):]
	var blocks h2.Collector
	for len(b) > 0 {
		f := h2.ParseFrameHeader(b)
		payload := b[h2.FrameHeaderLen : h2.FrameHeaderLen+int(f.Length)]
		b = b[h2.FrameHeaderLen+int(f.Length):]
		word := fmt.Sprintf("%d %d %x", f.Type, f.Flags, payload)
		switch f.Type {
		case h2.Headers, h2.Continuation:
			if f.Type == h2.Headers && said[f.Stream] == nil {
				order = append(order, f.Stream)
			}
			if err := blocks.Begin(f); err != nil {
				t.Fatal(err)
			}
			done, err := blocks.Add(payload, 0)
			if err != nil {
				t.Fatal(err)
			}
			if !done {
				continue
			}
			hb := blocks.Block()
			fields, err := dec.DecodeFull(hb.Block)
			if err != nil {
				t.Fatalf("header block on stream %d: %v", f.Stream, err)
			}
			word = fmt.Sprint(hb.Frame.EndsStream(), hb.Priority, fields)
		case h2.Priority:
			continue // may come at any time
		}
		said[f.Stream] = append(said[f.Stream], word)
	}
	return said, order
}

// Where requests are held or refused, the origin gets of each stream all frames
// in their order, or none; and the streams in the order of the client.
func TestH2HeldLikeDirect(t *testing.T) {
	for name, shape := range map[string]func(*policy.Budget){
		"held":    func(r *policy.Budget) { r.Rate = perSecond(400) },
		"refused": func(r *policy.Budget) { r.Rate, r.Queue.MaxWait = perSecond(400), 3*time.Millisecond },
		"dropped": func(r *policy.Budget) { r.Rate, r.Queue.Max, r.OnFull = perSecond(400), 0, policy.Drop },
	} {
		t.Run(name, func(t *testing.T) {
			rule := everyone(plenty)
			shape(rule)
			b := start(t, rule)
			ln, err := net.Listen("tcp4", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { ln.Close() })
			refused := 0
			for seed := range uint64(150) {
				rnd := rand.New(rand.NewPCG(seed, 5))
				said, _ := talk2(rnd, false)
				client := b.connect(ln.Addr().(*net.TCPAddr).AddrPort())
				go func() {
					_, _ = client.Write(said)
					_ = client.CloseWrite()
				}()
				go func() { _, _ = io.Copy(io.Discard, client) }()
				server, err := ln.Accept()
				if err != nil {
					t.Fatal(err)
				}
				if _, err := io.WriteString(server, frame(h2.Settings, 0, 0, "")+frame(h2.WindowUpdate, 0, 0, u32(1<<30))); err != nil {
					t.Fatal(err)
				}
				server.SetDeadline(time.Now().Add(10 * time.Second))
				saw, err := io.ReadAll(server)
				if err != nil {
					t.Fatalf("seed %d: after %d bytes of %d: %v", seed, len(saw), len(said), err)
				}
				server.Close()
				want, streams := byStream(t, said)
				got, order := byStream(t, saw)
				if !slices.IsSorted(order) {
					t.Fatalf("seed %d: streams %v out of order", seed, order)
				}
				if !slices.Equal(got[0], want[0]) {
					t.Fatalf("seed %d: of the connection %q came, %q was sent", seed, got[0], want[0])
				}
				for _, id := range streams {
					reset := slices.ContainsFunc(want[id], func(w string) bool { return strings.HasPrefix(w, fmt.Sprint(h2.RSTStream, " ")) })
					switch {
					case got[id] == nil && (reset || name != "held"):
						refused++
					case !slices.Equal(got[id], want[id]):
						t.Fatalf("seed %d: of stream %d came %.2000q, was sent %.2000q", seed, id, got[id], want[id])
					}
				}
			}
			if refused == 0 {
				t.Error("none was refused or cancelled")
			}
			waitFor(t, "the connections to end", func() bool { return b.conns.Load() == 0 })
			for _, l := range b.engine.Lanes() {
				if got := l.InFlight.Load() + l.Waiting.Load(); got != 0 {
					t.Errorf("%d requests of %s are left in the end", got, l.ID())
				}
			}
		})
	}
}
