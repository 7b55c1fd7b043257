// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"fmt"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/loader"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/config"
	"github.com/egressd/egressd/userspace/events"
)

// backend shows a daemon on its control socket.
type backend struct{ d *Daemon }

var _ admin.Backend = backend{}

// Status implements admin.Backend.
func (b backend) Status() admin.Status {
	d := b.d
	lanes := d.engine.Lanes()
	s := admin.Status{
		Version: d.cfg.Build.Version,
		PID:     d.cfg.PID,
		Started: d.started,
		Lanes:   len(lanes),
		Flows:   len(d.proxy.Flows()),
		Exits:   using(d.engine.Meters(), lanes, d.clock.Now()),
		Kernel: &admin.Kernel{
			Cgroups:   d.scope.Cgroups,
			Attached:  d.attached.Load(),
			Untouched: make(map[string]uint64),
		},
	}
	for _, l := range lanes {
		s.Waiting += l.Waiting.Load()
	}
	if d.metrics != nil {
		s.Metrics = d.metrics.Addr().String()
	}
	if gates, err := d.kernel.Gates(); err != nil {
		d.log.Warn("status without gates", "err", err)
	} else {
		for _, g := range gates {
			if n := g.Passed + g.Refused; g.Name != loader.GateRedirected && n > 0 {
				s.Kernel.Untouched[g.Name] = n
			}
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	s.Kernel.Canary = d.canary
	s.Config = admin.Config{
		File:    d.cfg.File,
		Loaded:  d.reload.loaded,
		OK:      d.reload.ok,
		Budgets: config.Describe(d.engine.Policy()),
	}
	if d.reload.err != nil {
		s.Config.Error = d.reload.err.Error()
	}
	return s
}

// Lanes implements admin.Backend.
func (b backend) Lanes() []admin.Lane {
	var out []admin.Lane
	for _, l := range b.d.engine.Lanes() {
		out = append(out, b.d.lane(l))
	}
	return out
}

// lane shows one lane.
func (d *Daemon) lane(l *policy.Lane) admin.Lane {
	now := d.clock.Now()
	budget, state := l.Budget(), l.State(now)
	out := admin.Lane{
		Lane:        l.ID(),
		Budget:      l.Key.Budget,
		Destination: l.Key.Destination,
		Exit:        l.Key.Exit,
		Session:     l.Key.Session,
		Path:        l.Key.Path,
		Mode:        modeNames[budget.Mode],
		Rate:        state.Rate,
		BaseRate:    state.Budget,
		Auto:        budget.Auto,
		Burst:       budget.Burst,
		Waiting:     l.Waiting.Load(),
		InFlight:    state.InFlight,
		Concurrency: state.Concurrency,
		Window:      usage(state.Window),
		Quota:       usage(state.Quota),
		Granted:     l.Cell.Granted.Load(),
		Held:        l.Cell.Held.Load(),
		Refused:     l.Cell.Refused.Load(),
		Limited:     l.Cell.Limited.Load(),
		Open:        true,
		Probing:     state.Probing,
	}
	if d, stalled := l.Stalled(now); stalled {
		out.Stalled = d.Seconds()
	}
	if state.ClosedFor > 0 {
		opens := d.clock.Time(now.Add(state.ClosedFor))
		out.Open, out.Probing = false, false
		out.ClosedFor, out.OpensAt = state.ClosedFor.Seconds(), &opens
		out.Reason = "before this daemon started"
		if closure, ok := l.Closed(); ok {
			out.Reason = closure.Reason()
		}
	}
	return out
}

func usage(u *policy.Usage) *admin.Usage {
	if u == nil {
		return nil
	}
	return &admin.Usage{Limit: u.Limit, Left: u.Left, Until: u.Until.Seconds()}
}

// modeNames are the modes as the policy file writes them.
var modeNames = map[policy.Mode]string{policy.Enforce: "enforce", policy.Shadow: "shadow", policy.Off: "off"}

// sightOf is how a TLS connection is seen; "" of what is none.
func sightOf(s policy.Sight) string {
	if s == policy.SightNone {
		return ""
	}
	return s.String()
}

// Flows implements admin.Backend.
func (b backend) Flows() []admin.Flow {
	var out []admin.Flow
	for _, f := range b.d.proxy.Flows() {
		flow := admin.Flow{
			PID:      f.PID,
			Command:  f.Command,
			UID:      f.UID,
			Netns:    f.Netns,
			Cgroup:   f.Cgroup,
			Dest:     f.Dest.String(),
			Ifindex:  f.Ifindex,
			Mark:     f.Mark,
			Exit:     f.Exit,
			Host:     f.Host,
			State:    f.State,
			Lane:     f.Lane,
			Requests: f.Requests,
			Sight:    sightOf(f.Sight),
			Age:      f.Age.Seconds(),
		}
		if f.Source.IsValid() {
			flow.Source = f.Source.String()
		}
		out = append(out, flow)
	}
	return out
}

// Events implements admin.Backend.
func (b backend) Events(ctx context.Context, follow, dispatches bool, f func(admin.Event) error) error {
	if !follow {
		for _, ev := range b.d.events.Recent(events.DefaultKept) {
			if err := f(b.d.event(ev)); err != nil {
				return err
			}
		}
		return nil
	}
	recent, sub := b.d.events.Subscribe(events.DefaultKept, events.Options{Buffer: 4096, Dispatches: dispatches})
	defer sub.Close()
	for _, ev := range recent {
		if err := f(b.d.event(ev)); err != nil {
			return err
		}
	}
	var dropped uint64
	for {
		select {
		case <-ctx.Done():
			return nil
		case ev, ok := <-sub.C:
			if !ok {
				return nil
			}
			if err := f(b.d.event(ev)); err != nil {
				return err
			}
		}
		// Who reads too slowly must know that the stream has holes.
		if n := sub.Dropped(); n > dropped {
			// It is an event of the stream, not of the daemon.
			lost := b.d.event(policy.Event{At: b.d.clock.Now(), Detail: fmt.Sprintf("%d events: read faster", n-dropped)})
			lost.Kind = "lost"
			dropped = n
			if err := f(lost); err != nil {
				return err
			}
		}
	}
}

// event adds the wall clock.
func (d *Daemon) event(ev policy.Event) admin.Event {
	return admin.Event{
		Time:   d.clock.Time(ev.At),
		Mono:   uint64(ev.At),
		Kind:   string(ev.Kind),
		Lane:   ev.Lane,
		Wait:   ev.Wait.Seconds(),
		Detail: ev.Detail,
	}
}

// Cooldown implements admin.Backend.
func (b backend) Cooldown(id string, length time.Duration) error {
	if _, err := policy.ParseLaneKey(id); err != nil {
		return err
	}
	lane := b.d.engine.Find(id)
	if lane == nil {
		return fmt.Errorf("no lane %s: egressd lanes lists those that exist", id)
	}
	if length == 0 {
		b.d.gate.ClearCooldown(lane)
		return nil
	}
	b.d.gate.SetCooldown(lane, b.d.clock.Now().Add(length))
	return nil
}
