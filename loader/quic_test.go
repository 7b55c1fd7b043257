// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
)

// sink is a UDP socket at all addresses that counts what it gets.
type sink struct {
	*net.UDPConn
	t    testing.TB
	port uint16
}

func startSink(t testing.TB) *sink {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv6unspecified})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &sink{conn, t, conn.LocalAddr().(*net.UDPAddr).AddrPort().Port()}
}

func (s *sink) at(addr string) string {
	return netip.AddrPortFrom(netip.MustParseAddr(addr), s.port).String()
}

// want checks that n datagrams of that size are there, and no more:
// on the loopback they are when the sender's call returns.
func (s *sink) want(when string, n, size int) {
	s.t.Helper()
	buf := make([]byte, 2000)
	for i := range n {
		if err := s.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
			s.t.Fatal(err)
		}
		if got, err := s.Read(buf); err != nil || got != size {
			s.t.Errorf("%s: datagram %d: got %d bytes (%v), want %d", when, i, got, err, size)
		}
	}
	if err := s.SetReadDeadline(time.Now().Add(-time.Second)); err != nil {
		s.t.Fatal(err)
	}
	raw, err := s.SyscallConn()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) {
		if got, _, err := unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT); !errors.Is(err, unix.EAGAIN) {
			s.t.Errorf("%s: got one datagram too many, of %d bytes (%v)", when, got, err)
		}
	}); err != nil {
		s.t.Fatal(err)
	}
}

func (a *agent) udp(family int) *client {
	a.t.Helper()
	return a.socket(family, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, 0)
}

// sendTo sends one datagram, from an address of the host if source is not "".
func (c *client) sendTo(dest, source string, size int) error {
	c.t.Helper()
	_, err := c.try(agentCall{Op: "sendto", FD: c.fd, Family: c.family, Addr: netip.MustParseAddrPort(dest), Text: source, Value: size})
	return err
}

// quic returns the counts of one destination, as "untouched refused" by exit.
func (r *rig) quic(dest string) map[string]string {
	r.t.Helper()
	list, err := r.QUIC()
	if err != nil {
		r.t.Fatal(err)
	}
	want, counts := netip.MustParseAddrPort(dest), make(map[string]string)
	for _, q := range list {
		if q.Dest == netip.AddrPortFrom(want.Addr().Unmap(), want.Port()) {
			counts[q.Exit] = fmt.Sprintf("%d %d", q.Untouched, q.Refused)
		}
	}
	return counts
}

func (r *rig) wantQUIC(dest, want string) {
	r.t.Helper()
	got := r.quic(dest)
	if want == "" && len(got) == 0 {
		return
	}
	if got[policy.DirectExit] != want || len(got) != 1 {
		r.t.Errorf("QUIC to %s: got %v, want %s by direct alone", dest, got, want)
	}
}

// Each way to begin QUIC, allowed and refused, and the same again after the
// policy was changed for sockets that are there.
func TestQUIC(t *testing.T) {
	r := newRig(t, Config{})
	for _, tt := range []struct {
		name, addr string
		family     int
		connected  bool
		goesOn     bool // connected before the policy changed
	}{
		{"v4 connected", "127.0.0.1", unix.AF_INET, true, true},
		{"v4 sendto", "127.0.0.1", unix.AF_INET, false, false},
		{"v6 connected", "::1", unix.AF_INET6, true, true},
		{"v6 sendto", "::1", unix.AF_INET6, false, false},
		// Linux sends each of its datagrams as one to an address.
		{"v4-mapped connected", "::ffff:127.0.0.1", unix.AF_INET6, true, false},
		{"v4-mapped sendto", "::ffff:127.0.0.1", unix.AF_INET6, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := startSink(t)
			dest := s.at(tt.addr)
			r.namePorts(s.port)
			// begin is what a client does first, and what it sees.
			begin := func(c *client) error {
				if tt.connected {
					return c.connect(dest)
				}
				return c.sendTo(dest, "", 1200)
			}
			r.SetQUIC(policy.QUICAllow)
			c := r.agent.udp(tt.family)
			for range 3 {
				if tt.connected {
					c.mustConnect(dest)
					c.call("send", 1200)
				} else if err := c.sendTo(dest, "", 1200); err != nil {
					t.Fatalf("send: %v", err)
				}
			}
			s.want("allowed", 3, 1200)
			r.wantQUIC(dest, "1 0")

			r.SetQUIC(policy.QUICRefuse)
			again := r.agent.udp(tt.family)
			for range 2 {
				if err := begin(again); !errors.Is(err, unix.ECONNREFUSED) {
					t.Errorf("refused: got %v, want ECONNREFUSED", err)
				}
			}
			s.want("refused", 0, 0)
			r.wantQUIC(dest, "1 1")

			// What is under way when the policy changes.
			_, err := c.try(agentCall{Op: "send", FD: c.fd, Value: 1200})
			if !tt.connected {
				err = c.sendTo(dest, "", 1200)
			}
			if tt.goesOn {
				if err != nil {
					t.Errorf("connected before: %v", err)
				}
				s.want("connected before", 1, 1200)
				r.wantQUIC(dest, "1 1")
			} else {
				if !errors.Is(err, unix.ECONNREFUSED) {
					t.Errorf("under way: got %v, want ECONNREFUSED", err)
				}
				r.wantQUIC(dest, "1 2")
			}
			r.SetQUIC(policy.QUICAllow)
			if err := begin(again); err != nil {
				t.Errorf("allowed again: %v", err)
			}
		})
	}
	if got := r.gate("udp"); got.Refused != 6 {
		t.Errorf("gate udp: got %d refused, want the 6 connect() calls", got.Refused)
	}
}

// What is refused is only what policy names, from whom it names.
func TestQUICLeavesAlone(t *testing.T) {
	r := newRig(t, Config{})
	r.SetQUIC(policy.QUICRefuse)
	s, other, prefixed := startSink(t), startSink(t), startSink(t)
	redirects := policy.Redirects{
		Ports: []policy.PortRedirect{
			{Port: 53, Local: true}, {Port: 80, Local: true}, {Port: s.port, Local: true}, {Port: 443},
		},
		Prefixes: []policy.PrefixRedirect{{Prefix: netip.MustParsePrefix("127.0.0.9/32"), Port: prefixed.port}},
	}
	r.apply(redirects)
	send := func(dest string) error { return r.agent.udp(unix.AF_INET).sendTo(dest, "", 9) }
	for _, tt := range []struct {
		name string
		do   func() error
		dest string
		want string // counts
	}{
		{"port not named", func() error { return send(other.at("127.0.0.1")) }, other.at("127.0.0.1"), ""},
		{"port not named, connected", func() error { return r.agent.udp(unix.AF_INET).connect(other.at("127.0.0.1")) }, other.at("127.0.0.1"), ""},
		{"address not in the prefix", func() error { return send(prefixed.at("127.0.0.1")) }, prefixed.at("127.0.0.1"), ""},
		{"names", func() error { return send("127.0.0.1:53") }, "127.0.0.1:53", ""},
		{"names, connected", func() error { return r.agent.udp(unix.AF_INET).connect("127.0.0.1:53") }, "127.0.0.1:53", ""},
		{"plain HTTP", func() error { return r.agent.udp(unix.AF_INET6).connect("[::1]:80") }, "[::1]:80", ""},
		{"loopback that is not named", func() error { return send("127.0.0.1:443") }, "127.0.0.1:443", ""},
		{"resolver", func() error {
			return r.agent.socket(unix.AF_INET, unix.SOCK_DGRAM, 0).connect(s.at("127.0.0.1"))
		}, s.at("127.0.0.1"), ""},
		{"own process", func() error {
			fd := stealFD(t, r.agent.pid(), r.agent.udp(unix.AF_INET).fd)
			defer unix.Close(fd)
			return unix.Sendto(fd, []byte("x"), 0, sockaddr(unix.AF_INET, netip.MustParseAddrPort(s.at("127.0.0.1"))))
		}, s.at("127.0.0.1"), ""},
		{"stale heartbeat", func() error {
			r.Beat(0)
			defer r.Beat(now() + ledger.Time(time.Hour))
			return send(s.at("127.0.0.2"))
		}, s.at("127.0.0.2"), "1 0"},
		{"namespace not enrolled", func() error {
			if err := r.Withdraw(r.netns); err != nil {
				t.Fatal(err)
			}
			defer r.enrol(100)
			return send(s.at("127.0.0.3"))
		}, s.at("127.0.0.3"), "1 0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			// Where nobody listens the kernel itself refuses, but not at once.
			if err := tt.do(); err != nil {
				t.Errorf("got %v, want no error", err)
			}
			r.wantQUIC(tt.dest, tt.want)
		})
	}
	t.Run("prefix", func(t *testing.T) {
		if err := send(prefixed.at("127.0.0.9")); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("send: got %v, want ECONNREFUSED", err)
		}
		r.wantQUIC(prefixed.at("127.0.0.9"), "0 1")
	})
	t.Run("group addresses", func(t *testing.T) {
		attr := sysProcAttr()
		attr.Cloneflags = unix.CLONE_NEWNET
		a := startAgent(t, r.cgroup, attr)
		a.do(agentCall{Op: "loup"})
		a.do(agentCall{Op: "veth", Text: "out0", Addr: netip.MustParseAddrPort("198.51.100.1:0")})
		var netns uint64
		inNetns(t, a.pid(), func() { netns, _ = NetnsCookie() })
		if err := r.Enrol(netns, 1, 1); err != nil {
			t.Fatal(err)
		}
		c := a.udp(unix.AF_INET).set(unix.SOL_SOCKET, unix.SO_BROADCAST, 1)
		for _, dest := range []string{"255.255.255.255:443", "239.1.2.3:443"} {
			// Without a route the kernel may not send it; it did not refuse.
			if err := c.sendTo(dest, "198.51.100.1", 9); errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("%s: got %v", dest, err)
			}
			r.wantQUIC(dest, "")
		}
		if err := c.sendTo("198.51.100.9:443", "", 9); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("unicast from there: got %v, want ECONNREFUSED", err)
		}
	})
	t.Run("fail closed", func(t *testing.T) {
		closed := redirects
		closed.Ports = []policy.PortRedirect{{Port: s.port, Local: true, FailClosed: true}}
		r.apply(closed)
		defer r.apply(redirects)
		r.Beat(0)
		defer r.Beat(now() + ledger.Time(time.Hour))
		if err := send(s.at("127.0.0.4")); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("send: got %v, want ECONNREFUSED", err)
		}
		r.SetQUIC(policy.QUICAllow)
		defer r.SetQUIC(policy.QUICRefuse)
		if err := send(s.at("127.0.0.5")); err != nil {
			t.Errorf("send where QUIC is allowed: got %v", err)
		}
	})
	t.Run("excluded", func(t *testing.T) {
		if err := r.Exclude([]string{r.name}); err != nil {
			t.Fatal(err)
		}
		if err := send(s.at("127.0.0.6")); err != nil {
			t.Errorf("send: %v", err)
		}
		r.wantQUIC(s.at("127.0.0.6"), "")
	})
}

// The exit is told by what the socket has when it is asked.
func TestQUICExits(t *testing.T) {
	r := newRig(t, Config{})
	s := startSink(t)
	r.apply(policy.Redirects{
		Ports: []policy.PortRedirect{{Port: s.port, Local: true}},
		Exits: []policy.Exit{
			{Name: "alias", Source: netip.MustParseAddr("127.0.0.9")},
			{Name: "marked", Mark: 42},
			{Name: "users", UIDs: policy.UIDRange{First: 1000, Last: 1000, Set: true}},
		},
	})
	dest := s.at("127.0.0.1")
	open := func() *client { return r.agent.udp(unix.AF_INET) }
	for _, tt := range []struct {
		exit string
		do   func() error
	}{
		{policy.DirectExit, func() error { return open().sendTo(dest, "", 1) }},
		{"alias", func() error { return open().bind("127.0.0.9:0").sendTo(dest, "", 1) }},
		{"alias", func() error { return open().sendTo(dest, "127.0.0.9", 1) }},
		{"alias", func() error { return open().bind("127.0.0.9:0").connect(dest) }},
		{"alias", func() error {
			return r.agent.udp(unix.AF_INET6).bind("[::ffff:127.0.0.9]:0").sendTo(s.at("::ffff:127.0.0.1"), "", 1)
		}},
		{"marked", func() error { return open().set(unix.SOL_SOCKET, unix.SO_MARK, 42).connect(dest) }},
		{"users", func() error {
			c := open()
			c.call("chown", 1000)
			return c.sendTo(dest, "", 1)
		}},
	} {
		if err := tt.do(); err != nil {
			t.Errorf("exit %s: %v", tt.exit, err)
		}
	}
	got := r.quic(dest)
	for exit, want := range map[string]string{policy.DirectExit: "1 0", "alias": "4 0", "marked": "1 0", "users": "1 0"} {
		if got[exit] != want {
			t.Errorf("exit %s: got %q, want %q", exit, got[exit], want)
		}
	}
	if len(got) != 4 {
		t.Errorf("exits: got %v, want 4", got)
	}
}

// A full map loses no count.
func TestQUICWithoutRoom(t *testing.T) {
	r := newRig(t, Config{})
	s := startSink(t)
	r.namePorts(s.port)
	for i := uint32(0); ; i++ {
		key := egressDestKey{Exit: 1<<31 + i, Port: 1}
		if err := r.objs.UdpDests.Put(&key, &egressUdpDest{}); errors.Is(err, unix.E2BIG) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err := r.agent.udp(unix.AF_INET).sendTo(s.at("127.0.0.1"), "", 1); err != nil {
		t.Fatal(err)
	}
	list, err := r.QUIC()
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range list {
		if q.Dest == (netip.AddrPort{}) && q.Untouched == 1 && r.Dropped() == 1 {
			return
		}
	}
	t.Errorf("counted without room: got %d dropped, want 1, and one untouched under the zero address", r.Dropped())
}

// runInside runs a command in the rig's cgroup and returns what it printed.
func (r *rig) runInside(argv ...string) string {
	r.t.Helper()
	dir, err := os.Open(r.cgroup)
	if err != nil {
		r.t.Fatal(err)
	}
	defer dir.Close()
	var out bytes.Buffer
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	if err := cmd.Run(); err != nil {
		r.t.Fatalf("run %s: %v\n%s", argv[0], err, &out)
	}
	return out.String()
}

// A resolver that asks the kernel for source addresses gets them, and in the
// order that it would have them without us: the C library connects a UDP
// socket to each address with the very port.
func TestQUICSparesResolvers(t *testing.T) {
	r := newRig(t, Config{})
	r.SetQUIC(policy.QUICRefuse)
	s := startSink(t)
	r.namePorts(s.port)
	hosts := t.TempDir() + "/hosts"
	if err := os.WriteFile(hosts, []byte("127.0.0.1 two.test\n::1 two.test\n2001:db8::1 two.test\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf(`mount --bind %s /etc/hosts && exec python3 -c '
import socket
for a in socket.getaddrinfo("two.test", %d, type=socket.SOCK_STREAM): print(a[4][0])'`, hosts, s.port)
	var orders []string
	for _, mode := range []policy.QUICMode{policy.QUICAllow, policy.QUICRefuse} {
		r.SetQUIC(mode)
		before := r.gate("udp")
		orders = append(orders, r.runInside("unshare", "--mount", "sh", "-c", script))
		after := r.gate("udp")
		if after.Passed == before.Passed {
			t.Error("the resolver connected no UDP socket: the test shows nothing")
		}
		if after.Refused != before.Refused {
			t.Errorf("got %d refused, want none", after.Refused-before.Refused)
		}
	}
	if orders[0] != orders[1] || strings.Count(orders[0], "\n") != 3 {
		t.Errorf("addresses: got %q where QUIC is refused, want %q", orders[1], orders[0])
	}
	for _, addr := range []string{"127.0.0.1", "::1"} {
		r.wantQUIC(s.at(addr), "")
	}
}

// A client that tries UDP first and then TCP, as one of HTTP/3 does, written
// with what other languages make of sockets.
func TestQUICFallback(t *testing.T) {
	r := newRig(t, Config{})
	r.SetQUIC(policy.QUICRefuse)
	s := startSink(t)
	r.namePorts(s.port)
	for _, tt := range []struct{ name, udp string }{
		{"asyncio, connected", `
    await loop.create_datagram_endpoint(asyncio.DatagramProtocol, remote_addr=("127.0.0.1", port))`},
		{"sendto", `
    u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    u.sendto(b"x" * 1200, ("127.0.0.1", port))`},
		{"dual stack sendto", `
    u = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    u.sendto(b"x" * 1200, ("::ffff:127.0.0.1", port))`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := make(chan policy.Flow, 1)
			go func() {
				defer close(got)
				conn, err := r.listener.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				flow, _ := r.Take(r.netns, conn.LocalAddr().(*net.TCPAddr).AddrPort(), netip.AddrPort{})
				got <- flow
			}()
			out := r.runInside("python3", "-c", fmt.Sprintf(`
import asyncio, socket
port = %d
async def main():
  loop = asyncio.get_running_loop()
  try:%s
    print("udp")
  except ConnectionRefusedError:
    await asyncio.open_connection("127.0.0.1", port)
    print("tcp")
asyncio.run(main())`, s.port, tt.udp))
			if out != "tcp\n" {
				t.Errorf("client went by %q, want tcp", out)
			}
			if flow := <-got; flow.Dest.String() != s.at("127.0.0.1") {
				t.Errorf("flow: got %+v, want the TCP connection to %s", flow, s.at("127.0.0.1"))
			}
			s.want("refused", 0, 0)
		})
	}
}
