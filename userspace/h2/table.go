// SPDX-License-Identifier: Apache-2.0

package h2

import "bytes"

// entry is an entry of a header table.
type entry struct {
	name, value []byte
	unknown     bool // the name is not known
}

// size is what an entry counts (RFC 7541 §4.1).
func (e *entry) size() uint32 { return uint32(len(e.name) + len(e.value) + 32) }

// DefaultTableSize is the size in bytes that a dynamic table has at first.
const DefaultTableSize = 4096

// chunkSize is the size in bytes in which a table asks for memory. An entry is
// never moved, so fields may be views into the table until they are all gone.
const chunkSize = 1 << 10

// table is a dynamic table (RFC 7541 §2.3.2).
type table struct {
	entries []entry // the oldest first
	size    uint32  // of all entries
	max     uint32
	chunk   []byte // memory for the next entries
}

// at returns the entry with index i, where 1 is the newest; nil if there is
// none.
func (t *table) at(i uint64) *entry {
	if i == 0 || i > uint64(len(t.entries)) {
		return nil
	}
	return &t.entries[uint64(len(t.entries))-i]
}

// resize sets the maximum size.
func (t *table) resize(max uint32) {
	t.max = max
	t.evict(0)
}

// insert adds a copy of e. An entry larger than the table empties it
// (RFC 7541 §4.4). What e points to may be in the table itself.
func (t *table) insert(e entry) {
	need := e.size()
	if need > t.max {
		t.drop(len(t.entries))
		return
	}
	e.name, e.value = t.keep(e.name), t.keep(e.value)
	t.evict(need)
	t.entries = append(t.entries, e)
	t.size += need
}

// evict drops the oldest entries until need bytes more have room.
func (t *table) evict(need uint32) {
	n, left := 0, t.size
	for n < len(t.entries) && left+need > t.max {
		left -= t.entries[n].size()
		n++
	}
	t.drop(n)
}

// drop removes the n oldest entries. Their memory may go; append moves the
// others to the front when there is no more room behind them.
func (t *table) drop(n int) {
	for i := range n {
		t.size -= t.entries[i].size()
	}
	clear(t.entries[:n])
	t.entries = t.entries[n:]
}

// keep copies b into the table's memory.
func (t *table) keep(b []byte) []byte {
	if len(b) > cap(t.chunk)-len(t.chunk) {
		t.chunk = make([]byte, 0, max(chunkSize, len(b)))
	}
	start := len(t.chunk)
	t.chunk = append(t.chunk, b...)
	return t.chunk[start:len(t.chunk):len(t.chunk)]
}

// find returns the index of the newest entry with that name and value, or 0.
func (t *table) find(name, value []byte) uint64 {
	for i := uint64(1); i <= uint64(len(t.entries)); i++ {
		if e := t.at(i); bytes.Equal(e.value, value) && bytes.Equal(e.name, name) {
			return i
		}
	}
	return 0
}

// findName returns the index of the newest entry with that name, or 0.
func (t *table) findName(name []byte) uint64 {
	for i := uint64(1); i <= uint64(len(t.entries)); i++ {
		if bytes.Equal(t.at(i).name, name) {
			return i
		}
	}
	return 0
}

// equal reports whether both tables have the same entries and size.
func (t *table) equal(u *table) bool {
	if len(t.entries) != len(u.entries) || t.size != u.size || t.max != u.max {
		return false
	}
	for i := range t.entries {
		if !bytes.Equal(t.entries[i].name, u.entries[i].name) || !bytes.Equal(t.entries[i].value, u.entries[i].value) {
			return false
		}
	}
	return true
}
