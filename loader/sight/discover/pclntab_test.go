// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"bytes"
	"debug/elf"
	"testing"

	"github.com/egressd/egressd/loader/sight"
)

// goTable makes a stripped Go program of one function, as small as it can be:
// code, table of functions, moduledata.
func goTable(t testing.TB) []byte {
	t.Helper()
	const (
		text, code             = 0x401000, 0x1000
		data, module           = 0x600000, 0x2000
		table                  = module + 0x200
		entry                  = 0x20
		namesAt, cuAt, funcsAt = pcHeaderSize, pcHeaderSize + 64, pcHeaderSize + 72
	)
	word := func(b []byte, at int, v uint64) { le.PutUint64(b[at:], v) }
	b := make([]byte, 0x2400)
	copy(b, elf.ELFMAG)
	b[elf.EI_CLASS], b[elf.EI_DATA], b[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1
	le.PutUint16(b[18:], uint16(elf.EM_X86_64))
	word(b, 32, sizeHeader)
	le.PutUint16(b[54:], sizeSegment)
	le.PutUint16(b[56:], 2)
	for i, s := range []segment{
		{flags: elf.PF_R | elf.PF_X, offset: code, vaddr: text, size: 0x1000},
		{flags: elf.PF_R | elf.PF_W, offset: module, vaddr: data, size: 0x400},
	} {
		p := b[sizeHeader+i*sizeSegment:]
		le.PutUint32(p, uint32(elf.PT_LOAD))
		le.PutUint32(p[4:], uint32(s.flags))
		word(p, 8, s.offset)
		word(p, 16, s.vaddr)
		word(p, 32, s.size)
	}
	copy(b[code+entry:], []byte{0x90, 0xc3, 0xcc, 0xcc})

	h := b[table:]
	le.PutUint32(h, magicGo120)
	h[6], h[7] = 1, 8
	for i, v := range []uint64{1, 0, 0, namesAt, cuAt, 0, 0, funcsAt} {
		word(h, 8+8*i, v)
	}
	copy(h[namesAt:], "x/tls.(*Conn).Read\x00")
	f := h[funcsAt:]
	le.PutUint32(f, entry)
	le.PutUint32(f[4:], 16)
	le.PutUint32(f[8:], entry+4)
	le.PutUint32(f[16:], entry)
	le.PutUint32(f[20:], 0)

	m := b[module:]
	word(m, 0, data+table-module)
	word(m, moduleFtabLen, 2)
	word(m, moduleMinPC, text+entry)
	word(m, moduleMaxPC, text+entry+4)
	word(m, moduleText, text)

	word(b, 40, uint64(len(b)))
	le.PutUint16(b[58:], sizeSection)
	le.PutUint16(b[60:], 2)
	le.PutUint16(b[62:], 1)
	names := "\x00.gopclntab\x00"
	s := make([]byte, 2*sizeSection)
	le.PutUint32(s, 1)
	le.PutUint32(s[4:], uint32(elf.SHT_PROGBITS))
	word(s, 16, data+table-module)
	word(s, 24, table)
	word(s, 32, 0x200)
	le.PutUint32(s[sizeSection+4:], uint32(elf.SHT_STRTAB))
	word(s[sizeSection:], 24, uint64(len(b)+len(s)))
	word(s[sizeSection:], 32, uint64(len(names)))
	return append(append(b, s...), names...)
}

func TestGoTableByHand(t *testing.T) {
	good := goTable(t)
	got := onlyTarget(t, mustBytes(t, good), sight.GoTLS).Probes
	if len(got) != 1 || got[0].Entry != 0x1020 || len(got[0].Returns) != 1 || got[0].Returns[0] != 0x1021 {
		t.Fatalf("got %x, want the function at 0x1020", got)
	}
	const module, table = 0x2000, 0x2200
	for _, tt := range []struct {
		name string
		at   int
		v    uint64
	}{
		{"another version", table, 0xfffffffa<<0 | 8<<56},
		{"another word size", table, magicGo120 | 4<<56},
		{"more functions than fit", table + 8, 1 << 20},
		{"functions without number", table + 8, 1 << 63},
		{"names before names", table + 8 + 8*3, 1 << 20},
		{"functions outside", table + 8 + 8*7, 0x10000},
		{"module of another table", module + moduleFtabLen, 3},
		{"module of another start", module + moduleMinPC, 0x401000},
		{"module of another end", module + moduleMaxPC, 0x401000},
		{"module without a text", module + moduleText, 0},
		{"text of another program", module + moduleText, 0x402000},
		{"code that is none", 0x1020, 0x06},
	} {
		b := bytes.Clone(good)
		le.PutUint64(b[tt.at:], tt.v)
		if c, err := Inspect(bytes.NewReader(b)); err != nil || len(c.Targets) > 0 || !c.Go || c.Doubt == "" {
			t.Errorf("%s: got %+v, %v; want a Go program in doubt", tt.name, c, err)
		}
	}
}
