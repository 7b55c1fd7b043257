// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
)

// BenchmarkConnect measures one socket, connect and close on loopback: without
// programs, for a destination that policy does not name, for the same under a
// policy with exits of every kind, so that the exit shows late, and for one
// that it names. The last includes what the proxy does to learn of the flow.
func BenchmarkConnect(b *testing.B) {
	for _, family := range []struct {
		name string
		id   int
		addr string
	}{{"v4", unix.AF_INET, "127.0.0.1"}, {"v6", unix.AF_INET6, "::1"}} {
		for _, kind := range []string{"native", "unnamed", "exits", "named"} {
			b.Run(family.name+"/"+kind, func(b *testing.B) {
				r := newRig(b, Config{})
				r.enrol(1 << 20)
				if kind == "native" {
					if err := r.Detach(); err != nil {
						b.Fatal(err)
					}
				}
				l, err := net.Listen("tcp", "[::]:0")
				if err != nil {
					b.Fatal(err)
				}
				defer l.Close()
				go closeAll(l, nil)
				if kind == "exits" {
					r.apply(manyExits())
				}
				if kind == "named" {
					r.namePorts(port(l))
					go closeAll(r.listener, func(local netip.AddrPort) { r.Take(r.netns, local, netip.AddrPort{}) })
				}
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
				programs, err := r.Programs()
				if err != nil {
					b.Fatal(err)
				}
				for _, p := range programs {
					if p.Runs > 0 {
						b.ReportMetric(float64(p.Runtime.Nanoseconds())/float64(p.Runs), "ns/"+p.Name)
					}
				}
			})
		}
	}
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
			programs, err := r.Programs()
			if err != nil {
				b.Fatal(err)
			}
			for _, p := range programs {
				if p.Runs > 0 {
					b.ReportMetric(float64(p.Runtime.Nanoseconds())/float64(p.Runs), "ns/"+p.Name)
				}
			}
		})
	}
}
