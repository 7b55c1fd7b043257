// SPDX-License-Identifier: Apache-2.0

package policy

import "net/netip"

// LabelOf is the label that connections to dest have whose host is known by name:
// that of the most specific budget for it, whatever its unit, path and methods,
// since those are not known. ok is false where no budget is about it.
func (e *Engine) LabelOf(host string, dest netip.AddrPort) (label string, ok bool) {
	found := e.state.Load().matcher.find(host)
	var best Per
	for i := range found {
		c := &found[i]
		if ok && c.Per <= best || c.Budget == exitTrouble {
			continue
		}
		pattern, matches := c.where(host, dest)
		if !matches {
			continue
		}
		label, best, ok = pattern, c.Per, true
		if c.Per&(PerDestination|PerSite) == 0 {
			label = c.rule.label
		}
	}
	return label, ok
}
