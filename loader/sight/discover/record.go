// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"bytes"
	"errors"

	"golang.org/x/sys/unix"
)

// recordKind is what a record tells of.
type recordKind uint8

const (
	recordOther recordKind = iota
	recordMap              // a process mapped a file for execution
	recordExec             // a process began another program
	recordFork             // a process has a child
	recordExit             // a thread ended
	recordLost             // records were lost
)

// record is one record of the perf ring buffer (perf_event_open(2)), as far as
// it is of use here.
type record struct {
	kind     recordKind
	pid, tid int
	parent   int    // recordFork: the parent's pid
	addr     uint64 // recordMap: where
	file     recordFile
	lost     uint64 // recordLost: how many
}

// recordFile is a file as a record tells it. The device may be another than
// the one in maps (overlayfs), and the generation tells a file from a later
// one that got its inode.
type recordFile struct {
	major, minor      uint32
	inode, generation uint64
}

// errRecord means that the buffer cannot be read on.
var errRecord = errors.New("perf record of an impossible size")

const (
	recordHeader    = 8
	miscCommExec    = unix.PERF_RECORD_MISC_COMM_EXEC
	maxRecordLength = 1<<16 - 1
)

// parseRecord reads the record at the start of b. n is its length, or 0 if b
// does not hold all of it.
func parseRecord(b []byte) (r record, n int, err error) {
	if len(b) < recordHeader {
		return r, 0, nil
	}
	kind, misc, size := le.Uint32(b), le.Uint16(b[4:]), int(le.Uint16(b[6:]))
	if size < recordHeader {
		return r, 0, errRecord
	}
	if len(b) < size {
		return r, 0, nil
	}
	body := b[recordHeader:size]
	u32 := func(at int) uint32 { return le.Uint32(body[at:]) }
	switch {
	case kind == unix.PERF_RECORD_MMAP2 && len(body) >= 64:
		r = record{kind: recordMap, pid: int(u32(0)), tid: int(u32(4)), addr: le.Uint64(body[8:])}
		r.file = recordFile{u32(32), u32(36), le.Uint64(body[40:]), le.Uint64(body[48:])}
		if r.file.inode == 0 || bytes.HasPrefix(body[64:], []byte("//anon\x00")) {
			r.kind = recordOther // memory of no file
		}
	case kind == unix.PERF_RECORD_COMM && len(body) >= 8 && misc&miscCommExec != 0:
		r = record{kind: recordExec, pid: int(u32(0)), tid: int(u32(4))}
	case kind == unix.PERF_RECORD_FORK && len(body) >= 16:
		r = record{kind: recordFork, pid: int(u32(0)), parent: int(u32(4)), tid: int(u32(8))}
		if r.pid == r.parent {
			r.kind = recordOther // a thread
		}
	case kind == unix.PERF_RECORD_EXIT && len(body) >= 16:
		r = record{kind: recordExit, pid: int(u32(0)), tid: int(u32(8))}
	case kind == unix.PERF_RECORD_LOST && len(body) >= 16:
		r = record{kind: recordLost, lost: le.Uint64(body[8:])}
	}
	return r, size, nil
}
