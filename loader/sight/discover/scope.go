// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// scope is the set of processes to look at: those in or below some cgroups and
// not in or below others.
type scope struct {
	root             string // where the root of the cgroup v2 hierarchy is
	cgroups, exclude []string
}

func newScope(root string, cgroups, exclude []string) scope {
	clean := func(list []string) []string {
		var out []string
		for _, p := range list {
			out = append(out, path.Clean("/"+p))
		}
		return out
	}
	if len(cgroups) == 0 {
		cgroups = []string{"/"}
	}
	return scope{root: root, cgroups: clean(cgroups), exclude: clean(exclude)}
}

// below reports whether the cgroup is one of the list or lies below one.
func below(cgroup string, list []string) bool {
	for _, p := range list {
		if p == "/" || cgroup == p || strings.HasPrefix(cgroup, p+"/") {
			return true
		}
	}
	return false
}

// covers reports whether the processes of a cgroup are to be looked at.
func (s scope) covers(cgroup string) bool {
	return below(cgroup, s.cgroups) && !below(cgroup, s.exclude)
}

// has reports whether a process is to be looked at now.
func (s scope) has(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return false
	}
	cgroup, ok := parseCgroup(b)
	if !ok {
		return false
	}
	if cgroup == "/.." || strings.HasPrefix(cgroup, "/../") {
		// We are in a cgroup namespace and it is not: its path is told from
		// where we are, and where that is nobody says.
		return s.lists(pid)
	}
	return s.covers(cgroup)
}

// parseCgroup reads /proc/PID/cgroup (cgroups(7)): the line of the v2
// hierarchy begins with 0 and has no controllers.
func parseCgroup(b []byte) (cgroup string, ok bool) {
	for line := range bytes.Lines(b) {
		if p, found := bytes.CutPrefix(line, []byte("0::")); found {
			return strings.TrimSuffix(strings.TrimSuffix(string(p), "\n"), " (deleted)"), true
		}
	}
	return "", false
}

// lists reports whether a process is found in a cgroup to look at.
func (s scope) lists(pid int) bool {
	for _, p := range s.pids() {
		if p == pid {
			return true
		}
	}
	return false
}

// pids returns the processes to look at, in no order. What cannot be read,
// since it was removed meanwhile, has none.
func (s scope) pids() []int {
	var pids []int
	seen := map[int]bool{}
	for i, top := range s.cgroups {
		if below(top, s.cgroups[:i]) || below(top, s.exclude) {
			continue
		}
		filepath.WalkDir(filepath.Join(s.root, top), func(dir string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				return nil
			}
			if below(strings.TrimPrefix(dir, strings.TrimSuffix(s.root, "/")), s.exclude) {
				return fs.SkipDir
			}
			b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			if err != nil {
				return nil
			}
			for line := range bytes.Lines(b) {
				// 0 stands for what a PID namespace hides.
				pid, err := strconv.Atoi(string(bytes.TrimSpace(line)))
				if err == nil && pid > 0 && !seen[pid] {
					seen[pid] = true
					pids = append(pids, pid)
				}
			}
			return nil
		})
	}
	return pids
}
