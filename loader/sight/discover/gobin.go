// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"cmp"
	"errors"
	"slices"

	"github.com/egressd/egressd/loader/sight"
)

// goNames are the methods to find. Forks of crypto/tls keep them under another
// import path, and some wrap the connection in a type of their own.
var goNames = ending("tls.(*Conn).Read", "tls.(*Conn).Write", "tls.(*UConn).Read", "tls.(*UConn).Write")

// goProbes returns the probes of a Go program, none if it has no TLS. An error
// means that it may have some and cannot be probed.
func goProbes(m *image) ([]sight.Probe, error) {
	found, err := m.goSymbols(goNames)
	if err != nil {
		return nil, err
	}
	type method struct {
		symbol
		body
		offset uint64
	}
	var methods []method
	for _, s := range found {
		code, off, ok := m.code(s)
		if !ok {
			continue
		}
		if b, ok := decode(m.machine, code, s.vaddr); ok && len(b.returns) > 0 {
			methods = append(methods, method{s, b, off})
		}
	}
	if len(methods) == 0 && len(found) > 0 {
		return nil, errors.New("its code cannot be decoded")
	}
	// A method that only leads to another one of these would show the same
	// bytes twice.
	wraps := func(m method) bool {
		return slices.ContainsFunc(methods, func(o method) bool { return slices.Contains(m.targets, o.vaddr) })
	}
	var probes []sight.Probe
	for _, m := range methods {
		if wraps(m) {
			continue
		}
		p := sight.Probe{Symbol: m.name, Entry: m.offset}
		for _, r := range m.returns {
			p.Returns = append(p.Returns, r-m.vaddr+m.offset)
		}
		probes = append(probes, p)
	}
	slices.SortFunc(probes, func(a, b sight.Probe) int { return cmp.Compare(a.Entry, b.Entry) })
	return probes, nil
}
