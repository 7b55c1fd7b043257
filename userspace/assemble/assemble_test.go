// SPDX-License-Identifier: Apache-2.0

package assemble

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// tap shows what a client reads and writes, as probes would: at most most bytes
// of each call.
type tap struct {
	net.Conn
	mu       *sync.Mutex
	show     func(*Piece)
	id       uint64
	most     int
	seq, off [2]uint64
	clock    *uint64
}

func (c *tap) piece(write bool, b []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	way := 0
	if write {
		way = 1
	}
	data := b
	if len(data) > c.most && !bytes.HasPrefix(b, []byte("PRI ")) {
		data = data[:c.most]
	}
	*c.clock++
	c.show(&Piece{Began: *c.clock, Ended: *c.clock, PID: 7, Conn: c.id, Write: write, Cookie: 100 + c.id, Source: "nested", Seq: c.seq[way], Offset: c.off[way], Total: len(b), Data: bytes.Clone(data)})
	c.seq[way]++
	c.off[way] += uint64(len(b))
}

func (c *tap) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.piece(false, b[:n])
	}
	return n, err
}

func (c *tap) Write(b []byte) (int, error) {
	c.piece(true, b)
	return c.Conn.Write(b)
}

// lab is an origin that says in each answer what was asked, and a client whose
// connections are tapped.
type lab struct {
	*Assembler
	mu      sync.Mutex
	got     []*Answer
	client  *http.Client
	origin  *httptest.Server
	spoil   func(*Piece) bool // false drops a piece
	conns   uint64
	dropped int
	clock   uint64
}

func newLab(t *testing.T, h2 bool, most int) *lab {
	l := &lab{spoil: func(*Piece) bool { return true }}
	l.Assembler = New(func(a *Answer) { l.got = append(l.got, a) })
	l.origin = httptest.NewServer(nil)
	t.Cleanup(l.origin.Close)
	serve := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("X-Asked", r.URL.Path)
		w.Header().Set("Set-Cookie", "a=secret")
		n, _ := strconv.Atoi(r.URL.Query().Get("n"))
		if strings.HasPrefix(r.URL.Path, "/limited") {
			w.Header().Set("Retry-After", "17")
			w.WriteHeader(429)
		}
		_, _ = w.Write(bytes.Repeat([]byte("HTTP/1.1 200 OK\r\n\r\n"), n/19))
		_, _ = w.Write(body[:min(len(body), 10)])
	})
	dial := func(_ context.Context, network, _ string) (net.Conn, error) {
		c, err := net.Dial(network, l.origin.Listener.Addr().String())
		if err != nil {
			return nil, err
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.conns++
		return &tap{clock: &l.clock, Conn: c, mu: &l.mu, id: l.conns, most: most, show: func(p *Piece) {
			if l.spoil(p) {
				l.Take(p)
			} else {
				l.dropped++
			}
		}}, nil
	}
	if h2 {
		l.origin.Config.Handler = http.HandlerFunc(serve)
		p := new(http.Protocols)
		p.SetUnencryptedHTTP2(true)
		l.origin.Close()
		l.origin = httptest.NewUnstartedServer(serve)
		l.origin.Config.Protocols = p
		l.origin.Start()
		t.Cleanup(l.origin.Close)
		l.client = &http.Client{Transport: &http.Transport{Protocols: p, DialContext: dial}}
		return l
	}
	l.origin.Config.Handler = serve
	l.client = &http.Client{Transport: &http.Transport{DialContext: dial}}
	return l
}

func (l *lab) ask(t *testing.T, method, path string, up, down int) {
	t.Helper()
	req, err := http.NewRequest(method, "http://origin.test"+path+"?secret=1&n="+strconv.Itoa(down), strings.NewReader(strings.Repeat("GET / HTTP/1.1\r\n\r\n", up/18)))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := l.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
}

// right counts answers with what they belong to, and fails on any that is given
// what it does not belong to.
func (l *lab) right(t *testing.T) (right int) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.got {
		asked := ""
		for _, f := range a.Fields {
			switch strings.ToLower(f[0]) {
			case "x-asked":
				asked = f[1]
			case "set-cookie":
				t.Error("a cookie was passed on")
			}
		}
		if a.Path != "" && asked != "" && a.Path != asked {
			t.Errorf("an answer to %s was given to %s", asked, a.Path)
		}
		if a.Status != 0 && asked != "" && (a.Status == 429) != strings.HasPrefix(asked, "/limited") {
			t.Errorf("status %d of %s", a.Status, asked)
		}
		if a.Path == asked && a.Host == "origin.test" && a.Status != 0 && a.Cookie > 100 {
			right++
		}
	}
	return right
}

var methods = []string{"GET", "POST", "HEAD", "PUT"}

// Everything is found however much of bodies is not shown.
func TestWhole(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		for _, most := range []int{4 << 10, 1 << 20} {
			if h2 && most < 16<<10 {
				most = 16 << 10
			}
			t.Run(fmt.Sprint(h2, most), func(t *testing.T) {
				l := newLab(t, h2, most)
				n := 0
				for i := range 40 {
					path := "/ok" + strconv.Itoa(i)
					if i%3 == 0 {
						path = "/limited" + strconv.Itoa(i)
					}
					l.ask(t, methods[i%4], path, i*700, i*3000)
					n++
				}
				if got := l.right(t); got != n {
					t.Errorf("%d of %d right, %d resyncs", got, n, l.Resyncs)
				}
			})
		}
	}
}

// Where pieces are lost something is missing, and nothing is wrong.
func TestLost(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		for seed := range uint64(20) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			l := newLab(t, h2, 16<<10)
			l.spoil = func(*Piece) bool { return rnd.IntN(10) > 0 }
			for i := range 30 {
				path := "/ok" + strconv.Itoa(i)
				if i%3 == 0 {
					path = "/limited" + strconv.Itoa(i)
				}
				l.ask(t, methods[i%4], path, i*100, i*1000)
			}
			got := l.right(t)
			if l.dropped > 0 && got == 30 && l.Resyncs == 0 {
				t.Errorf("seed %d: %d pieces lost and nobody noticed", seed, l.dropped)
			}
			if !h2 && got == 0 {
				t.Errorf("seed %d: nothing seen after %d losses", seed, l.dropped)
			}
		}
	}
}

// A connection that is joined in its middle is understood from the next message
// on.
func TestLate(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		l := newLab(t, h2, 16<<10)
		skip := true
		base := map[bool]uint64{}
		seq := map[bool]uint64{}
		l.spoil = func(p *Piece) bool {
			if skip {
				base[p.Write], seq[p.Write] = p.Offset+uint64(p.Total), p.Seq+1
				return false
			}
			p.Offset -= base[p.Write] // as far as it was seen
			p.Seq -= seq[p.Write]
			return true
		}
		for range 3 {
			l.ask(t, "GET", "/before", 0, 5000)
		}
		time.Sleep(20 * time.Millisecond) // for frames that follow an answer
		l.mu.Lock()
		skip = false
		l.mu.Unlock()
		for i := range 5 {
			l.ask(t, "GET", "/limited"+strconv.Itoa(i), 0, 5000)
		}
		l.right(t)
		l.mu.Lock()
		if len(l.got) < 4 {
			t.Errorf("HTTP/2 %v: %d answers seen of 5", h2, len(l.got))
		}
		for _, a := range l.got {
			if a.Status != 429 && !(a.Status == 0 && a.Partial) {
				t.Errorf("HTTP/2 %v: status %d, partial %v", h2, a.Status, a.Partial)
			}
		}
		l.mu.Unlock()
	}
}

// Where a connection took the place of another whose end was not noticed, nothing
// of that is left.
func TestReplaced(t *testing.T) {
	var got []*Answer
	a := New(func(x *Answer) { got = append(got, x) })
	var seq, off [2]uint64
	say := func(write bool, text string) {
		way := 0
		if write {
			way = 1
		}
		a.Take(&Piece{Conn: 1, Write: write, Seq: seq[way], Offset: off[way], Total: len(text), Data: []byte(text)})
		seq[way]++
		off[way] += uint64(len(text))
	}
	say(true, "GET /lost HTTP/1.1\r\nHost: a\r\n\r\n")
	seq, off = [2]uint64{}, [2]uint64{}
	say(true, "GET /new HTTP/1.1\r\nHost: a\r\n\r\n")
	say(false, "HTTP/1.1 429 No\r\nContent-Length: 0\r\n\r\n")
	if len(got) != 1 || got[0].Path != "/new" || got[0].Status != 429 {
		t.Errorf("got %+v", got)
	}
}

// An answer that is shown before its request is given it all the same, if that
// was sent before the answer was read; the next ones get theirs.
func TestEarly(t *testing.T) {
	var got []*Answer
	a := New(func(x *Answer) { got = append(got, x) })
	var seq, off [2]uint64
	say := func(write bool, began, ended uint64, text string) {
		way := 0
		if write {
			way = 1
		}
		a.Take(&Piece{Conn: 1, Write: write, Began: began, Ended: ended, Seq: seq[way], Offset: off[way], Total: len(text), Data: []byte(text)})
		seq[way]++
		off[way] += uint64(len(text))
	}
	ask := func(began, ended uint64, path string) {
		say(true, began, ended, "GET "+path+" HTTP/1.1\r\nHost: a\r\n\r\n")
	}
	answer := func(at uint64, status string) {
		say(false, at, at, "HTTP/1.1 "+status+" X\r\nContent-Length: 0\r\n\r\n")
	}
	answer(20, "201") // the call that sent the request returns late
	ask(10, 21, "/1")
	ask(30, 31, "/2")
	answer(40, "202")
	answer(60, "203")
	ask(50, 61, "/3")
	answer(70, "204") // to what is never shown
	ask(80, 81, "/5")
	answer(90, "205")
	answer(100, "206")
	a.Close(0, 1)
	want := []string{"201/1", "202/2", "203/3", "204", "205/5", "206"}
	for i, x := range got {
		if i >= len(want) || want[i] != strconv.Itoa(x.Status)+x.Path {
			t.Errorf("answer %d: %d %q", i, x.Status, x.Path)
		}
	}
	if len(got) != len(want) || len(a.early) != 0 {
		t.Errorf("%d answers, want %d; %d wait", len(got), len(want), len(a.early))
	}
	seq, off = [2]uint64{}, [2]uint64{}
	answer(110, "207")
	time.Sleep(2 * earlyTime)
	a.Take(&Piece{Conn: 2, Write: true, Total: 1, Data: []byte("G")})
	if len(got) != len(want)+1 || len(a.early) != 0 {
		t.Errorf("an answer whose request is never shown waits: %d emitted", len(got))
	}
}

// Connections are forgotten, by their end or for want of room.
func TestBounds(t *testing.T) {
	a := New(func(*Answer) {})
	piece := func(id uint64) *Piece {
		return &Piece{PID: 1, Conn: id, Write: true, Total: 3, Data: []byte("GET")}
	}
	for i := range uint64(maxConns + 10) {
		a.Take(piece(i))
	}
	if a.Len() != maxConns {
		t.Errorf("%d connections are followed", a.Len())
	}
	if a.conns[key{1, 9}] != nil || a.conns[key{1, 10}] == nil {
		t.Error("it is not the oldest that were forgotten")
	}
	for i := range uint64(maxConns + 10) {
		a.Close(1, i)
	}
	if a.Len() != 0 || a.newest != nil || a.oldest != nil {
		t.Errorf("%d connections are left", a.Len())
	}
}

// FuzzTake feeds pieces that do not fit together.
func FuzzTake(f *testing.F) {
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), []byte("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc"), uint64(1))
	f.Add([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"), []byte("\x00\x00\x00\x04\x00\x00\x00\x00\x00"), uint64(7))
	f.Fuzz(func(t *testing.T, up, down []byte, seed uint64) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		a := New(func(a *Answer) {
			if a.Status < 0 || a.Status > 999 {
				t.Errorf("status %d", a.Status)
			}
		})
		var seq, off [2]uint64
		for rest := [2][]byte{down, up}; len(rest[0])+len(rest[1]) > 0; {
			way := rnd.IntN(2)
			n := min(len(rest[way]), rnd.IntN(40))
			data := rest[way][:n]
			rest[way] = rest[way][n:]
			if rnd.IntN(10) > 0 {
				shown := data[:min(len(data), rnd.IntN(50))]
				a.Take(&Piece{Conn: 1, Write: way == 1, Seq: seq[way], Offset: off[way], Total: len(data), Data: shown})
			}
			seq[way]++
			off[way] += uint64(rnd.IntN(3)*rnd.IntN(100) + n)
		}
	})
}
