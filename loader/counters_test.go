// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
)

// TestBytes counts the same conversations on untouched and on redirected
// sockets, by IPv4 and IPv6, to the byte.
func TestBytes(t *testing.T) {
	r := newRig(t, Config{})
	const shutWrite = unix.SHUT_WR
	conversations := []struct {
		name   string
		do     func(t *testing.T, c *client, server *net.TCPConn)
		tx, rx uint64
	}{
		{"nothing said", func(*testing.T, *client, *net.TCPConn) {}, 0, 0},
		{"client closes", func(t *testing.T, c *client, s *net.TCPConn) {
			c.call("send", 1000)
			hear(t, s, 1000)
			say(t, s, 300)
			c.call("receive", 300)
		}, 1000, 300},
		{"server closes first", func(t *testing.T, c *client, s *net.TCPConn) {
			c.call("send", 1)
			hear(t, s, 1)
			say(t, s, 300)
			s.Close()
			c.call("receive", 0)
		}, 1, 300},
		{"client ends first", func(t *testing.T, c *client, s *net.TCPConn) {
			c.call("send", 77)
			c.call("shutdown", shutWrite)
			hear(t, s, 0)
			say(t, s, 88)
			s.Close()
			c.call("receive", 0)
		}, 77, 88},
		{"server ends first", func(t *testing.T, c *client, s *net.TCPConn) {
			say(t, s, 88)
			s.CloseWrite()
			c.call("receive", 0)
			c.call("send", 77)
			c.call("shutdown", shutWrite)
			hear(t, s, 0)
			s.Close()
			c.call("poll", 0)
		}, 77, 88},
		{"server resets", func(t *testing.T, c *client, s *net.TCPConn) {
			c.call("send", 10)
			hear(t, s, 10)
			say(t, s, 20)
			c.call("receive", 20)
			if err := s.SetLinger(0); err != nil {
				t.Fatal(err)
			}
			s.Close()
			if _, err := c.try(agentCall{Op: "receive", FD: c.fd, Value: 1}); !errors.Is(err, unix.ECONNRESET) {
				t.Errorf("read after the reset: got %v, want ECONNRESET", err)
			}
		}, 10, 20},
		{"unread answer", func(t *testing.T, c *client, s *net.TCPConn) {
			say(t, s, 500)
			c.call("readable", 500)
		}, 0, 500},
		{"bulk", func(t *testing.T, c *client, s *net.TCPConn) {
			done := make(chan struct{})
			go func() {
				defer close(done)
				hear(t, s, 3_000_000)
			}()
			c.call("send", 3_000_000)
			<-done
		}, 3_000_000, 0},
		{"queued at close", func(t *testing.T, c *client, s *net.TCPConn) {
			c.call("send", 100_000) // the server reads nothing yet
		}, 100_000, 0},
	}
	all := t
	for _, kind := range []struct {
		name     string
		redirect bool
		addr     string
		open     func() *client
	}{
		{"untouched v4", false, "127.0.0.1", r.agent.tcp4},
		{"untouched v6", false, "::1", r.agent.tcp6},
		{"redirected v4", true, "127.0.0.1", r.agent.tcp4},
		{"redirected v6", true, "::1", r.agent.tcp6},
	} {
		for _, tt := range conversations {
			t.Run(kind.name+"/"+tt.name, func(t *testing.T) {
				l, err := net.Listen("tcp", "[::]:0")
				if err != nil {
					t.Fatal(err)
				}
				all.Cleanup(func() { l.Close() }) // not sooner: no two destinations shall be the same
				dest := netip.AddrPortFrom(netip.MustParseAddr(kind.addr), port(l)).String()
				r.namePorts()
				if kind.redirect {
					r.namePorts(port(l))
				}
				c := kind.open().mustConnect(dest)
				var server net.Conn
				if kind.redirect {
					server, _ = r.accept()
				} else if server, err = l.Accept(); err != nil {
					t.Fatal(err)
				}
				defer server.Close()
				tt.do(t, c, server.(*net.TCPConn))

				want := Destination{Dest: netip.MustParseAddrPort(dest), Exit: policy.DirectExit,
					Established: 1, TxBytes: tt.tx, RxBytes: tt.rx}
				if kind.redirect {
					want.Redirected = 1
				} else {
					want.Untouched, want.Handshakes = 1, 1
				}
				// Twice while open, so that nothing counts twice, unless
				// the bytes may still be on their way.
				for _, when := range []string{"open", "still open"} {
					if got := steady(r.destination(dest)); got != want {
						t.Errorf("%s: got %+v, want %+v", when, got, want)
					}
				}
				c.close()
				if got := steady(r.destination(dest)); got != want {
					t.Errorf("closed: got %+v, want %+v", got, want)
				}
			})
		}
	}
}

// steady leaves out what a busy machine decides.
func steady(d Destination) Destination {
	d.Retransmits, d.HandshakeTime = 0, 0
	return d
}

// hear reads n bytes, or to the end if n is 0.
func hear(t *testing.T, conn net.Conn, n int64) {
	t.Helper()
	var err error
	if n == 0 {
		_, err = io.Copy(io.Discard, conn)
	} else {
		_, err = io.CopyN(io.Discard, conn, n)
	}
	if err != nil {
		t.Errorf("server reads: %v", err)
	}
}

func say(t *testing.T, conn net.Conn, n int) {
	t.Helper()
	if _, err := conn.Write(make([]byte, n)); err != nil {
		t.Errorf("server writes: %v", err)
	}
}

func TestOutcome(t *testing.T) {
	r := newRig(t, Config{})
	origin := startOrigin(t)
	refused := freePort(t)

	c := r.agent.tcp4()
	if err := c.connect(refused); !errors.Is(err, unix.ECONNREFUSED) {
		t.Fatalf("connect: got %v, want ECONNREFUSED", err)
	}
	if got := r.destination(refused); got.Untouched != 1 || got.Failed != 0 || got.Established != 0 {
		t.Errorf("before the end is known: got %+v, want 1 untouched", got)
	}
	// The same socket tries again, elsewhere.
	good := origin.at("127.0.0.1")
	c.mustConnect(good)
	if got := r.destination(refused); got.Untouched != 1 || got.Failed != 1 || got.Established != 0 {
		t.Errorf("given up: got %+v, want 1 untouched and failed", got)
	}
	c.call("send", 5)
	c.close()
	if got := r.destination(good); got.Untouched != 1 || got.Failed != 0 || got.Established != 1 || got.TxBytes != 5 {
		t.Errorf("second try: got %+v, want 1 untouched and established, 5 bytes", got)
	}

	nonblocking := r.agent.socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	if err := nonblocking.connect(refused); !errors.Is(err, unix.EINPROGRESS) && !errors.Is(err, unix.ECONNREFUSED) {
		t.Fatalf("connect: got %v, want EINPROGRESS", err)
	}
	nonblocking.call("poll", 0)
	nonblocking.close()
	if got := r.destination(refused); got.Untouched != 2 || got.Failed != 2 || got.Established != 0 || got.TxBytes != 0 || got.RxBytes != 0 {
		t.Errorf("non-blocking: got %+v, want 2 untouched and failed, no bytes", got)
	}
}

// Open sockets are found in whatever namespace they are.
func TestBytesOtherNetns(t *testing.T) {
	r := newRig(t, Config{})
	attr := sysProcAttr()
	attr.Cloneflags = unix.CLONE_NEWNET
	a := startAgent(t, r.cgroup, attr)
	a.do(agentCall{Op: "loup"})
	var o *origin
	inNetns(t, a.pid(), func() { o = startOrigin(t) })
	dest := o.at("127.0.0.1")
	c := a.tcp4().mustConnect(dest)
	c.call("send", 1234)
	if got := r.destination(dest); got.TxBytes != 1234 || got.Established != 1 {
		t.Errorf("open: got %+v, want 1 established, 1234 bytes", got)
	}
	c.close()
	if got := r.destination(dest); got.TxBytes != 1234 || got.Established != 1 {
		t.Errorf("closed: got %+v, want 1 established, 1234 bytes", got)
	}
}

// Counts keep the exit's name when the policy is changed, and a full map
// loses none.
func TestDestinationKeys(t *testing.T) {
	r := newRig(t, Config{})
	origin := startOrigin(t)
	r.apply(policy.Redirects{Exits: []policy.Exit{{Name: "first", Mark: 1}, {Name: "second", Mark: 2}}})
	dial := func(mark int) {
		r.agent.tcp4().set(unix.SOL_SOCKET, unix.SO_MARK, mark).mustConnect(origin.at("127.0.0.1")).close()
	}
	dial(0)
	dial(1)
	dial(2)
	r.apply(policy.Redirects{Exits: []policy.Exit{{Name: "third", Mark: 1}, {Name: "second", Mark: 2}}})
	dial(1)
	dial(2)
	list, err := r.Connections()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]uint64)
	for _, d := range list {
		got[d.Exit] += d.Attempts()
	}
	want := map[string]uint64{"direct": 1, "first": 1, "second": 2, "third": 1}
	for exit, n := range want {
		if got[exit] != n {
			t.Errorf("exit %s: got %d, want %d", exit, got[exit], n)
		}
	}
	if len(got) != len(want) {
		t.Errorf("exits: got %v, want %v", got, want)
	}

	var keys []egressDestKey
	for i := uint32(0); ; i++ {
		key := egressDestKey{Exit: 1<<31 + i, Port: 1}
		if err := r.objs.Dests.Put(&key, &egressDest{}); errors.Is(err, unix.E2BIG) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, key)
	}
	another := startOrigin(t)
	r.agent.tcp4().mustConnect(another.at("127.0.0.1")).close()
	for i := range keys {
		if err := r.objs.Dests.Delete(&keys[i]); err != nil {
			t.Fatal(err)
		}
	}
	if list, err = r.Connections(); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(list, func(d Destination) bool { return d.Dest == netip.AddrPort{} })
	if i < 0 || list[i].Untouched != 1 || list[i].Established != 1 {
		t.Errorf("counted without room: got %+v, want one under the zero address, established", list)
	}
	if r.Dropped() == 0 {
		t.Error("dropped: got 0, want more")
	}
}

func TestGateNames(t *testing.T) {
	needRoot(t)
	k := openKernel(t, Config{})
	gates, err := k.Gates()
	if err != nil {
		t.Fatal(err)
	}
	if gates[0].Name != GateRedirected || len(gates) != len(gateNames) {
		t.Errorf("gates: got %d from %q, want %d from %q", len(gates), gates[0].Name, len(gateNames), GateRedirected)
	}
	seen := make(map[string]bool)
	for _, g := range gates {
		if g.Passed != 0 || g.Refused != 0 || seen[g.Name] {
			t.Errorf("gate %+v of a kernel never attached: want no counts and no name twice", g)
		}
		seen[g.Name] = true
	}
}

func TestPrograms(t *testing.T) {
	r := newRig(t, Config{})
	stats, err := EnableStats()
	if err != nil {
		t.Fatal(err)
	}
	defer stats.Close()
	origin := startOrigin(t)
	r.agent.tcp4().mustConnect(origin.at("127.0.0.1")).close()
	programs, err := r.Programs()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		name string
		runs uint64
	}{{"connect4", 1}, {"connect6", 0}, {"sock_release", 1}, {"getpeername4", 0}, {"getpeername6", 0}, {"sendmsg4", 0}, {"sendmsg6", 0}} {
		i := slices.IndexFunc(programs, func(p Program) bool { return p.Name == want.name })
		if i < 0 {
			t.Errorf("no program %s in %+v", want.name, programs)
			continue
		}
		if p := programs[i]; p.Runs != want.runs || (p.Runtime > 0) != (want.runs > 0) {
			t.Errorf("program %s: got %d runs, %v; want %d runs", p.Name, p.Runs, p.Runtime, want.runs)
		}
	}
}
