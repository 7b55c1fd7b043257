// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync/atomic"

	"github.com/cilium/ebpf"

	"github.com/egressd/egressd/policy"
)

// Flags of a named port, as in bpf/named.h.
const (
	namedLocal uint32 = 1 << iota
	namedFailClosed
	namedAlways // so that no named port has the flags of one that is not
	namedAsk
)

// namedState is what the maps say now.
type namedState struct {
	ports     map[uint16]egressNamed
	prefixes  map[netip.Prefix]namedPrefix
	nextID    uint32
	endpoints map[egressEndpoint]uint32 // → id of the exit
}

type namedPrefix struct {
	id    uint32
	ports map[uint16]egressNamed
}

func newNamedState() namedState {
	return namedState{
		ports:     make(map[uint16]egressNamed),
		prefixes:  make(map[netip.Prefix]namedPrefix),
		endpoints: make(map[egressEndpoint]uint32),
	}
}

// Apply makes the programs redirect what r names, and nothing else. Only
// differences are written: additions before removals, so that what both the
// old and the new policy name is named all the while. After an error the maps
// hold some of both; applying either again is right.
func (k *Kernel) Apply(r policy.Redirects) error {
	if err := checkExits(r.Exits); err != nil {
		return fmt.Errorf("apply redirects: %w", err)
	}
	endpoints, err := wantedEndpoints(r.Endpoints)
	if err != nil {
		return fmt.Errorf("apply redirects: %w", err)
	}
	k.stateMu.Lock()
	defer k.stateMu.Unlock()
	ports, prefixes, err := k.wanted(r)
	if err != nil {
		return err
	}
	areas := areasOf(prefixes, endpoints)
	k.widenAreas(areas)
	// Exits first: a flow redirected by the new rules has its new exit.
	if err := k.applyExits(r.Exits); err != nil {
		return err
	}
	if err := k.applyEndpoints(endpoints); err != nil {
		return err
	}
	if err := k.addPorts(ports); err != nil {
		return err
	}
	if err := k.addPrefixes(prefixes); err != nil {
		return err
	}
	if err := k.removePorts(ports); err != nil {
		return err
	}
	if err := k.removePrefixes(prefixes); err != nil {
		return err
	}
	k.setAreas(areas)
	return k.forgetSets()
}

// wanted checks r and puts it in the form of the maps. Entries that name the
// same are merged: each of their flags counts. The sets of the result exist.
func (k *Kernel) wanted(r policy.Redirects) (map[uint16]egressNamed, map[netip.Prefix]map[uint16]egressNamed, error) {
	ports := make(map[uint16]egressNamed)
	for _, p := range r.Ports {
		if p.Port == 0 {
			return nil, nil, errors.New("apply redirects: port 0")
		}
		set, err := k.planeSet(p.Set)
		if err != nil {
			return nil, nil, fmt.Errorf("apply redirects: port %d: %w", p.Port, err)
		}
		ports[p.Port] = merge(ports[p.Port], namedFlags(p.Local, p.FailClosed, p.Ask), set)
	}
	prefixes := make(map[netip.Prefix]map[uint16]egressNamed)
	for _, p := range r.Prefixes {
		if p.Port == 0 || !p.Prefix.IsValid() {
			return nil, nil, fmt.Errorf("apply redirects: prefix %s port %d", p.Prefix, p.Port)
		}
		set, err := k.planeSet(p.Set)
		if err != nil {
			return nil, nil, fmt.Errorf("apply redirects: prefix %s port %d: %w", p.Prefix, p.Port, err)
		}
		prefix := canonical(p.Prefix)
		if prefixes[prefix] == nil {
			prefixes[prefix] = make(map[uint16]egressNamed)
		}
		prefixes[prefix][p.Port] = merge(prefixes[prefix][p.Port], namedFlags(false, p.FailClosed, false), set)
	}
	return ports, propagate(prefixes), nil
}

func namedFlags(local, failClosed, ask bool) uint32 {
	flags := namedAlways
	if local {
		flags |= namedLocal
	}
	if failClosed {
		flags |= namedFailClosed
	}
	if ask {
		flags |= namedAsk
	}
	return flags
}

// merge is n with more flags, and with the set if that is one.
func merge(n egressNamed, flags, set uint32) egressNamed {
	n.Flags |= flags
	if set != 0 {
		n.Set = set
	}
	return n
}

// canonical writes IPv4 prefixes as IPv6 ones of mapped addresses, and clears
// the bits beyond the length.
func canonical(p netip.Prefix) netip.Prefix {
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	return netip.PrefixFrom(netip.AddrFrom16(p.Addr().As16()), bits).Masked()
}

// propagate gives each prefix also the ports of the prefixes around it: the
// programs see only the longest match. The set of a port is that of the
// longest prefix which names it, and holds for those around as well.
func propagate(prefixes map[netip.Prefix]map[uint16]egressNamed) map[netip.Prefix]map[uint16]egressNamed {
	result := make(map[netip.Prefix]map[uint16]egressNamed, len(prefixes))
	for inner := range prefixes {
		ports := make(map[uint16]egressNamed)
		for bits := range inner.Bits() + 1 {
			for port, named := range prefixes[netip.PrefixFrom(inner.Addr(), bits).Masked()] {
				ports[port] = egressNamed{Flags: ports[port].Flags | named.Flags, Set: named.Set}
			}
		}
		result[inner] = ports
	}
	return result
}

func (k *Kernel) addPorts(want map[uint16]egressNamed) error {
	for port, named := range want {
		if have, ok := k.named.ports[port]; ok && have == named {
			continue
		}
		if err := k.objs.Ports.Update(uint32(port), named, ebpf.UpdateAny); err != nil {
			return fmt.Errorf("name port %d: %w", port, err)
		}
		k.named.ports[port] = named
	}
	return nil
}

func (k *Kernel) removePorts(want map[uint16]egressNamed) error {
	for port := range k.named.ports {
		if _, ok := want[port]; ok {
			continue
		}
		if err := k.objs.Ports.Update(uint32(port), egressNamed{}, ebpf.UpdateAny); err != nil {
			return fmt.Errorf("unname port %d: %w", port, err)
		}
		delete(k.named.ports, port)
	}
	return nil
}

// addPrefixes writes the ports of a changed prefix under a new id, then turns
// the prefix to it in one step, then forgets the old id.
func (k *Kernel) addPrefixes(want map[netip.Prefix]map[uint16]egressNamed) error {
	for prefix, ports := range want {
		old, known := k.named.prefixes[prefix]
		if known && maps.Equal(old.ports, ports) {
			continue
		}
		k.named.nextID++
		id := k.named.nextID
		for port, named := range ports {
			if err := k.objs.PrefixPorts.Update(egressPrefixPort{Prefix: id, Port: port}, named, ebpf.UpdateAny); err != nil {
				return fmt.Errorf("name port %d of %s: %w", port, prefix, err)
			}
		}
		if err := k.objs.Prefixes.Update(prefixKey(prefix), id, ebpf.UpdateAny); err != nil {
			return fmt.Errorf("name prefix %s: %w", prefix, err)
		}
		k.named.prefixes[prefix] = namedPrefix{id: id, ports: ports}
		k.countPrefixes()
		if known {
			if err := k.forgetPrefixPorts(old); err != nil {
				return err
			}
		}
	}
	return nil
}

func (k *Kernel) removePrefixes(want map[netip.Prefix]map[uint16]egressNamed) error {
	for prefix, have := range k.named.prefixes {
		if _, ok := want[prefix]; ok {
			continue
		}
		if err := k.objs.Prefixes.Delete(prefixKey(prefix)); err != nil {
			return fmt.Errorf("unname prefix %s: %w", prefix, err)
		}
		delete(k.named.prefixes, prefix)
		k.countPrefixes()
		if err := k.forgetPrefixPorts(have); err != nil {
			return err
		}
	}
	return nil
}

func (k *Kernel) forgetPrefixPorts(p namedPrefix) error {
	for port := range p.ports {
		if err := k.objs.PrefixPorts.Delete(egressPrefixPort{Prefix: p.id, Port: port}); err != nil {
			return fmt.Errorf("unname port %d: %w", port, err)
		}
	}
	return nil
}

// countPrefixes lets the programs skip the search while there is nothing to
// find.
func (k *Kernel) countPrefixes() {
	atomic.StoreUint32(&k.control.Prefixes, uint32(len(k.named.prefixes)))
}

func prefixKey(p netip.Prefix) egressPrefix {
	return egressPrefix{Bits: uint32(p.Bits()), Addr: egressAddr{Bytes: p.Addr().As16()}}
}
