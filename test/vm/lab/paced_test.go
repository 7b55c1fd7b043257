// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/loader"
	"github.com/egressd/egressd/loader/pacer"
)

// out is the device by which the machine reaches the origins.
const out = "out0"

// pacedPorts are those of the budgets of a paced site.
const (
	slowPort   = 7001 // 1/s
	fastPort   = 7002 // 50/s
	shortPort  = 7003 // 1/s, nobody waits longer than 2.5 s
	exitPort   = 7004 // 1/s for each exit, which only the route tells
	strictPort = 7005 // the same, and nobody waits
	webPort    = 7006 // requests, which are the proxy's
)

// site is a machine with a way out and a daemon, and origins behind it.
type site struct {
	*daemon
	out *Ear
	far *Netns
}

// newSite makes one whose way out has fq, or has none.
func newSite(t testing.TB, fq bool) *site {
	t.Helper()
	needVM(t)
	own, err := OwnNetns()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { own.Close() })
	s := &site{far: newNetns(t)}
	if err := Join(
		End{own, out, []netip.Prefix{near4, near6}},
		End{s.far, "far", []netip.Prefix{far4, far6}},
	); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // a namespace that ends takes its end of the pair along
		if err := Remove(out); err != nil {
			t.Error(err)
		}
	})
	if fq {
		if err := own.FQ(out, time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	for port := slowPort; port <= webPort; port++ {
		o, err := s.far.Listen(netip.AddrPortFrom(netip.IPv6Unspecified(), uint16(port)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { o.Close() })
	}
	s.out = newEar(t, s.far, "far")
	// The first packets to a neighbour wait until its address is known.
	for _, addr := range []netip.Addr{far4.Addr(), far6.Addr()} {
		connect(1, netip.AddrPortFrom(addr, slowPort-1), "")
	}
	s.daemon = newDaemon(t, fmt.Sprintf(`
  - {name: slow, match: {hosts: [10.77.0.0/16, "fd77::/16"], ports: [%d]}, unit: connections, rate: 1/s, per: [destination]}
  - {name: fast, match: {hosts: [10.77.0.0/16], ports: [%d]}, unit: connections, rate: 50/s, per: []}
  - {name: short, match: {hosts: [10.77.0.0/16], ports: [%d]}, unit: connections, rate: 1/s, per: [], queue: {max_wait: 2500ms}}
  - {name: exit, match: {hosts: [10.77.0.0/16], ports: [%d]}, unit: connections, rate: 1/s, per: [exit]}
  - {name: strict, match: {hosts: [10.77.0.0/16], ports: [%d]}, unit: connections, rate: 1/s, per: [exit], queue: {max_wait: 0s}}
  - {name: web, match: {hosts: [10.77.0.0/16], ports: [%d]}, rate: 100/s, per: [destination, exit]}
exits:
  - {name: alias, source: %s}`, slowPort, fastPort, shortPort, exitPort, strictPort, webPort, near4.Addr()))
	return s
}

// attempt is what came of one connect().
type attempt struct {
	begin, end Mono
	from       netip.AddrPort
	err        error
}

// connect makes n connections at once, and returns when all have ended.
func connect(n int, to netip.AddrPort, bind string) []attempt {
	all := make([]attempt, n)
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() {
			a := &all[i]
			d := net.Dialer{Timeout: 30 * time.Second, Control: toDevice(bind)}
			d.SetMultipathTCP(false)
			a.begin = Now()
			conn, err := d.Dial("tcp", to.String())
			a.end = Now()
			if a.err = err; err == nil {
				a.from = conn.LocalAddr().(*net.TCPAddr).AddrPort()
				conn.Close()
			}
		})
	}
	wg.Wait()
	slices.SortFunc(all, func(a, b attempt) int { return int(a.end - b.end) })
	return all
}

// leave waits until n SYNs to an address have left since a time, and returns
// when they did; each connection has one.
func (s *site) leave(t testing.TB, n int, to netip.AddrPort, since Mono) []Mono {
	t.Helper()
	waitFor(t, fmt.Sprintf("%d SYNs to %s", n, to), func() bool { return len(s.left(t, to, since)) >= n })
	time.Sleep(50 * time.Millisecond) // for more that should not be
	return s.left(t, to, since)
}

// left are those that have left by now.
func (s *site) left(t testing.TB, to netip.AddrPort, since Mono) []Mono {
	t.Helper()
	var times []Mono
	froms := map[netip.AddrPort]int{}
	for _, syn := range s.out.SYNs() {
		if syn.To == to && syn.At >= since {
			times = append(times, syn.At)
			froms[syn.From]++
		}
	}
	for from, n := range froms {
		if n != 1 {
			t.Errorf("%d SYNs from %s, want none to be sent again", n, from)
		}
	}
	return times
}

// late is how much later than its turn a SYN may be heard on a machine that is
// emulated, and busy.
const late = 1500 * time.Millisecond

// spaced checks that times are those of turns which began at since or later,
// and are a gap apart: no SYN leaves before its turn. How much later it does is
// for the machine to say; of two, the first may be as late as late.
func spaced(t testing.TB, times []Mono, n int, gap time.Duration, since Mono) {
	t.Helper()
	if len(times) != n {
		t.Fatalf("%d SYNs left, want %d", len(times), n)
	}
	var worst time.Duration
	for i := range times {
		if got := times[i].Sub(since); got < time.Duration(i)*gap {
			t.Errorf("SYN %d left after %v, want %v at least", i, got, time.Duration(i)*gap)
		}
		for j := range i {
			if got, least := times[i].Sub(times[j]), time.Duration(i-j)*gap-late; got < least {
				t.Errorf("SYNs %d and %d are %v apart, want %v at least", j, i, got, least)
			}
			worst = max(worst, (times[i].Sub(times[j]) - time.Duration(i-j)*gap).Abs())
		}
	}
	t.Logf("%d SYNs, %v apart: all gaps are so to within %v", n, gap, worst.Round(100*time.Microsecond))
}

func at(addr netip.Prefix, port uint16) netip.AddrPort { return netip.AddrPortFrom(addr.Addr(), port) }

// good fails the test unless all attempts came to something.
func good(t testing.TB, all []attempt) {
	t.Helper()
	for i, a := range all {
		if a.err != nil {
			t.Errorf("connection %d: %v after %v", i, a.err, a.end.Sub(a.begin))
		}
	}
}

// gates are the counts of `egressd status`.
func (s *site) gates(t testing.TB) map[string]uint64 {
	t.Helper()
	var status struct {
		Kernel struct{ Untouched map[string]uint64 }
	}
	askJSON(t, &status, "status")
	return status.Kernel.Untouched
}

// Where the way out has fq, a SYN waits there for its turn.
func TestPacedByFQ(t *testing.T) {
	s := newSite(t, true)
	t.Run("one a second", func(t *testing.T) {
		since := Now()
		good(t, connect(5, at(far4, slowPort), ""))
		spaced(t, s.leave(t, 5, at(far4, slowPort), since), 5, time.Second, since)
	})
	t.Run("IPv6", func(t *testing.T) {
		since := Now()
		good(t, connect(3, at(far6, slowPort), ""))
		spaced(t, s.leave(t, 3, at(far6, slowPort), since), 3, time.Second, since)
	})
	t.Run("fifty a second", func(t *testing.T) {
		since := Now()
		good(t, connect(200, at(far4, fastPort), ""))
		spaced(t, s.leave(t, 200, at(far4, fastPort), since), 200, 20*time.Millisecond, since)
	})
	t.Run("who would wait too long is refused", func(t *testing.T) {
		since := Now()
		const n = 8
		refused := 0
		for _, a := range connect(n, at(far4, shortPort), "") {
			if !errors.Is(a.err, unix.ECONNREFUSED) {
				continue
			}
			if refused++; a.end.Sub(a.begin) > late {
				t.Errorf("refused after %v, want at once", a.end.Sub(a.begin))
			}
		}
		// Those who come at once are three; on a machine that is slow, more.
		if refused < 2 || refused > n-3 {
			t.Errorf("%d of %d were refused", refused, n)
		}
		spaced(t, s.leave(t, n-refused, at(far4, shortPort), since), n-refused, time.Second, since)
	})
	t.Run("the exit shows on the way", func(t *testing.T) {
		since := Now()
		good(t, connect(3, at(far4, exitPort), ""))
		spaced(t, s.leave(t, 3, at(far4, exitPort), since), 3, time.Second, since)
		if lanes := ask(t, "lanes", "--socket", socket); !strings.Contains(lanes, "exit/-/alias") {
			t.Errorf("no lane of the exit alias:\n%s", lanes)
		}
	})
	t.Run("refused on the way", func(t *testing.T) {
		since := Now()
		refused := 0
		for _, a := range connect(4, at(far4, strictPort), "") {
			if a.err == nil {
				continue
			}
			if !errors.Is(a.err, unix.ECONNREFUSED) || a.end.Sub(a.begin) > late {
				t.Errorf("got %v after %v, want to be refused at once", a.err, a.end.Sub(a.begin))
			}
			refused++
		}
		if refused != 3 {
			t.Errorf("%d of 4 were refused, want 3", refused)
		}
		if n := len(s.leave(t, 1, at(far4, strictPort), since)); n != 1 {
			t.Errorf("%d SYNs left, want 1", n)
		}
	})
	t.Run("a cooldown holds who comes later", func(t *testing.T) {
		since := Now()
		first := make(chan []attempt)
		go func() { first <- connect(3, at(far4, slowPort), "") }()
		waitFor(t, "the first SYN", func() bool { return len(s.left(t, at(far4, slowPort), since)) > 0 })
		time.Sleep(100 * time.Millisecond) // the others are in the qdisc by then
		ask(t, "cooldown", "set", "slow/"+far4.Addr().String()+"/-", "6s", "--socket", socket)
		closed := Now()
		good(t, connect(2, at(far4, slowPort), ""))
		good(t, <-first)
		times := s.leave(t, 5, at(far4, slowPort), since)
		if len(times) != 5 {
			t.Fatalf("%d SYNs left, want 5", len(times))
		}
		// What is in a qdisc cannot be called back.
		spaced(t, times[:3], 3, time.Second, since)
		if got := times[3].Sub(closed); got < 6*time.Second-late {
			t.Errorf("a SYN left %v after the lane was closed for 6 s", got)
		}
		if got := times[4].Sub(times[3]); got < time.Second-late {
			t.Errorf("two SYNs %v apart after the cooldown, want a second", got)
		}
	})
	t.Run("a closed lane stops who goes around the proxy", func(t *testing.T) {
		// The request makes the lane; its answer never comes.
		lane := "web/" + far4.Addr().String() + "/alias"
		go get(at(far4, webPort).String())
		waitFor(t, "the lane "+lane, func() bool {
			return strings.Contains(ask(t, "lanes", "--socket", socket), lane)
		})
		ask(t, "cooldown", "set", lane, "3s", "--socket", socket)
		since := Now()
		good(t, connect(1, at(far4, webPort), out))
		times := s.leave(t, 1, at(far4, webPort), since)
		if len(times) != 1 || times[0].Sub(since) < 2*time.Second {
			t.Errorf("SYNs left %v after the lane was closed for 3 s", times)
		}
	})
	gates := s.gates(t)
	for gate, n := range gates {
		if gate != loader.GateGranted && gate != loader.GateHeld && gate != "unnamed" && gate != "own" && gate != "over" && gate != "device" {
			t.Errorf("%d connections left by the gate %s", n, gate)
		}
	}
	t.Run("killed", func(t *testing.T) {
		since := Now()
		held := make(chan []attempt)
		go func() { held <- connect(3, at(far4, slowPort), "") }()
		waitFor(t, "the first SYN", func() bool { return len(s.left(t, at(far4, slowPort), since)) > 0 })
		s.kill(t)
		begin := Now()
		all := connect(3, at(far4, slowPort), "")
		good(t, all)
		if took := all[2].end.Sub(begin); took > late {
			t.Errorf("connections of a host without a daemon took %v", took)
		}
		good(t, <-held)
	})
}

// Where it has none, the proxy holds the connection: the same budgets, and the
// origin sees the same.
func TestHeldByProxy(t *testing.T) {
	s := newSite(t, false)
	for _, tt := range []struct {
		name string
		to   netip.AddrPort
		n    int
		gap  time.Duration
	}{
		{"one a second", at(far4, slowPort), 5, time.Second},
		{"IPv6", at(far6, slowPort), 3, time.Second},
		{"fifty a second", at(far4, fastPort), 100, 20 * time.Millisecond},
		{"the exit shows on the way", at(far4, exitPort), 3, time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			since := Now()
			keep := dialAll(t, tt.n, tt.to)
			// The proxy dials when a turn has come; it is late by what that takes.
			spaced(t, s.leave(t, tt.n, tt.to, since), tt.n, tt.gap, since)
			for _, conn := range keep {
				conn.Close()
			}
		})
	}
	t.Run("what the proxy cannot hold is refused", func(t *testing.T) {
		waitFor(t, "room in the lane", func() bool { return connect(1, at(far4, slowPort), out)[0].err == nil })
		a := connect(1, at(far4, slowPort), out)[0]
		if !errors.Is(a.err, unix.ECONNREFUSED) {
			t.Errorf("got %v, want to be refused", a.err)
		}
	})
	t.Run("stopped", func(t *testing.T) {
		s.signal(t, unix.SIGSTOP)
		defer s.signal(t, unix.SIGCONT)
		waitFor(t, "the heartbeat to be old", func() bool {
			first, second := connect(1, at(far4, slowPort), out)[0], connect(1, at(far4, slowPort), out)[0]
			return first.err == nil && second.err == nil
		})
	})
}

// dialAll makes n connections, which stay open.
func dialAll(t testing.TB, n int, to netip.AddrPort) []net.Conn {
	t.Helper()
	conns := make([]net.Conn, n)
	var wg sync.WaitGroup
	for i := range conns {
		wg.Go(func() {
			d := net.Dialer{Timeout: 30 * time.Second}
			d.SetMultipathTCP(false)
			conn, err := d.Dial("tcp", to.String())
			if err != nil {
				t.Errorf("connection %d: %v", i, err)
				return
			}
			conns[i] = conn
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return conns
}

// `qdisc: fq` puts fq on the way out and takes it off again.
func TestQdiscInstalled(t *testing.T) {
	s := newSite(t, false)
	before := qdiscOf(t, out)
	text, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := DefaultRoute(out, far4.Addr()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.config, append(text, "qdisc: fq\n"...), 0o644); err != nil {
		t.Fatal(err)
	}
	s.signal(t, unix.SIGHUP)
	waitFor(t, "fq at "+out, func() bool { return qdiscOf(t, out) == "fq" })
	waitFor(t, "connections to be paced", func() bool {
		connect(2, at(far4, slowPort), "")
		return s.gates(t)[loader.GateHeld] > 0
	})
	s.stop(t)
	if after := qdiscOf(t, out); after != before {
		t.Errorf("qdisc after the daemon: %s, want %s", after, before)
	}
}

// Devices have our program while the policy has use for it, and not where it only
// names hosts whose requests the proxy counts.
func TestProgramOnlyWhereNeeded(t *testing.T) {
	s := newSite(t, true)
	attached := func() bool {
		t.Helper()
		state, err := pacer.Look("")
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(state.Devices, func(d pacer.Device) bool { return d.Name == out })
		return i >= 0 && state.Devices[i].Attached != ""
	}
	before, err := os.ReadFile(s.config)
	if err != nil {
		t.Fatal(err)
	}
	head, _, _ := strings.Cut(string(before), "budgets:")
	hosts := head + fmt.Sprintf(`budgets:
  - {name: web, match: {hosts: [far.example], ports: [%d]}, rate: 100/s, per: [destination, exit]}
`, webPort)
	if !attached() {
		t.Fatalf("no program at %s, though connections are held there", out)
	}
	for _, step := range []struct {
		policy string
		want   bool
	}{{hosts, false}, {string(before), true}} {
		if err := os.WriteFile(s.config, []byte(step.policy), 0o644); err != nil {
			t.Fatal(err)
		}
		s.signal(t, unix.SIGHUP)
		waitFor(t, fmt.Sprintf("program at %s: %v", out, step.want), func() bool { return attached() == step.want })
	}
}

// qdiscOf is the kind of a device's root qdisc.
func qdiscOf(t testing.TB, device string) string {
	t.Helper()
	link, err := netlink.LinkByName(device)
	if err != nil {
		t.Fatal(err)
	}
	list, err := netlink.QdiscList(link)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range list {
		if q.Attrs().Parent == netlink.HANDLE_ROOT {
			return q.Type()
		}
	}
	return ""
}

// toDevice binds sockets to a device, or to none.
func toDevice(device string) func(network, address string, c syscall.RawConn) error {
	if device == "" {
		return nil
	}
	return func(_, _ string, c syscall.RawConn) (err error) {
		if e := c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), device) }); e != nil {
			return e
		}
		return err
	}
}
