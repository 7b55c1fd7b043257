// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/egressd/egressd/metrics/page"
	"github.com/egressd/egressd/policy"
)

// newPage makes the live page.
func (d *Daemon) newPage() *page.Page {
	return page.New(page.Config{Source: pageSource{d}, Hosts: pageHosts(d.engine.Policy().Metrics.Listen)})
}

// pageHosts are the names that are ours: the one on which the policy file has
// the daemon listen, and that of the machine.
func pageHosts(listen string) (names []string) {
	if host, _, err := net.SplitHostPort(listen); err == nil && host != "" {
		if _, err := netip.ParseAddr(host); err != nil {
			names = append(names, host)
		}
	}
	// A machine without a name has one less.
	if name, err := os.Hostname(); err == nil && name != "" {
		names = append(names, name)
	}
	return names
}

// pageSource shows a daemon on the live page. Whoever reaches the address can
// read that, so it gives less than the control socket.
type pageSource struct{ d *Daemon }

var _ page.Source = pageSource{}

// Status implements page.Source.
func (s pageSource) Status() page.Status {
	d := s.d
	d.mu.Lock()
	defer d.mu.Unlock()
	return page.Status{
		Version: d.cfg.Build.Version, Started: d.started, Attached: d.attached.Load(),
		CanaryFailed: !d.canary.OK && !d.canary.At.IsZero(), ReloadFailed: !d.reload.ok,
	}
}

// Lanes implements page.Source.
func (s pageSource) Lanes() []page.Lane {
	now := s.d.clock.Now()
	lanes := s.d.engine.Lanes()
	out := make([]page.Lane, len(lanes))
	for i, l := range lanes {
		budget, state := l.Budget(), l.State(now)
		lane := page.Lane{
			ID: l.ID(), Budget: l.Key.Budget, Destination: l.Key.Destination, Exit: l.Key.Exit, Path: l.Key.Path,
			CountedBy: l.Tally.Exit, Per: budget.Per, Mode: modeNames[budget.Mode], Auto: budget.Auto,
			Rate: state.Rate, Base: state.Budget, Burst: budget.Burst,
			Waiting: l.Waiting.Load(), InFlight: state.InFlight, Concurrency: state.Concurrency,
			Sent:    l.Cell.Granted.Load() / budget.Cost.AtDispatch(),
			Refused: l.Cell.Refused.Load(), Limited: l.Cell.Limited.Load(),
			ClosedFor: state.ClosedFor, Probing: state.Probing, Window: state.Window, Quota: state.Quota,
		}
		if !l.Enforced() {
			lane.Sent += l.Cell.Held.Load() // what would have been held has gone
		}
		if d, stalled := l.Stalled(now); stalled {
			lane.Stalled = d
		}
		if state.ClosedFor > 0 {
			lane.Reason = closedBecause(l)
		}
		out[i] = lane
	}
	return out
}

// Exits implements page.Source.
func (s pageSource) Exits(n int) (all []page.Exit, until time.Time) {
	d := s.d
	tooMany := make(map[string]uint64)
	for _, t := range d.engine.Tallies() {
		tooMany[t.Exit] += t.Code(429)
	}
	now := d.clock.Now()
	end := now
	for _, m := range d.engine.Meters() {
		e := page.Exit{Name: m.Exit, TooMany: tooMany[m.Exit]}
		e.Seconds, end = m.Recent(n, now)
		e.Lockstep, e.HasLockstep = m.Lockstep(now)
		all = append(all, e)
	}
	return all, d.clock.Time(end)
}

// Events implements page.Source.
func (s pageSource) Events(n int) []page.Event {
	recent := s.d.events.Recent(n)
	out := make([]page.Event, len(recent))
	for i, ev := range recent {
		out[i] = page.Event{
			At: s.d.clock.Time(ev.At), Mono: uint64(ev.At), Kind: string(ev.Kind),
			Lane: ev.Lane, Wait: ev.Wait, Detail: ev.Detail,
		}
		if ev.Kind == policy.EventReloadFailed {
			// The error quotes the policy file, which may hold a password.
			out[i].Detail = "egressd status says why"
		}
	}
	return out
}
