// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/net/dns/dnsmessage"
	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/loader"
	"github.com/egressd/egressd/policy/ledger"
)

// Clients as people use them, with resolvers of their own or that of the C
// library, by UDP and TCP, IPv4 and IPv6.
func TestClients(t *testing.T) {
	python := []string{"python3", "-c", "import socket, sys; socket.getaddrinfo(sys.argv[1], 1)"}
	curl := []string{"curl", "-s", "--max-time", "5"} // finds nobody at the address
	goClient := []string{os.Args[0]}
	l := newLab(t)
	l.serve(addresses(2))
	l.run()
	info, err := os.Stat(l.cgroup)
	if err != nil {
		t.Fatal(err)
	}
	id := info.Sys().(*syscall.Stat_t).Ino
	for i, tt := range []struct {
		name   string
		resolv string
		argv   []string
		n      int // addresses of either kind
		tcp    bool
	}{
		{"python", "nameserver 127.0.0.1", python, 2, false},
		{"python by IPv6, long", "nameserver ::1\noptions edns0", python, 40, false},
		{"python, truncated", "nameserver 127.0.0.1", python, 100, true},
		{"python by TCP", "nameserver ::1\noptions use-vc", python, 2, true},
		{"curl", "nameserver 127.0.0.1", curl, 2, false},
		{"Go by IPv6", "nameserver ::1", goClient, 2, false},
		{"Go, truncated", "nameserver 127.0.0.1", goClient, 100, true},
		{"Go by TCP", "nameserver 127.0.0.1\noptions use-vc", goClient, 300, true},
	} {
		l.resolvConf(tt.resolv + "\n")
		name := fmt.Sprintf("%d-n%d.example", tt.n, i)
		cmd := l.command(l.cgroup, tt.argv[0], append(tt.argv[1:], name)...)
		cmd.Env = append(os.Environ(), agentEnv+"=resolve")
		before := now(t)
		if out, err := cmd.Output(); err != nil && tt.name != "curl" {
			t.Fatalf("%s: %v\n%s", tt.name, err, out)
		}
		for _, kind := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA} {
			m := l.wait(tt.name+": "+kind.String(), func(m seen) bool { return m.holds(name+".", kind, tt.n) })
			if m.TCP != tt.tcp || m.Netns != l.netns || m.Cgroup != id {
				t.Errorf("%s: got %+v, want TCP %t, namespace %d, cgroup %d", tt.name, m.Message, tt.tcp, l.netns, id)
			}
			if m.Time < before || m.Time > now(t) {
				t.Errorf("%s: got time %d, want one after %d", tt.name, m.Time, before)
			}
		}
	}
}

// Long answers come in fragments, and only as long as the client can take.
func TestFragments(t *testing.T) {
	for _, tt := range []struct{ network, server string }{{"udp4", "127.0.0.1:53"}, {"udp6", "[::1]:53"}} {
		l := newLab(t)
		l.mtu(1500)
		l.run()
		server := l.packets(tt.network, tt.server)
		client, _ := l.agent("listen", tt.network, strings.Replace(tt.server, "53", "0", 1))
		for _, n := range []int{1, 15, 60, 240, 1000} { // one of each size of record
			msg := answer(t, "long.example.", n)
			if _, err := server.WriteToUDPAddrPort(msg, client); err != nil {
				t.Fatal(err)
			}
			m := l.wait(fmt.Sprintf("of %d bytes", len(msg)), func(m seen) bool { return m.holds("long.example.", dnsmessage.TypeA, n) })
			if !bytes.Equal(m.data, msg) || m.TCP {
				t.Errorf("%s, %d bytes: got others", tt.network, len(msg))
			}
		}
		msg := answer(t, "long.example.", 1100)
		if len(msg) <= MaxMessage {
			t.Fatalf("%d bytes are not too long", len(msg))
		}
		if _, err := server.WriteToUDPAddrPort(msg, client); err != nil {
			t.Fatal(err)
		}
		l.waitCounts(tt.network, Counts{Sent: 5, Large: 1})
	}
}

// What is no answer is counted, and not read.
func TestNotRead(t *testing.T) {
	good := answer(t, "store.example.", 1)
	changed := func(at int, to byte) []byte {
		msg := bytes.Clone(good)
		msg[at] = to
		return msg
	}
	l := newLab(t)
	l.run()
	server, other := l.packets("udp4", "127.0.0.1:53"), l.packets("udp4", "127.0.0.1:5353")
	client, _ := l.agent("listen", "udp4", "127.0.0.1:0")
	for _, tt := range []struct {
		name string
		from *net.UDPConn
		msg  []byte
		want Counts
	}{
		{"an answer", server, good, Counts{Sent: 1}},
		{"from another port", other, good, Counts{Sent: 1}},
		{"nothing", server, nil, Counts{Sent: 1, Short: 1}},
		{"half a header", server, good[:11], Counts{Sent: 1, Short: 2}},
		{"a query", server, question(t, "store.example.", dnsmessage.TypeA, 0), Counts{Sent: 1, Short: 2, Query: 1}},
		{"the answer to an update", server, changed(2, 5<<3|0x80), Counts{Sent: 1, Short: 2, Query: 2}},
		{"no such name", server, changed(3, 3), Counts{Sent: 1, Short: 2, Query: 2, Negative: 1}},
		{"no records", server, changed(7, 0), Counts{Sent: 1, Short: 2, Query: 2, Negative: 2}},
		{"bytes behind a good header", server, append(good[:12:12], 0xff), Counts{Sent: 2, Short: 2, Query: 2, Negative: 2}},
	} {
		if _, err := tt.from.WriteToUDPAddrPort(tt.msg, client); err != nil {
			t.Fatal(err)
		}
		l.waitCounts(tt.name, tt.want)
	}
}

// Headers of IP that are longer than usual.
func TestIPOptions(t *testing.T) {
	l := newLab(t)
	l.run()
	set := func(conn *net.UDPConn, level, option int, value string) {
		t.Helper()
		raw, err := conn.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		if e := raw.Control(func(fd uintptr) { err = unix.SetsockoptString(int(fd), level, option, value) }); e != nil || err != nil {
			t.Fatal(e, err)
		}
	}
	msg := answer(t, "store.example.", 1)
	server := l.packets("udp4", "127.0.0.1:53")
	set(server, unix.IPPROTO_IP, unix.IP_OPTIONS, "\x01\x01\x01\x01\x01\x01\x01\x00")
	client, _ := l.agent("listen", "udp4", "127.0.0.1:0")
	if _, err := server.WriteToUDPAddrPort(msg, client); err != nil {
		t.Fatal(err)
	}
	l.wait("with IP options", func(m seen) bool { return m.holds("store.example.", dnsmessage.TypeA, 1) })

	server = l.packets("udp6", "[::1]:53")
	set(server, unix.IPPROTO_IPV6, unix.IPV6_DSTOPTS, "\x00\x00\x01\x04\x00\x00\x00\x00") // PadN
	client, _ = l.agent("connect", "udp6", "[::1]:53")
	if _, err := server.WriteToUDPAddrPort(msg, client); err != nil {
		t.Fatal(err)
	}
	l.waitCounts("with an extension header", Counts{Sent: 1, Extension: 1})
}

// TestStream serves pieces by TCP, each a segment of its own.
func TestStream(t *testing.T) {
	first, second, third := answer(t, "first.example.", 1), answer(t, "second.example.", 2), answer(t, "third.example.", 300)
	forged := framed(answer(t, "forged.example.", 1))
	cat := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	l := newLab(t)
	l.run()
	ln := l.listen("tcp4", "127.0.0.1:53")
	l.agent("connect", "tcp4", "127.0.0.1:53")
	for _, tt := range []struct {
		name   string
		pieces [][]byte
		sent   []string
		want   Counts
	}{
		{"one", [][]byte{framed(first)}, []string{"first"}, Counts{Sent: 1}},
		{"one by one", [][]byte{framed(first), framed(second), framed(third)}, []string{"first", "second", "third"}, Counts{Sent: 3}},
		{"all at once", [][]byte{cat(framed(first), framed(second), framed(third))}, []string{"first", "second", "third"}, Counts{Sent: 3}},
		{"length and body apart", [][]byte{framed(first)[:2], first, framed(second)[:2], second}, []string{"first", "second"}, Counts{Sent: 2}},
		{"cut, then a whole one", [][]byte{framed(first)[:20], framed(first)[20:], framed(second)}, []string{"second"}, Counts{Sent: 1, Split: 1}},
		{"cut, and a whole one behind it", [][]byte{framed(first)[:20], cat(framed(first)[20:], framed(second))}, []string{"second"}, Counts{Sent: 1, Split: 1}},
		{"a whole one, and one that is cut", [][]byte{cat(framed(first), framed(second)[:9]), framed(second)[9:]}, []string{"first"}, Counts{Sent: 1, Split: 1}},
		{"cut within the length", [][]byte{framed(first)[:1], framed(first)[1:], framed(second)}, nil, Counts{Split: 1}},
		{"more than a segment may have", [][]byte{bytes.Repeat(framed(first), 5), framed(second)}, []string{"first"}, Counts{Sent: 4}},
		{
			"a message in another one's body",
			[][]byte{cat([]byte{byte((20 + len(forged)) >> 8), byte(20 + len(forged))}, bytes.Repeat([]byte{0}, 20)), forged, framed(second)},
			[]string{"second"}, Counts{Sent: 1, Split: 1},
		},
		{"empty ones", [][]byte{{0, 0}, {0, 0, 0, 0}, framed(second)}, []string{"second"}, Counts{Sent: 1, Short: 1}},
	} {
		conn := l.accept(ln)
		l.forget()
		want := l.counts()
		want.Sent, want.Short, want.Split = want.Sent+tt.want.Sent, want.Short+tt.want.Short, want.Split+tt.want.Split
		for _, piece := range tt.pieces {
			if _, err := conn.Write(piece); err != nil {
				t.Fatal(err)
			}
			acknowledged(t, conn)
		}
		l.waitCounts(tt.name, want)
		for _, name := range tt.sent {
			l.wait(tt.name+": "+name, func(m seen) bool {
				return m.TCP && slices.ContainsFunc([]int{1, 2, 300}, func(n int) bool { return m.holds(name+".example.", dnsmessage.TypeA, n) })
			})
		}
		conn.Close()
	}
}

// acknowledged waits until the peer has all that was written, and has read it.
func acknowledged(t *testing.T, conn net.Conn) {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		unacked := 0
		if e := raw.Control(func(fd uintptr) { unacked, err = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) }); e != nil || err != nil {
			t.Fatal(e, err)
		}
		if unacked == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatal("what was written is not acknowledged")
		}
	}
}

// A connection that was there before the program is not made sense of.
func TestStreamJoinedLate(t *testing.T) {
	l := newLab(t)
	ln := l.listen("tcp4", "127.0.0.1:53")
	l.agent("connect", "tcp4", "127.0.0.1:53")
	conn := l.accept(ln)
	defer conn.Close()
	if err := l.Detach(); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(framed(answer(t, "first.example.", 1))); err != nil {
		t.Fatal(err)
	}
	acknowledged(t, conn)
	if err := l.Attach(); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(framed(answer(t, "second.example.", 1))); err != nil {
		t.Fatal(err)
	}
	l.waitCounts("joined late", Counts{Split: 1})
}

// lookUp has a client in a cgroup ask for a name.
func (l *lab) lookUp(cgroup, name string) {
	l.t.Helper()
	cmd := l.command(cgroup, os.Args[0], name)
	cmd.Env = append(os.Environ(), agentEnv+"=resolve")
	if out, err := cmd.Output(); err != nil {
		l.t.Fatalf("%v\n%s", err, out)
	}
}

// Only sockets of the cgroups are seen, and not those of excluded ones.
func TestScope(t *testing.T) {
	l := newLab(t)
	l.serve(addresses(1))
	l.run()
	outside, below := l.cgroup+"-outside", filepath.Join(l.cgroup, "below")
	mkCgroup(t, outside)
	mkCgroup(t, below)
	l.lookUp(outside, "outside.example")
	if err := l.Exclude([]string{"none", l.name + "/below"}); err != nil {
		t.Fatal(err)
	}
	l.lookUp(below, "excluded.example")
	if c := l.counts(); c != (Counts{}) {
		t.Errorf("out of scope: got %+v, want nothing", c)
	}
	if err := l.Exclude(nil); err != nil {
		t.Fatal(err)
	}
	l.lookUp(below, "below.example")
	for _, kind := range []dnsmessage.Type{dnsmessage.TypeA, dnsmessage.TypeAAAA} {
		l.wait("from below", func(m seen) bool { return m.holds("below.example.", kind, 1) })
	}
	// A cgroup that is made again is another one, until it is looked up.
	again := filepath.Join(l.cgroup, "again")
	for range 2 {
		if err := os.Mkdir(again, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := l.Exclude([]string{l.name + "/again"}); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(again); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(l.excluded); n != 1 {
		t.Errorf("got %d excluded cgroups, want 1", n)
	}
}

// One program at each cgroup that is not below another one, and none where one
// of them fails, or afterwards.
func TestAttach(t *testing.T) {
	l := newLab(t)
	below := filepath.Join(l.cgroup, "below")
	mkCgroup(t, below)
	present := func(what string, want int) {
		t.Helper()
		if n := attached(t, l.cgroup); n != want {
			t.Errorf("%s: got %d programs, want %d", what, n, want)
		}
	}
	present("attached", 1)
	if err := l.Attach(); err != nil {
		t.Fatal(err)
	}
	present("attached twice", 1)
	for range 2 {
		if err := l.Detach(); err != nil {
			t.Fatal(err)
		}
		present("detached", 0)
	}
	r, err := Open(Config{Cgroups: []string{l.name, l.name + "/below", l.name}})
	if err != nil {
		t.Fatal(err)
	}
	present("opened", 0)
	if err := r.Attach(); err != nil {
		t.Fatal(err)
	}
	present("attached to a part as well", 1)
	if n := attached(t, below); n != 0 {
		t.Errorf("got %d programs below, want none", n)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	present("closed", 0)
	r, err = Open(Config{Cgroups: []string{l.name, l.name + "-none"}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Attach(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a cgroup that does not exist: got %v", err)
	}
	present("failed", 0)
}

// attached counts the programs at the ingress of a cgroup.
func attached(t *testing.T, cgroup string) int {
	t.Helper()
	dir, err := os.Open(cgroup)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	result, err := link.QueryPrograms(link.QueryOptions{Target: int(dir.Fd()), Attach: ebpf.AttachCGroupInetIngress})
	if err != nil {
		t.Fatal(err)
	}
	return len(result.Programs)
}

// A flood is read at a pace, and what is too much is counted. Every answer is
// either handed over or lost.
func TestFlood(t *testing.T) {
	l := newLab(t)
	server := l.packets("udp4", "127.0.0.1:53")
	client, _ := l.agent("listen", "udp4", "127.0.0.1:0")
	msg := answer(t, "flood.example.", 1)
	began := time.Now()
	l.run()
	// So many in a second, or for as long as a slow machine may take.
	sent := uint64(0)
	for ; sent < 100000 && time.Since(began) < 3*time.Second; sent++ {
		if _, err := server.WriteToUDPAddrPort(msg, client); err != nil {
			t.Fatal(err)
		}
	}
	var c Counts
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		c = l.counts()
		l.mu.Lock()
		handed := uint64(len(l.seen))
		l.mu.Unlock()
		if handed == c.Sent {
			break
		}
		if handed > c.Sent || time.Now().After(end) {
			t.Fatalf("%d were handed over: %+v", handed, c)
		}
	}
	took := time.Since(began)
	t.Logf("%d: %+v in %s", sent, c, took)
	// The loopback device itself may drop some.
	if total := c.Sent + c.Lost; total > sent || total < sent/2 || c != (Counts{Sent: c.Sent, Lost: c.Lost}) {
		t.Errorf("got %+v, want %d in all", c, sent)
	}
	turns := uint64(took/paceWindow) + 2
	if most := turns*uint64(perPaceTurn/(perMessage+len(msg))) + turns; c.Sent > most {
		t.Errorf("got %d in %s, want at most %d", c.Sent, took, most)
	}
	// Life goes on.
	l.forget()
	last := answer(t, "last.example.", 1)
	for {
		if _, err := server.WriteToUDPAddrPort(last, client); err != nil {
			t.Fatal(err)
		}
		if l.counts().Sent > c.Sent {
			break
		}
	}
	l.wait("after the flood", func(m seen) bool { return m.holds("last.example.", dnsmessage.TypeA, 1) })
}

func TestDecode(t *testing.T) {
	for _, raw := range [][]byte{nil, make([]byte, 31), append(make([]byte, 24), 1, 0, 0, 0, 0, 0, 0, 0)} {
		if new(Message).decode(raw) {
			t.Errorf("%d bytes: got a message", len(raw))
		}
	}
}

func now(t testing.TB) ledger.Time {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		t.Fatal(err)
	}
	return ledger.Time(ts.Nano())
}

// BenchmarkIngress measures what a packet costs at the hook: nothing but the
// hook and the measuring; of a socket with a peer, which is decided by its port; of
// one without, whose packet is looked at; and answers that are read.
func BenchmarkIngress(b *testing.B) {
	stats, err := loader.EnableStats()
	if err != nil {
		b.Skip(err)
	}
	defer stats.Close()
	for _, kind := range []string{"bare", "peer", "no peer", "answer", "long answer"} {
		b.Run(kind, func(b *testing.B) {
			l := newLab(b)
			msg := answer(b, "store.example.", 1)
			from, mode, args := "127.0.0.1:5353", "listen", []string{"udp4", "127.0.0.1:0"}
			program := l.objs.AnswersIn
			switch kind {
			case "bare":
				program = l.bare()
			case "peer":
				mode, args = "connect", []string{"udp4", from}
			case "answer":
				from = "127.0.0.1:53"
				l.run()
			case "long answer":
				msg, from = answer(b, "store.example.", 60), "127.0.0.1:53"
				l.run()
			}
			server := l.packets("udp4", from)
			client, _ := l.agent(mode, args...)
			before, err := program.Stats()
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if _, err := server.WriteToUDPAddrPort(msg, client); err != nil {
					b.Fatal(err)
				}
			}
			after, err := program.Stats()
			if err != nil {
				b.Fatal(err)
			}
			if runs := after.RunCount - before.RunCount; runs > 0 {
				b.ReportMetric(float64((after.Runtime-before.Runtime).Nanoseconds())/float64(runs), "ns/program")
			}
		})
	}
}

// bare puts a program that does nothing in the place of the Reader's.
func (l *lab) bare() *ebpf.Program {
	l.t.Helper()
	if err := l.Detach(); err != nil {
		l.t.Fatal(err)
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.CGroupSKB, AttachType: ebpf.AttachCGroupInetIngress, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
	})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { p.Close() })
	dir, err := os.Open(l.cgroup)
	if err != nil {
		l.t.Fatal(err)
	}
	defer dir.Close()
	at, err := link.AttachRawLink(link.RawLinkOptions{Target: int(dir.Fd()), Program: p, Attach: ebpf.AttachCGroupInetIngress})
	if err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() { at.Close() })
	return p
}
