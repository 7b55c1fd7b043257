// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/cmd/egressd/internal/cgroup"
	"github.com/egressd/egressd/loader"
)

// live is a daemon in a process of its own, with a cgroup whose processes it
// shapes.
type live struct {
	t      *testing.T
	dir    string
	socket string
	config string
	group  *os.File
	path   string // of the group, from the root of the hierarchy
	client *admin.Client
	daemon *exec.Cmd
	log    bytes.Buffer
}

// shortDir makes a folder for the test: those of testing have names that are too
// long for sockets.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "egressd-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// newLive starts a daemon with those budgets, YAML indented by two, until the
// test ends.
func newLive(t *testing.T, budgets string) *live {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to attach programs")
	}
	root, err := loader.CgroupRoot()
	if err != nil {
		t.Fatal(err)
	}
	group, err := cgroup.Create(root, "/", fmt.Sprintf("egressd-live-%d-%d", os.Getpid(), groups.Add(1)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := group.Kill(5 * time.Second); err != nil {
			t.Error(err)
		}
		if err := group.Remove(); err != nil {
			t.Error(err)
		}
	})
	dir := shortDir(t)
	l := &live{t: t, dir: dir, path: group.Path(), socket: filepath.Join(dir, "admin.sock"), config: filepath.Join(dir, "policy.yml")}
	l.client = admin.NewClient(l.socket)
	if l.group, err = os.Open(filepath.Join(root, group.Path())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.group.Close() })
	l.write(budgets)
	l.start()
	t.Cleanup(l.stop)
	return l
}

// write writes the policy file.
func (l *live) write(budgets string) {
	l.t.Helper()
	text := fmt.Sprintf("scope: {cgroups: [%s]}\nmetrics: {listen: \"127.0.0.1:0\"}\nadmin: {socket: %s}\nbudgets:\n%s\n", l.path, l.socket, budgets)
	if err := os.WriteFile(l.config, []byte(text), 0o600); err != nil {
		l.t.Fatal(err)
	}
}

// start runs the daemon and waits until it is attached.
func (l *live) start() {
	l.t.Helper()
	l.daemon = exec.Command("egressd", "run", "--config", l.config, "--pin-dir=")
	l.daemon.Stderr = &l.log
	if err := l.daemon.Start(); err != nil {
		l.t.Fatal(err)
	}
	var last error
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		s, err := l.client.Status(l.t.Context())
		if last = err; err == nil && s.Kernel.Attached && s.Kernel.Canary.OK {
			return
		}
	}
	l.stop()
	l.t.Fatalf("the daemon did not become ready: %v\n%s", last, l.log.String())
}

// stop ends the daemon, if it runs.
func (l *live) stop() {
	if l.daemon == nil {
		return
	}
	if err := l.daemon.Process.Signal(unix.SIGTERM); err != nil {
		l.t.Error(err)
	}
	if err := l.daemon.Wait(); err != nil {
		l.t.Errorf("the daemon: %v", err)
	}
	l.daemon = nil
	if l.t.Failed() {
		l.t.Logf("the daemon's log:\n%s", l.log.String())
	}
}

// run starts a process in the cgroup, until the test ends.
func (l *live) run(args ...string) *exec.Cmd {
	l.t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(l.group.Fd())}
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()
	})
	return cmd
}

// ask runs a command of egressd on the daemon.
func (l *live) ask(args ...string) string {
	l.t.Helper()
	var out, errs strings.Builder
	cmd := exec.Command("egressd", append(args, "--socket", l.socket)...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		l.t.Fatalf("egressd %v: %v\n%s", args, err, errs.String())
	}
	return out.String()
}

// slowOrigin answers after a while, as origins do, so that connections can be
// seen, and limits to so many requests a second by a bucket of as many.
type slowOrigin struct {
	wait  time.Duration
	limit float64 // 0: none

	mu     sync.Mutex
	tokens float64
	last   time.Time
}

func (o *slowOrigin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	limited := o.limit > 0 && !o.take()
	select {
	case <-time.After(o.wait):
	case <-r.Context().Done():
	}
	if limited {
		w.WriteHeader(http.StatusTooManyRequests)
		return
	}
	_, _ = fmt.Fprintln(w, "hello")
}

func (o *slowOrigin) take() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	if o.last.IsZero() {
		o.tokens = max(o.limit, 1)
	} else {
		o.tokens = min(max(o.limit, 1), o.tokens+now.Sub(o.last).Seconds()*o.limit)
	}
	o.last = now
	if o.tokens < 1 {
		return false
	}
	o.tokens--
	return true
}

// serve runs an origin on the loopback and returns its port.
func (o *slowOrigin) serve(t *testing.T, start func(*httptest.Server)) int {
	t.Helper()
	server := httptest.NewUnstartedServer(o)
	start(server)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server.Listener.Addr().(*net.TCPAddr).Port
}
