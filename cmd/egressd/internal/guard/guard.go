// SPDX-License-Identifier: Apache-2.0

// Package guard puts a cgroup of its own under a policy, with a daemon in this
// process, for as long as one command or one demonstration takes.
package guard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/cgroup"
	"github.com/egressd/egressd/cmd/egressd/internal/daemon"
	"github.com/egressd/egressd/loader"
	"github.com/egressd/egressd/policy"
)

// lanes is the number of cells of a ledger that only one command uses.
const lanes = 4096

// Guard is a cgroup whose processes are held to a policy. It is not safe for
// concurrent use.
type Guard struct {
	group    *cgroup.Group
	dir      *os.File
	daemon   *daemon.Daemon
	observer *observer
	stop     context.CancelFunc
	done     chan error // what Run returned
	stopped  bool
}

// Start makes a cgroup and holds it to the policy that cfg.Policy reads, which
// is read once and whose scope is ignored. When it returns, the programs are
// attached and a self-test has shown that they work. The caller calls Stop and
// then Remove, in this order.
func Start(ctx context.Context, cfg daemon.Config) (_ *Guard, err error) {
	p, err := cfg.Policy()
	if err != nil {
		return nil, err
	}
	g := &Guard{done: make(chan error, 1)}
	if g.group, err = newGroup(cfg.PID); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.Stop(), g.Remove())
		}
	}()
	if g.dir, err = g.group.Open(); err != nil {
		return nil, err
	}
	p.Scope.Cgroups = []string{g.group.Path()}
	cfg.Policy = func() (*policy.Policy, error) { return p, nil }
	cfg.Lanes = lanes
	if g.daemon, err = daemon.Open(cfg); err != nil {
		return nil, err
	}
	g.observer = observe(g.daemon.Events())
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	g.stop = stop
	ready := make(chan struct{})
	go func() { g.done <- g.daemon.Run(running, nil, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-g.done:
		g.done <- nil // for Stop
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if canary := g.daemon.Canary(); !canary.OK {
		return nil, fmt.Errorf("self-test of the programs: %s", canary.Error)
	}
	return g, nil
}

// newGroup makes the cgroup below that of this process, so that limits which
// the caller lives under hold for the command too; where that is not possible,
// below the root.
func newGroup(pid int) (*cgroup.Group, error) {
	mount, err := loader.CgroupRoot()
	if err != nil {
		return nil, err
	}
	own, err := cgroup.Own()
	if err != nil {
		return nil, err
	}
	// The time tells guards of one process apart.
	name := fmt.Sprintf("egressd-%d-%d", pid, time.Now().UnixNano()%1e9)
	group, err := cgroup.Create(mount, own, name)
	if err != nil && own != "/" {
		if below, err := cgroup.Create(mount, "/", name); err == nil {
			return below, nil
		}
	}
	if errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w: %w", loader.ErrPrivileges, err)
	}
	return group, err
}

// Cgroup is the folder of the cgroup, in which processes are started.
func (g *Guard) Cgroup() *os.File { return g.dir }

// Left returns the processes that are in the cgroup now.
func (g *Guard) Left() ([]int, error) { return g.group.PIDs() }

// Kill ends all processes in the cgroup.
func (g *Guard) Kill() error { return g.group.Kill(5 * time.Second) }

// Stop takes the programs off and ends the daemon. What is left in the cgroup
// goes on, untouched.
func (g *Guard) Stop() error {
	if g.stopped {
		return nil
	}
	g.stopped = true
	var errs []error
	if g.stop != nil {
		g.stop()
		errs = append(errs, <-g.done)
	}
	if g.observer != nil {
		g.observer.close()
	}
	if g.daemon != nil {
		errs = append(errs, g.daemon.Close())
	}
	return errors.Join(errs...)
}

// Remove moves what is left in the cgroup to the one above and removes it.
func (g *Guard) Remove() error {
	var errs []error
	if _, err := g.group.Evacuate(); err != nil {
		errs = append(errs, err)
	}
	if g.dir != nil {
		errs = append(errs, g.dir.Close())
	}
	return errors.Join(append(errs, g.group.Remove())...)
}
