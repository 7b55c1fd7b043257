// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/egressd/egressd/loader/sight"
)

// entries returns the file offsets of functions as debug/elf tells them.
func entries(t *testing.T, path string) map[string]uint64 {
	t.Helper()
	file, err := elf.NewFile(mustOpen(t, path))
	if err != nil {
		t.Fatal(err)
	}
	list, err := file.DynamicSymbols()
	if err != nil {
		list, err = file.Symbols()
	}
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]uint64{}
	for _, s := range list {
		if elf.ST_TYPE(s.Info) != elf.STT_FUNC || s.Section == elf.SHN_UNDEF {
			continue
		}
		for _, p := range file.Progs {
			if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 && s.Value >= p.Vaddr && s.Value < p.Vaddr+p.Filesz {
				found[s.Name] = s.Value - p.Vaddr + p.Off
			}
		}
	}
	return found
}

func TestLibraries(t *testing.T) {
	for _, tt := range []struct {
		name    string
		library sight.Library
		must    []string
	}{
		{"libssl.so.3", sight.OpenSSL, []string{"SSL_read", "SSL_read_ex", "SSL_write", "SSL_write_ex", "SSL_do_handshake", "SSL_connect", "SSL_set_fd", "SSL_free"}},
		{"libcrypto.so.3", sight.LibCrypto, []string{"BIO_write"}},
		{"libgnutls.so.30", sight.GnuTLS, []string{"gnutls_record_recv", "gnutls_record_send"}},
		{"node", sight.OpenSSL, []string{"SSL_read", "SSL_write", "SSL_set_fd", "SSL_free", "BIO_write"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := mustFind(t, tt.name)
			got := onlyTarget(t, mustInspect(t, path), tt.library)
			want := entries(t, path)
			for _, p := range got.Probes {
				if p.Entry != want[p.Symbol] || p.Entry == 0 || len(p.Returns) > 0 {
					t.Errorf("%s at %#x, returns %v; want it at %#x", p.Symbol, p.Entry, p.Returns, want[p.Symbol])
				}
			}
			for _, name := range tt.must {
				if !hasProbe(got, name) {
					t.Errorf("no probe for %s in %+v", name, got)
				}
			}
			notes := mustRun(t, "", nil, mustFind(t, "readelf"), "-n", path)
			if got.BuildID == "" || !strings.Contains(notes, "Build ID: "+got.BuildID) {
				t.Errorf("build id %q is not in\n%s", got.BuildID, notes)
			}
		})
	}
}

func TestOtherFiles(t *testing.T) {
	// A library of OpenSSL's names in front of GnuTLS would show all twice.
	if c := mustInspect(t, mustFind(t, "libgnutls-openssl.so.27")); len(c.Targets) > 0 {
		t.Errorf("libgnutls-openssl: got %+v, want no target", c)
	}
	// What uses a library is not one.
	for _, name := range []string{"curl", "wget", "libcurl.so.4", "libc.so.6"} {
		if c := mustInspect(t, mustFind(t, name)); len(c.Targets) > 0 || c.Go || c.JVM || c.NSS {
			t.Errorf("%s: got %+v, want nothing", name, c)
		}
	}
	for name, text := range map[string]string{"empty": "", "text": "#!/bin/sh\n", "short": "\x7fELF\x02\x01\x01"} {
		if _, err := Inspect(strings.NewReader(text)); !errors.Is(err, errNotELF) {
			t.Errorf("%s: got %v, want %v", name, err, errNotELF)
		}
	}
}

const cProgram = `
#include <openssl/ssl.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	char b[1];
	SSL_CTX *ctx = SSL_CTX_new(TLS_client_method());
	SSL *s = SSL_new(ctx);
	if (argc > 1) {
		SSL_set_fd(s, 0);
		SSL_connect(s);
		SSL_write(s, b, SSL_read(s, b, 1));
	}
	SSL_free(s);
	return sleep(60);
}
`

// mustBuildStatic builds a program with OpenSSL linked in, stripped or not.
func mustBuildStatic(t *testing.T, stripped bool) string {
	t.Helper()
	dir := t.TempDir()
	mustWrite(t, dir+"/main.c", cProgram)
	out := filepath.Join(dir, "static")
	args := []string{"-o", out, "main.c", "-Wl,-Bstatic", "-lssl", "-lcrypto", "-Wl,-Bdynamic", "-ldl", "-pthread"}
	if stripped {
		args = append([]string{"-s"}, args...)
	}
	if _, err := os.Stat("/usr/lib/x86_64-linux-gnu/libssl.a"); err != nil {
		t.Skip("libssl.a is not installed")
	}
	mustRun(t, dir, nil, mustFind(t, "gcc"), args...)
	return out
}

func TestStaticOpenSSL(t *testing.T) {
	plain := mustBuildStatic(t, false)
	file, err := elf.NewFile(mustOpen(t, plain))
	if err != nil {
		t.Fatal(err)
	}
	list, err := file.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	got := onlyTarget(t, mustInspect(t, plain), sight.OpenSSL)
	for _, name := range []string{"SSL_read", "SSL_write", "SSL_connect", "SSL_set_fd", "SSL_free", "BIO_write"} {
		i := slices.IndexFunc(list, func(s elf.Symbol) bool { return s.Name == name })
		p := slices.IndexFunc(got.Probes, func(p sight.Probe) bool { return p.Symbol == name })
		if i < 0 || p < 0 {
			t.Fatalf("%s: symbol %d, probe %d", name, i, p)
		}
		section := file.Sections[list[i].Section]
		if want := list[i].Value - section.Addr + section.Offset; got.Probes[p].Entry != want {
			t.Errorf("%s: got %#x, want %#x", name, got.Probes[p].Entry, want)
		}
	}
	stripped := mustBuildStatic(t, true)
	if c := mustInspect(t, stripped); len(c.Targets) > 0 {
		t.Errorf("stripped: got %+v, want no target", c)
	}
	if kind := marked(mustOpen(t, stripped)); kind != HiddenOpenSSL {
		t.Errorf("stripped: got %s, want %s", kind, HiddenOpenSSL)
	}
}

// elfWith makes a small ELF file with one executable segment and the dynamic
// symbols of some functions, each 16 bytes after the other from vaddr on.
func elfWith(vaddr uint64, names ...string) []byte {
	const code, symtab = 0x1000, 0x2000
	le := binary.LittleEndian
	strtab := "\x00"
	syms := make([]byte, sizeSymbol)
	for i, name := range names {
		s := make([]byte, sizeSymbol)
		le.PutUint32(s, uint32(len(strtab)))
		s[4] = byte(elf.STB_GLOBAL)<<4 | byte(elf.STT_FUNC)
		le.PutUint16(s[6:], 1)
		le.PutUint64(s[8:], vaddr+uint64(16*i))
		le.PutUint64(s[16:], 16)
		syms = append(syms, s...)
		strtab += name + "\x00"
	}
	b := make([]byte, symtab)
	copy(b, elf.ELFMAG)
	b[elf.EI_CLASS], b[elf.EI_DATA], b[elf.EI_VERSION] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), 1
	le.PutUint16(b[16:], uint16(elf.ET_DYN))
	le.PutUint16(b[18:], uint16(elf.EM_X86_64))
	b = append(b, syms...)
	strAt := len(b)
	b = append(b, strtab...)
	le.PutUint64(b[32:], sizeHeader)
	le.PutUint16(b[54:], sizeSegment)
	le.PutUint16(b[56:], 1)
	p := b[sizeHeader:]
	le.PutUint32(p, uint32(elf.PT_LOAD))
	le.PutUint32(p[4:], uint32(elf.PF_R|elf.PF_X))
	le.PutUint64(p[8:], code)
	le.PutUint64(p[16:], 0x401000)
	le.PutUint64(p[32:], 0x1000)
	le.PutUint64(p[40:], 0x1000)
	le.PutUint64(b[40:], uint64(len(b)))
	le.PutUint16(b[58:], sizeSection)
	le.PutUint16(b[60:], 3)
	header := func(kind elf.SectionType, off, size uint64, link uint32, entry uint64) {
		s := make([]byte, sizeSection)
		le.PutUint32(s[4:], uint32(kind))
		le.PutUint64(s[24:], off)
		le.PutUint64(s[32:], size)
		le.PutUint32(s[40:], link)
		le.PutUint64(s[56:], entry)
		b = append(b, s...)
	}
	header(elf.SHT_NULL, 0, 0, 0, 0)
	header(elf.SHT_DYNSYM, symtab, uint64(len(syms)), 2, sizeSymbol)
	header(elf.SHT_STRTAB, uint64(strAt), uint64(len(strtab)), 0, 0)
	return b
}

func TestHostileFiles(t *testing.T) {
	good := elfWith(0x401000, "SSL_read", "SSL_write", "SSL_readx", "xSSL_free")
	got := onlyTarget(t, mustBytes(t, good), sight.OpenSSL)
	want := []sight.Probe{{Symbol: "SSL_read", Entry: 0x1000}, {Symbol: "SSL_write", Entry: 0x1010}}
	if fmt.Sprint(got.Probes) != fmt.Sprint(want) {
		t.Fatalf("got %v, want %v", got.Probes, want)
	}
	le := binary.LittleEndian
	sections := le.Uint64(good[40:])
	for _, tt := range []struct {
		name   string
		change func(b []byte)
	}{
		{"code outside of the file", func(b []byte) { le.PutUint64(b[sizeHeader+16:], 0x900000) }},
		{"segment not executable", func(b []byte) { le.PutUint32(b[sizeHeader+4:], uint32(elf.PF_R|elf.PF_W)) }},
		{"offset beyond all numbers", func(b []byte) {
			le.PutUint64(b[sizeHeader+8:], 1<<64-1)
			le.PutUint64(b[sizeHeader+32:], 1<<64-1)
			le.PutUint64(b[sizeHeader+16:], 0)
		}},
		{"symbols without end", func(b []byte) { le.PutUint64(b[sections+sizeSection+32:], 1<<62) }},
		{"strings without end", func(b []byte) { le.PutUint64(b[sections+2*sizeSection+32:], 1<<62) }},
		{"symbols far away", func(b []byte) { le.PutUint64(b[sections+sizeSection+24:], 1<<63) }},
		{"strings nowhere", func(b []byte) { le.PutUint32(b[sections+sizeSection+40:], 1<<31) }},
		{"too many sections", func(b []byte) { le.PutUint16(b[60:], 0xffff) }},
		{"too many segments", func(b []byte) { le.PutUint16(b[56:], 0xffff) }},
		{"32 bits", func(b []byte) { b[elf.EI_CLASS] = byte(elf.ELFCLASS32) }},
		{"big endian", func(b []byte) { b[elf.EI_DATA] = byte(elf.ELFDATA2MSB) }},
		{"another machine", func(b []byte) { le.PutUint16(b[18:], uint16(elf.EM_RISCV)) }},
	} {
		b := bytes.Clone(good)
		tt.change(b)
		c, err := Inspect(bytes.NewReader(b))
		for _, target := range c.Targets {
			t.Errorf("%s: got %+v, %v; want no target", tt.name, target, err)
		}
	}
}

func mustBytes(t *testing.T, b []byte) Contents {
	t.Helper()
	c, err := Inspect(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// endless is a file whose every part reads as zeros, after a header.
type endless struct {
	head []byte
	read int64
}

func (e *endless) ReadAt(b []byte, off int64) (int, error) {
	clear(b)
	if off < int64(len(e.head)) {
		copy(b, e.head[off:])
	}
	e.read += int64(len(b))
	return len(b), nil
}

func TestReadingIsBounded(t *testing.T) {
	head := elfWith(0x401000, "SSL_read", "SSL_write")
	sections := le.Uint64(head[40:])
	le.PutUint64(head[sections+sizeSection+32:], 1<<50) // the symbols are a file of petabytes
	e := &endless{head: head}
	if _, err := Inspect(e); !errors.Is(err, errBudget) {
		t.Errorf("got %v, want %v", err, errBudget)
	}
	if e.read > readBudget+sizeHeader {
		t.Errorf("read %d bytes", e.read)
	}
}

// asked gives what it is asked for, and remembers the largest question.
type asked struct {
	io.ReaderAt
	most int
}

func (a *asked) ReadAt(b []byte, off int64) (int, error) {
	a.most = max(a.most, len(b))
	return a.ReaderAt.ReadAt(b, off)
}

func TestReadsInSmallParts(t *testing.T) {
	a := &asked{ReaderAt: mustOpen(t, mustFind(t, "node"))}
	if _, err := Inspect(a); err != nil || a.most > maxSectionNames {
		t.Errorf("%v, %d bytes at once", err, a.most)
	}
}

// A name that begins in one part and ends in another is found as well.
func TestNamesAcrossChunks(t *testing.T) {
	for _, pad := range []int{1, chunkSize - 12, chunkSize - 5, chunkSize - 2, chunkSize - 1, chunkSize, chunkSize + 1, 2*chunkSize - 4} {
		// The padding is a name of its own, and once a part of the wanted one.
		for _, names := range [][]string{
			{strings.Repeat("x", pad), "SSL_read", "SSL_write"},
			{strings.Repeat("x", pad) + "SSL_read", "SSL_read", "SSL_write"},
		} {
			got := onlyTarget(t, mustBytes(t, elfWith(0x401000, names...)), sight.OpenSSL)
			if len(got.Probes) != 2 || got.Probes[0].Entry != 0x1010 {
				t.Errorf("after %d bytes: got %v", pad, got.Probes)
			}
		}
	}
}

// Linkers let a name share the end of another one.
func TestSharedNameEnds(t *testing.T) {
	b := elfWith(0x401000, "my_SSL_read", "SSL_write")
	le.PutUint32(b[0x2000+sizeSymbol:], 1+uint32(len("my_")))
	if got := onlyTarget(t, mustBytes(t, b), sight.OpenSSL); len(got.Probes) != 2 {
		t.Errorf("got %v, want both functions", got.Probes)
	}
}

func FuzzInspect(f *testing.F) {
	f.Add(elfWith(0x401000, "SSL_read", "SSL_write", "BIO_write"))
	f.Add(elfWith(0x401000, "gnutls_record_recv", "gnutls_record_send", "JNI_CreateJavaVM"))
	f.Add(goTable(f))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Inspect(bytes.NewReader(b))
		if err != nil && len(c.Targets) > 0 {
			t.Errorf("targets with an error: %+v, %v", c, err)
		}
		for _, target := range c.Targets {
			if len(target.Probes) == 0 {
				t.Errorf("target without probes: %+v", target)
			}
			for _, p := range target.Probes {
				for _, r := range append(p.Returns, p.Entry) {
					// Entries of C functions may be beyond the end of a file that is
					// too short for its segment; what was decoded may not.
					if target.Library == sight.GoTLS && r >= uint64(len(b)) {
						t.Errorf("probe %+v in a file of %d bytes", p, len(b))
					}
				}
			}
		}
		marked(bytes.NewReader(b))
	})
}
