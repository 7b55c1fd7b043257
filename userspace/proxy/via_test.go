// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/exitid"
)

// gateway is an exit whose user names tell sessions.
func gateway() policy.Exit {
	session, err := exitid.Compile(`^user-(?P<session>\w+)$`)
	if err != nil {
		panic(err)
	}
	return policy.Exit{Name: "gw", Proxy: &policy.Proxy{Host: "gw.test", First: 1, Last: 65535, Session: session}}
}

// password is what no test may find anywhere but at the proxy.
const password = "opensesame"

// basic is the field by which a client logs in.
func basic(user string) string {
	return "Proxy-Authorization: Basic " + basicValue(user) + "\r\n"
}

func basicValue(user string) string {
	return base64.StdEncoding.EncodeToString([]byte(user + ":" + password))
}

// Messages of SOCKS.
const (
	greetNone = "\x05\x01\x00"
	greetAuth = "\x05\x02\x00\x02"
	useNone   = "\x05\x00"
	useAuth   = "\x05\x02"
	authOK    = "\x01\x00"
	replyOK   = "\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00"
	reply4OK  = "\x00\x5a\x00\x00\x00\x00\x00\x00"
)

func login(user string) string {
	return fmt.Sprintf("\x01%c%s%c%s", len(user), user, len(password), password)
}

// toName is a request of SOCKS5 for a name.
func toName(host string, port uint16) string {
	return "\x05\x01\x00\x03" + string([]byte{byte(len(host))}) + host + string([]byte{byte(port >> 8), byte(port)})
}

func connectTo(authority string, fields ...string) string {
	return "CONNECT " + authority + " HTTP/1.1\r\nHost: " + authority + "\r\n" + strings.Join(fields, "") + "\r\n"
}

const established = "HTTP/1.1 200 Connection established\r\n\r\n"

// lanesOf are the lanes that were granted something, with how much.
func (b *bench) granted() (all []string) {
	for _, l := range b.engine.Lanes() {
		if n := l.Cell.Granted.Load(); n > 0 {
			all = append(all, fmt.Sprintf("%s %d", l.ID(), n))
		}
	}
	return all
}

func (b *bench) wantGranted(want ...string) {
	b.t.Helper()
	got := b.granted()
	want = slices.Sorted(slices.Values(want))
	if !slices.Equal(got, want) {
		b.t.Errorf("granted:\n  %s\nwant:\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// hello is the beginning of a TLS connection to a host.
func hello(t testing.TB, name string) string {
	t.Helper()
	client, server := net.Pipe()
	defer server.Close()
	go tls.Client(client, &tls.Config{ServerName: name, InsecureSkipVerify: true}).Handshake()
	buf := make([]byte, 4096)
	n, err := server.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}

// TestVia plays what clients say to a proxy, and through it, whole and cut into
// single bytes. All must arrive as it was sent, and lanes be charged for what
// was asked for.
func TestVia(t *testing.T) {
	const (
		inner  = "GET /a HTTP/1.1\r\nHost: origin.test\r\n\r\n"
		answer = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	)
	secure := hello(t, "origin.test")
	for _, tc := range []struct {
		name    string
		steps   []step
		granted []string // beside that of the lane for trouble
		trouble string   // that one
	}{
		{name: "absolute form", steps: []step{
			{send: "GET http://Origin.test:81/x HTTP/1.1\r\nhOsT: other.test\r\n" + basic("user-a") + "\r\n"}, {receive: answer},
			{send: "GET http://origin.test:81/y HTTP/1.1\r\nHost: other.test\r\n" + basic("user-b") + "\r\n"}, {receive: answer},
			{send: "GET http://origin.test:81/z HTTP/1.1\r\nHost: other.test\r\n\r\n"}, {receive: answer},
		}, granted: []string{"test/origin.test/gw/a 1", "test/origin.test/gw/b 1", "test/origin.test/gw 1", "exits/-/gw/a 1", "exits/-/gw/b 1", "exits/-/gw 1"}},
		{name: "to the proxy itself", steps: []step{
			{send: "GET /status HTTP/1.1\r\nHost: origin.test\r\n\r\n"}, {receive: answer},
		}, granted: []string{"test/gw.test/gw 1", "exits/-/gw 1"}},
		{name: "CONNECT and TLS", steps: []step{
			{send: connectTo("origin.test:443", basic("user-a"))}, {receive: established},
			{send: secure}, {receive: "\x16\x03\x03..."}, {send: "\x00more"},
		}, granted: []string{"test/origin.test/gw/a 1", "exits/-/gw/a 1"}},
		{name: "CONNECT and HTTP", steps: []step{
			{send: connectTo("origin.test:80", basic("user-a"))}, {receive: established},
			{send: inner}, {receive: answer}, {send: inner}, {receive: answer}, {send: inner}, {receive: answer},
		}, granted: []string{"test/origin.test/gw/a 3", "exits/-/gw/a 3"}},
		{name: "CONNECT to an address, HTTP with a name", steps: []step{
			{send: connectTo("192.0.2.1:80")}, {receive: established},
			{send: inner}, {receive: answer}, {send: inner}, {receive: answer},
		}, granted: []string{"test/192.0.2.1/gw 1", "test/origin.test/gw 2", "exits/-/gw 2"}},
		{name: "CONNECT to an address, TLS with a name", steps: []step{
			{send: connectTo("192.0.2.1:443")}, {receive: established}, {send: secure}, {receive: "\x16\x03\x03..."},
		}, granted: []string{"test/192.0.2.1/gw 1", "test/origin.test/gw 1", "exits/-/gw 1"}},
		{name: "CONNECT to a name, TLS with another", steps: []step{
			{send: connectTo("front.test:443")}, {receive: established}, {send: secure}, {receive: "\x16\x03\x03..."},
		}, granted: []string{"test/front.test/gw 1", "exits/-/gw 1"}},
		{name: "CONNECT, and the server speaks first", steps: []step{
			{send: connectTo("origin.test:25")}, {receive: established + "220 hello\r\n"}, {send: "EHLO me\r\n"}, {receive: "250 ok\r\n"},
		}, granted: []string{"test/origin.test/gw 1", "exits/-/gw 1"}},
		{name: "CONNECT, and nothing that is known", steps: []step{
			{send: connectTo("origin.test:22")}, {receive: established}, {send: "SSH-2.0-x\r\n"}, {receive: "SSH-2.0-y\r\n"},
		}, granted: []string{"test/origin.test/gw 1", "exits/-/gw 1"}},
		{name: "CONNECT in a tunnel", steps: []step{
			{send: connectTo("next.test:3128")}, {receive: established}, {send: connectTo("origin.test:443")}, {receive: established}, {send: secure}, {receive: "\x16\x03\x03..."},
		}, granted: []string{"test/next.test/gw 1", "test/origin.test/gw 1", "exits/-/gw 1"}},
		{name: "upgrade in a tunnel", steps: []step{
			{send: connectTo("origin.test:80")}, {receive: established},
			{send: "GET /ws HTTP/1.1\r\nHost: origin.test\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"}, {receive: "HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n\x00"}, {send: "\x01GET "},
		}, granted: []string{"test/origin.test/gw 1", "exits/-/gw 1"}},
		{name: "407 first", steps: []step{
			{send: connectTo("origin.test:80")}, {receive: "HTTP/1.1 407 Who?\r\nProxy-Authenticate: Basic\r\nContent-Length: 3\r\n\r\nwho"},
			{send: connectTo("origin.test:80", basic("user-a"))}, {receive: established}, {send: inner}, {receive: answer},
		}, granted: []string{"test/origin.test/gw/a 1", "exits/-/gw/a 1"}},
		{name: "407 first, absolute form", steps: []step{
			{send: "GET http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\n\r\n"}, {receive: "HTTP/1.1 407 Who?\r\nContent-Length: 3\r\n\r\nwho"},
			{send: "GET http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\n" + basic("user-a") + "\r\n"}, {receive: answer},
		}, granted: []string{"test/origin.test/gw/a 1", "exits/-/gw/a 1"}},
		{name: "password not accepted", steps: []step{
			{send: connectTo("origin.test:80", basic("user-a"))}, {receive: "HTTP/1.1 407 No\r\nRetry-After: 60\r\nContent-Length: 0\r\n\r\n"},
		}, granted: []string{"test/origin.test/gw/a 1", "exits/-/gw/a 1"}, trouble: "exits/-/gw/a"},
		{name: "password not accepted, absolute form", steps: []step{
			{send: "GET http://origin.test/ HTTP/1.1\r\nHost: origin.test\r\n" + basic("user-a") + "\r\n"}, {receive: "HTTP/1.1 407 No\r\nRetry-After: 60\r\nContent-Length: 0\r\n\r\n"},
		}, granted: []string{"test/origin.test/gw/a 1", "exits/-/gw/a 1"}, trouble: "exits/-/gw/a"},
		{name: "CONNECT limited", steps: []step{
			{send: connectTo("origin.test:80")}, {receive: "HTTP/1.1 429 No\r\nRetry-After: 60\r\nContent-Length: 0\r\n\r\n"},
		}, granted: []string{"test/origin.test/gw 1", "exits/-/gw 1"}, trouble: "exits/-/gw"},
		{name: "CONNECT leads nowhere", steps: []step{
			{send: connectTo("origin.test:80")}, {receive: "HTTP/1.1 502 No\r\nRetry-After: 60\r\nContent-Length: 0\r\n\r\n"},
		}, granted: []string{"test/origin.test/gw 1", "exits/-/gw 1"}, trouble: "exits/-/gw"},
		{name: "CONNECT forbidden", steps: []step{
			{send: connectTo("origin.test:80")}, {receive: "HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n"},
		}, granted: []string{"test/origin.test/gw 1", "exits/-/gw 1"}},
		{name: "TLS to the proxy", steps: []step{
			{send: hello(t, "origin.test")}, {receive: "\x16\x03\x03..."}, {send: "\x17\x03\x03..."},
		}, granted: []string{"test/gw.test/gw 1", "exits/-/gw 1"}},
		{name: "nothing that is known to the proxy", steps: []step{
			{send: "\x00\x01"}, {receive: "\x02"},
		}, granted: []string{"test/gw.test/gw 1", "exits/-/gw 1"}},

		{name: "SOCKS5, HTTP", steps: []step{
			{send: greetNone}, {receive: useNone}, {send: toName("Origin.test", 80)}, {receive: replyOK},
			{send: inner}, {receive: answer}, {send: inner}, {receive: answer},
		}, granted: []string{"test/origin.test/gw 2", "exits/-/gw 2"}},
		{name: "SOCKS5 with a password, TLS", steps: []step{
			{send: greetAuth}, {receive: useAuth}, {send: login("user-a")}, {receive: authOK}, {send: toName("origin.test", 443)}, {receive: replyOK},
			{send: secure}, {receive: "\x16\x03\x03..."},
		}, granted: []string{"test/origin.test/gw/a 1", "exits/-/gw/a 1"}},
		{name: "SOCKS5 to an address, TLS with a name", steps: []step{
			{send: greetNone}, {receive: useNone}, {send: "\x05\x01\x00\x01\xc0\x00\x02\x01\x01\xbb"}, {receive: replyOK}, {send: secure}, {receive: "\x16\x03\x03..."},
		}, granted: []string{"test/192.0.2.1/gw 1", "test/origin.test/gw 1", "exits/-/gw 1"}},
		{name: "SOCKS5 all at once", steps: []step{
			{send: greetAuth + login("user-a") + toName("origin.test", 80) + inner, got: greetAuth + login("user-a") + toName("origin.test", 80)},
			{receive: useAuth + authOK + replyOK}, {got: inner}, {receive: answer}, {send: inner}, {receive: answer},
		}, granted: []string{"test/origin.test/gw/a 2", "exits/-/gw/a 2"}},
		{name: "SOCKS5, and the server speaks first", steps: []step{
			{send: greetNone}, {receive: useNone}, {send: toName("origin.test", 25)}, {receive: replyOK + "220 hello\r\n"}, {send: "EHLO me\r\n"},
		}, granted: []string{"test/origin.test/gw 1", "exits/-/gw 1"}},
		{name: "SOCKS5 in a language of its own", steps: []step{
			{send: "\x05\x01\x01"}, {receive: "\x05\x01"}, {send: "\x01\x01\x00\x00"}, {receive: "\x01\x02"},
		}, granted: []string{"test/gw.test/gw 1", "exits/-/gw 1"}},
		{name: "SOCKS5 BIND", steps: []step{
			{send: greetNone}, {receive: useNone}, {send: "\x05\x02\x00\x01\xc0\x00\x02\x01\x00\x15"}, {receive: replyOK}, {receive: replyOK + "220"}, {send: "GET / HTTP/1.1\r\n"},
		}, granted: []string{"test/192.0.2.1/gw 1", "exits/-/gw 1"}},
		{name: "SOCKS5 UDP", steps: []step{
			{send: greetNone}, {receive: useNone}, {send: "\x05\x03\x00\x01\x00\x00\x00\x00\x00\x00"}, {receive: replyOK}, {send: "x"},
		}, granted: []string{"test/gw.test/gw 1", "exits/-/gw 1"}},
		{name: "SOCKS4", steps: []step{
			{send: "\x04\x01\x00\x50\xc0\x00\x02\x01user-a\x00"}, {receive: reply4OK}, {send: inner}, {receive: answer},
		}, granted: []string{"test/192.0.2.1/gw/a 1", "test/origin.test/gw/a 1", "exits/-/gw/a 1"}},
		{name: "SOCKS4a", steps: []step{
			{send: "\x04\x01\x00\x50\x00\x00\x00\x01user-a\x00origin.test\x00"}, {receive: reply4OK}, {send: inner}, {receive: answer}, {send: inner}, {receive: answer},
		}, granted: []string{"test/origin.test/gw/a 2", "exits/-/gw/a 2"}},
		{name: "SOCKS4 that makes no sense", steps: []step{
			{send: "\x04\x01\x00\x50\xc0\x00\x02\x01" + strings.Repeat("u", 300)}, {receive: "what?"}, {send: "ever"},
		}, granted: []string{"test/gw.test/gw 1", "exits/-/gw 1"}},
		{name: "SOCKS5 general failure", steps: []step{
			{send: greetNone}, {receive: useNone}, {send: toName("origin.test", 80)}, {receive: "\x05\x01\x00\x01\x00\x00\x00\x00\x00\x00"},
		}, granted: []string{"test/origin.test/gw 1", "exits/-/gw 1"}, trouble: "exits/-/gw"},
		{name: "SOCKS5 refused by the destination", steps: []step{
			{send: greetNone}, {receive: useNone}, {send: toName("origin.test", 80)}, {receive: "\x05\x05\x00\x01\x00\x00\x00\x00\x00\x00"},
		}, granted: []string{"test/origin.test/gw 1", "exits/-/gw 1"}},
		{name: "SOCKS5 password not accepted", steps: []step{
			{send: greetAuth}, {receive: useAuth}, {send: login("user-a")}, {receive: "\x01\x01"},
		}, trouble: "exits/-/gw/a"},
		{name: "SOCKS5 without a method", steps: []step{{send: greetNone}, {receive: "\x05\xff"}}},
		{name: "SOCKS4 failure", steps: []step{
			{send: "\x04\x01\x00\x50\xc0\x00\x02\x01\x00"}, {receive: "\x00\x5b\x00\x00\x00\x00\x00\x00"},
		}, granted: []string{"test/192.0.2.1/gw 1", "exits/-/gw 1"}, trouble: "exits/-/gw"},
	} {
		for _, cut := range []int{0, 1} {
			t.Run(fmt.Sprintf("%s/cut=%d", tc.name, cut), func(t *testing.T) {
				t.Parallel()
				b := startVia(t, gateway(), anything())
				play(t, b, tc.steps, cut)
				waitFor(t, "the lanes", func() bool { return len(b.granted()) == len(tc.granted) })
				b.wantGranted(tc.granted...)
				for _, l := range b.engine.Lanes() {
					_, closed := l.Closed()
					if closed != (l.ID() == tc.trouble) {
						t.Errorf("lane %s closed: %v", l.ID(), closed)
					}
				}
			})
		}
	}
}

// anything is a budget for all hosts and ports, each with its own lane.
func anything() *policy.Budget {
	rule := budget("", plenty)
	rule.Match.Hosts = []policy.HostPattern{{Any: true}}
	return rule
}
