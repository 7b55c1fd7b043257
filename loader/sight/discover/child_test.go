// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/loader"
)

// group is a cgroup of its own for the processes of a test.
type group struct {
	t    testing.TB
	root string
	path string // from the root
}

// mustGroup makes a cgroup and removes it at the end. It is skipped without
// the rights to.
func mustGroup(t testing.TB) group {
	t.Helper()
	root, err := loader.CgroupRoot()
	if err != nil {
		t.Skipf("no cgroups: %v", err)
	}
	dir, err := os.MkdirTemp(root, "egressd-discover-test-")
	if errors.Is(err, os.ErrPermission) || errors.Is(err, unix.EROFS) {
		t.Skipf("needs the right to make cgroups: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	g := group{t, root, "/" + filepath.Base(dir)}
	t.Cleanup(func() {
		// Children that a test forked are not known by their numbers, and leave
		// the cgroup a moment after they were killed.
		if err := os.WriteFile(filepath.Join(g.dir(), "cgroup.kill"), []byte("1"), 0); err != nil {
			t.Errorf("end what is left in the cgroup: %v", err)
		}
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			if err := os.Remove(g.dir()); err == nil || errors.Is(err, os.ErrNotExist) {
				return
			} else if time.Now().After(deadline) {
				t.Errorf("remove cgroup: %v", err)
				return
			}
		}
	})
	return g
}

func (g group) dir() string { return filepath.Join(g.root, g.path) }

// child is a process that is told what to do by lines.
type child struct {
	t   testing.TB
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// start starts a program in the cgroup.
func (g group) start(name string, args ...string) *child {
	g.t.Helper()
	dir, err := os.Open(g.dir())
	if err != nil {
		g.t.Fatal(err)
	}
	defer dir.Close()
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd()), Pdeathsig: syscall.SIGKILL}
	return mustStart(g.t, cmd)
}

func mustStart(t testing.TB, cmd *exec.Cmd) *child {
	t.Helper()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c := &child{t, cmd, in, bufio.NewReader(out)}
	t.Cleanup(c.end)
	return c
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// end ends the process and waits for it.
func (c *child) end() {
	if c.cmd.ProcessState == nil {
		c.cmd.Process.Kill()
		c.cmd.Wait()
	}
}

// python is a Python that runs each line it is told, and answers.
func (g group) python() *child {
	g.t.Helper()
	const loop = "import sys\nfor line in sys.stdin:\n exec(line)\n print('done', flush=True)\n"
	return g.start(mustPython(g.t), "-c", loop)
}

// mustPython returns a Python without a wrapper in front of it.
func mustPython(t testing.TB) string {
	t.Helper()
	out := mustRun(t, "", nil, mustFind(t, "python3"), "-c", "import sys; print(sys.executable)")
	return strings.TrimSpace(out)
}

// do runs a line and waits until it has.
func (c *child) do(format string, args ...any) {
	c.t.Helper()
	if _, err := fmt.Fprintf(c.in, format+"\n", args...); err != nil {
		c.t.Fatal(err)
	}
	for {
		line, err := c.out.ReadString('\n')
		if err != nil {
			c.t.Fatalf("%s: %v", format, err)
		}
		if line == "done\n" {
			return
		}
	}
}

// mustMap returns the executable mapping of a file in a process.
func mustMap(t testing.TB, pid int, with func(mapping) bool) mapping {
	t.Helper()
	list, err := processMaps(pid)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list {
		if with(m) {
			return m
		}
	}
	t.Fatalf("no such mapping in %+v", list)
	return mapping{}
}

// mustCopy copies a file.
func mustCopy(t testing.TB, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o755); err != nil {
		t.Fatal(err)
	}
}

// mustID returns the device and inode of a file.
func mustID(t testing.TB, path string) fileID {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return fileID{uint64(st.Dev), st.Ino}
}
