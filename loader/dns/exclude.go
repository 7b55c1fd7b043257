// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"syscall"

	"github.com/cilium/ebpf"
)

// Exclude lets the answers be that sockets of the cgroups at these paths, and
// below them, receive. It replaces the paths given before. Those that do not
// exist are passed over, and one that was removed and made again is another
// one: whoever wants them to be followed calls it again.
func (r *Reader) Exclude(paths []string) error {
	want := make(map[uint64]struct{})
	for _, p := range paths {
		info, err := os.Stat(filepath.Join(r.root, path.Clean("/"+p)))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return fmt.Errorf("find excluded cgroup: %w", err)
		}
		want[info.Sys().(*syscall.Stat_t).Ino] = struct{}{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for id := range want {
		if _, had := r.excluded[id]; had {
			continue
		}
		if err := r.objs.Excluded.Update(id, uint8(1), ebpf.UpdateAny); err != nil {
			return fmt.Errorf("exclude cgroup %d: %w", id, err)
		}
		r.excluded[id] = struct{}{}
	}
	for id := range r.excluded {
		if _, keep := want[id]; keep {
			continue
		}
		if err := r.objs.Excluded.Delete(id); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("end exclusion of cgroup %d: %w", id, err)
		}
		delete(r.excluded, id)
	}
	return nil
}
