// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// greeter is a server that speaks first, and writes down when it was reached.
type greeter struct {
	port int
	mu   sync.Mutex
	at   []time.Time
}

// newGreeter listens at all addresses of loopback.
func newGreeter(t testing.TB) *greeter {
	t.Helper()
	l, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	g := &greeter{port: l.Addr().(*net.TCPAddr).Port}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			g.mu.Lock()
			g.at = append(g.at, time.Now())
			g.mu.Unlock()
			go func() {
				defer conn.Close()
				fmt.Fprintf(conn, "220 %s\r\n", conn.RemoteAddr())
				conn.Read(make([]byte, 1))
			}()
		}
	}()
	return g
}

func (g *greeter) times() []time.Time {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.at)
}

// callers connect at once and print what came of each: "own" where the server
// saw the caller's own socket, "other" where it saw another, or an errno.
const callers = `
import errno, os, socket, sys, threading
host, port, n, device = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
begin = threading.Barrier(n)
def call():
    s = socket.socket()
    if device:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode() + b"\0")
    begin.wait()
    try:
        s.settimeout(30)
        s.connect((host, port))
        own = "220 %s:%d" % s.getsockname()
        came = "own" if s.recv(99).decode().strip() == own else "other"
    except OSError as e:
        came = errno.errorcode.get(e.errno, str(e))
    os.write(1, (came + "\n").encode())
all = [threading.Thread(target=call) for _ in range(n)]
for t in all: t.start()
for t in all: t.join()
`

// call runs callers in scope and counts what came of them.
func call(t testing.TB, scope *group, host string, port, n int, device string) map[string]int {
	t.Helper()
	p := start(t, how{in: scope}, "python3", "-c", callers, host, strconv.Itoa(port), strconv.Itoa(n), device)
	p.mustSucceed(t, 60*time.Second)
	counts := map[string]int{}
	for _, line := range strings.Fields(p.stdout.String()) {
		counts[line]++
	}
	return counts
}

// paced checks that nothing came before its turn.
func paced(t testing.TB, times []time.Time, since time.Time, gap time.Duration) {
	t.Helper()
	for i, at := range times {
		if got, least := at.Sub(since), time.Duration(i)*gap; got < least {
			t.Errorf("connection %d was there after %v, want %v at least", i, got, least)
		}
	}
}

// Connections that have room go without the proxy; on a host without fq the
// proxy holds the others; what it cannot hold is refused.
func TestPlane(t *testing.T) {
	t.Parallel()
	scope := newGroup(t)
	g, impatient := newGreeter(t), newGreeter(t)
	d := newDaemon(t, scope, fmt.Sprintf(`
  - {name: db, match: {hosts: [127.0.0.0/8], ports: [%d]}, unit: connections, rate: 4/s, per: [destination]}
  - {name: hot, match: {hosts: [127.0.0.0/8], ports: [%d]}, unit: connections, rate: 1/s, per: [], queue: {max_wait: 0s}, on_full: drop}`,
		g.port, impatient.port))
	since := time.Now()
	if got := call(t, scope, "127.0.0.1", g.port, 5, ""); got["own"] != 1 || got["other"] != 4 {
		t.Errorf("got %v, want one by its own socket and four by the proxy's", got)
	}
	if times := g.times(); len(times) != 5 {
		t.Errorf("the server was reached %d times, want 5", len(times))
	} else {
		paced(t, times, since, 250*time.Millisecond)
	}
	// Another destination has a lane of its own.
	if got := call(t, scope, "127.0.0.2", g.port, 1, ""); got["own"] != 1 {
		t.Errorf("got %v, want one by its own socket", got)
	}
	// The proxy has no socket that is bound to the device.
	waitFor(t, 20*time.Second, "room for a caller bound to a device", func() bool {
		return call(t, scope, "127.0.0.1", g.port, 1, "lo")["own"] == 1
	})
	if got := call(t, scope, "127.0.0.2", g.port, 3, "lo"); got["own"] != 1 || got["ECONNREFUSED"] != 2 {
		t.Errorf("got %v, want one by its own socket and two refused", got)
	}
	if got := call(t, scope, "127.0.0.1", impatient.port, 3, ""); got["own"] != 1 || got["ETIMEDOUT"] != 2 {
		t.Errorf("got %v, want one by its own socket and two that seem to have waited", got)
	}
	series := parseMetrics(t, d.metrics(t))
	for name, least := range map[string]float64{
		`egressd_connections_total{destination="127.0.0.0/8",exit="direct",outcome="granted"}`:    4,
		`egressd_connections_total{destination="127.0.0.0/8",exit="direct",outcome="redirected"}`: 4,
		`egressd_connections_total{destination="127.0.0.0/8",exit="direct",outcome="refused"}`:    4,
	} {
		if got := series[name]; got < least {
			t.Errorf("%s = %v, want %v at least", name, got, least)
		}
	}
	waitFor(t, 10*time.Second, "the lanes of both budgets", func() bool {
		var lanes []lane
		d.askJSON(t, &lanes, "lanes")
		var ids []string
		for _, l := range lanes {
			ids = append(ids, l.Lane)
		}
		return slices.Equal(ids, []string{"db/127.0.0.1/-", "db/127.0.0.2/-", "hot/-/-"})
	})
	// By the operator's hand a lane closes for everybody.
	d.ask(t, "cooldown", "set", "db/127.0.0.2/-", "1h")
	if got := call(t, scope, "127.0.0.2", g.port, 2, "lo"); got["ECONNREFUSED"] != 2 {
		t.Errorf("got %v from a closed lane, want two refused", got)
	}
}

// A lane that an origin closed stops those who go around the proxy, too.
func TestPlaneGuardsClosedLanes(t *testing.T) {
	t.Parallel()
	scope := newGroup(t)
	o := newOrigin(t)
	d := newDaemon(t, scope, fmt.Sprintf("  - {name: web, match: {hosts: [127.0.0.1], ports: [%d]}, rate: 100/s, per: [destination]}", o.port))
	get := []string{"curl", "-s", "-o", "/dev/null", "-w", "%{http_code} %{errormsg}", "--max-time", "20", "--interface", "lo", "http://" + o.addr()}
	direct := func() string {
		p := start(t, how{in: scope}, get...)
		p.wait(t, 30*time.Second)
		return strings.TrimSpace(p.stdout.String())
	}
	if got := direct(); got != "200" {
		t.Fatalf("around the proxy: got %q, want 200", got)
	}
	o.limitNext(time.Hour)
	p := start(t, how{in: scope}, "curl", "-s", "-o", "/dev/null", "--max-time", "20", "http://"+o.addr())
	p.wait(t, 30*time.Second)
	waitFor(t, 10*time.Second, "the lane to close", func() bool { return !d.lane(t).Open })
	seen := o.count()
	if got := direct(); !strings.HasPrefix(got, "000") {
		t.Errorf("around the proxy, while the lane is closed: got %q, want to be refused", got)
	}
	if got := o.count(); got != seen {
		t.Errorf("the origin got %d requests more while its lane was closed", got-seen)
	}
	d.ask(t, "cooldown", "clear", d.lane(t).Lane)
	if got := direct(); got != "200" {
		t.Errorf("around the proxy, with the lane open again: got %q, want 200", got)
	}
}

// asker asks a resolver for the address of a name, as clients do that do not
// leave it to the C library, and connects to it.
const asker = `
import socket, struct, sys
server, name, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
q = struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + b"".join(bytes([len(l)]) + l.encode() for l in name.split(".")) + b"\0" + struct.pack(">HH", 1, 1)
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.settimeout(10)
u.sendto(q, (server, 53))
answer = u.recv(512)
address = socket.inet_ntoa(answer[-4:])
import time; time.sleep(0.2)
for _ in range(int(sys.argv[4])):
    s = socket.create_connection((address, port), 30)
    own = "220 %s:%d" % s.getsockname()
    print("own" if s.recv(99).decode().strip() == own else "other", flush=True)
`

// resolver answers at port 53 of a loopback address, where nobody else does.
func resolver(t testing.TB, names map[string]netip.Addr) string {
	t.Helper()
	var conn net.PacketConn
	var err error
	for i := range 20 { // tests of another run may have one
		if conn, err = net.ListenPacket("udp4", fmt.Sprintf("127.0.53.%d:53", 1+i)); err == nil {
			break
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buf := make([]byte, 512)
		for {
			n, peer, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
				continue
			}
			q := m.Questions[0]
			m.Response = true
			if addr, ok := names[strings.TrimSuffix(q.Name.String(), ".")]; ok {
				m.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 60},
					Body:   &dnsmessage.AResource{A: addr.As4()},
				}}
			}
			if text, err := m.Pack(); err == nil {
				conn.WriteTo(text, peer)
			}
		}
	}()
	return conn.LocalAddr().(*net.UDPAddr).IP.String()
}

// Names that clients look up decide without the proxy; two names of one
// address, of which one has no budget, leave it to the proxy.
func TestPlaneNames(t *testing.T) {
	t.Parallel()
	scope := newGroup(t)
	g := newGreeter(t)
	d := newDaemon(t, scope, fmt.Sprintf(
		"  - {name: shop, match: {hosts: [shop.test], ports: [%d]}, unit: connections, rate: 100/s, burst: 10}", g.port))
	server := resolver(t, map[string]netip.Addr{
		"shop.test":  netip.MustParseAddr("127.0.7.1"),
		"other.test": netip.MustParseAddr("127.0.7.1"),
		"solo.test":  netip.MustParseAddr("127.0.7.2"),
	})
	ask := func(name string) []string {
		p := start(t, how{in: scope}, "python3", "-c", asker, server, name, strconv.Itoa(g.port), "2")
		p.mustSucceed(t, 60*time.Second)
		return strings.Fields(p.stdout.String())
	}
	// The address alone says nothing.
	if got := call(t, scope, "127.0.7.1", g.port, 1, ""); got["other"] != 1 {
		t.Errorf("an address without a name: got %v, want the proxy", got)
	}
	if got := ask("shop.test"); !slices.Equal(got, []string{"own", "own"}) {
		t.Errorf("a name with a budget: got %v, want the callers' own sockets", got)
	}
	var lanes []lane
	waitFor(t, 10*time.Second, "the lane of the name", func() bool {
		d.askJSON(t, &lanes, "lanes")
		return len(lanes) > 0
	})
	if len(lanes) != 1 || lanes[0].Lane != "shop/shop.test/direct" || lanes[0].Granted != 2 {
		t.Errorf("got lanes %+v, want that of shop.test with two granted", lanes)
	}
	if got := ask("solo.test"); !slices.Equal(got, []string{"other", "other"}) {
		t.Errorf("a name without a budget: got %v, want the proxy", got)
	}
	if got := ask("other.test"); !slices.Equal(got, []string{"other", "other"}) {
		t.Errorf("an address with two names: got %v, want the proxy", got)
	}
}
