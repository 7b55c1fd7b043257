// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var (
	near4, far4 = netip.MustParsePrefix("10.77.0.1/24"), netip.MustParsePrefix("10.77.0.2/24")
	near6, far6 = netip.MustParsePrefix("fd77::1/64"), netip.MustParsePrefix("fd77::2/64")
	nobody      = netip.MustParseAddr("10.77.0.99")
)

// pair is two namespaces, joined.
type pair struct{ near, far *Netns }

func newNetns(t testing.TB) *Netns {
	t.Helper()
	n, err := NewNetns()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

func newPair(t testing.TB) pair {
	t.Helper()
	needRoot(t)
	p := pair{newNetns(t), newNetns(t)}
	if err := Join(
		End{p.near, "near", []netip.Prefix{near4, near6}},
		End{p.far, "far", []netip.Prefix{far4, far6}},
	); err != nil {
		t.Fatal(err)
	}
	return p
}

func newOrigin(t testing.TB, n *Netns, addr netip.Addr) *Origin {
	t.Helper()
	o, err := n.Listen(netip.AddrPortFrom(addr, 0))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.Close() })
	return o
}

func newEar(t testing.TB, n *Netns, device string) *Ear {
	t.Helper()
	e, err := n.Hear(device)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

func TestConnectionsAreWrittenDown(t *testing.T) {
	p := newPair(t)
	for _, tt := range []struct {
		name      string
		near, far netip.Addr
	}{{"IPv4", near4.Addr(), far4.Addr()}, {"IPv6", near6.Addr(), far6.Addr()}} {
		t.Run(tt.name, func(t *testing.T) {
			o := newOrigin(t, p.far, tt.far)
			ears := []*Ear{newEar(t, p.near, "near"), newEar(t, p.far, "far")}
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			begin := Now()
			conn, err := p.near.Dial(ctx, netip.AddrPort{}, o.Addr())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			from := conn.LocalAddr().(*net.TCPAddr).AddrPort()
			if from.Addr() != tt.near {
				t.Errorf("got source %s, want %s", from.Addr(), tt.near)
			}
			waitFor(t, "the connection to be accepted", func() bool { return len(o.Accepted()) > 0 })
			for i, e := range ears {
				waitFor(t, "the SYN to be heard", func() bool { return e.SYNsTo(o.Addr())[from.Port()] > 0 })
				if got := e.SYNsTo(o.Addr()); len(got) != 1 || got[from.Port()] != 1 {
					t.Errorf("ear %d: got SYNs by port %v, want one of %d", i, got, from.Port())
				}
			}
			end := Now()
			got := o.Accepted()
			if len(got) != 1 || got[0].Peer != from || got[0].At < begin || got[0].At > end {
				t.Errorf("got accepted %v, want one of %s between %d and %d", got, from, begin, end)
			}
			if syn := ears[1].SYNs()[0]; syn.At < begin || syn.At > end || syn.From != from {
				t.Errorf("got %v, want a SYN of %s between %d and %d", syn, from, begin, end)
			}
		})
	}
}

// A SYN that nobody answers goes out again a second later (RFC 6298).
func TestSYNsSentAgainAreCounted(t *testing.T) {
	p := newPair(t)
	peer, err := p.far.HardwareAddr("far")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.near.Blackhole("near", nobody, peer); err != nil {
		t.Fatal(err)
	}
	ear := newEar(t, p.far, "far")
	to := netip.AddrPortFrom(nobody, 80)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	failed := make(chan error, 1)
	go func() {
		_, err := p.near.Dial(ctx, netip.AddrPort{}, to)
		failed <- err
	}()
	twice := func() bool {
		for _, n := range ear.SYNsTo(to) {
			return n > 1
		}
		return false
	}
	waitFor(t, "a SYN to be sent again", twice)
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the connection to be given up", err)
	}
	syns := ear.SYNs()
	if gap := syns[1].At.Sub(syns[0].At); gap < 900*time.Millisecond {
		t.Errorf("got %v between a SYN and the same sent again, want about 1 s", gap)
	}
}

// What has a time written in it leaves at that time, and not before.
func TestFQ(t *testing.T) {
	needVM(t)
	p := newPair(t)
	if err := p.near.FQ("near", time.Minute); err != nil {
		t.Fatal(err)
	}
	var far, near *net.UDPConn
	listen := func(n *Netns, addr netip.Addr, conn **net.UDPConn) {
		t.Helper()
		if err := n.Do(func() (err error) {
			*conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { (*conn).Close() })
	}
	listen(p.far, far4.Addr(), &far)
	listen(p.near, near4.Addr(), &near)
	raw, err := near.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	// struct sock_txtime of include/uapi/linux/net_tstamp.h: clock, flags.
	txtime := string(binary.NativeEndian.AppendUint64(nil, unix.CLOCK_MONOTONIC))
	if e := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptString(int(fd), unix.SOL_SOCKET, unix.SO_TXTIME, txtime)
	}); e != nil || err != nil {
		t.Fatal(e, err)
	}
	to := far.LocalAddr().(*net.UDPAddr).AddrPort()
	begin := Now()
	delays := []time.Duration{900 * time.Millisecond, 300 * time.Millisecond, 600 * time.Millisecond}
	for i, delay := range delays {
		control := make([]byte, unix.CmsgSpace(8))
		h := (*unix.Cmsghdr)(ptr(control))
		h.Level, h.Type = unix.SOL_SOCKET, unix.SCM_TXTIME
		h.SetLen(unix.CmsgLen(8))
		binary.NativeEndian.PutUint64(control[unix.CmsgLen(0):], uint64(begin)+uint64(delay))
		if _, _, err := near.WriteMsgUDPAddrPort([]byte{byte(i)}, control, to); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []int{1, 2, 0} {
		if err := far.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		b := []byte{0}
		if _, err := far.Read(b); err != nil {
			t.Fatal(err)
		}
		at := Now().Sub(begin)
		if int(b[0]) != want || at < delays[want] {
			t.Errorf("got datagram %d after %v, want %d not before %v", b[0], at, want, delays[want])
		}
		t.Logf("datagram %d: %v late", b[0], at-delays[b[0]])
	}
}

func TestNetnsIsNotTheCallers(t *testing.T) {
	needRoot(t)
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	n := newNetns(t)
	var inside string
	if err := n.Do(func() (err error) {
		inside, err = os.Readlink("/proc/thread-self/ns/net")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if inside == own {
		t.Errorf("got namespace %s inside, which is the caller's", inside)
	}
	refused := errors.New("no")
	if err := n.Do(func() error { return refused }); !errors.Is(err, refused) {
		t.Errorf("got %v, want the function's own error", err)
	}
}

// A time of the other clock comes out between looks at ours around it.
func TestFromReal(t *testing.T) {
	for range 100 {
		before := Now()
		noted := time.Now().Round(0)
		after := Now()
		const slack = Mono(20 * time.Microsecond) // half of what a look may take, and a clock's steps
		// On a busy machine all ten looks may be interrupted: not every time.
		if got := fromReal(noted); got >= before-slack && got <= after+slack {
			return
		}
	}
	t.Error("got no time between the looks around it in 100 tries")
}

func TestParseSYN(t *testing.T) {
	v4 := []byte{0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2,
		0xc3, 0x50, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0}
	edit := func(p []byte, at int, b byte) []byte {
		p = append([]byte(nil), p...)
		p[at] = b
		return p
	}
	v6 := append([]byte{0x60, 0, 0, 0, 0, 20, 6, 64}, append(append(near6.Addr().AsSlice(), far6.Addr().AsSlice()...), v4[20:]...)...)
	for _, tt := range []struct {
		name     string
		packet   []byte
		from, to string
		ok       bool
	}{
		{"IPv4", v4, "10.77.0.1:50000", "10.77.0.2:80", true},
		{"IPv6", v6, "[fd77::1]:50000", "[fd77::2]:80", true},
		{"options", append(append(edit(v4[:20], 0, 0x46), 1, 1, 1, 0), v4[20:]...), "10.77.0.1:50000", "10.77.0.2:80", true},
		{"cut behind the flags", v4[:34], "10.77.0.1:50000", "10.77.0.2:80", true},
		{"cut before the flags", v4[:33], "", "", false},
		{"SYN and ACK", edit(v4, 33, 0x12), "", "", false},
		{"ACK", edit(v4, 33, 0x10), "", "", false},
		{"UDP", edit(v4, 9, 17), "", "", false},
		{"later fragment", edit(v4, 7, 1), "", "", false},
		{"IPv4 header too short", edit(v4, 0, 0x44), "", "", false},
		{"IPv6 extension", edit(v6, 6, 0), "", "", false},
		{"other version", edit(v4, 0, 0x55), "", "", false},
		{"empty", nil, "", "", false},
	} {
		from, to, ok := parseSYN(tt.packet)
		if ok != tt.ok || ok && (from.String() != tt.from || to.String() != tt.to) {
			t.Errorf("%s: got %s, %s, %t; want %s, %s, %t", tt.name, from, to, ok, tt.from, tt.to, tt.ok)
		}
	}
}

func FuzzParseSYN(f *testing.F) {
	f.Add([]byte{0x45, 0, 0, 40, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 77, 0, 1, 10, 77, 0, 2,
		0xc3, 0x50, 0, 80, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0})
	f.Add(append(append([]byte{0x60, 0, 0, 0, 0, 20, 6, 64}, make([]byte, 32)...), 0, 80, 0, 81, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 2))
	f.Fuzz(func(t *testing.T, packet []byte) {
		from, to, ok := parseSYN(packet)
		if ok != from.IsValid() || ok != to.IsValid() {
			t.Errorf("%x: got %s, %s, %t", packet, from, to, ok)
		}
		if ok && from.Addr().Is4() != to.Addr().Is4() {
			t.Errorf("%x: got %s and %s, of two families", packet, from, to)
		}
		// What follows the flags says nothing.
		if more, _, again := parseSYN(append(packet[:len(packet):len(packet)], 0)); ok && (!again || more != from) {
			t.Errorf("%x: got another answer with a byte more", packet)
		}
	})
}
