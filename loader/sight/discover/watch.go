// SPDX-License-Identifier: Apache-2.0

package discover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/loader"
	"github.com/egressd/egressd/loader/sight"
)

// Config says which processes a Watcher looks at.
type Config struct {
	// Root is where the cgroup v2 hierarchy is; "" asks loader.CgroupRoot.
	Root string
	// Cgroups are paths from Root. Processes in them and below them are
	// looked at, if they are not in or below one of Exclude. Empty means the
	// root.
	Cgroups, Exclude []string
	// Linger is for how long a file that no process maps any more stays
	// known, so that the next process that maps it is seen from its first
	// call on. 0 means a minute. As long as it is known it is held open: its
	// file system cannot be unmounted.
	Linger time.Duration
	// Logger is told of what is found, and of what makes it harder. Nil is
	// silence.
	Logger *slog.Logger
}

// EventKind is what an Event tells.
type EventKind uint8

const (
	// Found means that a process maps a file with functions to probe which
	// was not known, or is no longer.
	Found EventKind = iota + 1
	// Gone means that no process maps the file any more and its probes can
	// be taken off.
	Gone
)

// String returns the name of the kind.
func (k EventKind) String() string {
	switch k {
	case Found:
		return "found"
	case Gone:
		return "gone"
	}
	return "unknown"
}

// Event tells of a file that processes map. Each file is Found once, and then
// Gone once before it may be Found again.
type Event struct {
	Kind EventKind
	// Dev and Inode tell the file from all others, as in sight.Target.
	Dev, Inode uint64
	// Name is the mapped path, for people.
	Name string
	// Targets are the libraries in the file, when it is Found. Their Path
	// leads to the file, whatever happened to its names, in this process and
	// until the file is Gone.
	Targets []sight.Target
}

// Counts is what a Watcher has seen since it began.
type Counts struct {
	Files     int    // with functions to probe, known now
	Processes int    // looked at now
	Scans     uint64 // of all processes
	Lost      uint64 // records of the kernel that were lost
	LeftOut   uint64 // files that could not be read, or were too many
	// Blind says why new mappings are found by looking again and again, and
	// not told by the kernel. It is "" where they are told.
	Blind string
}

// Bounds of what is remembered.
const (
	maxFiles   = 1024 // with probes
	maxOthers  = 8192 // files without
	maxRecords = 8192
	// trusted is for how long a file that nobody is known to map is believed
	// to be the one that was looked at.
	trusted = time.Minute
	// settle is how long records are let come in after the first. A program
	// that starts maps its libraries within about that.
	settle       = time.Millisecond
	defaultStay  = time.Minute
	drainedEvery = 16          // processes of a scan
	afterLoss    = time.Second // between scans, when records are lost again and again
)

// pauses are the times between scans. New processes are looked for more often
// than what known ones have become. Where the kernel tells of mappings, both
// only catch what it could not: a process that was moved into a cgroup, and a
// library that was unloaded.
type pauses struct{ fresh, all time.Duration }

var (
	told  = pauses{fresh: 10 * time.Second, all: time.Minute}
	blind = pauses{fresh: 500 * time.Millisecond, all: 5 * time.Second}
)

// Watcher finds the files with TLS libraries that processes map, now and
// later. Its methods are safe for concurrent use; Run is called once.
type Watcher struct {
	cfg  Config
	log  *slog.Logger
	own  fileID
	wake int // an eventfd

	mu       sync.Mutex
	scope    scope
	rescan   bool     // the scope is another one
	rechecks []fileID // files to look at again
	closed   bool

	files, processes                      atomic.Int64
	scans, lost, leftOut                  atomic.Uint64
	whyBlind                              atomic.Pointer[string]
	openRings                             func() (*rings, error)
	pausesOf                              func(blind bool) pauses
	nextFresh, nextAll, lastAll, nextOpen time.Time

	rings   *rings
	known   registry
	waiting waiting
	dirty   map[int][]place
	records map[recordFile]fileID
}

// place is where a record says that a process mapped a file.
type place struct {
	addr uint64
	file recordFile
}

// NewWatcher prepares a Watcher. Close releases it.
func NewWatcher(cfg Config) (*Watcher, error) {
	if cfg.Linger == 0 {
		cfg.Linger = defaultStay
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Root == "" {
		root, err := loader.CgroupRoot()
		if err != nil {
			return nil, err
		}
		cfg.Root = root
	}
	own, err := ownProgram()
	if err != nil {
		return nil, fmt.Errorf("find own program: %w", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("make eventfd: %w", err)
	}
	w := &Watcher{
		cfg: cfg, log: cfg.Logger, own: own, wake: wake,
		scope:     newScope(cfg.Root, cfg.Cgroups, cfg.Exclude),
		openRings: openRings,
		pausesOf: func(isBlind bool) pauses {
			if isBlind {
				return blind
			}
			return told
		},
		known:   newRegistry(),
		dirty:   map[int][]place{},
		records: map[recordFile]fileID{},
	}
	w.setBlind("not running")
	return w, nil
}

// Close releases what the Watcher holds. Run must have returned.
func (w *Watcher) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	w.closed = true
	w.known.close()
	return unix.Close(w.wake)
}

// SetScope looks at other cgroups from now on. Files that only processes
// outside of them map go as if those had ended.
func (w *Watcher) SetScope(cgroups, exclude []string) {
	w.mu.Lock()
	w.scope = newScope(w.cfg.Root, cgroups, exclude)
	w.rescan = true
	w.mu.Unlock()
	w.rouse()
}

// Recheck looks at a file anew, as if it had not been seen: for one whose
// probes are silent although its processes are known to speak TLS. If it is
// known it will be Gone and, if there is something to probe, Found again.
func (w *Watcher) Recheck(dev, inode uint64) {
	w.mu.Lock()
	w.rechecks = append(w.rechecks, fileID{dev, inode})
	w.mu.Unlock()
	w.rouse()
}

// Counts returns what was seen so far.
func (w *Watcher) Counts() Counts {
	return Counts{
		Files: int(w.files.Load()), Processes: int(w.processes.Load()),
		Scans: w.scans.Load(), Lost: w.lost.Load(), LeftOut: w.leftOut.Load(),
		Blind: *w.whyBlind.Load(),
	}
}

func (w *Watcher) setBlind(why string) { w.whyBlind.Store(&why) }

func (w *Watcher) rouse() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.closed {
		// A full counter is awake, too.
		_, _ = unix.Write(w.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
}

// Run looks at the processes that there are and then at what changes, until
// ctx ends. It calls handle for each event, from one goroutine, and goes on when
// handle returns. Files that are Found when it returns are not told Gone.
func (w *Watcher) Run(ctx context.Context, handle func(Event)) error {
	stop := context.AfterFunc(ctx, w.rouse)
	defer stop()
	w.known.tell = func(e Event) {
		w.log.Debug("tls library", "event", e.Kind, "file", e.Name, "dev", e.Dev, "inode", e.Inode)
		w.files.Store(int64(w.known.told)) // no later than others know of it
		handle(e)
	}
	defer func() {
		if w.rings != nil {
			w.rings.close()
			w.rings = nil
		}
	}()
	for ctx.Err() == nil {
		now := time.Now()
		w.keepRings(now)
		w.requests(now)
		w.scan(now)
		w.refreshDirty()
		w.files.Store(int64(w.known.told))
		w.processes.Store(int64(len(w.known.processes)))
		if err := w.wait(); err != nil {
			return err
		}
	}
	return nil
}

// keepRings opens the buffers of the kernel, again if the CPUs are others.
func (w *Watcher) keepRings(now time.Time) {
	if w.rings != nil && w.rings.stale() {
		w.rings.drain(w.note)
		w.rings.close()
		w.rings, w.nextOpen = nil, now
	}
	if w.rings != nil || now.Before(w.nextOpen) {
		return
	}
	w.nextOpen = now.Add(time.Minute)
	rs, err := w.openRings()
	if err != nil {
		if *w.whyBlind.Load() != err.Error() {
			w.log.Warn("mappings are looked for, not told", "err", err)
		}
		w.setBlind(err.Error())
		return
	}
	w.rings = rs
	w.setBlind("")
	w.nextAll = now // what was mapped before was not told
}

// requests does what other goroutines asked for.
func (w *Watcher) requests(now time.Time) {
	w.mu.Lock()
	rescan, rechecks := w.rescan, w.rechecks
	w.rescan, w.rechecks = false, nil
	w.mu.Unlock()
	if rescan {
		w.nextAll = now
	}
	for _, id := range rechecks {
		users := w.known.forget(id)
		for _, pid := range users {
			w.dirty[pid] = append(w.dirty[pid], place{})
		}
		if len(users) == 0 {
			w.nextAll = now // who maps it is not known
		}
	}
}

// wait waits for a record, a request or the time of the next scan.
func (w *Watcher) wait() error {
	next := w.nextFresh
	for _, t := range []time.Time{w.nextAll, w.nextOpen} {
		if t.Before(next) && (t != w.nextOpen || w.rings == nil) {
			next = t
		}
	}
	fds := []unix.PollFd{{Fd: int32(w.wake), Events: unix.POLLIN}}
	if w.rings != nil {
		fds = append(fds, w.rings.poll...)
	}
	ms := max(time.Until(next), 0).Milliseconds() + 1
	n, err := unix.Poll(fds, int(ms))
	if err != nil && !errors.Is(err, unix.EINTR) {
		return fmt.Errorf("wait for records: %w", err)
	}
	if n > 0 && fds[0].Revents != 0 {
		var b [8]byte
		_, _ = unix.Read(w.wake, b[:])
	}
	if w.rings != nil {
		if n > 0 {
			time.Sleep(settle)
		}
		w.rings.drain(w.note)
	}
	return nil
}

// note remembers which processes a record makes worth a look. That alone is
// taken from records: what a process maps is read from its maps, so the order
// of records, which differs between CPUs, does not matter.
func (w *Watcher) note(r record) {
	switch r.kind {
	case recordLost:
		w.lost.Add(r.lost)
		if soonest := w.lastAll.Add(afterLoss); soonest.Before(w.nextAll) {
			w.nextAll = soonest
		}
	case recordMap:
		if id, ok := w.records[r.file]; ok && w.known.harmless(id) {
			return
		}
		w.dirty[r.pid] = append(w.dirty[r.pid], place{r.addr, r.file})
	case recordExec, recordExit:
		if _, ok := w.known.processes[r.pid]; ok && r.tid == r.pid {
			w.dirty[r.pid] = append(w.dirty[r.pid], place{})
		}
	case recordFork:
		if p, ok := w.known.processes[r.parent]; ok && len(p.files) > 0 {
			w.dirty[r.pid] = append(w.dirty[r.pid], place{})
		}
	}
}
