// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"math"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
)

// wire is a way from an agent in the cgroup of a rig to a listener: a pair of
// devices between two network namespaces of its own, or loopback.
type wire struct {
	rig        *rig
	agent      *agent
	listener   net.Listener
	far4, far6 netip.Addr // where the listener is
	nobody     netip.Addr // where nobody answers, not even with a reset
	device     netlink.Link
}

// newLoop is no wire, but loopback.
func newLoop(r *rig) *wire {
	r.t.Helper()
	l, err := net.Listen("tcp", "[::]:0")
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { l.Close() })
	return &wire{rig: r, agent: r.agent, listener: l, far4: netip.MustParseAddr("127.0.0.1"), far6: netip.IPv6Loopback()}
}

func newWire(r *rig) *wire {
	r.t.Helper()
	attr := sysProcAttr()
	attr.Cloneflags = unix.CLONE_NEWNET
	w := &wire{
		rig: r, agent: startAgent(r.t, r.cgroup, attr),
		far4: netip.MustParseAddr("10.77.0.2"), far6: netip.MustParseAddr("fd77::2"),
		nobody: netip.MustParseAddr("10.77.0.9"),
	}
	far := startAgent(r.t, r.cgroup, attr)
	var mac net.HardwareAddr
	do := func(a *agent, f func() error) {
		inNetns(r.t, a.pid(), func() {
			if err := f(); err != nil {
				r.t.Errorf("make a wire: %v", err)
			}
		})
		if r.t.Failed() {
			r.t.FailNow()
		}
	}
	do(w.agent, func() error {
		return netlink.LinkAdd(&netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: "near"}, PeerName: "far", PeerNamespace: netlink.NsPid(far.pid()),
		})
	})
	do(far, func() (err error) {
		d, err := wireEnd("far", "10.77.0.2/24", "fd77::2/64")
		if err != nil {
			return err
		}
		mac = d.Attrs().HardwareAddr
		w.listener, err = net.Listen("tcp", "[::]:0")
		return err
	})
	r.t.Cleanup(func() { w.listener.Close() })
	do(w.agent, func() (err error) {
		if w.device, err = wireEnd("near", "10.77.0.1/24", "fd77::1/64"); err != nil {
			return err
		}
		// Packets to nobody are thrown away at the other end.
		return netlink.NeighSet(&netlink.Neigh{
			LinkIndex: w.device.Attrs().Index, State: netlink.NUD_PERMANENT, IP: w.nobody.AsSlice(), HardwareAddr: mac,
		})
	})
	return w
}

// wireEnd sets up a device of this namespace, without looking for duplicates of
// its addresses.
func wireEnd(name string, addrs ...string) (netlink.Link, error) {
	d, err := netlink.LinkByName(name)
	if err != nil {
		return nil, err
	}
	for _, text := range addrs {
		addr, err := netlink.ParseAddr(text)
		if err != nil {
			return nil, err
		}
		addr.Flags = unix.IFA_F_NODAD
		if err := netlink.AddrAdd(d, addr); err != nil {
			return nil, err
		}
	}
	return d, netlink.LinkSetUp(d)
}

// dest is the listener's address.
func (w *wire) dest(family int) netip.AddrPort {
	addr := w.far4
	if family == unix.AF_INET6 {
		addr = w.far6
	}
	return netip.AddrPortFrom(addr, port(w.listener))
}

// attach puts the program at the way out of the near device. Before 6.6 there is
// no such place, and it does not run.
func (w *wire) attach() {
	t := w.rig.t
	t.Helper()
	var l link.Link
	var err error
	inNetns(t, w.agent.pid(), func() {
		l, err = link.AttachTCX(link.TCXOptions{
			Interface: w.device.Attrs().Index, Program: w.rig.PaceProgram(), Attach: ebpf.AttachTCXEgress,
		})
	})
	if errors.Is(err, link.ErrNotSupported) {
		t.Log("this kernel has no tcx (6.6)")
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
}

// pace attaches the program and says that the near device keeps SYNs until their
// turn. It does not, since it has no qdisc: what is told the time goes at once,
// here and on every kernel.
func (w *wire) pace() {
	t := w.rig.t
	t.Helper()
	w.attach()
	var netns uint64
	var err error
	inNetns(t, w.agent.pid(), func() { netns, err = NetnsCookie() })
	if err == nil {
		err = w.rig.SetPacing(Pacing{Netns: netns, Limit: 24 * time.Hour, Devices: []uint32{uint32(w.device.Attrs().Index)}})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Budgets of connections, of which one has always room and the other never,
// once it is exhausted.
var (
	wide = policy.PlaneRule{
		Budget: "wide", Per: policy.PerDestination, Interval: time.Nanosecond, Tolerance: time.Second,
		MaxWait: time.Second, MaxQueue: math.MaxInt32,
	}
	narrow = policy.PlaneRule{
		Budget: "narrow", Per: policy.PerDestination, Interval: time.Millisecond,
		MaxWait: 24 * time.Hour, MaxQueue: math.MaxInt32,
	}
)

// planePort is a policy of the kernel plane for a port at any address.
func planePort(port uint16, rule policy.PlaneRule) policy.Redirects {
	return policy.Redirects{Ports: []policy.PortRedirect{
		{Port: port, Local: true, Set: policy.PlaneSet{Rules: []policy.PlaneRule{rule}}},
	}}
}

// spare gives the programs some cells, for lanes that they make.
func (r *rig) spare() {
	r.t.Helper()
	for n := range uint32(8) {
		if _, err := r.Plane().Spare(n + 1); err != nil {
			r.t.Fatal(err)
		}
	}
}

// exhaust takes what narrow has to give for an hour. The policy must be there.
func (r *rig) exhaust(addrs ...netip.Addr) {
	r.t.Helper()
	for i, addr := range addrs {
		n, err := r.Plane().Claim(policy.LaneKey{Budget: narrow.Budget, Destination: addr.String()}, uint32(16+i))
		if err != nil {
			r.t.Fatal(err)
		}
		cell := &r.Cells()[n]
		cell.Interval.Store(uint64(narrow.Interval))
		cell.BaseInterval.Store(uint64(narrow.Interval))
		cell.TAT.Store(uint64(now()) + uint64(time.Hour))
	}
}

// synKinds are what the program of a device does, with the policy for the port.
var synKinds = []struct {
	name, gate string
	set        func(r *rig, w *wire, port uint16)
}{
	{"unnamed", "unnamed", func(_ *rig, w *wire, _ uint16) { w.pace() }},
	{"granted", "granted", func(r *rig, w *wire, port uint16) { w.pace(); r.apply(planePort(port, wide)) }},
	{"held", "held", func(r *rig, w *wire, port uint16) {
		w.pace()
		r.apply(planePort(port, narrow))
		r.exhaust(w.nobody)
	}},
	// connect() cannot tell the exit, so the lane is asked on the way out.
	{"late", "granted", func(r *rig, w *wire, port uint16) {
		w.pace()
		rule := wide
		rule.Per |= policy.PerExit
		redirects := planePort(port, rule)
		redirects.Exits = []policy.Exit{{Name: "near", Source: netip.MustParseAddr("10.77.0.1")}}
		r.apply(redirects)
	}},
}

// BenchmarkSYN measures the program of a device. In each round one packet leaves
// by it: a SYN to where nobody answers, or a datagram.
func BenchmarkSYN(b *testing.B) {
	for _, kind := range synKinds {
		b.Run(kind.name, func(b *testing.B) {
			r := newRig(b, Config{})
			w := newWire(r)
			r.spare()
			const port = 9
			kind.set(r, w, port)
			r.measure(b, w.agent, kind.gate, agentCall{Op: "knock", Family: unix.AF_INET, Addr: netip.AddrPortFrom(w.nobody, port)})
		})
	}
	b.Run("other", func(b *testing.B) {
		r := newRig(b, Config{})
		w := newWire(r)
		w.pace()
		c := w.agent.socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		r.measure(b, w.agent, "", agentCall{Op: "datagrams", FD: c.fd, Family: unix.AF_INET, Addr: netip.AddrPortFrom(w.nobody, 9)})
	})
}
