// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"fmt"
	"io/fs"
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

// mount is where the hierarchy is. Making groups takes root.
func mount(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make cgroups")
	}
	root, err := loader.CgroupRoot()
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// group makes a group below the root for one test.
func group(t *testing.T) *Group {
	t.Helper()
	g, err := Create(mount(t), "/", fmt.Sprintf("egressd-cgroup-test-%d-%d", os.Getpid(), time.Now().UnixNano()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Kill(5 * time.Second); err != nil {
			t.Error(err)
		}
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(g.dir); !os.IsNotExist(err) {
			t.Errorf("%s is still there (%v)", g.dir, err)
		}
	})
	return g
}

// start runs a command in g and reaps it at the end of the test.
func start(t *testing.T, g *Group, args ...string) *exec.Cmd {
	t.Helper()
	dir, err := g.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

func TestProcessesAreFound(t *testing.T) {
	g := group(t)
	if pids, err := g.PIDs(); err != nil || len(pids) != 0 {
		t.Fatalf("new group: got processes %v, %v, want none", pids, err)
	}
	cmd := start(t, g, "sleep", "60")
	pids, err := g.PIDs()
	if err != nil || len(pids) != 1 || pids[0] != cmd.Process.Pid {
		t.Errorf("got processes %v, %v, want %d", pids, err, cmd.Process.Pid)
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "0::"+g.Path()+"\n") {
		t.Errorf("got cgroups %q of the process, want %s among them", text, g.Path())
	}
}

func TestKillEndsGroupsBelowToo(t *testing.T) {
	g := group(t)
	below, err := Create(filepath.Dir(g.dir), filepath.Base(g.dir), "below")
	if err != nil {
		t.Fatal(err)
	}
	start(t, g, "sleep", "60")
	start(t, below, "sleep", "60")
	if pids, err := g.PIDs(); err != nil || len(pids) != 2 {
		t.Fatalf("got processes %v, %v, want two", pids, err)
	}
	if err := g.Kill(5 * time.Second); err != nil {
		t.Error(err)
	}
	if pids, err := g.PIDs(); err != nil || len(pids) != 0 {
		t.Errorf("got processes %v, %v, want none", pids, err)
	}
}

func TestEvacuate(t *testing.T) {
	g := group(t)
	cmd := start(t, g, "sleep", "60")
	n, err := g.Evacuate()
	if err != nil || n != 1 {
		t.Errorf("got %d moved, %v, want 1", n, err)
	}
	if pids, err := g.PIDs(); err != nil || len(pids) != 0 {
		t.Errorf("got processes %v, %v, want none", pids, err)
	}
	if err := cmd.Process.Signal(unix.Signal(0)); err != nil {
		t.Errorf("the process did not live on: %v", err)
	}
}

func TestRemoveWhatIsGone(t *testing.T) {
	g := group(t)
	for range 2 {
		if err := g.Remove(); err != nil {
			t.Errorf("got error %v", err)
		}
	}
	if pids, err := g.PIDs(); err != nil || len(pids) != 0 {
		t.Errorf("got processes %v, %v, want none", pids, err)
	}
}

func TestCreateTwice(t *testing.T) {
	g := group(t)
	if _, err := Create(filepath.Dir(g.dir), "/", filepath.Base(g.dir)); err == nil {
		t.Error("got no error for a group that is there")
	}
}

func TestOwn(t *testing.T) {
	got, err := Own()
	if err != nil || !strings.HasPrefix(got, "/") {
		t.Errorf("got %q, %v, want a path", got, err)
	}
}

func TestProcsRejectsGarbage(t *testing.T) {
	dir := t.TempDir()
	for _, tt := range []struct {
		text string
		want string
	}{
		{"12\n0\n34\n", "[12 34]"},
		{"", "[]"},
		{"12\nabc\n", "error"},
	} {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(tt.text), fs.FileMode(0o600)); err != nil {
			t.Fatal(err)
		}
		pids, err := procs(dir)
		got := fmt.Sprint(pids)
		if err != nil {
			got = "error"
		}
		if got != tt.want {
			t.Errorf("%s: got %s, want %s", strconv.Quote(tt.text), got, tt.want)
		}
	}
}
