// SPDX-License-Identifier: Apache-2.0

package sight

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/rlimit"
)

// headers are the functions of bpf/sight_*.h, called by the tests.
type headers struct {
	Choose *ebpf.Program `ebpf:"test_choose"`
	Hello  *ebpf.Program `ebpf:"test_hello"`
	Cases  *ebpf.Map     `ebpf:"choose_cases"`
}

func loadHeaderTests(t testing.TB) *headers {
	t.Helper()
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	spec, err := loadHeaders()
	if err != nil {
		t.Fatal(err)
	}
	h := new(headers)
	if err := spec.LoadAndAssign(h, nil); err != nil {
		t.Fatalf("%+v", err)
	}
	t.Cleanup(func() {
		h.Choose.Close()
		h.Hello.Close()
		h.Cases.Close()
	})
	return h
}

// chooser is one direction of a connection of whose bytes the programs choose.
type chooser struct {
	t   testing.TB
	h   *headers
	c   headersChooseCase
	end uint64 // bytes moved
}

func (h *headers) chooser(t testing.TB, dir Dir) *chooser {
	return &chooser{t: t, h: h, c: headersChooseCase{Dir: uint8(dir)}}
}

// run lets the programs choose of what is at an address.
func (c *chooser) run(at uint64, total uint32) {
	c.t.Helper()
	c.c.At, c.c.Offset, c.c.Total, c.c.Len = at, c.end, total, 0
	if err := c.h.Cases.Put(uint32(0), &c.c); err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.h.Choose.Run(&ebpf.RunOptions{}); err != nil {
		c.t.Fatal(err)
	}
	if err := c.h.Cases.Lookup(uint32(0), &c.c); err != nil {
		c.t.Fatal(err)
	}
}

// call moves b in one call and returns the part that is shown, and where it
// begins in the direction.
func (c *chooser) call(b []byte) (at uint64, shown []byte) {
	c.t.Helper()
	var pin runtime.Pinner
	defer pin.Unpin()
	pin.Pin(unsafe.SliceData(b))
	start := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b))))
	c.run(start, uint32(len(b)))
	from := c.c.At - start
	if from > uint64(len(b)) || from+uint64(c.c.Len) > uint64(len(b)) || c.c.Offset != c.end+from || uint64(c.c.Total) != uint64(len(b))-from {
		c.t.Fatalf("of %d bytes at %d: shown %d at %d, %d left", len(b), c.end, c.c.Len, c.c.Offset, c.c.Total)
	}
	c.end += uint64(len(b))
	return c.c.Offset, b[from : from+uint64(c.c.Len)]
}

func TestHeadsOfHTTP1(t *testing.T) {
	h := loadHeaderTests(t)
	long := strings.Repeat("x", 3000)
	for _, tt := range []struct {
		name  string
		dir   Dir
		calls []string
		shown []int
	}{
		{"response", Read, []string{"HTTP/1.1 429 \r\n\r\n"}, []int{17}},
		{"response of 1.0", Read, []string{"HTTP/1.0 200 OK\r\n\r\n"}, []int{19}},
		{"in single bytes", Read, []string{"H", "T", "T", "P", "/", "1", ".", "1", " 429 \r\n"}, []int{1, 1, 1, 1, 1, 1, 1, 1, 7}},
		{"no response", Read, []string{"HTTP/2 429", "220 smtp ready\r\n", "\x00\x01"}, []int{0, 0, 0}},
		{"head and body", Read, []string{"HTTP/1.1 200 \r\n\r\n", long, long, long}, []int{17, 3000, MaxHead - 3017, 0}},
		{"the next head", Read, []string{"HTTP/1.1 200 \r\n\r\n", long, long, long, "HTTP/1.1 200 \r\n", long}, []int{17, 3000, MaxHead - 3017, 0, 15, 3000}},
		{"one long call", Read, []string{"HTTP/1.1 200 \r\n" + long + long}, []int{MaxHead}},
		{"request", Write, []string{"GET / HTTP/1.1\r\n", "M-SEARCH * HTTP/1.1\r\n", "PROPFIND / HTTP/1.1\r\n"}, []int{16, 21, 21}},
		{"other requests", Write, []string{"OPTIONS * HTTP/1.1\r\n", "GET http://a/ HTTP/1.1\r\n", "CONNECT a:443 HTTP/1.1\r\n"}, []int{20, 24, 24}},
		{"a method alone", Write, []string{"POST", " ", "/a HTTP/1.1\r\n"}, []int{4, 1, 13}},
		{"no request", Write, []string{"get / HTTP/1.1", "A1 LOGIN me secret", "EHLO me\r\n", "AUTH PLAIN abc\r\n", "\x16\x03\x01", "GETTING"}, []int{0, 0, 0, 0, 0, 7}},
		{"response of a server", Write, []string{"HTTP/1.1 200 OK\r\n"}, []int{0}},
		{"request to a server", Read, []string{"GET / HTTP/1.1\r\n"}, []int{0}},
		{"preface to a server", Read, []string{"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x00\x00\x00\x04\x00\x00\x00\x00\x00"}, []int{0, 0}},
	} {
		c := h.chooser(t, tt.dir)
		for i, call := range tt.calls {
			if _, shown := c.call([]byte(call)); len(shown) != tt.shown[i] {
				t.Errorf("%s: of call %d, %.20q, %d bytes are shown, want %d", tt.name, i, call, len(shown), tt.shown[i])
			}
		}
	}
}

// frame is one of HTTP/2.
func frame(kind, flags byte, stream uint32, payload int) []byte {
	b := []byte{byte(payload >> 16), byte(payload >> 8), byte(payload), kind, flags}
	b = binary.BigEndian.AppendUint32(b, stream)
	return append(b, bytes.Repeat([]byte{0xff}, payload)...)
}

const http2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// payloads marks what is payload of DATA in a whole direction.
func payloads(b []byte) []bool {
	is := make([]bool, len(b))
	for at := 0; at+9 <= len(b); {
		if bytes.HasPrefix(b[at:], []byte(http2Preface)) {
			at += len(http2Preface)
			continue
		}
		length := int(b[at])<<16 | int(b[at+1])<<8 | int(b[at+2])
		data := b[at+3] == 0
		at += 9
		for i := at; data && i < min(len(b), at+length); i++ {
			is[i] = true
		}
		at += length
	}
	return is
}

// TestFramesOfHTTP2 cuts streams of frames anywhere: only payload of DATA is
// not shown, and long payload is not.
func TestFramesOfHTTP2(t *testing.T) {
	h := loadHeaderTests(t)
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 300 {
		stream := append([]byte(http2Preface), frame(4, 0, 0, 18)...)
		for range random.IntN(30) {
			switch random.IntN(4) {
			case 0:
				stream = append(stream, frame(1, 4, 1, random.IntN(300))...)
			case 1:
				stream = append(stream, frame(8, 0, 0, 4)...)
			case 2:
				stream = append(stream, frame(0, 0, 1, random.IntN(20))...)
			case 3:
				stream = append(stream, frame(0, 0, 1, random.IntN(30000))...)
			}
		}
		hidden := payloads(stream)
		longest := 1 + random.IntN(20000)
		c := h.chooser(t, Write)
		at, showed := 0, 0
		for first := true; at < len(stream); first = false {
			n := min(len(stream)-at, 1+random.IntN(longest))
			if first {
				n = max(n, min(len(stream), len(http2Preface)))
			}
			from, shown := c.call(stream[at : at+n])
			for i := at; i < at+n; i++ {
				is := uint64(i) >= from && uint64(i) < from+uint64(len(shown))
				if !is && !hidden[i] && i-int(from) < MaxFrames {
					t.Fatalf("round %d: byte %d, which is no payload, is not shown by the call of %d at %d", round, i, n, at)
				}
			}
			at += n
			showed += len(shown)
		}
	}

	c := h.chooser(t, Write)
	c.call([]byte(http2Preface))
	if _, shown := c.call(frame(0, 0, 1, 16000)); len(shown) != 9 {
		t.Errorf("of a frame of DATA %d bytes are shown, want its header", len(shown))
	}
	if _, shown := c.call(frame(0, 0, 1, 100)[:50]); len(shown) != 9 {
		t.Errorf("of a frame of DATA that goes on %d bytes are shown, want its header", len(shown))
	}
	rest := append(bytes.Repeat([]byte{0xff}, 59), frame(1, 4, 3, 40)...)
	if at, shown := c.call(rest); len(shown) != 49 || at != c.end-49 {
		t.Errorf("of payload and HEADERS %d bytes at %d are shown, want 49", len(shown), at)
	}
}

// TestFramesLost: what cannot be frames is shown, as far as there is room.
func TestFramesLost(t *testing.T) {
	h := loadHeaderTests(t)
	c := h.chooser(t, Write)
	c.call([]byte(http2Preface))
	c.call(bytes.Repeat([]byte{0xee}, 50))
	for _, n := range []int{1, 9, 20000} {
		if _, shown := c.call(frame(0, 0, 1, n)); len(shown) != min(n+9, MaxFrames) {
			t.Errorf("of %d bytes %d are shown", n+9, len(shown))
		}
	}
}

// FuzzChoose gives bytes of any kind in calls of any length: what is shown
// lies within the call, and memory that cannot be read shows nothing.
func FuzzChoose(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), uint16(5), true)
	f.Add([]byte("HTTP/1.1 429 Too Many Requests\r\n\r\n"), uint16(3), false)
	f.Add(append([]byte(http2Preface), frame(0, 0, 1, 100)...), uint16(30), true)
	f.Add(frame(1, 4, 1, 30), uint16(7), false)
	h := loadHeaderTests(f)
	f.Fuzz(func(t *testing.T, b []byte, cut uint16, write bool) {
		dir := Read
		if write {
			dir = Write
		}
		c := h.chooser(t, dir)
		for at := 0; at < len(b); {
			n := min(len(b)-at, 1+int(cut))
			c.call(b[at : at+n])
			at += n
		}
		if c.run(8, 100); c.c.Conn.Http2 == 0 && c.c.Len != 0 {
			t.Errorf("of memory that is not there %d bytes are shown", c.c.Len)
		}
	})
}

func TestHello(t *testing.T) {
	h := loadHeaderTests(t)
	hello := func(change func(b []byte)) headersHelloCase {
		var c headersHelloCase
		// A record of 200 bytes with a ClientHello of 196.
		copy(c.Bytes[:], "\x16\x03\x01\x00\xc8\x01\x00\x00\xc4\x03\x03")
		for i := range 32 {
			c.Bytes[11+i] = byte(i)
		}
		if change != nil {
			change(c.Bytes[:])
		}
		return c
	}
	for name, tt := range map[string]struct {
		change func(b []byte)
		want   bool
	}{
		"a ClientHello":         {nil, true},
		"of TLS 1.2":            {func(b []byte) { b[2] = 3 }, true},
		"application data":      {func(b []byte) { b[0] = 23 }, false},
		"a ServerHello":         {func(b []byte) { b[5] = 2 }, false},
		"lengths that differ":   {func(b []byte) { b[8]++ }, false},
		"another version":       {func(b []byte) { b[1] = 2 }, false},
		"another hello version": {func(b []byte) { b[9] = 0xfe }, false},
		"too short":             {func(b []byte) { b[4], b[8] = 37, 33 }, false},
	} {
		c := hello(tt.change)
		if _, err := h.Hello.Run(&ebpf.RunOptions{Context: &c, ContextOut: &c}); err != nil {
			t.Fatal(err)
		}
		if (c.Found != 0) != tt.want || tt.want && c.At != 11 {
			t.Errorf("%s: got %d at %d", name, c.Found, c.At)
		}
	}
}
