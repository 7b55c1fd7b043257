// SPDX-License-Identifier: Apache-2.0

package sdnotify

import (
	"net"
	"path/filepath"
	"testing"
	"time"
)

// manager is a service manager's socket.
func manager(t *testing.T) (*net.UnixConn, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "notify.sock")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn, path
}

// env makes a getenv of pairs.
func env(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func TestMessages(t *testing.T) {
	conn, path := manager(t)
	n := New(env("NOTIFY_SOCKET", path), 1)
	for _, tt := range []struct {
		name string
		send func() error
		want string
	}{
		{"ready", func() error { return n.Ready("2 budgets") }, "READY=1\nSTATUS=2 budgets"},
		{"reloading", func() error { return n.Reloading(1234567890) }, "RELOADING=1\nMONOTONIC_USEC=1234567"},
		{"stopping", n.Stopping, "STOPPING=1"},
		{"alive", n.Alive, "WATCHDOG=1"},
		{"status of two lines", func() error { return n.Status("a\nREADY=1") }, "STATUS=a READY=1"},
	} {
		if err := tt.send(); err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		buf := make([]byte, 512)
		size, err := conn.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(buf[:size]); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestWatchdog(t *testing.T) {
	for _, tt := range []struct {
		name string
		env  []string
		want time.Duration
	}{
		{"none", []string{"NOTIFY_SOCKET", "/x"}, 0},
		{"ours", []string{"NOTIFY_SOCKET", "/x", "WATCHDOG_USEC", "30000000", "WATCHDOG_PID", "42"}, 30 * time.Second},
		{"any process's", []string{"NOTIFY_SOCKET", "@x", "WATCHDOG_USEC", "1000"}, time.Millisecond},
		{"another's", []string{"NOTIFY_SOCKET", "/x", "WATCHDOG_USEC", "1000", "WATCHDOG_PID", "43"}, 0},
		{"no number", []string{"NOTIFY_SOCKET", "/x", "WATCHDOG_USEC", "-1"}, 0},
		{"no manager", []string{"WATCHDOG_USEC", "1000"}, 0},
	} {
		if got := New(env(tt.env...), 42).Watchdog(); got != tt.want {
			t.Errorf("%s: got %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestNoManager(t *testing.T) {
	for _, name := range []string{"", "relative", "vsock:2:1"} {
		n := New(env("NOTIFY_SOCKET", name), 1)
		if n != nil {
			t.Errorf("socket %q: got a notifier, want none", name)
		}
		if err := n.Ready("x"); err != nil {
			t.Errorf("socket %q: got error %v from a nil notifier, want none", name, err)
		}
	}
}

func TestManagerIsGone(t *testing.T) {
	n := New(env("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "gone")), 1)
	if err := n.Alive(); err == nil {
		t.Error("got no error from a socket that is not there")
	}
}
