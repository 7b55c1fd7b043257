// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"bytes"
	"debug/elf"
	"io"
)

// A mark is text that is compiled into a program with a TLS library whose
// symbols are gone: parts of paths of its source files, which errors carry.
type mark struct {
	kind Kind
	text string
}

// marks are searched in this order: OpenSSL's is a part of BoringSSL's.
var marks = []mark{
	{BoringSSL, "boringssl"},
	{Rustls, "/rustls-0."},
	{Rustls, "/rustls-1."},
	{Rustls, "/rustls/src/"},
	{HiddenOpenSSL, "ssl/ssl_lib.c"},
}

// markBudget bounds what is searched of one file for marks.
const markBudget = 256 << 20

// marked returns the TLS library that the constants of a file speak of, or
// None. It is a hint for people: no probe comes of it.
func marked(r io.ReaderAt) Kind {
	m, err := newImage(&source{r: r, left: markBudget})
	if err != nil {
		return None
	}
	found := make([]bool, len(marks))
	for _, part := range m.constants() {
		var tail []byte
		err := m.src.chunks(part.offset, part.size, func(_ uint64, b []byte) bool {
			const longest = 16
			joint := append(tail, b[:min(len(b), longest)]...)
			for i, mark := range marks {
				text := []byte(mark.text)
				found[i] = found[i] || bytes.Contains(joint, text) || bytes.Contains(b, text)
			}
			tail = append(tail[:0], b[max(0, len(b)-longest):]...)
			return !found[0]
		})
		if err != nil {
			break
		}
	}
	for i, mark := range marks {
		if found[i] {
			return mark.kind
		}
	}
	return None
}

// constants returns the parts of a file in which its texts are.
func (m *image) constants() []section {
	if s, ok := m.section(".rodata"); ok {
		return []section{s}
	}
	var parts []section
	for _, s := range m.segments {
		if s.kind == elf.PT_LOAD {
			parts = append(parts, section{offset: s.offset, size: s.size})
		}
	}
	return parts
}
