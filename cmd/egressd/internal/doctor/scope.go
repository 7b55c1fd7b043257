// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/egressd/egressd/policy"
)

// Sources tell of processes. A nil one is not there.
type Sources struct {
	// KeyLog is the file to which a process logs its TLS secrets.
	KeyLog func(pid int) (path string, ok bool)
	// Look finds a process's TLS library.
	Look func(pid int) (Look, error)
}

// members lists the processes in the scope, by their cgroup's path from root.
func members(root string, scope policy.Scope) (map[int]string, error) {
	found := make(map[int]string)
	var errs []error
	for _, name := range scope.Cgroups {
		top := filepath.Join(root, path.Clean("/"+name))
		errs = append(errs, filepath.WalkDir(top, func(dir string, d fs.DirEntry, err error) error {
			if err != nil || !d.IsDir() {
				if errors.Is(err, fs.ErrNotExist) {
					return nil // removed meanwhile
				}
				return err
			}
			rel, err := filepath.Rel(root, dir)
			if err != nil {
				return err
			}
			at := path.Clean("/" + rel)
			if excluded(scope.Exclude, at) {
				return filepath.SkipDir
			}
			text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			if err != nil {
				return nil // removed meanwhile, or of threads only
			}
			for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
				if pid, err := strconv.Atoi(lines.Text()); err == nil && pid > 0 {
					found[pid] = at
				}
			}
			return nil
		}))
	}
	if err := errors.Join(errs...); err != nil {
		return found, fmt.Errorf("list processes of the scope: %w", err)
	}
	return found, nil
}

// excluded reports whether a cgroup is one of those that stay untouched, or
// lies below one.
func excluded(exclude []string, at string) bool {
	return slices.ContainsFunc(exclude, func(e string) bool {
		e = path.Clean("/" + e)
		return at == e || strings.HasPrefix(at, strings.TrimSuffix(e, "/")+"/")
	})
}

// processes looks at all processes of the scope, and at those of the flows.
// unseen counts those that could not be looked into.
func processes(ctx context.Context, pids map[int]string, flows map[int]map[string]int, own map[int]bool, src Sources, r rules) (list []Process, unseen int) {
	for pid := range flows {
		if _, known := pids[pid]; !known {
			pids[pid] = cgroupOf(pid)
		}
	}
	for pid, cgroup := range pids {
		if ctx.Err() != nil {
			break
		}
		if own[pid] {
			continue
		}
		f := facts{sights: flows[pid], unit: unitOf(cgroup)}
		if src.Look != nil {
			look, err := src.Look(pid)
			if errors.Is(err, fs.ErrPermission) {
				unseen++
			}
			f.look = look
		}
		n := 0
		for _, k := range f.sights {
			n += k
		}
		if n == 0 && f.look.Library == NoTLS {
			continue
		}
		if src.KeyLog != nil {
			f.keyLog, _ = src.KeyLog(pid)
		}
		p := Process{PID: pid, Command: command(pid), Cgroup: cgroup, Connections: n}
		if f.look.Library != NoTLS {
			p.Library = f.look.Name
		}
		var sight policy.Sight
		sight, p.Expected, p.Why, p.Next = f.judge(r)
		p.Sight = sight.String()
		list = append(list, p)
	}
	// Who has most to gain comes first.
	slices.SortFunc(list, func(a, b Process) int {
		return cmp.Or(cmp.Compare(b.Connections, a.Connections), cmp.Compare(a.PID, b.PID))
	})
	return list, unseen
}

// command is the name of a process's program, "" if it is gone.
func command(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(string(text), "\n")
}

// cgroupOf is the cgroup v2 path of a process, "" if it is gone.
func cgroupOf(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return ""
	}
	for l := range strings.Lines(string(text)) {
		if at, is := strings.CutPrefix(l, "0::"); is {
			return strings.TrimSuffix(at, "\n")
		}
	}
	return ""
}
