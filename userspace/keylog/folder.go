// SPDX-License-Identifier: Apache-2.0

package keylog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// nowhere is where pipes lead when nobody reads them any more: a client that
// opens one must find something that takes its lines.
const nowhere = "/dev/null"

// lockFile is the file whose bytes are the locks of the folder. Names with a
// dot in front are no pipes.
const lockFile = ".lock"

// maxName bounds the names of pipes, in bytes; some characters more stand
// before one while it is made.
const maxName = 200

// Folder is a folder of named pipes, each for one user who writes keys to it.
// Others can open a pipe that is theirs, and can neither list nor change the
// folder. Methods that change it do so under Change.
//
// A Folder is safe for concurrent use.
type Folder struct {
	path     string
	lock     *os.File
	changing sync.Mutex // the lock tells processes apart, not goroutines
}

// Entry is one pipe of a folder, or what stands in for it.
type Entry struct {
	Name  string
	UID   uint32 // who may write
	Pipe  bool   // false: a link to /dev/null, since nobody reads any more
	Inode uint64
}

// OpenFolder opens the folder at path, making it if it is missing. The folder
// must be on a file system in memory, and nobody but root may be able to put
// another in its place, or nobody but the user who calls. The caller closes it.
func OpenFolder(path string) (*Folder, error) {
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("open key folder: %q is no absolute path", path)
	}
	path = filepath.Clean(path)
	if err := checkMemory(path); err != nil {
		return nil, err
	}
	// Others pass through it to their pipes.
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("make key folder: %w", err)
	}
	if err := os.Mkdir(path, 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("make key folder: %w", err)
	}
	if err := checkFolder(path); err != nil {
		return nil, err
	}
	// Against the umask, and what a service manager made of it.
	if err := os.Chmod(path, 0o711); err != nil {
		return nil, fmt.Errorf("protect key folder: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(path, lockFile), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock of key folder: %w", err)
	}
	return &Folder{path: path, lock: lock}, nil
}

// checkMemory refuses a folder that is on a disk, or will be.
func checkMemory(path string) error {
	var info unix.Statfs_t
	err := unix.Statfs(path, &info)
	for at := path; errors.Is(err, fs.ErrNotExist) && at != "/"; {
		at = filepath.Dir(at)
		err = unix.Statfs(at, &info)
	}
	if err != nil {
		return fmt.Errorf("look at key folder %s: %w", path, err)
	}
	if info.Type != unix.TMPFS_MAGIC && info.Type != unix.RAMFS_MAGIC {
		return fmt.Errorf("key folder %s is on a disk, where a file that a client makes in place of its pipe would stay: choose one on a tmpfs, as in /dev/shm/egressd/keys", path)
	}
	return nil
}

// checkFolder refuses a folder where keys would be in danger.
func checkFolder(path string) error {
	if err := checkMemory(path); err != nil {
		return err
	}
	for at := path; ; at = filepath.Dir(at) {
		var info unix.Stat_t
		if err := unix.Lstat(at, &info); err != nil {
			return fmt.Errorf("look at key folder %s: %w", at, err)
		}
		switch {
		case info.Mode&unix.S_IFMT == unix.S_IFLNK && at != path && info.Uid == 0:
			// As /var/run is one. It leads to where only root could let it.
		case info.Mode&unix.S_IFMT != unix.S_IFDIR:
			return fmt.Errorf("key folder %s: %s is no folder", path, at)
		case info.Uid != 0 && info.Uid != uint32(os.Geteuid()):
			return fmt.Errorf("key folder %s: %s belongs to user %d, who could put another in its place", path, at, info.Uid)
		case info.Mode&0o022 != 0 && (info.Mode&unix.S_ISVTX == 0 || at == path):
			return fmt.Errorf("key folder %s: others than its owner may write to %s", path, at)
		}
		if at == "/" {
			return nil
		}
	}
}

// Path is where the folder is.
func (f *Folder) Path() string { return f.path }

// Pipe is the path of the pipe called name.
func (f *Folder) Pipe(name string) string { return filepath.Join(f.path, name) }

// Close closes the folder and releases the locks held through it.
func (f *Folder) Close() error { return f.lock.Close() }

// Entries lists the pipes, by name. A folder that is gone has none.
func (f *Folder) Entries() ([]Entry, error) {
	all, err := os.ReadDir(f.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list key folder: %w", err)
	}
	var entries []Entry
	for _, d := range all {
		kind := d.Type()
		if CheckName(d.Name()) != nil || kind != fs.ModeNamedPipe && kind != fs.ModeSymlink {
			continue
		}
		var info unix.Stat_t
		path := f.Pipe(d.Name())
		if err := unix.Lstat(path, &info); err != nil {
			continue // removed meanwhile
		}
		e := Entry{Name: d.Name(), UID: info.Uid, Inode: info.Ino, Pipe: info.Mode&unix.S_IFMT == unix.S_IFIFO}
		if !e.Pipe {
			if to, err := os.Readlink(path); err != nil || to != nowhere {
				continue
			}
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// Make makes the pipe called name, or takes the one that is there, and returns
// its path. uid alone may write to it, or anybody if shared is set, which is
// for names that only who should write knows. Nobody but root can read it, and
// the user uid.
func (f *Folder) Make(name string, uid uint32, shared bool) (path string, err error) {
	if err := CheckName(name); err != nil {
		return "", err
	}
	err = f.Change(func() error { return f.make(name, uid, shared) })
	return f.Pipe(name), err
}

func (f *Folder) make(name string, uid uint32, shared bool) error {
	path := f.Pipe(name)
	var info unix.Stat_t
	switch err := unix.Lstat(path, &info); {
	case err == nil && info.Mode&unix.S_IFMT == unix.S_IFIFO:
		// Whoever has it open goes on writing to it.
		return protect(path, uid, shared)
	case err == nil && info.Mode&unix.S_IFMT == unix.S_IFDIR:
		return fmt.Errorf("make pipe %s: there is a folder", path)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("look at pipe %s: %w", path, err)
	}
	return f.replace(name, func(fresh string) error {
		if err := unix.Mkfifo(fresh, 0o600); err != nil {
			return fmt.Errorf("make pipe %s: %w", path, err)
		}
		return protect(fresh, uid, shared)
	})
}

// protect says who may write to a pipe. It does with CAP_CHOWN alone: the mode
// of what is another's only CAP_FOWNER could change.
func protect(path string, uid uint32, shared bool) error {
	mode := fs.FileMode(0o600)
	if shared {
		mode = 0o622
	}
	info, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("look at pipe %s: %w", path, err)
	}
	if info.Mode().Perm() != mode {
		if err := giveTo(path, uint32(os.Geteuid())); err != nil {
			return err
		}
		if err := os.Chmod(path, mode); err != nil {
			return fmt.Errorf("protect pipe %s: %w", path, err)
		}
	}
	return giveTo(path, uid)
}

func giveTo(path string, uid uint32) error {
	if err := os.Lchown(path, int(uid), -1); err != nil {
		return fmt.Errorf("give pipe %s to user %d: %w", path, uid, err)
	}
	return nil
}

// Revive makes pipes again where links to /dev/null stand in for them. The
// caller is about to read them.
func (f *Folder) Revive() error {
	return f.Change(func() error {
		entries, err := f.Entries()
		for _, e := range entries {
			if !e.Pipe {
				err = errors.Join(err, f.make(e.Name, e.UID, false))
			}
		}
		return err
	})
}

// Retire puts links to /dev/null in the place of all pipes. Who has a pipe
// open still writes to it. It is called within Change.
func (f *Folder) Retire() error {
	entries, err := f.Entries()
	for _, e := range entries {
		if !e.Pipe {
			continue
		}
		err = errors.Join(err, f.replace(e.Name, func(fresh string) error {
			if err := os.Symlink(nowhere, fresh); err != nil {
				return fmt.Errorf("make link for pipe %s: %w", e.Name, err)
			}
			return giveTo(fresh, e.UID) // the memory of whom the pipe was for
		}))
	}
	return err
}

// replace has make make a file and puts it in the place of name at once, so
// that there is no moment without one.
func (f *Folder) replace(name string, make func(fresh string) error) error {
	fresh := filepath.Join(f.path, ".new-"+name)
	if err := os.Remove(fresh); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove what was left of %s: %w", name, err)
	}
	if err := make(fresh); err != nil {
		return err
	}
	if err := os.Rename(fresh, f.Pipe(name)); err != nil {
		return fmt.Errorf("put %s in place: %w", name, err)
	}
	return nil
}

// Remove removes the pipe called name, and its stand-in.
func (f *Folder) Remove(name string) error {
	if err := CheckName(name); err != nil {
		return err
	}
	return f.Change(func() error {
		if err := os.Remove(f.Pipe(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove pipe: %w", err)
		}
		return nil
	})
}

// CheckName says what is wrong with the name of a pipe.
func CheckName(name string) error {
	switch {
	case name == "" || len(name) > maxName:
		return fmt.Errorf("%q is no name of a pipe: it has 1 to %d characters", name, maxName)
	case name[0] == '.':
		return fmt.Errorf("%q is no name of a pipe: it begins with a dot", name)
	}
	if i := slices.IndexFunc([]byte(name), func(c byte) bool {
		return !('0' <= c && c <= '9' || 'a' <= c|0x20 && c|0x20 <= 'z' || strings.IndexByte("._-@:", c) >= 0)
	}); i >= 0 {
		return fmt.Errorf("%q is no name of a pipe: it may have letters, digits and ._-@: only", name)
	}
	return nil
}
