// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/cmd/egressd/internal/cgroup"
	"github.com/egressd/egressd/loader"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	nametable "github.com/egressd/egressd/policy/names"
	"github.com/egressd/egressd/userspace/mono"
)

// listens is a client that says its port and takes what comes, with a word for each.
const listens = `
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("127.0.0.1", 0))
print(s.getsockname()[1], flush=True)
while True:
    s.sendto(b"!", s.recvfrom(65536)[1])
`

// answers says that a name has addresses.
func answers(t *testing.T, name string, addrs ...string) []byte {
	t.Helper()
	host := dnsmessage.MustNewName(name + ".")
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{Response: true},
		Questions: []dnsmessage.Question{{Name: host, Type: dnsmessage.TypeA, Class: dnsmessage.ClassINET}},
	}
	for _, addr := range addrs {
		m.Answers = append(m.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: host, Class: dnsmessage.ClassINET, TTL: 60},
			Body:   &dnsmessage.AResource{A: netip.MustParseAddr(addr).As4()},
		})
	}
	msg, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return msg
}

// policyFor is a policy with a budget for hosts.
func policyFor(exclude []string, hosts ...policy.HostPattern) *policy.Policy {
	b := &policy.Budget{Name: "b", Per: policy.PerDestination, Match: policy.Match{Hosts: hosts, Ports: []uint16{443}}}
	return &policy.Policy{Budgets: []*policy.Budget{b}, Scope: policy.Scope{Exclude: exclude}}
}

// The names of addresses come and go with the answers that a process in the
// scope receives, as far as the policy has use for them.
func TestDNSNames(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	// Port 53 of a network namespace of its own, which ends with the thread.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	server, err := net.ListenPacket("udp4", "127.0.0.1:53")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	group, client := listener(t)

	clock, err := mono.NewClock()
	if err != nil {
		t.Fatal(err)
	}
	var later atomic.Int64
	d := newDNSNames(slog.New(slog.DiscardHandler), policy.Scope{Cgroups: []string{group}}, func() ledger.Time {
		return clock.Now().Add(time.Duration(later.Load()))
	})
	var mu sync.Mutex
	told := map[string][]string{}
	tellings := 0
	d.changed = func(addr netip.Addr, names []string) {
		mu.Lock()
		defer mu.Unlock()
		told[addr.String()] = names
		tellings++
	}
	known := func(what string, want map[string][]string) {
		t.Helper()
		within(t, what, func() bool {
			mu.Lock()
			defer mu.Unlock()
			for _, names := range told {
				slices.Sort(names)
			}
			return reflect.DeepEqual(told, want)
		})
	}
	counts := func() DNSCounts {
		t.Helper()
		c, err := d.count()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	// When the client has it, the hook has seen it.
	tell := func(msg []byte) {
		t.Helper()
		if _, err := server.WriteTo(msg, client); err != nil {
			t.Fatal(err)
		}
		if err := server.SetReadDeadline(time.Now().Add(15 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, _, err := server.ReadFrom(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.run(ctx) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := d.close(); err != nil {
			t.Error(err)
		}
	}()

	store := policy.HostPattern{Suffix: ".store.example"}
	d.apply(policyFor(nil, policy.HostPattern{Name: "192.0.2.1"}, policy.HostPattern{Any: true}))
	tell(answers(t, "a.store.example", "192.0.2.1"))
	if c := counts(); c != (DNSCounts{}) || d.reader != nil {
		t.Errorf("a policy without names: got %+v, want nothing", c)
	}

	d.apply(policyFor(nil, store))
	tell(answers(t, "a.store.example", "192.0.2.1", "192.0.2.2"))
	known("two addresses", map[string][]string{"192.0.2.1": {"a.store.example"}, "192.0.2.2": {"a.store.example"}})
	tell(answers(t, "B.store.example", "192.0.2.2"))
	known("another name", map[string][]string{"192.0.2.1": {"a.store.example"}, "192.0.2.2": {"a.store.example", "b.store.example"}})
	if got := d.names(netip.MustParseAddr("192.0.2.1")); !slices.Equal(got, []string{"a.store.example"}) {
		t.Errorf("got %q", got)
	}

	tell(answers(t, "192.0.2.7", "192.0.2.7"))
	tell(append(answers(t, "a.store.example", "192.0.2.9")[:33:33], 0xff))
	within(t, "what tells nothing to be counted", func() bool {
		c := counts()
		return c.Kernel.Sent == 4 && c.Learned == 2 && c.Nothing == 1 && c.Malformed == 1 && c.Table.Addresses == 2
	})

	mu.Lock()
	clear(told)
	mu.Unlock()
	d.retell()
	known("all that is known", map[string][]string{"192.0.2.1": {"a.store.example"}, "192.0.2.2": {"a.store.example", "b.store.example"}})

	// Out of the policy's sight, in either way.
	d.apply(policyFor([]string{group}, store))
	tell(answers(t, "c.store.example", "192.0.2.3"))
	d.apply(policyFor(nil, policy.HostPattern{Any: true}))
	tell(answers(t, "d.store.example", "192.0.2.4"))
	d.apply(policyFor(nil, store))
	tell(answers(t, "e.store.example", "192.0.2.5"))
	want := map[string][]string{
		"192.0.2.1": {"a.store.example"}, "192.0.2.2": {"a.store.example", "b.store.example"}, "192.0.2.5": {"e.store.example"},
	}
	known("what is asked for again", want)

	later.Store(int64(nametable.MinTTL))
	known("the end of all", map[string][]string{"192.0.2.1": {}, "192.0.2.2": {}, "192.0.2.5": {}})
	if c := counts(); c.Table.Addresses != 0 {
		t.Errorf("at the end: got %+v", c)
	}
}

// listener starts a client in a cgroup of its own, and says where it listens.
func listener(t *testing.T) (path string, client net.Addr) {
	t.Helper()
	mount, err := loader.CgroupRoot()
	if err != nil {
		t.Fatal(err)
	}
	own, err := cgroup.Own()
	if err != nil {
		t.Fatal(err)
	}
	group, err := cgroup.Create(mount, own, fmt.Sprintf("egressd-dnsnames-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	dir, err := group.Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := group.Kill(5 * time.Second); err != nil {
			t.Error(err)
		}
		dir.Close()
		if err := group.Remove(); err != nil {
			t.Error(err)
		}
	})
	cmd := exec.Command("python3", "-c", listens)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	port, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	addr, err := net.ResolveUDPAddr("udp4", "127.0.0.1:"+strings.TrimSpace(port))
	if err != nil {
		t.Fatal(err)
	}
	return group.Path(), addr
}

// An address has a label if all its names lead to it.
func TestDNSLabel(t *testing.T) {
	d := newDNSNames(slog.New(slog.DiscardHandler), policy.Scope{}, func() ledger.Time { return 1 })
	labelOf := func(host string, dest netip.AddrPort) (string, bool) {
		label, _, ok := strings.Cut(host, "-")
		return label, ok && dest.Port() == 443
	}
	for _, tt := range []struct {
		names []string
		want  string
	}{
		{nil, ""},
		{[]string{"store-1"}, "store"},
		{[]string{"store-1", "store-2"}, "store"},
		{[]string{"store-1", "bank-1"}, ""},
		{[]string{"store-1", "unknown"}, ""},
		{[]string{"unknown", "store-1"}, ""},
		{[]string{"unknown"}, ""},
	} {
		d.table = nametable.New(nametable.Config{})
		addr := netip.MustParseAddr("192.0.2.1")
		for _, name := range tt.names {
			d.table.Learn(1, addr, name, time.Hour)
		}
		if got, ok := d.label(netip.AddrPortFrom(addr, 443), labelOf); got != tt.want || ok != (tt.want != "") {
			t.Errorf("%q: got %q, %t; want %q", tt.names, got, ok, tt.want)
		}
		if got, ok := d.label(netip.AddrPortFrom(addr, 80), labelOf); ok {
			t.Errorf("%q at another port: got %q", tt.names, got)
		}
	}
}

// What an address showed itself goes before what DNS says of it.
func TestNamesOfDNS(t *testing.T) {
	n := names{dns: func(dest netip.AddrPort) (string, bool) { return "by DNS", dest == addrA || dest == addrB }}
	n.saw(addrB, "shown")
	for addr, want := range map[netip.AddrPort]string{
		addrA: "by DNS", addrB: "shown", netip.MustParseAddrPort("192.0.2.3:443"): policy.OtherLabel,
	} {
		if got := n.label(addr); got != want {
			t.Errorf("%s: got %q, want %q", addr, got, want)
		}
	}
}
