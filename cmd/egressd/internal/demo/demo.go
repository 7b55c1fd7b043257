// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// The two stories. Together with the start of everything they stay below the
// 40 s that one is willing to watch.
const (
	originHost = "localhost"

	loopWorkers = 4
	loopSpan    = 10 * time.Second // from the first request on
	loopStart   = time.Second / 2  // until then

	stampedeProcesses = 5
	stampedeClients   = 10 // in each process
	stampedeLimit     = "20/s"
	stampedeBefore    = 2 * time.Second // of calm, before the 429
	stampedeRetry     = 3 * time.Second
	stampedeAfter     = 4 * time.Second // of watching, after the cooldown
)

// Guard is a cgroup under a budget.
type Guard interface {
	// Cgroup is the folder in which processes are started.
	Cgroup() *os.File
	// Close ends what is left in the cgroup, takes the programs off, and
	// removes the cgroup.
	Close() error
}

// Demo is what the demonstration needs.
type Demo struct {
	// Self is the path of this binary, which also is the origin and, where
	// there is no Python, the workers.
	Self string
	// Guard makes a cgroup whose processes are held to limit, in the syntax
	// of exec's --limit.
	Guard func(ctx context.Context, limit string) (Guard, error)
	// Measured makes a cgroup whose processes are held to limit or, without
	// enforce, only measured against it, with metrics at an address. Only Picture
	// needs it.
	Measured func(ctx context.Context, limit string, enforce bool, metrics string) (Guard, error)
	// Prometheus is the path of a Prometheus that Picture asks; "" for none.
	Prometheus string
	// Span is how long each run of Picture takes; 0 means PictureSpan.
	Span time.Duration
	// Stderr is for what the processes complain of.
	Stderr io.Writer
	// Progress hears what comes next; it may be nil.
	Progress func(what string)
}

// Result is what the origins received.
type Result struct {
	Without  Phase    `json:"without"`
	With     Phase    `json:"with"`
	Stampede Stampede `json:"stampede"`

	without, with Record
	after         Record // of the stampede, after its cooldown
}

// Run plays both stories. When it returns, also because ctx ended, nothing
// that it started is left.
func (d *Demo) Run(ctx context.Context) (*Result, error) {
	var r Result
	var err error
	d.say("%d workers, each one request per second, against an origin that allows one in all: %v without egressd", loopWorkers, loopSpan)
	if r.without, err = d.loop(ctx, false); err != nil {
		return nil, err
	}
	d.say("the same workers, unchanged, with egressd: %v", loopSpan)
	if r.with, err = d.loop(ctx, true); err != nil {
		return nil, err
	}
	r.Without, r.With = r.without.phase(), r.with.phase()
	count := stampedeProcesses * stampedeClients
	d.say("stampede: %d workers, one 429 with Retry-After: %d", count, stampedeRetry/time.Second)
	record, err := d.stampede(ctx)
	if err != nil {
		return nil, err
	}
	var ok bool
	if r.Stampede, r.after, ok = record.stampede(count, stampedeRetry); !ok {
		return nil, fmt.Errorf("stampede: the origin received %d requests but none after a cooldown", len(record))
	}
	return &r, nil
}

func (d *Demo) say(format string, args ...any) {
	if d.Progress != nil {
		d.Progress(fmt.Sprintf(format, args...))
	}
}

// loop runs the classic workers for loopSpan.
func (d *Demo) loop(ctx context.Context, guarded bool) (Record, error) {
	limit := ""
	if guarded {
		limit = "1/s"
	}
	record, err := d.watch(ctx, OriginConfig{Every: time.Second}, limit, loopStart+loopSpan, func(cgroup *os.File, port int) (workers, error) {
		// The span of the workers only bounds what a killed demo leaves.
		return d.startWorkers(ctx, cgroup, loopWorkers, d.loopWorker(port, 2*loopSpan))
	})
	if err == nil && len(record) == 0 {
		err = errors.New("the origin received nothing from the workers")
	}
	if err != nil {
		return nil, err
	}
	return record.Since(loopSpan), nil
}

// stampede runs many workers through a cooldown.
func (d *Demo) stampede(ctx context.Context) (Record, error) {
	span := stampedeBefore + stampedeRetry + stampedeAfter
	cfg := OriginConfig{LimitOnceAfter: stampedeBefore, RetryAfter: stampedeRetry}
	return d.watch(ctx, cfg, stampedeLimit, span, func(cgroup *os.File, port int) (workers, error) {
		return d.startWorkers(ctx, cgroup, stampedeProcesses, d.clients(port, stampedeClients, 0, 2*span))
	})
}

// watch runs workers against an origin for span, under limit unless that is
// empty, and returns what the origin received.
func (d *Demo) watch(ctx context.Context, cfg OriginConfig, limit string, span time.Duration,
	start func(cgroup *os.File, port int) (workers, error),
) (_ Record, err error) {
	origin, err := d.startOrigin(cfg)
	if err != nil {
		return nil, err
	}
	defer origin.kill()
	var cgroup *os.File
	if limit != "" {
		guard, err := d.Guard(ctx, fmt.Sprintf("%s:%d=%s", originHost, origin.port, limit))
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, guard.Close()) }()
		cgroup = guard.Cgroup()
	}
	running, err := start(cgroup, origin.port)
	if err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), running.stop())
	case <-time.After(span):
	}
	// The record first: the end of the workers is not part of it.
	record, err := origin.report()
	return record, errors.Join(err, running.stop())
}
