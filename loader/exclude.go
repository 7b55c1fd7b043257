// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"sync/atomic"

	"github.com/cilium/ebpf"
)

// Exclude lets the processes of the cgroups at these paths, and below them,
// go untouched and uncounted. It replaces the paths given before. A path that
// does not exist takes effect with the first Sweep after it does, and one that
// was removed and made again, as systemd does with a service that restarts,
// is followed in the same way.
func (k *Kernel) Exclude(paths []string) error {
	k.stateMu.Lock()
	defer k.stateMu.Unlock()
	want := make(map[string]uint64, len(paths))
	for _, p := range paths {
		p = path.Clean("/" + p)
		want[p] = k.excluded[p]
		if _, err := cgroupID(cgroupDir(k.root, p)); err != nil {
			k.log.Warn("excluded cgroup does not exist now", "cgroup", p)
		}
	}
	var gone []uint64
	for p, id := range k.excluded {
		if !hasKey(want, p) && id != 0 {
			gone = append(gone, id)
		}
	}
	k.excluded = want
	if err := k.refreshExcluded(); err != nil {
		return err
	}
	return k.unexclude(gone)
}

// refreshExcluded looks each excluded path up again and writes what changed.
func (k *Kernel) refreshExcluded() error {
	var gone []uint64
	for _, p := range slices.Collect(maps.Keys(k.excluded)) {
		id, err := cgroupID(cgroupDir(k.root, p))
		if err != nil {
			id = 0 // removed, or not made yet
		}
		old := k.excluded[p]
		if id == old {
			continue
		}
		if id != 0 {
			if err := k.objs.Excluded.Update(id, uint8(1), ebpf.UpdateAny); err != nil {
				return fmt.Errorf("exclude cgroup %s: %w", p, err)
			}
		}
		if old != 0 {
			gone = append(gone, old)
		}
		k.excluded[p] = id
	}
	return k.unexclude(gone)
}

// unexclude removes ids of the map, unless another path has them.
func (k *Kernel) unexclude(ids []uint64) error {
	have := make(map[uint64]bool)
	for _, id := range k.excluded {
		if id != 0 {
			have[id] = true
		}
	}
	atomic.StoreUint32(&k.control.Excluded, uint32(len(have)+len(ids)))
	for _, id := range ids {
		if have[id] {
			continue
		}
		if err := k.objs.Excluded.Delete(id); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("end exclusion of cgroup %d: %w", id, err)
		}
	}
	atomic.StoreUint32(&k.control.Excluded, uint32(len(have)))
	return nil
}

// refresh follows what changes on the machine without a word from the policy.
func (k *Kernel) refresh() {
	k.stateMu.Lock()
	defer k.stateMu.Unlock()
	if err := k.refreshExcluded(); err != nil {
		k.log.Warn("follow excluded cgroups", "err", err)
	}
	if err := k.refreshExits(); err != nil {
		k.log.Warn("follow devices of exits", "err", err)
	}
}
