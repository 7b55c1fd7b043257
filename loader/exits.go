// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"github.com/egressd/egressd/policy"
)

// exitState is what the exit maps say now, and what they would say if all
// devices were there.
type exitState struct {
	exits   []policy.Exit     // in file order
	ids     map[string]uint32 // name → id; ids are never used twice
	devices map[string]uint32 // interface → index found last, 0 for none
	sources map[egressAddr]egressExitRule
	marks   map[uint32]egressExitRule
	links   map[egressExitDevice]egressExitRule
}

func newExitState() exitState {
	return exitState{
		ids:     map[string]uint32{policy.DirectExit: 0},
		devices: make(map[string]uint32),
		sources: make(map[egressAddr]egressExitRule),
		marks:   make(map[uint32]egressExitRule),
		links:   make(map[egressExitDevice]egressExitRule),
	}
}

// exitName is the name of the exit that the programs call id.
func (k *Kernel) exitName(id uint32) string {
	names := *k.exitNames.Load()
	if int(id) >= len(names) {
		return policy.DirectExit
	}
	return names[id]
}

// applyExits writes the rules by which programs tell exits apart. An id stays
// with its name for good, so counters of earlier policies keep their meaning.
func (k *Kernel) applyExits(exits []policy.Exit) error {
	names := slices.Clone(*k.exitNames.Load())
	for _, e := range exits {
		if _, ok := k.exits.ids[e.Name]; !ok {
			k.exits.ids[e.Name] = uint32(len(names))
			names = append(names, e.Name)
		}
	}
	k.exitNames.Store(&names)
	k.exits.exits = slices.Clone(exits)
	return k.writeExits()
}

// writeExits brings the exit maps up to k.exits.exits and to the devices that
// exist now.
func (k *Kernel) writeExits() error {
	sources := make(map[egressAddr]egressExitRule)
	marks := make(map[uint32]egressExitRule)
	links := make(map[egressExitDevice]egressExitRule)
	devices := make(map[string]uint32)
	for rank, e := range k.exits.exits {
		rule := egressExitRule{Id: k.exits.ids[e.Name], Rank: uint32(rank)}
		switch {
		case e.Source.IsValid():
			addFirst(sources, egressAddr{Bytes: e.Source.As16()}, rule)
		case e.Mark != 0:
			addFirst(marks, e.Mark, rule)
		case e.Interface != "":
			index := deviceIndex(e.Interface)
			devices[e.Interface] = index
			if index == 0 {
				if k.exits.devices[e.Interface] != 0 || !hasKey(k.exits.devices, e.Interface) {
					k.log.Warn("device of exit does not exist", "exit", e.Name, "interface", e.Interface)
				}
				continue
			}
			netns, err := NetnsCookie()
			if err != nil {
				return err
			}
			addFirst(links, egressExitDevice{Netns: netns, Ifindex: index}, rule)
		}
	}
	k.exits.devices = devices
	// The count opens the maps to the programs, so it rises before the
	// first rule comes and falls after the last has gone.
	if n := len(sources) + len(marks) + len(links); n > 0 {
		atomic.StoreUint32(&k.control.Exits, uint32(n))
	}
	if err := syncMap(k.objs.ExitSources, k.exits.sources, sources); err != nil {
		return fmt.Errorf("write exits by source: %w", err)
	}
	if err := syncMap(k.objs.ExitMarks, k.exits.marks, marks); err != nil {
		return fmt.Errorf("write exits by mark: %w", err)
	}
	if err := syncMap(k.objs.ExitDevices, k.exits.links, links); err != nil {
		return fmt.Errorf("write exits by device: %w", err)
	}
	atomic.StoreUint32(&k.control.Exits, uint32(len(sources)+len(marks)+len(links)))
	return nil
}

// refreshExits follows devices of exits that came, went or were made again.
func (k *Kernel) refreshExits() error {
	for name, index := range k.exits.devices {
		if deviceIndex(name) != index {
			return k.writeExits()
		}
	}
	return nil
}

// deviceIndex is the index of a device in the daemon's network namespace, or
// 0 if there is none.
func deviceIndex(name string) uint32 {
	device, err := net.InterfaceByName(name)
	if err != nil {
		return 0
	}
	return uint32(device.Index)
}

func addFirst[K comparable](rules map[K]egressExitRule, key K, rule egressExitRule) {
	if _, ok := rules[key]; !ok {
		rules[key] = rule
	}
}

func hasKey[K comparable, V any](m map[K]V, key K) bool {
	_, ok := m[key]
	return ok
}

// syncMap makes a map of the kernel, of which have is the content, say want:
// additions first. have is kept true whatever happens.
func syncMap[K comparable, V comparable](m *ebpf.Map, have, want map[K]V) error {
	for key, value := range want {
		if old, ok := have[key]; ok && old == value {
			continue
		}
		if err := m.Update(key, value, ebpf.UpdateAny); err != nil {
			return err
		}
		have[key] = value
	}
	for _, key := range slices.Collect(maps.Keys(have)) {
		if hasKey(want, key) {
			continue
		}
		if err := m.Delete(key); err != nil {
			return err
		}
		delete(have, key)
	}
	return nil
}
