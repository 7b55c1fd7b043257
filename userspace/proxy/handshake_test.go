// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
)

// told are the details of events of a kind.
func (b *bench) told(kind policy.EventKind) (all []string) {
	for _, ev := range b.events.Recent(1000) {
		if ev.Kind == kind {
			all = append(all, ev.Detail)
		}
	}
	return all
}

// mustBreak waits until a connection is reset, which may show at a write.
func mustBreak(t testing.TB, c *net.TCPConn) {
	t.Helper()
	rest, err := io.ReadAll(c)
	if !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("after %q: %v, want a reset", rest, err)
	}
}

// talk plays steps between a new client and the proxy that it speaks to, which
// is nil if no step needs it.
func (b *bench) talk(steps []step) (client, proxy *net.TCPConn) {
	b.t.Helper()
	conns := make(chan *net.TCPConn, 1)
	done := make(chan struct{})
	client = b.connect(origin(b.t, func(c *net.TCPConn) { conns <- c; <-done }))
	b.t.Cleanup(func() { close(done) })
	for _, s := range steps {
		if s.send != "" {
			mustWrite(b.t, client, s.send)
		}
		if s.receive == "" && s.got == "" {
			continue
		}
		if proxy == nil {
			proxy = <-conns
		}
		if s.got != "" {
			mustRead(b.t, proxy, s.got)
		}
		if s.receive != "" {
			mustWrite(b.t, proxy, s.receive)
		}
	}
	return client, proxy
}

// A handshake that stops in the middle is cut.
func TestHalfHandshake(t *testing.T) {
	ask := toName("origin.test", 80)
	head := connectTo("origin.test:443")
	for _, tc := range []struct {
		name  string
		steps []step
	}{
		{"method", []step{{send: "CONN"}}},
		{"request line", []step{{send: "CONNECT origin.test:443 HT"}}},
		{"head", []step{{send: head[:len(head)-2]}}},
		{"head after another", []step{{send: head, got: head, receive: "HTTP/1.1 407 Who\r\nContent-Length: 0\r\n\r\n"}, {send: head[:len(head)-2]}}},
		{"answer to CONNECT", []step{{send: head, got: head, receive: established[:len(established)-2]}}},
		{"version", []step{{send: "\x05"}}},
		{"greeting", []step{{send: greetAuth[:3]}}},
		{"no method", []step{{send: greetAuth, got: greetAuth}}},
		{"half a method", []step{{send: greetAuth, got: greetAuth, receive: useAuth[:1]}}},
		{"no password", []step{{send: greetAuth, got: greetAuth, receive: useAuth}}},
		{"half a password", []step{{send: greetAuth, got: greetAuth, receive: useAuth}, {send: login("user-a")[:5]}}},
		{"half a request", []step{{send: greetNone, got: greetNone, receive: useNone}, {send: ask[:8]}}},
		{"half a reply", []step{{send: greetNone, got: greetNone, receive: useNone}, {send: ask, got: ask, receive: replyOK[:9]}}},
		{"SOCKS4", []step{{send: "\x04\x01\x00\x50\xc0\x00\x02\x01user"}}},
		{"half a reply of SOCKS4", []step{{send: "\x04\x01\x00\x50\xc0\x00\x02\x01\x00", got: "\x04\x01\x00\x50\xc0\x00\x02\x01\x00", receive: reply4OK[:7]}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := startViaWith(t, Config{HandshakeTime: 300 * time.Millisecond}, gateway(), anything())
			client, proxy := b.talk(tc.steps)
			mustBreak(t, client)
			if proxy != nil {
				mustBreak(t, proxy)
			}
			b.nothingKept()
			told := b.told(policy.EventRefused)
			if len(told) != 1 || !strings.Contains(told[0], "not finished within") || !strings.Contains(told[0], "gw") {
				t.Errorf("events are %q, want one of a handshake with gw", told)
			}
		})
	}
}

// Who waits for an answer, or has nothing to say, is not cut.
func TestSlowHandshake(t *testing.T) {
	ask := toName("origin.test", 80)
	head := connectTo("origin.test:443")
	who := "HTTP/1.1 407 Who\r\nContent-Length: 0\r\n\r\n"
	for _, tc := range []struct {
		name   string
		before []step
		answer string
	}{
		{"CONNECT", []step{{send: head, got: head}}, established},
		{"between CONNECTs", []step{{send: head, got: head, receive: who}}, ""},
		{"SOCKS5", []step{{send: greetNone, got: greetNone, receive: useNone}, {send: ask, got: ask}}, replyOK},
		{"in the tunnel", []step{{send: greetNone, got: greetNone, receive: useNone}, {send: ask, got: ask, receive: replyOK}}, "220 "},
		{"absolute form", []step{{send: "GET http://origin.test/ HTTP/1.1\r\nHost: "}}, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := startViaWith(t, Config{HandshakeTime: 150 * time.Millisecond}, gateway(), anything())
			client, proxy := b.talk(tc.before)
			var want string
			for _, s := range tc.before {
				want += s.receive
			}
			mustRead(t, client, want)
			time.Sleep(3*tick + 2*150*time.Millisecond)
			if tc.answer != "" {
				mustWrite(t, proxy, tc.answer)
				mustRead(t, client, tc.answer)
			}
			if len(b.Flows()) != 1 || len(b.told(policy.EventRefused)) != 0 {
				t.Errorf("%d connections, events %q; want 1 and none", len(b.Flows()), b.told(policy.EventRefused))
			}
		})
	}
}

// What is no SOCKS any more cannot go on ungated, nor be taken back.
func TestMalformedHandshake(t *testing.T) {
	ask := toName("origin.test", 80)
	for _, tc := range []struct {
		name   string
		steps  []step
		reason string
	}{
		{"address type", []step{{send: greetNone, got: greetNone, receive: useNone}, {send: "\x05\x01\x00\x09\x00"}}, "address type"},
		{"host", []step{{send: greetNone, got: greetNone}, {send: toName("origin..test", 80)}}, "domain name"},
		{"method", []step{{send: greetNone, got: greetNone, receive: "\x05\x02"}}, ""},
		{"unasked", []step{{send: greetNone, got: greetNone, receive: "\x05\x07"}}, "not offered"},
		{"reply", []step{{send: greetNone, got: greetNone, receive: useNone}, {send: ask, got: ask, receive: "HTTP/1.1 400 No\r\n"}}, "version"},
		{"answer before the question", []step{{send: greetNone, got: greetNone, receive: useNone + replyOK}}, "before the question"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			b := startViaWith(t, Config{HandshakeTime: time.Second}, gateway(), anything())
			client, proxy := b.talk(tc.steps)
			mustBreak(t, client)
			mustBreak(t, proxy)
			b.nothingKept()
			if told := b.told(policy.EventRefused); len(told) != 1 || !strings.Contains(told[0], tc.reason) {
				t.Errorf("events are %q, want one with %q", told, tc.reason)
			}
		})
	}
}

// TestRefusedTunnel: what would wait too long is refused in its own language,
// after what the proxy has to say to the handshake.
func TestRefusedTunnel(t *testing.T) {
	ask := toName("origin.test", 80)
	for _, tc := range []struct {
		name  string
		steps []step
		want  string // what the client gets in all
		reset bool
		drop  bool
	}{
		{name: "SOCKS5", steps: []step{{send: greetNone, got: greetNone, receive: useNone}, {send: ask}}, want: useNone + socks5Refusal},
		{name: "SOCKS5 at once", steps: []step{{send: greetNone + ask, got: greetNone, receive: useNone}}, want: useNone + socks5Refusal},
		{name: "SOCKS5 at once, with a password and more", steps: []step{{send: greetAuth + login("user-a") + ask + "hello", got: greetAuth + login("user-a"), receive: useAuth}, {receive: authOK}}, want: useAuth + authOK + socks5Refusal},
		{name: "SOCKS5 at once, password not accepted", steps: []step{{send: greetAuth + login("user-a") + ask, got: greetAuth + login("user-a"), receive: useAuth + "\x01\x01"}}, want: useAuth + "\x01\x01"},
		{name: "SOCKS4", steps: []step{{send: "\x04\x01\x00\x50\xc0\x00\x02\x01\x00"}}, want: socks4Refusal},
		{name: "SOCKS4, dropped", steps: []step{{send: "\x04\x01\x00\x50\xc0\x00\x02\x01\x00"}}, reset: true, drop: true},
		{name: "CONNECT, dropped", steps: []step{{send: connectTo("origin.test:443")}}, reset: true, drop: true},
		{name: "TLS", steps: []step{{send: "\x16\x03\x01\x00\x05\x01"}}, reset: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			rule := one()
			rule.Queue.MaxWait = time.Second
			if tc.drop {
				rule.OnFull = policy.Drop
			}
			b := startVia(t, gateway(), rule)
			first, _ := b.tunnel("origin.test:443")
			mustWrite(t, first, "\x00")
			client, proxy := b.talk(tc.steps)
			if tc.reset {
				mustBreak(t, client)
				return
			}
			mustRead(t, client, tc.want)
			if strings.Contains(tc.name, "not accepted") {
				proxy.Close()
			}
			mustEnd(t, client, false)
			if proxy != nil && !strings.Contains(tc.name, "not accepted") {
				mustEnd(t, proxy, false)
			}
			client.Close()
			waitFor(t, "the connection to end", func() bool { return len(b.Flows()) == 1 })
			b.wantGranted("exits/-/gw 1", "test/-/- 1")
		})
	}
	t.Run("CONNECT", func(t *testing.T) {
		rule := one()
		rule.Queue.MaxWait = time.Second
		b := startVia(t, gateway(), rule)
		b.tunnel("origin.test:443")
		client := b.connect(origin(t, func(*net.TCPConn) { t.Error("the proxy was contacted") }))
		r := bufio.NewReader(client)
		for range 2 {
			mustWrite(t, client, connectTo("origin.test:443"))
			resp := readResponse(t, r, "CONNECT")
			if resp.StatusCode != http.StatusTooManyRequests || resp.Header.Get("Retry-After") == "" || !strings.HasPrefix(resp.Header.Get("Proxy-Status"), "egressd;") {
				t.Errorf("status %d, headers %v; want 429 of egressd", resp.StatusCode, resp.Header)
			}
		}
	})
}

// TestNoCredentials has passwords go through whatever can happen to them, and
// looks for them in all that the proxy tells.
func TestNoCredentials(t *testing.T) {
	var got strings.Builder
	look := func(b *bench) {
		for _, ev := range b.events.Recent(1000) {
			fmt.Fprintf(&got, "%+v\n", ev)
		}
		for _, f := range b.Flows() {
			fmt.Fprintf(&got, "%+v\n", f)
		}
		for _, l := range b.engine.Lanes() {
			fmt.Fprintf(&got, "%s %s %+v\n", l.ID(), l.Label, l.Key)
		}
		for _, y := range b.engine.Tallies() {
			fmt.Fprintln(&got, y.Destination, y.Exit)
		}
		for _, m := range b.engine.Meters() {
			fmt.Fprintln(&got, m.Exit)
		}
		got.WriteString(b.logs.String())
	}
	head := connectTo("origin.test:443", basic("user-a"))
	absolute := "GET http://user-b:" + password + "@origin.test/ HTTP/1.1\r\nHost: origin.test\r\n" + basic("user-b") + "\r\n"
	limit := "HTTP/1.1 429 No\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n"
	for _, steps := range [][]step{
		{{send: head, got: head, receive: established}},
		{{send: head, got: head, receive: "HTTP/1.1 407 No\r\nRetry-After: 100\r\nContent-Length: 0\r\n\r\n"}, {send: head}},
		{{send: absolute, got: absolute, receive: limit}, {send: absolute}},
		{{send: strings.Replace(absolute, "Host:", "Host :", 1)}},
		{{send: head[:len(head)-5]}},
		{{send: greetAuth, got: greetAuth, receive: useAuth}, {send: login("user-c"), got: login("user-c"), receive: "\x01\x01"}},
		{{send: greetAuth, got: greetAuth, receive: useAuth}, {send: login("user-c"), got: login("user-c"), receive: authOK}, {send: "\x05\x01\x00\x09\x00"}},
		{{send: greetAuth, got: greetAuth, receive: useAuth}, {send: login("user-d") + toName("origin.test", 80), got: login("user-d"), receive: authOK}, {got: toName("origin.test", 80), receive: replyOK}},
		{{send: greetAuth + login("user-d")[:12], got: greetAuth, receive: useAuth}},
	} {
		rule := anything()
		rule.Queue.MaxWait = time.Second
		rule.Retry = policy.Retry{Absorb: true, Attempts: 3, MaxBody: 1000}
		b := startViaWith(t, Config{HandshakeTime: 200 * time.Millisecond}, gateway(), rule)
		client, _ := b.talk(steps)
		time.Sleep(200 * time.Millisecond)
		look(b)
		client.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		said, _ := io.ReadAll(client)
		got.Write(said)
		look(b)
	}
	b := startVia(t, gateway(), anything())
	client := b.connect(netip.MustParseAddrPort("127.0.0.1:1")) // where nobody listens
	mustWrite(t, client, head)
	mustBreak(t, client)
	look(b)
	if !strings.Contains(got.String(), "gw/a") || !strings.Contains(got.String(), "unreachable") || !strings.Contains(got.String(), "handshake") {
		t.Errorf("the proxy told too little for this test:\n%s", got.String())
	}
	for _, secret := range []string{password, basicValue("user-a"), basicValue("user-b"), basicValue("user-a")[:12], "Basic"} {
		if i := strings.Index(got.String(), secret); i >= 0 {
			t.Errorf("%q is told: …%s…", secret, got.String()[max(0, i-200):min(i+100, got.Len())])
		}
	}
}
