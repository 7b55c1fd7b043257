// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/verdict"
)

// innerGet is a request that goes through a tunnel to origin.test:80.
const innerGet = "GET /api/x HTTP/1.1\r\nHost: origin.test\r\n\r\n"

// tunnel is a client behind a CONNECT, and the proxy's end of it.
func (b *bench) tunnel(authority string, fields ...string) (client, proxy *net.TCPConn) {
	b.t.Helper()
	conns := make(chan *net.TCPConn, 1)
	done := make(chan struct{})
	client = b.connect(origin(b.t, func(c *net.TCPConn) { conns <- c; <-done }))
	b.t.Cleanup(func() { close(done) }) // before the origin waits for its end
	head := connectTo(authority, fields...)
	mustWrite(b.t, client, head)
	proxy = <-conns
	mustRead(b.t, proxy, head)
	mustWrite(b.t, proxy, established)
	mustRead(b.t, client, established)
	return client, proxy
}

// exchangeOf sends a request from one end and the answer from the other.
func exchangeOf(t testing.TB, client, server *net.TCPConn, request, answer string) {
	t.Helper()
	mustWrite(t, client, request)
	mustRead(t, server, request)
	mustWrite(t, server, answer)
	mustRead(t, client, answer)
}

// The first request of a tunnel spends where CONNECT did not; where the tunnel
// fell into another lane of the same shape, that is left.
func TestTunnelPaysOnce(t *testing.T) {
	api := anything()
	api.Name, api.Match.Path = "api", "/api/"
	conns := anything()
	conns.Name, conns.Unit, conns.Per, conns.Concurrency = "conns", policy.Connections, policy.PerDestination, 5
	all := anything()
	all.Per = policy.PerExit | policy.PerPath
	all.Name = "all"
	b := startVia(t, gateway(), api, anything(), conns, all)
	client, proxy := b.tunnel("origin.test:80")
	b.wantGranted("all/-/gw;path=- 1", "conns/origin.test/- 1", "test/origin.test/gw 1", "exits/-/gw 1")
	exchangeOf(t, client, proxy, innerGet, shortAnswer)
	b.wantGranted("all/-/gw;path=- 1", "all/-/gw;path=/api/x 1", "conns/origin.test/- 1", "test/origin.test/gw 1", "api/origin.test/gw 1", "exits/-/gw 1")
	exchangeOf(t, client, proxy, innerGet, shortAnswer)
	b.wantGranted("all/-/gw;path=- 1", "all/-/gw;path=/api/x 2", "conns/origin.test/- 1", "test/origin.test/gw 1", "api/origin.test/gw 2", "exits/-/gw 2")
	for _, l := range b.engine.Lanes() {
		want := int64(0)
		if l.Key.Budget == "conns" {
			want = 1 // the connection stands
		}
		if got := l.InFlight.Load(); got != want {
			t.Errorf("lane %s: %d under way, want %d", l.ID(), got, want)
		}
	}
	client.Close()
	b.nothingKept()
}

// What the proxy says to CONNECT is no success of the destination, and what the
// origin says inside is.
func TestTunnelRewards(t *testing.T) {
	b := startVia(t, gateway(), anything())
	first, proxy := b.tunnel("origin.test:80")
	exchangeOf(t, first, proxy, innerGet, limited("1"))
	lane := b.engine.Find("test/origin.test/gw")
	slowed := func() bool { return lane.Cell.Interval.Load() > lane.Cell.BaseInterval.Load() }
	if !slowed() {
		t.Fatal("a limit inside a tunnel did not slow the lane")
	}
	waitFor(t, "the lane to be open", func() bool { return !closedNow(lane, b.cfg.Now()) })
	second, proxy := b.tunnel("origin.test:80")
	interval := lane.Cell.Interval.Load()
	if !lane.Cell.Probing() {
		t.Error("CONNECT is not the probe of a lane that reopens")
	}
	exchangeOf(t, second, proxy, innerGet, shortAnswer)
	if got := lane.Cell.Interval.Load(); got >= interval || lane.Cell.Probing() {
		t.Errorf("interval %d, probing %v after a success; want less than %d, and no", got, lane.Cell.Probing(), interval)
	}
	interval = lane.Cell.Interval.Load()
	third, proxy := b.tunnel("origin.test:443")
	mustWrite(t, third, "\x00")
	mustRead(t, proxy, "\x00")
	if got := lane.Cell.Interval.Load(); got != interval {
		t.Errorf("interval %d after a tunnel whose inside nobody sees, want %d", got, interval)
	}
}

// A closed lane holds CONNECT and the request of SOCKS themselves: nothing idles
// at the proxy.
func TestClosedLaneHoldsTheTunnel(t *testing.T) {
	for name, talk := range map[string][2]string{
		"CONNECT": {connectTo("origin.test:443"), ""},
		"SOCKS4":  {"\x04\x01\x00\x50\x00\x00\x00\x01\x00origin.test\x00", ""},
		"SOCKS5":  {greetNone + toName("origin.test", 443), greetNone},
	} {
		t.Run(name, func(t *testing.T) {
			rule := anything()
			rule.Queue.MaxWait = time.Hour
			b := startVia(t, gateway(), rule)
			b.tunnel("origin.test:443")
			lane := b.engine.Find("test/origin.test/gw")
			b.gate.SetCooldown(lane, b.cfg.Now().Add(time.Hour))
			var accepted atomic.Int64
			got := make(chan string, 1)
			client := b.connect(origin(t, func(c *net.TCPConn) {
				accepted.Add(1)
				mustRead(t, c, talk[1])
				if talk[1] != "" {
					b.waitHeld(lane)
					b.gate.ClearCooldown(lane)
				}
				mustRead(t, c, talk[0][len(talk[1]):])
				got <- "all"
			}))
			mustWrite(t, client, talk[0])
			if talk[1] == "" {
				b.waitHeld(lane)
				time.Sleep(2 * tick)
				if accepted.Load() != 0 {
					t.Error("a connection was made although nothing may be sent on it")
				}
				b.gate.ClearCooldown(lane)
			}
			<-got
		})
	}
}

func (b *bench) waitHeld(lane *policy.Lane) {
	waitFor(b.t, "someone held", func() bool { return lane.Waiting.Load() == 1 })
}

// What was spent before a lane closed is no leave to send while it is closed.
func TestTunnelWaitsWhenItsLaneCloses(t *testing.T) {
	rule := anything()
	rule.Queue.MaxWait = time.Hour
	b := startVia(t, gateway(), rule)
	client, proxy := b.tunnel("origin.test:80")
	lane := b.engine.Find("test/origin.test/gw")
	b.gate.SetCooldown(lane, b.cfg.Now().Add(time.Hour))
	mustWrite(t, client, innerGet)
	b.waitHeld(lane)
	b.gate.ClearCooldown(lane)
	mustRead(t, proxy, innerGet)
	b.wantGranted("test/origin.test/gw 2", "exits/-/gw 2")
}

// A limit of one exit never slows another, nor does one of a destination slow
// another through the same exit; nor does trouble of an exit.
func TestExitsDoNotShareFate(t *testing.T) {
	rule := anything()
	rule.Queue.MaxWait = time.Second
	for name, answer := range map[string]string{
		"limit":   "HTTP/1.1 429 No\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n",
		"trouble": "HTTP/1.1 407 No\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			b := startVia(t, gateway(), rule)
			dest, n := httpOrigin(t, func(w http.ResponseWriter, r *http.Request) {})
			request := func(host, user string) string {
				return "GET http://" + host + "/ HTTP/1.1\r\nHost: x\r\n" + basic(user) + "\r\n"
			}
			client := b.connect(origin(t, func(c *net.TCPConn) {
				mustRead(t, c, request("origin.test", "user-a"))
				mustWrite(t, c, answer)
			}))
			mustWrite(t, client, request("origin.test", "user-a"))
			mustRead(t, client, answer)
			for _, tc := range []struct {
				host, user string
				status     int
			}{
				{"origin.test", "user-a", 429},
				{"other.test", "user-a", map[string]int{"limit": 200, "trouble": 429}[name]},
				{"origin.test", "user-b", 200},
				{"origin.test", "nobody", 200},
			} {
				before := n.Load()
				resp := roundTrip(t, b.connect(dest), request(tc.host, tc.user))
				if resp.StatusCode != tc.status || (n.Load() > before) != (tc.status == 200) {
					t.Errorf("%s through %s: status %d, want %d", tc.host, tc.user, resp.StatusCode, tc.status)
				}
			}
		})
	}
}

// A client that changes the user name on one connection is at another exit, on
// the same connection to the proxy.
func TestUpstreamConnectionIsTheClients(t *testing.T) {
	var conns atomic.Int64
	b := startVia(t, gateway(), anything())
	request := func(user string) string {
		return "GET http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\n" + basic(user) + "\r\n"
	}
	dest := origin(t, func(c *net.TCPConn) {
		conns.Add(1)
		for i := range 5 {
			mustRead(t, c, request("user-"+strconv.Itoa(i)))
			mustWrite(t, c, shortAnswer)
		}
		io.Copy(io.Discard, c)
	})
	clients := []*net.TCPConn{b.connect(dest), b.connect(dest)}
	for i := range 5 {
		for _, client := range clients {
			mustWrite(t, client, request("user-"+strconv.Itoa(i)))
			mustRead(t, client, shortAnswer)
		}
		if f := b.Flows(); f[0].Exit != "gw/"+strconv.Itoa(i) {
			t.Errorf("flow is at exit %s, want gw/%d", f[0].Exit, i)
		}
	}
	if conns.Load() != 2 {
		t.Errorf("the proxy saw %d connections of 2 clients", conns.Load())
	}
}

// rotator is an exit with a fresh address for each connection.
func rotator() policy.Exit {
	exit := gateway()
	exit.Proxy.Rotating = true
	return exit
}

// TestRotating: a limit ends the connection, and closes only lanes that do not
// tell exits apart.
func TestRotating(t *testing.T) {
	absolute := "GET http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\n\r\n"
	session := "GET http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\n" + basic("user-a") + "\r\n"
	const slow = "HTTP/1.1 429 No\r\nRetry-After: 60\r\nContent-Length: 2\r\n\r\nno"
	for _, tc := range []struct {
		name, request, answer string
		tunnel                bool
		per                   policy.Per
		ends, closes          bool
	}{
		{name: "absolute form", request: absolute, answer: slow, per: policy.PerDestination | policy.PerExit, ends: true},
		{name: "absolute form, session", request: session, answer: slow, per: policy.PerDestination | policy.PerExit, closes: true},
		{name: "absolute form, all exits", request: absolute, answer: slow, per: policy.PerDestination, ends: true, closes: true},
		{name: "tunnel", request: innerGet, answer: slow, tunnel: true, per: policy.PerDestination | policy.PerExit, ends: true},
		{name: "tunnel, all exits", request: innerGet, answer: slow, tunnel: true, per: policy.PerDestination, ends: true, closes: true},
		{name: "success", request: absolute, answer: shortAnswer, per: policy.PerDestination | policy.PerExit},
		{name: "capacity", request: absolute, answer: "HTTP/1.1 503 No\r\nRetry-After: 60\r\nContent-Length: 0\r\n\r\n", per: policy.PerDestination | policy.PerExit},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rule := anything()
			rule.Per = tc.per
			b := startVia(t, rotator(), rule)
			var client, proxy *net.TCPConn
			if tc.tunnel {
				client, proxy = b.tunnel("origin.test:80")
			} else {
				conns := make(chan *net.TCPConn, 1)
				done := make(chan struct{})
				defer close(done)
				client = b.connect(origin(t, func(c *net.TCPConn) { conns <- c; <-done }))
				mustWrite(t, client, tc.request)
				proxy = <-conns
				mustRead(t, proxy, tc.request)
				mustWrite(t, proxy, tc.answer)
				mustRead(t, client, tc.answer)
			}
			if tc.tunnel {
				exchangeOf(t, client, proxy, tc.request, tc.answer)
			}
			for _, l := range b.engine.Lanes() {
				if closed := closedNow(l, b.cfg.Now()); closed != (tc.closes && l.Key.Budget == "test") {
					t.Errorf("lane %s is closed: %v", l.ID(), closed)
				}
			}
			if tc.ends {
				mustEnd(t, client, false)
				mustEnd(t, proxy, false)
			} else {
				time.Sleep(2 * tick)
				if len(b.Flows()) != 1 {
					t.Error("the connection has ended")
				}
			}
			if tc.answer == slow {
				var limits uint64
				for _, y := range b.engine.Tallies() {
					limits += y.Limited(verdict.Limited)
				}
				if limits != 1 {
					t.Errorf("%d limits are counted, want 1", limits)
				}
			}
		})
	}
}

// A limit of a rotating exit may be absorbed: by another connection at once, if
// the client asked the proxy itself.
func TestRotatingAbsorbs(t *testing.T) {
	rule := absorbing()
	rule.Match.Hosts = []policy.HostPattern{{Any: true}}
	request := "GET http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\n\r\n"
	slow := strings.Replace(limited("1"), "5", "3600000", 1)
	o := newScripted(t, exchange{request: request, answer: slow}, exchange{request: request, answer: shortAnswer}, exchange{request: request, answer: shortAnswer})
	b := startVia(t, rotator(), rule)
	client := b.connect(o.dest)
	for range 2 {
		mustWrite(t, client, request)
		mustRead(t, client, shortAnswer)
	}
	o.played(2)

	b = startVia(t, rotator(), rule)
	client, proxy := b.tunnel("origin.test:80")
	exchangeOf(t, client, proxy, innerGet, slow)
	mustEnd(t, client, false)
}

// A rotating gateway has many addresses: that one of them fails is no trouble of
// all, that it refuses the password is.
func TestRotatingTrouble(t *testing.T) {
	for status, want := range map[int]bool{502: false, 503: false, 504: false, 429: true, 407: true} {
		b := startVia(t, rotator())
		head := connectTo("origin.test:443", basic("nobody"))
		answer := fmt.Sprintf("HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n", status)
		client := b.connect(origin(t, func(c *net.TCPConn) {
			mustRead(t, c, head)
			mustWrite(t, c, answer)
		}))
		mustWrite(t, client, head)
		mustRead(t, client, answer)
		if _, closed := b.engine.Find("exits/-/gw").Closed(); closed != want {
			t.Errorf("%d: the exit is closed %v, want %v", status, closed, want)
		}
	}
}

// After its lifetime a session has another address, to which old limits do not
// apply.
func TestLifetime(t *testing.T) {
	exit := gateway()
	exit.Proxy.Lifetime = 300 * time.Millisecond
	rule := anything()
	rule.Queue.MaxWait = time.Millisecond
	b := startVia(t, exit, rule)
	request := "GET http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\n" + basic("user-a") + "\r\n"
	dest := origin(t, func(c *net.TCPConn) {
		mustRead(t, c, request)
		mustWrite(t, c, "HTTP/1.1 429 No\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n")
	})
	for _, want := range []string{"", "egressd"} {
		resp := roundTrip(t, b.connect(dest), request)
		if got, _, _ := strings.Cut(resp.Header.Get("Proxy-Status"), ";"); got != want {
			t.Errorf("answered by %q, want %q", got, want)
		}
	}
	waitFor(t, "another address", func() bool {
		return roundTrip(t, b.connect(dest), request).Header.Get("Proxy-Status") == ""
	})
}

// TestRetriesInside is what TestRetries is, through a tunnel: there is one
// connection, and when that is gone the client gets the answer that was kept.
func TestRetriesInside(t *testing.T) {
	closing := limited("1", "Connection: close\r\n")
	later := strings.Replace(limited("1"), "5", "1000", 1)
	for _, tc := range []struct {
		name    string
		tries   []exchange
		want    string
		retried uint64
		ends    bool
	}{
		{name: "answered at last", tries: []exchange{{answer: limited("1")}, {answer: limited("2")}, {answer: shortAnswer}}, want: shortAnswer, retried: 2},
		{name: "never answered", tries: []exchange{{answer: limited("1")}, {answer: limited("2")}, {answer: limited("3")}}, want: limited("3"), retried: 2},
		{name: "origin says it closes", tries: []exchange{{answer: closing, end: doClose}}, want: closing, ends: true},
		{name: "origin closes", tries: []exchange{{answer: later, end: doClose}}, want: later, ends: true},
		{name: "origin resets", tries: []exchange{{answer: limited("1")}, {end: doReset}}, want: limited("1"), retried: 1, ends: true},
		{name: "origin gone", tries: []exchange{{answer: limited("1")}, {end: doClose}}, want: limited("1"), retried: 1, ends: true},
		{name: "second answer cut short", tries: []exchange{{answer: limited("1")}, {answer: limited("2")[:20], end: doClose}}, want: limited("1"), retried: 1, ends: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			rule := absorbing()
			put := "PUT /x HTTP/1.1\r\nHost: origin.test\r\nContent-Length: 5\r\n\r\nhello"
			head := connectTo("origin.test:80")
			script := []exchange{{request: head, answer: established}}
			for _, e := range tc.tries {
				e.request = put
				script = append(script, e)
			}
			if !tc.ends {
				script = append(script, exchange{request: next, answer: shortAnswer})
			}
			o := newScripted(t, script...)
			b := startVia(t, gateway(), rule)
			client := b.connect(o.dest)
			mustWrite(t, client, head)
			mustRead(t, client, established)
			go client.Write([]byte(put))
			mustRead(t, client, tc.want)
			if tc.ends {
				mustEnd(t, client, false)
			} else {
				mustWrite(t, client, next)
				mustRead(t, client, shortAnswer)
			}
			o.played(1)
			client.Close()
			b.nothingKept()
			if got := b.engine.Tally("origin.test", "gw").Retried(); got != tc.retried {
				t.Errorf("%d retries are counted, want %d", got, tc.retried)
			}
		})
	}
}

// A tunnel that ends while a request is held ends the client's connection, at
// once: there is nowhere to send the request.
func TestTunnelEndsWhileHeld(t *testing.T) {
	for name, leave := range map[string]func(*net.TCPConn){
		"close": func(c *net.TCPConn) { c.Close() },
		"reset": func(c *net.TCPConn) { c.SetLinger(0); c.Close() },
		"word": func(c *net.TCPConn) {
			io.WriteString(c, "HTTP/1.1 408 Bye\r\nContent-Length: 0\r\n\r\n")
			c.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			rule := anything()
			rule.Queue.MaxWait = time.Hour
			b := startVia(t, gateway(), rule)
			client, proxy := b.tunnel("origin.test:80")
			exchangeOf(t, client, proxy, innerGet, shortAnswer)
			lane := b.engine.Find("test/origin.test/gw")
			b.gate.SetCooldown(lane, b.cfg.Now().Add(time.Hour))
			mustWrite(t, client, innerGet)
			b.waitHeld(lane)
			leave(proxy)
			if name == "word" {
				mustRead(t, client, "HTTP/1.1 408 Bye\r\nContent-Length: 0\r\n\r\n")
			}
			mustEnd(t, client, name == "reset")
			client.Close()
			b.nothingKept()
		})
	}
}

// TestOutcomes: the bytes of an exit count for what came of them, those that
// open a tunnel included.
func TestOutcomes(t *testing.T) {
	limit := limited("1")
	head := connectTo("origin.test:80", basic("user-a"))
	shake := []step{{send: greetAuth}, {receive: useAuth}, {send: login("user-a")}, {receive: authOK}, {send: toName("origin.test", 443)}, {receive: replyOK}}
	for _, tc := range []struct {
		name  string
		steps []step
		want  map[policy.Outcome]uint64 // exchanges
	}{
		{"useful", []step{{send: head}, {receive: established}, {send: innerGet}, {receive: shortAnswer}}, map[policy.Outcome]uint64{policy.Useful: 1}},
		{"useful and blocked", []step{{send: head}, {receive: established}, {send: innerGet}, {receive: shortAnswer}, {send: innerGet}, {receive: limit}},
			map[policy.Outcome]uint64{policy.Useful: 1, policy.Blocked: 1}},
		{"unseen", append(shake, step{send: "\x00hello"}, step{receive: "world"}), map[policy.Outcome]uint64{policy.Unseen: 1}},
		{"failed", []step{{send: head}, {receive: "HTTP/1.1 502 No\r\nContent-Length: 0\r\n\r\n"}}, map[policy.Outcome]uint64{policy.Failed: 1}},
		{"refused by the exit", append(shake[:len(shake)-1:len(shake)-1], step{receive: "\x05\x01\x00\x01\x00\x00\x00\x00\x00\x00"}), map[policy.Outcome]uint64{policy.Failed: 1}},
		{"no password", []step{{send: greetNone}, {receive: "\x05\xff"}}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := startVia(t, gateway(), anything())
			play(t, b, tc.steps, 0)
			var sent, received, gotSent, gotReceived uint64
			for _, s := range tc.steps {
				sent, received = sent+uint64(len(s.send)), received+uint64(len(s.receive))
			}
			waitFor(t, "no connections", func() bool { return len(b.Flows()) == 0 })
			exchanges := map[policy.Outcome]uint64{}
			for _, y := range b.engine.Tallies() {
				for _, o := range policy.Outcomes() {
					moved := y.Traffic(o)
					exchanges[o] += moved.Exchanges
					gotSent, gotReceived = gotSent+moved.Sent, gotReceived+moved.Received
					if moved.Exchanges == 0 && moved.Bytes() > 0 && (o != policy.Failed || tc.want != nil) {
						t.Errorf("%d bytes for %v at %s", moved.Bytes(), o, y.Exit)
					}
				}
			}
			for _, o := range policy.Outcomes() {
				if exchanges[o] != tc.want[o] {
					t.Errorf("%d exchanges are %v, want %d", exchanges[o], o, tc.want[o])
				}
			}
			if gotSent != sent || gotReceived != received {
				t.Errorf("counted %d sent and %d received, want %d and %d", gotSent, gotReceived, sent, received)
			}
		})
	}
}
