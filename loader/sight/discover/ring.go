// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ringBytes is the size of the buffer of one CPU. A process that starts makes
// some twenty records of about 120 bytes.
const ringBytes = 128 << 10

// ring is the buffer of a perf event that counts nothing and tells which
// processes map, start and end on one CPU.
type ring struct {
	fd   int
	mem  []byte
	page *unix.PerfEventMmapPage
	data []byte
	buf  []byte
}

// openRing opens the event of a CPU, for all processes.
func openRing(cpu int) (*ring, error) {
	attr := unix.PerfEventAttr{
		Type:   unix.PERF_TYPE_SOFTWARE,
		Size:   uint32(unsafe.Sizeof(unix.PerfEventAttr{})),
		Config: unix.PERF_COUNT_SW_DUMMY,
		Bits: unix.PerfBitMmap | unix.PerfBitMmap2 | unix.PerfBitComm | unix.PerfBitCommExec |
			unix.PerfBitTask | unix.PerfBitWatermark,
		Wakeup: 1,
	}
	fd, err := unix.PerfEventOpen(&attr, -1, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("open perf event of cpu %d: %w", cpu, err)
	}
	pageSize := os.Getpagesize()
	size := pageSize
	for size < ringBytes {
		size *= 2
	}
	mem, err := unix.Mmap(fd, 0, pageSize+size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("map perf buffer of cpu %d: %w", cpu, err)
	}
	return &ring{
		fd: fd, mem: mem, page: (*unix.PerfEventMmapPage)(unsafe.Pointer(unsafe.SliceData(mem))),
		data: mem[pageSize:], buf: make([]byte, size),
	}, nil
}

func (r *ring) close() error {
	return errors.Join(unix.Munmap(r.mem), unix.Close(r.fd))
}

// drain calls f with the records that came since the last time. Records that
// cannot be read count as lost.
func (r *ring) drain(f func(record)) {
	head := atomic.LoadUint64(&r.page.Data_head)
	tail := r.page.Data_tail // written by us alone
	n := head - tail
	if n == 0 {
		return
	}
	if n > uint64(len(r.data)) {
		f(record{kind: recordLost, lost: 1})
		atomic.StoreUint64(&r.page.Data_tail, head)
		return
	}
	from := tail % uint64(len(r.data))
	b := r.buf[:n]
	copy(b[copy(b, r.data[from:]):], r.data)
	atomic.StoreUint64(&r.page.Data_tail, head)
	for len(b) > 0 {
		rec, size, err := parseRecord(b)
		if err != nil || size == 0 {
			f(record{kind: recordLost, lost: 1})
			return
		}
		f(rec)
		b = b[size:]
	}
}

// rings are the buffers of all CPUs.
type rings struct {
	online string
	list   []*ring
	poll   []unix.PollFd
}

// openRings opens the buffers of all CPUs that are online.
func openRings() (_ *rings, err error) {
	online, err := onlineCPUs()
	if err != nil {
		return nil, err
	}
	cpus, err := parseCPUs(online)
	if err != nil {
		return nil, err
	}
	rs := &rings{online: online}
	defer func() {
		if err != nil {
			rs.close()
		}
	}()
	for _, cpu := range cpus {
		r, err := openRing(cpu)
		if err != nil {
			return nil, err
		}
		rs.list = append(rs.list, r)
		rs.poll = append(rs.poll, unix.PollFd{Fd: int32(r.fd), Events: unix.POLLIN})
	}
	return rs, nil
}

func (rs *rings) close() error {
	var errs []error
	for _, r := range rs.list {
		errs = append(errs, r.close())
	}
	return errors.Join(errs...)
}

// stale reports whether CPUs came or went since the buffers were opened.
func (rs *rings) stale() bool {
	online, err := onlineCPUs()
	return err == nil && online != rs.online
}

func (rs *rings) drain(f func(record)) {
	for _, r := range rs.list {
		r.drain(f)
	}
}
