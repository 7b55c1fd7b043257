// SPDX-License-Identifier: Apache-2.0

package keylog

import (
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"
)

// Lock is one of the locks by which the processes around a folder know of each
// other. They end with the process that holds them, however it ends; one that
// is stopped holds them still. They are locks of open files (Linux 3.15), one
// byte each, which can be tested without being taken.
type Lock int64

// Locks of a folder.
const (
	Daemon Lock = iota // who reads the pipes
	Keeper             // who sees to it that no client waits for a reader
	change             // who makes or replaces pipes, for moments
)

// changeTimeout bounds the wait for who changes the folder: it may be stopped.
const changeTimeout = 3 * time.Second

// errBusy is a lock that another holds.
var errBusy = errors.New("another process holds it")

// Take takes a lock, and reports false if another Folder has it.
func (f *Folder) Take(l Lock) (bool, error) {
	switch err := f.set(l, unix.F_WRLCK); {
	case err == nil:
		return true, nil
	case errors.Is(err, errBusy):
		return false, nil
	default:
		return false, err
	}
}

// Release gives a lock back.
func (f *Folder) Release(l Lock) error { return f.set(l, unix.F_UNLCK) }

// Held reports whether another Folder has the lock; of this one it says
// nothing.
func (f *Folder) Held(l Lock) (bool, error) {
	lk := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: int64(l), Len: 1}
	if err := unix.FcntlFlock(f.lock.Fd(), unix.F_OFD_GETLK, &lk); err != nil {
		return false, fmt.Errorf("test lock of key folder: %w", err)
	}
	return lk.Type != unix.F_UNLCK, nil
}

// Change calls do while nobody else changes the folder.
func (f *Folder) Change(do func() error) error {
	f.changing.Lock()
	defer f.changing.Unlock()
	for end := time.Now().Add(changeTimeout); ; time.Sleep(time.Millisecond) {
		ok, err := f.Take(change)
		if err != nil {
			return err
		}
		if ok {
			break
		}
		if time.Now().After(end) {
			return fmt.Errorf("change key folder %s: another process has been changing it for %s", f.path, changeTimeout)
		}
	}
	return errors.Join(do(), f.Release(change))
}

func (f *Folder) set(l Lock, kind int16) error {
	lk := unix.Flock_t{Type: kind, Whence: io.SeekStart, Start: int64(l), Len: 1}
	switch err := unix.FcntlFlock(f.lock.Fd(), unix.F_OFD_SETLK, &lk); {
	case err == nil:
		return nil
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EACCES):
		return errBusy
	default:
		return fmt.Errorf("lock key folder %s: %w", f.path, err)
	}
}
