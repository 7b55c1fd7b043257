// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/loader"
)

// launchName makes this test binary the parent of a daemon, which it leaves.
const launchName = "EGRESSD_LAB_LAUNCH"

// launch starts a daemon with args, its log appended to the file args[0],
// prints its process id and ends: the daemon becomes init's child, as a
// service is.
func launch(args []string) {
	log, err := os.OpenFile(args[0], os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err == nil {
		cmd := exec.Command(args[1], args[2:]...)
		cmd.Stdout, cmd.Stderr = log, log
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err = cmd.Start(); err == nil {
			fmt.Println(cmd.Process.Pid)
			os.Exit(0)
		}
	}
	fmt.Fprintln(os.Stderr, "launch:", err)
	os.Exit(1)
}

// Where an installed daemon has its things.
const (
	egressd = "/usr/bin/egressd"
	socket  = "/run/egressd/egressd.sock"
	pins    = "/sys/fs/bpf/egressd"
)

// daemon is an `egressd run` at the root cgroup of the machine, with its files
// and pins where they are by default.
type daemon struct {
	config, log string
	pid         int
	pidfd       int
}

// newDaemon starts one whose budgets are YAML, indented by two.
func newDaemon(t testing.TB, budgets string) *daemon {
	t.Helper()
	needVM(t)
	dir := t.TempDir()
	d := &daemon{config: filepath.Join(dir, "egressd.yml"), log: filepath.Join(dir, "log")}
	text := "metrics: {listen: \"127.0.0.1:0\"}\nbudgets:\n" + budgets + "\n"
	if err := os.WriteFile(d.config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(d.log)
			t.Logf("egressd run:\n%s", log)
		}
		if d.pid != 0 {
			d.stop(t)
		}
		if err := os.RemoveAll(pins); err != nil {
			t.Errorf("remove pins: %v", err)
		}
	})
	d.start(t)
	return d
}

// start runs the daemon as init's child and returns when it says that it is
// ready.
func (d *daemon) start(t testing.TB) {
	t.Helper()
	name := filepath.Join(filepath.Dir(d.config), "notify.sock")
	notify, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: name})
	if err != nil {
		t.Fatal(err)
	}
	defer os.Remove(name)
	defer notify.Close()
	cmd := exec.Command("/proc/self/exe", d.log, egressd, "run", "--config", d.config)
	cmd.Env = append(os.Environ(), launchName+"=1", "NOTIFY_SOCKET="+name)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	if d.pid, err = strconv.Atoi(strings.TrimSpace(string(out))); err != nil {
		t.Fatal(err)
	}
	if d.pidfd, err = unix.PidfdOpen(d.pid, 0); err != nil {
		t.Fatal(err)
	}
	if got := parent(t, d.pid); got != 1 {
		t.Fatalf("got process %d as the daemon's parent, want 1", got)
	}
	text := make([]byte, 4096)
	for end := time.Now().Add(60 * time.Second); ; {
		if err := notify.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		n, err := notify.Read(text)
		switch {
		case err == nil && strings.Contains(string(text[:n]), "READY=1"):
			return
		case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
			t.Fatal(err)
		case d.ended(t, 0):
			unix.Close(d.pidfd)
			d.pid = 0
			t.Fatal("the daemon ended before it was ready")
		case time.Now().After(end):
			t.Fatal("the daemon is not ready after 60 s")
		}
	}
}

// parent is the parent of a process.
func parent(t testing.TB, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\nPPid:")
	line, _, _ := strings.Cut(rest, "\n")
	ppid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	return ppid
}

func (d *daemon) signal(t testing.TB, s unix.Signal) {
	t.Helper()
	if err := unix.PidfdSendSignal(d.pidfd, s, nil, 0); err != nil {
		t.Fatalf("signal %d: %v", s, err)
	}
}

// stop ends the daemon by SIGTERM, gone waits for its end.
func (d *daemon) stop(t testing.TB) {
	t.Helper()
	d.signal(t, unix.SIGTERM)
	d.gone(t)
}

// kill ends the daemon without a word.
func (d *daemon) kill(t testing.TB) {
	t.Helper()
	d.signal(t, unix.SIGKILL)
	d.gone(t)
}

// gone waits for the end of the daemon, and checks that it took the programs
// with it.
func (d *daemon) gone(t testing.TB) {
	t.Helper()
	if !d.ended(t, 30*time.Second) {
		t.Fatal("the daemon has not ended after 30 s")
	}
	unix.Close(d.pidfd)
	d.pid = 0
	// The kernel lets go of links a little after the process.
	var left []loader.Present
	waitFor(t, "the programs to go with the daemon", func() bool {
		left = programs(t)
		return len(left) == 0
	})
}

// ended reports whether the daemon's process ends within a time.
func (d *daemon) ended(t testing.TB, within time.Duration) bool {
	t.Helper()
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(d.pidfd), Events: unix.POLLIN}}, int(within.Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		return n == 1
	}
}

// programs lists those at the root cgroup.
func programs(t testing.TB) []loader.Present {
	t.Helper()
	root, err := loader.CgroupRoot()
	if err != nil {
		t.Fatal(err)
	}
	list, err := loader.ProgramsAt(root, []string{"/"})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// ask runs a command of egressd.
func ask(t testing.TB, args ...string) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd := exec.Command(egressd, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("egressd %v: %v\n%s%s", args, err, stdout.Bytes(), stderr.Bytes())
	}
	return stdout.String()
}

func askJSON(t testing.TB, into any, args ...string) {
	t.Helper()
	text := ask(t, append(args, "--json", "--socket", socket)...)
	if err := json.Unmarshal([]byte(text), into); err != nil {
		t.Fatalf("egressd %v: %v in\n%s", args, err, text)
	}
}

// lane is what tests want to know from `egressd lanes`.
type lane struct {
	Lane      string
	Granted   int
	Open      bool
	ClosedFor float64 `json:"closed_for_s"`
}

// theLane is the only lane that there is.
func theLane(t testing.TB) lane {
	t.Helper()
	var all []lane
	askJSON(t, &all, "lanes")
	if len(all) != 1 {
		t.Fatalf("got lanes %+v, want one", all)
	}
	return all[0]
}

// answer is what came of one request.
type answer struct {
	begin, end Mono
	status     int
	direct     bool // the origin saw the client's own socket
	err        error
}

func (a answer) String() string {
	return fmt.Sprintf("status %d, direct %t, error %v after %v", a.status, a.direct, a.err, a.end.Sub(a.begin))
}

// patience is how long a request waits for its end.
const patience = 10 * time.Second

// get asks an origin of this machine, from this process, with a connection of
// its own.
func get(addr string) (a answer) {
	a.begin = Now()
	a.status, a.direct, a.err = try(addr)
	a.end = Now()
	return a
}

func try(addr string) (status int, direct bool, err error) {
	d := net.Dialer{Timeout: patience}
	d.SetMultipathTCP(false)
	conn, err := d.Dial("tcp", addr)
	if err != nil {
		return 0, false, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return 0, false, err
	}
	if _, err := fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", addr); err != nil {
		return 0, false, err
	}
	text, err := io.ReadAll(conn)
	if err != nil {
		return 0, false, err
	}
	head, body, _ := strings.Cut(string(text), "\r\n\r\n")
	if _, err := fmt.Sscanf(head, "HTTP/1.1 %d", &status); err != nil {
		return 0, false, fmt.Errorf("answer %.100q: %w", text, err)
	}
	return status, body == conn.LocalAddr().String(), nil
}
