// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/cmd/egressd/internal/rescue"
	"github.com/egressd/egressd/loader"
	"github.com/egressd/egressd/metrics"
	"github.com/egressd/egressd/userspace/proxy"
)

// task is one thing that goes on while the daemon runs. run returns nil when
// ctx ends.
type task struct {
	name string
	run  func(ctx context.Context) error
}

// Run runs the daemon until ctx ends or a part of it fails. ready is called
// when the programs are attached and everything works. reload asks for a new
// reading of the policy; it may be nil.
//
// At the end the programs are taken off first, exchanges under way get a few
// seconds, and then all parts stop.
func (d *Daemon) Run(ctx context.Context, reload <-chan struct{}, ready func()) error {
	tasks, err := d.tasks(reload)
	if err != nil {
		return err
	}
	// ctx, or the first failure, ends alive; only after the programs are off
	// does running end, which is what the tasks see.
	alive, fail := context.WithCancel(ctx)
	defer fail()
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var g errgroup.Group
	for _, t := range tasks {
		g.Go(func() error {
			err := t.run(running)
			if err == nil && running.Err() == nil {
				err = errors.New("ended by itself")
			}
			if err != nil {
				fail()
				return fmt.Errorf("%s: %w", t.name, err)
			}
			return nil
		})
	}
	err = d.attach(alive)
	if err == nil {
		if alive.Err() == nil {
			ready()
		}
		<-alive.Done()
	}
	d.notify(d.cfg.Notifier.Stopping())
	err = errors.Join(err, d.detach())
	stop()
	return errors.Join(err, g.Wait())
}

// tasks are all that runs side by side.
func (d *Daemon) tasks(reload <-chan struct{}) ([]task, error) {
	watcher, err := d.netnsWatcher()
	if err != nil {
		return nil, err
	}
	tasks := []task{
		{"proxy", func(ctx context.Context) error { return d.proxy.Run(ctx, drainFor) }},
		{"network namespaces", func(ctx context.Context) error { return watcher.Run(ctx, netnsEvery) }},
		{"kernel plane", func(ctx context.Context) error { return every(ctx, planeEvery, d.tendPlane) }},
		{"sweep", func(ctx context.Context) error { return every(ctx, sweepEvery, d.sweep) }},
		{"canary", func(ctx context.Context) error { return every(ctx, canaryEvery, func() { d.tryCanary(ctx) }) }},
		{"exit mismatches", d.countMismatches},
		{"what becomes of lanes", d.watch},
		{"history", func(ctx context.Context) error { return every(ctx, historyEvery, d.record) }},
		{"addresses of proxies", func(ctx context.Context) error {
			return every(ctx, resolveEvery, func() { d.refreshEndpoints(ctx) })
		}},
		{"keys of TLS sessions", d.tls.run},
		{"probes", d.probes.run},
		{"DNS answers", d.dns.run},
		{"silent probes", func(ctx context.Context) error {
			return every(ctx, recheckEvery, func() { d.probes.recheck(d.proxy.Flows, time.Now()) })
		}},
		{"reload", func(ctx context.Context) error { return d.reloads(ctx, reload) }},
	}
	if d.cfg.Rescue {
		tasks = append(tasks, task{"rescue", d.rescue})
	}
	if d.admin != nil {
		tasks = append(tasks, task{"admin socket", func(ctx context.Context) error {
			return admin.Serve(ctx, d.admin, backend{d}, d.log)
		}})
	}
	if d.metrics != nil {
		page := d.newPage()
		tasks = append(tasks, task{"live page", page.Run})
		handler, err := metrics.New(metrics.Config{Source: source{d}, Build: d.cfg.Build, Page: page}, d.log)
		if err != nil {
			return nil, err
		}
		tasks = append(tasks, task{"metrics", func(ctx context.Context) error { return d.serveMetrics(ctx, handler) }})
	}
	if period := d.cfg.Notifier.Watchdog(); period > 0 {
		tasks = append(tasks, task{"watchdog", func(ctx context.Context) error {
			return every(ctx, period/3, d.feedWatchdog)
		}})
	}
	return tasks, nil
}

// feedWatchdog says that the daemon lives, unless an event loop stands still:
// then the manager should end it.
func (d *Daemon) feedWatchdog() {
	if still := d.clock.Now().Sub(d.proxy.LastTurn()); still > stillness {
		d.log.Error("event loop stands still, the watchdog is not fed", "since", still)
		return
	}
	d.notify(d.cfg.Notifier.Alive())
}

// rescue keeps the process that frees clients when this one stands still.
func (d *Daemon) rescue(ctx context.Context) error {
	heartbeat, err := d.kernel.HeartbeatFile()
	if err != nil {
		return err
	}
	rescue.Keep(ctx, d.cfg.Self, heartbeat, d.cfg.Stderr, func(err error) {
		d.log.Warn("nobody frees clients if the daemon stands still", "err", err)
	})
	return heartbeat.Close()
}

// every calls f at each tick until ctx ends.
func every(ctx context.Context, period time.Duration, f func()) error {
	t := time.NewTicker(period)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-t.C:
			f()
		}
	}
}

// sweep looks after what needs a look every second.
func (d *Daemon) sweep() {
	if n := d.kernel.Sweep(d.clock.Now()); n > 0 {
		d.log.Debug("flows that nobody took are forgotten", "flows", n)
	}
}

// netnsWatcher serves the network namespaces of the scope.
func (d *Daemon) netnsWatcher() (*proxy.NetnsWatcher, error) {
	root, err := loader.CgroupRoot()
	if err != nil {
		return nil, err
	}
	w := &proxy.NetnsWatcher{Proxy: d.proxy, Enrol: d.kernel, Logger: d.log}
	for _, name := range d.scope.Cgroups {
		w.Cgroups = append(w.Cgroups, filepath.Join(root, name))
	}
	return w, nil
}

// serveMetrics answers Prometheus.
func (d *Daemon) serveMetrics(ctx context.Context, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute}
	stop := context.AfterFunc(ctx, func() {
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		if err := server.Shutdown(grace); err != nil {
			_ = server.Close()
		}
	})
	defer stop()
	if err := d.web.Serve(d.metrics, server, d.log); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// notify logs that the service manager could not be told.
func (d *Daemon) notify(err error) {
	if err != nil {
		d.log.Warn("service manager was not told", "err", err)
	}
}
