// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// peers are a client and an origin with a relay between them, both in the
// hands of a test.
type peers struct {
	relay     *relay
	client    *tls.Conn
	clientTCP *net.TCPConn
	origin    *tls.Conn
	originTCP *net.TCPConn
	originLn  net.Listener
}

// connect makes the peers. version is that of TLS.
func connect(t *testing.T, version uint16, opts ...relayOption) *peers {
	t.Helper()
	ca := newOriginCA(t)
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	p := &peers{originLn: ln, relay: newRelay(t, ln.Addr().String(), ca.pool, opts...)}
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		c, err := ln.Accept()
		if err != nil {
			return
		}
		p.originTCP = c.(*net.TCPConn)
		p.origin = tls.Server(c, &tls.Config{Certificates: []tls.Certificate{ca.issue(t, nil)}, MaxVersion: version})
		_ = p.origin.Handshake()
	}()
	c, err := net.Dial("tcp4", p.relay.addr())
	if err != nil {
		t.Fatal(err)
	}
	p.clientTCP = c.(*net.TCPConn)
	p.client = tls.Client(c, &tls.Config{RootCAs: p.relay.trust(), ServerName: "localhost"})
	if err := p.client.Handshake(); err != nil {
		t.Fatal(err)
	}
	<-accepted
	t.Cleanup(func() {
		_ = p.clientTCP.Close()
		_ = p.originTCP.Close()
	})
	for _, c := range []*tls.Conn{p.client, p.origin} {
		if got := c.ConnectionState().Version; got != version {
			t.Fatalf("got %s, want %s", tls.VersionName(got), tls.VersionName(version))
		}
	}
	deadline := time.Now().Add(30 * time.Second)
	_ = p.client.SetDeadline(deadline)
	_ = p.origin.SetDeadline(deadline)
	return p
}

// versions runs f for both versions of TLS.
func versions(t *testing.T, f func(t *testing.T, version uint16)) {
	for _, v := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(v), func(t *testing.T) { f(t, v) })
	}
}

func TestBytesPassUnchanged(t *testing.T) {
	versions(t, func(t *testing.T, version uint16) {
		p := connect(t, version)
		const size = 5<<20 + 17
		there, back := make([]byte, size), make([]byte, size)
		_, _ = rand.Read(there)
		_, _ = rand.Read(back)
		var tasks sync.WaitGroup
		send := func(c *tls.Conn, b []byte) {
			defer tasks.Done()
			for len(b) > 0 { // pieces of many sizes
				n := min(len(b), 1+int(b[0])*257)
				if _, err := c.Write(b[:n]); err != nil {
					t.Error(err)
					return
				}
				b = b[n:]
			}
			if err := c.CloseWrite(); err != nil {
				t.Error(err)
			}
		}
		check := func(c *tls.Conn, want []byte) {
			defer tasks.Done()
			got, err := io.ReadAll(c)
			if err != nil || sha256.Sum256(got) != sha256.Sum256(want) {
				t.Errorf("got %d bytes, %v, want the %d that were sent", len(got), err, len(want))
			}
		}
		tasks.Add(4)
		go send(p.client, there)
		go send(p.origin, back)
		go check(p.origin, there)
		go check(p.client, back)
		tasks.Wait()
	})
}

func TestHalfClose(t *testing.T) {
	versions(t, func(t *testing.T, version uint16) {
		for name, reverse := range map[string]bool{"by the client": false, "by the origin": true} {
			t.Run(name, func(t *testing.T) {
				p := connect(t, version)
				first, second := p.client, p.origin
				if reverse {
					first, second = second, first
				}
				if _, err := first.Write([]byte("all that I say")); err != nil {
					t.Fatal(err)
				}
				if err := first.CloseWrite(); err != nil {
					t.Fatal(err)
				}
				if got, err := io.ReadAll(second); err != nil || string(got) != "all that I say" {
					t.Fatalf("got %q, %v", got, err)
				}
				if _, err := second.Write([]byte("the answer")); err != nil {
					t.Fatal(err)
				}
				if err := second.CloseWrite(); err != nil {
					t.Fatal(err)
				}
				if got, err := io.ReadAll(first); err != nil || string(got) != "the answer" {
					t.Fatalf("got %q, %v", got, err)
				}
				_, _, last := p.relay.seen()
				if last.Session.ClientEnd() != EndClean || last.Session.OriginEnd() != EndClean {
					t.Errorf("got ends %v and %v, want both clean", last.Session.ClientEnd(), last.Session.OriginEnd())
				}
			})
		}
	})
}

// cutReader tells what a TLS connection's peer ended with: the library takes a
// FIN between two records for an orderly end.
type cutReader struct {
	net.Conn
	cut bool
}

func (c *cutReader) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n == 0 && errors.Is(err, io.EOF) {
		c.cut = true
	}
	return n, err
}

// TestCutIsPassedOn proves that nobody takes what was cut for whole.
func TestCutIsPassedOn(t *testing.T) {
	for _, test := range []struct {
		name string
		end  func(t *testing.T, p *peers)
		want End
	}{
		{"close_notify", func(t *testing.T, p *peers) { _ = p.origin.Close() }, EndClean},
		{"FIN alone", func(t *testing.T, p *peers) { _ = p.originTCP.Close() }, EndCut},
		{"FIN within a record", func(t *testing.T, p *peers) {
			if _, err := p.originTCP.Write([]byte{23, 3, 3, 0, 100, 1, 2, 3}); err != nil {
				t.Fatal(err)
			}
			_ = p.originTCP.Close()
		}, EndCut},
		{"reset", func(t *testing.T, p *peers) {
			_ = p.originTCP.SetLinger(0)
			_ = p.originTCP.Close()
		}, EndReset},
		{"garbage", func(t *testing.T, p *peers) {
			record := append([]byte{23, 3, 3, 0, 40}, make([]byte, 40)...)
			if _, err := p.originTCP.Write(record); err != nil {
				t.Fatal(err)
			}
		}, EndReset},
	} {
		t.Run(test.name, func(t *testing.T) {
			versions(t, func(t *testing.T, version uint16) {
				ca := newOriginCA(t)
				ln, err := net.Listen("tcp4", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				defer ln.Close()
				r := newRelay(t, ln.Addr().String(), ca.pool)
				p := &peers{relay: r}
				accepted := make(chan error, 1)
				go func() {
					c, err := ln.Accept()
					if err != nil {
						accepted <- err
						return
					}
					p.originTCP = c.(*net.TCPConn)
					p.origin = tls.Server(c, &tls.Config{Certificates: []tls.Certificate{ca.issue(t, nil)}, MaxVersion: version})
					accepted <- p.origin.Handshake()
				}()
				raw, err := net.Dial("tcp4", r.addr())
				if err != nil {
					t.Fatal(err)
				}
				defer raw.Close()
				below := &cutReader{Conn: raw}
				client := tls.Client(below, &tls.Config{RootCAs: r.trust(), ServerName: "localhost"})
				_ = client.SetDeadline(time.Now().Add(30 * time.Second))
				if err := client.Handshake(); err != nil {
					t.Fatal(err)
				}
				if err := <-accepted; err != nil {
					t.Fatal(err)
				}
				const part = "the first part of a body"
				if _, err := p.origin.Write([]byte(part)); err != nil {
					t.Fatal(err)
				}
				got := make([]byte, len(part))
				if _, err := io.ReadFull(client, got); err != nil || string(got) != part {
					t.Fatalf("got %q, %v", got, err)
				}
				test.end(t, p)
				_, err = client.Read(got)
				clean := errors.Is(err, io.EOF) && !below.cut
				if clean != (test.want == EndClean) {
					t.Errorf("the client got %v, cut %v", err, below.cut)
				}
				if _, _, last := r.seen(); last.Session.OriginEnd() != test.want {
					t.Errorf("got end %v, want %v", last.Session.OriginEnd(), test.want)
				}
				want := ""
				if test.name == "garbage" {
					want = WhyOrigin
				}
				if _, why := r.t.Plan(r.sent(), ""); why != want {
					t.Errorf("the next one is refused as %q, want %q", why, want)
				}
			})
		})
	}
}

func TestResetClient(t *testing.T) {
	for name, reset := range map[string]func(*Session){
		"client": (*Session).ResetClient, "origin": (*Session).ResetOrigin,
	} {
		results := make(chan Result, 1)
		p := connect(t, tls.VersionTLS13, func(r *relay, _ *Config) {
			r.meet = func(res Result) {
				results <- res
				r.plain(res)
			}
		})
		reset((<-results).Session)
		peer := p.client
		if name == "origin" {
			peer = p.origin
		}
		if _, err := peer.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: got %v, want %v", name, err, syscall.ECONNRESET)
		}
	}
}

// TestBackPressure proves that an origin which is not read of stops sending,
// and that nothing is lost when it is read again.
func TestBackPressure(t *testing.T) {
	p := connect(t, tls.VersionTLS13)
	const most = 64 << 20
	_ = p.origin.SetWriteDeadline(time.Now().Add(2 * time.Second))
	piece := bytes.Repeat([]byte("x"), 64<<10)
	sent := 0
	for sent < most {
		n, err := p.origin.Write(piece)
		sent += n
		if err != nil {
			break
		}
	}
	if sent >= most {
		t.Fatalf("%d bytes went out and nobody read", sent)
	}
	got, err := io.CopyN(io.Discard, p.client, int64(sent))
	if err != nil {
		t.Errorf("got %d of %d bytes: %v", got, sent, err)
	}
}

// TestNothingIsLeft opens many connections that end in all ways and looks for
// what they leave.
func TestNothingIsLeft(t *testing.T) {
	o := startOrigin(t, nil, nil)
	r := newRelay(t, o.addr(), o.ca.pool)
	// Once it went well with a client of the same kind, no number of clients that
	// hang up tells otherwise.
	if got, err := asks(r); err != nil || !strings.Contains(got, "GET /") {
		t.Fatalf("got %q, %v", got, err)
	}
	waitRunning(t, r, 0)
	before := runtime.NumGoroutine()
	var tasks sync.WaitGroup
	for i := range 60 {
		tasks.Go(func() {
			c, err := net.Dial("tcp4", r.addr())
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			switch i % 5 {
			case 0: // nothing at all
			case 1: // in the handshake: the hello, no more
				sent := &cutAfter{Conn: c, writes: 1}
				_ = tls.Client(sent, &tls.Config{RootCAs: r.trust(), ServerName: "localhost"}).Handshake()
			case 2: // after a reset
				client := tls.Client(c, &tls.Config{RootCAs: r.trust(), ServerName: "localhost"})
				_ = client.Handshake()
				_ = c.(*net.TCPConn).SetLinger(0)
			default:
				if got, err := askOn(c, r); err != nil || !strings.Contains(got, "GET /") {
					t.Errorf("got %q, %v", got, err)
				}
			}
		})
	}
	tasks.Wait()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if r.t.Running() == 0 && runtime.NumGoroutine() <= before {
			break
		}
		if time.Now().After(end) {
			buf := make([]byte, 1<<20)
			t.Fatalf("%d connections and %d goroutines are left, %d before:\n%s", r.t.Running(),
				runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
		}
	}
}

// asks is one request on a connection of its own.
func asks(r *relay) (string, error) {
	c, err := net.Dial("tcp4", r.addr())
	if err != nil {
		return "", err
	}
	defer c.Close()
	return askOn(c, r)
}

// askOn is one request on c, which it closes.
func askOn(c net.Conn, r *relay) (string, error) {
	client := tls.Client(c, &tls.Config{RootCAs: r.trust(), ServerName: "localhost"})
	defer client.Close()
	if _, err := io.WriteString(client, "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"); err != nil {
		return "", err
	}
	got, err := io.ReadAll(client)
	return string(got), err
}

// waitRunning waits until n connections are terminated.
func waitRunning(t *testing.T, r *relay, n int) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); r.t.Running() != n; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d connections are terminated, want %d", r.t.Running(), n)
		}
	}
}

// cutAfter is a connection that ends after some writes.
type cutAfter struct {
	net.Conn
	writes int
}

func (c *cutAfter) Write(b []byte) (int, error) {
	if c.writes--; c.writes < 0 {
		return 0, net.ErrClosed
	}
	return c.Conn.Write(b)
}

func (c *cutAfter) Read(b []byte) (int, error) { return 0, net.ErrClosed }

// TestClosed closes a terminator in the midst of everything.
func TestClosed(t *testing.T) {
	p := connect(t, tls.VersionTLS13)
	p.relay.t.Close()
	if _, err := p.client.Read(make([]byte, 1)); err == nil {
		t.Error("the client's connection goes on")
	}
	if _, err := p.origin.Read(make([]byte, 1)); err == nil {
		t.Error("the origin's connection goes on")
	}
	if n := p.relay.t.Running(); n != 0 {
		t.Errorf("%d connections are left", n)
	}
}

// TestOwnerCloses closes the caller's ends alone: both peers see the end, with
// close_notify, and everything written before.
func TestOwnerCloses(t *testing.T) {
	p := connect(t, tls.VersionTLS13, func(r *relay, _ *Config) {
		r.meet = func(res Result) {
			client, err := fileConn(res.Client)
			if err != nil {
				r.tb.Error(err)
				return
			}
			up, err := fileConn(res.Up)
			if err != nil {
				r.tb.Error(err)
				return
			}
			_, _ = io.WriteString(client, "HTTP/1.1 503 refused\r\n\r\n")
			_ = client.Close()
			_ = up.Close()
		}
	})
	got, err := io.ReadAll(p.client)
	if err != nil || string(got) != "HTTP/1.1 503 refused\r\n\r\n" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := p.origin.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want the end", err)
	}
}

// fill writes to a descriptor until everything behind it is full, and returns
// how much that was.
func fill(fd int) (written int) {
	piece := make([]byte, 64<<10)
	for full := 0; full < 20; {
		n, err := unix.Write(fd, piece)
		if err != nil { // what is behind it may still move
			full++
			time.Sleep(10 * time.Millisecond)
			continue
		}
		written, full = written+n, 0
	}
	return written
}

// TestOwnerClosesOnSlowPeer closes the caller's ends while the client does not
// read yet: it gets everything all the same.
func TestOwnerClosesOnSlowPeer(t *testing.T) {
	sizes := make(chan int, 1)
	p := connect(t, tls.VersionTLS13, func(r *relay, _ *Config) {
		r.meet = func(res Result) {
			_ = unix.Close(res.Up)
			n := fill(res.Client)
			_ = unix.Close(res.Client)
			sizes <- n
		}
	})
	want := <-sizes
	// Longer than a write takes to look whether anyone is left.
	time.Sleep(watchEvery + watchEvery/4)
	got, err := io.Copy(io.Discard, p.client)
	if err != nil || got != int64(want) {
		t.Errorf("got %d bytes, %v, want %d", got, err, want)
	}
}

// TestDesertedPeer is that of a client which reads nothing, whose owner has
// gone: it does not keep the connection for ever.
func TestDesertedPeer(t *testing.T) {
	p := connect(t, tls.VersionTLS13, func(r *relay, _ *Config) {
		r.meet = func(res Result) {
			_ = unix.Close(res.Up)
			fill(res.Client)
			_ = unix.Close(res.Client)
		}
		r.stall = 10 * time.Millisecond
	})
	waitRunning(t, p.relay, 0)
}

// slowConn takes nothing until it was asked some times.
type slowConn struct {
	net.Conn
	looks int
	took  []byte
}

func (c *slowConn) SetWriteDeadline(time.Time) error { return nil }

func (c *slowConn) Write(b []byte) (int, error) {
	if c.looks--; c.looks >= 0 {
		return 0, os.ErrDeadlineExceeded
	}
	c.took = append(c.took, b...)
	return len(b), nil
}

func TestSlowWrite(t *testing.T) {
	for _, test := range []struct {
		name  string
		owner bool // is still there
		stall time.Duration
		looks int
		want  error
	}{
		{"at once", true, time.Hour, 0, nil},
		{"slow", true, 0, 9, nil},
		{"slow, deserted", false, time.Hour, 9, nil},
		{"nothing, deserted for too long", false, 0, 9, errGone},
	} {
		t.Run(test.name, func(t *testing.T) {
			l, fd, err := newPair()
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			if test.owner {
				defer unix.Close(fd)
			} else {
				_ = unix.Close(fd)
			}
			c := &slowConn{looks: test.looks}
			s := &stream{Conn: c, local: l, stall: test.stall}
			n, err := s.Write([]byte("hello"))
			if !errors.Is(err, test.want) || err == nil && (n != 5 || string(c.took) != "hello") {
				t.Errorf("got %d, %v, %q, want %v", n, err, c.took, test.want)
			}
		})
	}
}

// TestOptionsStay proves that a socket is handed over as it was.
func TestOptionsStay(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for _, on := range []int{0, 1} {
		c, err := net.Dial("tcp4", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		fd := mustFD(t, c.(*net.TCPConn))
		for name, value := range map[int]int{unix.TCP_KEEPIDLE: 77, unix.TCP_KEEPINTVL: 33} {
			if err := unix.SetsockoptInt(fd, unix.IPPROTO_TCP, name, value); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, on); err != nil {
			t.Fatal(err)
		}
		taken, err := fileConn(fd)
		if err != nil {
			t.Fatal(err)
		}
		again := mustFD(t, taken.(*net.TCPConn))
		got, err := unix.GetsockoptInt(again, unix.SOL_SOCKET, unix.SO_KEEPALIVE)
		if err != nil || got != on {
			t.Errorf("got keep-alives %d, %v, want %d", got, err, on)
		}
		idle, err := unix.GetsockoptInt(again, unix.IPPROTO_TCP, unix.TCP_KEEPIDLE)
		if err != nil || idle != 77 {
			t.Errorf("got idle time %d, %v, want 77", idle, err)
		}
		_ = unix.Close(again)
	}
}
