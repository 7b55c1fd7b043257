// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
)

func TestMain(m *testing.M) {
	if os.Getenv(agentEnv) != "" {
		agentMain()
	}
	if kind := os.Getenv(lifeEnv); kind != "" {
		otherLife(kind)
	}
	os.Exit(m.Run())
}

func unsafePointer[T any](p *T) unsafe.Pointer { return unsafe.Pointer(p) }

// needRoot skips where nobody could load programs, and only there: a root that
// cannot is a failure.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
}

var cgroups atomic.Int32

// testCgroup makes a cgroup for one test, below which nobody else lives.
func testCgroup(t testing.TB) (root, name string) {
	t.Helper()
	needRoot(t)
	root, err := CgroupRoot()
	if err != nil {
		t.Fatal(err)
	}
	name = fmt.Sprintf("egressd-test-%d-%d", os.Getpid(), cgroups.Add(1))
	if err := os.Mkdir(filepath.Join(root, name), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeCgroup(t, filepath.Join(root, name)) })
	return root, name
}

// removeCgroup waits for the last process to be reaped by the kernel.
func removeCgroup(t testing.TB, dir string) {
	t.Helper()
	for range 100 {
		err := os.Remove(dir)
		if err == nil || os.IsNotExist(err) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Errorf("cgroup %s is still in use", dir)
}

// now is the clock of the ledger.
func now() ledger.Time {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ledger.Time(ts.Nano())
}

// rig is a kernel attached to a cgroup of its own, with an agent in it and an
// enrolled listener in the test's network namespace.
type rig struct {
	*Kernel
	t        testing.TB
	cgroup   string // directory
	name     string // path from the root
	agent    *agent
	netns    uint64
	listener net.Listener
	empty    map[string]*ebpf.Program // instead of ours, by the name of ours
}

func newRig(t testing.TB, cfg Config) *rig {
	t.Helper()
	r := &rig{t: t}
	var root string
	root, r.name = testCgroup(t)
	r.cgroup = filepath.Join(root, r.name)
	cfg.Cgroups = []string{r.name}
	r.Kernel = openKernel(t, cfg)
	if err := r.Attach(); err != nil {
		t.Fatal(err)
	}
	r.agent = startAgent(t, r.cgroup, syscall.SysProcAttr{})
	var err error
	if r.netns, err = NetnsCookie(); err != nil {
		t.Fatal(err)
	}
	r.listener = listen(t, ListenerMark)
	r.enrol(100)
	r.Beat(now() + ledger.Time(time.Hour)) // no test is that slow
	return r
}

func openKernel(t testing.TB, cfg Config) *Kernel {
	t.Helper()
	k, err := Open(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return k
}

// listen opens a listener with the mark at a free port of all addresses.
func listen(t testing.TB, mark int) net.Listener {
	t.Helper()
	return listenAt(t, mark, "tcp4", "0.0.0.0:0")
}

func listenAt(t testing.TB, mark int, network, addr string) net.Listener {
	t.Helper()
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		if e := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MARK, mark)
		}); e != nil {
			return e
		}
		return err
	}}
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(context.Background(), network, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func port(l net.Listener) uint16 { return uint16(l.Addr().(*net.TCPAddr).Port) }

func (r *rig) enrol(backlog uint32) {
	r.t.Helper()
	if err := r.Enrol(r.netns, port(r.listener), backlog); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) apply(redirects policy.Redirects) {
	r.t.Helper()
	if err := r.Apply(redirects); err != nil {
		r.t.Fatal(err)
	}
}

// namePorts makes policy name these ports, loopback included.
func (r *rig) namePorts(ports ...uint16) {
	r.t.Helper()
	var redirects policy.Redirects
	for _, p := range ports {
		redirects.Ports = append(redirects.Ports, policy.PortRedirect{Port: p, Local: true})
	}
	r.apply(redirects)
}

// accept takes the next connection and its flow.
func (r *rig) accept() (net.Conn, policy.Flow) {
	r.t.Helper()
	if err := r.listener.(*net.TCPListener).SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		r.t.Fatal(err)
	}
	conn, err := r.listener.Accept()
	if err != nil {
		r.t.Fatalf("accept: %v", err)
	}
	r.t.Cleanup(func() { conn.Close() })
	flow, ok := r.Take(r.netns, conn.LocalAddr().(*net.TCPAddr).AddrPort(), conn.RemoteAddr().(*net.TCPAddr).AddrPort())
	if !ok {
		r.t.Fatalf("no flow for a connection to %s", conn.LocalAddr())
	}
	return conn, flow
}

// gate returns the count of a gate.
func (r *rig) gate(name string) Gate {
	r.t.Helper()
	gates, err := r.Gates()
	if err != nil {
		r.t.Fatal(err)
	}
	for _, g := range gates {
		if g.Name == name {
			return g
		}
	}
	r.t.Fatalf("no gate %q", name)
	return Gate{}
}

// through runs f and checks that exactly one call left by the gate.
func (r *rig) through(gate string, f func()) {
	r.t.Helper()
	before, err := r.Gates()
	if err != nil {
		r.t.Fatal(err)
	}
	f()
	after, err := r.Gates()
	if err != nil {
		r.t.Fatal(err)
	}
	for i := range after {
		var want uint64
		if after[i].Name == gate {
			want = 1
		}
		if got := after[i].Passed - before[i].Passed; got != want {
			r.t.Errorf("gate %s: got %d more, want %d", after[i].Name, got, want)
		}
	}
}

// destination returns the counts of one destination, the zero ones if it has
// none.
func (r *rig) destination(dest string) Destination {
	r.t.Helper()
	list, err := r.Connections()
	if err != nil {
		r.t.Fatal(err)
	}
	want := netip.MustParseAddrPort(dest)
	for _, d := range list {
		if d.Dest == want {
			return d
		}
	}
	return Destination{Dest: want}
}

func sysProcAttr() syscall.SysProcAttr { return syscall.SysProcAttr{} }

// origin is a server at all addresses that reads to the end and then closes.
type origin struct {
	net.Listener
	port uint16
}

func startOrigin(t testing.TB) *origin {
	t.Helper()
	var lc net.ListenConfig
	lc.SetMultipathTCP(false)
	l, err := lc.Listen(context.Background(), "tcp", "[::]:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				io.Copy(io.Discard, conn)
			}()
		}
	}()
	return &origin{l, port(l)}
}

// at is the origin's address and port by one of the host's addresses.
func (o *origin) at(addr string) string {
	return net.JoinHostPort(addr, strconv.Itoa(int(o.port)))
}

// freePort is a loopback address and a port that was free a moment ago.
func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// inNetns runs f in the network namespace of a process.
func inNetns(t testing.TB, pid int, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		// Never unlocked: the thread ends with the goroutine.
		runtime.LockOSThread()
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err != nil {
			t.Error(err)
			return
		}
		defer ns.Close()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			t.Error(err)
			return
		}
		f()
	}()
	<-done
}
