// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
)

// What goes to a forward proxy is redirected with the proxy's exit, whatever
// else the socket has, and is counted under it also where it goes untouched.
func TestEndpoint(t *testing.T) {
	r := newRig(t, Config{})
	origin := startOrigin(t)
	local := netip.MustParseAddrPort(origin.at("127.0.0.1"))
	r.apply(policy.Redirects{
		Exits: []policy.Exit{
			{Name: "marked", Mark: 42},
			{Name: "addr", Source: netip.MustParseAddr("127.0.0.1")},
			{Name: "gw", Proxy: &policy.Proxy{}},
			{Name: "virtual", Proxy: &policy.Proxy{}},
		},
		Endpoints: []policy.Endpoint{
			{Addr: netip.MustParseAddrPort("203.0.113.9:8000"), Exit: "gw"},
			{Addr: netip.MustParseAddrPort("[2001:db8::9]:8000"), Exit: "gw"},
			{Addr: netip.MustParseAddrPort("127.0.0.77:3128"), Exit: "virtual"},
			{Addr: local, Exit: "gw"},
		},
	})
	marked := func() *client { return r.agent.tcp4().set(unix.SOL_SOCKET, unix.SO_MARK, 42) }
	for _, tt := range []struct {
		name string
		open func() *client
		dest string
		want string
	}{
		{"v4", r.agent.tcp4, "203.0.113.9:8000", "gw"},
		{"v4-mapped", r.agent.tcp6, "[::ffff:203.0.113.9]:8000", "gw"},
		{"v6", r.agent.tcp6, "[2001:db8::9]:8000", "gw"},
		{"loopback where nobody listens", r.agent.tcp4, "127.0.0.77:3128", "virtual"},
		{"marked", marked, "203.0.113.9:8000", "gw"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r.through(GateRedirected, func() { tt.open().mustConnect(tt.dest) })
			if _, flow := r.accept(); flow.Exit != tt.want {
				t.Errorf("flow: got %+v, want exit %s", flow, tt.want)
			}
		})
	}
	t.Run("others", func(t *testing.T) {
		other := startOrigin(t)
		r.through("unnamed", func() { r.agent.tcp4().mustConnect(other.at("127.0.0.1")) })
	})
	t.Run("untouched", func(t *testing.T) {
		r.Beat(0)
		r.through("heartbeat", func() { r.agent.tcp4().mustConnect(local.String()).close() })
		if got := r.destination(local.String()); got.Exit != "gw" || got.Untouched != 1 || got.Established != 1 {
			t.Errorf("destination: got %+v, want 1 untouched by gw", got)
		}
	})
	if got := r.destination("203.0.113.9:8000"); got.Exit != "gw" || got.Redirected != 3 {
		t.Errorf("destination: got %+v, want 3 redirected by gw", got)
	}
}

// The owner of the socket counts, as for the routing rules of the kernel.
func TestExitByUser(t *testing.T) {
	r := newRig(t, Config{})
	r.apply(policy.Redirects{
		Ports: []policy.PortRedirect{{Port: 8080}},
		Exits: []policy.Exit{{Name: "users", UIDs: policy.UIDRange{First: 1000, Last: 1999, Set: true}}},
	})
	for uid, want := range map[int]string{0: policy.DirectExit, 999: policy.DirectExit, 1000: "users", 1999: "users", 2000: policy.DirectExit} {
		c := r.agent.tcp4()
		c.call("chown", uid)
		r.through(GateRedirected, func() { c.mustConnect("192.0.2.1:8080") })
		if _, flow := r.accept(); flow.Exit != want || flow.UID != uint32(uid) {
			t.Errorf("flow: got %+v, want user %d and exit %s", flow, uid, want)
		}
	}
	r.apply(policy.Redirects{
		Ports: []policy.PortRedirect{{Port: 8080}},
		Exits: []policy.Exit{{Name: "root", UIDs: policy.UIDRange{Set: true}}},
	})
	r.agent.tcp4().mustConnect("192.0.2.1:8080")
	if _, flow := r.accept(); flow.Exit != "root" {
		t.Errorf("flow: got %+v, want exit root", flow)
	}
}

// Aliases are one exit in flows and counts.
func TestExitIdentity(t *testing.T) {
	r := newRig(t, Config{})
	origin := startOrigin(t)
	r.apply(policy.Redirects{
		Ports: []policy.PortRedirect{{Port: 8080}},
		Exits: []policy.Exit{{Name: "one", Mark: 1}, {Name: "two", SameAs: "one", Mark: 2}, {Name: "three", SameAs: "one", Mark: 3}},
	})
	for mark := 1; mark <= 3; mark++ {
		r.agent.tcp4().set(unix.SOL_SOCKET, unix.SO_MARK, mark).mustConnect("192.0.2.1:8080")
		if _, flow := r.accept(); flow.Exit != "one" {
			t.Errorf("mark %d: got exit %s, want one", mark, flow.Exit)
		}
		r.agent.tcp4().set(unix.SOL_SOCKET, unix.SO_MARK, mark).mustConnect(origin.at("127.0.0.1"))
	}
	if got := r.destination(origin.at("127.0.0.1")); got.Exit != "one" || got.Untouched != 3 {
		t.Errorf("destination: got %+v, want 3 by one", got)
	}
}

// destinations is destination by exit.
func (r *rig) destinations(dest string) map[string]Destination {
	r.t.Helper()
	list, err := r.Connections()
	if err != nil {
		r.t.Fatal(err)
	}
	want, found := netip.MustParseAddrPort(dest), make(map[string]Destination)
	for _, d := range list {
		if d.Dest == want {
			found[d.Exit] = d
		}
	}
	return found
}

// An unbound socket that is left alone is counted by the source address and
// the device that it turns out to have, once, whoever accounts for it.
func TestLateExit(t *testing.T) {
	r := newRig(t, Config{})
	byAddr := []policy.Exit{{Name: "addr", Source: netip.MustParseAddr("127.0.0.1")}, {Name: "marked", Mark: 42}}
	for _, tt := range []struct {
		name  string
		exits []policy.Exit
		open  func() *client
		addr  string
		want  string
	}{
		{"source", byAddr, r.agent.tcp4, "127.0.0.1", "addr"},
		{"v4-mapped source", byAddr, r.agent.tcp6, "::ffff:127.0.0.1", "addr"},
		{"source of another", []policy.Exit{{Name: "addr", Source: netip.MustParseAddr("127.0.0.2")}}, r.agent.tcp4, "127.0.0.1", policy.DirectExit},
		{"v6 source", []policy.Exit{{Name: "six", Source: netip.MustParseAddr("::1")}}, r.agent.tcp6, "::1", "six"},
		{"device", []policy.Exit{{Name: "lo", Interface: "lo"}}, r.agent.tcp4, "127.0.0.1", "lo"},
		{"v6 device", []policy.Exit{{Name: "lo", Interface: "lo"}}, r.agent.tcp6, "::1", "lo"},
		{
			"first of the file, though another fits before", byAddr,
			func() *client { return r.agent.tcp4().set(unix.SOL_SOCKET, unix.SO_MARK, 42) }, "127.0.0.1", "addr",
		},
		{
			"first of the file fits before", []policy.Exit{{Name: "marked", Mark: 42}, byAddr[0]},
			func() *client { return r.agent.tcp4().set(unix.SOL_SOCKET, unix.SO_MARK, 42) }, "127.0.0.1", "marked",
		},
		{
			"bound to the source", byAddr,
			func() *client { return r.agent.tcp4().bind("127.0.0.1:0") }, "127.0.0.1", "addr",
		},
		{
			"owner", []policy.Exit{{Name: "users", UIDs: policy.UIDRange{First: 1000, Last: 1000, Set: true}}, byAddr[0]},
			func() *client {
				c := r.agent.tcp4()
				c.call("chown", 1000)
				return c
			}, "127.0.0.1", "users",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r.apply(policy.Redirects{Exits: tt.exits})
			for _, when := range []string{"asked while open", "closed"} {
				origin := startOrigin(t)
				dest := netip.MustParseAddrPort(origin.at(tt.addr))
				dest = netip.AddrPortFrom(dest.Addr().Unmap(), dest.Port())
				c := tt.open().mustConnect(origin.at(tt.addr))
				c.call("send", 7)
				if when == "closed" {
					c.close()
				}
				want := Destination{Dest: dest, Exit: tt.want, Untouched: 1, Established: 1, Handshakes: 1, TxBytes: 7}
				for range 2 {
					found := r.destinations(dest.String())
					if got := steady(found[tt.want]); got != want || len(found) != 1 {
						t.Errorf("%s: got %+v, want %+v alone", when, found, want)
					}
				}
			}
		})
	}
	t.Run("failed", func(t *testing.T) {
		r.apply(policy.Redirects{Exits: byAddr})
		refused := freePort(t)
		for _, c := range []*client{r.agent.tcp4(), r.agent.tcp4().set(unix.SOL_SOCKET, unix.SO_MARK, 42)} {
			if err := c.connect(refused); !errors.Is(err, unix.ECONNREFUSED) {
				t.Fatalf("connect: got %v, want ECONNREFUSED", err)
			}
			c.close()
		}
		found := r.destinations(refused)
		for _, exit := range []string{policy.DirectExit, "marked"} {
			if d := found[exit]; d.Untouched != 1 || d.Failed != 1 || d.Established != 0 || len(found) != 2 {
				t.Errorf("got %+v, want one failed by %s", found, exit)
			}
		}
	})
	t.Run("socket used again", func(t *testing.T) {
		r.apply(policy.Redirects{Exits: byAddr})
		refused, origin := freePort(t), startOrigin(t)
		c := r.agent.tcp4()
		if err := c.connect(refused); !errors.Is(err, unix.ECONNREFUSED) {
			t.Fatalf("connect: got %v, want ECONNREFUSED", err)
		}
		c.mustConnect(origin.at("127.0.0.1")).close()
		if d := r.destinations(refused)[policy.DirectExit]; d.Untouched != 1 || d.Failed != 1 {
			t.Errorf("given up: got %+v, want 1 failed", d)
		}
		if d := r.destinations(origin.at("127.0.0.1"))["addr"]; d.Untouched != 1 || d.Established != 1 {
			t.Errorf("second try: got %+v, want 1 established", d)
		}
	})
	t.Run("multipath", func(t *testing.T) {
		// Its subflow is never seen to close, so nobody waits for that.
		r.apply(policy.Redirects{Exits: byAddr})
		origin := startOrigin(t)
		c := r.agent.socket(unix.AF_INET, unix.SOCK_STREAM, ipprotoMPTCP).mustConnect(origin.at("127.0.0.1"))
		if d := r.destinations(origin.at("127.0.0.1"))[policy.DirectExit]; d.Untouched != 1 {
			t.Errorf("got %+v, want 1 untouched", d)
		}
		c.close()
	})
}

// The time of a handshake is the kernel's own measure of it.
func TestHandshakeTime(t *testing.T) {
	r := newRig(t, Config{})
	for _, open := range []func() *client{r.agent.tcp4, r.agent.tcp6} {
		for _, when := range []string{"open", "closed"} {
			origin, another := startOrigin(t), startOrigin(t)
			addr := "127.0.0.1"
			c := open()
			if c.family == unix.AF_INET6 {
				addr = "::1"
			}
			c.mustConnect(origin.at(addr))
			want := time.Duration(c.call("minrtt", 0).N) * time.Microsecond
			if want <= 0 {
				t.Fatalf("the kernel measured %v", want)
			}
			if when == "closed" {
				c.close()
			}
			got := r.destination(origin.at(addr))
			if got.Handshakes != 1 || got.HandshakeTime != want {
				t.Errorf("%s %s: got %d handshakes of %v, want 1 of %v", when, addr, got.Handshakes, got.HandshakeTime, want)
			}
			if when == "closed" {
				continue
			}
			c.call("send", 100)
			if d := r.destination(origin.at(addr)); d.Handshakes != 1 || d.HandshakeTime != want {
				t.Errorf("later: got %d handshakes of %v, want 1 of %v as before", d.Handshakes, d.HandshakeTime, want)
			}
			// The kernel would tell the round trip of the first connection.
			c.call("disconnect", 0)
			c.mustConnect(another.at(addr)).close()
			if d := r.destination(another.at(addr)); d.Handshakes != 0 || d.Established != 1 {
				t.Errorf("socket used again: got %+v, want no handshake timed", d)
			}
		}
	}
}

// rebindRig is a rig whose agent, listener and devices are in a network
// namespace of their own, with a device out of which loopback is not reached.
type rebindRig struct {
	*rig
	outer  *rig
	device int
}

func newRebindRig(t *testing.T) *rebindRig {
	t.Helper()
	outer := newRig(t, Config{})
	attr := sysProcAttr()
	attr.Cloneflags = unix.CLONE_NEWNET
	a := startAgent(t, outer.cgroup, attr)
	a.do(agentCall{Op: "loup"})
	r := &rebindRig{outer: outer, rig: &rig{Kernel: outer.Kernel, t: t, agent: a}}
	r.device = a.do(agentCall{Op: "veth", Text: "exit0", Addr: netip.MustParseAddrPort("198.51.100.1:0")}).N
	inNetns(t, a.pid(), func() {
		var err error
		if r.netns, err = NetnsCookie(); err != nil {
			t.Error(err)
		}
		r.listener = listen(t, ListenerMark)
	})
	r.enrol(100)
	return r
}

// applyThere is apply by a daemon that lives in the namespace of the device.
func (r *rebindRig) applyThere(redirects policy.Redirects) {
	r.t.Helper()
	inNetns(r.t, r.agent.pid(), func() {
		if err := r.Apply(redirects); err != nil {
			r.t.Error(err)
		}
	})
}

// bound opens a socket that is bound to the device and does not block.
func (r *rebindRig) bound(family int) *client {
	r.t.Helper()
	return r.agent.socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0).
		set(unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, r.device)
}

// start begins to connect.
func (c *client) start(dest string) {
	c.t.Helper()
	if err := c.connect(dest); !errors.Is(err, unix.EINPROGRESS) {
		c.t.Errorf("connect %s: got %v, want EINPROGRESS", dest, err)
	}
}

// wantDevice checks what the socket is bound to.
func (c *client) wantDevice(when string, want int) {
	c.t.Helper()
	if got := c.do(agentCall{Op: "getint", FD: c.fd, Level: unix.SOL_SOCKET, Option: unix.SO_BINDTOIFINDEX}).N; got != want {
		c.t.Errorf("%s: socket is bound to device %d, want %d", when, got, want)
	}
}

func TestRebind(t *testing.T) {
	r := newRebindRig(t)
	const (
		named   = "192.0.2.1:8080"
		unnamed = "198.51.100.2:9" // beyond the device; nobody answers
	)
	redirects := func(exits ...policy.Exit) policy.Redirects {
		return policy.Redirects{Ports: []policy.PortRedirect{{Port: 8080}}, Exits: exits}
	}
	without := redirects(policy.Exit{Name: "dev", Interface: "exit0"})
	with := redirects(policy.Exit{Name: "dev", Interface: "exit0", Rebind: true})
	// redirected checks that a connection of c reaches the proxy, as one by
	// the device.
	redirected := func(t *testing.T, c *client, dest string) {
		t.Helper()
		r.through(GateRedirected, func() { c.start(dest) })
		conn, flow := r.accept()
		if flow.Ifindex != uint32(r.device) || flow.Exit != "dev" {
			t.Errorf("flow: got %+v, want device %d and exit dev", flow, r.device)
		}
		c.call("poll", 0)
		c.call("send", 5)
		if n, err := conn.Read(make([]byte, 9)); n != 5 {
			t.Errorf("listener read %d bytes (%v), want 5", n, err)
		}
		c.wantDevice("redirected", 0)
	}

	t.Run("not asked for", func(t *testing.T) {
		r.applyThere(without)
		c := r.bound(unix.AF_INET)
		r.through("device", func() {
			// The device has no route there.
			if err := c.connect(named); err == nil {
				t.Error("connect: got no error")
			}
		})
		c.wantDevice("untouched", r.device)
	})
	r.applyThere(with)
	t.Run("v4", func(t *testing.T) { redirected(t, r.bound(unix.AF_INET), named) })
	t.Run("v4-mapped", func(t *testing.T) { redirected(t, r.bound(unix.AF_INET6), "[::ffff:192.0.2.1]:8080") })
	t.Run("v6", func(t *testing.T) { redirected(t, r.bound(unix.AF_INET6), "[2001:db8::1]:8080") })
	t.Run("another device", func(t *testing.T) {
		lo := r.agent.socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0).
			set(unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, 1)
		r.through("device", func() { lo.start(named) })
		lo.wantDevice("untouched", 1)
	})
	t.Run("unnamed", func(t *testing.T) {
		c := r.bound(unix.AF_INET)
		r.through("unnamed", func() { c.start(unnamed) })
		c.wantDevice("untouched", r.device)
		c.close()
		if d := r.destinations(unnamed)["dev"]; d.Untouched != 1 || d.Failed != 1 {
			t.Errorf("destination: got %+v, want 1 failed by dev", d)
		}
	})
	t.Run("socket used again", func(t *testing.T) {
		c := r.bound(unix.AF_INET)
		redirected(t, c, named)
		c.call("disconnect", 0)
		redirected(t, c, "192.0.2.2:8080")
		c.call("disconnect", 0)
		r.through("unnamed", func() { c.start(unnamed) })
		c.wantDevice("untouched", r.device)
		c.call("disconnect", 0)
		redirected(t, c, "192.0.2.3:8080")
		// The policy asks for it no more, but the socket's binding waits.
		r.applyThere(without)
		c.call("disconnect", 0)
		r.through("device", func() {
			if err := c.connect(named); err == nil {
				t.Error("connect: got no error")
			}
		})
		c.wantDevice("untouched", r.device)
		r.applyThere(with)
	})
	t.Run("refused", func(t *testing.T) {
		closed := with
		closed.Ports = []policy.PortRedirect{{Port: 8080, FailClosed: true}}
		r.applyThere(closed)
		r.Beat(0)
		c := r.bound(unix.AF_INET)
		if err := c.connect(named); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("connect: got %v, want ECONNREFUSED", err)
		}
		c.wantDevice("refused", r.device)
		r.Beat(now() + 1<<40)
		r.applyThere(with)
		redirected(t, c, named)
		// Its binding is off now, and must not be lost with the next refusal.
		c.call("disconnect", 0)
		r.applyThere(closed)
		r.Beat(0)
		if err := c.connect(named); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("connect again: got %v, want ECONNREFUSED", err)
		}
		c.wantDevice("refused again", r.device)
		r.Beat(now() + 1<<40)
		r.applyThere(with)
		redirected(t, c, named)
	})
	t.Run("unprivileged", func(t *testing.T) {
		c := r.bound(unix.AF_INET)
		r.agent.do(agentCall{Op: "dropcap", Value: unix.CAP_NET_RAW})
		r.through("device", func() {
			if err := c.connect(named); err == nil {
				t.Error("connect: got no error")
			}
		})
		c.wantDevice("untouched", r.device)
	})
	if n, left := r.Pending(), entries(t, r.objs.Flows); n != 0 || left != 0 {
		t.Errorf("left: got %d pending and %d records, want none", n, left)
	}
}
