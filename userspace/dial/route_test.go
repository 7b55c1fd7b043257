// SPDX-License-Identifier: Apache-2.0

package dial

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
)

// lab is two network namespaces with two paths between them, a and b. The
// client's main table prefers a; its table 100, to which rules lead by mark,
// user and port, knows b alone.
type lab struct {
	client   *Netns
	path     string // of the client's namespace
	a, b     uint32 // the client's devices
	listener *net.TCPListener
}

const (
	labMark  = 7
	labUser  = 65533
	labPort  = 4443
	labTable = 100
	labV4    = "10.55.9.9"
	labV6    = "fd55:9::9"
)

// inside runs f by a thread that is in the namespace, and ends with f.
func inside(t *testing.T, path string, f func() error) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread must not serve others
		ns, err := os.Open(path)
		if err == nil {
			defer ns.Close()
			err = unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET)
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatalf("in namespace %s: %v", path, err)
	}
}

func mustCIDR(s string) *net.IPNet {
	p := netip.MustParsePrefix(s)
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// up gives a device its addresses and turns it on.
func up(name string, addrs ...string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	for _, a := range addrs {
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: mustCIDR(a), Flags: unix.IFA_F_NODAD}); err != nil {
			return err
		}
	}
	return netlink.LinkSetUp(link)
}

// route makes one way to dest, in place of another of the same metric.
func route(dest, via string, table, metric int) error {
	return netlink.RouteReplace(&netlink.Route{
		Dst: mustCIDR(dest), Gw: net.ParseIP(via), Table: table, Priority: metric,
	})
}

func newLab(t *testing.T) *lab {
	t.Helper()
	needRoot(t)
	l := &lab{path: otherNetns(t)}
	far := otherNetns(t)
	inside(t, l.path, func() error {
		peer, err := os.Open(far)
		if err != nil {
			return err
		}
		defer peer.Close()
		for _, name := range []string{"a", "b"} {
			if err := netlink.LinkAdd(&netlink.Veth{
				LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name, PeerNamespace: netlink.NsFd(peer.Fd()),
			}); err != nil {
				return err
			}
		}
		return nil
	})
	inside(t, far, func() error {
		if err := errors.Join(
			up("lo", labV4+"/32", labV6+"/128"),
			up("a", "10.55.1.2/24", "fd55:1::2/64"), up("b", "10.55.2.2/24", "fd55:2::2/64"),
		); err != nil {
			return err
		}
		ln, err := net.Listen("tcp", "[::]:4443")
		if err != nil {
			return err
		}
		l.listener = ln.(*net.TCPListener)
		return nil
	})
	t.Cleanup(func() { l.listener.Close() })
	inside(t, l.path, func() error {
		err := errors.Join(
			up("lo"),
			up("a", "10.55.1.1/24", "10.55.1.11/24", "fd55:1::1/64"), up("b", "10.55.2.1/24", "10.55.2.11/24", "fd55:2::1/64"),
		)
		for _, w := range []struct {
			dest, via     string
			table, metric int
		}{
			{labV4 + "/32", "10.55.1.2", unix.RT_TABLE_MAIN, 10}, {labV4 + "/32", "10.55.2.2", unix.RT_TABLE_MAIN, 20},
			{labV6 + "/128", "fd55:1::2", unix.RT_TABLE_MAIN, 10}, {labV6 + "/128", "fd55:2::2", unix.RT_TABLE_MAIN, 20},
			{labV4 + "/32", "10.55.2.2", labTable, 10}, {labV6 + "/128", "fd55:2::2", labTable, 10},
		} {
			err = errors.Join(err, route(w.dest, w.via, w.table, w.metric))
		}
		for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
			byMark, byUser := netlink.NewRule(), netlink.NewRule()
			byMark.Mark = labMark
			byUser.UIDRange = netlink.NewRuleUIDRange(labUser, labUser)
			for _, rule := range []*netlink.Rule{byMark, byUser} {
				rule.Family, rule.Table = family, labTable
				err = errors.Join(err, netlink.RuleAdd(rule))
			}
		}
		// Answers come by the path that the main table does not name. These
		// are settings of the namespace, which a new one has from the host.
		for _, name := range []string{"all", "a", "b"} {
			err = errors.Join(err, os.WriteFile("/proc/sys/net/ipv4/conf/"+name+"/rp_filter", []byte("0"), 0))
		}
		for name, index := range map[string]*uint32{"a": &l.a, "b": &l.b} {
			link, e := netlink.LinkByName(name)
			if err = errors.Join(err, e); e == nil {
				*index = uint32(link.Attrs().Index)
			}
		}
		return err
	})
	var err error
	if l.client, err = OpenNetns(l.path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.client.Release)
	return l
}

// seen is the address that the origin sees of the next connection.
func (l *lab) seen(t *testing.T) netip.Addr {
	t.Helper()
	if err := l.listener.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	conn, err := l.listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	return conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
}

// native connects as the client of f itself would, and says what the origin
// sees.
func (l *lab) native(t *testing.T, f *policy.Flow) netip.Addr {
	t.Helper()
	inside(t, l.path, func() error {
		if _, err := unix.SetfsuidRetUid(int(f.UID)); err != nil { // of this thread alone
			return err
		}
		family := unix.AF_INET6
		if f.Dest.Addr().Is4() {
			family = unix.AF_INET
		}
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 10}) // of connect()
		if f.Mark != 0 {
			err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, int(f.Mark)))
		}
		if f.Ifindex != 0 {
			err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, int(f.Ifindex)))
		}
		if f.Source.IsValid() {
			err = errors.Join(err, unix.Bind(fd, sockaddr(netip.AddrPortFrom(f.Source, 0))))
		}
		return errors.Join(err, unix.Connect(fd, sockaddr(f.Dest)))
	})
	return l.seen(t)
}

// route asks for the route of f.
func (l *lab) route(t *testing.T, f *policy.Flow) Route {
	t.Helper()
	r, err := l.client.Route(f.Dest, f.Mark, f.UID, f.Ifindex, f.Source)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// dial connects in place of the client of f.
func (l *lab) dial(t *testing.T, f *policy.Flow) (fd int) {
	t.Helper()
	fd, err := Start(f, l.client)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := connected(t, fd); err != nil {
		t.Fatal(err)
	}
	return fd
}

// forget makes the router ask anew.
func (ns *Netns) forget() {
	ns.routes.mu.Lock()
	defer ns.routes.mu.Unlock()
	for key, kept := range ns.routes.kept {
		kept.until = time.Time{}
		ns.routes.kept[key] = kept
	}
}

func TestOriginSeesTheSameAddress(t *testing.T) {
	l := newLab(t)
	v4 := netip.AddrPortFrom(netip.MustParseAddr(labV4), labPort)
	v6 := netip.AddrPortFrom(netip.MustParseAddr(labV6), labPort)
	for _, tt := range []struct {
		name   string
		flow   policy.Flow
		source string
		device uint32
	}{
		{"v4", policy.Flow{Dest: v4}, "10.55.1.1", l.a},
		{"v4 bound to the first source", policy.Flow{Dest: v4, Source: netip.MustParseAddr("10.55.1.1")}, "10.55.1.1", l.a},
		{"v4 bound to the second source", policy.Flow{Dest: v4, Source: netip.MustParseAddr("10.55.1.11")}, "10.55.1.11", l.a},
		{"v4 source of the other path", policy.Flow{Dest: v4, Source: netip.MustParseAddr("10.55.2.1")}, "10.55.2.1", l.a},
		{"v4 device", policy.Flow{Dest: v4, Ifindex: l.b}, "10.55.2.1", l.b},
		{"v4 mark", policy.Flow{Dest: v4, Mark: labMark}, "10.55.2.1", l.b},
		{"v4 another mark", policy.Flow{Dest: v4, Mark: labMark + 1}, "10.55.1.1", l.a},
		{"v4 user", policy.Flow{Dest: v4, UID: labUser}, "10.55.2.1", l.b},
		{"v4 another user", policy.Flow{Dest: v4, UID: labUser + 1}, "10.55.1.1", l.a},
		{"v4 all", policy.Flow{Dest: v4, Mark: labMark, UID: labUser, Ifindex: l.b, Source: netip.MustParseAddr("10.55.2.11")}, "10.55.2.11", l.b},
		{"v6", policy.Flow{Dest: v6}, "fd55:1::1", l.a},
		{"v6 source", policy.Flow{Dest: v6, Source: netip.MustParseAddr("fd55:2::1")}, "fd55:2::1", l.a},
		{"v6 device", policy.Flow{Dest: v6, Ifindex: l.b}, "fd55:2::1", l.b},
		{"v6 mark", policy.Flow{Dest: v6, Mark: labMark}, "fd55:2::1", l.b},
		{"v6 user", policy.Flow{Dest: v6, UID: labUser}, "fd55:2::1", l.b},
	} {
		t.Run(tt.name, func(t *testing.T) {
			want := netip.MustParseAddr(tt.source)
			if got := l.native(t, &tt.flow); got != want {
				t.Fatalf("origin sees %v of the client itself, want %v: the lab is wrong", got, want)
			}
			way := l.route(t, &tt.flow)
			if way != (Route{want, tt.device}) {
				t.Errorf("route: got %+v, want %v by device %d", way, want, tt.device)
			}
			fd := l.dial(t, &tt.flow)
			if got := l.seen(t); got != want {
				t.Errorf("origin sees %v, want %v", got, want)
			}
			if err := Check(fd, &tt.flow, way); err != nil {
				t.Error(err)
			}
		})
	}
}

// Each property that differs is found, and named with both values.
func TestCheckFindsAnotherExit(t *testing.T) {
	l := newLab(t)
	f := policy.Flow{Dest: netip.AddrPortFrom(netip.MustParseAddr(labV4), labPort), Mark: 1, UID: 1000}
	before := l.route(t, &f)
	fd := l.dial(t, &f)
	if err := Check(fd, &f, before); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		flow func(*policy.Flow)
		want Route
		text []string
	}{
		{"source", func(f *policy.Flow) { f.Source = netip.MustParseAddr("10.55.1.11") }, before, []string{"source", "10.55.1.1,", "10.55.1.11"}},
		{"route", func(*policy.Flow) {}, Route{Source: netip.MustParseAddr("10.55.2.1")}, []string{"source", "10.55.1.1,", "10.55.2.1"}},
		{"no route known", func(*policy.Flow) {}, Route{}, []string{"source"}},
		{"device", func(f *policy.Flow) { f.Ifindex = 99 }, before, []string{"device 0", "99"}},
		{"mark", func(f *policy.Flow) { f.Mark = 0x2a }, before, []string{"mark", "0x1", "0x2a"}},
		{"owner", func(f *policy.Flow) { f.UID = 1001 }, before, []string{"uid 1000", "1001"}},
	} {
		other := f
		tt.flow(&other)
		err := Check(fd, &other, tt.want)
		if !errors.Is(err, ErrExit) {
			t.Errorf("%s: got %v, want ErrExit", tt.name, err)
			continue
		}
		for _, text := range tt.text {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: got %q, want %q in it", tt.name, err, text)
			}
		}
	}

	// The way changes between question and connection.
	inside(t, l.path, func() error { return route(labV4+"/32", "10.55.2.2", unix.RT_TABLE_MAIN, 10) })
	moved := l.dial(t, &f)
	if err := Check(moved, &f, before); !errors.Is(err, ErrExit) {
		t.Errorf("the route changed: got %v, want ErrExit", err)
	}
	l.client.forget()
	if err := Check(moved, &f, l.route(t, &f)); err != nil {
		t.Error(err)
	}
	if err := Check(-1, &f, before); !errors.Is(err, ErrExit) || !errors.Is(err, unix.EBADF) {
		t.Errorf("no socket: got %v, want ErrExit and EBADF", err)
	}
}

func TestRoute(t *testing.T) {
	l := newLab(t)
	dest := netip.AddrPortFrom(netip.MustParseAddr(labV4), labPort)
	first := l.route(t, &policy.Flow{Dest: dest})

	// An answer is kept, for its own question.
	inside(t, l.path, func() error { return route(labV4+"/32", "10.55.2.2", unix.RT_TABLE_MAIN, 10) })
	if got := l.route(t, &policy.Flow{Dest: dest}); got != first {
		t.Errorf("asked again at once: got %+v, want %+v as before", got, first)
	}
	second := Route{netip.MustParseAddr("10.55.2.1"), l.b}
	if got := l.route(t, &policy.Flow{Dest: dest, UID: 5}); got != second {
		t.Errorf("asked for another user: got %+v, want %+v", got, second)
	}
	l.client.forget()
	if got := l.route(t, &policy.Flow{Dest: dest}); got != second {
		t.Errorf("asked a second later: got %+v, want %+v", got, second)
	}

	// An error is not.
	nowhere := netip.MustParseAddrPort("10.66.0.1:80")
	if got, err := l.client.Route(nowhere, 0, 0, 0, netip.Addr{}); !errors.Is(err, unix.ENETUNREACH) || got != (Route{}) {
		t.Errorf("without a route: got %+v, %v; want ENETUNREACH", got, err)
	}
	inside(t, l.path, func() error { return route("10.66.0.0/24", "10.55.1.2", unix.RT_TABLE_MAIN, 0) })
	if got := l.route(t, &policy.Flow{Dest: nowhere}); got != first {
		t.Errorf("once there is a route: got %+v, want %+v", got, first)
	}
	if _, err := l.client.Route(dest, 0, 0, 1<<30, netip.Addr{}); !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.ENETUNREACH) {
		t.Errorf("by a device that is gone: got %v, want ENODEV", err)
	}

	// Rules by protocol and port are the socket's, too.
	inside(t, l.path, func() error {
		rule := netlink.NewRule()
		rule.Family, rule.Table, rule.IPProto, rule.Dport = unix.AF_INET, labTable, unix.IPPROTO_TCP, netlink.NewRulePortRange(8443, 8443)
		return errors.Join(netlink.RuleAdd(rule), route(labV4+"/32", "10.55.1.2", unix.RT_TABLE_MAIN, 10))
	})
	l.client.forget()
	for port, want := range map[uint16]Route{labPort: first, 8443: second} {
		if got := l.route(t, &policy.Flow{Dest: netip.AddrPortFrom(dest.Addr(), port)}); got != want {
			t.Errorf("port %d: got %+v, want %+v", port, got, want)
		}
	}
}

// The cache is bounded, and safe for many at once.
func TestRouteManyAtOnce(t *testing.T) {
	l := newLab(t)
	dest := netip.AddrPortFrom(netip.MustParseAddr(labV4), labPort)
	want := Route{netip.MustParseAddr("10.55.1.1"), l.a}
	var wg sync.WaitGroup
	for worker := range uint32(4) {
		wg.Go(func() {
			for uid := range uint32(500) {
				if got, err := l.client.Route(dest, 0, worker*1000+uid, 0, netip.Addr{}); err != nil || got != want {
					t.Errorf("user %d: got %+v, %v; want %+v", uid, got, err, want)
				}
			}
		})
	}
	wg.Wait()
	if got := len(l.client.routes.kept); got == 0 || got > maxRoutes {
		t.Errorf("answers kept: got %d, want 1 to %d", got, maxRoutes)
	}
}

// What is too old makes room for the new before anything else has to.
func TestRouterKeepsTheYoung(t *testing.T) {
	var r router
	now := time.Unix(1000, 0)
	for uid := range uint32(maxRoutes) {
		until := now
		if uid%2 == 0 {
			until = now.Add(time.Millisecond)
		}
		r.keep(routeKey{uid: uid}, keptRoute{until: until}, now.Add(-time.Second))
	}
	if got := len(r.kept); got != maxRoutes {
		t.Fatalf("kept: got %d, want %d", got, maxRoutes)
	}
	r.keep(routeKey{uid: maxRoutes}, keptRoute{until: now.Add(time.Second)}, now)
	if _, ok := r.kept[routeKey{uid: 0}]; !ok || len(r.kept) != maxRoutes/2+1 {
		t.Errorf("kept: got %d, the young among them: %t; want %d and true", len(r.kept), ok, maxRoutes/2+1)
	}
	for uid := range uint32(maxRoutes) {
		r.keep(routeKey{uid: 10_000 + uid}, keptRoute{until: now.Add(time.Second)}, now)
	}
	if got := len(r.kept); got > maxRoutes {
		t.Errorf("kept: got %d, want at most %d", got, maxRoutes)
	}
}

func TestRouteAtHome(t *testing.T) {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	for dest, want := range map[string]string{
		"127.0.0.1:80": "127.0.0.1", "127.9.9.9:80": "127.0.0.1", "0.0.0.0:80": "127.0.0.1", "[::1]:80": "::1", "[::]:80": "::1",
	} {
		got, err := (*Netns)(nil).Route(netip.MustParseAddrPort(dest), 0, uint32(os.Geteuid()), 0, netip.Addr{})
		if err != nil || got.Source != netip.MustParseAddr(want) || got.Ifindex != uint32(lo.Index) {
			t.Errorf("%s: got %+v, %v; want %s by lo", dest, got, err, want)
		}
	}
}

// message builds an answer of the kernel.
func message(kind uint16, seq uint32, body []byte) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = binary.NativeEndian.AppendUint16(b, 0)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = append(b, 0, 0, 0, 0)
	return append(b, body...)
}

func TestRouteAnswer(t *testing.T) {
	rtmsg := func(family byte, attrs ...[]byte) []byte {
		b := append([]byte{family}, make([]byte, unix.SizeofRtMsg-1)...)
		for _, a := range attrs {
			b = append(b, a...)
		}
		return b
	}
	device := appendAttr(nil, unix.RTA_OIF, binary.NativeEndian.AppendUint32(nil, 3))
	source := appendAttr(nil, unix.RTA_PREFSRC, []byte{192, 0, 2, 1})
	odd := appendAttr(nil, unix.RTA_CACHEINFO, []byte{1, 2, 3})
	errno := func(n int32) []byte { return binary.NativeEndian.AppendUint32(nil, uint32(-n)) }
	good := message(unix.RTM_NEWROUTE, 7, rtmsg(unix.AF_INET, odd, device, source))
	for _, tt := range []struct {
		name string
		b    []byte
		want Route
		err  error
	}{
		{"route", good, Route{netip.MustParseAddr("192.0.2.1"), 3}, nil},
		{"without attributes", message(unix.RTM_NEWROUTE, 7, rtmsg(unix.AF_INET)), Route{}, nil},
		{"more behind it", append(good[:len(good):len(good)], 1, 2, 3), Route{netip.MustParseAddr("192.0.2.1"), 3}, nil},
		{"another's", message(unix.RTM_NEWROUTE, 6, rtmsg(unix.AF_INET)), Route{}, errStale},
		{"error", message(unix.NLMSG_ERROR, 7, errno(int32(unix.ENETUNREACH))), Route{}, unix.ENETUNREACH},
		{"no error", message(unix.NLMSG_ERROR, 7, errno(0)), Route{}, errMalformed},
		{"short error", message(unix.NLMSG_ERROR, 7, []byte{1}), Route{}, errMalformed},
		{"cut", good[:len(good)-1], Route{}, errMalformed},
		{"empty", nil, Route{}, errMalformed},
		{"short route", message(unix.RTM_NEWROUTE, 7, []byte{2}), Route{}, errMalformed},
		{"another kind", message(unix.RTM_NEWADDR, 7, rtmsg(unix.AF_INET)), Route{}, errMalformed},
		{"source of the other family", message(unix.RTM_NEWROUTE, 7, rtmsg(unix.AF_INET6, source)), Route{}, errMalformed},
		{"attribute longer than the rest", message(unix.RTM_NEWROUTE, 7, rtmsg(unix.AF_INET, []byte{200, 0, 4, 0})), Route{}, errMalformed},
		{"attribute without end", message(unix.RTM_NEWROUTE, 7, rtmsg(unix.AF_INET, []byte{0, 0, 4, 0})), Route{}, errMalformed},
	} {
		if got, err := routeAnswer(tt.b, 7); got != tt.want || !errors.Is(err, tt.err) {
			t.Errorf("%s: got %+v, %v; want %+v, %v", tt.name, got, err, tt.want, tt.err)
		}
	}
}

func FuzzRouteAnswer(f *testing.F) {
	body := append([]byte{unix.AF_INET}, make([]byte, unix.SizeofRtMsg-1)...)
	body = appendAttr(body, unix.RTA_OIF, []byte{3, 0, 0, 0})
	body = appendAttr(body, unix.RTA_PREFSRC, []byte{192, 0, 2, 1})
	f.Add(message(unix.RTM_NEWROUTE, 7, body), uint32(7))
	f.Add(message(unix.RTM_NEWROUTE, 7, body), uint32(8))
	f.Add(message(unix.NLMSG_ERROR, 7, []byte{0x9b, 0xff, 0xff, 0xff}), uint32(7))
	f.Fuzz(func(t *testing.T, b []byte, seq uint32) {
		route, err := routeAnswer(b, seq)
		if err != nil && route != (Route{}) {
			t.Errorf("got %+v together with %v", route, err)
		}
		if err == nil && route.Source.IsValid() && route.Source.Is4() != (b[unix.SizeofNlMsghdr] == unix.AF_INET) {
			t.Errorf("got source %v in a message of family %d", route.Source, b[unix.SizeofNlMsghdr])
		}
		if len(b) >= unix.SizeofNlMsghdr && errors.Is(err, errStale) == (binary.NativeEndian.Uint32(b[8:]) == seq) {
			t.Errorf("sequence %d: got %v", seq, err)
		}
	})
}
