// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
)

// The tests in this file play scripts, made at random, twice: over a direct
// connection and through the proxy. Both ends must see the same bytes in the
// same order and the same end of the stream.
//
// What differs by design, and so is in no script:
//   - connect() succeeds before the origin is asked, which happens at the first
//     bytes of the client or after a while: a script never begins by closing;
//   - heads are handed on whole, and a request only after the answer to the one
//     before it is complete: scripts do not wait for part of a head, nor end in
//     the middle of one of the client, which is not handed on at all, and their
//     origins answer in order, without looking ahead;
//   - after Connection: close in an answer the proxy closes both connections
//     even if the origin does not: such scripts go on with its close;
//   - what a reset finds still on its way may be lost, on any path: who resets
//     waits until the other side has what was sent before.

// deed is what one side does in a step of a script.
type deed uint8

const (
	doSend      deed = iota // hand text to the writer, in pieces
	doReceive               // read as many bytes as text has, which must be text
	doEnd                   // read the end of the stream
	doHalfClose             // after all that was handed to the writer
	doClose
	doReset
)

var deedNames = [...]string{"send", "receive", "end", "half-close", "close", "reset"}

// act is one step of a script.
type act struct {
	origin bool // who does it
	deed   deed
	text   string
}

func (a act) String() string {
	who := "client"
	if a.origin {
		who = "origin"
	}
	return fmt.Sprintf("%s %s %d %.60q", who, deedNames[a.deed], len(a.text), a.text)
}

// script is a conversation under construction.
type script struct {
	rnd  *rand.Rand
	acts []act
	to   string // before the path of requests: a proxy is asked for them
}

// say has one side send text and the other receive it.
func (s *script) say(origin bool, text string) {
	if text == "" {
		return
	}
	s.acts = append(s.acts, act{origin, doSend, text}, act{!origin, doReceive, text})
}

func (s *script) do(origin bool, d deed) { s.acts = append(s.acts, act{origin, d, ""}) }

// leave has one side end the connection and the other see it.
func (s *script) leave(origin bool) {
	switch s.rnd.IntN(3) {
	case 0:
		s.do(origin, doClose)
		s.do(!origin, doEnd)
	case 1:
		s.do(origin, doReset)
		s.do(!origin, doEnd)
	default:
		s.do(origin, doHalfClose)
		s.do(!origin, doEnd)
		s.do(!origin, doClose)
		s.do(origin, doEnd)
	}
}

func (s *script) one(of ...string) string { return of[s.rnd.IntN(len(of))] }

// bytes is a body: mostly short, sometimes longer than any buffer on the way.
func (s *script) bytes() string {
	n := s.rnd.IntN(100)
	switch s.rnd.IntN(20) {
	case 0:
		n = s.rnd.IntN(1 << 20)
	case 1, 2, 3:
		n = bufferSize - 100 + s.rnd.IntN(200)
	case 4, 5:
		n = s.rnd.IntN(100 << 10)
	}
	b := make([]byte, 0, n+8)
	for len(b) < n {
		b = binary.LittleEndian.AppendUint64(b, s.rnd.Uint64())
	}
	return string(b[:n])
}

// chunked is body in chunks.
func (s *script) chunked(body string) string {
	var out strings.Builder
	for len(body) > 0 {
		n := 1 + s.rnd.IntN(len(body))
		fmt.Fprintf(&out, "%x%s\r\n%s\r\n", n, s.one("", "", ";a=b"), body[:n])
		body = body[n:]
	}
	return out.String() + s.one("0\r\n\r\n", "0\r\n\r\n", "000;x\r\nX-Sum: 1\r\n\r\n")
}

// body is the end of a head with a body in one framing or another.
func (s *script) body() (head, body string) {
	switch body = s.bytes(); s.rnd.IntN(3) {
	case 0:
		return "\r\n", ""
	case 1:
		return fmt.Sprintf("cONTENT-Length:%d\r\n\r\n", len(body)), body
	default:
		return "Transfer-Encoding: chunked\r\n\r\n", s.chunked(body)
	}
}

func (s *script) filler() string {
	return s.one("", "", "X-A: 1\r\nx-a:2\r\n", "Cookie: "+strings.Repeat("c", s.rnd.IntN(40<<10))+"\r\n")
}

const hostLine = "Host: origin.test\r\n"

// http is a connection with some exchanges.
func (s *script) http() {
	for n := s.rnd.IntN(4); n > 0; n-- {
		switch s.rnd.IntN(5) {
		case 0:
			s.early(false)
		case 1:
			s.pipelined(false)
		default:
			s.exchange()
		}
	}
	switch s.rnd.IntN(12) {
	case 0: // the client leaves between requests
		s.exchange()
		s.leave(false)
	case 1: // or the origin does
		s.exchange()
		s.leave(true)
	case 2: // the client ends with its last request
		head, body := s.request()
		s.acts = append(s.acts, act{false, doSend, head + body})
		s.do(false, doHalfClose)
		s.acts = append(s.acts, act{true, doReceive, head + body})
		s.do(true, doEnd)
		s.say(true, s.response(head))
		s.do(true, doClose)
		s.do(false, doEnd)
	case 3: // or with several
		s.pipelined(true)
	case 4: // somebody leaves without an answer
		head, body := s.request()
		s.say(false, head+body)
		s.leave(s.rnd.IntN(2) == 0)
	case 5: // or in the middle of the request
		head, body := s.request()
		if body == "" {
			head, body = "POST / HTTP/1.1\r\n"+hostLine+"Content-Length: 5\r\n\r\n", "hello"
		}
		s.say(false, head+body[:s.rnd.IntN(len(body))])
		s.leave(s.rnd.IntN(2) == 0)
	case 6: // or in the middle of the answer
		head, body := s.request()
		s.say(false, head+body)
		answer := s.response(head)
		cut := 1 + s.rnd.IntN(len(answer)-1)
		if i := strings.LastIndex(answer, "\r\n\r\n"); i+4 > cut {
			s.acts = append(s.acts, act{true, doSend, answer[:min(cut, 16<<10)]})
			s.do(true, s.way(doClose, doReset))
			s.do(false, doEnd)
			return
		}
		s.say(true, answer[:cut])
		s.leave(s.rnd.IntN(3) > 0)
	case 7: // an answer that ends with the connection
		s.say(false, "GET / HTTP/1.1\r\n"+hostLine+"\r\n")
		s.say(true, "HTTP/1.1 200 OK\r\n"+s.one("", "Connection: close\r\n", "Transfer-Encoding: gzip\r\n")+"\r\n"+s.bytes())
		s.leave(true)
	case 8: // an answer that says so
		head, body := s.request()
		s.say(false, head+body)
		s.say(true, strings.Replace(s.response(head), "\r\n", "\r\nConnection: close\r\n", 1))
		s.do(true, doClose)
		s.do(false, doEnd)
	case 9: // no HTTP
		s.say(false, "GET / HTTP/1.1\r\n"+hostLine+"\r\n")
		s.say(true, s.one("garbage\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhelloX", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more", "HTTP/1.1 204 No\r\n\r\nbody")+s.bytes())
		s.do(true, doClose)
		s.do(false, doEnd)
	case 10: // an early answer, and the origin is gone
		s.early(true)
	default:
		if s.rnd.IntN(2) == 0 {
			s.say(false, "GET /ws HTTP/1.1\r\n"+hostLine+"Connection: Upgrade\r\nUpgrade: x\r\n\r\n")
			s.say(true, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"+s.bytes())
		} else {
			s.say(false, "CONNECT origin.test:443 HTTP/1.1\r\n\r\n")
			s.say(true, "HTTP/1.1 200 OK\r\n\r\n"+s.bytes())
		}
		s.tunnel()
	}
}

func (s *script) request() (head, body string) {
	method := s.one("GET", "GET", "HEAD", "POST", "PUT")
	head = s.one("", "", "\r\n") + method + " " + s.to + "/" + s.one("", "a?b=c", "//x") + s.one(" HTTP/1.1\r\n", " HTTP/1.1\r\n", " HTTP/1.0\r\nConnection: keep-alive\r\n") + s.one("Host", "hOsT") + ": origin.test\r\n" + s.filler()
	end, body := s.body()
	if strings.Contains(head, "HTTP/1.0") && strings.Contains(end, "chunked") {
		end, body = "\r\n", ""
	}
	return head + end, body
}

// response is an answer to a request, after which another may follow.
func (s *script) response(request string) string {
	out := s.one("", "", "", "HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
	if s.rnd.IntN(5) == 0 {
		return out + s.one("HTTP/1.1 204 No Content\r\n\r\n", "HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n")
	}
	end, body := s.body()
	if end == "\r\n" {
		end = "Content-Length: 0\r\n\r\n"
	}
	if strings.HasPrefix(strings.TrimSpace(request), "HEAD ") {
		body = ""
	}
	return out + "HTTP/1.1 " + s.one("200 OK", "200", "404 Not Found", "500 No\r\nX: y") + "\r\n" + s.filler() + end + body
}

func (s *script) exchange() {
	head, body := s.request()
	s.say(false, head)
	s.say(false, body)
	s.say(true, s.response(head))
}

// early is an answer before the end of the request.
func (s *script) early(last bool) {
	body := s.bytes() + "end"
	head := fmt.Sprintf("POST / HTTP/1.1\r\n"+hostLine+"Content-Length: %d\r\n\r\n", len(body))
	cut := s.rnd.IntN(len(body))
	s.say(false, head+body[:cut])
	answer := s.response(head)
	if !last {
		s.say(true, answer)
		s.say(false, body[cut:])
		return
	}
	s.say(true, strings.Replace(answer, "\r\n", "\r\nConnection: close\r\n", 1))
	s.do(true, doClose)
	s.do(false, doEnd)
}

// pipelined requests are sent together, by a client that then ends its sending
// if they are the last.
func (s *script) pipelined(last bool) {
	var heads, all []string
	for range 2 + s.rnd.IntN(4) {
		head, body := s.request()
		heads, all = append(heads, head), append(all, head+body)
	}
	s.acts = append(s.acts, act{false, doSend, strings.Join(all, "")})
	if last {
		s.do(false, doHalfClose)
	}
	for i, head := range heads {
		s.acts = append(s.acts, act{true, doReceive, all[i]})
		s.say(true, s.response(head))
	}
	if last {
		s.do(true, doEnd)
		s.do(true, doClose)
		s.do(false, doEnd)
	}
}

// opaque is a connection of a protocol that nobody knows.
func (s *script) opaque() {
	if s.rnd.IntN(10) == 0 { // the server speaks first
		s.say(true, "220 hello\r\n")
		if s.rnd.IntN(3) == 0 {
			s.leave(true)
			return
		}
	} else {
		s.say(false, s.one("\x00", "\x05\x01\x00", "SSH-2.0-x\r\n", "EHLO me\r\n"))
	}
	s.tunnel()
}

// tunnel is a conversation without rules.
func (s *script) tunnel() {
	for range s.rnd.IntN(8) {
		if s.rnd.IntN(5) == 0 { // both at once
			up, down := s.bytes(), s.bytes()
			s.acts = append(s.acts, act{false, doSend, up}, act{true, doSend, down}, act{false, doReceive, down}, act{true, doReceive, up})
			continue
		}
		s.say(s.rnd.IntN(2) == 0, s.bytes())
	}
	if s.rnd.IntN(2) == 0 {
		s.leave(s.rnd.IntN(2) == 0)
		return
	}
	// One side ends its sending, the other goes on for a while.
	first := s.rnd.IntN(2) == 0
	s.do(first, doHalfClose)
	s.do(!first, doEnd)
	for range s.rnd.IntN(3) {
		s.say(!first, s.bytes())
	}
	s.do(!first, s.way(doHalfClose, doClose, doReset))
	s.do(first, doEnd)
}

func (s *script) way(of ...deed) deed { return of[s.rnd.IntN(len(of))] }

func makeScript(seed uint64) []act {
	s := &script{rnd: rand.New(rand.NewPCG(seed, 1))}
	if seed%4 == 0 {
		s.opaque()
	} else {
		s.http()
	}
	return s.acts
}

// makeProxied is makeScript for a client that speaks to a proxy, which the
// origin of the script plays. It has no trouble: that would close a lane.
func makeProxied(seed uint64) []act {
	s := &script{rnd: rand.New(rand.NewPCG(seed, 2))}
	user := s.one("user-a", "user-b", "someone")
	switch s.rnd.IntN(9) {
	case 0:
		s.to = s.one("http://origin.test", "http://other.test:81", "http://u:p@192.0.2.1")
		s.http()
		return s.acts
	case 1, 2:
		head := connectTo("origin.test:80", s.filler(), s.one("", basic(user)))
		if s.rnd.IntN(4) == 0 {
			s.say(false, head)
			s.say(true, s.one("HTTP/1.1 403 No\r\n", "HTTP/1.1 500 No\r\n")+"Content-Length: 3\r\n\r\nwho")
		}
		s.say(false, head)
		s.say(true, s.one("HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.0 200 OK\r\nContent-Length: 9\r\n"+s.filler()+"\r\n"))
	case 3:
		s.say(false, "\x04\x01\x00\x50\x00\x00\x00\x01"+user+"\x00origin.test\x00")
		s.say(true, reply4OK)
	case 4: // refused, which the proxy ends with
		s.say(false, greetAuth)
		s.say(true, useNone)
		s.say(false, toName("origin.test", 80))
		s.say(true, s.one("\x05\x05\x00\x01\x00\x00\x00\x00\x00\x00", "\x05\x04\x00\x03\x01x\x00\x00", "\x05\x07\x00\x00"))
		s.leave(s.rnd.IntN(2) == 0)
		return s.acts
	case 5: // the proxy is gone in the middle of it
		part := useNone[:1]
		s.say(false, greetAuth)
		if s.rnd.IntN(3) > 0 {
			s.say(true, useNone)
			s.say(false, toName("origin.test", 80))
			part = replyOK[:1+s.rnd.IntN(len(replyOK)-1)]
		}
		s.acts = append(s.acts, act{true, doSend, part})
		s.do(true, doClose)
		s.do(false, doEnd)
		return s.acts
	case 6: // all at once
		s.acts = append(s.acts, act{false, doSend, greetNone + toName("origin.test", 80)}, act{true, doReceive, greetNone + toName("origin.test", 80)})
		s.say(true, useNone+replyOK)
	default:
		s.say(false, greetAuth)
		s.say(true, useAuth)
		s.say(false, login(user))
		s.say(true, authOK)
		s.say(false, toName("origin.test", 80))
		s.say(true, replyOK)
	}
	if s.rnd.IntN(3) == 0 {
		s.opaque()
	} else {
		s.http()
	}
	return s.acts
}

// actor is one side of a conversation.
type actor struct {
	*net.TCPConn
	todo chan func()
	busy sync.WaitGroup
}

func newActor(c *net.TCPConn) *actor {
	a := &actor{TCPConn: c, todo: make(chan func(), 100)}
	c.SetDeadline(time.Now().Add(10 * time.Second))
	go func() {
		for f := range a.todo {
			f()
			a.busy.Done()
		}
	}()
	return a
}

// later runs f after what was to be written before.
func (a *actor) later(f func()) {
	a.busy.Add(1)
	a.todo <- f
}

// perform plays a script and says, for each step that observes something, what
// it saw.
func perform(acts []act, seed uint64, client *net.TCPConn, accept func() (*net.TCPConn, error)) (saw []string) {
	sides := [2]*actor{newActor(client), nil}
	defer func() {
		for _, a := range sides {
			if a != nil {
				a.Close()
				close(a.todo)
			}
		}
	}()
	for i, step := range acts {
		rnd := rand.New(rand.NewPCG(seed, uint64(i)))
		k := 0
		if step.origin {
			if k = 1; sides[1] == nil {
				c, err := accept()
				if err != nil {
					return append(saw, fmt.Sprintf("%d: %v: no connection: %v", i, step, err))
				}
				sides[1] = newActor(c)
			}
		}
		a := sides[k]
		switch step.deed {
		case doSend:
			a.later(func() {
				for text := step.text; text != ""; {
					n := len(text)
					if n < 2000 && rnd.IntN(2) == 0 {
						n = 1 + rnd.IntN(min(n, 200))
					}
					if _, err := io.WriteString(a, text[:n]); err != nil {
						return
					}
					text = text[n:]
				}
			})
		case doReceive:
			got := make([]byte, len(step.text))
			n, err := io.ReadFull(a, got)
			if string(got[:n]) != step.text || err != nil {
				return append(saw, fmt.Sprintf("%d: %v: got %d bytes %.60q, %s", i, step, n, got[:n], endOf(err)))
			}
		case doEnd:
			rest, err := io.ReadAll(a)
			saw = append(saw, fmt.Sprintf("%d: %v: after %d more bytes %.60q %s", i, step, len(rest), rest, endOf(err)))
		case doHalfClose:
			a.later(func() { a.CloseWrite() })
		case doClose, doReset:
			a.busy.Wait()
			if step.deed == doReset {
				a.SetLinger(0)
			}
			a.Close()
		}
	}
	return saw
}

func endOf(err error) string {
	switch {
	case err == nil, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the end"
	case errors.Is(err, unix.ECONNRESET):
		return "a reset"
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "nothing"
	}
	return err.Error()
}

// stage has what the scripts are played on.
type stage struct {
	origin *net.TCPListener
	proxy  *bench
	script func(seed uint64) []act
}

func newStage(t testing.TB, shape func(*policy.Budget)) *stage {
	t.Helper()
	return newStageVia(t, nil, shape)
}

// newStageVia is newStage where the origin plays the proxy of an exit.
func newStageVia(t testing.TB, exit *policy.Exit, shape func(*policy.Budget)) *stage {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	rule := budget("", plenty)
	rule.Match.Hosts = []policy.HostPattern{{Any: true}}
	rule.Per = 0
	shape(rule)
	st := &stage{origin: ln.(*net.TCPListener), script: makeScript}
	if exit == nil {
		st.proxy = start(t, rule)
		return st
	}
	st.proxy, st.script = startVia(t, *exit, rule), makeProxied
	st.proxy.name(ln.Addr().(*net.TCPAddr).AddrPort(), st.proxy.exit)
	return st
}

func (st *stage) accept() (*net.TCPConn, error) {
	st.origin.SetDeadline(time.Now().Add(10 * time.Second))
	return st.origin.AcceptTCP()
}

// compare plays the script of seed both ways.
func (st *stage) compare(t *testing.T, seed uint64) {
	t.Helper()
	acts := st.script(seed)
	dest := st.origin.Addr().(*net.TCPAddr).AddrPort()
	client, err := net.DialTCP("tcp4", nil, net.TCPAddrFromAddrPort(dest))
	if err != nil {
		t.Fatal(err)
	}
	want := perform(acts, seed, client, st.accept)
	flow := policy.Flow{Dest: dest, Exit: policy.DirectExit, UID: uint32(os.Geteuid())}
	client, err = net.DialTCP("tcp4", nil, net.TCPAddrFromAddrPort(netip.AddrPortFrom(st.proxy.hook.token(flow), st.proxy.port)))
	if err != nil {
		t.Fatal(err)
	}
	got := perform(acts, seed, client, st.accept)
	if !slices.Equal(got, want) {
		var play strings.Builder
		for i, a := range acts {
			fmt.Fprintf(&play, "  %d: %v\n", i, a)
		}
		t.Errorf("seed %d:\n%s through the proxy:\n  %s\n directly:\n  %s", seed, &play, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
	for _, line := range want {
		if strings.Contains(line, "nothing") || strings.Contains(line, "receive") {
			t.Errorf("seed %d: the script does not work directly: %s", seed, line)
		}
	}
}

// free holds nothing.
func free(*policy.Budget) {}

// held holds what it can.
func held(r *policy.Budget) { r.Rate = perSecond(400) }

// owing holds back what it can: many answers would be reason to repeat the
// request, but there is no time for that, so that they are given after all.
func owing(r *policy.Budget) {
	r.Cooldown.Statuses = []int{599}
	r.Queue.MaxWait = 1
	r.Retry = policy.Retry{Absorb: true, Attempts: 2, MaxBody: 64 << 10, Statuses: []int{200, 404, 500}}
}

// TestLikeDirect plays some hundred scripts, through gates of several kinds.
func TestLikeDirect(t *testing.T) {
	const scripts, actors = 400, 8
	for name, shape := range map[string]func(*policy.Budget){"free": free, "held": held, "owing": owing} {
		t.Run(name, func(t *testing.T) {
			var wg sync.WaitGroup
			for k := range uint64(actors) {
				st := newStage(t, shape)
				wg.Go(func() {
					for seed := k; seed < scripts && !t.Failed(); seed += actors {
						st.compare(t, seed)
					}
				})
			}
			wg.Wait()
		})
	}
}

// TestLikeProxied does the same with clients of a proxy.
func TestLikeProxied(t *testing.T) {
	const scripts, actors = 400, 8
	exit := gateway()
	for name, shape := range map[string]func(*policy.Budget){"free": free, "held": held, "owing": owing} {
		t.Run(name, func(t *testing.T) {
			var wg sync.WaitGroup
			for k := range uint64(actors) {
				st := newStageVia(t, &exit, shape)
				wg.Go(func() {
					for seed := k; seed < scripts && !t.Failed(); seed += actors {
						st.compare(t, seed)
					}
				})
			}
			wg.Wait()
		})
	}
}

// FuzzLikeProxied looks for more.
func FuzzLikeProxied(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(seed)
	}
	exit := gateway()
	stages := []*stage{newStageVia(f, &exit, free), newStageVia(f, &exit, owing)}
	f.Fuzz(func(t *testing.T, seed uint64) {
		for _, st := range stages {
			st.compare(t, seed)
		}
	})
}

// FuzzLikeDirect looks for more: go test -fuzz LikeDirect.
func FuzzLikeDirect(f *testing.F) {
	for seed := range uint64(8) {
		f.Add(seed)
	}
	stages := []*stage{newStage(f, free), newStage(f, owing)}
	f.Fuzz(func(t *testing.T, seed uint64) {
		for _, st := range stages {
			st.compare(t, seed)
		}
	})
}
