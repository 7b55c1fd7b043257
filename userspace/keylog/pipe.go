// SPDX-License-Identifier: Apache-2.0

package keylog

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// pipeSize is the room wanted in a pipe, in bytes: some 5000 lines.
const pipeSize = 1 << 20

// Reader is a reading end of a pipe. While one is open no client waits to open
// the pipe, and none is killed for writing to it. A Reader is not itself a
// writer, so it sees whether there are any. Close ends a wait in Read, apart
// from that one goroutine uses it.
type Reader struct {
	file   *os.File
	inode  uint64
	size   int
	closed atomic.Bool
}

// OpenReader opens the pipe called name and gives it all the room that it may
// have.
func (f *Folder) OpenReader(name string) (*Reader, error) {
	// Nonblocking: opening does not wait for a writer.
	fd, err := unix.Open(f.Pipe(name), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open pipe %s: %w", f.Pipe(name), err)
	}
	r := &Reader{file: os.NewFile(uintptr(fd), f.Pipe(name))}
	var info unix.Stat_t
	if err := unix.Fstat(fd, &info); err != nil {
		return nil, errors.Join(fmt.Errorf("look at pipe %s: %w", f.Pipe(name), err), r.Close())
	}
	if info.Mode&unix.S_IFMT != unix.S_IFIFO {
		return nil, errors.Join(fmt.Errorf("open pipe %s: it is no pipe", f.Pipe(name)), r.Close())
	}
	r.inode = info.Ino
	r.size = enlarge(fd)
	return r, nil
}

// enlarge gives a pipe as much room as it may have, up to pipeSize, and
// returns how much that is.
func enlarge(fd int) int {
	limit := pipeSize
	// What is above the limit of the host is refused, not cut to it.
	if text, err := os.ReadFile("/proc/sys/fs/pipe-max-size"); err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && n > 0 {
			limit = min(limit, n)
		}
	}
	for {
		size, err := unix.FcntlInt(uintptr(fd), unix.F_GETPIPE_SZ, 0)
		if err != nil {
			return os.Getpagesize()
		}
		if size >= limit {
			return size
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, limit); err != nil {
			limit /= 2 // the user's pipes have much of it already
		}
	}
}

// Inode tells pipes apart that had one name after the other.
func (r *Reader) Inode() uint64 { return r.inode }

// Size is the room in the pipe, in bytes. Clients may have to wait when half
// of it is used, since every write may begin a page of its own.
func (r *Reader) Size() int { return r.size }

// Close closes this end.
func (r *Reader) Close() error {
	r.closed.Store(true)
	return r.file.Close()
}

// Pending is the number of bytes that wait in the pipe.
func (r *Reader) Pending() (n int, err error) {
	err = r.control(func(fd int) (err error) {
		n, err = unix.IoctlGetInt(fd, unix.TIOCINQ)
		return err
	})
	return n, err
}

// TryRead reads what is there into b. It returns 0 if there is nothing;
// writers then says whether somebody has the pipe open for writing.
func (r *Reader) TryRead(b []byte) (n int, writers bool, err error) {
	err = r.control(func(fd int) (err error) {
		n, writers, err = tryRead(fd, b)
		return err
	})
	return n, writers, err
}

// tryRead reads once, without waiting.
func tryRead(fd int, b []byte) (n int, writers bool, err error) {
	for {
		n, err = unix.Read(fd, b)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EAGAIN):
			return 0, true, nil
		case err != nil:
			return 0, false, err
		default:
			return n, n > 0, nil
		}
	}
}

// Read waits until there is something and reads it into b. idle is called
// before a wait, with what TryRead says of writers. After Close the error is
// os.ErrClosed.
func (r *Reader) Read(b []byte, idle func(writers bool)) (n int, err error) {
	conn, err := r.file.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	// Unlike a read of the file, which ends when the last writer has gone,
	// this one waits for the next writer: the runtime is told of changes only.
	err = conn.Read(func(fd uintptr) bool {
		var writers bool
		n, writers, failed = tryRead(int(fd), b)
		if n == 0 && failed == nil {
			idle(writers)
			return false
		}
		return true
	})
	if err != nil && r.closed.Load() {
		err = os.ErrClosed // by which name the runtime does not call it here
	}
	return n, errors.Join(err, failed)
}

// control calls f with the descriptor, which stays open meanwhile.
func (r *Reader) control(f func(fd int) error) error {
	conn, err := r.file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = conn.Control(func(fd uintptr) { failed = f(int(fd)) })
	return errors.Join(err, failed)
}
