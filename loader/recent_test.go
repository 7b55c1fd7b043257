// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"net"
	"net/netip"
	"reflect"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
)

// recentSlots views the slots of connections of which nothing is counted yet.
func (r *rig) recentSlots() []egressRecent {
	r.t.Helper()
	mem, err := mapMemory(r.objs.Recent)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := unix.Munmap(mem); err != nil {
			r.t.Error(err)
		}
	})
	return records[egressRecent](mem, r.objs.Recent.MaxEntries())
}

// taken counts the slots that are not free.
func taken(slots []egressRecent) (n int) {
	for i := range slots {
		if atomic.LoadUint64(&slots[i].Sock) != 0 {
			n++
		}
	}
	return n
}

// A slot is as large as a power of two that divides a cache line, and its array
// begins at a page.
func TestRecentLayout(t *testing.T) {
	needRoot(t)
	r := newRig(t, Config{})
	slots := r.recentSlots()
	if size := unsafe.Sizeof(slots[0]); 64%size != 0 {
		t.Errorf("a slot has %d bytes: some lie in two cache lines", size)
	}
	if n := len(slots); n&(n-1) != 0 {
		t.Errorf("%d slots: the programs want a power of two", n)
	}
}

// fill gives all free slots to somebody else, of whom nothing is known but the
// word; free takes them back.
func fill(slots []egressRecent, word uint64) {
	for i := range slots {
		atomic.CompareAndSwapUint64(&slots[i].Sock, 0, word)
	}
}

func free(slots []egressRecent, word uint64) {
	for i := range slots {
		atomic.CompareAndSwapUint64(&slots[i].Sock, word, 0)
	}
}

// A connection that finds its slot taken, by another socket or by one that does
// not get on, waits for nobody and is counted to the last byte, and so is the
// one that has a slot.
func TestRecentTaken(t *testing.T) {
	r := newRig(t, Config{})
	slots := r.recentSlots()
	addr := []policy.Exit{{Name: "addr", Source: netip.MustParseAddr("127.0.0.1")}}
	for _, tt := range []struct {
		name  string
		exits []policy.Exit
		exit  string
		word  uint64
	}{
		{"exit known", nil, policy.DirectExit, 1},
		{"exit late", addr, "addr", 1},
		{"exit known, busy", nil, policy.DirectExit, ^uint64(0)},
		{"exit late, busy", addr, "addr", ^uint64(0)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r.apply(policy.Redirects{Exits: tt.exits})
			first, second, third := startOrigin(t).at("127.0.0.1"), startOrigin(t).at("127.0.0.1"), freePort(t)
			want := func(when, dest, exit string, d Destination) {
				t.Helper()
				d.Dest, d.Exit = netip.MustParseAddrPort(dest), exit
				found := r.destinations(dest)
				if got := steady(found[exit]); got != d || len(found) != 1 {
					t.Errorf("%s: got %+v, want %+v alone", when, found, d)
				}
			}
			outside := func(want int) {
				t.Helper()
				if n := entries(t, r.objs.Untouched); n != want {
					t.Errorf("connections outside the slots: got %d, want %d", n, want)
				}
			}
			a := r.agent.tcp4().mustConnect(first)
			outside(0)
			fill(slots, tt.word)
			defer free(slots, tt.word)
			a.call("send", 100)
			b := r.agent.tcp4().mustConnect(second)
			outside(1)
			b.call("send", 10)
			a.call("send", 1)
			c := r.agent.tcp4()
			if err := c.connect(third); !errors.Is(err, unix.ECONNREFUSED) {
				t.Fatalf("connect: got %v, want ECONNREFUSED", err)
			}
			outside(2)
			b.close()
			outside(1)
			want("second, closed", second, tt.exit, Destination{Untouched: 1, Established: 1, Handshakes: 1, TxBytes: 10})
			want("first, open", first, tt.exit, Destination{Untouched: 1, Established: 1, Handshakes: 1, TxBytes: 101})
			a.call("send", 1000)
			a.close()
			want("first, closed", first, tt.exit, Destination{Untouched: 1, Established: 1, Handshakes: 1, TxBytes: 1101})
			c.close()
			want("third", third, policy.DirectExit, Destination{Untouched: 1, Failed: 1})
			outside(0)
			if n := taken(slots); n == 0 {
				t.Error("nobody has the slots of others any more")
			}
			free(slots, tt.word)
			if n := taken(slots); n != 0 {
				t.Errorf("left: got %d slots, want none", n)
			}
		})
	}
}

// The kernel gives the memory of a closed socket to the next one. What is
// accepted there, or never used, is not taken for what was connected before.
func TestRecentAddressUsedAgain(t *testing.T) {
	r := newRig(t, Config{})
	slots := r.recentSlots()
	inbound := r.agent.tcp4().bind("127.0.0.1:0")
	inbound.call("listen", 1)
	at := inbound.call("local", 0).Addr.String()
	origin := startOrigin(t).at("127.0.0.1")
	const rounds = 200
	for range rounds {
		r.agent.tcp4().mustConnect(origin).close()
		peer, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		accepted := &client{r.agent, inbound.call("accept", 0).N, unix.AF_INET}
		accepted.call("send", 7)
		accepted.close()
		peer.Close()
		r.agent.tcp4().close()
	}
	if got := steady(r.destination(origin)); got.Untouched != rounds || got.Established != rounds || got.TxBytes != 0 || got.Failed != 0 {
		t.Errorf("got %+v, want %d untouched and established, no payload", got, rounds)
	}
	list, err := r.Connections()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range list {
		if d.Dest.String() != origin && steady(d) != (Destination{Dest: d.Dest, Exit: d.Exit}) {
			t.Errorf("got %+v, want nothing but the origin", d)
		}
	}
	if n, m := taken(slots), entries(t, r.objs.Untouched); n != 0 || m != 0 {
		t.Errorf("left: got %d slots and %d connections outside, want none", n, m)
	}
}

// What was closed while the programs were off is not taken for what lies at the
// same address when they are back.
func TestRecentForgotten(t *testing.T) {
	r := newRig(t, Config{})
	slots := r.recentSlots()
	first, second := startOrigin(t).at("127.0.0.1"), startOrigin(t).at("127.0.0.1")
	for range 20 {
		c := r.agent.tcp4().mustConnect(first)
		r.detach()
		c.close()
		if err := r.Attach(); err != nil {
			t.Fatal(err)
		}
		if n := taken(slots); n != 0 {
			t.Fatalf("attached again: %d slots are taken", n)
		}
		r.agent.tcp4().mustConnect(second).close()
	}
	if got := r.destination(first); got.Failed != 0 || got.Established != 0 {
		t.Errorf("closed while nobody looked: got %+v, want nothing counted of its end", got)
	}
	if got := steady(r.destination(second)); got.Untouched != 20 || got.Established != 20 || got.Failed != 0 {
		t.Errorf("afterwards: got %+v, want 20 established", got)
	}
}

// What policy does not name is counted under the same exit, and leaves by the
// same gate, whether it takes the short way or not.
func TestUnnamedExits(t *testing.T) {
	r := newRig(t, Config{})
	mark := policy.Exit{Name: "mark", Mark: 42}
	users := policy.Exit{Name: "users", UIDs: policy.UIDRange{First: 1000, Last: 1000, Set: true}}
	source := policy.Exit{Name: "source", Source: netip.MustParseAddr("127.0.0.1")}
	elsewhere := policy.Exit{Name: "elsewhere", Source: netip.MustParseAddr("203.0.113.7")}
	plain := r.agent.tcp4
	marked := func() *client { return plain().set(unix.SOL_SOCKET, unix.SO_MARK, 42) }
	owned := func() *client {
		c := plain()
		c.call("chown", 1000)
		return c
	}
	both := func() *client { return owned().set(unix.SOL_SOCKET, unix.SO_MARK, 42) }
	bound := func() *client { return plain().bind("127.0.0.1:0") }
	cookie := func() *client { // which makes it look as if it had been used
		c := plain()
		c.call("cookie", 0)
		return c
	}
	for _, tt := range []struct {
		name  string
		exits []policy.Exit
		open  func() *client
		want  string
	}{
		{"no exits", nil, plain, policy.DirectExit},
		{"no exits, marked", nil, marked, policy.DirectExit},
		{"no exits, cookie known", nil, cookie, policy.DirectExit},
		{"mark", []policy.Exit{mark}, marked, "mark"},
		{"other mark", []policy.Exit{mark}, plain, policy.DirectExit},
		{"owner", []policy.Exit{users}, owned, "users"},
		{"other owner", []policy.Exit{users}, plain, policy.DirectExit},
		{"owner before mark", []policy.Exit{users, mark}, both, "users"},
		{"mark before owner", []policy.Exit{mark, users}, both, "mark"},
		{"bound", []policy.Exit{source}, bound, "source"},
		{"bound elsewhere", []policy.Exit{elsewhere}, bound, policy.DirectExit},
		{"owner, and a source that shows late", []policy.Exit{users, source}, owned, "users"},
		{"source that shows late, and owner", []policy.Exit{source, users}, owned, "source"},
	} {
		r.apply(policy.Redirects{Exits: tt.exits, Ports: []policy.PortRedirect{{Port: 8080}}})
		origin := startOrigin(t).at("127.0.0.1")
		r.through("unnamed", func() { tt.open().mustConnect(origin).close() })
		found := r.destinations(origin)
		if d := found[tt.want]; d.Untouched != 1 || d.Established != 1 || d.Handshakes != 1 || len(found) != 1 {
			t.Errorf("%s: got %+v, want one by %s", tt.name, found, tt.want)
		}
	}
}

// A socket that is used again, wherever its first connection is remembered.
func TestRecentUsedAgain(t *testing.T) {
	r := newRig(t, Config{})
	slots := r.recentSlots()
	for _, asked := range []bool{false, true} {
		first, second := startOrigin(t).at("127.0.0.1"), startOrigin(t).at("127.0.0.1")
		c := r.agent.tcp4().mustConnect(first)
		if asked { // which moves it
			if got := r.destination(first); got.Untouched != 1 {
				t.Errorf("asked: got %+v, want 1 untouched", got)
			}
		}
		c.call("disconnect", 0)
		c.mustConnect(second)
		c.call("send", 5)
		c.close()
		// The kernel forgot of the first that it was established, unless
		// somebody asked before.
		got := steady(r.destination(first))
		if got.Untouched != 1 || got.Established+got.Failed != 1 || got.TxBytes != 0 || (got.Established == 1) != asked {
			t.Errorf("asked %t: first: got %+v, want 1 untouched", asked, got)
		}
		if got := r.destination(second); got.Untouched != 1 || got.Established != 1 || got.TxBytes != 5 || got.Handshakes != 0 {
			t.Errorf("asked %t: second: got %+v, want 1 established, 5 bytes", asked, got)
		}
	}
	if n, m := taken(slots), entries(t, r.objs.Untouched); n != 0 || m != 0 {
		t.Errorf("left: got %d slots and %d connections outside, want none", n, m)
	}
}

// Connections that come and go while somebody asks for their counts, over and
// over, count once each.
func TestCountsWhileAsked(t *testing.T) {
	r := newRig(t, Config{})
	slots := r.recentSlots()
	for _, exits := range [][]policy.Exit{nil, {{Name: "addr", Source: netip.MustParseAddr("127.0.0.1")}}} {
		r.apply(policy.Redirects{Exits: exits})
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go closeAll(l, nil)
		dest := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port(l))
		const each = 500
		agents := []*agent{r.agent, startAgent(t, r.cgroup, sysProcAttr()), startAgent(t, r.cgroup, sysProcAttr())}
		var wg sync.WaitGroup
		for _, a := range agents {
			wg.Go(func() { a.do(agentCall{Op: "churn", Family: unix.AF_INET, Value: each, Addr: dest}) })
		}
		done := make(chan struct{})
		go func() { wg.Wait(); close(done) }()
		for asking := true; asking; {
			select {
			case <-done:
				asking = false
			default:
			}
			r.destination(dest.String())
		}
		var sum Destination
		for _, d := range r.destinations(dest.String()) {
			sum.Untouched += d.Untouched
			sum.Established += d.Established
			sum.Failed += d.Failed
		}
		if want := uint64(each * len(agents)); sum.Untouched != want || sum.Established != want || sum.Failed != 0 {
			t.Errorf("exits %v: got %+v, want %d untouched and established", exits, sum, want)
		}
	}
	if n, m := taken(slots), entries(t, r.objs.Untouched); n != 0 || m != 0 {
		t.Errorf("left: got %d slots and %d connections outside, want none", n, m)
	}
}

// load counts what is in every map whose entries come and go.
func (r *rig) load() map[string]int {
	r.t.Helper()
	n := map[string]int{"recent": taken(r.recentSlots())}
	maps := reflect.ValueOf(r.objs.egressMaps)
	for i := range maps.NumField() {
		m, ok := maps.Field(i).Interface().(*ebpf.Map)
		if !ok || (m.Type() != ebpf.Hash && m.Type() != ebpf.LRUHash) {
			continue
		}
		n[maps.Type().Field(i).Name] = entries(r.t, m)
	}
	return n
}

// manyConnections makes n connections of every kind that connect() knows, and
// returns how many entries they left in the maps.
func manyConnections(t testing.TB, n int) (left int) {
	r := newRig(t, Config{})
	r.enrol(1 << 20)
	l, err := net.Listen("tcp", "[::]:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go closeAll(l, nil)
	go closeAll(r.listener, func(local netip.AddrPort) { r.Take(r.netns, local, netip.AddrPort{}) })
	r.spare()
	r.apply(planePort(port(l), narrow))
	r.exhaust(netip.MustParseAddr("127.0.0.1"))
	late := policy.Redirects{Exits: []policy.Exit{{Name: "addr", Source: netip.MustParseAddr("127.0.0.1")}}}
	ports := policy.Redirects{Ports: []policy.PortRedirect{{Port: port(l), Local: true}}}
	kinds := []struct {
		redirects policy.Redirects
		family    int
		addr      string
		beat      bool
	}{
		{policy.Redirects{}, unix.AF_INET, "127.0.0.1", true},
		{policy.Redirects{}, unix.AF_INET6, "::1", true},
		{late, unix.AF_INET, "127.0.0.1", true},
		{ports, unix.AF_INET, "127.0.0.1", true},
		{ports, unix.AF_INET, "127.0.0.1", false}, // named, and left alone
		{planePort(port(l), wide), unix.AF_INET, "127.0.0.1", true},
		{planePort(port(l), narrow), unix.AF_INET, "127.0.0.1", true}, // the proxy's
	}
	all := func(each int) {
		for _, k := range kinds {
			r.apply(k.redirects)
			if k.beat {
				r.Beat(now() + 1<<42)
			} else {
				r.Beat(0)
			}
			addr := netip.AddrPortFrom(netip.MustParseAddr(k.addr), port(l))
			r.agent.do(agentCall{Op: "churn", Family: k.family, Value: each, Addr: addr})
			// Records of flows are taken by somebody else.
			for range 200 {
				if r.Pending() == 0 {
					break
				}
				unix.Nanosleep(&unix.Timespec{Nsec: 5e6}, nil)
			}
			r.apply(policy.Redirects{})
		}
	}
	all(1) // which leaves an entry for each destination
	before := r.load()
	all((n + len(kinds) - 1) / len(kinds))
	for name, n := range r.load() {
		if more := n - before[name]; more > 0 {
			t.Errorf("map %s: %d entries more than before", name, more)
			left += more
		}
	}
	return left
}

// Connections leave nothing in any map. BenchmarkManyConnections makes more.
func TestManyConnections(t *testing.T) {
	manyConnections(t, 2000)
}

func BenchmarkManyConnections(b *testing.B) {
	left := manyConnections(b, b.N)
	b.ReportMetric(float64(left), "left")
}
