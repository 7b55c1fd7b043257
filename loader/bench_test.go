// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
)

// connectKinds are the ways through the hooks whose cost is measured. Each gets
// a rig that is attached and names nothing, and the port that is connected to
// on loopback. test/bench makes a table of them.
var connectKinds = []struct {
	name string
	set  func(r *rig, port uint16)
}{
	// No program runs at all.
	{"native", func(r *rig, _ uint16) { r.detach() }},
	// One that does nothing: what the kernel and the measuring itself cost.
	{"empty", func(r *rig, _ uint16) { r.detach(); r.attachEmpty() }},
	{"unnamed", func(r *rig, _ uint16) { r.namePorts(1, 2, 3) }},
	{"prefixes", func(r *rig, port uint16) {
		r.apply(namedPrefixes(port, "203.0.113.0/24", "10.0.0.0/8", "2001:db8::/32"))
	}},
	// Exits of every kind, so that the exit shows late, and proxies.
	{"exits", func(r *rig, _ uint16) { r.apply(manyExits()) }},
	// Not named, but a prefix or a proxy is near, so that all must be searched.
	{"near", func(r *rig, port uint16) { r.apply(namedPrefixes(port+1, "127.0.0.0/8", "::1/128")) }},
	// Named, and left alone since the daemon stands still.
	{"untouched", func(r *rig, port uint16) { r.namePorts(port); r.Beat(0) }},
	// Named and redirected, with what the proxy does to learn of the flow.
	{"named", func(r *rig, port uint16) {
		r.namePorts(port)
		go closeAll(r.listener, func(local netip.AddrPort) { r.Take(r.netns, local, netip.AddrPort{}) })
	}},
}

// BenchmarkConnect measures one socket, connect and close on loopback, and the
// programs that run for it.
func BenchmarkConnect(b *testing.B) {
	for _, family := range []struct {
		name string
		id   int
		addr string
	}{{"v4", unix.AF_INET, "127.0.0.1"}, {"v6", unix.AF_INET6, "::1"}} {
		for _, kind := range connectKinds {
			b.Run(family.name+"/"+kind.name, func(b *testing.B) {
				r := newRig(b, Config{})
				r.enrol(1 << 20)
				l, err := net.Listen("tcp", "[::]:0")
				if err != nil {
					b.Fatal(err)
				}
				defer l.Close()
				go closeAll(l, nil)
				kind.set(r, port(l))
				stats, err := EnableStats()
				if err != nil {
					b.Fatal(err)
				}
				defer stats.Close()
				dest := netip.AddrPortFrom(netip.MustParseAddr(family.addr), port(l))
				// The agent loops; one call of it is b.N rounds.
				b.ResetTimer()
				r.agent.do(agentCall{Op: "churn", Family: family.id, Value: b.N, Addr: dest})
				b.StopTimer()
				r.reportPrograms(b)
			})
		}
	}
}

// reportPrograms reports the cost of each program that ran.
func (r *rig) reportPrograms(b *testing.B) {
	programs, err := r.Programs()
	if err != nil {
		b.Fatal(err)
	}
	for name, p := range r.empty {
		stats, err := p.Stats()
		if err != nil {
			b.Fatal(err)
		}
		programs = append(programs, Program{Name: name, Runs: stats.RunCount, Runtime: stats.Runtime})
	}
	for _, p := range programs {
		if p.Runs > 0 {
			b.ReportMetric(float64(p.Runtime.Nanoseconds())/float64(p.Runs), "ns/"+p.Name)
		}
	}
}

func (r *rig) detach() {
	r.t.Helper()
	if err := r.Detach(); err != nil {
		r.t.Fatal(err)
	}
}

// attachEmpty attaches programs that let everything pass.
func (r *rig) attachEmpty() {
	r.t.Helper()
	r.empty = make(map[string]*ebpf.Program)
	for _, h := range r.hooks() {
		if h.attach != ebpf.AttachCGroupInet4Connect && h.attach != ebpf.AttachCGroupInet6Connect {
			continue
		}
		info, err := h.program.Info()
		if err != nil {
			r.t.Fatal(err)
		}
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Type: ebpf.CGroupSockAddr, AttachType: h.attach, License: "Dual BSD/GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
		})
		if err != nil {
			r.t.Fatal(err)
		}
		l, err := link.AttachCgroup(link.CgroupOptions{Path: r.cgroup, Attach: h.attach, Program: p})
		if err != nil {
			r.t.Fatal(err)
		}
		r.t.Cleanup(func() { l.Close(); p.Close() })
		r.empty[info.Name] = p
	}
}

// namedPrefixes names one port of each prefix.
func namedPrefixes(port uint16, prefixes ...string) (r policy.Redirects) {
	for _, p := range prefixes {
		r.Prefixes = append(r.Prefixes, policy.PrefixRedirect{Prefix: netip.MustParsePrefix(p), Port: port})
	}
	return r
}

// manyExits is a policy with exits of every kind, of which only the device fits,
// and a range of proxies.
func manyExits() policy.Redirects {
	r := policy.Redirects{Exits: []policy.Exit{
		{Name: "source", Source: netip.MustParseAddr("203.0.113.7")},
		{Name: "device", Interface: "lo"},
		{Name: "mark", Mark: 7},
		{Name: "users", UIDs: policy.UIDRange{First: 1000, Last: 1999, Set: true}},
	}}
	for port := uint16(10000); port < 14000; port++ {
		r.Endpoints = append(r.Endpoints, policy.Endpoint{
			Addr: netip.AddrPortFrom(netip.MustParseAddr("203.0.113.9"), port), Exit: "gw",
		})
	}
	return r
}

// closeAll accepts and closes until the listener is closed.
func closeAll(l net.Listener, each func(local netip.AddrPort)) {
	for {
		conn, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		if each != nil {
			each(conn.LocalAddr().(*net.TCPAddr).AddrPort())
		}
		conn.Close()
	}
}

// BenchmarkTake is the price of a flow record for the accept loop.
func BenchmarkTake(b *testing.B) {
	needRoot(b)
	k := openKernel(b, Config{})
	token := TokenPrefix.Addr().Next()
	local := netip.AddrPortFrom(token, 1)
	key, value := flowKey(1, token), egressFlow{Port: 80}
	copy(value.Comm[:], []int8{'p', 'y', 't', 'h', 'o', 'n', '3'})
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		if err := k.objs.Flows.Put(&key, &value); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if _, ok := k.Take(1, local, netip.AddrPort{}); !ok {
			b.Fatal("no flow")
		}
	}
}

func BenchmarkBeat(b *testing.B) {
	needRoot(b)
	k := openKernel(b, Config{})
	b.ReportAllocs()
	for b.Loop() {
		k.Beat(1)
	}
}

// BenchmarkDatagram measures one sendto on loopback: without programs, to a
// port that policy does not name, and to one that it names.
func BenchmarkDatagram(b *testing.B) {
	for _, kind := range []string{"native", "unnamed", "named"} {
		b.Run(kind, func(b *testing.B) {
			r := newRig(b, Config{})
			s := startSink(b)
			switch kind {
			case "native":
				if err := r.Detach(); err != nil {
					b.Fatal(err)
				}
			case "named":
				r.namePorts(s.port)
			}
			stats, err := EnableStats()
			if err != nil {
				b.Fatal(err)
			}
			defer stats.Close()
			c := r.agent.socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
			b.ResetTimer()
			c.do(agentCall{Op: "datagrams", FD: c.fd, Family: unix.AF_INET, Value: b.N, Addr: netip.MustParseAddrPort(s.at("127.0.0.1"))})
			b.StopTimer()
			r.reportPrograms(b)
		})
	}
}
