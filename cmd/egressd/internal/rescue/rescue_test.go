// SPDX-License-Identifier: Apache-2.0

package rescue

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/loader"
	"github.com/egressd/egressd/policy/ledger"
)

// token is an address to which the hook could lead a client.
const token = "127.101.3.4"

// self is a watcher of this process.
func self(t *testing.T) *watcher {
	t.Helper()
	pidfd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	w := &watcher{pid: os.Getpid(), pidfd: pidfd, log: slog.New(slog.DiscardHandler)}
	t.Cleanup(func() {
		w.forget()
		unix.Close(pidfd)
	})
	return w
}

// listen opens a listener with a mark.
func listen(t *testing.T, mark int) (fd int, port int) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mark sockets")
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, mark),
		unix.Bind(fd, &unix.SockaddrInet4{}),
		unix.Listen(fd, 16),
	)
	if err != nil {
		t.Fatal(err)
	}
	local, ok := localOf(fd)
	if !ok {
		t.Fatal("the listener has no address")
	}
	return fd, int(local.Port())
}

func dial(t *testing.T, host string, port int) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func accept(t *testing.T, listener int) {
	t.Helper()
	fd, _, err := unix.Accept(listener)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
}

// state is what a client sees of its connection.
func state(t *testing.T, conn net.Conn) string {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	switch _, err := conn.Read(make([]byte, 1)); {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return "open"
	case errors.Is(err, unix.ECONNRESET):
		return "reset"
	case errors.Is(err, io.EOF):
		return "ended"
	default:
		return fmt.Sprint(err)
	}
}

// looks has w look n times, at a beat of 10 s that has the given age at the last.
func looks(w *watcher, n int, age time.Duration) {
	const beat = ledger.Time(10 * time.Second)
	for i := range n {
		w.look(beat, beat.Add(age-time.Duration(n-1-i)*tick))
	}
}

func TestWhatWaitsIsReset(t *testing.T) {
	ours, port := listen(t, loader.ListenerMark)
	_, others := listen(t, 0)
	taken := dial(t, token, port)
	accept(t, ours)
	waiting, stranger := dial(t, token, port), dial(t, token, others)
	for _, step := range []struct {
		name  string
		looks int
		age   time.Duration
		want  string
	}{
		{"a heart that beats", 100, loader.HeartbeatMax, "open"},
		{"a clock that jumped", missed / 2, time.Hour, "open"},
		{"a heartbeat that is old", missed + 1, loader.HeartbeatMax + 1, "reset"},
	} {
		w := self(t)
		looks(w, step.looks, step.age)
		if got := state(t, waiting); got != step.want {
			t.Errorf("%s: what waits is %s, want %s", step.name, got, step.want)
		}
	}
	// The process is not stopped: it may just be full.
	looks(self(t), int(10*HeldFor/tick), 10*HeldFor)
	if got := state(t, taken); got != "open" {
		t.Errorf("what was taken is %s, want open", got)
	}
	if got := state(t, stranger); got != "open" {
		t.Errorf("what waits at another listener is %s, want open", got)
	}
}

func TestNoBeatYet(t *testing.T) {
	_, port := listen(t, loader.ListenerMark)
	waiting := dial(t, token, port)
	w := self(t)
	for i := range 10 * missed {
		w.look(0, ledger.Time(time.Hour).Add(time.Duration(i)*tick))
	}
	if got := state(t, waiting); got != "open" {
		t.Errorf("what waits is %s, want open", got)
	}
}

func TestRelease(t *testing.T) {
	ours, port := listen(t, loader.ListenerMark)
	taken, direct := dial(t, token, port), dial(t, "127.0.0.1", port)
	accept(t, ours)
	accept(t, ours)
	w := self(t)
	if err := w.find(); err != nil {
		t.Fatal(err)
	}
	if n, err := w.release(); n != 1 || err != nil {
		t.Errorf("released %d, %v, want 1", n, err)
	}
	if got := state(t, taken); got != "reset" {
		t.Errorf("what was taken is %s, want reset", got)
	}
	// Nor is the client's own end touched, which is in this process as well.
	if got := state(t, direct); got != "open" {
		t.Errorf("what the hook did not lead is %s, want open", got)
	}
}

func TestIsStopped(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	pid := cmd.Process.Pid
	if isStopped(pid) {
		t.Error("a process that sleeps is taken for stopped")
	}
	for _, stop := range []bool{true, false} {
		sig := unix.SIGCONT
		if stop {
			sig = unix.SIGSTOP
		}
		if err := cmd.Process.Signal(sig); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(10 * time.Second); isStopped(pid) != stop; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("after signal %d: stopped = %v", sig, !stop)
			}
		}
	}
	if isStopped(-1) {
		t.Error("no process is taken for stopped")
	}
}
