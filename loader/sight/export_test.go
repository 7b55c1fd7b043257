// SPDX-License-Identifier: Apache-2.0

package sight

import "github.com/cilium/ebpf"

// OpenAs opens as a kernel would that has less: no uprobe_multi, no sign of
// closing sockets, or only some of the pairs of socketHooks.
func OpenAs(cfg Config, multi, closing bool, pairs ...int) (*Sight, error) {
	m := machine{multi: multi, closing: closing}
	for _, i := range pairs {
		m.sockets = append(m.sockets, socketHooks[i])
	}
	return open(cfg, m)
}

// Sizes is how many entries the maps hold that grow with connections.
func (s *Sight) Sizes() map[string]int {
	sizes := make(map[string]int)
	for name, m := range map[string]*ebpf.Map{
		"conns": s.objs.Conns, "owners": s.objs.Owners, "goroutine_calls": s.objs.GoroutineCalls,
	} {
		key := make([]byte, m.KeySize())
		value := make([]byte, m.ValueSize())
		n := 0
		for it := m.Iterate(); it.Next(&key, &value); n++ {
		}
		sizes[name] = n
	}
	return sizes
}

// Sweep is sweep.
func (s *Sight) Sweep(handle func(Event)) error { return s.sweep(handle) }

// Decode is decode.
var Decode = decode
