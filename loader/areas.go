// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"
)

// areaWords is the number of words for each family, as in bpf/named.h.
const areaWords = 1024

// areaSet says where addresses are that policy names: a bit for each area, IPv4
// first. An area of IPv4 is a /16; one of IPv6 is all /32 whose two halves give
// the same number. See in_known_area of bpf/named.h.
type areaSet [2 * areaWords]uint64

// areasOf is where the prefixes, in canonical form, and the endpoints are.
func areasOf[P, E any](prefixes map[netip.Prefix]P, endpoints map[egressEndpoint]E) *areaSet {
	s := new(areaSet)
	for p := range prefixes {
		s.add(p)
	}
	for e := range endpoints {
		s.add(netip.PrefixFrom(netip.AddrFrom16(e.Addr.Bytes), 128))
	}
	return s
}

// add takes a prefix in canonical form.
func (s *areaSet) add(p netip.Prefix) {
	addr := p.Addr().As16()
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		first := uint32(binary.BigEndian.Uint16(addr[12:]))
		for i := range uint32(1) << max(0, 112-p.Bits()) {
			s.set(0, first+i)
		}
		return
	}
	if p.Contains(netip.AddrFrom16([16]byte{10: 0xff, 11: 0xff})) {
		s.fill(0)
	}
	if p.Bits() <= 16 {
		s.fill(areaWords)
		return
	}
	first := binary.BigEndian.Uint32(addr[:])
	for i := range uint32(1) << max(0, 32-p.Bits()) {
		s.set(areaWords, (first+i)^(first+i)>>16)
	}
}

// set marks an area, given by its last 16 bits, of the family whose words begin
// there.
func (s *areaSet) set(family int, area uint32) {
	area &= 0xffff
	s[family+int(area/64)] |= 1 << (area % 64)
}

func (s *areaSet) fill(family int) {
	for i := range areaWords {
		s[family+i] = ^uint64(0)
	}
}

// widenAreas lets the programs also look where s says.
func (k *Kernel) widenAreas(s *areaSet) {
	for i, word := range s {
		if have := k.areas[i]; have|word != have {
			atomic.StoreUint64(&k.areas[i], have|word)
		}
	}
}

// setAreas lets the programs look nowhere else.
func (k *Kernel) setAreas(s *areaSet) {
	for i, word := range s {
		if k.areas[i] != word {
			atomic.StoreUint64(&k.areas[i], word)
		}
	}
}
