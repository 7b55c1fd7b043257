// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/egressd/egressd/policy"
)

// wrappers are the programs of bpf/egress_test.bpf.c.
type wrappers struct {
	headersPrograms
	named *ebpf.Map // holds the case of TestNamed
}

// loadWrappers loads the wrappers of bpf/egress_test.bpf.c on the maps of k.
func loadWrappers(t testing.TB, k *Kernel) *wrappers {
	t.Helper()
	spec, err := loadHeadersSpec()
	if err != nil {
		t.Fatal(err)
	}
	spec.Maps["ledger"].MaxEntries = k.objs.Ledger.MaxEntries()
	programs := new(wrappers)
	replace := map[string]*ebpf.Map{
		"control": k.objs.Control, "ledger": k.objs.Ledger, "ports": k.objs.Ports,
		"prefixes": k.objs.Prefixes, "prefix_ports": k.objs.PrefixPorts,
		"exit_sources": k.objs.ExitSources, "exit_devices": k.objs.ExitDevices, "exit_marks": k.objs.ExitMarks,
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replace})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(coll.Close)
	for name, p := range map[string]**ebpf.Program{
		"test_addr": &programs.TestAddr, "test_named": &programs.TestNamed, "test_exit": &programs.TestExit,
		"test_acquire": &programs.TestAcquire, "test_spin": &programs.TestSpin, "test_grown": &programs.TestGrown,
	} {
		*p = coll.Programs[name]
	}
	programs.named = coll.Maps["named_cases"]
	return programs
}

// loadHeadersSpec drops the hooks that the test object includes.
func loadHeadersSpec() (*ebpf.CollectionSpec, error) {
	spec, err := loadHeaders()
	if err != nil {
		return nil, err
	}
	for name := range spec.Programs {
		if !strings.HasPrefix(name, "test_") {
			delete(spec.Programs, name)
		}
	}
	return spec, nil
}

// run calls a wrapper with a case, which it changes in place.
func run[T any](t testing.TB, p *ebpf.Program, c *T) {
	t.Helper()
	if _, err := p.Run(&ebpf.RunOptions{Context: c, ContextOut: c}); err != nil {
		t.Fatal(err)
	}
}

// runNamed is run for TestNamed, a classifier.
func (w *wrappers) runNamed(t testing.TB, c *headersNamedCase) {
	t.Helper()
	if err := w.named.Put(uint32(0), c); err != nil {
		t.Fatal(err)
	}
	if _, err := w.TestNamed.Run(&ebpf.RunOptions{Data: make([]byte, 14)}); err != nil {
		t.Fatal(err)
	}
	if err := w.named.Lookup(uint32(0), c); err != nil {
		t.Fatal(err)
	}
}

func headerAddr(addr string) headersAddr {
	return headersAddr{Bytes: netip.MustParseAddr(addr).As16()}
}

func TestHeaderAddr(t *testing.T) {
	needRoot(t)
	h := loadWrappers(t, openKernel(t, Config{}))
	for _, tt := range []struct {
		addr                   string
		v4, local, token, zero uint32
	}{
		{addr: "192.0.2.1", v4: 1},
		{addr: "126.255.255.255", v4: 1},
		{addr: "127.0.0.1", v4: 1, local: 1},
		{addr: "127.255.255.255", v4: 1, local: 1},
		{addr: "128.0.0.0", v4: 1},
		{addr: "127.100.255.255", v4: 1, local: 1},
		{addr: "127.101.0.0", v4: 1, local: 1, token: 1},
		{addr: "127.101.255.255", v4: 1, local: 1, token: 1},
		{addr: "127.102.0.0", v4: 1, local: 1},
		{addr: "0.0.0.0", v4: 1, local: 1},
		{addr: "0.0.0.1", v4: 1},
		{addr: "169.253.255.255", v4: 1},
		{addr: "169.254.0.0", v4: 1, local: 1},
		{addr: "169.255.0.0", v4: 1},
		{addr: "::", local: 1, zero: 1},
		{addr: "::1", local: 1},
		{addr: "::2"},
		{addr: "2001:db8::1"},
		{addr: "fe7f:ffff::1"},
		{addr: "fe80::1", local: 1},
		{addr: "febf:ffff::1", local: 1},
		{addr: "fec0::1"},
		{addr: "::ffff:0:127.0.0.1"},
	} {
		c := headersAddrCase{Addr: headerAddr(tt.addr)}
		run(t, h.TestAddr, &c)
		if c.V4 != tt.v4 || c.Local != tt.local || c.Token != tt.token || c.Zero != tt.zero {
			t.Errorf("%s: got v4 %d local %d token %d zero %d, want %d %d %d %d",
				tt.addr, c.V4, c.Local, c.Token, c.Zero, tt.v4, tt.local, tt.token, tt.zero)
		}
	}
}

func TestHeaderNamed(t *testing.T) {
	needRoot(t)
	k := openKernel(t, Config{})
	h := loadWrappers(t, k)
	const (
		no     = 0
		yes    = 4
		local  = yes | 1
		closed = yes | 2
	)
	type want struct {
		dest  string
		named uint32
	}
	port := func(p uint16, local, closed bool) policy.PortRedirect {
		return policy.PortRedirect{Port: p, Local: local, FailClosed: closed}
	}
	prefix := func(p string, port uint16, closed bool) policy.PrefixRedirect {
		return policy.PrefixRedirect{Prefix: netip.MustParsePrefix(p), Port: port, FailClosed: closed}
	}
	// One policy after the other on the same maps, so each step also tests
	// that what the one before named is gone.
	for _, step := range []struct {
		name      string
		redirects policy.Redirects
		want      []want
	}{
		{"nothing", policy.Redirects{}, []want{{"192.0.2.1:80", no}, {"[2001:db8::1]:80", no}}},
		{"ports", policy.Redirects{Ports: []policy.PortRedirect{
			port(80, false, false), port(8080, true, false), port(443, false, true),
		}}, []want{
			{"192.0.2.1:80", yes}, {"[2001:db8::1]:80", yes}, {"192.0.2.1:81", no},
			{"127.0.0.1:80", no}, {"[::1]:80", no}, {"169.254.1.1:80", no}, {"[fe80::1]:80", no}, {"0.0.0.0:80", no}, {"[::]:80", no},
			{"127.0.0.1:8080", local}, {"[::1]:8080", local}, {"192.0.2.1:8080", local},
			{"192.0.2.1:443", closed}, {"127.0.0.1:443", no},
		}},
		{"nested prefixes", policy.Redirects{Prefixes: []policy.PrefixRedirect{
			prefix("10.0.0.0/8", 80, false), prefix("10.1.0.0/16", 81, true), prefix("10.1.2.0/24", 82, false),
			prefix("10.1.2.0/24", 83, false), prefix("2001:db8::/32", 80, false), prefix("127.0.0.0/8", 80, false),
		}}, []want{
			{"192.0.2.1:80", no}, {"192.0.2.1:8080", no},
			{"10.2.0.1:80", yes}, {"10.2.0.1:81", no},
			{"10.1.0.1:80", yes}, {"10.1.0.1:81", closed}, {"10.1.0.1:82", no},
			{"10.1.2.1:80", yes}, {"10.1.2.1:81", closed}, {"10.1.2.1:82", yes}, {"10.1.2.1:83", yes}, {"10.1.2.1:84", no},
			{"11.0.0.1:80", no}, {"[2001:db8:1::1]:80", yes}, {"[2001:db9::1]:80", no}, {"127.0.0.1:80", yes},
		}},
		{"outer prefix gone", policy.Redirects{Prefixes: []policy.PrefixRedirect{
			prefix("10.1.0.0/16", 81, false), prefix("10.1.2.0/24", 82, false),
		}}, []want{
			{"10.2.0.1:80", no}, {"10.1.0.1:80", no}, {"10.1.0.1:81", yes},
			{"10.1.2.1:80", no}, {"10.1.2.1:81", yes}, {"10.1.2.1:82", yes}, {"10.1.2.1:83", no},
		}},
		{"everything by prefix, flags of all", policy.Redirects{
			Ports:    []policy.PortRedirect{port(80, true, false)},
			Prefixes: []policy.PrefixRedirect{prefix("0.0.0.0/0", 80, true), prefix("192.0.2.1/32", 81, false)},
		}, []want{
			{"192.0.2.1:80", local | closed}, {"[2001:db8::1]:80", local}, {"192.0.2.1:81", yes}, {"192.0.2.2:81", no},
		}},
		{"nothing again", policy.Redirects{}, []want{{"192.0.2.1:80", no}, {"192.0.2.1:81", no}, {"10.1.2.1:82", no}}},
	} {
		if err := k.Apply(step.redirects); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		for _, w := range step.want {
			dest := netip.MustParseAddrPort(w.dest)
			c := headersNamedCase{Dest: headerAddr(dest.Addr().String()), Port: uint32(dest.Port())}
			h.runNamed(t, &c)
			if c.Named != w.named {
				t.Errorf("%s: %s: got %d, want %d", step.name, w.dest, c.Named, w.named)
			}
		}
	}
	for name, m := range map[string]*ebpf.Map{"ports": k.objs.Ports, "prefixes": k.objs.Prefixes, "prefix_ports": k.objs.PrefixPorts} {
		if n := entries(t, m); n != 0 {
			t.Errorf("map %s after the last policy: got %d entries, want 0", name, n)
		}
	}
}

func TestApplyRejects(t *testing.T) {
	needRoot(t)
	k := openKernel(t, Config{})
	good := policy.Redirects{Ports: []policy.PortRedirect{{Port: 80}}}
	if err := k.Apply(good); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []policy.Redirects{
		{Ports: []policy.PortRedirect{{Port: 0}}},
		{Prefixes: []policy.PrefixRedirect{{Prefix: netip.MustParsePrefix("10.0.0.0/8")}}},
		{Prefixes: []policy.PrefixRedirect{{Port: 80}}},
	} {
		if err := k.Apply(bad); err == nil {
			t.Errorf("%+v: got no error", bad)
		}
	}
	if n := entries(t, k.objs.Ports); n != 1 {
		t.Errorf("ports after refused policies: got %d, want the 1 of before", n)
	}
}

// entries counts what is in a hash.
func entries(t testing.TB, m *ebpf.Map) int {
	t.Helper()
	var key, value []byte
	n := 0
	it := m.Iterate()
	for it.Next(&key, &value) {
		n++
	}
	if err := it.Err(); err != nil {
		t.Fatalf("count %s: %v", m, err)
	}
	return n
}

func TestHeaderExit(t *testing.T) {
	needRoot(t)
	k := openKernel(t, Config{})
	h := loadWrappers(t, k)
	netns, err := NetnsCookie()
	if err != nil {
		t.Fatal(err)
	}
	lo := deviceIndex("lo")
	if lo == 0 {
		t.Fatal("no device lo")
	}
	exits := []policy.Exit{
		{Name: "gone", Interface: "no-such-device"},
		{Name: "alias", Source: netip.MustParseAddr("203.0.113.7")},
		{Name: "six", Source: netip.MustParseAddr("2001:db8::7")},
		{Name: "lo", Interface: "lo"},
		{Name: "mark", Mark: 7},
		{Name: "late", Source: netip.MustParseAddr("203.0.113.7")},
	}
	check := func(step string, source string, netns uint64, ifindex, mark uint32, want string) {
		t.Helper()
		c := headersExitCase{Netns: netns, Ifindex: ifindex, Mark: mark}
		if source != "" {
			c.Source = headerAddr(source)
		}
		run(t, h.TestExit, &c)
		if got := k.exitName(c.Exit); got != want {
			t.Errorf("%s: source %q device %d mark %d: got %s, want %s", step, source, ifindex, mark, got, want)
		}
	}
	check("no exits", "203.0.113.7", netns, lo, 7, policy.DirectExit)
	if err := k.Apply(policy.Redirects{Exits: exits}); err != nil {
		t.Fatal(err)
	}
	check("all", "", netns, 0, 0, policy.DirectExit)
	check("all", "203.0.113.7", netns, 0, 0, "alias")
	check("all", "203.0.113.8", netns, 0, 0, policy.DirectExit)
	check("all", "2001:db8::7", netns, 0, 0, "six")
	check("all", "", netns, lo, 0, "lo")
	check("all", "", netns+1, lo, 0, policy.DirectExit)
	check("all", "", netns, 0, 7, "mark")
	check("first in file order", "203.0.113.7", netns, lo, 7, "alias")
	check("first in file order", "", netns, lo, 7, "lo")

	id := k.exits.ids["mark"]
	if err := k.Apply(policy.Redirects{Exits: []policy.Exit{exits[4], exits[5]}}); err != nil {
		t.Fatal(err)
	}
	check("reordered", "203.0.113.7", netns, lo, 7, "mark")
	check("reordered", "203.0.113.7", netns, lo, 0, "late")
	check("reordered", "2001:db8::7", netns, lo, 0, policy.DirectExit)
	if got := k.exits.ids["mark"]; got != id {
		t.Errorf("id of a kept exit: got %d, want %d as before", got, id)
	}
}

func TestHeaderGrown(t *testing.T) {
	needRoot(t)
	h := loadWrappers(t, openKernel(t, Config{}))
	for _, tt := range []struct{ seen, total, grown, after uint64 }{
		{0, 0, 0, 0},
		{0, 10, 10, 10},
		{10, 10, 0, 10},
		{10, 25, 15, 25},
		{25, 10, 0, 25}, // an older reading adds nothing and takes nothing
	} {
		c := headersGrownCase{Seen: tt.seen, Total: tt.total}
		run(t, h.TestGrown, &c)
		if c.Grown != tt.grown || c.Seen != tt.after {
			t.Errorf("grown(%d, %d): got %d and %d, want %d and %d", tt.seen, tt.total, c.Grown, c.Seen, tt.grown, tt.after)
		}
	}
}
