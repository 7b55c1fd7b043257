// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
)

// Bits of rules and sets, as in bpf/plane.h.
const (
	ruleDestination uint32 = 1 << iota
	ruleExit
	ruleByName
	ruleGuard
	ruleShadow
	ruleFailClosed
	ruleDrop
	ruleFair
)

const setProxy uint32 = 1

// allExits stands for the exit of lanes that do not tell exits apart.
const allExits = ^uint32(0)

// planeState is what the maps of the kernel plane say now, and the ids that
// stand for names in them. Ids are not used twice.
type planeState struct {
	sets    map[egressPlaneSet]uint32
	nextSet uint32

	budgets     map[string]uint32
	budgetNames []string // by id

	names    map[string]uint32
	nameText map[uint32]string
	nextName uint32

	targets map[netip.AddrPort]egressTarget
	lanes   map[egressPlaneKey]uint32 // that the engine knows, too
	made    uint64                    // control.PlaneMade when the lanes were read last
	spares  int64                     // numbers given to the programs, ever

	devices map[uint32]uint8 // that are paced
	outside map[egressPrefix]uint8
}

func newPlaneState() planeState {
	return planeState{
		sets:        make(map[egressPlaneSet]uint32),
		budgets:     make(map[string]uint32),
		budgetNames: []string{""},
		names:       make(map[string]uint32),
		nameText:    make(map[uint32]string),
		targets:     make(map[netip.AddrPort]egressTarget),
		lanes:       make(map[egressPlaneKey]uint32),
		devices:     make(map[uint32]uint8),
		outside:     make(map[egressPrefix]uint8),
	}
}

// planeSet returns the id of the set, which the programs know by then; 0 for a
// set without rules, which is none. Under stateMu.
func (k *Kernel) planeSet(s policy.PlaneSet) (uint32, error) {
	if len(s.Rules) == 0 {
		return 0, nil
	}
	value := egressPlaneSet{Rules: uint32(len(s.Rules))}
	if len(s.Rules) > len(value.Rule) {
		return 0, fmt.Errorf("%d budgets hold for one destination, of at most %d", len(s.Rules), len(value.Rule))
	}
	if s.Proxy {
		value.Flags |= setProxy
	}
	for i, r := range s.Rules {
		to := &value.Rule[i]
		to.Budget = k.plane.budget(r.Budget)
		to.Interval = uint64(max(0, r.Interval))
		to.Tolerance = uint64(max(0, r.Tolerance))
		to.MaxWait = uint64(max(0, r.MaxWait))
		to.MaxQueue = uint32(max(0, r.MaxQueue))
		for _, bit := range [...]struct {
			set bool
			bit uint32
		}{
			{r.Per&policy.PerDestination != 0, ruleDestination},
			{r.Per&policy.PerExit != 0, ruleExit},
			{r.ByName, ruleByName},
			{r.Guard, ruleGuard},
			{r.Shadow, ruleShadow},
			{r.FailClosed, ruleFailClosed},
			{r.Drop, ruleDrop},
			{r.Fair, ruleFair},
		} {
			if bit.set {
				to.Flags |= bit.bit
			}
		}
	}
	if id, ok := k.plane.sets[value]; ok {
		return id, nil
	}
	id := k.plane.nextSet + 1
	if err := k.objs.PlaneSets.Update(id, &value, ebpf.UpdateNoExist); err != nil {
		return 0, fmt.Errorf("write rules of the kernel plane: %w", err)
	}
	k.plane.nextSet = id
	k.plane.sets[value] = id
	return id, nil
}

// forgetSets deletes the sets that nothing refers to. Under stateMu.
func (k *Kernel) forgetSets() error {
	used := make(map[uint32]bool)
	for _, n := range k.named.ports {
		used[n.Set] = true
	}
	for _, p := range k.named.prefixes {
		for _, n := range p.ports {
			used[n.Set] = true
		}
	}
	for _, t := range k.plane.targets {
		used[t.Set] = true
	}
	for value, id := range k.plane.sets {
		if used[id] {
			continue
		}
		if err := k.objs.PlaneSets.Delete(id); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("delete rules of the kernel plane: %w", err)
		}
		delete(k.plane.sets, value)
	}
	return nil
}

// budget is the id of a budget, by its name.
func (p *planeState) budget(name string) uint32 {
	id, ok := p.budgets[name]
	if !ok {
		id = uint32(len(p.budgetNames))
		p.budgets[name] = id
		p.budgetNames = append(p.budgetNames, name)
	}
	return id
}

// maxPlaneNames bounds the names that have ids: beyond it, those that nothing
// refers to are forgotten.
const maxPlaneNames = 1 << 16

// name is the id of a host's name.
func (p *planeState) name(host string) uint32 {
	if host == "" {
		return 0
	}
	id, ok := p.names[host]
	if !ok {
		if len(p.names) >= maxPlaneNames {
			p.forgetNames()
		}
		p.nextName++
		id = p.nextName
		p.names[host] = id
		p.nameText[id] = host
	}
	return id
}

func (p *planeState) forgetNames() {
	used := make(map[uint32]bool)
	for _, t := range p.targets {
		used[t.Name] = true
	}
	for key := range p.lanes {
		used[key.Name] = true
	}
	for host, id := range p.names {
		if !used[id] {
			delete(p.names, host)
			delete(p.nameText, id)
		}
	}
}

// SetTarget says what holds for connections to dest, now that its names are
// known: see policy.Engine.Target. It matters only at ports that were named with
// Ask. A full map is an error that wraps ErrIndexFull; the destination then has
// what holds for addresses without names.
func (k *Kernel) SetTarget(dest netip.AddrPort, t policy.PlaneTarget) error {
	k.stateMu.Lock()
	defer k.stateMu.Unlock()
	set, err := k.planeSet(t.Set)
	if err != nil {
		return fmt.Errorf("set target %s: %w", dest, err)
	}
	value := egressTarget{Set: set, Name: k.plane.name(t.Name)}
	dest = netip.AddrPortFrom(dest.Addr().Unmap(), dest.Port())
	if have, ok := k.plane.targets[dest]; ok && have == value {
		return nil
	}
	key := targetKey(dest)
	err = k.objs.Targets.Update(&key, &value, ebpf.UpdateAny)
	if errors.Is(err, unix.E2BIG) {
		return fmt.Errorf("set target %s: %w", dest, ErrIndexFull)
	}
	if err != nil {
		return fmt.Errorf("set target %s: %w", dest, err)
	}
	k.plane.targets[dest] = value
	return nil
}

// DeleteTarget says that the names of dest are not known any more. Deleting
// what is not there does nothing.
func (k *Kernel) DeleteTarget(dest netip.AddrPort) error {
	k.stateMu.Lock()
	defer k.stateMu.Unlock()
	dest = netip.AddrPortFrom(dest.Addr().Unmap(), dest.Port())
	if _, ok := k.plane.targets[dest]; !ok {
		return nil
	}
	key := targetKey(dest)
	if err := k.objs.Targets.Delete(&key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("delete target %s: %w", dest, err)
	}
	delete(k.plane.targets, dest)
	return nil
}

// Targets are the destinations of SetTarget.
func (k *Kernel) Targets() []netip.AddrPort {
	k.stateMu.Lock()
	defer k.stateMu.Unlock()
	all := make([]netip.AddrPort, 0, len(k.plane.targets))
	for dest := range k.plane.targets {
		all = append(all, dest)
	}
	return all
}

func targetKey(dest netip.AddrPort) egressTargetKey {
	return egressTargetKey{Addr: egressAddr{Bytes: dest.Addr().As16()}, Port: dest.Port()}
}

// Plane is where the programs find the cells of lanes, and make them.
type Plane struct{ k *Kernel }

var _ policy.PlaneLanes = Plane{}

// Plane returns the lanes of the kernel plane. Valid until Close.
func (k *Kernel) Plane() Plane { return Plane{k} }

// key is the lane's in the programs; false for a lane that they cannot know.
func (x Plane) key(lane policy.LaneKey) (key egressPlaneKey, ok bool) {
	k := x.k
	budget, ok := k.plane.budgets[lane.Budget]
	if !ok || lane.Session != "" || lane.Path != "" {
		return key, false
	}
	key = egressPlaneKey{Budget: budget, Exit: allExits}
	if lane.Exit != "" {
		if key.Exit, ok = k.exits.ids[lane.Exit]; !ok {
			return key, false
		}
	}
	if lane.Destination == "" {
		return key, true
	}
	if addr, err := netip.ParseAddr(lane.Destination); err == nil {
		if addr.Zone() != "" {
			return key, false
		}
		key.Dest = egressAddr{Bytes: addr.As16()}
	} else {
		key.Name = k.plane.name(lane.Destination)
	}
	return key, true
}

// Claim implements policy.PlaneLanes.
func (x Plane) Claim(lane policy.LaneKey, cell uint32) (uint32, error) {
	x.k.stateMu.Lock()
	defer x.k.stateMu.Unlock()
	key, ok := x.key(lane)
	if !ok {
		return cell, nil
	}
	err := x.k.objs.PlaneLanes.Update(&key, cell, ebpf.UpdateNoExist)
	if errors.Is(err, ebpf.ErrKeyExist) {
		err = x.k.objs.PlaneLanes.Lookup(&key, &cell)
	}
	if errors.Is(err, unix.E2BIG) {
		return cell, fmt.Errorf("claim lane %s: %w", lane, ErrIndexFull)
	}
	if err != nil {
		return cell, fmt.Errorf("claim lane %s: %w", lane, err)
	}
	x.k.plane.lanes[key] = cell
	return cell, nil
}

// Release implements policy.PlaneLanes.
func (x Plane) Release(lane policy.LaneKey) error {
	x.k.stateMu.Lock()
	defer x.k.stateMu.Unlock()
	key, ok := x.key(lane)
	if !ok {
		return nil
	}
	delete(x.k.plane.lanes, key)
	if err := x.k.objs.PlaneLanes.Delete(&key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("release lane %s: %w", lane, err)
	}
	return nil
}

// Spare gives the programs the number of a cell, for a lane that they will
// make. The cell is reset. False says that they have enough.
func (x Plane) Spare(cell uint32) (bool, error) {
	err := x.k.objs.PlaneSpares.Update(nil, cell, ebpf.UpdateAny)
	switch {
	case errors.Is(err, unix.E2BIG):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("give a spare cell: %w", err)
	}
	x.k.stateMu.Lock()
	x.k.plane.spares++
	x.k.stateMu.Unlock()
	return true, nil
}

// Spares is the number of cells that the programs have left.
func (x Plane) Spares() int64 {
	x.k.stateMu.Lock()
	defer x.k.stateMu.Unlock()
	return x.k.plane.spares - int64(atomic.LoadUint64(&x.k.control.PlaneMade))
}

// Made calls f with every lane that the programs made since the last call, and
// its cell. Where f fails the programs forget the lane: whose cell it is then,
// f knows. It costs one load while they make none.
func (x Plane) Made(f func(policy.LaneKey, uint32) error) error {
	type found struct {
		key  egressPlaneKey
		lane policy.LaneKey
		cell uint32
	}
	made := atomic.LoadUint64(&x.k.control.PlaneMade)
	x.k.stateMu.Lock()
	if made == x.k.plane.made {
		x.k.stateMu.Unlock()
		return nil
	}
	var (
		fresh []found
		key   egressPlaneKey
		cell  uint32
	)
	it := x.k.objs.PlaneLanes.Iterate()
	for it.Next(&key, &cell) {
		if _, known := x.k.plane.lanes[key]; !known {
			fresh = append(fresh, found{key, x.lane(key), cell})
		}
	}
	err := it.Err()
	if err == nil {
		x.k.plane.made = made
	}
	x.k.stateMu.Unlock()
	if err != nil {
		return fmt.Errorf("read lanes of the kernel plane: %w", err)
	}
	// f is the engine's, which may call Claim.
	var errs []error
	for _, n := range fresh {
		if err := f(n.lane, n.cell); err != nil {
			errs = append(errs, fmt.Errorf("adopt lane %s: %w", n.lane, err))
			if err := x.k.objs.PlaneLanes.Delete(&n.key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				errs = append(errs, err)
			}
			continue
		}
		x.k.stateMu.Lock()
		x.k.plane.lanes[n.key] = n.cell
		x.k.stateMu.Unlock()
	}
	return errors.Join(errs...)
}

// lane is the inverse of key.
func (x Plane) lane(key egressPlaneKey) (lane policy.LaneKey) {
	if int(key.Budget) < len(x.k.plane.budgetNames) {
		lane.Budget = x.k.plane.budgetNames[key.Budget]
	}
	switch {
	case key.Name != 0:
		lane.Destination = x.k.plane.nameText[key.Name]
	case key.Dest.Bytes != ([16]byte{}):
		lane.Destination = netip.AddrFrom16(key.Dest.Bytes).Unmap().String()
	}
	if key.Exit != allExits {
		lane.Exit = x.k.exitName(key.Exit)
	}
	return lane
}
