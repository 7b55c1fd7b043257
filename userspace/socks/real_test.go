// SPDX-License-Identifier: Apache-2.0

package socks

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// mustFind returns the paths of programs of other packages.
func mustFind(tb testing.TB, names ...string) []string {
	tb.Helper()
	paths := make([]string, len(names))
	for i, name := range names {
		path, err := exec.LookPath(name)
		if err != nil {
			tb.Skipf("needs %s: apt-get install curl microsocks dante-server", name)
		}
		paths[i] = path
	}
	return paths
}

// mustPort returns a loopback port that was free just now.
func mustPort(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// mustStart runs a proxy that listens at addr until the test ends.
func mustStart(tb testing.TB, addr string, args ...string) {
	tb.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		tb.Fatalf("start %s: %v", args[0], err)
	}
	tb.Cleanup(func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // dante has children
		cmd.Wait()
	})
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			conn.Close()
			return
		}
		if time.Now().After(deadline) {
			tb.Fatalf("%s does not listen: %v", args[0], err)
		}
	}
}

// mustMicrosocks starts microsocks, with the user name acme-session-a1 and the
// password sesame if auth is set.
func mustMicrosocks(tb testing.TB, auth bool) string {
	tb.Helper()
	port := mustPort(tb)
	args := []string{mustFind(tb, "microsocks")[0], "-i", "127.0.0.1", "-p", port}
	if auth {
		args = append(args, "-u", "acme-session-a1", "-P", "sesame")
	}
	mustStart(tb, "127.0.0.1:"+port, args...)
	return "127.0.0.1:" + port
}

// mustDante starts dante, which forbids connections to port 9.
func mustDante(tb testing.TB) string {
	tb.Helper()
	port := mustPort(tb)
	dir := tb.TempDir()
	conf := filepath.Join(dir, "danted.conf")
	text := fmt.Sprintf(`logoutput: %s/log
internal: 127.0.0.1 port = %s
external: lo
clientmethod: none
socksmethod: none
client pass { from: 127.0.0.0/8 to: 0.0.0.0/0 }
socks block { from: 0.0.0.0/0 to: 0.0.0.0/0 port = 9 }
socks pass { from: 127.0.0.0/8 to: 0.0.0.0/0 }
socks pass { from: 127.0.0.0/8 to: ::/0 }
`, dir, port)
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		tb.Fatal(err)
	}
	mustStart(tb, "127.0.0.1:"+port, mustFind(tb, "danted")[0], "-f", conf, "-p", filepath.Join(dir, "pid"))
	return "127.0.0.1:" + port
}

// mustProxy4a starts a proxy that grants every SOCKS4a request.
func mustProxy4a(tb testing.TB) string {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { l.Close() })
	serve := func(client net.Conn) {
		defer client.Close()
		var head [8]byte
		if _, err := io.ReadFull(client, head[:]); err != nil {
			return
		}
		r := bufio.NewReader(client)
		r.ReadString(0) // user id
		domain, err := r.ReadString(0)
		if err != nil {
			return
		}
		port := strconv.Itoa(int(binary.BigEndian.Uint16(head[2:])))
		upstream, err := net.Dial("tcp", net.JoinHostPort(domain[:len(domain)-1], port))
		if err != nil {
			return
		}
		defer upstream.Close()
		client.Write([]byte{0, 90, 0, 0, 0, 0, 0, 0})
		go func() {
			io.Copy(upstream, r)
			upstream.(*net.TCPConn).CloseWrite()
		}()
		io.Copy(client, upstream)
	}
	go func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			go serve(client)
		}
	}()
	return l.Addr().String()
}

// origin answers GET with "hello", on both loopback addresses where it can,
// and counts.
type origin struct {
	port string
	hits atomic.Int64
}

func mustOrigin(tb testing.TB) *origin {
	tb.Helper()
	o := &origin{}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		o.hits.Add(1)
		io.WriteString(w, "hello")
	})
	server := httptest.NewServer(handler)
	tb.Cleanup(server.Close)
	_, o.port, _ = net.SplitHostPort(server.Listener.Addr().String())
	if l, err := net.Listen("tcp", "[::1]:"+o.port); err == nil { // localhost may be either
		second := &httptest.Server{Listener: l, Config: &http.Server{Handler: handler}}
		second.Start()
		tb.Cleanup(second.Close)
	}
	return o
}

// tap is a relay that shows an Observer every message before it forwards it.
type tap struct {
	observer Observer
	events   []string // messages, with the bytes of payload left out
	c, s     []byte   // what each side sent until the end of the handshake
	err      error
	held     func(*Observer) // runs while the Request is held
}

// pump reads r to its end.
func pump(r io.Reader, out chan<- []byte) {
	defer close(out)
	for {
		buf := make([]byte, 7) // small: messages arrive in pieces
		n, err := r.Read(buf)
		if n > 0 {
			out <- buf[:n]
		}
		if err != nil {
			return
		}
	}
}

// run relays between client and proxy until both have ended.
func (p *tap) run(client, proxy *net.TCPConn) error {
	fromClient, fromProxy := make(chan []byte), make(chan []byte)
	go pump(client, fromClient)
	go pump(proxy, fromProxy)
	var c, s []byte
	for fromClient != nil || fromProxy != nil {
		select {
		case b, ok := <-fromClient:
			if c = append(c, b...); !ok {
				fromClient = nil
				proxy.CloseWrite()
			}
		case b, ok := <-fromProxy:
			if s = append(s, b...); !ok {
				fromProxy = nil
				client.CloseWrite()
			}
		}
		for {
			n, err := p.step(&c, p.observer.Client, proxy, &p.c)
			if n == 0 && err == nil {
				n, err = p.step(&s, p.observer.Server, client, &p.s)
			}
			if err != nil {
				return err
			}
			if n == 0 {
				break
			}
		}
	}
	return nil
}

// step forwards one message.
func (p *tap) step(b *[]byte, observe func([]byte) (int, Event, error), to io.Writer, sent *[]byte) (int, error) {
	n, ev, err := observe(*b)
	if err != nil || n == 0 {
		return 0, err
	}
	if ev != Payload && ev != Opaque {
		p.events = append(p.events, ev.String())
		*sent = append(*sent, (*b)[:n]...)
	}
	if ev == Request {
		p.held(&p.observer)
	}
	_, err = to.Write((*b)[:n])
	*b = (*b)[n:]
	if err != nil {
		return n, nil // the other side is gone; what it sent is still to be read
	}
	return n, nil
}

// mustCurl fetches rawURL with curl by way of a tap in front of the proxy at
// upstream. proxyURL has "TAP" for the address.
func mustCurl(tb testing.TB, o *origin, upstream, proxyURL, rawURL string) (*tap, string, error) {
	tb.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	before := o.hits.Load()
	p := &tap{held: func(*Observer) {
		if got := o.hits.Load(); got != before {
			tb.Errorf("origin has %d requests while the first is held", got-before)
		}
	}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		client, err := l.Accept()
		if err != nil {
			p.err = err
			return
		}
		defer client.Close()
		proxy, err := net.Dial("tcp", upstream)
		if err != nil {
			p.err = err
			return
		}
		defer proxy.Close()
		p.err = p.run(client.(*net.TCPConn), proxy.(*net.TCPConn))
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, mustFind(tb, "curl")[0], "-sS", "--noproxy", "", "-x",
		strings.Replace(proxyURL, "TAP", l.Addr().String(), 1), rawURL)
	body, runErr := cmd.Output()
	l.Close()
	<-done
	if p.err != nil {
		tb.Fatalf("tap: %v after %v", p.err, p.events)
	}
	return p, string(body), runErr
}

func TestRealClientAndProxy(t *testing.T) {
	mustFind(t, "curl", "microsocks", "danted")
	o := mustOrigin(t)
	open, auth, dante := mustMicrosocks(t, false), mustMicrosocks(t, true), mustDante(t)
	closed := mustPort(t)
	for _, tt := range []struct {
		name, upstream, proxy, host, port string
		user, wantHost                    string
		outcome                           Outcome
		events                            string
	}{
		{"socks5 microsocks", open, "socks5://TAP", "127.0.0.1", o.port, "", "127.0.0.1", Granted,
			"greeting, method chosen, request, done"},
		{"socks5h microsocks", open, "socks5h://TAP", "LocalHost", o.port, "", "localhost", Granted,
			"greeting, method chosen, request, done"},
		{"socks5h auth", auth, "socks5h://acme-session-a1:sesame@TAP", "localhost", o.port, "acme-session-a1", "localhost", Granted,
			"greeting, method chosen, auth, auth result, request, done"},
		{"wrong password", auth, "socks5h://acme-session-a1:open@TAP", "localhost", o.port, "acme-session-a1", "", AuthFailed,
			"greeting, method chosen, auth, failed"},
		{"no password", auth, "socks5h://TAP", "localhost", o.port, "", "", NoMethod,
			"greeting, failed"},
		{"refused microsocks", open, "socks5://TAP", "127.0.0.1", closed, "", "127.0.0.1", Refused,
			"greeting, method chosen, request, failed"},
		{"socks5 dante", dante, "socks5://TAP", "127.0.0.1", o.port, "", "127.0.0.1", Granted,
			"greeting, method chosen, request, done"},
		{"socks5h dante", dante, "socks5h://TAP", "localhost", o.port, "", "localhost", Granted,
			"greeting, method chosen, request, done"},
		{"not allowed dante", dante, "socks5://TAP", "127.0.0.1", "9", "", "127.0.0.1", NotAllowed,
			"greeting, method chosen, request, failed"},
		{"refused dante", dante, "socks5://TAP", "127.0.0.1", closed, "", "127.0.0.1", Refused,
			"greeting, method chosen, request, failed"},
		{"socks4 dante", dante, "socks4://acme@TAP", "127.0.0.1", o.port, "acme", "127.0.0.1", Granted,
			"request, done"},
		// Dante takes the 0.0.0.1 of SOCKS4a for the address.
		{"socks4a dante", dante, "socks4a://acme-session-a1@TAP", "localhost", o.port, "acme-session-a1", "localhost", GeneralFailure,
			"request, failed"},
		{"socks4a", mustProxy4a(t), "socks4a://acme-session-a1@TAP", "LOCALHOST", o.port, "acme-session-a1", "localhost", Granted,
			"request, done"},
		{"socks4 not allowed dante", dante, "socks4://TAP", "127.0.0.1", "9", "", "127.0.0.1", GeneralFailure,
			"request, failed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, body, err := mustCurl(t, o, tt.upstream, tt.proxy, "http://"+tt.host+":"+tt.port+"/")
			t.Logf("client %q, proxy %q", p.c, p.s)
			if got := strings.Join(p.events, ", "); got != tt.events {
				t.Errorf("events %s, want %s", got, tt.events)
			}
			ob := &p.observer
			if ob.Outcome() != tt.outcome || ob.User() != tt.user || ob.Host() != tt.wantHost {
				t.Errorf("got %v of %q for %q, want %v of %q for %q",
					ob.Outcome(), ob.Host(), ob.User(), tt.outcome, tt.wantHost, tt.user)
			}
			if slices.Contains(p.events, "request") {
				if got := strconv.Itoa(int(ob.Port())); got != tt.port || ob.Command() != Connect {
					t.Errorf("%v to port %s, want connect to %s", ob.Command(), got, tt.port)
				}
			}
			if tt.outcome == Granted && (err != nil || body != "hello") {
				t.Errorf("curl: %q, %v", body, err)
			}
			if tt.outcome != Granted && err == nil {
				t.Errorf("curl succeeded: %q", body)
			}
		})
	}
}
