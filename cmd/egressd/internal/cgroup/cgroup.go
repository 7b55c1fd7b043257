// SPDX-License-Identifier: Apache-2.0

// Package cgroup makes and removes the control group in which one command
// runs. Finding processes by their group, rather than by their ancestry, also
// finds those that a command left behind.
package cgroup

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Group is a cgroup v2 that this process made.
type Group struct {
	dir    string // in the file system
	parent string
	path   string // from the root of the hierarchy
}

// Own returns the cgroup v2 path of the calling process, from the root of the
// hierarchy as this process sees it.
func Own() (string, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", fmt.Errorf("find own cgroup: %w", err)
	}
	for line := range bytes.Lines(text) {
		if p, ok := bytes.CutPrefix(line, []byte("0::")); ok {
			return string(bytes.TrimSuffix(p, []byte("\n"))), nil
		}
	}
	return "", errors.New("find own cgroup: this process is in no cgroup v2 hierarchy")
}

// Create makes a cgroup called name below parent in the hierarchy mounted at
// mount. The caller removes it.
func Create(mount, parent, name string) (*Group, error) {
	g := &Group{
		parent: filepath.Join(mount, parent),
		path:   path.Join("/", parent, name),
	}
	g.dir = filepath.Join(mount, g.path)
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return nil, fmt.Errorf("make cgroup: %w", err)
	}
	return g, nil
}

// Path is the group's path from the root of the hierarchy.
func (g *Group) Path() string { return g.path }

// Open opens the group's folder, by which a process can be started in it. The
// caller closes it.
func (g *Group) Open() (*os.File, error) {
	fd, err := unix.Open(g.dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open cgroup %s: %w", g.path, err)
	}
	return os.NewFile(uintptr(fd), g.dir), nil
}

// PIDs returns the processes in the group and in groups that they made below
// it.
func (g *Group) PIDs() ([]int, error) {
	var pids []int
	err := walk(g.dir, func(dir string) error {
		more, err := procs(dir)
		pids = append(pids, more...)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list processes of cgroup %s: %w", g.path, err)
	}
	return pids, nil
}

// Evacuate moves all processes to the parent group and reports how many.
func (g *Group) Evacuate() (int, error) {
	moved := 0
	// A process may fork while it is moved, so look again until none is left.
	for range 100 {
		pids, err := g.PIDs()
		if err != nil || len(pids) == 0 {
			return moved, err
		}
		for _, pid := range pids {
			err := os.WriteFile(filepath.Join(g.parent, "cgroup.procs"), strconv.AppendInt(nil, int64(pid), 10), 0)
			switch {
			case errors.Is(err, unix.ESRCH): // ended meanwhile
			case err != nil:
				return moved, fmt.Errorf("move process %d out of cgroup %s: %w", pid, g.path, err)
			default:
				moved++
			}
		}
	}
	return moved, fmt.Errorf("move processes out of cgroup %s: they fork faster than they can be moved", g.path)
}

// Kill ends all processes in the group at once and waits until they are gone,
// at most for patience.
func (g *Group) Kill(patience time.Duration) error {
	// cgroup.kill, from Linux 5.14, reaches every process in one step; before
	// it, one by one.
	err := os.WriteFile(filepath.Join(g.dir, "cgroup.kill"), []byte("1"), 0)
	byHand := errors.Is(err, fs.ErrNotExist)
	if err != nil && !byHand {
		return fmt.Errorf("kill processes of cgroup %s: %w", g.path, err)
	}
	for end := time.Now().Add(patience); ; {
		pids, err := g.PIDs()
		if err != nil || len(pids) == 0 {
			return err
		}
		if byHand {
			for _, pid := range pids {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
		if time.Now().After(end) {
			return fmt.Errorf("kill processes of cgroup %s: %d are still there", g.path, len(pids))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Remove removes the group and those below it. No process may be in them.
// Removing what is gone is no error.
func (g *Group) Remove() error {
	var dirs []string
	err := walk(g.dir, func(dir string) error {
		dirs = append(dirs, dir)
		return nil
	})
	if err != nil {
		return fmt.Errorf("remove cgroup %s: %w", g.path, err)
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		if err := removeDir(dirs[i]); err != nil {
			return fmt.Errorf("remove cgroup %s: %w", g.path, err)
		}
	}
	return nil
}

// removeDir removes one group. A process that has just ended may still be
// counted in it for a moment: the kernel answers EBUSY until it is reaped.
func removeDir(dir string) error {
	for end := time.Now().Add(time.Second); ; time.Sleep(5 * time.Millisecond) {
		err := unix.Rmdir(dir)
		switch {
		case err == nil, errors.Is(err, fs.ErrNotExist):
			return nil
		case !errors.Is(err, unix.EBUSY) || time.Now().After(end):
			return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
		}
	}
}

// walk calls f for dir and all groups below it, parents first.
func walk(dir string, f func(dir string) error) error {
	return filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !d.IsDir() {
			return err
		}
		return f(p)
	})
}

// procs lists the processes of one group.
func procs(dir string) ([]int, error) {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil // removed meanwhile
	}
	if err != nil {
		return nil, err
	}
	var pids []int
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		pid, err := strconv.Atoi(strings.TrimSpace(lines.Text()))
		if err != nil {
			return nil, fmt.Errorf("parse cgroup.procs: %w", err)
		}
		if pid != 0 { // 0: a process outside of our pid namespace
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
