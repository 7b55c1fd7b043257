// SPDX-License-Identifier: Apache-2.0

package sight_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/loader"
	"github.com/egressd/egressd/loader/sight"
	"github.com/egressd/egressd/loader/sight/discover"
)

// rig is a Sight on a cgroup of its own, all of whose events are kept.
type rig struct {
	*sight.Sight
	t      testing.TB
	cgroup string // directory

	mu     sync.Mutex
	events []sight.Event
}

var cgroups atomic.Int32

// testCgroup makes a cgroup for one test, below which nobody else lives.
func testCgroup(t testing.TB) (root, name string) {
	t.Helper()
	root, err := loader.CgroupRoot()
	if err != nil {
		t.Fatal(err)
	}
	name = fmt.Sprintf("egressd-sight-%d-%d", os.Getpid(), cgroups.Add(1))
	dir := filepath.Join(root, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		var err error
		for range 200 {
			if err = os.Remove(dir); err == nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
		t.Errorf("cgroup is still in use: %v", err)
	})
	return root, name
}

func newRig(t testing.TB) *rig {
	t.Helper()
	return newRigAs(t, sight.Open)
}

func newRigAs(t testing.TB, open func(sight.Config) (*sight.Sight, error)) *rig {
	t.Helper()
	r := &rig{t: t}
	root, name := testCgroup(t)
	r.cgroup = filepath.Join(root, name)
	s, err := open(sight.Config{Root: root, Cgroups: []string{name}, RingBytes: 16 << 20})
	if err != nil {
		t.Fatalf("%+v", err)
	}
	r.Sight = s
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, r.keep) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return r
}

func (r *rig) keep(ev sight.Event) {
	ev.Data = bytes.Clone(ev.Data)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, ev)
}

func (r *rig) all() []sight.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// settle waits until everything that the probes saw has arrived.
func (r *rig) settle() []sight.Event {
	r.t.Helper()
	// Patience begins anew with each event that comes: on a busy machine the reader
	// may be far behind.
	seen := 0
	for left := 500; left > 0; left-- {
		counts := r.counts()
		events := r.all()
		if uint64(len(events)) >= counts.Events {
			return events
		}
		if len(events) > seen {
			seen, left = len(events), 500
		}
		time.Sleep(10 * time.Millisecond)
	}
	r.t.Fatalf("%d events arrived of %+v", len(r.all()), r.counts())
	return nil
}

func (r *rig) counts() sight.Counts {
	r.t.Helper()
	c, err := r.Counts()
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// target finds the functions of a file.
func target(t testing.TB, path string) []sight.Target {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	contents, err := discover.Inspect(f)
	if err != nil {
		t.Fatalf("inspect %s: %v", path, err)
	}
	if len(contents.Targets) == 0 {
		t.Fatalf("nothing to probe in %s: %+v", path, contents)
	}
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	for i := range contents.Targets {
		contents.Targets[i].Path = path
		contents.Targets[i].Name = path
		contents.Targets[i].Inode = info.Sys().(*syscall.Stat_t).Ino
	}
	return contents.Targets
}

func (r *rig) probe(paths ...string) []io.Closer {
	r.t.Helper()
	var closers []io.Closer
	for _, path := range paths {
		for _, target := range target(r.t, path) {
			c, err := r.Attach(target)
			if err != nil {
				r.t.Fatal(err)
			}
			closers = append(closers, c)
		}
	}
	return closers
}

// libraryOf is the path of a shared library that a program is linked with.
func libraryOf(t testing.TB, program, name string) string {
	t.Helper()
	out, err := exec.Command("ldd", program).CombinedOutput()
	if err != nil {
		t.Fatalf("ldd %s: %v: %s", program, err, out)
	}
	for line := range strings.Lines(string(out)) {
		if before, after, ok := strings.Cut(line, "=>"); ok && strings.Contains(before, name) {
			path, err := filepath.EvalSymlinks(strings.Fields(after)[0])
			if err != nil {
				t.Fatal(err)
			}
			return path
		}
	}
	t.Fatalf("%s is not linked with %s:\n%s", program, name, out)
	return ""
}

// need is the path of a program, and the end of the test without it.
func need(t testing.TB, program string) string {
	t.Helper()
	path, err := exec.LookPath(program)
	if err != nil {
		t.Fatalf("this test runs %s: %v", program, err)
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// command prepares a program to run in the cgroup.
func (r *rig) command(name string, args ...string) *exec.Cmd {
	r.t.Helper()
	return commandIn(r.t, r.cgroup, name, args...)
}

func commandIn(t testing.TB, cgroup, name string, args ...string) *exec.Cmd {
	t.Helper()
	dir, err := os.OpenFile(cgroup, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd()), Pdeathsig: syscall.SIGKILL}
	return cmd
}

// run runs a program in the cgroup, which must end with one of the codes.
func (r *rig) run(codes []int, name string, args ...string) {
	r.t.Helper()
	cmd := r.command(name, args...)
	out, err := cmd.CombinedOutput()
	if !slices.Contains(codes, cmd.ProcessState.ExitCode()) {
		r.t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
}
