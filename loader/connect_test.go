// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
)

// ipprotoMPTCP asks for a multipath socket.
const ipprotoMPTCP = 262

func TestRedirect(t *testing.T) {
	r := newRig(t, Config{})
	r.apply(policy.Redirects{
		Ports: []policy.PortRedirect{{Port: 8080, Local: true}},
		Exits: []policy.Exit{
			{Name: "alias", Source: netip.MustParseAddr("127.0.0.9")},
			{Name: "marked", Mark: 42},
		},
	})
	for _, tt := range []struct {
		name string
		open func() *client
		dest string
		want policy.Flow // Dest, Source, Mark and Exit
		peer string      // what getpeername says, dest if ""
	}{
		{name: "v4", open: r.agent.tcp4, dest: "192.0.2.1:8080"},
		{name: "v6", open: r.agent.tcp6, dest: "[2001:db8::1]:8080"},
		{
			name: "v4-mapped", open: r.agent.tcp6, dest: "[::ffff:192.0.2.1]:8080",
			want: policy.Flow{Dest: netip.MustParseAddrPort("192.0.2.1:8080")},
		},
		{name: "v4 loopback", open: r.agent.tcp4, dest: "127.0.0.1:8080"},
		{name: "v6 loopback", open: r.agent.tcp6, dest: "[::1]:8080"},
		{name: "v4 unspecified", open: r.agent.tcp4, dest: "0.0.0.0:8080"},
		{
			name: "bound source", dest: "192.0.2.1:8080",
			open: func() *client { return r.agent.tcp4().bind("127.0.0.9:0") },
			want: policy.Flow{Source: netip.MustParseAddr("127.0.0.9"), Exit: "alias"},
		},
		{
			name: "bound mapped source", dest: "[::ffff:192.0.2.1]:8080",
			open: func() *client { return r.agent.tcp6().bind("[::ffff:127.0.0.9]:0") },
			want: policy.Flow{
				Dest:   netip.MustParseAddrPort("192.0.2.1:8080"),
				Source: netip.MustParseAddr("127.0.0.9"), Exit: "alias",
			},
		},
		{
			name: "bound to no address", dest: "192.0.2.1:8080",
			open: func() *client { return r.agent.tcp4().bind("0.0.0.0:0") },
		},
		{
			name: "source without port", dest: "192.0.2.1:8080",
			open: func() *client {
				return r.agent.tcp4().set(unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1).bind("127.0.0.9:0")
			},
			want: policy.Flow{Source: netip.MustParseAddr("127.0.0.9"), Exit: "alias"},
		},
		{
			name: "mark", dest: "192.0.2.1:8080",
			open: func() *client { return r.agent.tcp4().set(unix.SOL_SOCKET, unix.SO_MARK, 42) },
			want: policy.Flow{Mark: 42, Exit: "marked"},
		},
		{
			name: "multipath", dest: "192.0.2.1:8080",
			open: func() *client { return r.agent.socket(unix.AF_INET, unix.SOCK_STREAM, ipprotoMPTCP) },
			// The hook sees the subflow, the client the socket above it.
			peer: "token",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var c *client
			before := now()
			r.through(GateRedirected, func() { c = tt.open().mustConnect(tt.dest) })
			conn, flow := r.accept()
			want := tt.want
			if !want.Dest.IsValid() {
				want.Dest = netip.MustParseAddrPort(tt.dest)
			}
			if want.Exit == "" {
				want.Exit = policy.DirectExit
			}
			if flow.Dest != want.Dest || flow.Source != want.Source || flow.Mark != want.Mark || flow.Exit != want.Exit {
				t.Errorf("flow: got %+v, want destination, source, mark and exit of %+v", flow, want)
			}
			cgroup, err := cgroupID(r.cgroup)
			if err != nil {
				t.Fatal(err)
			}
			if flow.Netns != r.netns || flow.Cgroup != cgroup || flow.UID != 0 || flow.Ifindex != 0 || flow.Cookie == 0 {
				t.Errorf("flow: got %+v, want netns %d, cgroup %d, uid 0, no device and a cookie", flow, r.netns, cgroup)
			}
			if flow.Command != "exe" || int(flow.PID) != r.agent.pid() {
				t.Errorf("flow: got %q, process %d; want exe, %d", flow.Command, flow.PID, r.agent.pid())
			}
			if flow.At < before || flow.At > now() {
				t.Errorf("flow at %d, want between %d and %d", flow.At, before, now())
			}
			switch peer := c.peer(); {
			case tt.peer == "token":
				if !TokenPrefix.Contains(peer.Addr()) {
					t.Errorf("getpeername: got %s, want a token", peer)
				}
			case peer != netip.MustParseAddrPort(tt.dest):
				t.Errorf("getpeername: got %s, want %s", peer, tt.dest)
			}
			// The bytes go to the listener and back.
			c.call("send", 5)
			buf := make([]byte, 10)
			if n, err := conn.Read(buf); n != 5 {
				t.Errorf("listener read %d bytes (%v), want 5", n, err)
			}
			if _, err := conn.Write(buf); err != nil {
				t.Fatal(err)
			}
			if got := c.call("receive", 10).N; got != 10 {
				t.Errorf("client read %d bytes, want 10", got)
			}
			c.close()
		})
	}
	if n := r.Pending(); n != 0 {
		t.Errorf("pending after all were taken: got %d, want 0", n)
	}
}

func TestRedirectNonBlocking(t *testing.T) {
	r := newRig(t, Config{})
	r.namePorts(8080)
	c := r.agent.socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	r.through(GateRedirected, func() {
		if err := c.connect("192.0.2.1:8080"); !errors.Is(err, unix.EINPROGRESS) {
			t.Errorf("connect: got %v, want EINPROGRESS", err)
		}
	})
	_, flow := r.accept()
	if got, want := flow.Dest.String(), "192.0.2.1:8080"; got != want {
		t.Errorf("flow destination: got %s, want %s", got, want)
	}
	c.call("poll", 0)
	if got := c.do(agentCall{Op: "getint", FD: c.fd, Level: unix.SOL_SOCKET, Option: unix.SO_ERROR}).N; got != 0 {
		t.Errorf("SO_ERROR: got %d, want 0", got)
	}
}

// Sockets that speak only IPv6 are led to ::1, and their flows are found by
// the cookie of the client's socket.
func TestRedirectIPv6Only(t *testing.T) {
	r := newRig(t, Config{})
	r.namePorts(8080)
	at := netip.AddrPortFrom(netip.IPv6Unspecified(), port(r.listener)).String()
	v6 := listenAt(t, ListenerMark, "tcp6", at)
	const dest = "[2001:db8::1]:8080"
	for _, tt := range []struct {
		name   string
		open   func() *client
		source netip.Addr
	}{
		{"only v6", func() *client { return r.agent.tcp6().set(unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1) }, netip.Addr{}},
		{"source", func() *client { return r.agent.tcp6().bind("[::1]:0") }, netip.IPv6Loopback()},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var c *client
			r.through(GateRedirected, func() { c = tt.open().mustConnect(dest) })
			conn, err := v6.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if got := conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr(); got != netip.IPv6Loopback() {
				t.Errorf("listener's address: got %s, want ::1", got)
			}
			cookie := uint64(c.call("cookie", 0).N)
			if _, ok := r.TakeCookie(r.netns+1, cookie); ok {
				t.Error("the flow was there for another namespace")
			}
			flow, ok := r.TakeCookie(r.netns, cookie)
			if !ok || flow.Dest.String() != dest || flow.Source != tt.source || flow.Cookie != cookie {
				t.Errorf("flow: got %+v, %v; want destination %s, source %v, cookie %d", flow, ok, dest, tt.source, cookie)
			}
			if _, ok := r.TakeCookie(r.netns, cookie); ok {
				t.Error("take twice: got the flow again")
			}
			if got := c.peer().String(); got != dest {
				t.Errorf("getpeername: got %s, want %s", got, dest)
			}
		})
	}
	t.Run("v4-mapped destination", func(t *testing.T) {
		r.through("v6_only", func() {
			c := r.agent.tcp6().set(unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1)
			if err := c.connect("[::ffff:192.0.2.1]:8080"); !errors.Is(err, unix.ENETUNREACH) {
				t.Errorf("connect: got %v, want the kernel's own ENETUNREACH", err)
			}
		})
	})
	if n := r.Pending(); n != 0 {
		t.Errorf("pending after all were taken: got %d, want 0", n)
	}
}

// A socket that was redirected and then connects elsewhere, untouched, is no
// longer told of its first peer, and the other way round.
func TestSocketUsedAgain(t *testing.T) {
	r := newRig(t, Config{})
	r.namePorts(8080)
	origin := startOrigin(t)
	c := r.agent.tcp4()
	for _, dest := range []string{"192.0.2.1:8080", origin.at("127.0.0.1"), "192.0.2.2:8080"} {
		c.mustConnect(dest)
		if got := c.peer().String(); got != dest {
			t.Errorf("getpeername: got %s, want %s", got, dest)
		}
		c.call("disconnect", 0)
	}
	c.close()
	for _, dest := range []string{"192.0.2.1:8080", origin.at("127.0.0.1"), "192.0.2.2:8080"} {
		if d := r.destination(dest); d.Attempts() != 1 || d.Established+d.Failed != 1 {
			t.Errorf("destination: got %+v, want one attempt with one outcome", d)
		}
	}
	if got := entries(t, r.objs.Untouched); got != 0 {
		t.Errorf("sockets remembered after close: got %d, want 0", got)
	}
}

// A flow is there once, for its own namespace and its own token.
func TestTake(t *testing.T) {
	r := newRig(t, Config{})
	r.namePorts(8080)
	r.agent.tcp4().mustConnect("192.0.2.1:8080")
	conn, err := r.listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	local, remote := netip.MustParseAddrPort(conn.LocalAddr().String()), netip.MustParseAddrPort(conn.RemoteAddr().String())
	if !TokenPrefix.Contains(local.Addr()) {
		t.Errorf("listener's address: got %s, want one of %s", local, TokenPrefix)
	}
	if r.Pending() != 1 {
		t.Errorf("pending before: got %d, want 1", r.Pending())
	}
	for _, wrong := range []struct {
		netns uint64
		local netip.AddrPort
	}{
		{r.netns + 1, local},
		{r.netns, netip.AddrPortFrom(local.Addr().Next(), local.Port())},
		{r.netns, netip.MustParseAddrPort("127.0.0.1:80")},
		{r.netns, netip.MustParseAddrPort("[2001:db8::1]:80")},
		{r.netns, netip.AddrPort{}},
	} {
		if flow, ok := r.Take(wrong.netns, wrong.local, remote); ok {
			t.Errorf("take %v: got %+v, want nothing", wrong, flow)
		}
	}
	mapped := netip.AddrPortFrom(netip.AddrFrom16(local.Addr().As16()), local.Port())
	if _, ok := r.Take(r.netns, mapped, remote); !ok {
		t.Error("take: got nothing, want the flow")
	}
	if flow, ok := r.Take(r.netns, local, remote); ok {
		t.Errorf("take twice: got %+v, want nothing", flow)
	}
	if r.Pending() != 0 {
		t.Errorf("pending after: got %d, want 0", r.Pending())
	}
}

func TestUntouched(t *testing.T) {
	r := newRig(t, Config{})
	origin := startOrigin(t)
	r.apply(policy.Redirects{Ports: []policy.PortRedirect{
		{Port: origin.port, Local: true}, {Port: 2049, Local: true}, {Port: 8080},
	}})
	v4, v6 := origin.at("127.0.0.1"), origin.at("::1")
	unnamed := startOrigin(t)

	for _, tt := range []struct {
		name, gate string
		do         func() *client
	}{
		{"port not named", "unnamed", func() *client { return r.agent.tcp4().mustConnect(unnamed.at("127.0.0.1")) }},
		{"v6 port not named", "unnamed", func() *client { return r.agent.tcp6().mustConnect(unnamed.at("::1")) }},
		{"udp", "udp", func() *client {
			return r.agent.socket(unix.AF_INET, unix.SOCK_DGRAM, 0).mustConnect(v4)
		}},
		{"udp v6", "udp", func() *client {
			return r.agent.socket(unix.AF_INET6, unix.SOCK_DGRAM, 0).mustConnect(v6)
		}},
		{"explicit source port", "source_port", func() *client {
			return r.agent.tcp4().set(unix.SOL_SOCKET, unix.SO_REUSEADDR, 1).bind(freePort(t)).mustConnect(v4)
		}},
		{"device", "device", func() *client {
			c := r.agent.tcp4()
			r.agent.do(agentCall{Op: "settext", FD: c.fd, Level: unix.SOL_SOCKET, Option: unix.SO_BINDTODEVICE, Text: "lo"})
			return c.mustConnect(v4)
		}},
		{"v6 only without a v6 listener", "listener", func() *client {
			return r.agent.tcp6().set(unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1).mustConnect(v6)
		}},
		{"v6 source without a v6 listener", "listener", func() *client {
			return r.agent.tcp6().bind("[::1]:0").mustConnect(v6)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r.through(tt.gate, func() { tt.do().close() })
		})
	}
	t.Run("peer of an untouched socket", func(t *testing.T) {
		if got := r.agent.tcp4().mustConnect(unnamed.at("127.0.0.1")).peer().String(); got != unnamed.at("127.0.0.1") {
			t.Errorf("getpeername: got %s, want %s", got, unnamed.at("127.0.0.1"))
		}
	})
	t.Run("storage port", func(t *testing.T) {
		r.through("storage", func() {
			if err := r.agent.tcp4().connect("127.0.0.1:2049"); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("connect: got %v, want ECONNREFUSED", err)
			}
		})
	})
	t.Run("loopback not opted in", func(t *testing.T) {
		for _, dest := range []string{"127.0.0.1:8080", "127.3.2.1:8080", "0.0.0.0:8080"} {
			r.through("unnamed", func() {
				if err := r.agent.tcp4().connect(dest); !errors.Is(err, unix.ECONNREFUSED) {
					t.Errorf("connect %s: got %v, want ECONNREFUSED", dest, err)
				}
			})
		}
		r.through("unnamed", func() {
			if err := r.agent.tcp6().connect("[::1]:8080"); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("connect [::1]:8080: got %v, want ECONNREFUSED", err)
			}
		})
	})
	t.Run("token", func(t *testing.T) {
		r.through("token", func() {
			r.agent.tcp4().mustConnect(netip.AddrPortFrom(TokenPrefix.Addr(), port(r.listener)).String())
		})
		conn, err := r.listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, ok := r.Take(r.netns, netip.MustParseAddrPort(conn.LocalAddr().String()), netip.AddrPort{}); ok {
			t.Error("a connection straight to the listener has a flow")
		}
	})
	t.Run("other protocol", func(t *testing.T) {
		attr := sysProcAttr()
		attr.Cloneflags = unix.CLONE_NEWNET
		a := startAgent(t, r.cgroup, attr)
		a.do(agentCall{Op: "loup"})
		a.do(agentCall{Op: "pinggroups"})
		r.through("protocol", func() { a.socket(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP).mustConnect(v4) })
	})
	t.Run("own process", func(t *testing.T) {
		// A socket belongs to the cgroup of its maker, so the agent makes it.
		c := r.agent.tcp4()
		fd := stealFD(t, r.agent.pid(), c.fd)
		defer unix.Close(fd)
		r.through("own", func() {
			if err := unix.Connect(fd, sockaddr(unix.AF_INET, netip.MustParseAddrPort(v4))); err != nil {
				t.Error(err)
			}
		})
	})
	t.Run("own process, port not named", func(t *testing.T) {
		other := startOrigin(t)
		dest := other.at("127.0.0.1")
		for _, when := range []string{"open", "closed"} {
			c := r.agent.tcp4()
			fd := stealFD(t, r.agent.pid(), c.fd)
			c.close()
			if err := unix.Connect(fd, sockaddr(unix.AF_INET, netip.MustParseAddrPort(dest))); err != nil {
				t.Error(err)
			}
			if when == "closed" {
				unix.Close(fd)
			} else {
				defer unix.Close(fd)
			}
			if got := r.destination(dest); got.Attempts() != 0 || got.Established != 0 {
				t.Errorf("%s: got %+v, want no count", when, got)
			}
		}
	})
}

// stealFD copies a file descriptor of another process.
func stealFD(t testing.TB, pid, fd int) int {
	t.Helper()
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(process)
	copied, err := unix.PidfdGetfd(process, fd, 0)
	if err != nil {
		t.Fatal(err)
	}
	return copied
}

// The gates that watch over the daemon, for a policy that fails open and for
// one that fails closed.
func TestSafetyGates(t *testing.T) {
	r := newRig(t, Config{})
	open, closed := startOrigin(t), startOrigin(t)
	r.apply(policy.Redirects{
		Ports:    []policy.PortRedirect{{Port: open.port, Local: true}},
		Prefixes: []policy.PrefixRedirect{{Prefix: netip.MustParsePrefix("127.0.0.0/8"), Port: closed.port, FailClosed: true}},
	})
	// both checks that one gate lets go what fails open and refuses the rest.
	both := func(t *testing.T, gate string) {
		t.Helper()
		r.through(gate, func() { r.agent.tcp4().mustConnect(open.at("127.0.0.1")).close() })
		r.through(gate, func() { r.agent.tcp6().mustConnect(open.at("::ffff:127.0.0.1")).close() })
		before := r.gate(gate).Refused
		for _, c := range []*client{r.agent.tcp4(), r.agent.tcp6()} {
			dest := closed.at("127.0.0.1")
			if c.family == unix.AF_INET6 {
				dest = closed.at("::ffff:127.0.0.1")
			}
			if err := c.connect(dest); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("connect that must fail closed: got %v, want ECONNREFUSED", err)
			}
			c.close()
		}
		if got := r.gate(gate).Refused - before; got != 2 {
			t.Errorf("refused by gate %s: got %d, want 2", gate, got)
		}
	}
	// works checks that the gate opens again.
	works := func(t *testing.T) {
		t.Helper()
		r.through(GateRedirected, func() { r.agent.tcp4().mustConnect(open.at("127.0.0.1")).close() })
		r.accept()
		r.through(GateRedirected, func() { r.agent.tcp4().mustConnect(closed.at("127.0.0.1")).close() })
		r.accept()
	}
	works(t)
	t.Run("heartbeat", func(t *testing.T) {
		r.Beat(now() - 1_000_000_001)
		both(t, "heartbeat")
		r.Beat(now())
		works(t)
		r.Beat(now().Add(1 << 40))
	})
	t.Run("backlog", func(t *testing.T) {
		r.enrol(2)
		first, second := r.agent.tcp4().mustConnect(open.at("127.0.0.1")), r.agent.tcp4().mustConnect(open.at("127.0.0.1"))
		both(t, "backlog")
		r.accept()
		r.accept()
		works(t)
		first.close()
		second.close()
		r.enrol(100)
	})
	t.Run("no room", func(t *testing.T) {
		fill := &taker{}
		for i := range 1 << 16 {
			fill.key = flowKey(r.netns, netip.AddrFrom4([4]byte{127, 101, byte(i >> 8), byte(i)}))
			if err := r.objs.Flows.Put(&fill.key, &fill.value); err != nil {
				t.Fatal(err)
			}
		}
		both(t, "full")
		if r.Pending() != 0 {
			t.Errorf("pending after refused records: got %d, want 0", r.Pending())
		}
		for i := range 1 << 16 {
			fill.key = flowKey(r.netns, netip.AddrFrom4([4]byte{127, 101, byte(i >> 8), byte(i)}))
			if err := r.objs.Flows.Delete(&fill.key); err != nil {
				t.Fatal(err)
			}
		}
		works(t)
	})
	t.Run("not enrolled", func(t *testing.T) {
		if err := r.Withdraw(r.netns); err != nil {
			t.Fatal(err)
		}
		both(t, "netns")
		if err := r.Withdraw(r.netns); err != nil {
			t.Errorf("withdraw again: %v", err)
		}
		r.enrol(100)
		works(t)
	})
	t.Run("foreign listener", func(t *testing.T) {
		foreign := listen(t, 1)
		if err := r.Enrol(r.netns, port(foreign), 100); err != nil {
			t.Fatal(err)
		}
		both(t, "listener")
		r.enrol(100)
		works(t)
	})
	t.Run("no listener", func(t *testing.T) {
		r.listener.Close()
		both(t, "listener")
		r.listener = listen(t, ListenerMark)
		r.enrol(100)
		works(t)
	})
	if got := r.destination(closed.at("127.0.0.1")); got.Refused != 12 || got.Untouched != 0 {
		t.Errorf("destination that fails closed: got %+v, want 12 refused and none untouched", got)
	}
}

// A busy token is passed over.
func TestTokenTaken(t *testing.T) {
	r := newRig(t, Config{})
	r.namePorts(8080)
	next := r.control.NextToken
	for i := range uint32(7) {
		token := netip.AddrFrom4([4]byte{127, 101, byte((next + i) >> 8), byte(next + i)})
		key := flowKey(r.netns, token)
		if err := r.objs.Flows.Put(&key, &egressFlow{}); err != nil {
			t.Fatal(err)
		}
	}
	r.through(GateRedirected, func() { r.agent.tcp4().mustConnect("192.0.2.1:8080") })
	if _, flow := r.accept(); flow.Dest.String() != "192.0.2.1:8080" {
		t.Errorf("flow destination: got %s, want 192.0.2.1:8080", flow.Dest)
	}
}

func TestNegative(t *testing.T) {
	r := newRig(t, Config{})
	origin := startOrigin(t)
	r.namePorts(origin.port)
	dest := netip.MustParseAddrPort(origin.at("127.0.0.1"))
	until := now().Add(1 << 40)
	for _, other := range []struct {
		netns uint64
		dest  netip.AddrPort
	}{
		{r.netns + 1, dest},
		{r.netns, netip.AddrPortFrom(dest.Addr(), dest.Port()+1)},
		{r.netns, netip.AddrPortFrom(dest.Addr().Next(), dest.Port())},
	} {
		if err := r.Negative(other.netns, other.dest, until); err != nil {
			t.Fatal(err)
		}
	}
	r.through(GateRedirected, func() { r.agent.tcp4().mustConnect(dest.String()) })
	if err := r.Negative(r.netns, dest, until); err != nil {
		t.Fatal(err)
	}
	r.through("negative", func() { r.agent.tcp4().mustConnect(dest.String()) })
	r.through("negative", func() { r.agent.tcp6().mustConnect(origin.at("::ffff:127.0.0.1")) })
	if err := r.Negative(r.netns, dest, now()); err != nil {
		t.Fatal(err)
	}
	r.through(GateRedirected, func() { r.agent.tcp4().mustConnect(dest.String()) })

	// What fails closed never goes native.
	if err := r.Negative(r.netns, dest, until); err != nil {
		t.Fatal(err)
	}
	r.apply(policy.Redirects{Ports: []policy.PortRedirect{{Port: origin.port, Local: true, FailClosed: true}}})
	r.through(GateRedirected, func() { r.agent.tcp4().mustConnect(dest.String()) })
}

func TestExcluded(t *testing.T) {
	root, name := testCgroup(t)
	cgroup := cgroupDir(root, name)
	below := cgroup + "/excluded/below"
	k := openKernel(t, Config{Cgroups: []string{name}, Exclude: []string{name + "/excluded"}})
	if err := k.Attach(); err != nil {
		t.Fatal(err)
	}
	r := &rig{Kernel: k, t: t, name: name, cgroup: cgroup}
	origin := startOrigin(t)

	// connect makes a connection in the cgroup and says how it left.
	connect := func(cgroup, gate string) {
		t.Helper()
		a := startAgent(t, cgroup, sysProcAttr())
		r.through(gate, func() { a.tcp4().mustConnect(origin.at("127.0.0.1")).close() })
	}
	mkdir := func() {
		t.Helper()
		if err := os.MkdirAll(below, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		removeCgroup(t, below)
		removeCgroup(t, cgroup+"/excluded")
	})
	t.Run("made later", func(t *testing.T) {
		mkdir()
		k.Sweep(now())
		connect(cgroup, "unnamed")
		connect(cgroup+"/excluded", "excluded")
		connect(below, "excluded")
	})
	t.Run("policy changes", func(t *testing.T) {
		if err := k.Exclude(nil); err != nil {
			t.Fatal(err)
		}
		connect(below, "unnamed")
		if got := entries(t, k.objs.Excluded); got != 0 || k.control.Excluded != 0 {
			t.Errorf("excluded: got %d entries and a count of %d, want none", got, k.control.Excluded)
		}
		if err := k.Exclude([]string{"/" + strings.TrimPrefix(below, root+"/")}); err != nil {
			t.Fatal(err)
		}
		connect(cgroup+"/excluded", "unnamed")
		connect(below, "excluded")
	})
}

func TestOwnCgroup(t *testing.T) {
	root, name := testCgroup(t)
	own := cgroupDir(root, name) + "/own"
	if err := os.Mkdir(own, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeCgroup(t, own) })
	k := openKernel(t, Config{Cgroups: []string{name}, OwnCgroup: name + "/own"})
	if err := k.Attach(); err != nil {
		t.Fatal(err)
	}
	r := &rig{Kernel: k, t: t}
	origin, unnamed := startOrigin(t), startOrigin(t)
	r.namePorts(origin.port)
	a := startAgent(t, own, sysProcAttr())
	r.through("own", func() { a.tcp4().mustConnect(origin.at("127.0.0.1")).close() })

	// What is not named is nothing of the daemon's either.
	dest := unnamed.at("127.0.0.1")
	for _, when := range []string{"open", "closed"} {
		c := a.tcp4().mustConnect(dest)
		if when == "closed" {
			c.close()
		}
		if got := r.destination(dest); got.Attempts() != 0 || got.Established != 0 {
			t.Errorf("%s: own connection: got %+v, want no count", when, got)
		}
	}
	startAgent(t, cgroupDir(root, name), sysProcAttr()).tcp4().mustConnect(dest)
	if got := r.destination(dest); got.Untouched != 1 {
		t.Errorf("a neighbour's connection: got %+v, want it alone", got)
	}
}

// A connection in a namespace of its own is led to the listener there, and
// only if there is one.
func TestOtherNetns(t *testing.T) {
	r := newRig(t, Config{})
	r.namePorts(8080)
	attr := sysProcAttr()
	attr.Cloneflags = unix.CLONE_NEWNET
	a := startAgent(t, r.cgroup, attr)
	a.do(agentCall{Op: "loup"})
	r.through("netns", func() {
		if err := a.tcp4().connect("127.0.0.1:8080"); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("connect in a namespace not enrolled: got %v, want ECONNREFUSED", err)
		}
	})

	// inNetns listens there; the cookie is of there, too.
	inside := &rig{Kernel: r.Kernel, t: t, agent: a}
	inNetns(t, a.pid(), func() {
		var err error
		if inside.netns, err = NetnsCookie(); err != nil {
			t.Error(err)
		}
		inside.listener = listen(t, ListenerMark)
	})
	if inside.netns == r.netns {
		t.Fatalf("cookie of the new namespace is that of the test's, %d", r.netns)
	}
	inside.enrol(100)
	r.through(GateRedirected, func() { a.tcp4().mustConnect("192.0.2.1:8080") })
	if _, flow := inside.accept(); flow.Netns != inside.netns || flow.Dest.String() != "192.0.2.1:8080" {
		t.Errorf("flow: got %+v, want namespace %d and 192.0.2.1:8080", flow, inside.netns)
	}
	// Ours went on all the while.
	r.through(GateRedirected, func() { r.agent.tcp4().mustConnect("192.0.2.1:8080") })
	if _, flow := r.accept(); flow.Netns != r.netns {
		t.Errorf("flow: got namespace %d, want %d", flow.Netns, r.netns)
	}
}
