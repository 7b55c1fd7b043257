// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// features are what egressd uses where it is there, by a function that the
// kernel has then. since is the first kernel that must have it; a kernel may have
// it earlier.
var features = []struct {
	name, function string
	since          [2]int
}{
	{"connect hooks that return an errno (bpf_set_retval)", "bpf_set_retval", [2]int{6, 1}},
	{"iterator over open files (task_file)", "bpf_iter_task_file", [2]int{6, 1}},
	{"socket storage", "bpf_sk_storage_get", [2]int{6, 1}},
	{"ring buffer", "bpf_ringbuf_reserve", [2]int{6, 1}},
	{"tcx links", "tcx_link_attach", [2]int{6, 6}},
	{"uprobe_multi links", "bpf_uprobe_multi_link_attach", [2]int{6, 6}},
	{"kfunc that ends sockets (bpf_sock_destroy)", "bpf_sock_destroy", [2]int{6, 5}},
	{"netkit devices", "netkit_link_attach", [2]int{6, 7}},
}

// TestFeatures writes down what this kernel has, and holds that a kernel lacks
// nothing that its version should have. docs/KERNELS.md is made of what it says.
func TestFeatures(t *testing.T) {
	needVM(t)
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		t.Fatal(err)
	}
	release := unix.ByteSliceToString(uts.Release[:])
	version := numbers(t, release)
	functions := kernelFunctions(t)
	for _, f := range features {
		has := functions[f.function]
		t.Logf("%s: %s: %t", release, f.name, has)
		if !has && slices.Compare(version[:], f.since[:]) >= 0 {
			t.Errorf("%s lacks %s (%s), which kernels have since %d.%d", release, f.name, f.function, f.since[0], f.since[1])
		}
	}
	for _, f := range []struct {
		name  string
		has   bool
		since [2]int
	}{
		{"SO_PEEK_OFF on TCP", peekOff(t), [2]int{6, 9}},
		{"qdisc fq", hasFQ(t), [2]int{6, 1}},
		{"qdisc clsact", hasClsact(t), [2]int{6, 1}},
	} {
		t.Logf("%s: %s: %t", release, f.name, f.has)
		if !f.has && slices.Compare(version[:], f.since[:]) >= 0 {
			t.Errorf("%s lacks %s", release, f.name)
		}
	}
	t.Logf("egressd doctor:\n%s", ask(t, "doctor"))
}

func numbers(t testing.TB, release string) (version [2]int) {
	t.Helper()
	for i, word := range strings.SplitN(release, ".", 3)[:2] {
		for _, r := range word {
			if r < '0' || r > '9' {
				break
			}
			version[i] = version[i]*10 + int(r-'0')
		}
	}
	if version[0] == 0 {
		t.Fatalf("kernel %q has no version", release)
	}
	return version
}

// kernelFunctions lists the functions of the kernel and its modules by name.
func kernelFunctions(t testing.TB) map[string]bool {
	t.Helper()
	f, err := os.Open("/proc/kallsyms")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	names := map[string]bool{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) >= 3 && strings.Contains("tTwW", fields[1]) {
			names[fields[2]] = true
			// What a compiler made of a function still proves it.
			base, _, _ := strings.Cut(fields[2], ".")
			names[base] = true
		}
	}
	return names
}

// peekOff reports whether a peek at a TCP socket moves on by itself.
func peekOff(t testing.TB) bool {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if e := raw.Control(func(fd uintptr) {
		err = os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEEK_OFF, 0))
	}); e != nil {
		t.Fatal(e)
	}
	return err == nil
}

// tryQdisc puts a qdisc at a device of a namespace of its own.
func tryQdisc(t testing.TB, put func(n *Netns) error) bool {
	t.Helper()
	n, far := newNetns(t), newNetns(t)
	if err := Join(End{n, "near", []netip.Prefix{near4}}, End{far, "far", []netip.Prefix{far4}}); err != nil {
		t.Fatal(err)
	}
	err := put(n)
	if err != nil {
		t.Log(err)
	}
	return err == nil
}

func hasFQ(t testing.TB) bool {
	t.Helper()
	return tryQdisc(t, func(n *Netns) error { return n.FQ("near", time.Minute) })
}

func hasClsact(t testing.TB) bool {
	t.Helper()
	return tryQdisc(t, func(n *Netns) error {
		return n.Do(func() error {
			link, err := netlink.LinkByName("near")
			if err != nil {
				return err
			}
			return netlink.QdiscAdd(&netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
				LinkIndex: link.Attrs().Index,
				Parent:    netlink.HANDLE_CLSACT,
				Handle:    netlink.MakeHandle(0xffff, 0),
			}})
		})
	})
}
