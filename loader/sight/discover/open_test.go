// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// mustOpenMapped opens a mapping and checks that it is the file it should be.
func mustOpenMapped(t *testing.T, pid int, m mapping, want string) {
	t.Helper()
	f, err := openMapped(pid, m)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if c, err := Inspect(f); err != nil || len(c.Targets) != 1 || c.Targets[0].Library.String() != want {
		t.Errorf("%s: got %+v, %v; want %s", m.path, c, err, want)
	}
}

func TestOpenMapped(t *testing.T) {
	g := mustGroup(t)
	lib := mustFind(t, "libgnutls.so.30")
	dir := t.TempDir()
	for name, tt := range map[string]struct {
		file, shown string
		after       func(path string)
	}{
		"as it is":     {"lib.so", "/lib.so", func(string) {}},
		"deleted":      {"gone.so", "/gone.so (deleted)", func(path string) { os.Remove(path) }},
		"spaces":       {"libssl.so.3 X", "/libssl.so.3 X", func(string) {}},
		"newline":      {"a\nb r-xp 0 00:01 7 c", `/a\012b r-xp 0 00:01 7 c`, func(string) {}},
		"replaced":     {"new.so", "/new.so (deleted)", func(path string) { os.Remove(path); mustCopy(t, mustFind(t, "libssl.so.3"), path) }},
		"looks hidden": {"x (deleted)", "/x (deleted)", func(string) {}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, tt.file)
			mustCopy(t, lib, path)
			id := mustID(t, path)
			c := g.python()
			c.do("import ctypes; ctypes.CDLL(%q)", path)
			tt.after(path)
			m := mustMap(t, c.pid(), func(m mapping) bool { return m.file == id })
			if m.path != dir+tt.shown {
				t.Errorf("it is called %q, want %q", m.path, dir+tt.shown)
			}
			mustOpenMapped(t, c.pid(), m, "gnutls")
		})
	}
}

// Where mappings cannot be opened a path may be used, which whoever owns it can
// make lead elsewhere.
func TestOpenBelowRoot(t *testing.T) {
	g := mustGroup(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "lib a\nb.so")
	mustCopy(t, mustFind(t, "libgnutls.so.30"), path)
	id := mustID(t, path)
	c := g.python()
	c.do("import ctypes; ctypes.CDLL(%q)", path)
	m := mustMap(t, c.pid(), func(m mapping) bool { return m.file == id })
	f, err := openBelowRoot(c.pid(), m)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	// What is mapped there now is not what was.
	wrong := m
	wrong.file.inode++
	if f, err := openMapped(c.pid(), wrong); !errors.Is(err, errOther) {
		t.Errorf("another inode: got %v, %v; want %v", f, err, errOther)
	}

	other := mustFind(t, "libssl.so.3")
	for name, change := range map[string]func() error{
		"another file": func() error { mustCopy(t, other, path); return nil },
		"a link":       func() error { return os.Symlink(other, path) },
		"a pipe":       func() error { return unix.Mkfifo(path, 0o600) },
		"a device":     func() error { return unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 5))) },
		"a folder":     func() error { return os.Mkdir(path, 0o700) },
		"nothing":      func() error { return nil },
	} {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if err := change(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if f, err := openBelowRoot(c.pid(), m); err == nil {
			t.Errorf("%s: opened %s", name, f.Name())
			f.Close()
		}
	}
	// A mapping that is there no more does not become the file of its name.
	stale := m
	stale.start, stale.end = 0x10000, 0x20000
	os.RemoveAll(path)
	mustCopy(t, other, path)
	if f, err := openMapped(c.pid(), stale); !errors.Is(err, errOther) {
		t.Errorf("a stale mapping: got %v, %v; want %v", f, err, errOther)
	}
}

// What is no file is not opened at all: here the opening would show, since it
// lets the writer in.
func TestOpenNoFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if f, err := openRegular(unix.AT_FDCWD, path, unix.OpenHow{}); err == nil {
		t.Errorf("opened %s", f.Name())
		f.Close()
	}
}

// A lease on the file makes who opens it wait. It is not waited for.
func TestOpenLeased(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	mustWrite(t, path, "x")
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Fatalf("take a lease: %v", err)
	}
	if _, err := openRegular(unix.AT_FDCWD, path, unix.OpenHow{}); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("got %v, want %v", err, unix.EWOULDBLOCK)
	}
}

// On an overlay file system the numbers of stat, of maps and of records differ.
func TestOverlay(t *testing.T) {
	g := mustGroup(t)
	base := t.TempDir()
	lib := mustFind(t, "libgnutls.so.30")
	for _, d := range []string{"lower", "upper", "work", "merged", "space"} {
		if err := os.Mkdir(filepath.Join(base, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mustCopy(t, lib, base+"/lower/lib.so")
	// The mount is in a namespace of the process, on a memory file system: an
	// overlay does not lie on another one.
	script := `mount -t tmpfs none "$1/space" && mkdir "$1/space/upper" "$1/space/work" &&
mount -t overlay -o "lowerdir=$1/lower,upperdir=$1/space/upper,workdir=$1/space/work" none "$1/merged" &&
exec "$2" -c 'import sys, ctypes
ctypes.CDLL(sys.argv[1])
print("done", flush=True)
sys.stdin.read()' "$1/merged/lib.so"`
	c := g.start(mustFind(t, "unshare"), "-m", "sh", "-c", script, "sh", base, mustPython(t))
	if line, err := c.out.ReadString('\n'); line != "done\n" {
		t.Fatalf("mount an overlay: got %q, %v", line, err)
	}
	m := mustMap(t, c.pid(), func(m mapping) bool { return strings.HasSuffix(m.path, "/merged/lib.so") })
	mustOpenMapped(t, c.pid(), m, "gnutls")
	f, err := openBelowRoot(c.pid(), m)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := sameFile(f, fileID{m.file.dev, m.file.inode + 1}); !errors.Is(err, errOther) {
		t.Errorf("another inode: got %v, want %v", err, errOther)
	}
	t.Logf("maps say %s, stat says %s", m.file, mustID(t, fdPath(int(f.Fd()))))
}

func TestSoon(t *testing.T) {
	w := &waiting{}
	if v, err := soon(w, func() (int, error) { return 7, nil }, nil); v != 7 || err != nil {
		t.Errorf("got %d, %v; want 7", v, err)
	}
	release, dropped := make(chan struct{}), make(chan int)
	late := func() (int, error) { <-release; return 9, nil }
	start := time.Now()
	if v, err := soon(w, late, func(v int) { dropped <- v }); v != 0 || !errors.Is(err, errStuck) {
		t.Errorf("got %d, %v; want %v", v, err, errStuck)
	}
	if waited := time.Since(start); waited < patience {
		t.Errorf("gave up after %s", waited)
	}
	if n := w.stuck.Load(); n != 1 {
		t.Errorf("%d calls are left behind", n)
	}
	close(release)
	if v := <-dropped; v != 9 {
		t.Errorf("dropped %d", v)
	}
	if n := w.stuck.Load(); n != 0 {
		t.Errorf("%d calls are left behind", n)
	}
	w.stuck.Store(maxStuck)
	if _, err := soon(w, func() (int, error) { t.Error("begun"); return 0, nil }, nil); !errors.Is(err, errStuck) {
		t.Errorf("got %v, want %v", err, errStuck)
	}
}
