// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
)

const simpleGet = "GET / HTTP/1.1\r\nHost: origin.test\r\n\r\n"

// mustRead reads exactly want from c.
func mustRead(t testing.TB, c net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	n, err := io.ReadFull(c, got)
	if err != nil || string(got) != want {
		t.Fatalf("read %q, %v; want %q", clip(got[:n]), err, clip([]byte(want)))
	}
}

// mustEnd reads the end of the stream: io.EOF, or with reset ECONNRESET.
func mustEnd(t testing.TB, c net.Conn, reset bool) {
	t.Helper()
	rest, err := io.ReadAll(c)
	if len(rest) > 0 {
		t.Fatalf("read %q, want the end of the stream", clip(rest))
	}
	if got := errors.Is(err, unix.ECONNRESET); got != reset || !got && err != nil {
		t.Fatalf("end of stream: error %v, want reset = %v", err, reset)
	}
}

func mustWrite(t testing.TB, c net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
}

func TestBodyUntilClose(t *testing.T) {
	b := start(t, budget("origin.test", plenty))
	client := b.connect(origin(t, func(c *net.TCPConn) {
		mustRead(t, c, simpleGet)
		mustWrite(t, c, "HTTP/1.1 200 OK\r\n\r\nall of it")
	}))
	mustWrite(t, client, simpleGet)
	mustRead(t, client, "HTTP/1.1 200 OK\r\n\r\nall of it")
	mustEnd(t, client, false)
}

// A client that ends its sending with the request still gets the answer, and
// the origin sees the half-close.
func TestHalfClosedClient(t *testing.T) {
	b := start(t, budget("origin.test", plenty))
	client := b.connect(origin(t, func(c *net.TCPConn) {
		mustRead(t, c, simpleGet)
		mustEnd(t, c, false)
		mustWrite(t, c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	}))
	mustWrite(t, client, simpleGet)
	client.CloseWrite()
	mustRead(t, client, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	mustEnd(t, client, false)
}

// Half-closes pass through tunnels one by one.
func TestHalfClosedTunnel(t *testing.T) {
	for _, first := range []string{"client", "origin"} {
		t.Run(first, func(t *testing.T) {
			b := start(t)
			conns := make(chan *net.TCPConn, 1)
			client := b.connect(origin(t, func(c *net.TCPConn) {
				conns <- c
				mustRead(t, c, "\x00hello")
				if first == "client" {
					mustEnd(t, c, false)
					mustWrite(t, c, "late")
					return
				}
				mustWrite(t, c, "early")
				c.CloseWrite()
				mustRead(t, c, "late")
				mustEnd(t, c, false)
			}))
			mustWrite(t, client, "\x00hello")
			if first == "client" {
				client.CloseWrite()
				mustRead(t, client, "late")
				mustEnd(t, client, false)
				return
			}
			mustRead(t, client, "early")
			mustEnd(t, client, false)
			mustWrite(t, client, "late")
			client.CloseWrite()
			<-conns
		})
	}
}

// A reset of the origin is a reset for the client, after the bytes before it.
func TestOriginResets(t *testing.T) {
	for _, tc := range []struct{ name, answer string }{
		{"before the answer", ""},
		{"in the head", "HTTP/1.1 200 OK\r\nContent-Le"},
		{"in the body", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := start(t, budget("origin.test", plenty))
			told := make(chan bool)
			client := b.connect(origin(t, func(c *net.TCPConn) {
				mustRead(t, c, simpleGet)
				mustWrite(t, c, tc.answer)
				<-told
				c.SetLinger(0)
			}))
			mustWrite(t, client, simpleGet)
			if strings.Contains(tc.answer, "\r\n\r\n") {
				mustRead(t, client, tc.answer)
			}
			close(told)
			if _, err := io.ReadAll(client); !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("client saw %v, want a reset", err)
			}
		})
	}
}

// An answer cut short by the origin must not look complete.
func TestOriginClosesTooEarly(t *testing.T) {
	b := start(t, budget("origin.test", plenty))
	client := b.connect(origin(t, func(c *net.TCPConn) {
		mustRead(t, c, simpleGet)
		mustWrite(t, c, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome")
	}))
	mustWrite(t, client, simpleGet)
	mustRead(t, client, "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nsome")
	mustEnd(t, client, false)
}

// A client that goes away takes the upstream connection with it.
func TestClientLeaves(t *testing.T) {
	for _, tc := range []struct {
		name  string
		leave func(*net.TCPConn)
	}{
		{"close", func(c *net.TCPConn) { c.Close() }},
		{"reset", func(c *net.TCPConn) { c.SetLinger(0); c.Close() }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := start(t, budget("origin.test", plenty))
			gone := make(chan error, 1)
			client := b.connect(origin(t, func(c *net.TCPConn) {
				mustRead(t, c, simpleGet)
				_, err := c.Read(make([]byte, 1))
				gone <- err
			}))
			mustWrite(t, client, simpleGet)
			// The request must have arrived before the client leaves.
			waitFor(t, "request under way", func() bool { f := b.Flows(); return len(f) == 1 && f[0].State == "answering" })
			tc.leave(client)
			if err := <-gone; err == nil {
				t.Error("origin read a byte, want the end of the connection")
			}
			waitFor(t, "no connections", func() bool { return len(b.Flows()) == 0 })
		})
	}
}

// waitFor waits until ok holds.
func waitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(15 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still not: %s", what)
		}
	}
}

// Idle connections end when the origin ends them.
func TestOriginClosesIdleConnection(t *testing.T) {
	b := start(t, budget("origin.test", plenty))
	client := b.connect(origin(t, func(c *net.TCPConn) {
		mustRead(t, c, simpleGet)
		mustWrite(t, c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	}))
	mustWrite(t, client, simpleGet)
	mustRead(t, client, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	mustEnd(t, client, false)
}

// Connection: close of the answer ends the connection, even if the origin
// itself forgets to.
func TestConnectionClose(t *testing.T) {
	b := start(t, budget("origin.test", plenty))
	client := b.connect(origin(t, func(c *net.TCPConn) {
		mustRead(t, c, simpleGet)
		mustWrite(t, c, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
		mustEnd(t, c, false)
	}))
	mustWrite(t, client, simpleGet)
	mustRead(t, client, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
	mustEnd(t, client, false)
}

// A final answer before the end of the body, after which the origin closes,
// reaches the client although it is still sending.
func TestEarlyAnswerAndClose(t *testing.T) {
	const answer = "HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno"
	b := start(t, budget("origin.test", plenty))
	head := fmt.Sprintf("POST / HTTP/1.1\r\nHost: origin.test\r\nContent-Length: %d\r\n\r\n", 64<<20)
	client := b.connect(origin(t, func(c *net.TCPConn) {
		mustRead(t, c, head)
		mustWrite(t, c, answer)
	}))
	mustWrite(t, client, head)
	quit := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for chunk := make([]byte, 64<<10); ; {
			select {
			case <-quit:
				return
			default:
				if _, err := client.Write(chunk); err != nil {
					return
				}
			}
		}
	}()
	mustRead(t, client, answer)
	close(quit)
	client.CloseWrite()
	<-done
}

// An origin that cannot be reached: the client gets a reset, not an empty
// answer, and the next connection goes untouched.
func TestUnreachableOrigin(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dest := ln.Addr().(*net.TCPAddr).AddrPort()
	ln.Close()
	b := start(t, budget("origin.test", plenty))
	client := b.connect(dest)
	mustWrite(t, client, simpleGet)
	mustEnd(t, client, true)
	if !b.hook.negative(dest) {
		t.Error("no negative entry, want one")
	}
	if l := b.engine.Lanes(); len(l) != 1 || l[0].InFlight.Load() != 0 {
		t.Errorf("lanes = %v, want one with nothing in flight", l)
	}
}

// A property of the client's socket that cannot be had upstream breaks the
// flow rather than change its exit.
func TestExitCannotBeKept(t *testing.T) {
	reached := make(chan struct{}, 1)
	dest := origin(t, func(*net.TCPConn) { reached <- struct{}{} })
	b := start(t, budget("origin.test", plenty))
	client := b.connectFlow(policy.Flow{Dest: dest, Source: netip.MustParseAddr("192.0.2.1"), UID: uint32(unix.Geteuid())})
	mustWrite(t, client, simpleGet)
	mustEnd(t, client, true)
	if !b.hook.negative(dest) {
		t.Error("no negative entry, want one")
	}
	select {
	case <-reached:
		t.Error("the origin was reached from another source")
	default:
	}
}

// The upstream socket has the source that the client bound.
func TestSourceIsKept(t *testing.T) {
	from := make(chan net.Addr, 1)
	dest := origin(t, func(c *net.TCPConn) { from <- c.RemoteAddr(); io.Copy(io.Discard, c) })
	b := start(t, budget("origin.test", plenty))
	source := netip.MustParseAddr("127.0.0.42")
	client := b.connectFlow(policy.Flow{Dest: dest, Source: source, UID: uint32(unix.Geteuid())})
	mustWrite(t, client, simpleGet)
	if got := (<-from).(*net.TCPAddr).AddrPort().Addr(); got != source {
		t.Errorf("origin saw %v, want %v", got, source)
	}
}

// Whoever reaches the listener without a token is closed at once and leads
// nowhere, however often.
func TestDirectConnectionIsClosed(t *testing.T) {
	b := start(t, budget("origin.test", plenty))
	for _, addr := range []string{"127.0.0.1", "127.101.0.77"} {
		for range 20 {
			c, err := net.Dial("tcp4", netip.AddrPortFrom(netip.MustParseAddr(addr), b.port).String())
			if errors.Is(err, unix.ECONNRESET) {
				continue // closed before the dial returned
			}
			if err != nil {
				t.Fatal(err)
			}
			c.SetDeadline(time.Now().Add(10 * time.Second))
			c.Write([]byte(simpleGet))
			if n, err := c.Read(make([]byte, 1)); err == nil {
				t.Fatalf("read %d bytes, want a closed connection", n)
			}
			c.Close()
		}
	}
	if f := b.Flows(); len(f) != 0 {
		t.Errorf("flows = %v, want none", f)
	}
}
