// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net"
	"net/netip"
	"testing"
)

func TestSocketOpen(t *testing.T) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	connect := func() (client *net.TCPConn, remote, local netip.AddrPort) {
		t.Helper()
		c, err := net.Dial("tcp4", ln.Addr().String())
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
		t.Run(tc.name, func(t *testing.T) {
			client, its, ours := connect()
			if err := tc.act(client); err != nil {
				t.Fatal(err)
			}
			got, err := socketOpen(nil, its, ours)
			if err != nil || got != tc.want {
				t.Errorf("socketOpen = %v, %v; want %v", got, err, tc.want)
			}
		})
	}
}
