// SPDX-License-Identifier: Apache-2.0

package sight

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/cilium/ebpf"
)

const (
	// rootCgroup is the id of the root of every cgroup v2 hierarchy.
	rootCgroup = 1
	// maxLevels is MAX_SCOPE_LEVELS of bpf/sight_scope.h.
	maxLevels = 16

	seen     = 1
	excluded = 2
)

// SetScope says anew which cgroups are seen and which are not, as Config does.
// On an error the scope is as before. A cgroup that is made later, under the
// same name as one that was removed, is another one.
func (s *Sight) SetScope(cgroups, exclude []string) error {
	if len(cgroups) == 0 {
		cgroups = []string{"/"}
	}
	want := make(map[uint64]uint8)
	var levels uint32
	add := func(name string, how uint8) error {
		id, err := cgroupID(filepath.Join(s.root, path.Clean("/"+name)))
		if err != nil {
			return fmt.Errorf("find cgroup %s: %w", name, err)
		}
		level := levelOf(name)
		if level >= maxLevels {
			return fmt.Errorf("cgroup %s: more than %d levels below the root", name, maxLevels-1)
		}
		levels |= 1 << level
		want[id] = max(want[id], how)
		return nil
	}
	for _, name := range cgroups {
		if err := add(name, seen); err != nil {
			return err
		}
	}
	for _, name := range exclude {
		if err := add(name, excluded); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	// A part of the hierarchy does not show how deep it lies.
	if id, err := cgroupID(s.root); err != nil || id != rootCgroup {
		levels = 1<<maxLevels - 1
	}

	s.mu.Lock()
	defer s.mu.Unlock()
	// What is new first, what is old last: nobody who stays in the scope is
	// out of it for a moment.
	for id, how := range want {
		if err := s.objs.Scope.Update(id, how, ebpf.UpdateAny); err != nil {
			return fmt.Errorf("set scope: %w", err)
		}
	}
	atomic.StoreUint32(&s.control.Levels, s.control.Levels|levels)
	for id := range s.scope {
		if want[id] != 0 {
			continue
		}
		if err := s.objs.Scope.Delete(id); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("set scope: %w", err)
		}
	}
	atomic.StoreUint32(&s.control.Levels, levels)
	s.scope = want
	return nil
}

// levelOf is how many levels below the root a cgroup lies.
func levelOf(name string) int {
	name = strings.Trim(path.Clean("/"+name), "/")
	if name == "" {
		return 0
	}
	return 1 + strings.Count(name, "/")
}

// cgroupID is the id by which the programs know the cgroup: its inode, on
// every 64-bit kernel.
func cgroupID(dir string) (uint64, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return 0, err
	}
	return info.Sys().(*syscall.Stat_t).Ino, nil
}
