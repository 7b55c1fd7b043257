// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"golang.org/x/sys/unix"
)

func TestParseMapping(t *testing.T) {
	lib := fileID{unix.Mkdev(0xfd, 1), 1234}
	for _, tt := range []struct {
		line string
		want mapping
		ok   bool
	}{
		{"7f00-7f10 r-xp 00001000 fd:01 1234                       /lib/libssl.so.3", mapping{0x7f00, 0x7f10, true, lib, "/lib/libssl.so.3"}, true},
		{"7f00-7f10 r--p 00001000 fd:01 1234   /lib/libssl.so.3", mapping{0x7f00, 0x7f10, false, lib, "/lib/libssl.so.3"}, true},
		{"7f00-7f10 r-xp 00001000 fd:01 1234 /tmp/libssl.so.3 X (deleted)", mapping{0x7f00, 0x7f10, true, lib, "/tmp/libssl.so.3 X (deleted)"}, true},
		{"7f00-7f10 r-xp 00001000 fd:01 1234 /tmp/a\\012b r-xp 0 fd:01 9 /x", mapping{0x7f00, 0x7f10, true, lib, "/tmp/a\\012b r-xp 0 fd:01 9 /x"}, true},
		{"7f00-7f10 rwxs 00000000 00:00 0 ", mapping{0x7f00, 0x7f10, true, fileID{}, ""}, true},
		{"7f00-7f10 rwxp 00000000 00:00 0", mapping{0x7f00, 0x7f10, true, fileID{}, ""}, true},
		{"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]", mapping{0xffffffffff600000, 0xffffffffff601000, true, fileID{}, "[vsyscall]"}, true},
		{"7f10-7f00 r-xp 0 fd:01 1 /x", mapping{}, false},
		{"7f00-7f00 r-xp 0 fd:01 1 /x", mapping{}, false},
		{"7f00 r-xp 0 fd:01 1 /x", mapping{}, false},
		{"7f00-7f10 r-x 0 fd:01 1 /x", mapping{}, false},
		{"7f00-7f10 r-xp 0 fd01 1 /x", mapping{}, false},
		{"7f00-7f10 r-xp 0 fd:01 x /x", mapping{}, false},
		{"7f00-7f10 r-xp 0 fd:01 -1 /x", mapping{}, false},
		{"7f00-7f10 r-xp  0 fd:01 1 /x", mapping{}, false},
		{"7f00-7f10 r-xp 0 fd:01", mapping{}, false},
		{"-7f10 r-xp 0 fd:01 1 /x", mapping{}, false},
		{"+7f00-7f10 r-xp 0 fd:01 1 /x", mapping{}, false},
		{"1ffffffffffffffff-2 r-xp 0 fd:01 1 /x", mapping{}, false},
		{"", mapping{}, false},
	} {
		got, ok := parseMapping([]byte(tt.line))
		if ok != tt.ok || ok && got != tt.want {
			t.Errorf("%q: got %+v, %v; want %+v, %v", tt.line, got, ok, tt.want, tt.ok)
		}
	}
}

// all returns the mappings of a reader, and its error as text.
func all(r io.Reader) string {
	var list []mapping
	err := everyMapping(r, func(m mapping) bool { list = append(list, m); return true })
	return fmt.Sprintf("%+v %v", list, err)
}

func TestMapsInAnyParts(t *testing.T) {
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	text = append(text, "7f00-7f10 r-xp 00001000 fd:01 1234 /"+strings.Repeat("long/", 4000)+"\n7f20-7f30 r-xp 0 fd:01 5 /last"...)
	want := all(bytes.NewReader(text))
	if n := strings.Count(want, "start:"); n != bytes.Count(text, []byte{'\n'})+1 {
		t.Errorf("%d mappings of\n%s", n, text)
	}
	for name, r := range map[string]io.Reader{
		"one byte": iotest.OneByteReader(bytes.NewReader(text)),
		"halves":   iotest.HalfReader(bytes.NewReader(text)),
		"with EOF": iotest.DataErrReader(bytes.NewReader(text)),
	} {
		if got := all(r); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
	for cut := range text {
		if cut < len(text)-60000 && cut%7 != 0 {
			continue
		}
		if cut%101 == 0 || cut > len(text)-200 {
			if got := all(io.MultiReader(bytes.NewReader(text[:cut]), bytes.NewReader(text[cut:]))); got != want {
				t.Fatalf("cut at %d: got %s, want %s", cut, got, want)
			}
		}
	}
}

func TestMapsTooLong(t *testing.T) {
	line := "7f00-7f10 r-xp 0 fd:01 1 /" + strings.Repeat("x", maxMapsLine) + "\n"
	if err := everyMapping(strings.NewReader(line), func(mapping) bool { return true }); err == nil {
		t.Error("a line longer than any is read without an error")
	}
}

func TestOwnProcess(t *testing.T) {
	list, err := processMaps(os.Getpid())
	own, errOwn := ownProgram()
	if err != nil || errOwn != nil {
		t.Fatal(err, errOwn)
	}
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(list, func(m mapping) bool { return m.file == own && m.path == exe && m.exec }) {
		t.Errorf("own program %s, %s, is not in %+v", own, exe, list)
	}
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"/lib/libssl.so.3": "/lib/libssl.so.3",
		"/tmp/é ü":         "/tmp/é ü",
		"/tmp/\x1b[31mred": `/tmp/\x1b[31mred`,
		"/tmp/\u202egpj":   `/tmp/\u202egpj`,
		"/tmp/\xff":        `/tmp/\ufffd`,
		"/tmp/a\\012b":     `/tmp/a\012b`,
	} {
		if got := printable(in); got != want {
			t.Errorf("%q: got %s, want %s", in, got, want)
		}
	}
	if got := printable(strings.Repeat("a", 5000)); len(got) > 600 {
		t.Errorf("a long name stays %d bytes long", len(got))
	}
}

func FuzzMaps(f *testing.F) {
	f.Add([]byte("7f00-7f10 r-xp 00001000 fd:01 1234                       /lib/libssl.so.3\n"), 5)
	f.Add([]byte("7f00-7f10 r-xp 00001000 fd:01 1234 /tmp/a\\012b c (deleted)\n55-66 rw-p 0 00:00 0\n"), 30)
	f.Add([]byte("ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0  [vsyscall]"), 0)
	f.Fuzz(func(t *testing.T, b []byte, cut int) {
		want := all(bytes.NewReader(b))
		cut = max(0, min(cut, len(b)))
		if got := all(io.MultiReader(bytes.NewReader(b[:cut]), bytes.NewReader(b[cut:]))); got != want {
			t.Errorf("cut at %d: got %s, want %s", cut, got, want)
		}
		for line := range bytes.Lines(b) {
			line = bytes.TrimSuffix(line, []byte{'\n'})
			if m, ok := parseMapping(line); ok {
				if m.start >= m.end || !bytes.HasSuffix(line, []byte(m.path)) {
					t.Errorf("%q: got %+v", line, m)
				}
			}
		}
		printable(string(b))
	})
}
