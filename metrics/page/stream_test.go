// SPDX-License-Identifier: Apache-2.0

package page

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// event is one of a stream.
type event struct{ id, kind, data string }

// reader reads events, strictly: a line that no event has fails the test.
type reader struct {
	t     testing.TB
	lines *bufio.Reader
	body  io.Closer
}

func open(t testing.TB, server *httptest.Server, query string) *reader {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/api/v1/stream"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { resp.Body.Close() })
	if got := resp.Header.Get("Content-Type"); resp.StatusCode != http.StatusOK || got != "text/event-stream" {
		t.Fatalf("stream%s: got %s, %s", query, resp.Status, got)
	}
	return &reader{t, bufio.NewReader(resp.Body), resp.Body}
}

// next is the next event; false at the end of the stream.
func (r *reader) next() (e event, ok bool) {
	r.t.Helper()
	for {
		line, err := r.lines.ReadString('\n')
		if err == io.EOF && line == "" {
			return e, false
		}
		if err != nil {
			r.t.Fatalf("stream: %v after %q", err, line)
		}
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch name {
		case "id":
			e.id = value
		case "event":
			e.kind = value
		case "data":
			e.data += value
		case "retry":
		case "":
			return e, true
		default:
			r.t.Fatalf("stream: got line %q", line)
		}
	}
}

func (r *reader) state() (s State) {
	r.t.Helper()
	for {
		e, ok := r.next()
		if !ok {
			r.t.Fatal("the stream has ended")
		}
		if e.kind != "state" {
			continue
		}
		if err := json.Unmarshal([]byte(e.data), &s); err != nil {
			r.t.Fatalf("%v in %s", err, e.data)
		}
		if want := fmt.Sprintf("%s-%d", s.Epoch, s.Seq); e.id != want {
			r.t.Errorf("got id %s, want %s", e.id, want)
		}
		return s
	}
}

func (p *Page) watching() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.watchers)
}

func often(p *Page) { p.every = 2 * time.Millisecond }

func TestStream(t *testing.T) {
	src := busy()
	src.lanes[0].Reason = "two\nlines\r\n\ndata: of a lane that is open say nothing"
	src.events[0].Detail = "one\r\nevent: fake\ndata: {}\n\n"
	_, server := serve(t, src, often)
	r := open(t, server, "?sort=lane&lanes=2")
	first := r.state()
	if len(first.Lanes) != 2 || first.Lanes[0].Lane != "news/news.example/E-1" || first.LanesMatched != 3 {
		t.Errorf("got lanes %+v, want the first two by name", first.Lanes)
	}
	if got := first.Events[0].Detail; got != src.events[0].Detail {
		t.Errorf("got detail %q, want %q", got, src.events[0].Detail)
	}
	for last := first.Seq; last < first.Seq+5; {
		s := r.state()
		if s.Epoch != first.Epoch || s.Seq <= last {
			t.Fatalf("got state %d of %s after %d of %s", s.Seq, s.Epoch, last, first.Epoch)
		}
		last = s.Seq
	}
}

// Nobody looks at the daemon while nobody looks at the page.
func TestStreamEnds(t *testing.T) {
	src := busy()
	p, server := serve(t, src, often)
	r := open(t, server, "")
	r.state()
	r.body.Close()
	wait(t, "the watcher to go", func() bool { return !p.watched() })
	before := src.looked()
	time.Sleep(20 * p.every)
	if got := src.looked() - before; got > 1 { // one may have been under way
		t.Errorf("got %d looks at the daemon after the last reader went", got)
	}
}

// The end of the daemon ends streams, at once and well, and another daemon has
// another epoch.
func TestStreamOverRestart(t *testing.T) {
	epochs := map[string]bool{}
	for range 2 {
		p := New(Config{Source: busy()})
		often(p)
		server := httptest.NewServer(p)
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		r := open(t, server, "")
		epochs[r.state().Epoch] = true
		cancel()
		for ok := true; ok; {
			_, ok = r.next()
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if resp, _ := get(t, server, "/api/v1/stream"); resp.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("a stream of a daemon that ends: got %s, want 503", resp.Status)
		}
		server.Close()
	}
	if len(epochs) != 2 {
		t.Errorf("got epochs %v, want one for each daemon", epochs)
	}
}

func TestMostStreams(t *testing.T) {
	p, server := serve(t, busy(), nil)
	for range maxWatchers {
		open(t, server, "").state()
	}
	resp, _ := get(t, server, "/api/v1/stream")
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		t.Errorf("one stream too many: got %s", resp.Status)
	}
	if resp, _ := get(t, server, "/api/v1/state"); resp.StatusCode != http.StatusOK {
		t.Errorf("a state beside them: got %s", resp.Status)
	}
	if n := p.watching(); n != maxWatchers {
		t.Errorf("got %d watchers, want %d", n, maxWatchers)
	}
}

func TestShowWaitsForNobody(t *testing.T) {
	p := New(Config{Source: busy()})
	w := p.watch()
	for i := range 5 {
		p.show(&sight{seq: uint64(i)})
	}
	if s := <-w.sights; s.seq != 4 || p.skippedBy(w) != 4 {
		t.Errorf("got sight %d and %d skipped, want the newest, 4, and 4 skipped", s.seq, p.skippedBy(w))
	}
	p.show(&sight{seq: 9})
	if s := <-w.sights; s.seq != 9 || p.skippedBy(w) != 4 {
		t.Errorf("got sight %d and %d skipped, want 9 and still 4", s.seq, p.skippedBy(w))
	}
	p.close()
	if _, open := <-w.sights; open {
		t.Error("the watcher goes on after the end")
	}
	if p.watch() != nil {
		t.Error("a page that has ended is watched")
	}
}

// wide is a daemon whose State is large: more than a socket holds unread.
func wide() *scene {
	src := new(scene)
	for i := range 500 {
		id := fmt.Sprintf("budget/%0200d.example/direct", i)
		src.lanes = append(src.lanes, Lane{ID: id, Budget: "budget", Destination: strings.Repeat("long", 200)})
	}
	return src
}

// stall opens a stream whose reader reads nothing yet.
func stall(t *testing.T, server *httptest.Server) *net.TCPConn {
	t.Helper()
	conn, err := net.DialTCP("tcp", nil, server.Listener.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Fprintf(conn, "GET /api/v1/stream?lanes=500 HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	return conn
}

// A reader that reads nothing is cut off, and holds up nobody before.
func TestReaderThatStandsStill(t *testing.T) {
	p, server := serve(t, wide(), func(p *Page) { p.every, p.patience = 2*time.Millisecond, 300*time.Millisecond })
	quick := open(t, server, "?lanes=1")
	stall(t, server)
	wait(t, "both to watch", func() bool { return p.watching() == 2 })
	first := quick.state().Seq
	for quick.state().Seq < first+10 {
	}
	for p.watching() > 1 {
		quick.state()
	}
}

// A reader that stood still for a while reads on with the newest state, and is
// told how many it missed.
func TestReaderThatMissesSome(t *testing.T) {
	p, server := serve(t, wide(), func(p *Page) { p.every, p.patience = 2*time.Millisecond, time.Minute })
	conn := stall(t, server)
	wait(t, "some to be skipped", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		for w := range p.watchers {
			return w.skipped > 10
		}
		return false
	})
	if err := errors.Join(conn.SetReadDeadline(time.Now().Add(time.Minute)), conn.SetReadBuffer(1<<20)); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{t, bufio.NewReader(resp.Body), resp.Body}
	skipped, last := 0, uint64(0)
	for skipped == 0 {
		e, ok := r.next()
		if !ok {
			t.Fatal("the stream has ended")
		}
		switch e.kind {
		case "state":
			var s State
			if err := json.Unmarshal([]byte(e.data), &s); err != nil || s.Seq <= last || len(s.Lanes) != 500 {
				t.Fatalf("got state %d with %d lanes after %d: %v", s.Seq, len(s.Lanes), last, err)
			}
			last = s.Seq
		case "skipped":
			if _, err := fmt.Sscan(e.data, &skipped); err != nil {
				t.Fatal(err)
			}
		}
	}
	if skipped <= 10 {
		t.Errorf("got %d missed, want more than 10", skipped)
	}
}

func wait(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
