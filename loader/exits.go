// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"fmt"
	"iter"
	"maps"
	"net"
	"slices"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"github.com/egressd/egressd/policy"
)

// Bits of control.Exits, as in bpf/exits.h.
const (
	exitsSource uint32 = 1 << iota
	exitsDevice
	exitsMark
	exitsUID
	exitsRebind
)

// Each user of an exit is an entry of a map, which holds twice as many as all
// exits may have: one set can follow another, additions first.
const (
	maxExitUIDs = 4096  // of one exit
	maxUIDs     = 65536 // of all
)

// exitState is what the exit maps say now, and what they would say if all
// devices were there.
type exitState struct {
	exits   []policy.Exit     // in file order
	ids     map[string]uint32 // identity → id; ids are never used twice
	devices map[string]uint32 // interface → index found last, 0 for none
	rules   exitRules
	rebound bool // an exit asks, or asked, for rebinding
}

// exitRules is the content of the exit maps.
type exitRules struct {
	sources map[egressAddr]egressExitRule
	marks   map[uint32]egressExitRule
	uids    map[uint32]egressExitRule
	links   map[egressExitDevice]egressExitRule
}

func newExitRules() exitRules {
	return exitRules{
		sources: make(map[egressAddr]egressExitRule),
		marks:   make(map[uint32]egressExitRule),
		uids:    make(map[uint32]egressExitRule),
		links:   make(map[egressExitDevice]egressExitRule),
	}
}

// bits says which of the maps have entries.
func (r exitRules) bits() uint32 {
	var bits uint32
	for _, m := range []struct {
		n   int
		bit uint32
	}{{len(r.sources), exitsSource}, {len(r.links), exitsDevice}, {len(r.marks), exitsMark}, {len(r.uids), exitsUID}} {
		if m.n > 0 {
			bits |= m.bit
		}
	}
	return bits
}

func newExitState() exitState {
	return exitState{
		ids:     map[string]uint32{policy.DirectExit: 0},
		devices: make(map[string]uint32),
		rules:   newExitRules(),
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

// nameExits gives each identity an id. It stays with its name for good, so
// counters of earlier policies keep their meaning.
func (k *Kernel) nameExits(identities iter.Seq[string]) {
	old := *k.exitNames.Load()
	names := old[:len(old):len(old)]
	for name := range identities {
		if _, ok := k.exits.ids[name]; !ok {
			k.exits.ids[name] = uint32(len(names))
			names = append(names, name)
		}
	}
	if len(names) > len(old) {
		k.exitNames.Store(&names)
	}
}

// checkExits refuses exits that do not fit in the maps.
func checkExits(exits []policy.Exit) error {
	var all uint64
	for i := range exits {
		e := &exits[i]
		if !e.UIDs.Set {
			continue
		}
		if e.UIDs.First > e.UIDs.Last {
			return fmt.Errorf("exit %s: users %d-%d: the first is above the last", e.Name, e.UIDs.First, e.UIDs.Last)
		}
		n := uint64(e.UIDs.Last-e.UIDs.First) + 1
		if n > maxExitUIDs {
			return fmt.Errorf("exit %s: users %d-%d are %d, at most %d are allowed: narrow the range",
				e.Name, e.UIDs.First, e.UIDs.Last, n, maxExitUIDs)
		}
		all += n
	}
	if all > maxUIDs {
		return fmt.Errorf("exits by user have %d users in all, at most %d are allowed: narrow their ranges", all, maxUIDs)
	}
	return nil
}

// applyExits writes the rules by which programs tell exits apart.
func (k *Kernel) applyExits(exits []policy.Exit) error {
	k.nameExits(func(yield func(string) bool) {
		for i := range exits {
			if !yield(exits[i].Identity()) {
				return
			}
		}
	})
	k.exits.exits = slices.Clone(exits)
	return k.writeExits()
}

// writeExits brings the exit maps up to k.exits.exits and to the devices that
// exist now.
func (k *Kernel) writeExits() error {
	want := newExitRules()
	devices := make(map[string]uint32)
	for rank := range k.exits.exits {
		e := &k.exits.exits[rank]
		rule := egressExitRule{Id: k.exits.ids[e.Identity()], Rank: uint32(rank)}
		switch {
		case e.Source.IsValid():
			addFirst(want.sources, egressAddr{Bytes: e.Source.As16()}, rule)
		case e.Mark != 0:
			addFirst(want.marks, e.Mark, rule)
		case e.UIDs.Set:
			for uid := uint64(e.UIDs.First); uid <= uint64(e.UIDs.Last); uid++ {
				addFirst(want.uids, uint32(uid), rule)
			}
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
			addDevice(want.links, egressExitDevice{Netns: netns, Ifindex: index}, rule, e.Rebind)
			k.exits.rebound = k.exits.rebound || e.Rebind
		}
	}
	k.exits.devices = devices
	// A bit opens a map to the programs, so it rises before the first rule
	// comes and falls after the last has gone. The bit of rebinding stays:
	// sockets may be about that wait for their binding.
	var rebind uint32
	if k.exits.rebound {
		rebind = exitsRebind
	}
	have := k.exits.rules
	atomic.StoreUint32(&k.control.Exits, have.bits()|want.bits()|rebind)
	if err := syncMap(k.objs.ExitSources, have.sources, want.sources); err != nil {
		return fmt.Errorf("write exits by source: %w", err)
	}
	if err := syncMap(k.objs.ExitMarks, have.marks, want.marks); err != nil {
		return fmt.Errorf("write exits by mark: %w", err)
	}
	if err := syncMap(k.objs.ExitUids, have.uids, want.uids); err != nil {
		return fmt.Errorf("write exits by user: %w", err)
	}
	if err := syncMap(k.objs.ExitDevices, have.links, want.links); err != nil {
		return fmt.Errorf("write exits by device: %w", err)
	}
	atomic.StoreUint32(&k.control.Exits, want.bits()|rebind)
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

// addDevice is addFirst for a device, to which sockets stay bound unless any of
// its exits asks for rebinding.
func addDevice(rules map[egressExitDevice]egressExitRule, key egressExitDevice, rule egressExitRule, rebind bool) {
	addFirst(rules, key, rule)
	if rebind {
		rule = rules[key]
		rule.Rebind = 1
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
