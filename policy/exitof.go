// SPDX-License-Identifier: Apache-2.0

package policy

import "net/netip"

// ExitOf is the identity of the exit of a socket: that of the first exit in
// file order that fits its source address, the device by which it leaves, its
// mark or its owner; DirectExit if none does. What is not known of it, the zero
// Addr or "", fits none.
func (p *Policy) ExitOf(source netip.Addr, device string, mark, uid uint32) string {
	for i := range p.Exits {
		e := &p.Exits[i]
		switch {
		case e.Source.IsValid() && e.Source == source.Unmap(),
			e.Interface != "" && e.Interface == device,
			e.Mark != 0 && e.Mark == mark,
			e.UIDs.Set && e.UIDs.First <= uid && uid <= e.UIDs.Last:
			return e.Identity()
		}
	}
	return DirectExit
}

// ExitsByRoute reports whether some exit is told by a source address or a
// device, which a socket that is bound to none has by its route.
func (p *Policy) ExitsByRoute() bool {
	for i := range p.Exits {
		if e := &p.Exits[i]; e.Source.IsValid() || e.Interface != "" {
			return true
		}
	}
	return false
}
