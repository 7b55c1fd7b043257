// SPDX-License-Identifier: Apache-2.0

// Package rescue frees clients from a daemon that stands still. A daemon that is
// killed frees them by itself: its programs and its sockets end with it. One that
// is stopped keeps both, and a client that was led to it in the second before the
// programs see that its heartbeat is old waits for an answer that may never come.
//
// So beside the daemon there is a small process that looks at the heartbeat, too.
// Once it is old it takes from the daemon's listeners, with descriptors of its own
// (pidfd_getfd, Linux 5.6), what waits there, and resets it: nothing of it was
// read, and the client's next connect() goes untouched. What the daemon has
// accepted is reset only when the process has been stopped for some time more:
// much of it waits for its turn anyway, and a short pause should not break it.
//
// A daemon that stands still in another way is ended by itself (package proxy), or
// by the service manager.
package rescue

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/loader"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/userspace/mono"
)

const (
	// tick is the time between two looks at the heartbeat. A look reads a word of
	// memory. By so much a client may hang longer than the heartbeat may be old.
	tick = 50 * time.Millisecond
	// missed is how many looks in a row must find the same beat. They are counted,
	// too, since a machine may have stood still, and this process with it.
	missed = int(loader.HeartbeatMax / tick / 2)
	// HeldFor is how old the heartbeat of a daemon that is stopped must be until the
	// connections that it has accepted are reset, too. It is the time after which
	// the service manager ends it, where there is one.
	HeldFor = 3 * time.Second
)

// watcher looks after one daemon.
type watcher struct {
	pid   int
	pidfd int
	log   *slog.Logger
	last  ledger.Time
	same  int // looks that found the last beat

	listeners []int // of the daemon, while it stands still
	looked    bool  // whether they are known
	stopped   int   // looks in a row that found it stopped
	told      error
}

// Run looks after the process pid, the parent of this one, until that ends.
// heartbeat is from loader.Kernel.HeartbeatFile.
func Run(pid int, heartbeat *os.File, log *slog.Logger) (err error) {
	w := &watcher{pid: pid, log: log}
	if w.pidfd, err = unix.PidfdOpen(pid, 0); err != nil {
		if errors.Is(err, unix.ESRCH) {
			return nil
		}
		return fmt.Errorf("open process %d: %w", pid, err)
	}
	defer unix.Close(w.pidfd)
	if os.Getppid() != pid {
		return nil // it has ended, and the number may be another's
	}
	beat, err := loader.OpenHeartbeat(heartbeat)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, beat.Close()) }()
	defer w.forget()
	for {
		ended, err := w.wait()
		if ended || err != nil {
			return err
		}
		w.look(beat.Last(), mono.Now())
	}
}

// wait waits for the next look, or the end of the daemon.
func (w *watcher) wait() (ended bool, err error) {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(w.pidfd), Events: unix.POLLIN}}, int(tick.Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return false, fmt.Errorf("wait for process %d: %w", w.pid, err)
		}
		return n > 0, nil
	}
}

// look is one look. beat is the time of the last beat, 0 before the first.
func (w *watcher) look(beat, now ledger.Time) {
	if w.same++; beat != w.last {
		w.last, w.same = beat, 0
		w.forget()
	}
	if beat == 0 || w.same < missed || now.Sub(beat) <= loader.HeartbeatMax {
		return
	}
	if !w.looked {
		w.looked = true
		w.tell(w.find())
	}
	if n := dismiss(w.listeners); n > 0 {
		w.log.Warn("the daemon stands still: connections that it has not taken are reset", "connections", n)
	}
	// One that says by its silence that it is full is alive.
	if w.stopped++; !isStopped(w.pid) {
		w.stopped = 0
	}
	if w.stopped == int((HeldFor-loader.HeartbeatMax)/tick) {
		n, err := w.release()
		w.tell(err)
		w.log.Warn("the daemon is stopped: connections that it has taken are reset", "connections", n)
	}
}

// forget ends a standstill.
func (w *watcher) forget() {
	for _, fd := range w.listeners {
		_ = unix.Close(fd)
	}
	w.listeners, w.looked, w.stopped = nil, false, 0
}

// tell logs an error, once.
func (w *watcher) tell(err error) {
	if err != nil && w.told == nil {
		w.told = err
		w.log.Warn("clients of a daemon that stands still cannot be freed", "err", err)
	}
}
