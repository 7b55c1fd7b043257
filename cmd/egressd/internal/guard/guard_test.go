// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/daemon"
	"github.com/egressd/egressd/loader"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/config"
)

// guardConfig is a daemon for a guard, with canary as its self-test.
func guardConfig(t *testing.T, canary ...string) daemon.Config {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to attach programs")
	}
	return daemon.Config{
		Policy: func() (*policy.Policy, error) {
			p := config.Default()
			p.Admin.Socket, p.Metrics.Listen = "", ""
			b, err := config.ParseLimit("localhost:1=1/s")
			p.Budgets = append(p.Budgets, b)
			return p, err
		},
		Canary: canary,
		PID:    os.Getpid(),
		Logger: slog.New(slog.DiscardHandler),
	}
}

// leftovers are the cgroups of guards of this process.
func leftovers(t *testing.T) []string {
	t.Helper()
	root, err := loader.CgroupRoot()
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	err = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), "egressd-"+strconv.Itoa(os.Getpid())+"-") {
			found = append(found, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// TestMain lets this binary be the canary: one connection, and success
// whatever becomes of it.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "canary" {
		if conn, err := net.DialTimeout("tcp", os.Args[2], time.Second); err == nil {
			_ = conn.Close()
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestGuard(t *testing.T) {
	g, err := Start(t.Context(), guardConfig(t, "/proc/self/exe", "canary"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sleep", "300")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(g.Cgroup().Fd())}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	if left, err := g.Left(); err != nil || len(left) != 1 || left[0] != cmd.Process.Pid {
		t.Errorf("got processes %v, %v, want %d", left, err, cmd.Process.Pid)
	}
	if lanes := g.Lanes(); len(lanes) != 0 {
		t.Errorf("got lanes %v before any request, want none", lanes)
	}
	for range 2 { // a second Stop does nothing
		if err := g.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	}
	if err := g.Remove(); err != nil {
		t.Errorf("remove: %v", err)
	}
	if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the process in the cgroup did not live on: %v", err)
	}
	if left := leftovers(t); len(left) != 0 {
		t.Errorf("got cgroups %v after the end, want none", left)
	}
}

// TestFailedSelfTest holds that nothing runs under a guard that does not work.
func TestFailedSelfTest(t *testing.T) {
	_, err := Start(t.Context(), guardConfig(t, "true"))
	if err == nil || !strings.Contains(err.Error(), "did not see the connection") {
		t.Errorf("got error %v, want that the hook did not see the connection", err)
	}
	if left := leftovers(t); len(left) != 0 {
		t.Errorf("got cgroups %v after the failure, want none", left)
	}
}
