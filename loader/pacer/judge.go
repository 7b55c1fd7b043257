// SPDX-License-Identifier: Apache-2.0

package pacer

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// attachment is how programs are at the egress hook of a device.
type attachment struct {
	how     string   // of ours; "": it is not there
	foreign []string // of others
	err     error    // why ours is not there
}

// fq reports whether every packet that the device sends passes through an fq,
// and for how long each of them holds one.
func (d *device) fq() (horizon time.Duration, all bool) {
	switch d.root.kind {
	case "fq":
		return d.root.horizon, true
	case "mq":
		for i, q := range d.leaves {
			if q.kind != "fq" {
				return 0, false
			}
			if i == 0 || q.horizon < horizon {
				horizon = q.horizon
			}
		}
		return horizon, len(d.leaves) > 0
	}
	return 0, false
}

// holds reports whether the device has fq that is of use.
func (d *device) holds() bool {
	horizon, fq := d.fq()
	return fq && horizon >= minHorizon
}

// words name the root qdisc, with what is below it where that is known to
// matter.
func (d *device) words() string {
	if d.root.kind == "" {
		return "none"
	}
	var kinds []string
	if d.root.kind == "mq" {
		for _, q := range d.leaves {
			if !slices.Contains(kinds, q.kind) {
				kinds = append(kinds, q.kind)
			}
		}
	}
	words := d.root.kind
	for i, kind := range slices.Sorted(slices.Values(kinds)) {
		words += string("+/"[min(i, 1)]) + kind
	}
	return words
}

// lower are the devices to which the device hands its packets as they are, with
// the socket and the departure time. Only where it has no queue of its own.
//
// A bridge is none of these: it clears the time (br_forward_finish, Linux 5.18).
func (s *survey) lower(d *device) []*device {
	if d.root.kind != "noqueue" || d.root.handle != 0 {
		return nil
	}
	var found []*device
	switch d.kind {
	case "vlan":
		if p := s.links[d.parent]; p != nil {
			found = append(found, p)
		}
	case "bond", "team":
		for _, port := range s.links {
			if port.master == d.index && port.up { // one that is down sends nothing
				found = append(found, port)
			}
		}
	}
	slices.SortFunc(found, func(a, b *device) int { return cmp.Compare(a.index, b.index) })
	return found
}

// maxStack bounds how deep devices lie above each other; the kernel's own
// bound is 8 (MAX_NEST_DEV).
const maxStack = 8

// bottom are the devices by which the packets of d leave in the end: d itself,
// or what is below it.
func (s *survey) bottom(d *device) []*device { return s.bottomWithin(d, maxStack) }

func (s *survey) bottomWithin(d *device, depth int) []*device {
	lower := s.lower(d)
	if len(lower) == 0 || depth == 0 {
		return []*device{d}
	}
	var found []*device
	for _, l := range lower {
		for _, b := range s.bottomWithin(l, depth-1) {
			if !slices.Contains(found, b) {
				found = append(found, b)
			}
		}
	}
	return found
}

// use is how routes use a device.
type use struct{ routed, byDefault bool }

// uses finds which devices unicast routes use, those below others included.
func (s *survey) uses() map[int]use {
	direct := make(map[int]use)
	for _, r := range s.routes {
		if r.local || isLinkLocal(r.dest) {
			continue
		}
		for _, index := range r.via {
			// Some VPNs lay two halves over the default route.
			direct[index] = use{routed: true, byDefault: direct[index].byDefault || r.dest.Bits() <= 1}
		}
	}
	found := maps.Clone(direct)
	for index, u := range direct {
		d := s.links[index]
		if d == nil {
			continue
		}
		for _, b := range s.bottom(d) {
			found[b.index] = use{routed: true, byDefault: found[b.index].byDefault || u.byDefault}
		}
	}
	return found
}

// isLinkLocal reports whether all of the prefix is link-local in IPv6. Every
// device has a route to these, and only who names the device can use it.
func isLinkLocal(p netip.Prefix) bool {
	return p.Addr().Is6() && p.Addr().IsLinkLocalUnicast() && p.Bits() >= 10
}

// judge makes a State of what was found. at tells of each device with fq how
// programs are there; failed, why fq could not be installed.
func (s *survey) judge(at map[int]attachment, failed map[int]error) State {
	var state State
	uses := s.uses()
	paced := make(map[int]bool)
	for _, index := range slices.Sorted(maps.Keys(s.links)) {
		d := s.links[index]
		horizon, fq := d.fq()
		if d.loopback || !fq && !(d.up && uses[index].routed) {
			continue
		}
		a := at[index]
		shown := Device{
			Name: d.name, Index: index, Qdisc: d.words(), FQ: fq, Horizon: horizon, Attached: a.how, Ours: d.isOurs(),
			Foreign: a.foreign, Routed: uses[index].routed, Default: uses[index].byDefault,
		}
		bottom := s.bottom(d)
		if bottom[0] != d {
			for _, b := range bottom {
				shown.Lower = append(shown.Lower, b.name)
			}
		}
		shown.Why = why(bottom, at, failed)
		shown.Paced = shown.Why == ""
		paced[index] = shown.Paced
		state.Devices = append(state.Devices, shown)
	}
	s.judgeRoutes(&state, paced)
	return state
}

// why says what is missing at the devices by which packets leave; "" if
// nothing is.
func why(bottom []*device, at map[int]attachment, failed map[int]error) string {
	for _, d := range bottom {
		var text string
		horizon, fq := d.fq()
		switch {
		case !fq && failed[d.index] != nil:
			text = failed[d.index].Error()
		case !fq:
			text = "its qdisc is " + d.words() + ", not fq"
		case horizon < minHorizon:
			text = fmt.Sprintf("its fq holds nothing for longer than %v", horizon)
		case at[d.index].err != nil:
			text = at[d.index].err.Error()
		case at[d.index].how == "":
			text = "no program is attached"
		default:
			continue
		}
		if len(bottom) > 1 {
			text = d.name + ": " + text
		}
		return text
	}
	return ""
}

// judgeRoutes finds what leaves otherwise, and whether anything is paced.
func (s *survey) judgeRoutes(state *State, paced map[int]bool) {
	for _, d := range state.Devices {
		if d.Paced && d.FQ && (state.Horizon == 0 || d.Horizon < state.Horizon) {
			state.Horizon = d.Horizon
		}
	}
	var inside, outside []netip.Prefix
	for _, r := range s.routes {
		switch {
		case r.local || slices.ContainsFunc(r.via, func(index int) bool { return !paced[index] }):
			outside = append(outside, r.dest)
		case !isLinkLocal(r.dest):
			inside = append(inside, r.dest)
		}
	}
	outside = outermost(outside)
	have := make(map[netip.Prefix]bool, len(outside))
	for _, p := range outside {
		have[p] = true
	}
	state.Ready = slices.ContainsFunc(inside, func(p netip.Prefix) bool { return !have[p] && !covered(p, have) })
	if state.Ready {
		state.Outside = outside
	} else {
		state.Horizon = 0
	}
}

// outermost keeps the prefixes that do not lie within another one, in order. Two
// halves become one, and where they are too many in a family, it is all of it.
func outermost(prefixes []netip.Prefix) []netip.Prefix {
	have := make(map[netip.Prefix]bool)
	count := make(map[bool]int) // by Is4
	for _, p := range prefixes {
		if !have[p] {
			have[p] = true
			count[p.Addr().Is4()]++
		}
	}
	for is4, n := range count {
		if n > maxOutside {
			have[everything(is4)] = true
		}
	}
	maps.DeleteFunc(have, func(p netip.Prefix, _ bool) bool { return covered(p, have) })
	kept := slices.SortedFunc(maps.Keys(have), netip.Prefix.Compare)
	// Halves stand side by side, and what they make may be the half of what
	// stands before it.
	merged := kept[:0]
	for _, p := range kept {
		for len(merged) > 0 && p.Bits() > 0 {
			last := merged[len(merged)-1]
			parent := netip.PrefixFrom(p.Addr(), p.Bits()-1).Masked()
			if last.Bits() != p.Bits() || netip.PrefixFrom(last.Addr(), p.Bits()-1).Masked() != parent {
				break
			}
			merged = merged[:len(merged)-1]
			p = parent
		}
		merged = append(merged, p)
	}
	return merged
}

// everything is the prefix of all addresses of a family.
func everything(is4 bool) netip.Prefix {
	if is4 {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// covered reports whether p lies within another prefix of the set.
func covered(p netip.Prefix, have map[netip.Prefix]bool) bool {
	for bits := range p.Bits() {
		if have[netip.PrefixFrom(p.Addr(), bits).Masked()] {
			return true
		}
	}
	return false
}
