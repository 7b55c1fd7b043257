// SPDX-License-Identifier: Apache-2.0

// Package daemon wires the parts of egressd into one that runs: the kernel
// programs, the engine with its gate, the proxy, and what watches and shows
// them. The commands run, exec and demo all use it.
//
// Order matters more than anything else here. Programs are attached when all
// that they lead to is ready, and taken off before any of it closes: whatever
// fails, connections are native before they are refused.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/cmd/egressd/internal/history"
	"github.com/egressd/egressd/cmd/egressd/internal/keeper"
	"github.com/egressd/egressd/cmd/egressd/internal/sdnotify"
	"github.com/egressd/egressd/loader"
	"github.com/egressd/egressd/metrics"
	"github.com/egressd/egressd/metrics/web"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/userspace/events"
	"github.com/egressd/egressd/userspace/gate"
	"github.com/egressd/egressd/userspace/mono"
	"github.com/egressd/egressd/userspace/proxy"
)

// Times of the daemon's habits.
const (
	drainFor      = 5 * time.Second // for exchanges under way at the end
	sweepEvery    = time.Second
	netnsEvery    = time.Second
	canaryEvery   = time.Minute
	canaryTimeout = 5 * time.Second
	historyEvery  = time.Minute
	stillness     = 2 * time.Second // of an event loop, after which the watchdog is not fed
)

// Config is what a daemon is made of.
type Config struct {
	// Policy reads the policy, at the start and at each reload. Its scope
	// says which cgroups are shaped, and its metrics and admin sections where
	// the daemon listens; these three only count at the start.
	Policy func() (*policy.Policy, error)
	// File is the policy file's name, for people; "" if there is none.
	File string
	// PinDir is where the ledger outlives the daemon; "" for one that does
	// not.
	PinDir string
	// Lanes is the number of cells in the ledger; 0 for the loader's default.
	Lanes uint32
	// Self is the path of this binary, by which it runs the keeper of pipes.
	Self string
	// Keys are those of one command; nil for what the policy says. They stay the
	// caller's.
	Keys *keeper.Keys
	// Rescue says that a process beside the daemon, run by Self, frees its clients
	// when it stands still.
	Rescue bool
	// Canary is the command line by which this binary runs as the canary.
	Canary []string
	// ProgramStats has the kernel measure the run time of all programs of the
	// machine while the daemon lives, which costs some 20 ns a run.
	ProgramStats bool
	// Notifier is the service manager; it may be nil.
	Notifier *sdnotify.Notifier
	Build    metrics.Build
	PID      int
	Logger   *slog.Logger
	// Stderr takes events, if the policy says so. Getenv tells whether stderr is
	// the journal. Either may be nil.
	Stderr io.Writer
	Getenv func(string) string
}

// Daemon is a daemon that is ready to run. Its methods are safe for concurrent
// use.
type Daemon struct {
	cfg     Config
	log     *slog.Logger
	clock   mono.Clock
	started time.Time
	scope   policy.Scope

	kernel *loader.Kernel
	engine *policy.Engine
	events *events.Log
	// eventLog writes events down; nil: nowhere.
	eventLog *events.Writer
	gate     *gate.Gate
	proxy    *proxy.Proxy
	names    names
	plane    plane
	// host is this one's name in its fleet, and fleetCalls counts what it asked the
	// store there.
	host       string
	fleetCalls fleetCalls
	tls        tlsSources
	probes     *probes
	dns        *dnsNames
	// The addresses of proxies are where they were last applied, together with
	// the policy, under applying.
	endpoints endpoints
	applying  sync.Mutex
	history   *history.History // of what went through exits
	admin     net.Listener     // nil: none
	metrics   net.Listener     // nil: none
	web       *web.Config      // of metrics

	attached   atomic.Bool
	mismatches atomic.Uint64 // connections whose exit could not be kept
	mu         sync.Mutex
	reload     reloadState
	canary     admin.Canary
	closers    []func() error // in the order of opening
}

// Open does all that can fail before anything is attached: it reads the
// policy, loads the programs and opens the listeners. The caller must call
// Close, after Run if that is called.
func Open(cfg Config) (_ *Daemon, err error) {
	p, err := cfg.Policy()
	if err != nil {
		return nil, err
	}
	d := &Daemon{cfg: cfg, log: cfg.Logger, started: time.Now(), scope: p.Scope}
	d.history = history.New(d.started)
	defer func() {
		if err != nil {
			err = errors.Join(err, d.Close())
		}
	}()
	if d.clock, err = mono.NewClock(); err != nil {
		return nil, err
	}
	// The sockets first: they are what a second daemon, or another program,
	// is most likely to hold.
	if err := d.openSockets(p); err != nil {
		return nil, err
	}
	d.kernel, err = loader.Open(loader.Config{
		Cgroups: p.Scope.Cgroups,
		Exclude: p.Scope.Exclude,
		PinDir:  cfg.PinDir,
		Lanes:   cfg.Lanes,
		Logger:  cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	d.closeLater(d.kernel.Close)
	if cfg.ProgramStats {
		stats, err := loader.EnableStats()
		if err != nil {
			return nil, err
		}
		d.closeLater(stats.Close)
	}
	if d.engine, err = policy.NewEngine(p, d.kernel.Cells(), d.kernel.Index(), d.clock.Now()); err != nil {
		return nil, fmt.Errorf("take over the ledger: %w", err)
	}
	d.engine.SetPlane(d.kernel.Plane())
	d.events = events.New(0)
	d.events.Limit()
	if err := d.openEventLog(p.Events.Log); err != nil {
		return nil, err
	}
	d.closeLater(func() error { d.events.Close(); return nil })
	d.gate = gate.New(gate.Config{Now: d.clock.Now, Events: d.events, Logger: cfg.Logger})
	d.closeLater(d.gate.Close)
	if err := d.joinFleet(p.Fleet); err != nil {
		return nil, err
	}
	d.tls.log, d.tls.self, d.tls.given = cfg.Logger, cfg.Self, cfg.Keys
	d.closeLater(d.tls.close)
	d.tls.apply(p)
	d.probes = newProbes(cfg.Logger, p.Scope)
	d.closeLater(d.probes.close)
	d.probes.apply(p)
	d.dns = newDNSNames(cfg.Logger, p.Scope, d.clock.Now)
	d.dns.changed = d.renamed
	d.closeLater(d.dns.close)
	d.names.addr = func(dest netip.AddrPort) (string, bool) {
		return d.engine.LabelOf(dest.Addr().String(), dest)
	}
	d.names.dns = func(dest netip.AddrPort) (string, bool) { return d.dns.label(dest, d.engine.LabelOf) }
	d.proxy, err = proxy.New(proxy.Config{
		Engine:     d.engine,
		Gate:       d.gate,
		Events:     d.events,
		Kernel:     d.kernel,
		Now:        d.clock.Now,
		Logger:     cfg.Logger,
		ListenMark: loader.ListenerMark,
		Named:      d.names.saw,
		Keys:       &d.tls,
		Terminator: d.tls.end.Load,
		Probes:     d.probes,
	})
	if err != nil {
		return nil, err
	}
	d.probes.show = d.proxy.Show
	d.endpoints.log = cfg.Logger
	d.endpoints.lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
		return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	}
	d.endpoints.resolve(context.Background(), p.Exits, d.started)
	redirects, err := d.redirect(p)
	if err != nil {
		return nil, err
	}
	if err := d.planned(&redirects); err != nil {
		return nil, err
	}
	d.dns.apply(p)
	netns, port, err := d.proxy.Listen(nil)
	if err != nil {
		return nil, err
	}
	if err := d.kernel.Enrol(netns, port, d.proxy.Backlog()); err != nil {
		return nil, err
	}
	d.reload = reloadState{loaded: d.started, ok: true}
	return d, nil
}

// openSockets opens what the daemon itself listens on.
func (d *Daemon) openSockets(p *policy.Policy) (err error) {
	if p.Admin.Socket != "" {
		if d.admin, err = admin.Listen(p.Admin.Socket); err != nil {
			return err
		}
		d.closeLater(d.admin.Close)
	}
	if p.Metrics.Listen != "" {
		if d.web, err = web.Open(p.Metrics.WebConfigFile); err != nil {
			return fmt.Errorf("metrics.web_config_file: %w", err)
		}
		d.closeLater(d.web.Close)
		if d.metrics, err = net.Listen("tcp", p.Metrics.Listen); err != nil {
			return fmt.Errorf("open metrics listener: %w", err)
		}
		d.closeLater(d.metrics.Close)
	}
	return nil
}

// closeLater has f called by Close, before what was opened earlier is closed.
func (d *Daemon) closeLater(f func() error) { d.closers = append(d.closers, f) }

// Close gives back all that Open took. Nothing may run any more.
func (d *Daemon) Close() error {
	var errs []error
	for i := len(d.closers) - 1; i >= 0; i-- {
		if err := d.closers[i](); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	d.closers = nil
	return errors.Join(errs...)
}

// attach puts the programs in place and tries whether they work.
func (d *Daemon) attach(ctx context.Context) error {
	if err := d.kernel.Attach(); err != nil {
		return err
	}
	d.attached.Store(true)
	d.applying.Lock()
	d.pace(d.engine.Policy())
	d.applying.Unlock()
	// A hook that does not work is told, loudly, but is no reason to stop:
	// the connections of the host go on untouched.
	d.firstCanary(ctx)
	return nil
}

// detach makes every later connection native.
func (d *Daemon) detach() error {
	d.attached.Store(false)
	return errors.Join(d.kernel.Detach(), d.unpace())
}

// Events is the memory of what happens.
func (d *Daemon) Events() *events.Log { return d.events }

// Lanes are the lanes that exist. They must not be used after Close.
func (d *Daemon) Lanes() []*policy.Lane { return d.engine.Lanes() }

// Canary is the last self-test.
func (d *Daemon) Canary() admin.Canary {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.canary
}

// ordinary are the gates by which connections go untouched as they should:
// the policy does not name them, or a true error is shown to the client.
var ordinary = map[string]bool{
	loader.GateRedirected: true, "udp": true, "protocol": true, "own": true, "excluded": true,
	"kernel": true, "storage": true, "token": true, "unnamed": true, "negative": true,
	"granted": true, "held": true,
}

// PassedBy counts connections that the policy names and that went untouched
// nevertheless, by the gate that did not hold.
func (d *Daemon) PassedBy() map[string]uint64 {
	gates, err := d.kernel.Gates()
	if err != nil {
		d.log.Warn("gates cannot be read", "err", err)
		return nil
	}
	passed := make(map[string]uint64)
	for _, g := range gates {
		if g.Passed > 0 && !ordinary[g.Name] {
			passed[g.Name] = g.Passed
		}
	}
	return passed
}
