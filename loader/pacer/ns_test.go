// SPDX-License-Identifier: Apache-2.0

package pacer

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/rlimit"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if os.Getenv(victimEnv) != "" {
		victimMain()
		return
	}
	os.Exit(m.Run())
}

// mustNetns moves the test's thread into a network namespace of its own, whose
// lo is up, until the test ends.
func mustNetns(t *testing.T) {
	t.Helper()
	if err := rlimit.RemoveMemlock(); err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatalf("make a network namespace: %v (the tests need root)", err)
	}
	t.Cleanup(func() {
		if err := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return // the thread stays locked, and ends with the test
		}
		home.Close()
		runtime.UnlockOSThread()
	})
	mustUp(t, "lo")
}

// mustVeth makes a pair of devices that are up; the first has an address.
func mustVeth(t *testing.T, name string, addr string) int {
	t.Helper()
	attrs := netlink.NewLinkAttrs() // with the kernel's queue length
	attrs.Name = name
	v := &netlink.Veth{LinkAttrs: attrs, PeerName: name + "-peer"}
	if err := netlink.LinkAdd(v); err != nil {
		t.Fatal(err)
	}
	mustUp(t, name)
	mustUp(t, name+"-peer")
	if addr != "" {
		mustAddr(t, name, addr)
	}
	return v.Attrs().Index
}

// mustTun makes a device with so many queues, each of which has a reader, and
// with a qdisc of the kernel's choice that has a queue.
func mustTun(t *testing.T, name string, queues int, addr string) int {
	t.Helper()
	tun := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: name}, Mode: netlink.TUNTAP_MODE_TUN, Queues: queues}
	if queues > 1 {
		tun.Flags = netlink.TUNTAP_MULTI_QUEUE_DEFAULTS
	} else {
		tun.Flags = netlink.TUNTAP_DEFAULTS
	}
	if err := netlink.LinkAdd(tun); err != nil {
		t.Fatalf("add device %s: %v", name, err)
	}
	t.Cleanup(func() {
		for _, fd := range tun.Fds {
			fd.Close()
		}
	})
	mustUp(t, name)
	mustAddr(t, name, addr)
	return mustLink(t, name).Attrs().Index
}

func mustLink(t *testing.T, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func mustUp(t *testing.T, name string) {
	t.Helper()
	if err := netlink.LinkSetUp(mustLink(t, name)); err != nil {
		t.Fatal(err)
	}
}

func mustAddr(t *testing.T, name, addr string) {
	t.Helper()
	a, err := netlink.ParseAddr(addr)
	if err != nil {
		t.Fatal(err)
	}
	a.Flags = unix.IFA_F_NODAD
	if err := netlink.AddrAdd(mustLink(t, name), a); err != nil {
		t.Fatal(err)
	}
}

// mustRoute adds a route by a device, and nothing else.
func mustRoute(t *testing.T, dest, name string, table int) {
	t.Helper()
	_, to, err := net.ParseCIDR(dest)
	if err != nil {
		t.Fatal(err)
	}
	r := &netlink.Route{Dst: to, LinkIndex: mustLink(t, name).Attrs().Index, Table: table, Scope: netlink.SCOPE_LINK}
	if err := netlink.RouteAdd(r); err != nil {
		t.Fatalf("add route to %s: %v", dest, err)
	}
}

// mustQdisc replaces the root qdisc of a device.
func mustQdisc(t *testing.T, name string, q func(netlink.QdiscAttrs) netlink.Qdisc) {
	t.Helper()
	attrs := netlink.QdiscAttrs{LinkIndex: mustLink(t, name).Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0)}
	if err := netlink.QdiscReplace(q(attrs)); err != nil {
		t.Fatalf("set qdisc of %s: %v", name, err)
	}
}

func fqFor(horizon time.Duration) func(netlink.QdiscAttrs) netlink.Qdisc {
	return func(a netlink.QdiscAttrs) netlink.Qdisc {
		fq := netlink.NewFq(a)
		fq.Horizon = uint32(horizon / time.Microsecond)
		return fq
	}
}

// plain is a qdisc that every kernel has. Its handle is another one, since with
// the same the kernel would not replace a qdisc, but try to change it.
func plain(a netlink.QdiscAttrs) netlink.Qdisc {
	a.Handle = netlink.MakeHandle(2, 0)
	return &netlink.GenericQdisc{QdiscAttrs: a, QdiscType: "pfifo_fast"}
}

// hasFQ reports whether the kernel has sch_fq, in a namespace of its own.
func hasFQ(t *testing.T) bool {
	t.Helper()
	v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "probe"}, PeerName: "probe-peer"}
	if err := netlink.LinkAdd(v); err != nil {
		t.Fatal(err)
	}
	err := netlink.QdiscAdd(fqFor(time.Minute)(netlink.QdiscAttrs{LinkIndex: v.Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0)}))
	if e := netlink.LinkDel(v); e != nil {
		t.Fatal(e)
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		t.Fatalf("add fq: %v", err)
	}
	return err == nil
}

// needFQ skips a test on a kernel without sch_fq; in test/vm all have it.
func needFQ(t *testing.T) {
	t.Helper()
	if !hasFQ(t) {
		if os.Getenv("EGRESSD_TEST_FQ") != "" {
			t.Fatal("the kernel should have sch_fq")
		}
		t.Skip("this kernel has no sch_fq (CONFIG_NET_SCH_FQ)")
	}
}

// testMark is on all packets of mustSend. What IPv6 sends by itself has none.
const testMark = 0x7e57

// mustProgram loads a program that counts packets of mustSend, and gives them a
// time so far ahead, if that is not 0.
func mustProgram(t testing.TB, name string, ahead time.Duration) (*ebpf.Program, func() uint64) {
	t.Helper()
	counts, err := ebpf.NewMap(&ebpf.MapSpec{Name: "counts", Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { counts.Close() })
	const mark, tstamp = 8, 152 // offsets in struct __sk_buff
	code := asm.Instructions{
		asm.Mov.Reg(asm.R6, asm.R1),
		asm.LoadMem(asm.R1, asm.R6, mark, asm.Word),
		asm.JNE.Imm(asm.R1, testMark, "out"),
	}
	if ahead != 0 {
		code = append(code,
			asm.FnKtimeGetNs.Call(),
			asm.LoadImm(asm.R1, int64(ahead), asm.DWord),
			asm.Add.Reg(asm.R0, asm.R1),
			asm.StoreMem(asm.R6, tstamp, asm.R0, asm.DWord),
		)
	}
	code = append(code,
		asm.StoreImm(asm.RFP, -4, 0, asm.Word),
		asm.LoadMapPtr(asm.R1, counts.FD()),
		asm.Mov.Reg(asm.R2, asm.RFP),
		asm.Add.Imm(asm.R2, -4),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "out"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, -1).WithSymbol("out"), // TC_ACT_UNSPEC
		asm.Return(),
	)
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: name, Type: ebpf.SchedCLS, License: "Dual BSD/GPL", Instructions: code})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p, func() uint64 {
		var n uint64
		if err := counts.Lookup(uint32(0), &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
}

// payload of the datagrams that are sent.
const payload = "hello, who is there?"

// mustSend sends a datagram from a device's network to an address that nobody
// has, so that it leaves by the device.
func mustSend(t *testing.T, to string) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, testMark); err != nil {
		t.Fatal(err)
	}
	addr := netip.MustParseAddrPort(to)
	if err := unix.Sendto(fd, []byte(payload), 0, &unix.SockaddrInet4{Port: int(addr.Port()), Addr: addr.Addr().As4()}); err != nil {
		t.Fatalf("send to %s: %v", to, err)
	}
}

// mustNeighbour makes an address known to be at the other end, so that nothing
// is asked for it.
func mustNeighbour(t *testing.T, name, addr string) {
	t.Helper()
	err := netlink.NeighSet(&netlink.Neigh{
		LinkIndex: mustLink(t, name).Attrs().Index, State: netlink.NUD_PERMANENT,
		IP: net.ParseIP(addr), HardwareAddr: mustLink(t, name+"-peer").Attrs().HardwareAddr,
	})
	if err != nil {
		t.Fatal(err)
	}
}

// qdiscs are all qdiscs of a device, in words that tell everything.
func qdiscs(t *testing.T, name string) []string {
	t.Helper()
	list, err := netlink.QdiscList(mustLink(t, name))
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for _, q := range list {
		words = append(words, fmt.Sprintf("%s %+v", q.Type(), q))
	}
	return words
}

// deadline is for what takes milliseconds, on a busy machine.
const deadline = 20 * time.Second

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never came to be: %s", what)
		}
	}
}
