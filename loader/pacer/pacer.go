// SPDX-License-Identifier: Apache-2.0

package pacer

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// Config says what to do in the namespace.
type Config struct {
	// Program is of type SchedCLS, named ProgramName, and returns TC_ACT_UNSPEC.
	// It stays the caller's, who closes it after Close. Where devices lie above
	// each other it may see a packet twice.
	Program *ebpf.Program
	// Install puts fq where the kernel chose the qdisc.
	Install bool
	Logger  *slog.Logger // nil: slog.Default()
	// Changed, if not nil, is called with each new state, one at a time; first
	// within Open, last, with a State that is not Ready, within Close, before
	// anything is detached. It must not call methods of the Pacer.
	Changed func(State)

	noTCX bool // attach as on kernels before 6.6
}

// Pacer follows the devices of a namespace. Its methods are safe for concurrent
// use.
type Pacer struct {
	cfg     Config
	log     *slog.Logger
	install atomic.Bool
	watcher *watcher
	state   atomic.Pointer[State]
	stop    chan struct{}
	once    sync.Once
	ended   chan struct{} // closed when the thread has ended, and failure is set
	failure error
}

const (
	// lookEvery is how often what nobody tells of is looked at.
	lookEvery = 10 * time.Second
	// settle is how long changes are gathered: a device comes with a handful.
	settle = 20 * time.Millisecond
	// share bounds the time spent with asking the kernel, in storms of changes,
	// to one part in so many, up to a pause of longest.
	share   = 20
	longest = 5 * time.Second
)

// Open watches the network namespace of the calling thread, attaches the program
// to all its devices that have fq, and removes what an earlier process left
// behind. An error means that nothing was done; a device that cannot be
// attached to, or a qdisc that cannot be installed, is none.
func Open(cfg Config) (*Pacer, error) {
	p := &Pacer{cfg: cfg, log: cfg.Logger, stop: make(chan struct{}), ended: make(chan struct{})}
	if p.log == nil {
		p.log = slog.Default()
	}
	p.install.Store(cfg.Install)
	p.state.Store(new(State))
	ns, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	opened := make(chan error)
	go p.run(ns, opened)
	if err := <-opened; err != nil {
		return nil, err
	}
	return p, nil
}

// State is the last one.
func (p *Pacer) State() State { return *p.state.Load() }

// SetInstall changes Config.Install. Qdiscs come and go soon after.
func (p *Pacer) SetInstall(on bool) {
	if p.install.Swap(on) != on {
		p.watcher.note(devicesChanged)
	}
}

// Close detaches the program from all devices and removes the qdiscs that were
// installed. A second call returns what the first one did.
func (p *Pacer) Close() error {
	p.once.Do(func() { close(p.stop) })
	<-p.ended
	return p.failure
}

// run is the thread in the namespace. It sends the outcome of opening, and
// closes ns.
func (p *Pacer) run(ns *os.File, opened chan<- error) {
	leave, err := enter(ns)
	if err == nil {
		defer leave()
	}
	if e := ns.Close(); err == nil {
		err = e
	}
	var s *surveyor
	if err == nil {
		s, err = newSurveyor()
	}
	if err != nil {
		opened <- err
		return
	}
	defer s.close()
	if p.watcher, err = newWatcher(); err != nil { // before the first look
		opened <- err
		return
	}
	w := &worker{
		p: p, s: s, log: p.log, first: true,
		hooks:     hooks{h: s.h, program: p.cfg.Program, noTCX: p.cfg.noTCX, links: make(map[int]link.Link)},
		installer: installer{h: s.h, log: p.log, tried: make(map[int]time.Time), failed: make(map[int]error)},
	}
	if err := w.look(allChanged); err != nil {
		opened <- errors.Join(err, p.watcher.close())
		return
	}
	opened <- nil
	w.follow()
	p.failure = errors.Join(w.undo(), p.watcher.close())
	close(p.ended)
}

// enter moves the calling goroutine into a namespace, on a thread of its own
// unless it is there already.
func enter(ns *os.File) (leave func(), err error) {
	runtime.LockOSThread()
	var want, have unix.Stat_t
	if err := unix.Fstat(int(ns.Fd()), &want); err != nil {
		return nil, fmt.Errorf("look at network namespace: %w", err)
	}
	if err := unix.Stat("/proc/thread-self/ns/net", &have); err != nil {
		return nil, fmt.Errorf("look at network namespace: %w", err)
	}
	if want.Dev == have.Dev && want.Ino == have.Ino {
		return runtime.UnlockOSThread, nil
	}
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("enter network namespace: %w", err)
	}
	return func() {}, nil // the thread is never unlocked: it ends with the goroutine
}

// worker does the work of a Pacer, in its thread.
type worker struct {
	p         *Pacer
	s         *surveyor
	log       *slog.Logger
	hooks     hooks
	installer installer
	first     bool          // nothing was looked at before
	asked     time.Duration // time that the last look took of the kernel
	keeping   map[int]bool  // devices that may have our program
}

// follow looks again whenever something changed, until the Pacer is closed.
func (w *worker) follow() {
	clock := time.NewTicker(lookEvery)
	defer clock.Stop()
	pause := time.NewTimer(0)
	defer pause.Stop()
	<-pause.C
	for {
		select {
		case <-w.p.stop:
			return
		case <-w.p.watcher.wake:
		case <-clock.C:
			w.p.watcher.note(devicesChanged)
			continue
		}
		pause.Reset(settle)
		select {
		case <-w.p.stop:
			return
		case <-pause.C:
		}
		w.asked = 0
		if err := w.look(w.p.watcher.take()); err != nil {
			w.log.Warn("devices cannot be watched: no connection is delayed", "err", err)
			w.publish(State{})
		}
		pause.Reset(min(share*w.asked, longest))
		select {
		case <-w.p.stop:
			return
		case <-pause.C:
		}
	}
}

// look looks at the namespace, does what is to be done there, and says how
// things are.
func (w *worker) look(seen change) error {
	found, err := w.survey(seen)
	if err != nil {
		return err
	}
	if w.first {
		if err := w.cleanUp(found); err != nil {
			w.log.Warn("leftovers of an earlier process stay", "err", err)
		}
		w.first = false
		if found, err = w.survey(devicesChanged); err != nil {
			return err
		}
	}
	changed := false
	if w.p.install.Load() {
		changed = w.installer.install(found, time.Now())
	} else if changed, err = w.installer.restore(found); err != nil {
		w.log.Warn("a qdisc stays installed", "err", err)
	}
	if changed {
		if found, err = w.survey(devicesChanged); err != nil {
			return err
		}
	}
	w.publish(found.judge(w.attach(found), w.installer.failed))
	return nil
}

// survey asks the kernel, and asks for another look where the answer is torn.
func (w *worker) survey(seen change) (*survey, error) {
	began := time.Now()
	found, torn, err := w.s.look(seen&routesChanged != 0)
	w.asked += time.Since(began)
	switch {
	case err != nil:
		w.p.watcher.seen.Or(uint32(allChanged)) // for the look that the clock asks for
	case torn:
		w.p.watcher.note(allChanged)
	}
	return found, err
}

// cleanUp removes filters that outlived their process. Its qdiscs are known by
// their handle, and removed or kept later.
func (w *worker) cleanUp(found *survey) error {
	var errs []error
	for _, d := range found.links {
		errs = append(errs, w.hooks.dropFilter(d))
	}
	return errors.Join(errs...)
}

// attach keeps the program at devices with fq, and takes it off the others.
func (w *worker) attach(found *survey) map[int]attachment {
	w.hooks.forget(found)
	at := make(map[int]attachment)
	keeping := make(map[int]bool)
	for index, d := range found.links {
		switch {
		case d.loopback:
		case d.holds():
			at[index] = w.hooks.keep(d)
			keeping[index] = true
		case w.keeping[index]:
			if err := w.hooks.drop(d); err != nil {
				w.log.Warn("program stays at a device", "device", d.name, "err", err)
				keeping[index] = true
			}
		}
	}
	w.keeping = keeping
	return at
}

// publish makes the state known, if it is a new one.
func (w *worker) publish(state State) {
	before := w.p.State()
	if reflect.DeepEqual(before, state) {
		return
	}
	w.logChanges(before, state)
	w.p.state.Store(&state)
	if w.p.cfg.Changed != nil {
		w.p.cfg.Changed(state)
	}
}

// logChanges logs devices that became paced, or ceased to be.
func (w *worker) logChanges(before, after State) {
	was := make(map[int]Device)
	for _, d := range before.Devices {
		was[d.Index] = d
	}
	for _, d := range after.Devices {
		old, known := was[d.Index]
		switch {
		case known && old.Paced == d.Paced && old.Why == d.Why:
		case d.Paced:
			w.log.Info("connections can be delayed at a device", "device", d.Name, "qdisc", d.Qdisc, "program", d.Attached)
		case known && old.Paced:
			w.log.Warn("connections can no longer be delayed at a device", "device", d.Name, "why", d.Why)
		default:
			w.log.Debug("connections cannot be delayed at a device", "device", d.Name, "why", d.Why)
		}
	}
}

// undo takes everything off.
func (w *worker) undo() error {
	w.publish(State{})
	found, _, err := w.s.look(false)
	if err != nil {
		for _, l := range w.hooks.links {
			err = errors.Join(err, l.Close())
		}
		return err
	}
	var errs []error
	for index, d := range found.links {
		if w.keeping[index] {
			errs = append(errs, w.hooks.drop(d))
		}
	}
	w.hooks.forget(found)
	_, err = w.installer.restore(found)
	return errors.Join(append(errs, err)...)
}
