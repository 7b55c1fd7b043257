// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hooks are the places at a cgroup where egressd puts programs, by the names
// and numbers of enum bpf_attach_type.
var hooks = map[string]uint32{
	"connect4": 10, "connect6": 11, "sendmsg4": 14, "sendmsg6": 15, "getpeername4": 29, "getpeername6": 30, "sock_release": 34,
}

// attached lists the hooks at which the cgroup itself has a program.
func attached(dir string) ([]string, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open cgroup: %w", err)
	}
	defer unix.Close(fd)
	var found []string
	for name, hook := range hooks {
		// The part of union bpf_attr that BPF_PROG_QUERY uses.
		attr := struct {
			target, attach, flags, attachFlags uint32
			ids                                uint64
			count, pad                         uint32
			progAttachFlags                    uint64
		}{target: uint32(fd), attach: hook}
		if err := bpf(unix.BPF_PROG_QUERY, unsafe.Pointer(&attr), unsafe.Sizeof(attr)); err != nil {
			return nil, fmt.Errorf("query programs at %s of %s: %w", name, dir, err)
		}
		if attr.count > 0 {
			found = append(found, name)
		}
	}
	return found, nil
}

// mustBeClean fails the test if anything is at the cgroup or below it but
// the processes of the test's clients.
func mustBeClean(t testing.TB, g *group) {
	t.Helper()
	err := filepath.WalkDir(g.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if path != g.dir {
			t.Errorf("cgroup %s was left behind", path)
		}
		hooks, err := attached(path)
		if len(hooks) > 0 {
			t.Errorf("programs at cgroup %s: got %v, want none", path, hooks)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// leftovers looks for what tests must not leave.
func (s *site) leftovers() (left []string) {
	if s.cgroup != "" {
		_ = filepath.WalkDir(s.cgroup, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return nil
			}
			if path != s.cgroup {
				left = append(left, "cgroup "+path)
			}
			if hooks, _ := attached(path); len(hooks) > 0 {
				left = append(left, fmt.Sprintf("programs at cgroup %s: %v", path, hooks))
			}
			return nil
		})
	}
	if s.pins != "" {
		entries, err := os.ReadDir(s.pins)
		if err != nil {
			left = append(left, err.Error())
		}
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".debug") {
				continue // the kernel's own, in every bpffs
			}
			left = append(left, "pins in "+filepath.Join(s.pins, e.Name()))
		}
	}
	names, _ := os.ReadDir("/run/netns")
	for _, n := range names {
		if strings.HasPrefix(n.Name(), netnsPrefix()) {
			left = append(left, "network namespace "+n.Name())
		}
	}
	for _, pid := range s.processes() {
		cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		left = append(left, fmt.Sprintf("process %d: %s", pid, bytes.ReplaceAll(cmdline, []byte{0}, []byte{' '})))
	}
	return left
}

// processes finds the living processes that tests started, by the marker in
// their environment.
func (s *site) processes() (pids []int) {
	mark := []byte(markerName + "=" + s.marker + "\x00")
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		environ, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil || !bytes.Contains(environ, mark) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(dir)); err == nil && pid != os.Getpid() {
			pids = append(pids, pid)
		}
	}
	return pids
}
