// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/verdict"
)

// poolAddr is where the pool of a test is.
var poolAddr = netip.MustParseAddrPort("127.0.0.77:3128")

// exitProxy is the proxy of an exit of a pool. It answers for the origin itself.
type exitProxy struct {
	t    testing.TB
	dest netip.AddrPort

	mu     sync.Mutex
	heads  []string // of requests to it, as they came
	inside []string // of those through its tunnels
	bodies []string
	conns  int
	open   map[*net.TCPConn]bool
	answer func(head string) string // nil: shortAnswer, or established
}

func newExitProxy(t testing.TB) *exitProxy {
	x := &exitProxy{t: t, open: map[*net.TCPConn]bool{}}
	x.dest = origin(t, x.serve)
	return x
}

// answers has the proxy answer by f.
func (x *exitProxy) answers(f func(head string) string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.answer = f
}

// says has the proxy answer always the same.
func (x *exitProxy) says(answer string) { x.answers(func(string) string { return answer }) }

func (x *exitProxy) serve(c *net.TCPConn) {
	x.mu.Lock()
	x.conns++
	x.open[c] = true
	x.mu.Unlock()
	defer func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		delete(x.open, c)
	}()
	r := bufio.NewReader(c)
	for tunnel := false; ; {
		head, length := "", 0
		for !strings.HasSuffix(head, "\r\n\r\n") {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			head += line
			if n, ok := strings.CutPrefix(line, "Content-Length: "); ok {
				length, _ = strconv.Atoi(strings.TrimSpace(n))
			}
		}
		body := make([]byte, length)
		if _, err := io.ReadFull(r, body); err != nil {
			return
		}
		x.mu.Lock()
		seen := &x.heads
		if tunnel {
			seen = &x.inside
		}
		*seen = append(*seen, head)
		x.bodies = append(x.bodies, string(body))
		answer := x.answer
		x.mu.Unlock()
		text := shortAnswer
		if strings.HasPrefix(head, "CONNECT ") {
			text = established
		}
		if answer != nil {
			text = answer(head)
		}
		tunnel = tunnel || text == established
		if _, err := io.WriteString(c, text); err != nil || text == "" {
			return
		}
	}
}

// hangUp ends the connections that stand.
func (x *exitProxy) hangUp() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for c := range x.open {
		c.CloseWrite()
	}
}

// look gives what a proxy saw. The slices only grow.
func (x *exitProxy) look() (heads, inside, bodies []string, conns int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.heads, x.inside, x.bodies, x.conns
}

// asked are the heads of the requests that came.
func (x *exitProxy) asked() []string { heads, _, _, _ := x.look(); return heads }

// tunnelled are those that came through its tunnels.
func (x *exitProxy) tunnelled() []string { _, inside, _, _ := x.look(); return inside }

// sentWith are the bodies of all.
func (x *exitProxy) sentWith() []string { _, _, bodies, _ := x.look(); return bodies }

// met is the number of connections.
func (x *exitProxy) met() int { _, _, _, conns := x.look(); return conns }

// seen is the number of requests that came.
func (x *exitProxy) seen() int { return len(x.asked()) }

// last is the head of the request that came last.
func (x *exitProxy) last() string {
	if heads := x.asked(); len(heads) > 0 {
		return heads[len(heads)-1]
	}
	return ""
}

// exitAt is an exit at an address, at which egressd logs in.
func exitAt(name string, at netip.AddrPort) policy.Exit {
	return policy.Exit{Name: name, Proxy: &policy.Proxy{Host: at.Addr().String(), First: at.Port(), Last: at.Port(),
		User: "customer-" + name, Password: policy.NewSecret(password)}}
}

// loginOf is the field by which egressd logs in at an exit from exitAt.
func loginOf(name string) string { return basic("customer-" + name) }

// poolOf is a policy with a pool of exits.
func poolOf(sticky policy.Sticky, exits []policy.Exit, budgets ...*policy.Budget) *policy.Policy {
	p := &policy.Policy{Exits: exits, Budgets: budgets}
	pool := &policy.Pool{Name: "residential", Listen: poolAddr, Sticky: sticky}
	for i := range p.Exits {
		pool.Members = append(pool.Members, policy.NewMember(&p.Exits[i], p.Exits[i].Proxy.First, 1))
	}
	p.Pools = []*policy.Pool{pool}
	return p
}

// startPool is a proxy with a pool of n exits, e0 and so on, and their proxies.
func startPool(t testing.TB, sticky policy.Sticky, n int, budgets ...*policy.Budget) (*bench, []*exitProxy) {
	t.Helper()
	var proxies []*exitProxy
	var exits []policy.Exit
	for i := range n {
		x := newExitProxy(t)
		proxies = append(proxies, x)
		exits = append(exits, exitAt("e"+strconv.Itoa(i), x.dest))
	}
	return startPolicy(t, Config{}, 0, poolOf(sticky, exits, budgets...)), proxies
}

// nobody is an address where nobody listens.
func nobody(t testing.TB) netip.AddrPort {
	t.Helper()
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	return ln.Addr().(*net.TCPAddr).AddrPort()
}

// poolFlow is a connection of a process to the pool.
func poolFlow(pid uint32) policy.Flow {
	return policy.Flow{Dest: poolAddr, Exit: "residential", PID: pid, UID: uint32(os.Geteuid())}
}

func (b *bench) toPool() *net.TCPConn {
	b.t.Helper()
	return b.connectFlow(poolFlow(1))
}

// getFrom is a request for a host at a pool.
func getFrom(host string, fields ...string) string {
	return "GET http://" + host + "/ HTTP/1.1\r\nHost: " + host + "\r\n" + strings.Join(fields, "") + "\r\n"
}

// counts are the requests that each proxy saw.
func counts(proxies []*exitProxy) (all []int) {
	for _, x := range proxies {
		all = append(all, x.seen())
	}
	return all
}

// ask sends a request and reads the answer, which must be with that status.
func mustAsk(t testing.TB, c *net.TCPConn, request string, status int) *http.Response {
	t.Helper()
	resp := roundTrip(t, c, request)
	if resp.StatusCode != status {
		t.Fatalf("got %d, want %d: %v", resp.StatusCode, status, resp.Header)
	}
	return resp
}

// unavailable is an answer that closes the exit for the destination for long.
const unavailable = "HTTP/1.1 503 Later\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n"

// Requests of one connection take turns at the exits, and the connection stays.
// Each exit has its own lanes, and its own upstream connection.
func TestPoolTakesTurns(t *testing.T) {
	b, x := startPool(t, policy.StickyNone, 3, anything())
	client := b.toPool()
	for range 9 {
		mustAsk(t, client, getFrom("origin.test"), 200)
	}
	if got := counts(x); !slices.Equal(got, []int{3, 3, 3}) {
		t.Errorf("the exits saw %v requests, want 3 each", got)
	}
	b.wantGranted("test/origin.test/e0 3", "test/origin.test/e1 3", "test/origin.test/e2 3", "exits/-/e0 3", "exits/-/e1 3", "exits/-/e2 3")
	if f := b.Flows(); len(f) != 1 || f[0].Requests != 9 || f[0].Exit != "e2" || f[0].Dest != poolAddr || f[0].Host != "origin.test" {
		t.Errorf("flows are %+v, want one of 9 requests, the last by e2", f)
	}
	if s := b.engine.Switches(); len(s) != 0 {
		t.Errorf("%d switches, want none", len(s))
	}
	client.Close()
	b.nothingKept()
}

// Weights are shares of many clients' requests, too.
func TestPoolWeights(t *testing.T) {
	b, x := startPool(t, policy.StickyNone, 2, anything())
	p := poolOf(policy.StickyNone, b.engine.Policy().Exits, anything())
	p.Pools[0].Members[1] = policy.NewMember(&p.Exits[1], p.Exits[1].Proxy.First, 3)
	b.engine.Swap(p, b.cfg.Now())
	for range 8 {
		client := b.toPool()
		for range 5 {
			mustAsk(t, client, getFrom("origin.test"), 200)
		}
	}
	if got := counts(x); !slices.Equal(got, []int{10, 30}) {
		t.Errorf("the exits saw %v requests, want one to three", got)
	}
}

// What of the upstream connection stands is used again where the same exit has
// the next request.
func TestPoolKeepsUpstream(t *testing.T) {
	b, x := startPool(t, policy.StickyClient, 2, anything())
	client := b.toPool()
	for range 5 {
		mustAsk(t, client, getFrom("origin.test"), 200)
	}
	if conns := x[0].met() + x[1].met(); conns != 1 {
		t.Errorf("%d upstream connections, want 1", conns)
	}
}

// TestPoolBytes compares what the exit's proxy gets with what the client sent,
// byte for byte: only the login is another.
func TestPoolBytes(t *testing.T) {
	const mine = "\x00login\x00"
	plain := func(text string) string { return strings.Replace(text, mine, "", 1) }
	long := strings.Repeat("0123456789abcdef", 2<<10)
	for _, tt := range []struct {
		name, sent, want string // want has mine where the login is
	}{
		{"order, case and spacing", "GET http://Origin.Test:81/a?b=c HTTP/1.1\r\nhOsT:  other.test \r\nX-b: 1\r\n" + basic("client") + "x-A:\t2\r\nx-b: 3\r\nUser-Agent:\r\n\r\n",
			"GET http://Origin.Test:81/a?b=c HTTP/1.1\r\nhOsT:  other.test \r\nX-b: 1\r\n" + mine + "x-A:\t2\r\nx-b: 3\r\nUser-Agent:\r\n\r\n"},
		{"no login", "GET http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\nA: b\r\n\r\n", "GET http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\n" + mine + "A: b\r\n\r\n"},
		{"bearer", "GET http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\nProxy-Authorization: Bearer x\r\n\r\n", "GET http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\n" + mine + "\r\n"},
		{"userinfo", "GET http://u:p@origin.test/ HTTP/1.1\r\nHost: origin.test\r\n\r\n", "GET http://u:p@origin.test/ HTTP/1.1\r\nHost: origin.test\r\n" + mine + "\r\n"},
		{"body", "POST http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\nContent-Length: 26\r\n" + basic("a") + "\r\nProxy-Authorization: body\n",
			"POST http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\nContent-Length: 26\r\n" + mine + "\r\nProxy-Authorization: body\n"},
		{"chunked", "POST http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\nTransfer-Encoding: chunked\r\n\r\n003;x\r\nabc\r\n0\r\nA: b\r\n\r\n",
			"POST http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\n" + mine + "Transfer-Encoding: chunked\r\n\r\n003;x\r\nabc\r\n0\r\nA: b\r\n\r\n"},
		{"CONNECT", connectTo("origin.test:443", basic("client")), "CONNECT origin.test:443 HTTP/1.1\r\nHost: origin.test:443\r\n" + mine + "\r\n"},
		{"CONNECT without fields", "CONNECT origin.test:443 HTTP/1.1\r\n\r\n", "CONNECT origin.test:443 HTTP/1.1\r\n" + mine + "\r\n"},
		{"as long as a buffer", "GET http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\nA: " + long[:bufferSize-67] + "\r\n\r\n",
			"GET http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\n" + mine + "A: " + long[:bufferSize-67] + "\r\n\r\n"},
		{"as much as fits with a body", "POST http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\nContent-Length: 32768\r\n\r\n" + long,
			"POST http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\n" + mine + "Content-Length: 32768\r\n\r\n" + long},
		{"as long as a head may be", "GET http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\nA: " + strings.Repeat("a", 64<<10-69) + "\r\n\r\n",
			"GET http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\n" + mine + "A: " + strings.Repeat("a", 64<<10-69) + "\r\n\r\n"},
		{"upgrade", "GET http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n",
			"GET http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\n" + mine + "Connection: Upgrade\r\nUpgrade: x\r\n\r\n"},
	} {
		for _, cut := range []int{0, 1} {
			for _, logged := range []bool{true, false} {
				t.Run(fmt.Sprintf("%s/cut=%d/login=%v", tt.name, cut, logged), func(t *testing.T) {
					t.Parallel()
					conns := make(chan *net.TCPConn, 1)
					done := make(chan struct{})
					exit := exitAt("e", origin(t, func(c *net.TCPConn) { conns <- c; <-done }))
					want := strings.Replace(tt.want, mine, loginOf("e"), 1)
					if !logged {
						exit.Proxy.User, want = "", plain(tt.want)
					}
					b := startPolicy(t, Config{}, 0, poolOf(policy.StickyNone, []policy.Exit{exit}, anything()))
					defer close(done)
					client := b.toPool()
					go pieces(client, tt.sent, cut)
					var proxy *net.TCPConn
					select {
					case proxy = <-conns:
					case <-time.After(20 * time.Second):
						t.Fatal("the exit saw no connection")
					}
					got := make([]byte, len(want))
					if n, err := io.ReadFull(proxy, got); err != nil || string(got) != want {
						t.Fatalf("got %d bytes %q, %v; want %d bytes %q", n, clip(got[:n]), err, len(want), clip([]byte(want)))
					}
					mustWrite(t, proxy, shortAnswer[:len(shortAnswer)-1])
					proxy.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
					if n, err := proxy.Read(got[:1]); n > 0 || !os.IsTimeout(err) {
						t.Errorf("then %d bytes, %v, want none", n, err)
					}
				})
			}
		}
	}
}

// Requests that come together go by one exit after the other, each with its own
// login.
func TestPoolPipelined(t *testing.T) {
	b, x := startPool(t, policy.StickyNone, 2, anything())
	client := b.toPool()
	post := "POST http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\n" + basic("one") + "Content-Length: 5\r\n\r\nhello"
	mustWrite(t, client, strings.Repeat(post, 6))
	mustRead(t, client, strings.Repeat(shortAnswer, 6))
	for i, x := range x {
		want := "POST http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\n" + loginOf("e"+strconv.Itoa(i)) + "Content-Length: 5\r\n\r\n"
		for k, head := range x.asked() {
			if head != want || x.sentWith()[k] != "hello" {
				t.Errorf("e%d got %q with the body %q, want %q", i, head, x.sentWith()[k], want)
			}
		}
		if len(x.asked()) != 3 {
			t.Errorf("e%d got %d requests, want 3", i, len(x.asked()))
		}
	}
}

// A pool speaks HTTP as a proxy does, and nothing else. What it cannot choose an
// exit for goes nowhere.
func TestPoolTakesProxyRequestsOnly(t *testing.T) {
	for _, tt := range []struct {
		name, send string
		status     int // 0: a reset
		body       string
	}{
		{"origin form", "GET / HTTP/1.1\r\nHost: origin.test\r\n\r\n", 400, "ask for http://HOST/PATH, or CONNECT HOST:PORT"},
		{"asterisk", "OPTIONS * HTTP/1.1\r\nHost: origin.test\r\n\r\n", 400, "this is the pool residential, an HTTP proxy"},
		{"TRACE", "TRACE http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\nMax-Forwards: 0\r\n\r\n", 501, "TRACE"},
		{"no host", "GET http:// HTTP/1.1\r\nHost: origin.test\r\n\r\n", 400, ""},
		{"two lengths", "GET http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400, ""},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 0, ""},
		{"TLS", hello(t, "origin.test"), 0, ""},
		{"SOCKS4", "\x04\x01\x00\x50\x00\x00\x00\x01u\x00origin.test\x00", 0, ""},
		{"SOCKS5", greetNone, 0, ""},
		{"nothing that is known", "\x00\x01\x02\x03", 0, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, x := startPool(t, policy.StickyNone, 1, anything())
			client := b.toPool()
			if tt.status == 0 {
				mustWrite(t, client, tt.send)
				mustBreak(t, client)
			} else {
				mustWrite(t, client, tt.send)
				resp := readResponse(t, bufio.NewReader(client), "GET")
				body, _ := io.ReadAll(resp.Body)
				if resp.StatusCode != tt.status || !strings.Contains(string(body), tt.body) || !resp.Close {
					t.Errorf("got %d, close %v, %q; want %d and %q", resp.StatusCode, resp.Close, body, tt.status, tt.body)
				}
			}
			if n := x[0].met(); n != 0 {
				t.Errorf("the exit saw %d connections, want none", n)
			}
			if refused := b.told(policy.EventRefused); len(refused) != 1 {
				t.Errorf("refusals are %q, want one", refused)
			}
			if b.hook.negative(poolAddr) {
				t.Error("the next connection to the pool would be native, where nobody listens")
			}
			client.Close()
			b.nothingKept()
		})
	}
}

// A client may be silent for as long as it likes, and leave.
func TestPoolSilentClient(t *testing.T) {
	b, x := startPool(t, policy.StickyNone, 1, anything())
	silent, leaving := b.toPool(), b.toPool()
	time.Sleep(sniffTime + 3*tick)
	if x[0].met() != 0 {
		t.Error("a connection was made for a client that asked for nothing")
	}
	mustAsk(t, silent, getFrom("origin.test"), 200)
	leaving.CloseWrite()
	mustEnd(t, leaving, false)
	if refused := b.told(policy.EventRefused); len(refused) != 0 {
		t.Errorf("refusals are %q, want none", refused)
	}
	half := b.connectFlow(poolFlow(2))
	mustWrite(t, half, "GET http://orig")
	half.CloseWrite()
	mustBreak(t, half)
}

// A client that begins a message to a pool and waits is cut.
func TestPoolHalfMessage(t *testing.T) {
	for _, text := range []string{"GE", "CONNECT origin.test:443 HTTP/1.1\r\nHost"} {
		p := poolOf(policy.StickyNone, []policy.Exit{exitAt("e", nobody(t))}, anything())
		b := startPolicy(t, Config{HandshakeTime: 200 * time.Millisecond}, 0, p)
		client := b.toPool()
		mustWrite(t, client, text)
		mustBreak(t, client)
		if told := b.told(policy.EventRefused); len(told) != 1 || !strings.Contains(told[0], "with pool residential: not finished within") {
			t.Errorf("events are %q", told)
		}
	}
}

// A 503 with a long Retry-After at one exit: what follows goes by the others, at
// once, and that shows.
func TestPoolSwitchesOnCapacity(t *testing.T) {
	b, x := startPool(t, policy.StickyNone, 2, anything())
	client := b.toPool()
	x[0].says(unavailable)
	mustAsk(t, client, getFrom("origin.test"), 503)
	began := time.Now()
	for range 6 {
		mustAsk(t, client, getFrom("origin.test"), 200)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("six requests took %v: they waited for an exit", took)
	}
	if got := counts(x); !slices.Equal(got, []int{1, 6}) {
		t.Errorf("the exits saw %v requests, want all but the first at e1", got)
	}
	// Another destination is no matter of this one.
	x[0].answers(nil)
	mustAsk(t, client, getFrom("other.test"), 200)
	mustAsk(t, client, getFrom("other.test"), 200)
	if got := counts(x); !slices.Equal(got, []int{2, 7}) {
		t.Errorf("the exits saw %v requests, want one more each", got)
	}
	told := b.told(policy.EventExitSwitch)
	if len(told) != 1 || told[0] != "pool residential: e0 is closed, e1 takes its turn" {
		t.Errorf("switches are told as %q, want one event", told)
	}
	for _, ev := range b.events.Recent(100) {
		if ev.Kind == policy.EventExitSwitch && (ev.Wait < time.Hour-time.Minute || ev.Wait > 2*time.Hour) {
			t.Errorf("the switch is for %v, want about an hour", ev.Wait)
		}
	}
	// Of six requests at e1 the odd ones were its own turns.
	b.wantSwitches("residential e0 e1", 5, 6)
	client.Close()
	b.nothingKept()
}

// wantSwitches looks for one kind of switch, and how often it happened.
func (b *bench) wantSwitches(what string, least, most uint64) {
	b.t.Helper()
	s := b.engine.Switches()
	if len(s) != 1 || s[0].Pool+" "+s[0].From+" "+s[0].To != what || s[0].Count() < least || s[0].Count() > most {
		for _, s := range s {
			b.t.Errorf("switch %s %s %s: %d times", s.Pool, s.From, s.To, s.Count())
		}
		b.t.Errorf("want %s, %d to %d times", what, least, most)
	}
}

// An exit that refuses CONNECT, or egressd's own login, is in trouble for all
// destinations.
func TestPoolSwitchesOnTrouble(t *testing.T) {
	for _, tt := range []struct{ name, request, answer string }{
		{"CONNECT", connectTo("origin.test:80"), "HTTP/1.1 502 No\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n"},
		{"CONNECT limited", connectTo("origin.test:80"), "HTTP/1.1 429 No\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n"},
		{"login, CONNECT", connectTo("origin.test:80"), "HTTP/1.1 407 Who\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n"},
		{"login", getFrom("origin.test"), "HTTP/1.1 407 Who\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b, x := startPool(t, policy.StickyNone, 2, anything())
			x[0].says(tt.answer)
			client := b.toPool()
			mustWrite(t, client, tt.request)
			mustRead(t, client, tt.answer)
			for i := range 4 {
				mustAsk(t, client, getFrom(fmt.Sprintf("o%d.test", i)), 200)
			}
			if got := counts(x); !slices.Equal(got, []int{1, 4}) {
				t.Errorf("the exits saw %v requests, want all but the first at e1", got)
			}
			if l := b.engine.Find("exits/-/e0"); !closedNow(l, b.cfg.Now()) {
				t.Error("the exit is not closed")
			}
			if told := b.told(policy.EventExitSwitch); len(told) == 0 || told[0] != "pool residential: e0 is in trouble, e1 takes its turn" {
				t.Errorf("switches are told as %q", told)
			}
		})
	}
}

// A proxy that cannot be reached is trouble of its exit; the request goes by
// another one, and its client sees nothing of it.
func TestPoolDialFailure(t *testing.T) {
	x := newExitProxy(t)
	exits := []policy.Exit{exitAt("dead", nobody(t)), exitAt("alive", x.dest)}
	for _, request := range []string{getFrom("origin.test", basic("me")), connectTo("origin.test:80"),
		"POST http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\nContent-Length: 5\r\n\r\nhello"} {
		b := startPolicy(t, Config{}, 0, poolOf(policy.StickyNone, slices.Clone(exits), anything()))
		client := b.toPool()
		mustWrite(t, client, request)
		if strings.HasPrefix(request, "CONNECT") {
			mustRead(t, client, established)
		} else {
			mustRead(t, client, shortAnswer)
		}
		if !strings.Contains(x.last(), loginOf("alive")) || strings.Contains(x.last(), basicValue("customer-dead")) {
			t.Errorf("the exit got %q, want its own login", x.last())
		}
		b.wantGranted("test/origin.test/alive 1", "exits/-/alive 1") // what was not sent is not spent
		if l := b.engine.Find("exits/-/dead"); !closedNow(l, b.cfg.Now()) {
			t.Error("the exit that cannot be reached is not closed")
		}
		if told := b.told(policy.EventUnreachable); len(told) != 1 || !strings.HasPrefix(told[0], "dead of pool residential at 127.0.0.1:") {
			t.Errorf("events are %q", told)
		}
		for _, y := range b.engine.Tallies() {
			if want := y.Exit == "dead"; y.Destination == "test" && (y.Limited(verdict.ExitTrouble) == 1) != want {
				t.Errorf("%s %s: trouble %d", y.Destination, y.Exit, y.Limited(verdict.ExitTrouble))
			}
		}
		if b.hook.negative(poolAddr) || b.hook.negative(netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), exits[0].Proxy.First)) {
			t.Error("a negative entry was made")
		}
		client.Close()
		b.nothingKept()
	}
}

// Where no exit can be reached the client is told so, and may ask again.
func TestPoolAllDead(t *testing.T) {
	var exits []policy.Exit
	for i := range 6 {
		exits = append(exits, exitAt("e"+strconv.Itoa(i), nobody(t)))
	}
	rule := anything()
	rule.Queue.MaxWait = 900 * time.Millisecond // those that were tried are closed for longer
	b := startPolicy(t, Config{}, 0, poolOf(policy.StickyNone, exits, rule))
	client := b.toPool()
	r := bufio.NewReader(client)
	for i, method := range []string{"GET", "HEAD", "POST"} {
		mustWrite(t, client, method+" http://origin"+strconv.Itoa(i)+".test/ HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc")
		resp := readResponse(t, r, method)
		body, _ := io.ReadAll(resp.Body)
		switch status := resp.Header.Get("Proxy-Status"); {
		case i == 0 && (resp.StatusCode != 502 || !strings.HasPrefix(status, `egressd; error=connection_refused; details="e`) ||
			!strings.Contains(status, " of pool residential at 127.0.0.1:") || !strings.Contains(string(body), "cannot be reached: connection refused")):
			t.Errorf("got %d %v %q, want the failure of an exit", resp.StatusCode, resp.Header, body)
		case i > 0 && resp.StatusCode != 502 && resp.StatusCode != 429:
			t.Errorf("got %d, want 502, or 429 as all are closed", resp.StatusCode)
		case resp.Close:
			t.Error("the connection ends, want it to stay")
		}
		if told := b.told(policy.EventUnreachable); len(told) > (i+1)*(1+maxMoves) || len(told) == 0 {
			t.Errorf("after %d requests: %q", i+1, told)
		}
	}
	client.Close()
	b.nothingKept()
}

// A connection to a proxy that does not answer is given up in time, even if the
// client has patience.
func TestPoolDialTimeout(t *testing.T) {
	// A listener whose queue is full drops what comes.
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	mute, errno := localAddr(fd)
	if errno != 0 {
		t.Fatal(errno)
	}
	filler, err := net.Dial("tcp4", mute.String())
	if err != nil {
		t.Fatal(err)
	}
	defer filler.Close()
	x := newExitProxy(t)
	const limit = 300 * time.Millisecond
	b := startPolicy(t, Config{ConnectTime: limit}, 0, poolOf(policy.StickyNone, []policy.Exit{exitAt("mute", mute), exitAt("alive", x.dest)}, anything()))
	client := b.toPool()
	began := time.Now()
	mustAsk(t, client, getFrom("origin.test"), 200)
	if took := time.Since(began); took < limit {
		t.Errorf("answered after %v, want the limit of %v to pass: this proxy answers", took, limit)
	}
	if told := b.told(policy.EventUnreachable); len(told) != 1 || !strings.HasSuffix(told[0], "connection timed out") {
		t.Errorf("events are %q", told)
	}

	b = startPolicy(t, Config{ConnectTime: limit}, 0, poolOf(policy.StickyNone, []policy.Exit{exitAt("mute", mute)}, anything()))
	client = b.toPool()
	if resp := mustAsk(t, client, getFrom("origin.test"), 502); !strings.Contains(resp.Header.Get("Proxy-Status"), "error=connection_timeout") {
		t.Errorf("got %v", resp.Header)
	}
	leaving := b.connectFlow(poolFlow(2))
	mustWrite(t, leaving, getFrom("other.test"))
	time.Sleep(limit / 3)
	leaving.Close()
	client.Close()
	b.nothingKept()
}

// Names without an address: their exits do not take part until they have one.
func TestPoolNames(t *testing.T) {
	x := newExitProxy(t)
	exits := []policy.Exit{exitAt("nameless", x.dest), exitAt("named", x.dest)}
	exits[0].Proxy.Host, exits[1].Proxy.Host = "no.test", "yes.test"
	b := startPolicy(t, Config{}, 0, poolOf(policy.StickyNone, exits, anything()))
	client := b.toPool()
	resp := mustAsk(t, client, getFrom("origin.test"), 502)
	if got := resp.Header.Get("Proxy-Status"); !strings.Contains(got, "error=dns_error") || !strings.Contains(got, " of pool residential") {
		t.Errorf("got %q", got)
	}
	time.Sleep(1100 * time.Millisecond) // after which what was closed has opened
	b.engine.SetAddresses(map[string]netip.Addr{"yes.test": x.dest.Addr()})
	for range 3 {
		mustAsk(t, client, getFrom("origin.test"), 200)
	}
	if x.last() != getFrom("origin.test", loginOf("named")) {
		t.Errorf("the exit got %q", x.last())
	}
	told := b.told(policy.EventExitSwitch)
	if len(told) != 1 || told[0] != "pool residential: nameless has no address, named takes its turn" {
		t.Errorf("switches are told as %q", told)
	}
	for _, ev := range b.events.Recent(100) {
		if ev.Kind == policy.EventExitSwitch && ev.Wait != 0 {
			t.Errorf("the switch is for %v, want no time", ev.Wait)
		}
	}
}

// What keeps its exit is never moved, in whatever state that is.
func TestPoolSticky(t *testing.T) {
	for _, tt := range []struct {
		sticky policy.Sticky
		key    func(i int) (pid uint32, host string, fields string)
	}{
		{policy.StickyClient, func(i int) (uint32, string, string) { return uint32(i), "origin.test", basic("same") }},
		{policy.StickySession, func(i int) (uint32, string, string) { return 1, "origin.test", basic("job-" + strconv.Itoa(i)) }},
		{policy.StickyDestination, func(i int) (uint32, string, string) { return 1, fmt.Sprintf("o%d.test", i), "" }},
	} {
		rule := anything()
		rule.Queue.MaxWait = time.Second
		b, x := startPool(t, tt.sticky, 3, rule)
		const keys = 12
		ask := func(i int) *http.Response {
			pid, host, fields := tt.key(i)
			client := b.connectFlow(poolFlow(pid))
			defer client.Close()
			return roundTrip(t, client, getFrom(host, fields))
		}
		home := map[int]int{} // key → exit
		for i := range keys {
			for range 3 {
				before := counts(x)
				if got := ask(i).StatusCode; got != 200 {
					t.Fatalf("sticky %d: got %d", tt.sticky, got)
				}
				for k, n := range counts(x) {
					if n == before[k] {
						continue
					}
					if old, known := home[i]; known && old != k {
						t.Errorf("sticky %d: key %d moved from e%d to e%d", tt.sticky, i, old, k)
					}
					home[i] = k
				}
			}
		}
		if len(slices.Compact(slices.Sorted(maps.Values(home)))) < 2 {
			t.Fatalf("sticky %d: all keys have one exit, which proves nothing", tt.sticky)
		}
		x[home[0]].says(unavailable)
		if got := ask(0).StatusCode; got != 503 {
			t.Fatalf("sticky %d: got %d, want 503", tt.sticky, got)
		}
		before := counts(x)
		for range 3 {
			if resp := ask(0); resp.StatusCode != 429 || resp.Header.Get("Retry-After") == "" {
				t.Errorf("sticky %d: got %d %v, want a refusal: its exit is closed for an hour", tt.sticky, resp.StatusCode, resp.Header)
			}
		}
		if got := counts(x); !slices.Equal(got, before) {
			t.Errorf("sticky %d: the exits saw %v requests, want %v", tt.sticky, got, before)
		}
		if len(b.engine.Switches()) != 0 || len(b.told(policy.EventExitSwitch)) != 0 {
			t.Errorf("sticky %d: there were switches", tt.sticky)
		}
	}
	// Without a user name there is no session to keep.
	b, x := startPool(t, policy.StickySession, 2, anything())
	client := b.toPool()
	for range 4 {
		mustAsk(t, client, getFrom("origin.test"), 200)
	}
	if got := counts(x); !slices.Equal(got, []int{2, 2}) {
		t.Errorf("without a session the exits saw %v requests, want turns", got)
	}
	// Nor is it moved when its exit cannot be reached.
	dead := []policy.Exit{exitAt("a", nobody(t)), exitAt("b", nobody(t))}
	rule := anything()
	rule.Queue.MaxWait = 10 * time.Second
	b = startPolicy(t, Config{}, 0, poolOf(policy.StickyClient, dead, rule))
	client = b.toPool()
	for range 2 {
		mustAsk(t, client, getFrom("origin.test"), 502)
	}
	if told := b.told(policy.EventUnreachable); len(told) != 2 || told[0] != told[1] {
		t.Errorf("events are %q, want the same exit twice", told)
	}
}

// A request that is held for an exit which then closes for long goes by another
// one, where a client without a pool would be refused.
func TestPoolHeldMoves(t *testing.T) {
	rule := anything()
	rule.Rate = policy.Rate{Count: 1, Every: 10 * time.Second}
	rule.Queue.MaxWait = 15 * time.Second
	b, x := startPool(t, policy.StickyNone, 2, rule)
	client := b.toPool()
	mustAsk(t, client, getFrom("origin.test"), 200) // e0
	held := b.connectFlow(poolFlow(2))
	mustAsk(t, client, getFrom("other.test"), 200)  // e1 begins there
	mustAsk(t, client, getFrom("other.test"), 200)  // e0
	mustAsk(t, client, getFrom("origin.test"), 200) // e1
	mustWrite(t, held, getFrom("origin.test"))
	lane := b.engine.Find("test/origin.test/e0")
	b.waitHeld(lane)
	b.gate.SetCooldown(lane, b.cfg.Now().Add(time.Hour))
	other := b.engine.Find("test/origin.test/e1")
	b.waitHeld(other)
	if lane.Waiting.Load() != 0 {
		t.Error("it waits for both")
	}
	held.Close()
	b.nothingKeptBut(client)
	if got := counts(x); !slices.Equal(got, []int{2, 2}) {
		t.Errorf("the exits saw %v requests, want 2 each", got)
	}
}

// nothingKeptBut is nothingKept while a client is connected.
func (b *bench) nothingKeptBut(client *net.TCPConn) {
	b.t.Helper()
	client.Close()
	b.nothingKept()
}

// A proxy that ends its connection between two requests ends none of the
// client's.
func TestPoolIdleUpstream(t *testing.T) {
	for _, end := range []func(*exitProxy){
		(*exitProxy).hangUp,
		func(x *exitProxy) { // reset
			x.mu.Lock()
			defer x.mu.Unlock()
			for c := range x.open {
				c.SetLinger(0)
				c.Close()
			}
		},
		func(x *exitProxy) { // a last word that nobody asked for
			x.mu.Lock()
			for c := range x.open {
				io.WriteString(c, "HTTP/1.1 408 Timeout\r\nContent-Length: 0\r\n\r\n")
			}
			x.mu.Unlock()
			x.hangUp()
		},
	} {
		conns := anything()
		conns.Name, conns.Unit, conns.Concurrency = "conns", policy.Connections, 1
		b, x := startPool(t, policy.StickyClient, 1, anything(), conns)
		client := b.toPool()
		for i := range 3 {
			mustAsk(t, client, getFrom("origin.test"), 200)
			end(x[0])
			b.dropped()
			if n := b.engine.Find("exits/-/e0").InFlight.Load(); n != 0 {
				t.Errorf("round %d: %d under way", i, n)
			}
		}
		if n := x[0].met(); n != 3 {
			t.Errorf("%d upstream connections, want 3", n)
		}
		client.Close()
		b.nothingKept()
	}
}

// dropped waits until no connection has an upstream one.
func (b *bench) dropped() {
	b.t.Helper()
	waitFor(b.t, "the upstream connection to be given up", func() bool {
		var open atomic.Int64
		b.each(func(c *conn) {
			if c.up.fd >= 0 {
				open.Add(1)
			}
		})
		return open.Load() == 0
	})
}

// Lanes that count connections count those to the exits, as long as they stand.
func TestPoolConnections(t *testing.T) {
	conns := anything()
	conns.Name, conns.Unit, conns.Concurrency = "conns", policy.Connections, 1
	b, _ := startPool(t, policy.StickyNone, 2, conns)
	client := b.toPool()
	for range 4 {
		mustAsk(t, client, getFrom("origin.test"), 200)
	}
	b.wantGranted("conns/origin.test/e0 2", "conns/origin.test/e1 2", "exits/-/e0 2", "exits/-/e1 2")
	waitFor(t, "one connection, to e1", func() bool {
		return b.engine.Find("conns/origin.test/e0").InFlight.Load() == 0 && b.engine.Find("conns/origin.test/e1").InFlight.Load() == 1
	})
	client.Close()
	b.nothingKept()
}

// A tunnel has one exit for all that goes through it, however many turns there
// are in between.
func TestPoolTunnel(t *testing.T) {
	b, x := startPool(t, policy.StickyNone, 2, anything())
	first, second := b.toPool(), b.toPool()
	mustWrite(t, first, connectTo("origin.test:80", basic("me")))
	mustRead(t, first, established)
	mustWrite(t, second, connectTo("origin.test:80"))
	mustRead(t, second, established)
	const inner = "GET /a HTTP/1.1\r\nHost: origin.test\r\nProxy-Authorization: Basic inner\r\n\r\n"
	for range 3 {
		mustAsk(t, first, inner, 200)
		mustAsk(t, second, innerGet, 200)
	}
	if got := x[0].asked(); len(got) != 1 || got[0] != connectTo("origin.test:80", loginOf("e0")) {
		t.Errorf("e0 was asked for %q", got)
	}
	if got := x[0].tunnelled(); len(got) != 3 || got[0] != inner {
		t.Errorf("through the tunnel of e0 came %q, want three requests as they were sent", got)
	}
	if got := x[1].tunnelled(); len(got) != 3 || got[0] != innerGet {
		t.Errorf("through the tunnel of e1 came %q", got)
	}
	b.wantGranted("test/origin.test/e0 3", "test/origin.test/e1 3", "exits/-/e0 3", "exits/-/e1 3")
	x[0].says(limited(""))
	if resp := roundTrip(t, first, inner); resp.StatusCode != 429 {
		t.Errorf("got %d", resp.StatusCode)
	}
	if a, b := b.engine.Find("test/origin.test/e0"), b.engine.Find("test/origin.test/e1"); a.Cell.Limited.Load() != 1 || b.Cell.Limited.Load() != 0 {
		t.Error("a limit inside the tunnel of e0 is not of e0 alone")
	}
	// TLS is told by its name there, as anywhere.
	third := b.toPool()
	mustWrite(t, third, connectTo("192.0.2.1:443"))
	mustRead(t, third, established)
	mustWrite(t, third, hello(t, "secure.test"))
	waitFor(t, "the lane of the name", func() bool {
		return slices.ContainsFunc(b.granted(), func(s string) bool { return strings.HasPrefix(s, "test/secure.test/e") })
	})
	for _, c := range []*net.TCPConn{first, second, third} {
		c.Close()
	}
	x[0].hangUp()
	x[1].hangUp()
	b.nothingKept()
}

// What egressd repeats itself goes by the next exit, with that one's login.
func TestPoolRetryMoves(t *testing.T) {
	for _, refusal := range []string{
		slow(), // a 429 with a long wait
		"HTTP/1.1 503 Later\r\nRetry-After: 3600\r\nContent-Length: 3\r\n\r\nno!",
		"HTTP/1.1 503 Later\r\nConnection: close\r\nContent-Length: 3\r\n\r\nno!",
	} {
		rule := anything()
		rule.Retry = absorbing().Retry
		b, x := startPool(t, policy.StickyNone, 2, rule)
		x[0].says(refusal)
		client := b.toPool()
		put := "PUT http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\nA: b\r\n" + basic("me") + "Content-Length: 5\r\n\r\n"
		mustWrite(t, client, put+"hello")
		mustRead(t, client, shortAnswer)
		for i, x := range x {
			if want := strings.Replace(put, basic("me"), loginOf("e"+strconv.Itoa(i)), 1); len(x.asked()) != 1 || x.asked()[0] != want || x.sentWith()[0] != "hello" {
				t.Errorf("e%d got %q with %q, want %q", i, x.asked(), x.sentWith(), want)
			}
		}
		mustAsk(t, client, getFrom("origin.test"), 200)
		if told := b.told(policy.EventRetry); len(told) != 1 || !strings.HasSuffix(told[0], "attempt 2 of 3") {
			t.Errorf("events are %q", told)
		}
		first := uint64(len(put) - len(basic("me")) + len(loginOf("e0")) + len("hello"))
		want := map[string]uint64{"e0": first, "e1": first + uint64(len(getFrom("origin.test", loginOf("e1"))))}
		waitFor(t, fmt.Sprintf("bytes sent as %v", want), func() bool {
			sent := map[string]uint64{}
			for _, y := range b.engine.Tallies() {
				if n := y.Bytes(policy.Sent); n > 0 {
					sent[y.Exit] += n
				}
			}
			return maps.Equal(sent, want)
		})
		client.Close()
		b.nothingKept()
	}
	// All refuse: the client gets what came first to last.
	rule := anything()
	rule.Retry = absorbing().Retry
	rule.Queue.MaxWait = time.Second
	b, x := startPool(t, policy.StickyNone, 2, rule)
	x[0].says(slow())
	x[1].says(unavailable)
	client := b.toPool()
	mustWrite(t, client, getFrom("origin.test"))
	mustRead(t, client, unavailable)
	if got := counts(x); !slices.Equal(got, []int{1, 1}) {
		t.Errorf("the exits saw %v requests, want one each", got)
	}
	client.Close()
	b.nothingKept()
	// The next one cannot be reached: the client gets the answer that there was.
	exits := []policy.Exit{exitAt("a", x[0].dest), exitAt("b", nobody(t))}
	b = startPolicy(t, Config{}, 0, poolOf(policy.StickyNone, exits, rule))
	client = b.toPool()
	mustWrite(t, client, getFrom("origin.test"))
	mustRead(t, client, slow())
	client.Close()
	b.nothingKept()
	// Or there is a third.
	third := newExitProxy(t)
	exits = []policy.Exit{exitAt("a", x[0].dest), exitAt("b", nobody(t)), exitAt("c", third.dest)}
	b = startPolicy(t, Config{}, 0, poolOf(policy.StickyNone, exits, rule))
	client = b.toPool()
	mustWrite(t, client, getFrom("origin.test"))
	mustRead(t, client, shortAnswer)
	if third.last() != getFrom("origin.test", loginOf("c")) {
		t.Errorf("the third got %q", third.last())
	}
	client.Close()
	b.nothingKept()
}

// A limit through a rotating exit closes no lane of it, but the connection.
func TestPoolRotating(t *testing.T) {
	x := newExitProxy(t)
	exit := exitAt("rotator", x.dest)
	exit.Proxy.Rotating = true
	b := startPolicy(t, Config{}, 0, poolOf(policy.StickyNone, []policy.Exit{exit}, anything()))
	x.says(limited("no"))
	for range 3 {
		client := b.toPool()
		mustWrite(t, client, getFrom("origin.test"))
		mustRead(t, client, limited("no"))
		mustEnd(t, client, false)
	}
	if x.met() != 3 {
		t.Errorf("%d connections, want one for each", x.met())
	}
	for _, l := range b.engine.Lanes() {
		if _, closed := l.Closed(); closed {
			t.Errorf("lane %s was closed", l.ID())
		}
	}
}

// The upstream connection has what the client's socket has, only its destination
// is another; where that cannot be, it breaks.
func TestPoolFidelity(t *testing.T) {
	from := make(chan net.Addr, 10)
	exit := exitAt("e", origin(t, func(c *net.TCPConn) { from <- c.RemoteAddr(); io.Copy(io.Discard, c) }))
	b := startPolicy(t, Config{}, 0, poolOf(policy.StickyNone, []policy.Exit{exit}, anything()))
	f := poolFlow(1)
	f.Source = netip.MustParseAddr("127.0.0.42")
	mustWrite(t, b.connectFlow(f), getFrom("origin.test"))
	if got := (<-from).(*net.TCPAddr).AddrPort().Addr(); got != f.Source {
		t.Errorf("the exit saw %v, want %v", got, f.Source)
	}
	f.Source = netip.MustParseAddr("192.0.2.1")
	client := b.connectFlow(f)
	mustWrite(t, client, getFrom("origin.test"))
	if resp := readResponse(t, bufio.NewReader(client), "GET"); resp.StatusCode != 502 {
		t.Errorf("from a source of another host: got %d, want 502", resp.StatusCode)
	}
	f.Source, f.Ifindex = netip.Addr{}, 1<<30
	client = b.connectFlow(f)
	mustWrite(t, client, getFrom("origin.test"))
	mustWrite(t, client, "")
	readEnd(t, client)
	if len(from) != 0 {
		t.Error("the exit was reached in another way")
	}
	if b.hook.negative(poolAddr) {
		t.Error("the next connection to the pool would be native, where nobody listens")
	}
}

// readEnd reads until the connection ends, with a 502 or a reset.
func readEnd(t testing.TB, c *net.TCPConn) {
	t.Helper()
	c.CloseWrite()
	text, err := io.ReadAll(c)
	if err == nil && !bytes.HasPrefix(text, []byte("HTTP/1.1 502 ")) {
		t.Errorf("got %q, want a failure", text)
	}
}

// A connection outlives changes of the policy, and follows them.
func TestPoolReload(t *testing.T) {
	b, x := startPool(t, policy.StickyNone, 1, anything())
	client := b.toPool()
	mustAsk(t, client, getFrom("origin.test"), 200)
	next := newExitProxy(t)
	b.engine.Swap(poolOf(policy.StickyNone, []policy.Exit{exitAt("next", next.dest)}, anything()), b.cfg.Now())
	mustAsk(t, client, getFrom("origin.test"), 200)
	if x[0].seen() != 1 || next.last() != getFrom("origin.test", loginOf("next")) {
		t.Errorf("the old exit saw %d requests, the new one %q", x[0].seen(), next.last())
	}
	b.engine.Swap(&policy.Policy{Budgets: []*policy.Budget{anything()}}, b.cfg.Now())
	if resp := mustAsk(t, client, getFrom("origin.test"), 502); !resp.Close {
		t.Error("the connection to a pool that is gone stays")
	}
}

// Logins, of egressd as of clients, go to the exits' proxies and are seen nowhere
// else.
func TestPoolCredentials(t *testing.T) {
	var got strings.Builder
	rule := anything()
	rule.Retry = absorbing().Retry
	rule.Queue.MaxWait = time.Second
	b, x := startPool(t, policy.StickySession, 2, rule)
	exits := append(slices.Clone(b.engine.Policy().Exits), exitAt("dead", nobody(t)), exitAt("nameless", netip.MustParseAddrPort("127.0.0.1:1")))
	exits[3].Proxy.Host = "no.test"
	b.engine.Swap(poolOf(policy.StickySession, exits, rule), b.cfg.Now())
	x[0].answers(func(head string) string {
		switch {
		case strings.HasPrefix(head, "CONNECT"):
			return "HTTP/1.1 407 Who\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n"
		case strings.Contains(head, "limited"):
			return slow()
		}
		return shortAnswer
	})
	look := func() {
		fmt.Fprintf(&got, "%+v %#v %s\n", b.Flows(), b.Flows(), b.logs.String())
		for _, ev := range b.events.Recent(1000) {
			fmt.Fprintf(&got, "%+v\n", ev)
		}
		for _, l := range b.engine.Lanes() {
			fmt.Fprintln(&got, l.ID(), l.Label)
		}
		for _, y := range b.engine.Tallies() {
			fmt.Fprintln(&got, y.Destination, y.Exit)
		}
		for _, s := range b.engine.Switches() {
			fmt.Fprintln(&got, s.Pool, s.From, s.To)
		}
	}
	for i, request := range []string{
		getFrom("origin.test"), getFrom("origin.test", basic("job-1")), getFrom("origin.test", basic("job-2")), getFrom("limited.test", basic("job-1")),
		getFrom("limited.test"), getFrom("limited.test"), connectTo("origin.test:443"), connectTo("origin.test:443", basic("job-3")),
		"TRACE http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\n\r\n", "GET / HTTP/1.1\r\nHost: origin.test\r\n" + basic("job-1") + "\r\n",
		getFrom("origin.test", "Bad : x\r\n", basic("job-1")), "\x05\x01" + basic("job-1"),
	} {
		client := b.connectFlow(poolFlow(uint32(i)))
		mustWrite(t, client, request)
		client.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		said, _ := io.ReadAll(client)
		got.Write(said)
		look()
		client.Close()
	}
	for _, must := range []string{"dead of pool residential", "nameless", "exit_switch", "cooldown", "retry", "unreachable"} {
		if !strings.Contains(got.String(), must) {
			t.Errorf("nothing was told of %q: too little for this test", must)
		}
	}
	secrets := []string{password, "Basic", "customer-", "job-1", base64.StdEncoding.EncodeToString([]byte("job-1"))[:6]}
	for _, e := range exits {
		secrets = append(secrets, basicValue(e.Proxy.User), basicValue(e.Proxy.User)[:12])
	}
	for _, secret := range secrets {
		text := got.String()
		if i := strings.Index(text, secret); i >= 0 {
			t.Errorf("%q is told: …%s…", secret, text[max(0, i-200):min(i+100, len(text))])
		}
	}
	// Nor does an exit see the login of a client, or of another exit.
	for i, x := range x {
		mine := loginOf("e" + strconv.Itoa(i))
		for _, head := range x.asked() {
			if strings.Count(head, mine) != 1 || strings.Count(strings.ToLower(head), "proxy-authorization") != 1 {
				t.Errorf("e%d got %q", i, head)
			}
		}
	}
}

// TestSoakPool has many clients at a pool whose exits have their days. Afterwards
// nothing may be left.
func TestSoakPool(t *testing.T) {
	const (
		clients = 40
		span    = 3 * time.Second
	)
	rule := anything()
	rule.Rate = perSecond(500)
	rule.Queue = policy.Queue{Max: 40, MaxWait: 100 * time.Millisecond}
	rule.Retry = policy.Retry{Absorb: true, Attempts: 3, MaxBody: 32 << 10, Statuses: []int{503}}
	b, x := startPool(t, policy.StickyNone, 4, rule)
	exits := append(slices.Clone(b.engine.Policy().Exits), exitAt("dead", nobody(t)))
	b.engine.Swap(poolOf(policy.StickyNone, exits, rule), b.cfg.Now())
	for i, x := range x {
		x.answers(func(head string) string {
			switch rand.IntN(20) {
			case 0:
				return "" // it hangs up
			case 1:
				return "HTTP/1.1 503 Later\r\nRetry-After-Ms: 50\r\nContent-Length: 5\r\n\r\nlater"
			case 2:
				return "HTTP/1.1 429 No\r\nRetry-After-Ms: 20\r\nContent-Length: 2\r\n\r\nno"
			case 3:
				if strings.HasPrefix(head, "CONNECT") {
					return established
				}
				return "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok"
			case 4:
				if i == 0 {
					x.hangUpSome()
				}
			}
			if strings.HasPrefix(head, "CONNECT") {
				return established
			}
			return shortAnswer
		})
	}
	before := descriptors(t)
	var wg sync.WaitGroup
	var answers, failures atomic.Int64
	end := time.Now().Add(span)
	for k := range uint64(clients) {
		wg.Go(func() {
			for rnd := rand.New(rand.NewPCG(k, 3)); time.Now().Before(end); {
				c := b.dial(poolFlow(uint32(k)))
				if c == nil {
					t.Error("no connection")
					return
				}
				r := bufio.NewReader(c)
				tunnel := rnd.IntN(4) == 0
				for i := range 1 + rnd.IntN(20) {
					text := getFrom("origin.test", basic("x"))
					switch {
					case tunnel && i == 0:
						text = connectTo("origin.test:80")
					case tunnel:
						text = simpleGet
					case rnd.IntN(3) == 0:
						text = "PUT http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\nContent-Length: 1000\r\n\r\n" + strings.Repeat("b", 1000)
					}
					if rnd.IntN(30) == 0 {
						c.Write([]byte(text[:rnd.IntN(len(text))]))
						break
					}
					c.Write([]byte(text))
					if rnd.IntN(40) == 0 {
						break
					}
					request := &http.Request{Method: strings.Fields(text)[0]}
					resp, err := http.ReadResponse(r, request)
					if err != nil {
						break
					}
					if tunnel && i == 0 && resp.StatusCode == 200 {
						continue // what follows is no body
					}
					if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.Close || tunnel && i == 0 {
						break
					}
					if resp.StatusCode == 200 {
						answers.Add(1)
					} else {
						failures.Add(1)
					}
				}
				c.Close()
			}
		})
	}
	wg.Wait()
	for _, x := range x {
		x.hangUp() // tunnels whose client left do not hang
	}
	waitFor(t, "no connections", func() bool { return len(b.Flows()) == 0 && b.conns.Load() == 0 })
	b.nothingKept()
	var pipes int
	for _, l := range b.loops {
		done := make(chan struct{})
		l.post(func() { pipes += 2 * len(l.pipes.stock); close(done) })
		<-done
	}
	waitFor(t, "the descriptors of before", func() bool { return descriptors(t) <= before+pipes })
	for _, l := range b.loops {
		l.post(func() {
			if n := len(l.timers.h); n != 0 {
				t.Errorf("%d timers run, want none", n)
			}
		})
	}
	if answers.Load() < 500 || failures.Load() == 0 || len(b.engine.Switches()) == 0 {
		t.Errorf("%d answers, %d failures, %d kinds of switches: that is no soak", answers.Load(), failures.Load(), len(b.engine.Switches()))
	}
	for _, x := range x {
		for _, head := range x.asked() {
			if strings.Count(head, "Proxy-Authorization: Basic ") != 1 {
				t.Fatalf("an exit got %q", head)
			}
		}
	}
	t.Logf("%d answers, %d failures, %v", answers.Load(), failures.Load(), counts(x))
}

// hangUpSome ends one of the connections that stand.
func (x *exitProxy) hangUpSome() {
	x.mu.Lock()
	defer x.mu.Unlock()
	for c := range x.open {
		c.CloseWrite()
		return
	}
}
