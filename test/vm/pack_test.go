// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// moduleFile makes an ELF file that is nothing but a section .modinfo.
func moduleFile(t testing.TB, info string) []byte {
	t.Helper()
	const names = "\x00.modinfo\x00.shstrtab\x00"
	var b bytes.Buffer
	write := func(v ...any) {
		t.Helper()
		for _, v := range v {
			if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
				t.Fatal(err)
			}
		}
	}
	const header, entry = 64, 64
	infoAt := uint64(header)
	namesAt := infoAt + uint64(len(info))
	tableAt := namesAt + uint64(len(names))
	write([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9), uint16(1), uint16(62), uint32(1), uint64(0), uint64(0), tableAt,
		uint32(0), uint16(header), uint16(0), uint16(0), uint16(entry), uint16(3), uint16(2))
	write([]byte(info), []byte(names), make([]byte, entry))
	write(uint32(1), uint32(1), uint64(0), uint64(0), infoAt, uint64(len(info)), uint32(0), uint32(0), uint64(1), uint64(0))
	write(uint32(10), uint32(3), uint64(0), uint64(0), namesAt, uint64(len(names)), uint32(0), uint32(0), uint64(1), uint64(0))
	return b.Bytes()
}

func TestModules(t *testing.T) {
	dir := t.TempDir()
	put := func(path string, content []byte) string {
		t.Helper()
		path = filepath.Join(dir, "modules", "kernel", path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	base := moduleFile(t, "license=GPL\x00depends=\x00")
	put("net/base.ko", base)
	put("net/sch-mid.ko", moduleFile(t, "depends=base\x00name=sch_mid\x00"))
	// Debian's newer packages hold them compressed.
	packed := put("net/top.ko", moduleFile(t, "depends=sch-mid,base\x00"))
	if out, err := exec.Command("xz", packed).CombinedOutput(); err != nil {
		t.Fatalf("xz: %v\n%s", err, out)
	}
	got, builtin, err := modulesOf(dir, []string{"top", "sch_mid", "loop"})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range got {
		names = append(names, m.name)
	}
	if want := []string{"base", "sch_mid", "top"}; !reflect.DeepEqual(names, want) {
		t.Errorf("got modules %v, want %v", names, want)
	}
	if !bytes.Equal(got[0].content, base) || !bytes.HasPrefix(got[2].content, []byte("\x7fELF")) {
		t.Error("got modules with other contents")
	}
	if want := []string{"loop"}; !reflect.DeepEqual(builtin, want) {
		t.Errorf("got built in %v, want %v", builtin, want)
	}

	put("bad/odd.ko.zst", nil)
	if _, _, err := modulesOf(dir, []string{"odd"}); err == nil {
		t.Error("a module compressed in an unknown way: got no error")
	}
	put("bad/text.ko", []byte("no ELF"))
	if _, _, err := modulesOf(dir, []string{"text"}); err == nil {
		t.Error("a module that is no ELF file: got no error")
	}
	if _, _, err := modulesOf(filepath.Join(dir, "none"), nil); err == nil {
		t.Error("no folder of modules: got no error")
	}
}

func TestLibraries(t *testing.T) {
	got := libraries(`	linux-vdso.so.1 (0x00007fff)
	libcurl.so.4 => /lib/x86_64-linux-gnu/libcurl.so.4 (0x00007f1)
	/lib64/ld-linux-x86-64.so.2 (0x00007f2)
	libmissing.so.1 => not found
`)
	if want := []string{"/lib/x86_64-linux-gnu/libcurl.so.4", "/lib64/ld-linux-x86-64.so.2"}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestTail(t *testing.T) {
	if got := tail("a\nb\nc\n\n", 2); got != "b\nc" {
		t.Errorf("got %q", got)
	}
	if got := tail("", 2); got != "" {
		t.Errorf("got %q of nothing", got)
	}
	if got := strings.Count(cut(strings.Repeat("x\n", 1000)), "\n"); got > 70 {
		t.Errorf("got %d lines, want at most 70", got)
	}
	if got := cut("a\nb\n"); got != "a\nb\n" {
		t.Errorf("got %q", got)
	}
}
