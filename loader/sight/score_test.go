// SPDX-License-Identifier: Apache-2.0

package sight_test

import (
	"bytes"
	"io"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/egressd/egressd/loader/sight"
)

// score counts heads by whether their socket was told rightly.
type score struct{ right, wrong, none int }

func (s *score) add(want, got uint64) {
	switch got {
	case want:
		s.right++
	case 0:
		s.none++
	default:
		s.wrong++
	}
}

// marks is what a run of clients is judged by.
type marks struct {
	requests, responses score
	// randoms are events with a client random; wrong is not the one that the
	// origin saw on that socket.
	randoms score
	sources [5]int // of data, by the proof for the cookie
}

// conn is one direction of one connection of one process.
type connDir struct {
	pid  uint32
	conn uint64
	dir  sight.Dir
}

// stream is HTTP/2 plaintext in one direction, from its beginning.
type stream struct {
	buf    bytes.Buffer
	end    int // of the last call
	cookie uint64
}

// fill stands in for what was not shown, which must be payload of DATA: in
// anything else zeros would not be understood.
func (s *stream) fill(end int) {
	s.buf.Write(make([]byte, max(0, end-s.buf.Len())))
}

// judge checks events against what the origin knows. A gap in the numbering is
// an error, and so is a pointer that serves two connections without an end of
// the first.
func judge(t testing.TB, o *origin, events []sight.Event) marks {
	t.Helper()
	var m marks
	randoms := o.randoms()
	streams := make(map[connDir]*stream)
	next := make(map[connDir]uint64)
	cookies := make(map[connDir]uint64) // with the direction left out
	finish := func(key connDir) {
		if s := streams[key]; s != nil {
			s.judge(t, o, key.dir, &m)
			delete(streams, key)
		}
		delete(next, key)
	}
	for _, ev := range events {
		key := connDir{ev.PID, ev.Conn, ev.Dir}
		switch ev.Kind {
		case sight.Close:
			finish(connDir{ev.PID, ev.Conn, sight.Read})
			finish(connDir{ev.PID, ev.Conn, sight.Write})
			delete(cookies, connDir{ev.PID, ev.Conn, 0})
			continue
		case sight.Hello:
			for _, dir := range []sight.Dir{sight.Read, sight.Write} {
				if next[connDir{ev.PID, ev.Conn, dir}] != 0 {
					t.Errorf("pid %d conn %#x begins anew without an end", ev.PID, ev.Conn)
				}
			}
			continue
		}
		whole := connDir{ev.PID, ev.Conn, 0}
		if before := cookies[whole]; ev.Cookie != 0 && before != 0 && before != ev.Cookie {
			t.Errorf("pid %d conn %#x went from socket %d to %d without an end", ev.PID, ev.Conn, before, ev.Cookie)
		}
		if ev.Cookie != 0 {
			cookies[whole] = ev.Cookie
		}
		if ev.Seq != next[key] {
			t.Errorf("pid %d conn %#x dir %d: event %d after %d", ev.PID, ev.Conn, ev.Dir, ev.Seq, next[key])
		}
		next[key] = ev.Seq + 1
		m.sources[ev.CookieSource]++
		if ev.HasRandom && ev.Cookie != 0 {
			if ev.Random == randoms[ev.Cookie] {
				m.randoms.right++
			} else {
				m.randoms.wrong++
			}
		}
		if ev.HTTP2 {
			s := streams[key]
			if s == nil {
				s = &stream{}
				streams[key] = s
			}
			if int(ev.Offset) < s.buf.Len() {
				t.Errorf("conn %#x dir %d: HTTP/2 at %d, before %d", ev.Conn, ev.Dir, ev.Offset, s.buf.Len())
				continue
			}
			s.fill(int(ev.Offset))
			s.buf.Write(ev.Data)
			s.end = int(ev.Offset) + ev.Total
			s.cookie = ev.Cookie
			continue
		}
		head := string(ev.Data)
		if ev.Dir == sight.Read && strings.HasPrefix(head, "HTTP/1.1 429 ") {
			m.requestOrResponse(t, o, ev.Dir, "", field(head, cookieField), ev.Cookie)
		} else if method, rest, ok := strings.Cut(head, " "); ok && ev.Dir == sight.Write && method == "GET" {
			path, _, _ := strings.Cut(rest, " ")
			m.requestOrResponse(t, o, ev.Dir, path, "", ev.Cookie)
		}
	}
	for key := range streams {
		finish(key)
	}
	return m
}

func (m *marks) requestOrResponse(t testing.TB, o *origin, dir sight.Dir, path, told string, got uint64) {
	t.Helper()
	if dir == sight.Write {
		want, ok := o.cookieOf(path)
		if !ok {
			t.Errorf("request for %s, which the origin never saw", path)
			return
		}
		m.requests.add(want, got)
		return
	}
	want, err := strconv.ParseUint(told, 10, 64)
	if err != nil {
		t.Errorf("response with the cookie %q", told)
		return
	}
	m.responses.add(want, got)
}

func field(head, name string) string {
	for line := range strings.Lines(head) {
		if n, v, ok := strings.Cut(line, ":"); ok && strings.EqualFold(n, name) {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// judge reads the frames of one direction.
func (s *stream) judge(t testing.TB, o *origin, dir sight.Dir, m *marks) {
	t.Helper()
	s.fill(s.end)
	if dir == sight.Write && !strings.HasPrefix(string(s.buf.Next(len(http2.ClientPreface))), http2.ClientPreface) {
		t.Error("HTTP/2 without a preface")
	}
	f := http2.NewFramer(io.Discard, &s.buf)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			if s.buf.Len() != 0 {
				t.Errorf("HTTP/2 with %d bytes left: %v", s.buf.Len(), err)
			}
			return
		}
		h, ok := frame.(*http2.MetaHeadersFrame)
		if !ok {
			continue
		}
		var told string
		for _, f := range h.RegularFields() {
			if strings.EqualFold(f.Name, cookieField) {
				told = f.Value
			}
		}
		if path := h.PseudoValue("path"); dir == sight.Write || told != "" {
			m.requestOrResponse(t, o, dir, path, told, s.cookie)
		}
	}
}
