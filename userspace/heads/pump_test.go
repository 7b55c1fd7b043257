// SPDX-License-Identifier: Apache-2.0

package heads

import (
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/egressd/egressd/userspace/http1"
)

// pump carries cleartext connections to an origin and reads both directions on
// their way.
type pump struct {
	tb       testing.TB
	listener net.Listener
	origin   string
	size     int // bytes that are given to a reader at once

	mu       sync.Mutex
	failures []string
	pairs    []string // "method path status", of exchanges that are complete
	http2    int
	pushed   int // answers
	conns    int
	open     sync.WaitGroup
}

// exchange is a request and what is known of its answer.
type exchange struct {
	method, path string
	status       int
	requestEnded bool
	ended        bool
	reset        bool
}

func mustPump(tb testing.TB, origin string, size int) *pump {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	p := &pump{tb: tb, listener: l, origin: origin, size: size}
	tb.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			p.open.Add(1)
			go p.carry(conn)
		}
	}()
	return p
}

func (p *pump) addr() string { return p.listener.Addr().String() }

func (p *pump) fail(format string, args ...any) {
	p.failures = append(p.failures, fmt.Sprintf(format, args...))
}

// carry moves one connection. Both directions are read under one lock, so that
// kinds of requests are known before their answers come.
func (p *pump) carry(client net.Conn) {
	defer p.open.Done()
	defer client.Close()
	server, err := net.Dial("tcp", p.origin)
	if err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.fail("%v", err)
		return
	}
	defer server.Close()
	var c Client
	var s Server
	streams := map[uint32]*exchange{} // HTTP/2
	var queue []*exchange             // HTTP/1, in order
	var order []*exchange
	find := func(stream uint32) *exchange {
		if stream > 0 {
			return streams[stream]
		}
		if len(queue) == 0 {
			return nil
		}
		return queue[0]
	}
	var both sync.WaitGroup
	move := func(to, from net.Conn, next func(b []byte) (int, Event, error), handle func(ev Event)) {
		defer both.Done()
		buf := make([]byte, p.size)
		for {
			n, err := from.Read(buf)
			p.mu.Lock()
			for b := buf[:n]; len(b) > 0; {
				n, ev, err := next(b)
				if err != nil {
					p.fail("%v at %.40q", err, b)
					break
				}
				b = b[n:]
				handle(ev)
			}
			p.mu.Unlock()
			if n > 0 {
				if _, err := to.Write(buf[:n]); err != nil {
					break
				}
			}
			if err != nil {
				break
			}
		}
		to.(*net.TCPConn).CloseWrite()
	}
	both.Add(2)
	begun := 0
	go move(server, client, c.Next, func(ev Event) {
		switch ev.Kind {
		case Begin:
			begun++
		case RequestHead:
			r := ev.Request
			if begun--; begun != 0 {
				p.fail("%s %s: began %d times", r.Method, r.Path, begun+1)
			}
			if r.Host != p.addr() || r.Malformed || r.Partial {
				p.fail("request %+v", r)
			}
			e := &exchange{method: r.Method, path: r.Path, requestEnded: r.End}
			order = append(order, e)
			if ev.Stream > 0 {
				streams[ev.Stream] = e
			} else {
				queue = append(queue, e)
				s.Expect(r.Kind)
			}
		case End:
			e := order[len(order)-1]
			if ev.Stream > 0 {
				e = streams[ev.Stream]
			}
			if e == nil || e.requestEnded {
				p.fail("end of stream %d", ev.Stream)
				return
			}
			e.requestEnded = true
		case Reset:
			if e := streams[ev.Stream]; e != nil {
				e.reset = true
			}
		}
	})
	go move(client, server, s.Next, func(ev Event) {
		if ev.Stream > 0 && ev.Stream%2 == 0 {
			if ev.Kind == ResponseHead && ev.Response.Status == http.StatusOK {
				p.pushed++
			}
			return
		}
		e := find(ev.Stream)
		switch ev.Kind {
		case ResponseHead:
			r := ev.Response
			if e == nil {
				p.fail("answer %d to nothing", r.Status)
				return
			}
			if r.Interim {
				return
			}
			if e.status != 0 || r.Partial {
				p.fail("%s %s: %+v", e.method, e.path, r)
			}
			e.status, e.ended = r.Status, r.End
			after := ""
			r.Fields(func(name, value []byte) bool {
				if http1.EqualFold(name, "retry-after") {
					after = string(value)
				}
				return true
			})
			if want := strings.Contains(e.path, "429"); want != (after == "17") {
				p.fail("%s %s: retry-after %q", e.method, e.path, after)
			}
		case End:
			if e == nil || e.ended || e.status == 0 {
				p.fail("end of an answer on stream %d", ev.Stream)
				return
			}
			e.ended = true
		}
		if ev.Stream == 0 && e != nil && e.ended {
			queue = queue[1:]
		}
	})
	both.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(order) == 0 {
		return // Go dials more often than it needs
	}
	p.conns++
	if c.HTTP2() != s.HTTP2() {
		p.fail("client HTTP/2: %t, server: %t", c.HTTP2(), s.HTTP2())
	}
	if c.HTTP2() {
		p.http2++
	}
	for _, e := range order {
		if !e.reset && (!e.requestEnded || !e.ended && !s.EndsAtEOF()) {
			p.fail("not complete: %+v", e)
		}
		p.pairs = append(p.pairs, e.method+" "+e.path+" "+strconv.Itoa(e.status))
	}
}

// wait ends the pump and wants n times each of the exchanges, and no other.
func (p *pump) wait(t *testing.T, http2 bool, n int, want ...string) {
	t.Helper()
	p.listener.Close()
	p.open.Wait()
	for _, f := range p.failures {
		t.Error(f)
	}
	if p.conns == 0 || http2 && p.http2 != p.conns || !http2 && p.http2 != 0 {
		t.Errorf("%d of %d connections were HTTP/2", p.http2, p.conns)
	}
	count := map[string]int{}
	for _, pair := range p.pairs {
		count[pair]++
	}
	for _, w := range want {
		if count[w] != n {
			t.Errorf("%q: %d times, want %d", w, count[w], n)
		}
		delete(count, w)
	}
	for pair, n := range count {
		t.Errorf("%q: %d times, want none", pair, n)
	}
}
