// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
)

// each calls f with every connection, on its loop.
func (b *bench) each(f func(*conn)) {
	for _, l := range b.loops {
		done := make(chan struct{})
		l.post(func() {
			for _, c := range l.slots {
				if c != nil {
					f(c)
				}
			}
			close(done)
		})
		<-done
	}
}

// ring makes every running timer of a connection due.
func (b *bench) ring() {
	b.each(func(c *conn) {
		if c.timer.index > 0 {
			c.l.timers.start(&c.timer, 0)
		}
	})
}

// one is a rule that lets one request go, and holds the next.
func one() *policy.Budget {
	rule := budget("", policy.Rate{Count: 1, Every: time.Hour})
	rule.Match.Hosts = []policy.HostPattern{{Any: true}}
	rule.Per = 0
	rule.Queue.MaxWait = 24 * time.Hour
	return rule
}

func (b *bench) held() bool { return b.engine.Lanes()[0].Waiting.Load() == 1 }

// let makes the lane of one let everything go.
func (b *bench) let() {
	lane := b.engine.Lanes()[0]
	lane.Cell.Interval.Store(0)
	lane.Cell.TAT.Store(0)
	b.gate.Wake(lane)
}

// Requests that are sent together and refused get an answer each.
func TestPipelinedRefusals(t *testing.T) {
	dest, n := httpOrigin(t, nil)
	rule := one()
	rule.Queue.MaxWait = time.Second
	b := start(t, rule)
	client := b.connect(dest)
	mustWrite(t, client, strings.Repeat(simpleGet, 30))
	r := bufio.NewReader(client)
	for i := range 30 {
		want := http.StatusTooManyRequests
		if i == 0 {
			want = http.StatusOK
		}
		if resp := readResponse(t, r, "GET"); resp.StatusCode != want {
			t.Fatalf("answer %d: status %d, want %d", i, resp.StatusCode, want)
		}
	}
	if n.Load() != 1 {
		t.Errorf("origin saw %d requests, want 1", n.Load())
	}
}

// What the origin says on a connection while the next request is held is no
// answer to that request.
func TestOriginSpeaksWhileHeld(t *testing.T) {
	for _, closes := range []bool{false, true} {
		var conns atomic.Int64
		held := make(chan struct{})
		b := start(t, one())
		client := b.connect(origin(t, func(c *net.TCPConn) {
			n := conns.Add(1) // before the answer, after which the test looks
			mustRead(t, c, simpleGet)
			mustWrite(t, c, shortAnswer)
			if n > 1 {
				return
			}
			<-held
			mustWrite(t, c, "HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
			if !closes {
				io.Copy(io.Discard, c)
			}
		}))
		mustWrite(t, client, simpleGet)
		mustRead(t, client, shortAnswer)
		mustWrite(t, client, simpleGet)
		waitFor(t, "request held", b.held)
		close(held)
		waitFor(t, "408 read", func() (ok bool) {
			b.each(func(c *conn) { ok = c.up.pending() > 0 && c.up.eof == closes })
			return ok
		})
		b.let()
		mustRead(t, client, shortAnswer)
		if got := conns.Load(); got != 2 {
			t.Errorf("origin saw %d connections, want 2", got)
		}
	}
}

// A server that speaks and closes before the client says a word is heard once.
func TestServerSpeaksAndCloses(t *testing.T) {
	var conns atomic.Int64
	for _, hold := range []bool{false, true} {
		conns.Store(0)
		dest := origin(t, func(c *net.TCPConn) {
			conns.Add(1)
			mustWrite(t, c, "12:34:56\r\n")
		})
		b := start(t, one())
		if hold {
			mustRead(t, b.connect(dest), "12:34:56\r\n")
		}
		client := b.connect(dest)
		if hold {
			waitFor(t, "connection held", b.held)
			waitFor(t, "all read", func() (ok bool) {
				b.each(func(c *conn) { ok = ok || c.rq == rqHeld && c.up.eof })
				return ok
			})
			conns.Store(1)
			b.let()
		}
		mustRead(t, client, "12:34:56\r\n")
		mustEnd(t, client, false)
		if got := conns.Load(); got != 1 {
			t.Errorf("hold %v: origin saw %d connections, want 1", hold, got)
		}
	}
}

// A client that has nothing to say, and says so, hears what the server has.
func TestSilentHalfClosedClient(t *testing.T) {
	b := start(t, budget("origin.test", plenty))
	client := b.connect(origin(t, func(c *net.TCPConn) {
		mustEnd(t, c, false)
		mustWrite(t, c, "12:34:56\r\n")
	}))
	client.CloseWrite()
	mustRead(t, client, "12:34:56\r\n")
	mustEnd(t, client, false)
}

// A client that leaves while its connection is being made does not reach the
// origin, and costs nothing.
func TestClientLeavesWhileConnecting(t *testing.T) {
	// The accept queue of this listener is full: further connections are not
	// answered.
	ln, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(ln)
	if err := unix.Bind(ln, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(ln, 0); err != nil {
		t.Fatal(err)
	}
	dest, _ := localAddr(ln)
	first, err := net.Dial("tcp4", dest.String())
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	b := start(t, budget("origin.test", plenty))
	client := b.connect(dest)
	mustWrite(t, client, simpleGet)
	waitFor(t, "connecting", func() bool { f := b.Flows(); return len(f) == 1 && f[0].State == "connecting" })
	client.Close()
	waitFor(t, "no connections", func() bool { return len(b.Flows()) == 0 })
	lane := b.engine.Lanes()[0]
	if lane.InFlight.Load() != 0 || lane.Cell.Granted.Load() != 0 {
		t.Errorf("in flight %d, granted %d; want none", lane.InFlight.Load(), lane.Cell.Granted.Load())
	}
}

// A held client that closed after it had ended its sending is found out when
// its turn comes.
func TestHeldHalfClosedClientLeaves(t *testing.T) {
	dest, n := httpOrigin(t, nil)
	b := start(t, one())
	roundTrip(t, b.connect(dest), simpleGet)
	client := b.connect(dest)
	mustWrite(t, client, simpleGet)
	client.CloseWrite()
	waitFor(t, "request held", b.held)
	waitFor(t, "half-close seen", func() (ok bool) {
		b.each(func(c *conn) { ok = ok || c.rq == rqHeld && c.client.hup })
		return ok
	})
	client.Close()
	b.let()
	waitFor(t, "client gone", func() bool { return len(b.Flows()) == 1 })
	if got := b.engine.Lanes()[0].InFlight.Load(); got != 0 {
		t.Errorf("in flight = %d, want 0", got)
	}
	if n.Load() != 1 {
		t.Errorf("origin saw %d requests, want 1", n.Load())
	}
}

// What a batch of events still says about a socket that is closed does not
// touch the one in its place.
func TestStaleEvent(t *testing.T) {
	b := start(t, budget("origin.test", plenty))
	client := b.connect(origin(t, plainOrigin))
	ask(t, client, make([]byte, 4096), 1)
	b.each(func(c *conn) {
		old := unix.EpollEvent{Events: unix.EPOLLOUT | unix.EPOLLHUP, Fd: c.slot, Pad: c.up.gen<<sideBits | sideUpstream}
		c.dropUpstream()
		if !c.dial() {
			t.Fatal("no new connection")
		}
		c.l.handle(&old)
		if c.connected || c.up.hup {
			t.Errorf("connected %v, hup %v before any event of the new socket", c.connected, c.up.hup)
		}
	})
	ask(t, client, make([]byte, 4096), 1)
}

// Urgent data goes through in its place, also in the midst of much, and nothing
// waits behind it.
func TestUrgentData(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 1<<16)
	say := func(c *net.TCPConn) {
		raw, err := c.SyscallConn()
		if err != nil {
			t.Error(err)
			return
		}
		for _, part := range []string{big, "!", "after" + big, "!", "end"} {
			if part != "!" {
				c.Write([]byte(part))
				continue
			}
			raw.Write(func(fd uintptr) bool { return unix.Send(int(fd), []byte(part), unix.MSG_OOB) != unix.EAGAIN })
		}
	}
	text := big + "!after" + big + "!end"
	b := start(t)
	client := b.connect(origin(t, func(c *net.TCPConn) {
		mustRead(t, c, "\x00")
		say(c)
		mustRead(t, c, text)
		mustWrite(t, c, "bye")
	}))
	mustWrite(t, client, "\x00")
	mustRead(t, client, text)
	say(client)
	mustRead(t, client, "bye")
}

// A reset that a write is told of stays a reset for the client: an answer that
// ends with the connection would otherwise look complete.
func TestResetWhileSending(t *testing.T) {
	b := start(t, budget("origin.test", plenty))
	head := "POST / HTTP/1.1\r\nHost: origin.test\r\nContent-Length: 1000000000\r\n\r\n"
	told := make(chan struct{})
	client := b.connect(origin(t, func(c *net.TCPConn) {
		mustRead(t, c, head)
		mustWrite(t, c, "HTTP/1.1 200 OK\r\n\r\npart")
		<-told
		c.SetLinger(0)
	}))
	mustWrite(t, client, head)
	written := make(chan struct{})
	go func() {
		defer close(written)
		for chunk := make([]byte, 64<<10); ; {
			if _, err := client.Write(chunk); err != nil {
				return
			}
		}
	}()
	mustRead(t, client, "HTTP/1.1 200 OK\r\n\r\npart")
	waitFor(t, "origin takes no more", func() (ok bool) {
		b.each(func(c *conn) { ok = c.client.ok > 0 && !c.up.writable })
		return ok
	})
	client.SetWriteDeadline(time.Now()) // its own write would be told of the reset, and not its read
	<-written
	close(told)
	mustEnd(t, client, true)
	waitFor(t, "no connections", func() bool { return len(b.Flows()) == 0 })
}

// A client that reads slowly gets what the origin sent before its reset.
func TestSlowClientOfReset(t *testing.T) {
	const size = 200 << 10
	for _, first := range []string{"\x00", simpleGet} {
		b := start(t, budget("origin.test", plenty))
		answer := "HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n" + strings.Repeat("x", size)
		told := make(chan struct{})
		dest := origin(t, func(c *net.TCPConn) {
			mustRead(t, c, first)
			mustWrite(t, c, answer)
			<-told
			c.SetLinger(0)
		})
		client := b.connectNarrow(dest)
		mustWrite(t, client, first)
		waitFor(t, "all read", func() bool {
			n := uint64(0)
			for _, y := range b.engine.Tallies() {
				n += y.Bytes(policy.Received)
			}
			return n == uint64(len(answer))
		})
		close(told)
		time.Sleep(2 * tick) // the reset is there, and must wait
		mustRead(t, client, answer)
		mustEnd(t, client, true)
	}
}

// connectNarrow is connect with a small receive buffer.
func (b *bench) connectNarrow(dest netip.AddrPort) *net.TCPConn {
	b.t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4096); err != nil {
		b.t.Fatal(err)
	}
	token := b.hook.token(policy.Flow{Dest: dest, Exit: policy.DirectExit, UID: uint32(os.Geteuid())})
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: token.As4(), Port: int(b.port)}); err != nil {
		b.t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "client")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return c.(*net.TCPConn)
}

// Bytes beyond an answer that is the last go on as they came, and hold nothing
// up.
func TestBytesBeyondTheLastAnswer(t *testing.T) {
	const answer = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok and more"
	b := start(t, budget("origin.test", plenty))
	client := b.connect(origin(t, func(c *net.TCPConn) {
		mustRead(t, c, simpleGet)
		mustWrite(t, c, answer)
	}))
	mustWrite(t, client, simpleGet)
	mustRead(t, client, answer)
	mustEnd(t, client, false)
	client.Close()
	waitFor(t, "no connections", func() bool { return len(b.Flows()) == 0 })
}

// A client that does not close after an answer that ended oddly is closed.
func TestClientStaysAfterTheEnd(t *testing.T) {
	b := start(t, budget("origin.test", plenty))
	client := b.connect(origin(t, func(c *net.TCPConn) {
		mustRead(t, c, simpleGet)
		mustWrite(t, c, "garbage\r\n\r\n")
	}))
	mustWrite(t, client, simpleGet)
	mustRead(t, client, "garbage\r\n\r\n")
	mustEnd(t, client, false)
	b.ring()
	waitFor(t, "no connections", func() bool { return len(b.Flows()) == 0 })
}

// First bytes that could become a protocol we know are not waited for, however
// late they come.
func TestUndecidedAfterSilence(t *testing.T) {
	b := start(t, budget("origin.test", plenty))
	client := b.connect(origin(t, func(c *net.TCPConn) {
		mustRead(t, c, "HE")
		mustWrite(t, c, "well?")
	}))
	lapsed := func() (ok bool) {
		b.each(func(c *conn) { ok = c.connected && c.timer.index == 0 })
		return ok
	}
	waitFor(t, "silence is over", func() bool { b.ring(); return lapsed() })
	mustWrite(t, client, "HE")
	waitFor(t, "a timer", func() bool { return !lapsed() })
	b.ring()
	mustRead(t, client, "well?")
}

// A client that closes after a half-close is gone although no event says so.
func TestHalfClosedClientCloses(t *testing.T) {
	for _, first := range []string{"\x00", simpleGet} {
		b := start(t, budget("origin.test", plenty))
		gone := make(chan struct{})
		client := b.connect(origin(t, func(c *net.TCPConn) {
			mustRead(t, c, first)
			mustEnd(t, c, false)
			<-gone // and says nothing
		}))
		mustWrite(t, client, first)
		client.CloseWrite()
		waitFor(t, "half-close passed on", func() (ok bool) {
			b.each(func(c *conn) { ok = c.up.shut })
			return ok
		})
		b.ring()
		time.Sleep(2 * tick)
		if got := len(b.Flows()); got != 1 {
			t.Errorf("%d connections while the client waits, want 1", got)
		}
		client.Close()
		b.ring()
		waitFor(t, "no connections", func() bool { return len(b.Flows()) == 0 })
		close(gone)
		for _, l := range b.engine.Lanes() {
			if got := l.InFlight.Load(); got != 0 {
				t.Errorf("in flight = %d, want 0", got)
			}
		}
	}
}

// A reset behind a half-close ends the connection although the origin says
// nothing that could not be delivered.
func TestHalfClosedClientResets(t *testing.T) {
	b := start(t)
	gone := make(chan struct{})
	told := make(chan error, 1)
	client := b.connect(origin(t, func(c *net.TCPConn) {
		mustRead(t, c, "\x00")
		mustEnd(t, c, false)
		<-gone
		_, err := c.Write([]byte("x"))
		told <- err
	}))
	mustWrite(t, client, "\x00")
	client.CloseWrite()
	waitFor(t, "half-close passed on", func() (ok bool) {
		b.each(func(c *conn) { ok = c.up.shut })
		return ok
	})
	client.SetLinger(0)
	client.Close()
	waitFor(t, "no connections", func() bool { return len(b.Flows()) == 0 })
	close(gone)
	if err := <-told; err == nil {
		t.Error("origin could write, want a broken connection")
	}
}

// A tunnel moves no more than its share before others have their turn.
func TestTunnelTakesItsShare(t *testing.T) {
	const most = share + pipeSize
	b := start(t)
	client := b.connect(origin(t, func(c *net.TCPConn) {
		mustRead(t, c, "\x00")
		for chunk := make([]byte, 1<<20); ; {
			if _, err := c.Write(chunk); err != nil {
				return
			}
		}
	}))
	mustWrite(t, client, "\x00")
	// The kernel gives more room to a connection that has moved much.
	if _, err := io.CopyN(io.Discard, client, 64<<20); err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, client)
	b.each(func(c *conn) {
		waiting := func() int {
			n, err := unix.IoctlGetInt(c.up.fd, unix.TIOCINQ)
			if err != nil {
				t.Error(err)
			}
			return n
		}
		for last := -1; last < waiting(); time.Sleep(100 * time.Millisecond) { // until no more fits
			last = waiting()
		}
		if got := waiting(); got <= most {
			t.Errorf("only %d bytes wait, which shows nothing: want more than %d", got, most)
		}
		had := c.received
		c.up.readable = true
		c.event(sideClient, c.client.gen, unix.EPOLLOUT)
		if got := c.received - had; got > most {
			t.Errorf("moved %d bytes at once, want at most %d", got, most)
		}
	})
}
