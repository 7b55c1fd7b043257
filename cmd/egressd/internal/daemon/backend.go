// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/cmd/egressd/internal/explain"
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
		Fleet:   d.membership(lanes, d.clock.Now()),
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
		s.Metrics, s.MetricsTLS = d.metrics.Addr().String(), d.web.TLS()
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
		Label:       l.Label,
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
		Fleet:       fleetOf(l, now),
		Sent:        l.Cell.Granted.Load() / budget.Cost.AtDispatch(),
		Granted:     l.Cell.Granted.Load(),
		Held:        l.Cell.Held.Load(),
		Refused:     l.Cell.Refused.Load(),
		Limited:     l.Cell.Limited.Load(),
		Open:        true,
		Probing:     state.Probing,
	}
	if !l.Enforced() {
		out.Sent += out.Held // what would have been held has gone
	}
	if d, stalled := l.Stalled(now); stalled {
		out.Stalled = d.Seconds()
	}
	if state.ClosedFor > 0 {
		opens := d.clock.Time(now.Add(state.ClosedFor))
		out.Open, out.Probing = false, false
		out.ClosedFor, out.OpensAt = state.ClosedFor.Seconds(), &opens
		out.Reason = closedBecause(l)
	}
	return out
}

// closedBecause is why a closed lane is closed.
func closedBecause(l *policy.Lane) string {
	if closure, ok := l.Closed(); ok {
		return closure.Reason()
	}
	return "before this daemon started"
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
			Cookie:   f.Cookie,
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

// Counts implements admin.Backend.
func (b backend) Counts() admin.Counts {
	d := b.d
	out := admin.Counts{
		Pairs:    []admin.PairCounts{},
		Budgets:  []admin.Budget{},
		PassedBy: d.PassedBy(),
		QUIC:     map[string]uint64{},
		Sight:    admin.SightCounts{Open: map[string]int64{}, Answers: map[string]uint64{}, Doubts: map[string]uint64{}},
	}
	for _, t := range d.engine.Tallies() {
		pair := admin.PairCounts{
			Destination: t.Destination, Exit: t.Exit, Sent: t.Wait().Count(), Retried: t.Retried(),
			Limited: map[string]uint64{}, Refused: map[string]uint64{},
		}
		for _, kind := range limitKinds {
			note(pair.Limited, kind, t.Limited(kind))
		}
		for _, reason := range policy.Refusals() {
			note(pair.Refused, reason, t.Refused(reason))
		}
		out.Pairs = append(out.Pairs, pair)
	}
	for _, b := range d.engine.Policy().Budgets {
		out.Budgets = append(out.Budgets, admin.Budget{Name: b.Name, Lines: config.Format(b)})
	}
	slices.SortFunc(out.Pairs, func(a, b admin.PairCounts) int {
		return cmp.Or(cmp.Compare(a.Destination, b.Destination), cmp.Compare(a.Exit, b.Exit))
	})
	quic, err := d.names.countQUIC(d.kernel.QUIC)
	if err != nil {
		d.log.Warn("counts without QUIC", "err", err)
	}
	for _, q := range quic {
		for _, o := range q.Outcomes {
			if o.Label == "untouched" && o.N > 0 {
				out.QUIC[q.Destination] += o.N
			}
		}
	}
	insight := d.proxy.Insight().Counts()
	for sight, n := range insight.Open {
		out.Sight.Open[sight.String()] = max(0, n)
	}
	for sight, n := range insight.Answers {
		note(out.Sight.Answers, sight, n)
	}
	for doubt, n := range insight.Doubts {
		note(out.Sight.Doubts, doubt, n)
	}
	return out
}

// note writes a count down unless it is zero.
func note(counts map[string]uint64, of fmt.Stringer, n uint64) {
	if n > 0 {
		counts[of.String()] = n
	}
}

// lookupTime is how long an explanation waits for the addresses of a name.
const lookupTime = 3 * time.Second

// Explain implements admin.Backend.
func (b backend) Explain(ctx context.Context, q admin.Question) (admin.Explanation, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	d := b.d
	return explain.Explain(ctx, explain.World{
		Policy: d.engine.Policy(),
		Lookup: d.endpoints.lookup,
		Live:   &explain.Live{Now: d.clock.Now(), Lanes: d.engine.Lanes(), Show: d.lane, Flows: b.Flows},
	}, q)
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
		PID:    ev.Process,
		Job:    ev.Job,
		Told:   ev.Told,

		Extended:   ev.Extended,
		Rate:       ev.Rate,
		Count:      ev.Count,
		Suppressed: ev.Suppressed,
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
		if s := lane.Shared(); s != nil {
			if closed := s.ClosedFor(b.d.clock.Now()); closed > 0 {
				return fmt.Errorf("lane %s is closed for all hosts of the fleet, for %v yet: one of them cannot open it", id, closed.Round(time.Millisecond))
			}
		}
		b.d.gate.ClearCooldown(lane)
		return nil
	}
	b.d.gate.SetCooldown(lane, b.d.clock.Now().Add(length))
	return nil
}
