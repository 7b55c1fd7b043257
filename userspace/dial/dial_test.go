// SPDX-License-Identifier: Apache-2.0

package dial

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
)

func mustListen(t *testing.T, network, addr string) netip.AddrPort {
	t.Helper()
	ln, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln.Addr().(*net.TCPAddr).AddrPort()
}

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs CAP_NET_ADMIN, CAP_CHOWN and CAP_SYS_ADMIN")
	}
}

// connected waits for the connection of fd and returns how it came out.
func connected(t *testing.T, fd int) error {
	t.Helper()
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		if n, err := unix.Poll(fds, 1000); err != nil && err != unix.EINTR {
			t.Fatal(err)
		} else if n > 0 {
			return Err(fd)
		}
	}
	t.Fatal("connection is not decided")
	return nil
}

func TestStartKeepsTheExit(t *testing.T) {
	needRoot(t)
	v4 := mustListen(t, "tcp4", "127.0.0.1:0")
	v6 := mustListen(t, "tcp6", "[::1]:0")
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	for _, dest := range []netip.AddrPort{v4, v6} {
		source := dest.Addr()
		if source.Is4() {
			source = netip.MustParseAddr("127.0.0.9")
		}
		f := policy.Flow{Dest: dest, Source: source, Mark: 0x1234, Ifindex: uint32(lo.Index), UID: 65534}
		fd, err := Start(&f, nil)
		if err != nil {
			t.Fatalf("%v: %v", dest, err)
		}
		defer unix.Close(fd)
		if err := connected(t, fd); err != nil {
			t.Fatalf("%v: %v", dest, err)
		}
		mark, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK)
		if err != nil || mark != 0x1234 {
			t.Errorf("%v: mark %#x, %v; want 0x1234", dest, mark, err)
		}
		device, err := unix.GetsockoptString(fd, unix.SOL_SOCKET, unix.SO_BINDTODEVICE)
		if err != nil || device != "lo" {
			t.Errorf("%v: device %q, %v; want lo", dest, device, err)
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Uid != 65534 {
			t.Errorf("%v: uid %d, %v; want 65534", dest, st.Uid, err)
		}
		if got := localAddr(t, fd); got.Addr() != source {
			t.Errorf("%v: source %v, want %v", dest, got.Addr(), source)
		}
	}
}

func localAddr(t *testing.T, fd int) netip.AddrPort {
	t.Helper()
	sa, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr), uint16(sa.Port))
	}
	t.Fatalf("unexpected address %v", sa)
	return netip.AddrPort{}
}

// Many sockets with one bound source use the port of each other's: only the
// pair of addresses must be unique.
func TestBoundSourceLeavesPortsToOthers(t *testing.T) {
	a, b := mustListen(t, "tcp4", "127.0.0.1:0"), mustListen(t, "tcp4", "127.0.0.2:0")
	f := policy.Flow{Dest: a, Source: netip.MustParseAddr("127.0.0.9"), UID: uint32(os.Geteuid())}
	first, err := Start(&f, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(first)
	value, err := unix.GetsockoptInt(first, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT)
	if err != nil || value != 1 {
		t.Errorf("IP_BIND_ADDRESS_NO_PORT = %d, %v; want 1", value, err)
	}
	f.Dest = b
	second, err := Start(&f, nil)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(second)
}

func TestStartRefusesAnotherExit(t *testing.T) {
	dest := mustListen(t, "tcp4", "127.0.0.1:0")
	uid := uint32(os.Geteuid())
	for name, f := range map[string]policy.Flow{
		"source of another host": {Dest: dest, UID: uid, Source: netip.MustParseAddr("192.0.2.1")},
		"device that is gone":    {Dest: dest, UID: uid, Ifindex: 1 << 30},
	} {
		if fd, err := Start(&f, nil); !errors.Is(err, ErrExit) || fd != -1 {
			t.Errorf("%s: Start = %d, %v; want ErrExit", name, fd, err)
		}
	}
}

func TestStartTellsRefusal(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dest := ln.Addr().(*net.TCPAddr).AddrPort()
	ln.Close()
	f := policy.Flow{Dest: dest, UID: uint32(os.Geteuid())}
	fd, err := Start(&f, nil)
	if err == nil {
		defer unix.Close(fd)
		err = connected(t, fd)
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("error %v, want ECONNREFUSED", err)
	}
}

// otherNetns is a fresh namespace, held by a thread that ends with the test.
func otherNetns(t *testing.T) string {
	t.Helper()
	path := make(chan string)
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread() // never unlocked: the thread dies with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("unshare: %v", err)
			path <- ""
			return
		}
		path <- fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())
		<-done
	}()
	t.Cleanup(func() { close(done) })
	p := <-path
	if p == "" {
		t.FailNow()
	}
	return p
}

func TestSocketsOfAnotherNamespace(t *testing.T) {
	needRoot(t)
	ns, err := OpenNetns(otherNetns(t))
	if err != nil {
		t.Fatal(err)
	}
	own, err := OwnCookie()
	if err != nil {
		t.Fatal(err)
	}
	if ns.Cookie == own || ns.Cookie == 0 {
		t.Fatalf("cookie %d, own %d; want two different ones", ns.Cookie, own)
	}
	fd, err := ns.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if got, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err != nil || got != ns.Cookie {
		t.Errorf("socket is of namespace %d, %v; want %d", got, err, ns.Cookie)
	}
	if got, err := OwnCookie(); err != nil || got != own {
		t.Errorf("thread is in namespace %d, %v; want %d again", got, err, own)
	}
	// A fresh namespace has no route: the connection fails there and nowhere else.
	f := policy.Flow{Dest: mustListen(t, "tcp4", "127.0.0.1:0"), UID: uint32(os.Geteuid())}
	if fd, err := Start(&f, ns); !errors.Is(err, unix.ENETUNREACH) {
		t.Errorf("Start = %d, %v; want ENETUNREACH", fd, err)
	}
	ns.Retain()
	ns.Release()
	fd, err = ns.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Errorf("namespace is gone with a holder left: %v", err)
	}
	unix.Close(fd)
	ns.Release()
	if _, err := OpenNetns("/proc/self/ns/no"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("OpenNetns of nothing: %v, want ErrNotExist", err)
	}
}
