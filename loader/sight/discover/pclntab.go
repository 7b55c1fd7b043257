// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"slices"
)

// The table of functions that every Go program needs at run time, for its
// stack traces, stays when symbols are stripped. Its layout is that of the
// runtime's pcHeader, moduledata and _func (runtime/symtab.go,
// runtime/runtime2.go): a header of eight bytes and eight words, of which the
// later ones are offsets from the header; pairs of entry and place of a _func,
// ascending by entry; and one more entry, where the last function ends. All
// entries count from the start of the text, which the header held from Go 1.18
// to 1.25 and no longer does: it is taken from the moduledata, in every version.
const (
	magicGo118 = 0xfffffff0
	magicGo120 = 0xfffffff1

	pcHeaderSize    = 8 + 8*8
	maxGoFunctions  = 4 << 20
	maxFunctionCode = 256 << 10

	// Words of a moduledata, from its start; the same from Go 1.16 on.
	moduleFtabLen = 17 * 8
	moduleMinPC   = 20 * 8
	moduleMaxPC   = 21 * 8
	moduleText    = 22 * 8
	moduleSize    = 23 * 8
)

// pclntab is the outline of such a table.
type pclntab struct {
	m            *image
	at           section
	functions    uint64
	names, funcs section // parts of the file: names, and the pairs with the _funcs after them
	first, last  uint32  // entry of the first function, end of the last
}

// newPclntab reads the header of the table.
func newPclntab(m *image) (*pclntab, error) {
	s, ok := m.section(".gopclntab", ".data.rel.ro.gopclntab")
	if !ok {
		return nil, errors.New("no table of functions")
	}
	h := make([]byte, pcHeaderSize)
	if err := m.src.read(s.offset, h); err != nil {
		return nil, err
	}
	if magic := le.Uint32(h); magic != magicGo118 && magic != magicGo120 {
		return nil, fmt.Errorf("table of functions of an unknown version %#x", magic)
	}
	if h[7] != 8 {
		return nil, errors.New("table of functions of another architecture")
	}
	word := func(i int) uint64 { return le.Uint64(h[8+8*i:]) }
	t := &pclntab{m: m, at: s, functions: word(0)}
	namesAt, namesEnd, funcsAt := word(3), word(4), word(7)
	if t.functions == 0 || t.functions > maxGoFunctions || namesAt > namesEnd || namesEnd > s.size ||
		funcsAt > s.size || t.functions*8+4 > s.size-funcsAt {
		return nil, errors.New("table of functions does not fit its section")
	}
	t.names = section{offset: s.offset + namesAt, size: namesEnd - namesAt}
	t.funcs = section{offset: s.offset + funcsAt, size: s.size - funcsAt}
	b := make([]byte, 4)
	if err := m.src.read(t.funcs.offset, b); err != nil {
		return nil, err
	}
	t.first = le.Uint32(b)
	if err := m.src.read(t.funcs.offset+t.functions*8, b); err != nil {
		return nil, err
	}
	t.last = le.Uint32(b)
	return t, nil
}

// symbols returns the functions of these names.
func (t *pclntab) symbols(names []name) ([]symbol, error) {
	spots, err := t.m.spots(t.names, names)
	if err != nil || len(spots) == 0 {
		return nil, err
	}
	text, err := t.text()
	if err != nil {
		return nil, err
	}
	var found []symbol
	add := func(entry, end uint32, n string) {
		if end > entry {
			found = append(found, symbol{name: n, vaddr: text + uint64(entry), size: uint64(end - entry)})
		}
	}
	// The pairs and the _funcs that they point to both ascend: two windows
	// go through the table.
	funcs := window{src: t.m.src, part: t.funcs}
	var entry, place uint32
	var seen uint64
	step := func(b []byte) bool {
		next := le.Uint32(b)
		if seen > 0 {
			// A _func begins with its entry, again, and the place of its name.
			if f := funcs.at(uint64(place), 8); f != nil {
				if spot, ok := at(spots, le.Uint32(f[4:])); ok && le.Uint32(f) == entry {
					add(entry, next, spot.name)
				}
			}
		}
		seen++
		entry = next
		if len(b) >= 8 {
			place = le.Uint32(b[4:])
		}
		return len(found) < maxSymbols && funcs.err == nil
	}
	if err := t.m.src.chunks(t.funcs.offset, t.functions*8, carried(8, step)); err != nil {
		return nil, err
	}
	step(le.AppendUint32(nil, t.last))
	return found, funcs.err
}

// window reads places of a part of a file that mostly ascend.
type window struct {
	src  *source
	part section
	from uint64
	buf  []byte
	err  error
}

// at returns n bytes at a place of the part, or nil if they are not there.
func (w *window) at(place, n uint64) []byte {
	if place < w.from || place+n > w.from+uint64(len(w.buf)) {
		if w.err != nil || place > w.part.size || n > w.part.size-place {
			return nil
		}
		if w.buf == nil {
			w.buf = make([]byte, chunkSize)
		}
		w.buf = w.buf[:min(w.part.size-place, uint64(cap(w.buf)))]
		w.from = place
		if w.err = w.src.read(w.part.offset+place, w.buf); w.err != nil {
			return nil
		}
	}
	return w.buf[place-w.from:][:n]
}

// text returns the address that entries count from. In a program that C code
// is linked into it is not the start of a section. The moduledata has it and
// is found by what points to the table; it is believed only if it bounds the
// same functions.
func (t *pclntab) text() (uint64, error) {
	relative, err := t.m.relocated(t.at.addr)
	if err != nil {
		return 0, err
	}
	places := relative
	for _, s := range t.m.segments {
		if s.kind != elf.PT_LOAD || s.flags&elf.PF_W == 0 {
			continue // the runtime writes to it: it links modules
		}
		err := t.m.src.chunks(s.offset, s.size, func(at uint64, b []byte) bool {
			for i := 0; i+8 <= len(b); i += 8 { // both are multiples of 8 away from the segment's start
				if le.Uint64(b[i:]) == t.at.addr {
					places = append(places, s.vaddr+at+uint64(i))
				}
			}
			return len(places) < maxNames
		})
		if err != nil {
			return 0, err
		}
	}
	for _, place := range places {
		if text, ok := t.module(place); ok {
			return text, nil
		}
	}
	return 0, errors.New("start of the text is not known")
}

// module reads the text's address of what may be a moduledata.
func (t *pclntab) module(place uint64) (uint64, bool) {
	off, ok := t.m.dataOffset(place)
	b := make([]byte, moduleSize)
	if !ok || t.m.src.read(off, b) != nil {
		return 0, false
	}
	if le.Uint64(b[moduleText:]) == 0 && t.m.relocate(place, b) != nil {
		return 0, false
	}
	text := le.Uint64(b[moduleText:])
	return text, text != 0 && le.Uint64(b[moduleFtabLen:]) == t.functions+1 &&
		le.Uint64(b[moduleMinPC:]) == text+uint64(t.first) && le.Uint64(b[moduleMaxPC:]) == text+uint64(t.last)
}

// relocations calls f with the place and the value of each relocation that
// only adds the base address: what a position-independent program has in
// place of addresses.
func (m *image) relocations(f func(place, value uint64)) error {
	relative := uint32(elf.R_X86_64_RELATIVE)
	if m.machine == elf.EM_AARCH64 {
		relative = uint32(elf.R_AARCH64_RELATIVE)
	}
	for _, s := range m.sections {
		if s.kind != elf.SHT_RELA || s.entry != sizeRela {
			continue
		}
		err := m.src.chunks(s.offset, s.size/sizeRela*sizeRela, carried(sizeRela, func(b []byte) bool {
			if le.Uint32(b[8:]) == relative {
				f(le.Uint64(b), le.Uint64(b[16:]))
			}
			return true
		}))
		if err != nil {
			return err
		}
	}
	return nil
}

// relocated returns the places that get the value when the program is loaded.
func (m *image) relocated(value uint64) (places []uint64, err error) {
	err = m.relocations(func(place, v uint64) {
		if v == value && len(places) < maxNames {
			places = append(places, place)
		}
	})
	return places, err
}

// relocate puts the values of relocations into b, which stands at place.
func (m *image) relocate(place uint64, b []byte) error {
	return m.relocations(func(p, v uint64) {
		if i := p - place; p >= place && i+8 <= uint64(len(b)) {
			le.PutUint64(b[i:], v)
		}
	})
}

// isGo reports whether there are sections that only the Go linker makes.
func (m *image) isGo() bool {
	_, table := m.section(".gopclntab", ".data.rel.ro.gopclntab")
	_, info := m.section(".go.buildinfo")
	return table || info
}

// goSymbols returns the functions of these names of a Go program: by its
// symbols, or by the table of functions where they were stripped.
func (m *image) goSymbols(names []name) ([]symbol, error) {
	found, err := m.symbols(elf.SHT_SYMTAB, names)
	found = slices.DeleteFunc(found, func(s symbol) bool { return s.undefined || s.size == 0 })
	if err != nil || len(found) > 0 {
		return found, err
	}
	t, err := newPclntab(m)
	if err != nil {
		return nil, err
	}
	return t.symbols(names)
}

// code reads the bytes of a function.
func (m *image) code(s symbol) (code []byte, off uint64, ok bool) {
	off, ok = m.offset(s.vaddr)
	end, endOK := m.offset(s.vaddr + s.size - 1)
	if !ok || !endOK || s.size == 0 || s.size > maxFunctionCode || end-off != s.size-1 {
		return nil, 0, false
	}
	code = make([]byte, s.size)
	if m.src.read(off, code) != nil {
		return nil, 0, false
	}
	return code, off, len(bytes.TrimRight(code, "\x00")) > 0
}
