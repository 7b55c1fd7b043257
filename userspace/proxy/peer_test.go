// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
)

func TestLookUp(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		ln, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close()
		connect := func() (client *net.TCPConn, its, ours netip.AddrPort) {
			t.Helper()
			c, err := net.Dial("tcp", ln.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			s, err := ln.Accept()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Close(); s.Close() })
			return c.(*net.TCPConn), c.LocalAddr().(*net.TCPAddr).AddrPort(), c.RemoteAddr().(*net.TCPAddr).AddrPort()
		}
		for _, tc := range []struct {
			name string
			act  func(*net.TCPConn) error
			want bool
		}{
			{"open", func(*net.TCPConn) error { return nil }, true},
			{"half-closed", (*net.TCPConn).CloseWrite, true},
			{"closed", (*net.TCPConn).Close, false},
			{"reset", func(c *net.TCPConn) error { c.SetLinger(0); return c.Close() }, false},
		} {
			t.Run(addr+" "+tc.name, func(t *testing.T) {
				client, its, ours := connect()
				cookie := cookieOf(t, client)
				if err := tc.act(client); err != nil {
					t.Fatal(err)
				}
				got, err := lookUp(nil, its, ours)
				if err != nil || got.open != tc.want {
					t.Errorf("lookUp = %+v, %v; want open = %v", got, err, tc.want)
				}
				if tc.want && got.cookie != cookie {
					t.Errorf("cookie = %d, want %d", got.cookie, cookie)
				}
			})
		}
	}
}

func cookieOf(t *testing.T, c *net.TCPConn) (cookie uint64) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		cookie, failed = unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE)
	})
	if err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	return cookie
}

// A client that speaks only IPv6 comes to ::1 and is known by its socket's
// cookie; whoever comes to another address of the listener is not.
func TestClientThatSpeaksOnlyIPv6(t *testing.T) {
	dest, n := httpOrigin(t, nil)
	b := start(t, budget("origin.test", plenty))
	connect := func() net.Conn {
		t.Helper()
		d := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
			return raw.Control(func(fd uintptr) {
				cookie, err := unix.GetsockoptUint64(int(fd), unix.SOL_SOCKET, unix.SO_COOKIE)
				if err != nil {
					t.Error(err)
				}
				b.hook.mu.Lock()
				b.hook.cookies[cookie] = policy.Flow{Dest: dest, UID: uint32(os.Geteuid())}
				b.hook.mu.Unlock()
			})
		}}
		c, err := d.Dial("tcp6", netip.AddrPortFrom(netip.IPv6Loopback(), b.port).String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	if resp := roundTrip(t, connect(), simpleGet); resp.StatusCode != 200 || n.Load() != 1 {
		t.Errorf("status %d, origin saw %d; want 200 and 1", resp.StatusCode, n.Load())
	}
	// Without a flow it leads nowhere.
	c, err := net.Dial("tcp6", netip.AddrPortFrom(netip.IPv6Loopback(), b.port).String())
	if errors.Is(err, unix.ECONNRESET) {
		return // closed before the dial returned
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("read: %v, want a reset", err)
	}
}
