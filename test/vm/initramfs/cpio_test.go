// SPDX-License-Identifier: Apache-2.0

package initramfs

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// entry is what unpack finds.
type entry struct {
	mode    uint64
	content string
}

// unpack reads an archive as init/initramfs.c of the kernel does: headers of
// 110 bytes, then the name, then the contents, each padded to four bytes.
func unpack(t testing.TB, archive []byte) map[string]entry {
	t.Helper()
	found := map[string]entry{}
	at := 0
	take := func(n int) string {
		t.Helper()
		if at+n > len(archive) {
			t.Fatalf("archive of %d bytes ends before %d + %d", len(archive), at, n)
		}
		at += n
		return string(archive[at-n : at])
	}
	pad := func() {
		t.Helper()
		if fill := take((4 - at%4) % 4); strings.Trim(fill, "\x00") != "" {
			t.Fatalf("padding %q before %d", fill, at)
		}
	}
	inodes := map[uint64]bool{}
	for {
		if at%4 != 0 {
			t.Fatalf("header at %d", at)
		}
		header := take(110)
		field := func(i int) uint64 {
			t.Helper()
			n, err := strconv.ParseUint(header[6+8*i:14+8*i], 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		if header[:6] != "070701" {
			t.Fatalf("magic %q", header[:6])
		}
		name := strings.TrimSuffix(take(int(field(11))), "\x00")
		pad()
		content := take(int(field(6)))
		pad()
		if name == "TRAILER!!!" {
			if at != len(archive) {
				t.Errorf("%d bytes behind the trailer", len(archive)-at)
			}
			return found
		}
		if inodes[field(0)] {
			t.Errorf("%s: inode %d is there twice", name, field(0))
		}
		inodes[field(0)] = true
		if dir := filepath.Dir(name); dir != "." && found[dir].mode != 0o040755 {
			t.Errorf("%s comes before its folder", name)
		}
		found[name] = entry{field(1), content}
	}
}

func TestArchive(t *testing.T) {
	from := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(from, []byte("12345"), 0o755); err != nil {
		t.Fatal(err)
	}
	link := from + "-link"
	if err := os.Symlink(from, link); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	a := New(&out)
	a.Bytes("/init", 0o755, []byte("#!"))
	a.Copy("usr/bin/tool", from)
	a.Copy("/usr/lib/linked", link)
	a.Symlink("/bin", "usr/bin")
	a.Bytes("/etc/empty", 0o600, nil)
	a.Dir("/usr")
	a.Dir("/var/tmp/")
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	got := unpack(t, out.Bytes())
	want := map[string]entry{
		"init":           {0o100755, "#!"},
		"usr":            {0o040755, ""},
		"usr/bin":        {0o040755, ""},
		"usr/bin/tool":   {0o100755, "12345"},
		"usr/lib":        {0o040755, ""},
		"usr/lib/linked": {0o100755, "12345"},
		"bin":            {0o120777, "usr/bin"},
		"etc":            {0o040755, ""},
		"etc/empty":      {0o100600, ""},
		"var":            {0o040755, ""},
		"var/tmp":        {0o040755, ""},
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
}

func TestArchiveOfEverySize(t *testing.T) {
	var out bytes.Buffer
	a := New(&out)
	for n := range 9 {
		a.Bytes(strings.Repeat("n", n+1), 0o644, bytes.Repeat([]byte{'c'}, n))
	}
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	got := unpack(t, out.Bytes())
	for n := range 9 {
		if e := got[strings.Repeat("n", n+1)]; len(e.content) != n {
			t.Errorf("file of %d bytes: got %q", n, e.content)
		}
	}
}

func TestArchiveErrors(t *testing.T) {
	dir := t.TempDir()
	for name, fill := range map[string]func(a *Archive){
		"two of one name":    func(a *Archive) { a.Bytes("/a/b", 0o644, nil); a.Bytes("a//b", 0o644, nil) },
		"a file in a file":   func(a *Archive) { a.Bytes("/a/b", 0o644, nil); a.Symlink("a", "b") },
		"no such file":       func(a *Archive) { a.Copy("/a", filepath.Join(dir, "none")) },
		"a folder":           func(a *Archive) { a.Copy("/a", dir) },
		"fewer bytes":        func(a *Archive) { a.File("/a", 0o644, 5, strings.NewReader("1234")) },
		"too large":          func(a *Archive) { a.File("/a", 0o644, 1<<32, strings.NewReader("")) },
		"a writer that ends": func(a *Archive) { a.out = full{}; a.Bytes("/a", 0o644, nil) },
	} {
		a := New(&bytes.Buffer{})
		fill(a)
		first := a.Close()
		if first == nil {
			t.Errorf("%s: got no error", name)
		}
		a.Bytes("/later", 0o644, nil)
		if again := a.Close(); again != first {
			t.Errorf("%s: got %v later, want the first error %v", name, again, first)
		}
	}
}

// full takes nothing.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, fmt.Errorf("full") }

func TestEntriesAreInOrder(t *testing.T) {
	var out bytes.Buffer
	a := New(&out)
	a.Bytes("/a/b/c/d", 0o644, []byte("deep"))
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	got := slices.Sorted(maps.Keys(unpack(t, out.Bytes())))
	if want := []string{"a", "a/b", "a/b/c", "a/b/c/d"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
