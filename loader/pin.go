// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// layoutVersion names the directory of the pins. It must change together with
// the meaning of a cell or of a lane record, also where their sizes stay.
const layoutVersion = "v1"

// openPinDir makes the directory in which this layout is pinned and locks it.
// The lock ends with the returned file, at the latest with the process.
func openPinDir(base string) (dir string, lock *os.File, err error) {
	dir = filepath.Join(base, layoutVersion)
	// Nothing may be made before it is certain that it is made on bpffs.
	if err := checkBPFFS(base); err != nil {
		return "", nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", nil, fmt.Errorf("make pin directory: %w", err)
	}
	f, err := os.OpenFile(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", nil, fmt.Errorf("open pin directory: %w", err)
	}
	if err := lockDir(f); err != nil {
		f.Close()
		return "", nil, fmt.Errorf("ledger in %s: %w", dir, err)
	}
	return dir, f, nil
}

// checkBPFFS tests the nearest ancestor of dir that exists.
func checkBPFFS(dir string) error {
	for at := filepath.Clean(dir); ; at = filepath.Dir(at) {
		var fs unix.Statfs_t
		err := unix.Statfs(at, &fs)
		switch {
		case err == nil && fs.Type == unix.BPF_FS_MAGIC:
			return nil
		case err == nil:
			return fmt.Errorf("pin directory %s is %w: mount -t bpf bpf /sys/fs/bpf", dir, ErrNoBPFFS)
		case !errors.Is(err, unix.ENOENT) || at == filepath.Dir(at):
			return fmt.Errorf("check pin directory %s: %w", dir, err)
		}
	}
}

// lockDir takes the exclusive lock of a directory, or returns ErrBusy.
func lockDir(f *os.File) error {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrBusy
	}
	if err != nil {
		return fmt.Errorf("lock: %w", err)
	}
	return nil
}
