// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"fmt"
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
		"prefixes": k.objs.Prefixes, "prefix_ports": k.objs.PrefixPorts, "areas": k.objs.Areas,
		"exit_sources": k.objs.ExitSources, "exit_devices": k.objs.ExitDevices, "exit_marks": k.objs.ExitMarks,
		"exit_uids": k.objs.ExitUids, "endpoints": k.objs.Endpoints,
	}
	coll, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: replace})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(coll.Close)
	for name, p := range map[string]**ebpf.Program{
		"test_addr": &programs.TestAddr, "test_named": &programs.TestNamed, "test_exit": &programs.TestExit,
		"test_area": &programs.TestArea, "test_acquire": &programs.TestAcquire, "test_spin": &programs.TestSpin, "test_grown": &programs.TestGrown,
		"test_step": &programs.TestStep,
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
		addr                          string
		v4, local, token, zero, group uint32
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
		{addr: "223.255.255.255", v4: 1},
		{addr: "224.0.0.0", v4: 1, group: 1},
		{addr: "255.255.255.255", v4: 1, group: 1},
		{addr: "::", local: 1, zero: 1},
		{addr: "::1", local: 1},
		{addr: "::2"},
		{addr: "2001:db8::1"},
		{addr: "fe7f:ffff::1"},
		{addr: "fe80::1", local: 1},
		{addr: "febf:ffff::1", local: 1},
		{addr: "fec0::1"},
		{addr: "feff::1"},
		{addr: "ff02::1", group: 1},
		{addr: "::ffff:0:127.0.0.1"},
	} {
		c := headersAddrCase{Addr: headerAddr(tt.addr)}
		run(t, h.TestAddr, &c)
		if c.V4 != tt.v4 || c.Local != tt.local || c.Token != tt.token || c.Zero != tt.zero || c.Group != tt.group {
			t.Errorf("%s: got v4 %d local %d token %d zero %d group %d, want %d %d %d %d %d",
				tt.addr, c.V4, c.Local, c.Token, c.Zero, c.Group, tt.v4, tt.local, tt.token, tt.zero, tt.group)
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
	for name, m := range map[string]*ebpf.Map{"prefixes": k.objs.Prefixes, "prefix_ports": k.objs.PrefixPorts} {
		if n := entries(t, m); n != 0 {
			t.Errorf("map %s after the last policy: got %d entries, want 0", name, n)
		}
	}
	if n := portsNamed(t, k); n != 0 {
		t.Errorf("ports after the last policy: got %d, want 0", n)
	}
}

func TestApplyRejects(t *testing.T) {
	needRoot(t)
	k := openKernel(t, Config{})
	good := policy.Redirects{Ports: []policy.PortRedirect{{Port: 80}}, Exits: manyUsers(maxUIDs / maxExitUIDs)}
	if err := k.Apply(good); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []policy.Redirects{
		{Ports: []policy.PortRedirect{{Port: 0}}},
		{Prefixes: []policy.PrefixRedirect{{Prefix: netip.MustParsePrefix("10.0.0.0/8")}}},
		{Prefixes: []policy.PrefixRedirect{{Port: 80}}},
		{Endpoints: []policy.Endpoint{{Exit: "gw"}}},
		{Endpoints: []policy.Endpoint{{Addr: netip.MustParseAddrPort("203.0.113.9:0"), Exit: "gw"}}},
		{Endpoints: []policy.Endpoint{{Addr: netip.MustParseAddrPort("0.0.0.0:80"), Exit: "gw"}}},
		{Endpoints: []policy.Endpoint{{Addr: netip.MustParseAddrPort("203.0.113.9:80")}}},
		{Endpoints: []policy.Endpoint{{Addr: netip.MustParseAddrPort("203.0.113.9:80"), Exit: policy.DirectExit}}},
		{Endpoints: []policy.Endpoint{{Addr: netip.MustParseAddrPort("127.101.0.1:80"), Exit: "gw"}}},
		{Exits: []policy.Exit{{Name: "users", UIDs: policy.UIDRange{First: 2, Last: 1, Set: true}}}},
		{Exits: []policy.Exit{{Name: "users", UIDs: policy.UIDRange{First: 1000, Last: 1000 + maxExitUIDs, Set: true}}}},
		{Exits: []policy.Exit{{Name: "users", UIDs: policy.UIDRange{Last: 1<<32 - 1, Set: true}}}},
		{Exits: manyUsers(maxUIDs/maxExitUIDs + 1)},
	} {
		if err := k.Apply(bad); err == nil {
			t.Errorf("%+v: got no error", bad)
		}
	}
	if n := portsNamed(t, k); n != 1 {
		t.Errorf("ports after refused policies: got %d, want the 1 of before", n)
	}
	if n := entries(t, k.objs.ExitUids); n != maxUIDs {
		t.Errorf("users after refused policies: got %d, want the %d of before", n, maxUIDs)
	}
	if n := entries(t, k.objs.Endpoints); n != 0 {
		t.Errorf("endpoints after refused policies: got %d, want none as before", n)
	}
}

// manyUsers is n exits with as many users each as one may have.
func manyUsers(n int) []policy.Exit {
	exits := make([]policy.Exit, n)
	for i := range exits {
		first := uint32(i * maxExitUIDs)
		exits[i] = policy.Exit{
			Name: fmt.Sprintf("users-%d", i),
			UIDs: policy.UIDRange{First: first, Last: first + maxExitUIDs - 1, Set: true},
		}
	}
	return exits
}

// portsNamed counts the ports that are named at any address.
func portsNamed(t testing.TB, k *Kernel) int {
	t.Helper()
	var (
		port  uint32
		value egressNamed
	)
	n := 0
	it := k.objs.Ports.Iterate()
	for it.Next(&port, &value) {
		if value != (egressNamed{}) {
			n++
		}
	}
	if err := it.Err(); err != nil {
		t.Fatal(err)
	}
	return n
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
		{Name: "users", UIDs: policy.UIDRange{First: 1000, Last: 1001, Set: true}},
		{Name: "root", UIDs: policy.UIDRange{Set: true}},
		{Name: "others", UIDs: policy.UIDRange{First: 1001, Last: 1002, Set: true}},
		{Name: "same", SameAs: "alias", Mark: 8},
		{Name: "top", UIDs: policy.UIDRange{First: 1<<32 - 1, Last: 1<<32 - 1, Set: true}},
		{Name: "lo again", Interface: "lo", Rebind: true},
		{Name: "proxy", Proxy: &policy.Proxy{Host: "203.0.113.9", First: 8000, Last: 8000}},
	}
	type traits struct {
		source        string
		netns         uint64
		ifindex, mark uint32
		uid           uint32
	}
	const nobody = 65534
	check := func(step string, w traits, want string) headersExitCase {
		t.Helper()
		c := headersExitCase{}
		c.Traits.Netns, c.Traits.Ifindex, c.Traits.Mark, c.Traits.Uid = w.netns, w.ifindex, w.mark, w.uid
		if w.source != "" {
			c.Traits.Source = headerAddr(w.source)
		}
		run(t, h.TestExit, &c)
		if got := k.exitName(c.Exit); got != want {
			t.Errorf("%s: %+v: got %s, want %s", step, w, got, want)
		}
		return c
	}
	all := traits{"203.0.113.7", netns, lo, 7, 1000}
	if c := check("no exits", all, policy.DirectExit); c.Rebind != 0 {
		t.Error("no exits: a device is rebound")
	}
	if err := k.Apply(policy.Redirects{Exits: exits}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		traits
		want string
	}{
		{traits{uid: nobody}, policy.DirectExit},
		{traits{source: "203.0.113.7", uid: nobody}, "alias"},
		{traits{source: "203.0.113.8", uid: nobody}, policy.DirectExit},
		{traits{source: "2001:db8::7", uid: nobody}, "six"},
		{traits{netns: netns, ifindex: lo, uid: nobody}, "lo"},
		{traits{netns: netns + 1, ifindex: lo, uid: nobody}, policy.DirectExit},
		{traits{mark: 7, uid: nobody}, "mark"},
		{traits{mark: 8, uid: nobody}, "alias"},
		{traits{uid: 999}, policy.DirectExit},
		{traits{uid: 1000}, "users"},
		{traits{uid: 1001}, "users"},
		{traits{uid: 1002}, "others"},
		{traits{uid: 1003}, policy.DirectExit},
		{traits{uid: 0}, "root"},
		{traits{uid: 1<<32 - 1}, "top"},
		{all, "alias"},
		{traits{netns: netns, ifindex: lo, mark: 7, uid: 1000}, "lo"},
		{traits{mark: 7, uid: 1000}, "mark"},
		{traits{mark: 8, uid: 1000}, "users"},
	} {
		if c := check("all", tt.traits, tt.want); (c.Rebind != 0) != (tt.ifindex == lo && tt.netns == netns) {
			t.Errorf("%+v: rebind %d", tt.traits, c.Rebind)
		}
	}

	id := k.exits.ids["mark"]
	if err := k.Apply(policy.Redirects{Exits: []policy.Exit{exits[4], exits[5], exits[3]}}); err != nil {
		t.Fatal(err)
	}
	check("reordered", all, "mark")
	check("reordered", traits{source: "203.0.113.7", uid: 1000}, "late")
	check("reordered", traits{source: "2001:db8::7", uid: 1000}, policy.DirectExit)
	if c := check("reordered", traits{netns: netns, ifindex: lo}, "lo"); c.Rebind != 0 {
		t.Error("the device is still rebound")
	}
	if got := k.exits.ids["mark"]; got != id {
		t.Errorf("id of a kept exit: got %d, want %d as before", got, id)
	}
	if n := entries(t, k.objs.ExitUids); n != 0 {
		t.Errorf("users after their exits are gone: got %d entries, want 0", n)
	}
}

func TestHeaderEndpoint(t *testing.T) {
	needRoot(t)
	k := openKernel(t, Config{})
	h := loadWrappers(t, k)
	at := func(addr, exit string) policy.Endpoint {
		return policy.Endpoint{Addr: netip.MustParseAddrPort(addr), Exit: exit}
	}
	exits := []policy.Exit{{Name: "gw"}, {Name: "other", SameAs: "shared"}}
	// The sets follow one another on the same map.
	for _, step := range []struct {
		name      string
		endpoints []policy.Endpoint
		want      map[string]string
	}{
		{"none", nil, map[string]string{"203.0.113.9:8000": ""}},
		{
			"some",
			[]policy.Endpoint{
				at("203.0.113.9:8000", "gw"), at("203.0.113.9:8001", "gw"), at("[2001:db8::9]:8000", "shared"),
				at("127.0.0.77:3128", "shared"), at("203.0.113.9:8000", "shared"),
				at("[::ffff:203.0.113.10]:8000", "gw"),
			},
			map[string]string{
				"203.0.113.9:8000": "gw", "203.0.113.9:8001": "gw", "203.0.113.9:8002": "", "203.0.113.8:8000": "",
				"[2001:db8::9]:8000": "shared", "[2001:db8::9]:8001": "", "127.0.0.77:3128": "shared", "127.0.0.1:3128": "",
				"203.0.113.10:8000": "gw",
			},
		},
		{
			"moved",
			[]policy.Endpoint{at("203.0.113.9:8001", "gw"), at("198.51.100.1:8000", "gw"), at("127.0.0.77:3128", "gw")},
			map[string]string{
				"203.0.113.9:8000": "", "203.0.113.9:8001": "gw", "198.51.100.1:8000": "gw", "127.0.0.77:3128": "gw",
				"[2001:db8::9]:8000": "",
			},
		},
		{"gone", nil, map[string]string{"203.0.113.9:8001": ""}},
	} {
		if err := k.Apply(policy.Redirects{Exits: exits, Endpoints: step.endpoints}); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		for addr, want := range step.want {
			dest := netip.MustParseAddrPort(addr)
			c := headersExitCase{Dest: headerAddr(dest.Addr().String()), Port: uint32(dest.Port())}
			run(t, h.TestExit, &c)
			got := ""
			if c.Behind != 0 {
				got = k.exitName(c.Behind)
			}
			if got != want {
				t.Errorf("%s: %s: got exit %q, want %q", step.name, addr, got, want)
			}
		}
	}
	if n := entries(t, k.objs.Endpoints); n != 0 || k.control.Endpoints != 0 {
		t.Errorf("endpoints left: got %d and a count of %d, want none", n, k.control.Endpoints)
	}
}

// One full set of endpoints takes the place of another without a gap.
func TestManyEndpoints(t *testing.T) {
	needRoot(t)
	k := openKernel(t, Config{})
	h := loadWrappers(t, k)
	set := func(first netip.Addr, n int) []policy.Endpoint {
		list := make([]policy.Endpoint, 0, n)
		for addr := first; len(list) < n; addr = addr.Next() {
			for port := uint16(10000); port < 20000 && len(list) < n; port++ {
				list = append(list, policy.Endpoint{Addr: netip.AddrPortFrom(addr, port), Exit: "gw"})
			}
		}
		return list
	}
	for _, first := range []string{"203.0.113.1", "198.51.100.1"} {
		list := set(netip.MustParseAddr(first), maxEndpoints)
		if err := k.Apply(policy.Redirects{Endpoints: list}); err != nil {
			t.Fatal(err)
		}
		for _, e := range []policy.Endpoint{list[0], list[len(list)-1]} {
			c := headersExitCase{Dest: headerAddr(e.Addr.Addr().String()), Port: uint32(e.Addr.Port())}
			run(t, h.TestExit, &c)
			if got := k.exitName(c.Behind); got != "gw" {
				t.Errorf("%s: got exit %s, want gw", e.Addr, got)
			}
		}
	}
	more := set(netip.MustParseAddr("203.0.113.1"), maxEndpoints+1)
	if err := k.Apply(policy.Redirects{Endpoints: more}); err == nil || !strings.Contains(err.Error(), "narrow the port ranges") {
		t.Errorf("one endpoint too many: got %v, want an error with the remedy", err)
	}
	if got := k.control.Endpoints; got != maxEndpoints {
		t.Errorf("endpoints after a refused set: got %d, want %d as before", got, maxEndpoints)
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
