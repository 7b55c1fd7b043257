// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
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

	"github.com/egressd/egressd/loader"
)

// agentEnv makes the test binary a client: see agent.
const agentEnv = "EGRESSD_DNS_AGENT"

func TestMain(m *testing.M) {
	if mode := os.Getenv(agentEnv); mode != "" {
		if err := agent(mode, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// agent is a client in the cgroup. It says the address of its socket and reads,
// over and over again, or looks a name up.
func agent(mode string, args []string) error {
	switch mode {
	case "resolve":
		r := net.Resolver{PreferGo: true}
		addrs, err := r.LookupNetIP(context.Background(), "ip", args[0])
		fmt.Println(addrs)
		return err
	case "listen":
		conn, err := net.ListenPacket(args[0], args[1])
		if err != nil {
			return err
		}
		fmt.Println(conn.LocalAddr())
		for buf := make([]byte, 1<<16); ; {
			if _, _, err := conn.ReadFrom(buf); err != nil {
				return err
			}
		}
	case "connect":
		for {
			conn, err := net.Dial(args[0], args[1])
			if err != nil {
				return err
			}
			fmt.Println(conn.LocalAddr())
			if _, err := conn.Write([]byte("?")); err != nil {
				return err
			}
			_, _ = io.Copy(io.Discard, conn) // to the end, whichever it is
			conn.Close()
		}
	}
	return fmt.Errorf("unknown mode %q", mode)
}

// lab is a host of its own: network namespace, resolv.conf, and a cgroup whose
// answers are read. The test's thread is in it, and ends with the test.
type lab struct {
	*Reader
	t      testing.TB
	cgroup string
	name   string // of the cgroup
	netns  uint64

	mu   sync.Mutex
	seen []seen
	more chan struct{} // has one when seen grew
}

// seen is a message that Run handed over.
type seen struct {
	Message
	data []byte // a copy that stays
}

var labs atomic.Int32

func newLab(t testing.TB) *lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	// Never unlocked: no other goroutine shall be in here.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET | unix.CLONE_NEWNS); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, more: make(chan struct{}, 1)}
	if l.netns, err = loader.NetnsCookie(); err != nil {
		t.Fatal(err)
	}
	root, err := loader.CgroupRoot()
	if err != nil {
		t.Fatal(err)
	}
	l.name = fmt.Sprintf("egressd-dns-%d-%d", os.Getpid(), labs.Add(1))
	l.cgroup = filepath.Join(root, l.name)
	mkCgroup(t, l.cgroup)
	// Where there is none, that is whom resolvers ask.
	if _, err := os.Stat("/etc/resolv.conf"); err == nil {
		l.resolvConf("nameserver 127.0.0.1\n")
	}
	if l.Reader, err = Open(Config{Root: root, Cgroups: []string{l.name}}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	if err := l.Attach(); err != nil {
		t.Fatal(err)
	}
	return l
}

// mkCgroup makes a cgroup for the test.
func mkCgroup(t testing.TB, dir string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		var err error
		for range 100 { // the last process may still be on its way out
			if err = os.Remove(dir); err == nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		t.Errorf("cgroup is still in use: %v", err)
	})
}

// resolvConf gives the lab another resolv.conf.
func (l *lab) resolvConf(text string) {
	l.t.Helper()
	path := filepath.Join(l.t.TempDir(), "resolv.conf")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		l.t.Fatal(err)
	}
	if err := unix.Mount(path, "/etc/resolv.conf", "", unix.MS_BIND, ""); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		if err := unix.Unmount("/etc/resolv.conf", 0); err != nil {
			l.t.Error(err)
		}
	})
}

// mtu makes the loopback device cut what is longer.
func (l *lab) mtu(bytes int) {
	l.t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		l.t.Fatal(err)
	}
	if err := netlink.LinkSetMTU(lo, bytes); err != nil {
		l.t.Fatal(err)
	}
}

// run starts Run; it ends with the test.
func (l *lab) run() {
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- l.Run(ctx, func(m *Message) {
			l.mu.Lock()
			l.seen = append(l.seen, seen{*m, slices.Clone(m.Data)})
			l.mu.Unlock()
			select {
			case l.more <- struct{}{}:
			default:
			}
		})
	}()
	l.t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			l.t.Errorf("run: %v", err)
		}
	})
}

// wait returns the first message from the n-th on, counted from 0, that is good.
func (l *lab) wait(what string, good func(seen) bool) seen {
	l.t.Helper()
	late := time.After(20 * time.Second)
	for {
		l.mu.Lock()
		i := slices.IndexFunc(l.seen, good)
		var m seen
		if i >= 0 {
			m = l.seen[i]
		}
		n := len(l.seen)
		l.mu.Unlock()
		if i >= 0 {
			return m
		}
		select {
		case <-l.more:
		case <-late:
			l.t.Fatalf("no answer %s came among %d; %+v", what, n, l.counts())
		}
	}
}

// count waits until as many were counted as want says.
func (l *lab) waitCounts(what string, want Counts) {
	l.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		got := l.counts()
		if got == want {
			return
		}
		if time.Now().After(end) {
			l.t.Fatalf("%s: got %+v, want %+v", what, got, want)
		}
	}
}

func (l *lab) counts() Counts {
	l.t.Helper()
	c, err := l.Counts()
	if err != nil {
		l.t.Fatal(err)
	}
	return c
}

func (l *lab) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen = nil
}

// command is a process in a cgroup and, since it starts from the test's thread,
// in the lab.
func (l *lab) command(cgroup, name string, args ...string) *exec.Cmd {
	l.t.Helper()
	dir, err := os.Open(cgroup)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { dir.Close() })
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd()), Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	return cmd
}

// agent starts one in the cgroup and returns the address of its socket. It is
// killed at the end of the test, or by the function that comes with it.
func (l *lab) agent(mode string, args ...string) (netip.AddrPort, func()) {
	l.t.Helper()
	cmd := l.command(l.cgroup, os.Args[0], args...)
	cmd.Env = append(os.Environ(), agentEnv+"="+mode)
	out, err := cmd.StdoutPipe()
	if err != nil {
		l.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	kill := sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	l.t.Cleanup(kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		l.t.Fatalf("agent: %v", err)
	}
	return netip.MustParseAddrPort(strings.TrimSpace(line)), kill
}

// packets opens a UDP socket of a server, outside of the cgroup.
func (l *lab) packets(network, addr string) *net.UDPConn {
	l.t.Helper()
	conn, err := net.ListenPacket(network, addr)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { conn.Close() })
	return conn.(*net.UDPConn)
}

func (l *lab) listen(network, addr string) *net.TCPListener {
	l.t.Helper()
	ln, err := net.Listen(network, addr)
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { ln.Close() })
	return ln.(*net.TCPListener)
}

// accept takes the next connection.
func (l *lab) accept(ln *net.TCPListener) net.Conn {
	l.t.Helper()
	if err := ln.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		l.t.Fatal(err)
	}
	conn, err := ln.Accept()
	if err != nil {
		l.t.Fatal(err)
	}
	return conn
}

// zone answers a question.
type zone func(q dnsmessage.Question) []dnsmessage.Resource

// serve runs a DNS server at port 53 of both loopback addresses: UDP up to what
// the client can take, else truncated, and TCP.
func (l *lab) serve(z zone) {
	l.t.Helper()
	for _, host := range []string{"127.0.0.1:53", "[::1]:53"} {
		conn := l.packets("udp", host)
		ln := l.listen("tcp", host)
		go func() {
			buf := make([]byte, 4096)
			for {
				n, from, err := conn.ReadFromUDPAddrPort(buf)
				if err != nil {
					return
				}
				reply, size := z.reply(buf[:n])
				if len(reply) > size {
					reply = truncated(reply)
				}
				_, _ = conn.WriteToUDPAddrPort(reply, from)
			}
		}()
		go func() {
			for {
				conn, err := ln.Accept()
				if err != nil {
					return
				}
				go z.stream(conn)
			}
		}()
	}
}

// stream serves a TCP connection. All answers to what came at once leave at once.
func (z zone) stream(conn net.Conn) {
	defer conn.Close()
	var in []byte
	buf := make([]byte, 4096)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return
		}
		in = append(in, buf[:n]...)
		var out []byte
		for len(in) >= 2 && len(in) >= 2+(int(in[0])<<8|int(in[1])) {
			size := int(in[0])<<8 | int(in[1])
			reply, _ := z.reply(in[2 : 2+size])
			out = append(out, framed(reply)...)
			in = in[2+size:]
		}
		if _, err := conn.Write(out); err != nil {
			return
		}
	}
}

// framed puts the length before a message.
func framed(msg []byte) []byte {
	return append([]byte{byte(len(msg) >> 8), byte(len(msg))}, msg...)
}

// reply answers a query, and says how long a message its client can take by UDP.
func (z zone) reply(query []byte) (reply []byte, size int) {
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil || len(m.Questions) != 1 {
		panic(fmt.Sprintf("query %x: %v", query, err))
	}
	size = 512
	for _, r := range m.Additionals {
		if r.Header.Type == dnsmessage.TypeOPT {
			size = int(r.Header.Class)
		}
	}
	m.Response, m.RecursionAvailable, m.Additionals = true, true, nil
	m.Answers = z(m.Questions[0])
	reply, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return reply, size
}

// truncated is what of a reply is left where it is too long.
func truncated(reply []byte) []byte {
	var m dnsmessage.Message
	if err := m.Unpack(reply); err != nil {
		panic(err)
	}
	m.Truncated, m.Answers = true, nil
	reply, err := m.Pack()
	if err != nil {
		panic(err)
	}
	return reply
}

// addresses is a zone in which each name has n addresses of either kind, or as
// many as the name begins with.
func addresses(n int) zone {
	return func(q dnsmessage.Question) (records []dnsmessage.Resource) {
		head := dnsmessage.ResourceHeader{Name: q.Name, Class: q.Class, TTL: 60}
		n := n
		_, _ = fmt.Sscanf(q.Name.String(), "%d-", &n)
		for i := range n {
			switch q.Type {
			case dnsmessage.TypeA:
				records = append(records, dnsmessage.Resource{Header: head, Body: &dnsmessage.AResource{A: [4]byte{127, 1, byte(i >> 8), byte(i)}}})
			case dnsmessage.TypeAAAA:
				body := &dnsmessage.AAAAResource{AAAA: [16]byte{0x20, 1, 0xd, 0xb8, 14: byte(i >> 8), 15: byte(i)}}
				records = append(records, dnsmessage.Resource{Header: head, Body: body})
			}
		}
		return records
	}
}

// question is a query as a client packs it, taking messages up to size.
func question(t testing.TB, name string, kind dnsmessage.Type, size int) []byte {
	t.Helper()
	m := dnsmessage.Message{
		Header:    dnsmessage.Header{ID: 7, RecursionDesired: true},
		Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(name), Type: kind, Class: dnsmessage.ClassINET}},
	}
	if size > 0 {
		var h dnsmessage.ResourceHeader
		if err := h.SetEDNS0(size, dnsmessage.RCodeSuccess, false); err != nil {
			t.Fatal(err)
		}
		m.Additionals = append(m.Additionals, dnsmessage.Resource{Header: h, Body: &dnsmessage.OPTResource{}})
	}
	msg, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return msg
}

// answer is a reply to a question for an address, with n of them.
func answer(t testing.TB, name string, n int) []byte {
	t.Helper()
	reply, _ := addresses(n).reply(question(t, name, dnsmessage.TypeA, 0))
	return reply
}

// holds reports whether a message is an answer for that name and type with n
// records, and nothing else.
func (m seen) holds(name string, kind dnsmessage.Type, n int) bool {
	var got dnsmessage.Message
	if err := got.Unpack(m.data); err != nil {
		return false
	}
	q := got.Questions
	return len(q) == 1 && q[0].Name.String() == name && q[0].Type == kind && got.Response && len(got.Answers) == n
}
