// SPDX-License-Identifier: Apache-2.0

package loader

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy/ledger"
)

// HeartbeatMax is the age of the last beat (Kernel.Beat) from which on the
// programs redirect nothing: HEARTBEAT_MAX of bpf/flows.h.
const HeartbeatMax = time.Second

// HeartbeatFile is a file from which another process, that inherits it, can read
// the heartbeat (OpenHeartbeat). The caller closes it. It keeps a map in memory,
// but no program attached.
func (k *Kernel) HeartbeatFile() (*os.File, error) {
	fd, err := unix.FcntlInt(uintptr(k.objs.Control.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("share heartbeat: %w", err)
	}
	return os.NewFile(uintptr(fd), "heartbeat"), nil
}

// Heartbeat is that of another process. It is read-only.
type Heartbeat struct {
	mem  []byte
	beat *uint64
}

// OpenHeartbeat maps what HeartbeatFile gave. The file may be closed after it.
func OpenHeartbeat(file *os.File) (*Heartbeat, error) {
	mem, err := unix.Mmap(int(file.Fd()), 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map heartbeat: %w", err)
	}
	return &Heartbeat{mem: mem, beat: &records[egressControl](mem, 1)[0].Beat}, nil
}

// Last is the time of the last beat; 0 before the first.
func (h *Heartbeat) Last() ledger.Time { return ledger.Time(atomic.LoadUint64(h.beat)) }

// Close ends the use of h.
func (h *Heartbeat) Close() error {
	if h.mem == nil {
		return errors.New("heartbeat is closed already")
	}
	mem := h.mem
	h.mem, h.beat = nil, nil
	return unix.Munmap(mem)
}
