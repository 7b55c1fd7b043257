// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"maps"
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
// a rig that is attached and names nothing, and the port that is connected to;
// the addresses are those of loopback, or the other end of the wire. test/bench
// makes a table of them.
var connectKinds = []struct {
	name string
	gate string // by which all leave; "" where our programs do not run
	wire bool
	set  func(r *rig, w *wire, port uint16)
}{
	// No program runs at all.
	{name: "native", set: func(r *rig, _ *wire, _ uint16) { r.detach() }},
	// One that does nothing: what the kernel and the measuring itself cost.
	{name: "empty", set: func(r *rig, _ *wire, _ uint16) { r.detach(); r.attachEmpty() }},
	{name: "unnamed", gate: "unnamed", set: func(r *rig, _ *wire, _ uint16) { r.namePorts(1, 2, 3) }},
	{name: "prefixes", gate: "unnamed", set: func(r *rig, _ *wire, port uint16) {
		r.apply(namedPrefixes(port, "203.0.113.0/24", "10.0.0.0/8", "2001:db8::/32"))
	}},
	// Exits of every kind, so that the exit shows late, and proxies.
	{name: "exits", gate: "unnamed", set: func(r *rig, _ *wire, _ uint16) { r.apply(manyExits()) }},
	// Not named, but a prefix or a proxy is near, so that all must be searched.
	{name: "near", gate: "unnamed", set: func(r *rig, _ *wire, port uint16) {
		r.apply(namedPrefixes(port+1, "127.0.0.0/8", "::1/128"))
	}},
	// Named, and left alone since the daemon stands still.
	{name: "untouched", gate: "heartbeat", set: func(r *rig, _ *wire, port uint16) { r.namePorts(port); r.Beat(0) }},
	// A budget of connections has room.
	{name: "granted", gate: "granted", set: func(r *rig, _ *wire, port uint16) { r.apply(planePort(port, wide)) }},
	// It has none, and the SYN gets a time on its way out.
	{name: "held", gate: "held", wire: true, set: func(r *rig, w *wire, port uint16) {
		w.pace()
		r.apply(planePort(port, narrow))
		r.exhaust(w.far4, w.far6)
	}},
	// It has none, and the proxy holds the connection.
	{name: "over", gate: "redirected", set: func(r *rig, _ *wire, port uint16) {
		r.apply(planePort(port, narrow))
		r.exhaust(netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback())
		r.takeAll()
	}},
	// Named and redirected, with what the proxy does to learn of the flow.
	{name: "named", gate: "redirected", set: func(r *rig, _ *wire, port uint16) { r.namePorts(port); r.takeAll() }},
}

// BenchmarkConnect measures one socket, connect and close, and the programs that
// run for it.
func BenchmarkConnect(b *testing.B) {
	needRoot(b)
	for _, kind := range connectKinds {
		// One for both families and all numbers of rounds: to open it takes as
		// long as thousands of connections.
		var r *rig
		var w *wire
		for _, family := range []struct {
			name string
			id   int
		}{{"v4", unix.AF_INET}, {"v6", unix.AF_INET6}} {
			outer := b
			b.Run(family.name+"/"+kind.name, func(b *testing.B) {
				if r == nil {
					r, w = newConnectRig(outer, kind.wire, kind.set)
				}
				r.measure(b, w.agent, kind.gate, agentCall{Op: "churn", Family: family.id, Addr: w.dest(family.id)})
			})
		}
	}
}

func newConnectRig(b *testing.B, far bool, set func(*rig, *wire, uint16)) (*rig, *wire) {
	r := newRig(b, Config{})
	r.enrol(1 << 20)
	r.spare()
	w := newLoop(r)
	if far {
		w = newWire(r)
	}
	go closeAll(w.listener, nil)
	set(r, w, port(w.listener))
	return r, w
}

// takeAll does what the proxy does with connections, and closes them.
func (r *rig) takeAll() {
	go closeAll(r.listener, func(local netip.AddrPort) { r.Take(r.netns, local, netip.AddrPort{}) })
}

// measure lets the agent make b.N rounds of the call, which loops by itself, and
// reports what the programs cost. All have to leave by the gate, unless it is "".
func (r *rig) measure(b *testing.B, a *agent, gate string, call agentCall) {
	stats, err := EnableStats()
	if err != nil {
		b.Fatal(err)
	}
	defer stats.Close()
	before, passed := r.costs(), uint64(0)
	if gate != "" {
		passed = r.gate(gate).Passed
	}
	call.Value = b.N
	b.ResetTimer()
	a.do(call)
	b.StopTimer()
	if gate != "" {
		if passed = r.gate(gate).Passed - passed; passed != uint64(b.N) {
			b.Fatalf("%d of %d calls left by the gate %s", passed, b.N, gate)
		}
	}
	for name, p := range r.costs() {
		if runs := p.Runs - before[name].Runs; runs > 0 {
			b.ReportMetric(float64((p.Runtime-before[name].Runtime).Nanoseconds())/float64(runs), "ns/"+name)
		}
	}
}

// costs are what the programs have cost so far, by name.
func (r *rig) costs() map[string]Program {
	r.t.Helper()
	programs, err := r.Programs()
	if err != nil {
		r.t.Fatal(err)
	}
	costs := make(map[string]Program)
	for _, p := range programs {
		costs[p.Name] = p
	}
	others := maps.Clone(r.empty)
	if others == nil {
		others = make(map[string]*ebpf.Program)
	}
	others["egressd_pace"] = r.PaceProgram()
	for name, p := range others {
		stats, err := p.Stats()
		if err != nil {
			r.t.Fatal(err)
		}
		costs[name] = Program{Name: name, Runs: stats.RunCount, Runtime: stats.Runtime}
	}
	return costs
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
			c := r.agent.socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
			r.measure(b, r.agent, "", agentCall{Op: "datagrams", FD: c.fd, Family: unix.AF_INET, Addr: netip.MustParseAddrPort(s.at("127.0.0.1"))})
		})
	}
}
