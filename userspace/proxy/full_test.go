// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A full proxy says so by silence, so that new connections go untouched; it
// serves those that it has.
func TestFullProxyStopsItsHeartbeat(t *testing.T) {
	dest, _ := httpOrigin(t, nil)
	b := startWith(t, Config{MaxConns: 2}, 0, budget("origin.test", plenty))
	waitFor(t, "a heartbeat", func() bool { return b.hook.beaten() > 0 })
	conns := []*net.TCPConn{b.connect(dest), b.connect(dest), b.connect(dest)}
	waitFor(t, "three connections", func() bool { return b.conns.Load() == 3 })
	time.Sleep(2 * tick)
	before := b.hook.beaten()
	time.Sleep(5 * tick)
	if got := b.hook.beaten(); got != before {
		t.Errorf("%d beats while full, want none", got-before)
	}
	for _, c := range conns {
		if resp := roundTrip(t, c, simpleGet); resp.StatusCode != 200 {
			t.Errorf("status = %d, want 200", resp.StatusCode)
		}
	}
	conns[0].Close()
	conns[1].Close()
	waitFor(t, "the heartbeat again", func() bool { return b.hook.beaten() > before })
}

// Without a descriptor left for it, a connection is reset rather than left in
// the queue.
func TestOutOfDescriptors(t *testing.T) {
	dest, _ := httpOrigin(t, nil)
	b := start(t, budget("origin.test", plenty))
	roundTrip(t, b.connect(dest), simpleGet)

	client, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(client)
	var hoard []int
	defer func() {
		for _, fd := range hoard {
			unix.Close(fd)
		}
	}()
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil {
		t.Fatal(err)
	}
	few := lim
	few.Cur = 200
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &lim)
	for {
		fd, err := unix.Dup(client)
		if err != nil {
			break
		}
		hoard = append(hoard, fd)
	}
	if err := unix.Connect(client, &unix.SockaddrInet4{Addr: [4]byte{127, 101, 9, 9}, Port: int(b.port)}); err != nil && err != unix.ECONNRESET {
		t.Fatal(err)
	}
	unix.SetsockoptTimeval(client, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 10})
	if n, err := unix.Read(client, make([]byte, 1)); err == nil && n > 0 || err == unix.EAGAIN {
		t.Errorf("read %d, %v; want a reset", n, err)
	}
	unix.Setrlimit(unix.RLIMIT_NOFILE, &lim)
	for _, fd := range hoard {
		unix.Close(fd)
	}
	hoard = nil
	resp := roundTrip(t, b.connect(dest), simpleGet)
	if _, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != 200 {
		t.Errorf("afterwards: status %d, %v; want 200", resp.StatusCode, err)
	}
}
