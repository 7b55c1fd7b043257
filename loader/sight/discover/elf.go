// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"bytes"
	"debug/elf"
	"encoding/hex"
	"errors"
	"fmt"
)

// What a file may have of each. Real ones have some dozens.
const (
	maxSections     = 4096
	maxSegments     = 512
	maxSectionNames = 256 << 10
	maxNote         = 64 << 10
)

// Sizes of the entries of a 64-bit ELF file (elf(5)).
const (
	sizeHeader  = 64
	sizeSection = 64
	sizeSegment = 56
	sizeSymbol  = 24
	sizeRela    = 24
)

// errNotELF means a file that is no program and no library.
var errNotELF = errors.New("no ELF file")

// image is the outline of an ELF file: its headers, without any contents.
// debug/elf is not used for it: it reads whole symbol tables into memory, and
// makes no promise for files that were written against it.
type image struct {
	src      *source
	machine  elf.Machine
	segments []segment
	sections []section
}

type segment struct {
	kind                      elf.ProgType
	flags                     elf.ProgFlag
	offset, vaddr, size, mems uint64
}

type section struct {
	name               string
	kind               elf.SectionType
	addr, offset, size uint64
	link               uint32
	entry              uint64
}

// newImage reads the headers. Only 64-bit files of amd64 and arm64 are known.
func newImage(src *source) (*image, error) {
	h := make([]byte, sizeHeader)
	if err := src.read(0, h); err != nil || !bytes.HasPrefix(h, []byte(elf.ELFMAG)) {
		return nil, errNotELF
	}
	m := &image{src: src, machine: elf.Machine(le.Uint16(h[18:]))}
	switch {
	case elf.Class(h[elf.EI_CLASS]) != elf.ELFCLASS64:
		return nil, errors.New("a 32-bit file")
	case elf.Data(h[elf.EI_DATA]) != elf.ELFDATA2LSB || m.machine != elf.EM_X86_64 && m.machine != elf.EM_AARCH64:
		return nil, errors.New("a file of another architecture")
	}
	if err := m.readSegments(le.Uint64(h[32:]), le.Uint16(h[54:]), le.Uint16(h[56:])); err != nil {
		return nil, fmt.Errorf("read program headers: %w", err)
	}
	if err := m.readSections(le.Uint64(h[40:]), le.Uint16(h[58:]), le.Uint16(h[60:]), le.Uint16(h[62:])); err != nil {
		return nil, fmt.Errorf("read section headers: %w", err)
	}
	return m, nil
}

func (m *image) readSegments(off uint64, entry, count uint16) error {
	if count == 0 {
		return nil
	}
	if entry != sizeSegment || count > maxSegments {
		return fmt.Errorf("%d of %d bytes", count, entry)
	}
	table := make([]byte, int(count)*sizeSegment)
	if err := m.src.read(off, table); err != nil {
		return err
	}
	for b := range chunked(table, sizeSegment) {
		m.segments = append(m.segments, segment{
			kind: elf.ProgType(le.Uint32(b)), flags: elf.ProgFlag(le.Uint32(b[4:])),
			offset: le.Uint64(b[8:]), vaddr: le.Uint64(b[16:]), size: le.Uint64(b[32:]), mems: le.Uint64(b[40:]),
		})
	}
	return nil
}

// readSections reads the section headers with their names. A file without any
// is whole: it shows no symbols.
func (m *image) readSections(off uint64, entry, count, names uint16) error {
	if off == 0 || count == 0 {
		return nil
	}
	if entry != sizeSection || count > maxSections {
		return fmt.Errorf("%d of %d bytes", count, entry)
	}
	table := make([]byte, int(count)*sizeSection)
	if err := m.src.read(off, table); err != nil {
		return err
	}
	var nameAt []uint32
	for b := range chunked(table, sizeSection) {
		nameAt = append(nameAt, le.Uint32(b))
		m.sections = append(m.sections, section{
			kind: elf.SectionType(le.Uint32(b[4:])), addr: le.Uint64(b[16:]),
			offset: le.Uint64(b[24:]), size: le.Uint64(b[32:]), link: le.Uint32(b[40:]), entry: le.Uint64(b[56:]),
		})
	}
	if int(names) >= len(m.sections) {
		return nil
	}
	strs := make([]byte, min(m.sections[names].size, maxSectionNames))
	if err := m.src.read(m.sections[names].offset, strs); err != nil {
		return err
	}
	for i, at := range nameAt {
		if uint64(at) < uint64(len(strs)) {
			name, _, _ := bytes.Cut(strs[at:], []byte{0})
			m.sections[i].name = string(name[:min(len(name), 64)])
		}
	}
	return nil
}

// chunked yields the entries of a table, each of size bytes.
func chunked(table []byte, size int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for ; len(table) >= size; table = table[size:] {
			if !yield(table[:size]) {
				return
			}
		}
	}
}

// section returns the first section of one of these names.
func (m *image) section(names ...string) (section, bool) {
	for _, s := range m.sections {
		for _, name := range names {
			if s.name == name && s.kind != elf.SHT_NOBITS {
				return s, true
			}
		}
	}
	return section{}, false
}

// offset turns the virtual address of code into an offset in the file: that is
// where a probe hangs. Code that is not in an executable segment, or whose
// bytes are not in the file, has none.
func (m *image) offset(vaddr uint64) (uint64, bool) {
	for _, s := range m.segments {
		if s.kind == elf.PT_LOAD && s.flags&elf.PF_X != 0 && vaddr >= s.vaddr && vaddr-s.vaddr < s.size {
			return m.place(s, vaddr)
		}
	}
	return 0, false
}

// dataOffset is offset for an address in any segment.
func (m *image) dataOffset(vaddr uint64) (uint64, bool) {
	for _, s := range m.segments {
		if s.kind == elf.PT_LOAD && vaddr >= s.vaddr && vaddr-s.vaddr < s.size {
			return m.place(s, vaddr)
		}
	}
	return 0, false
}

func (m *image) place(s segment, vaddr uint64) (uint64, bool) {
	off := vaddr - s.vaddr + s.offset
	return off, off >= s.offset
}

// buildID returns the build id of the linker in hexadecimal, or "" if there is
// none. Whoever builds a file chooses it: it is for people to read and tells
// nothing about the contents.
func (m *image) buildID() string {
	for _, s := range m.segments {
		if s.kind != elf.PT_NOTE {
			continue
		}
		notes := make([]byte, min(s.size, maxNote))
		if err := m.src.read(s.offset, notes); err != nil {
			continue
		}
		if id := gnuBuildID(notes); id != "" {
			return id
		}
	}
	return ""
}

// gnuBuildID looks for the note of type NT_GNU_BUILD_ID of the name "GNU".
// Names and descriptions are padded to four bytes (elf(5)).
func gnuBuildID(notes []byte) string {
	const typeBuildID = 3
	for len(notes) >= 12 {
		nameLen, descLen := uint64(le.Uint32(notes)), uint64(le.Uint32(notes[4:]))
		kind := le.Uint32(notes[8:])
		desc := 12 + (nameLen+3)&^3
		end := desc + descLen
		if end > uint64(len(notes)) {
			return ""
		}
		if kind == typeBuildID && string(notes[12:12+nameLen]) == "GNU\x00" && descLen <= 64 {
			return hex.EncodeToString(notes[desc:end])
		}
		notes = notes[min(desc+(descLen+3)&^3, uint64(len(notes))):]
	}
	return ""
}
