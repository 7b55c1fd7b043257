// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// errOther means that a name led to another file than the mapped one.
var errOther = errors.New("another file than the one that is mapped")

// openMapped opens the file behind a mapping for reading: through the mapping
// itself, which works for deleted files and in every mount namespace, else by
// its path below the root of the process. Either way it is opened only after
// it is known to be a regular file, since opening a device can have effects,
// and it is returned only if it is the file of the mapping.
func openMapped(pid int, m mapping) (*os.File, error) {
	f, err := openRegular(unix.AT_FDCWD, fmt.Sprintf("/proc/%d/map_files/%x-%x", pid, m.start, m.end), unix.OpenHow{})
	if err == nil {
		if err = sameFile(f, m.file); err == nil {
			return f, nil
		}
		f.Close()
	}
	f, errPath := openBelowRoot(pid, m)
	if errPath != nil {
		return nil, errors.Join(fmt.Errorf("open by its mapping: %w", err), fmt.Errorf("open by its path: %w", errPath))
	}
	return f, nil
}

// openBelowRoot opens the mapping's path within the root of the process. Links
// on the way that lead out of it are followed as the process would follow them.
func openBelowRoot(pid int, m mapping) (*os.File, error) {
	root, err := unix.Open(fmt.Sprintf("/proc/%d/root", pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer unix.Close(root)
	path := strings.ReplaceAll(m.path, `\012`, "\n")
	f, err := openRegular(root, path, unix.OpenHow{Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
	if err != nil {
		return nil, err
	}
	if err := sameFile(f, m.file); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// openRegular opens a regular file in two steps. The first has no effect on
// what it finds. The second waits for nobody: a lease on the file would make
// it wait for its holder (fcntl(2)).
func openRegular(dir int, path string, how unix.OpenHow) (*os.File, error) {
	how.Flags = unix.O_PATH | unix.O_CLOEXEC
	fd, err := unix.Openat2(dir, path, &how)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, errors.New("no regular file")
	}
	opened, err := unix.Open(fdPath(fd), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(opened), path), nil
}

// fdPath names an open file. It stays the same file whatever happens to names.
func fdPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// sameFile verifies that f is the file that maps tell of as id. On overlayfs
// and btrfs the device of stat is not that of maps. There the file is mapped,
// which makes both speak of it in the same words.
func sameFile(f *os.File, id fileID) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	if (fileID{uint64(st.Dev), st.Ino}) == id {
		return nil
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return fmt.Errorf("map: %w", err)
	}
	defer unix.Munmap(mem)
	own, err := ownMapping(mem)
	if err != nil {
		return err
	}
	if own != id {
		return fmt.Errorf("%w: it is %s and not %s", errOther, own, id)
	}
	return nil
}

// state is what changes when the contents of a file do, or when its inode is
// used for another file. Only the kernel sets the time of change.
type state struct {
	size           int64
	changed, nanos int64
}

func fileState(f *os.File) (state, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return state{}, err
	}
	return state{st.Size, int64(st.Ctim.Sec), int64(st.Ctim.Nsec)}, nil
}
