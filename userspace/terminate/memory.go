// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"cmp"
	"container/list"
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"sync"
	"time"
)

const (
	// memoryLife is how long a failure is remembered.
	memoryLife = 10 * time.Minute
	maxMemory  = 4096
	// maxStrikes is how many failures that may have had another reason, one
	// after the other, are taken for one of the kind of client.
	maxStrikes = 2
)

// memoryKey stands for a kind of client and the name it asked for.
type memoryKey [sha256.Size]byte

// key is the memoryKey of h with name: what differs between connections of one
// client, such as GREASE and the order that browsers shuffle, does not count.
func (h *hello) key(name string) memoryKey {
	sum := sha256.New()
	put := func(b ...byte) { _, _ = sum.Write(b) }
	number := func(v uint16) {
		if grease(v) {
			v = 0x0a0a
		}
		put(binary.BigEndian.AppendUint16(nil, v)...)
	}
	put([]byte(name)...)
	put(0)
	number(h.version)
	for _, s := range h.suites {
		number(s)
	}
	sorted := slices.Clone(h.extensions)
	slices.SortFunc(sorted, func(a, b extension) int { return cmp.Compare(normal(a.id), normal(b.id)) })
	for _, e := range sorted {
		number(e.id)
		switch e.id {
		case extGroups, extVersions, extKeyShare, extECH, extPadding, extServerName:
			// GREASE, random or of the name; groups and versions follow.
		default:
			if !grease(e.id) {
				put(e.body...)
			}
		}
	}
	for _, v := range [][]uint16{h.groups, h.versions} {
		put(byte(len(v)))
		for _, n := range v {
			number(n)
		}
	}
	for _, s := range h.shares {
		number(s.group)
	}
	return memoryKey(sum.Sum(nil))
}

// normal is id, the same one for all GREASE.
func normal(id uint16) uint16 {
	if grease(id) {
		return 0x0a0a
	}
	return id
}

// memory is what was learnt of kinds of clients, the last maxMemory of them. It
// is safe for concurrent use.
type memory struct {
	now func() time.Time

	mu    sync.Mutex
	order list.List // of *remembered, the newest first
	known map[memoryKey]*list.Element
}

// remembered is what is known of a key.
type remembered struct {
	key     memoryKey
	why     string // not to be tried; "" if it may
	strikes int
	good    bool // it went well before
	until   time.Time
}

// refuse remembers that key is not to be tried.
func (m *memory) refuse(key memoryKey, why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at(key).why = why
}

// strike counts a failure that may have had another reason. A second one
// without a success before it is remembered as why.
func (m *memory) strike(key memoryKey, why string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.at(key)
	if r.good {
		return
	}
	if r.strikes++; r.strikes >= maxStrikes {
		r.why = why
	}
}

// good says that all went well with key. For a while strikes count nothing:
// clients that trust us open connections that they never use.
func (m *memory) good(key memoryKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.at(key)
	*r = remembered{key: key, good: true, until: r.until}
}

// refused says why key is not to be tried, "" if it may.
func (m *memory) refused(key memoryKey) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, ok := m.known[key]
	if !ok {
		return ""
	}
	r := e.Value.(*remembered)
	if !m.now().Before(r.until) {
		m.order.Remove(e)
		delete(m.known, key)
		return ""
	}
	return r.why
}

// at is the entry of key, made or renewed. The lock is held.
func (m *memory) at(key memoryKey) *remembered {
	now := m.now()
	if e, ok := m.known[key]; ok {
		m.order.MoveToFront(e)
		r := e.Value.(*remembered)
		if !now.Before(r.until) {
			*r = remembered{key: key}
		}
		r.until = now.Add(memoryLife)
		return r
	}
	if m.known == nil {
		m.known = make(map[memoryKey]*list.Element)
	}
	if m.order.Len() >= maxMemory {
		delete(m.known, m.order.Remove(m.order.Back()).(*remembered).key)
	}
	r := &remembered{key: key, until: now.Add(memoryLife)}
	m.known[key] = m.order.PushFront(r)
	return r
}
