// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"bytes"
	"cmp"
	"debug/elf"
	"errors"
	"slices"
)

// Bounds for what one table may answer: more than any real file has.
const (
	maxNames   = 256
	maxSymbols = 1024
)

// A name is a function to look for: by its whole name, or by how it ends.
type name struct {
	text   string
	suffix bool
}

func exact(texts ...string) []name  { return named(false, texts) }
func ending(texts ...string) []name { return named(true, texts) }

func named(suffix bool, texts []string) (list []name) {
	for _, t := range texts {
		list = append(list, name{t, suffix})
	}
	return list
}

// symbol is a function that was found.
type symbol struct {
	name        string // as it was asked for
	vaddr, size uint64
	undefined   bool // another file has it
}

// symbols returns the functions of these names in a symbol table. Instead of
// holding the table and its strings in memory it first finds out where in the
// strings the names are, and then who refers to these places.
func (m *image) symbols(kind elf.SectionType, names []name) ([]symbol, error) {
	var found []symbol
	for _, table := range m.sections {
		if table.kind != kind {
			continue
		}
		if table.entry != sizeSymbol || uint64(table.link) >= uint64(len(m.sections)) {
			return nil, errors.New("symbol table of another shape")
		}
		strs := m.sections[table.link]
		spots, err := m.spots(strs, names)
		if err != nil {
			return nil, err
		}
		if len(spots) == 0 {
			continue
		}
		err = m.src.chunks(table.offset, table.size/sizeSymbol*sizeSymbol, carried(sizeSymbol, func(b []byte) bool {
			if spot, ok := at(spots, le.Uint32(b)); ok {
				if s, ok := readSymbol(b, spot.name); ok && !slices.Contains(found, s) {
					found = append(found, s)
				}
			}
			return len(found) < maxSymbols
		}))
		if err != nil {
			return nil, err
		}
	}
	return found, nil
}

// readSymbol reads an entry of a symbol table (elf(5)): name, info, other,
// section, value, size.
func readSymbol(b []byte, name string) (symbol, bool) {
	s := symbol{name: name, vaddr: le.Uint64(b[8:]), size: le.Uint64(b[16:])}
	s.undefined = elf.SectionIndex(le.Uint16(b[6:])) == elf.SHN_UNDEF
	kind := elf.SymType(b[4] & 0xf)
	return s, kind == elf.STT_FUNC || s.undefined && kind == elf.STT_NOTYPE
}

// spot is a name's place in a string table: who refers to any place from first
// to last means it.
type spot struct {
	first, last uint32
	name        string
}

// at finds the spot of a reference. Spots do not overlap and are sorted.
func at(spots []spot, ref uint32) (spot, bool) {
	i, _ := slices.BinarySearchFunc(spots, ref, func(s spot, ref uint32) int { return cmp.Compare(s.last, ref) })
	if i < len(spots) && spots[i].first <= ref {
		return spots[i], true
	}
	return spot{}, false
}

// spots finds the names in a string table. Linkers let a name share the end of
// a longer one, so every string is compared by its end.
func (m *image) spots(strs section, names []name) ([]spot, error) {
	var longest int
	for _, n := range names {
		longest = max(longest, len(n.text))
	}
	var found []spot
	var start uint64 // of the string that is being read
	var tail []byte  // its last bytes, if it began in an earlier chunk
	ends := func(end uint64, b []byte) {
		if end > 1<<32-1 {
			return // no symbol can refer to it
		}
		for _, n := range names {
			if !bytes.HasSuffix(b, []byte(n.text)) {
				continue
			}
			s := spot{first: uint32(end) - uint32(len(n.text)), name: n.text}
			s.last = s.first
			if n.suffix {
				s.first = uint32(start)
			}
			found = append(found, s)
		}
	}
	err := m.src.chunks(strs.offset, strs.size, func(at uint64, b []byte) bool {
		for len(b) > 0 && len(found) < maxNames {
			i := bytes.IndexByte(b, 0)
			if i < 0 {
				tail = append(tail, b...)
				tail = tail[max(0, len(tail)-longest):]
				break
			}
			if len(tail) > 0 {
				ends(at+uint64(i), append(tail, b[:i]...))
				tail = tail[:0]
			} else {
				ends(at+uint64(i), b[:i])
			}
			at, b = at+uint64(i)+1, b[i+1:]
			start = at
		}
		return len(found) < maxNames
	})
	slices.SortFunc(found, func(a, b spot) int { return cmp.Or(cmp.Compare(a.last, b.last), cmp.Compare(a.first, b.first)) })
	return found, err
}

// carried makes of a reader of entries one of chunks: an entry that two chunks
// share is put together. It ends where f returns false.
func carried(size int, f func(entry []byte) bool) func(uint64, []byte) bool {
	var part []byte
	return func(_ uint64, b []byte) bool {
		if len(part) > 0 {
			n := min(size-len(part), len(b))
			part, b = append(part, b[:n]...), b[n:]
			if len(part) < size {
				return true
			}
			if !f(part) {
				return false
			}
			part = part[:0]
		}
		for ; len(b) >= size; b = b[size:] {
			if !f(b[:size]) {
				return false
			}
		}
		part = append(part, b...)
		return true
	}
}
