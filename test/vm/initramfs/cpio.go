// SPDX-License-Identifier: Apache-2.0

// Package initramfs writes the archive that the kernel unpacks as its first
// root file system.
package initramfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
)

// Archive is a cpio archive in the "new ASCII" format of
// Documentation/driver-api/early-userspace/buffer-format.rst. Folders are made
// as they are needed; every file belongs to root. The first error sticks, and
// is told by Close.
type Archive struct {
	out  io.Writer
	size int64
	ino  int
	made map[string]bool
	err  error
}

// New returns an empty archive that goes to out as it grows.
func New(out io.Writer) *Archive {
	return &Archive{out: out, made: map[string]bool{"/": true, ".": true}}
}

// Dir makes a folder, and those above it.
func (a *Archive) Dir(name string) {
	name = path.Clean("/" + name)
	if a.made[name] {
		return
	}
	a.Dir(path.Dir(name))
	a.made[name] = true
	a.entry(name, 0o040755, 2, 0, nil)
}

// File writes a file with the contents of in, of which there must be size
// bytes.
func (a *Archive) File(name string, perm fs.FileMode, size int64, in io.Reader) {
	if a.new(name) {
		a.entry(name, 0o100000|uint32(perm.Perm()), 1, size, in)
	}
}

// Bytes writes a file.
func (a *Archive) Bytes(name string, perm fs.FileMode, content []byte) {
	a.File(name, perm, int64(len(content)), strings.NewReader(string(content)))
}

// Copy writes the file of the host at from; a symbolic link is followed.
func (a *Archive) Copy(name, from string) {
	if a.err != nil {
		return
	}
	f, err := os.Open(from)
	if err != nil {
		a.err = err
		return
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		a.err = err
	case !info.Mode().IsRegular():
		a.err = fmt.Errorf("pack %s: not a regular file", from)
	default:
		a.File(name, info.Mode(), info.Size(), f)
	}
}

// Symlink makes name point to target.
func (a *Archive) Symlink(name, target string) {
	if a.new(name) {
		a.entry(name, 0o120777, 1, int64(len(target)), strings.NewReader(target))
	}
}

// Close ends the archive. It does not close the writer below.
func (a *Archive) Close() error {
	a.ino = 0
	a.entry("/TRAILER!!!", 0, 1, 0, nil)
	return a.err
}

// new makes the folder of a new file. Two files of one name are an error: the
// kernel would keep either.
func (a *Archive) new(name string) bool {
	name = path.Clean("/" + name)
	if a.err == nil && a.made[name] {
		a.err = fmt.Errorf("pack %s: it is there twice", name)
	}
	if a.err != nil {
		return false
	}
	a.Dir(path.Dir(name))
	a.made[name] = true
	return true
}

func (a *Archive) entry(name string, mode uint32, links int, size int64, in io.Reader) {
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	if a.err == nil && size > 1<<32-1 {
		a.err = errors.New("file is too large for the format")
	}
	// Magic, inode, mode, uid, gid, links, mtime, size, the device's numbers
	// and those of a device file, length of the name, checksum (unused).
	a.write(fmt.Sprintf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		a.ino, mode, 0, 0, links, 0, size, 0, 0, 0, 0, len(name)+1, 0, name))
	a.ino++
	a.pad()
	if a.err == nil && in != nil {
		n, err := io.CopyN(a.out, in, size)
		a.size += n
		if err != nil {
			a.err = fmt.Errorf("pack %s: %w", name, err)
		}
		a.pad()
	}
}

// pad fills up to a multiple of four, where the format wants headers and
// contents to begin.
func (a *Archive) pad() { a.write("\x00\x00\x00"[:(4-a.size%4)%4]) }

func (a *Archive) write(text string) {
	if a.err == nil {
		var n int
		n, a.err = io.WriteString(a.out, text)
		a.size += int64(n)
	}
}
