// SPDX-License-Identifier: Apache-2.0

package keylog

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// mustTemp makes a folder on a tmpfs.
func mustTemp(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "egressd-keylog-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func mustFolder(t *testing.T, path string) *Folder {
	t.Helper()
	f, err := OpenFolder(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	})
	return f
}

func mustMake(t *testing.T, f *Folder, name string, uid uint32, shared bool) string {
	t.Helper()
	path, err := f.Make(name, uid, shared)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// mustStat looks at path itself, not at where it leads.
func mustStat(t *testing.T, path string) unix.Stat_t {
	t.Helper()
	var info unix.Stat_t
	if err := unix.Lstat(path, &info); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return info
}

// other is a user that the tests give pipes to. Who is not root can only name
// itself.
func other() uint32 {
	if os.Geteuid() == 0 {
		return 54321
	}
	return uint32(os.Geteuid())
}

func TestFolder(t *testing.T) {
	path := filepath.Join(mustTemp(t), "a", "keys")
	defer syscall.Umask(syscall.Umask(0o077))
	f := mustFolder(t, path+"/")
	if f.Path() != path {
		t.Errorf("got path %s, want %s", f.Path(), path)
	}
	if mode := mustStat(t, path).Mode; mode != unix.S_IFDIR|0o711 {
		t.Errorf("got mode %o, want 711", mode)
	}
	for name, want := range map[string]struct {
		uid    uint32
		shared bool
		mode   uint32
	}{
		"crawler":  {other(), false, 0o600},
		"web@1.x":  {uint32(os.Geteuid()), false, 0o600},
		"everyone": {uint32(os.Geteuid()), true, 0o622},
	} {
		for range 2 { // the second time it is there
			at := mustMake(t, f, name, want.uid, want.shared)
			if info := mustStat(t, at); at != filepath.Join(path, name) || info.Mode != unix.S_IFIFO|want.mode || info.Uid != want.uid {
				t.Errorf("%s at %s: got mode %o of user %d, want %o of %d", name, at, info.Mode, info.Uid, want.mode, want.uid)
			}
		}
	}
	entries, err := f.Entries()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if !e.Pipe || e.Inode == 0 {
			t.Errorf("got %+v, want a pipe", e)
		}
		names = append(names, e.Name)
	}
	if want := []string{"crawler", "everyone", "web@1.x"}; !slices.Equal(names, want) {
		t.Errorf("got %q, want %q", names, want)
	}
}

// A pipe that is there stays the same one: who has it open goes on being read.
func TestMakeKeepsAPipe(t *testing.T) {
	f := mustFolder(t, filepath.Join(mustTemp(t), "keys"))
	path := mustMake(t, f, "a", uint32(os.Geteuid()), true)
	before := mustStat(t, path)
	mustMake(t, f, "a", other(), false)
	after := mustStat(t, path)
	if after.Ino != before.Ino || after.Uid != other() || after.Mode != unix.S_IFIFO|0o600 {
		t.Errorf("got %+v after %+v", after, before)
	}
}

// What stands where a pipe should be is replaced, and not followed.
func TestMakeReplaces(t *testing.T) {
	f := mustFolder(t, filepath.Join(mustTemp(t), "keys"))
	victim := filepath.Join(mustTemp(t), "victim")
	if err := os.WriteFile(victim, []byte("x"), 0o640); err != nil {
		t.Fatal(err)
	}
	for name, make := range map[string]func(path string) error{
		"file": func(path string) error { return os.WriteFile(path, []byte("CLIENT_RANDOM"), 0o644) },
		"link": func(path string) error { return os.Symlink(victim, path) },
	} {
		if err := make(f.Pipe(name)); err != nil {
			t.Fatal(err)
		}
		if entries, err := f.Entries(); err != nil || slices.ContainsFunc(entries, func(e Entry) bool { return e.Name == name }) {
			t.Errorf("%s: got entries %v, %v", name, entries, err)
		}
		if info := mustStat(t, mustMake(t, f, name, other(), false)); info.Mode != unix.S_IFIFO|0o600 {
			t.Errorf("%s: got mode %o", name, info.Mode)
		}
	}
	if info := mustStat(t, victim); info.Mode != unix.S_IFREG|0o640 || info.Uid == 54321 {
		t.Errorf("the file that a link led to has changed: %+v", info)
	}
	if err := os.Mkdir(f.Pipe("dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Make("dir", other(), false); err == nil || !strings.Contains(err.Error(), "there is a folder") {
		t.Errorf("got %v", err)
	}
}

func TestRetireAndRevive(t *testing.T) {
	f := mustFolder(t, filepath.Join(mustTemp(t), "keys"))
	path := mustMake(t, f, "a", other(), false)
	for range 2 {
		if err := f.Change(f.Retire); err != nil {
			t.Fatal(err)
		}
		if to, err := os.Readlink(path); err != nil || to != "/dev/null" {
			t.Fatalf("got link to %q, %v", to, err)
		}
		entries, err := f.Entries()
		if err != nil || len(entries) != 1 || entries[0].Pipe || entries[0].UID != other() || entries[0].Name != "a" {
			t.Fatalf("got entries %+v, %v", entries, err)
		}
	}
	// As a client opens its log.
	log, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := log.WriteString("CLIENT_RANDOM\n"); err != nil {
		t.Error(err)
	}
	if err := log.Close(); err != nil {
		t.Error(err)
	}
	if err := f.Revive(); err != nil {
		t.Fatal(err)
	}
	if info := mustStat(t, path); info.Mode != unix.S_IFIFO|0o600 || info.Uid != other() {
		t.Errorf("got mode %o of user %d", info.Mode, info.Uid)
	}
	if err := f.Remove("a"); err != nil {
		t.Fatal(err)
	}
	if err := f.Remove("a"); err != nil {
		t.Errorf("what is not there: %v", err)
	}
	left, err := os.ReadDir(f.Path())
	if err != nil || len(left) != 1 || left[0].Name() != lockFile {
		t.Errorf("got %v, %v; want the lock alone", left, err)
	}
}

func TestFoldersThatAreRefused(t *testing.T) {
	onDisk := t.TempDir()
	var info unix.Statfs_t
	if err := unix.Statfs(onDisk, &info); err != nil {
		t.Fatal(err)
	}
	refused := func(path, want string) {
		t.Helper()
		f, err := OpenFolder(path)
		if err == nil {
			t.Errorf("%s was opened", path)
			_ = f.Close()
		} else if !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %q, want %q in it", path, err, want)
		}
	}
	if info.Type != unix.TMPFS_MAGIC {
		refused(filepath.Join(onDisk, "a", "keys"), "is on a disk")
		refused(onDisk, "is on a disk")
		if left, err := os.ReadDir(onDisk); err != nil || len(left) != 0 {
			t.Errorf("got %v, %v; want nothing made", left, err)
		}
	}
	refused("keys", "is no absolute path")
	base := mustTemp(t)
	open := func(name string, mode fs.FileMode) string {
		t.Helper()
		dir := filepath.Join(base, name)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	refused(filepath.Join(open("writable", 0o777), "keys"), "writable")
	refused(open("open", 0o777|fs.ModeSticky), "others than its owner may write")
	file := filepath.Join(base, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	refused(file, "is no folder")
	link := filepath.Join(base, "link")
	if err := os.Symlink(open("target", 0o755), link); err != nil {
		t.Fatal(err)
	}
	refused(link, "is no folder")
	if os.Geteuid() == 0 {
		foreign := open("foreign", 0o755)
		if err := os.Chown(foreign, 54321, 0); err != nil {
			t.Fatal(err)
		}
		refused(filepath.Join(foreign, "keys"), "belongs to user 54321")
	}
	// Where all may write and the sticky bit is set, a folder of root's is safe.
	mustFolder(t, filepath.Join(open("sticky", 0o777|fs.ModeSticky), "keys"))
}

func TestCheckName(t *testing.T) {
	for _, good := range []string{"a", "crawler", "web@1", "a.b:c-d_E9", strings.Repeat("x", maxName)} {
		if err := CheckName(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	f := mustFolder(t, filepath.Join(mustTemp(t), "keys"))
	for _, bad := range []string{"", ".", "..", ".lock", "a/b", "../a", "/a", "a b", "a\nb", "a\x00", "ü", `a\b`, "a%b", strings.Repeat("x", maxName+1)} {
		if err := CheckName(bad); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: got %v", bad, err)
		}
		if _, err := f.Make(bad, other(), false); err == nil {
			t.Errorf("%q was made", bad)
		}
		if err := f.Remove(bad); err == nil {
			t.Errorf("%q was removed", bad)
		}
	}
}

func TestLocks(t *testing.T) {
	path := filepath.Join(mustTemp(t), "keys")
	a, b := mustFolder(t, path), mustFolder(t, path)
	held := func(f *Folder, l Lock, want bool) {
		t.Helper()
		if got, err := f.Held(l); err != nil || got != want {
			t.Errorf("lock %d: got held %v, %v; want %v", l, got, err, want)
		}
	}
	take := func(f *Folder, l Lock, want bool) {
		t.Helper()
		if got, err := f.Take(l); err != nil || got != want {
			t.Errorf("lock %d: got taken %v, %v; want %v", l, got, err, want)
		}
	}
	held(b, Daemon, false)
	take(a, Daemon, true)
	held(b, Daemon, true)
	held(a, Daemon, false) // by another, that is
	take(b, Daemon, false)
	take(b, Keeper, true) // which is another lock
	held(a, Keeper, true)
	if err := a.Release(Daemon); err != nil {
		t.Error(err)
	}
	held(b, Daemon, false)
	take(b, Daemon, true)
	if err := b.Close(); err != nil { // as the end of its process does
		t.Error(err)
	}
	held(a, Daemon, false)
	held(a, Keeper, false)
}

// One changes a folder at a time, be it another process or a goroutine.
func TestChange(t *testing.T) {
	path := filepath.Join(mustTemp(t), "keys")
	a, b := mustFolder(t, path), mustFolder(t, path)
	inside := make(chan struct{})
	leave := make(chan struct{})
	first := make(chan error, 1)
	go func() {
		first <- a.Change(func() error { close(inside); <-leave; return errors.New("of the change") })
	}()
	<-inside
	if ok, err := b.Take(change); ok || err != nil {
		t.Errorf("got %v, %v while another changes the folder", ok, err)
	}
	second := make(chan error, 1)
	go func() { second <- b.Change(func() error { return nil }) }()
	third := make(chan error, 1)
	go func() { third <- a.Change(func() error { return nil }) }()
	close(leave)
	if err := <-first; err == nil || err.Error() != "of the change" {
		t.Errorf("got %v", err)
	}
	if err := errors.Join(<-second, <-third); err != nil {
		t.Error(err)
	}
	if err := b.Change(func() error { return nil }); err != nil {
		t.Errorf("the lock was not given back: %v", err)
	}
}

// Who holds the folder for too long, as one that is stopped, is not waited for.
func TestChangeGivesUp(t *testing.T) {
	path := filepath.Join(mustTemp(t), "keys")
	a, b := mustFolder(t, path), mustFolder(t, path)
	if ok, err := a.Take(change); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if _, err := b.Make("x", other(), false); err == nil || !strings.Contains(err.Error(), "another process has been changing it") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Lstat(b.Pipe("x")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v, want no pipe", err)
	}
}
