// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/egressd/egressd/loader"
	"github.com/egressd/egressd/loader/sight"
	"github.com/egressd/egressd/loader/sight/discover"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/userspace/assemble"
	"github.com/egressd/egressd/userspace/proxy"
)

// probes show what shaped processes without keys send and receive inside TLS.
type probes struct {
	log    *slog.Logger
	show   func(*proxy.Shown) bool
	scope  policy.Scope
	opened chan struct{} // closed once there are probes
	tried  bool          // to open them; under the lock of reloads

	mu        sync.Mutex
	sight     *sight.Sight // nil: there are none
	watcher   *discover.Watcher
	files     map[[2]uint64]*probed
	rechecked map[[2]uint64]time.Time
	showing   map[uint32]time.Time // processes that showed something, and when last
}

// probed is a file with probes.
type probed struct {
	name    string
	closers []io.Closer
}

// showingFor is how long a process that was silent is still believed to show
// what it does.
const showingFor = 10 * time.Minute

// apply loads what the policy asks for, once. What cannot be had is told, and no
// reason not to start.
func (p *probes) apply(pol *policy.Policy) {
	if furthest(pol) < policy.Observe || !pol.TLS.Uprobes || p.tried {
		return
	}
	p.tried = true
	if err := p.open(); err != nil {
		p.log.Warn("processes are not probed: HTTPS of those that log no keys is not looked into", "err", err)
	}
}

func (p *probes) open() error {
	host, err := discover.ReadHost()
	if err != nil {
		return err
	}
	if why := discover.Unsafe(host, sight.OpenSSL); len(why) > 0 {
		return errors.New(strings.Join(why, "; "))
	}
	root, err := loader.CgroupRoot()
	if err != nil {
		return err
	}
	s, err := sight.Open(sight.Config{Root: root, Cgroups: p.scope.Cgroups, Exclude: p.scope.Exclude, Logger: p.log})
	if err != nil {
		return fmt.Errorf("load probes: %w", err)
	}
	w, err := discover.NewWatcher(discover.Config{Root: root, Cgroups: p.scope.Cgroups, Exclude: p.scope.Exclude, Logger: p.log})
	if err != nil {
		return errors.Join(fmt.Errorf("watch for TLS libraries: %w", err), s.Close())
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sight, p.watcher = s, w
	close(p.opened)
	return nil
}

func newProbes(log *slog.Logger, scope policy.Scope) *probes {
	return &probes{
		log: log, scope: scope, opened: make(chan struct{}),
		files: map[[2]uint64]*probed{}, showing: map[uint32]time.Time{}, rechecked: map[[2]uint64]time.Time{},
	}
}

// run serves until ctx ends.
func (p *probes) run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-p.opened:
	}
	var g errgroup.Group
	g.Go(func() error { return p.watcher.Run(ctx, p.file) })
	g.Go(func() error {
		heads := assemble.New(p.answer)
		return p.sight.Run(ctx, func(e sight.Event) { p.event(heads, &e) })
	})
	if err := g.Wait(); err != nil {
		return fmt.Errorf("probes: %w", err)
	}
	return nil
}

// file places probes in a file that processes map, or takes them off.
func (p *probes) file(e discover.Event) {
	id := [2]uint64{e.Dev, e.Inode}
	if e.Kind == discover.Gone {
		p.mu.Lock()
		f := p.files[id]
		delete(p.files, id)
		p.mu.Unlock()
		if f != nil {
			f.close(p.log)
		}
		return
	}
	f := &probed{name: e.Name}
	for _, t := range e.Targets {
		c, err := p.sight.Attach(t)
		if err != nil {
			p.log.Warn("probes are not placed", "file", e.Name, "library", t.Library, "err", err)
			continue
		}
		f.closers = append(f.closers, c)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.files[id] = f
}

func (f *probed) close(log *slog.Logger) {
	for _, c := range f.closers {
		if err := c.Close(); err != nil {
			log.Warn("probes are not taken off", "file", f.name, "err", err)
		}
	}
}

// recheckEvery is how often silent files are looked for, and recheckAfter how
// long one that was looked at anew is left alone.
const (
	recheckEvery = 10 * time.Second
	recheckAfter = 10 * time.Minute
)

// recheck has files looked at anew whose probes are silent although a process
// that maps them has connections whose inside should show: probes can die with
// nobody being told, as where a file was written over.
func (p *probes) recheck(flows func() []proxy.FlowInfo, now time.Time) {
	p.mu.Lock()
	watcher := p.watcher
	p.mu.Unlock()
	if watcher == nil {
		return
	}
	silent := map[uint32]bool{}
	for _, f := range flows() {
		if f.Sight == policy.SightBlind && f.Observable && f.Age > recheckEvery/2 && !p.Shows(f.PID) {
			silent[f.PID] = true
		}
	}
	for pid := range silent {
		mapped, err := discover.Mapped(int(pid))
		if err != nil {
			continue // it has ended
		}
		for _, id := range mapped {
			if p.due(id, now) {
				p.log.Debug("probes are silent, the file is looked at anew", "pid", pid, "dev", id[0], "inode", id[1])
				watcher.Recheck(id[0], id[1])
			}
		}
	}
}

// due reports whether a file has probes and was not rechecked lately, and notes
// that it is now.
func (p *probes) due(id [2]uint64, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.files[id] == nil || now.Sub(p.rechecked[id]) < recheckAfter {
		return false
	}
	if len(p.rechecked) > 1024 {
		clear(p.rechecked)
	}
	p.rechecked[id] = now
	return true
}

// event takes what a probe showed.
func (p *probes) event(heads *assemble.Assembler, e *sight.Event) {
	switch e.Kind {
	case sight.Hello, sight.Close:
		heads.Close(e.PID, e.Conn)
		return
	case sight.Data:
	default:
		return
	}
	p.shows(e.PID)
	heads.Take(&assemble.Piece{
		PID: e.PID, Conn: e.Conn, Write: e.Dir == sight.Write,
		Random: e.Random, HasRandom: e.HasRandom, Cookie: e.Cookie, Source: e.Source.String(),
		Began: e.Began, Ended: e.Time,
		Seq: e.Seq, Offset: e.Offset, Total: e.Total, Data: e.Data,
	})
}

// answer tells the proxy of an answer.
func (p *probes) answer(a *assemble.Answer) {
	p.show(&proxy.Shown{
		PID: a.PID, Random: a.Random, HasRandom: a.HasRandom, Cookie: a.Cookie, Source: a.Source,
		Method: a.Method, Host: a.Host, Path: a.Path,
		Answer: proxy.Head{Status: a.Status, Partial: a.Partial, At: time.Now(), Fields: a.Fields},
	})
}

// shows notes that a process shows what it does.
func (p *probes) shows(pid uint32) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.showing[pid] = now
	if len(p.showing) > 4096 {
		for pid, at := range p.showing {
			if now.Sub(at) > showingFor || len(p.showing) > 8192 {
				delete(p.showing, pid)
			}
		}
	}
}

// Shows implements proxy.Probes.
func (p *probes) Shows(pid uint32) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, ok := p.showing[pid]
	return ok && time.Since(at) < showingFor
}

// close takes all probes off.
func (p *probes) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for id, f := range p.files {
		f.close(p.log)
		delete(p.files, id)
	}
	if p.watcher != nil {
		errs = append(errs, p.watcher.Close())
	}
	if p.sight != nil {
		errs = append(errs, p.sight.Close())
	}
	p.watcher, p.sight = nil, nil
	return errors.Join(errs...)
}
