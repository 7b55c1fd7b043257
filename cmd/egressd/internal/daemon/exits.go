// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/cmd/egressd/internal/history"
	"github.com/egressd/egressd/metrics"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/userspace/events"
)

// countMismatches counts the connections whose exit could not be kept, by the
// events that tell of them, until ctx ends.
func (d *Daemon) countMismatches(ctx context.Context) error {
	_, sub := d.events.Subscribe(0, events.Options{Buffer: 4096})
	defer sub.Close()
	for {
		select {
		case <-ctx.Done():
			return nil
		case ev, open := <-sub.C:
			if !open {
				return nil
			}
			if ev.Kind == policy.EventExitMismatch {
				d.mismatches.Add(1 + ev.Suppressed)
			}
		}
	}
}

// record remembers what has gone through the exits until now.
func (d *Daemon) record() { d.history.Record(time.Now(), d.exitCounters()) }

// exitCounters is what has gone through the exits since the daemon started.
func (d *Daemon) exitCounters() map[history.Key]history.Counters {
	connections, err := d.names.count(d.kernel.Connections)
	if err != nil {
		// What was known stays: a count must not fall.
		d.log.Warn("connections of exits are as of before", "err", err)
	}
	return counters(d.engine.Tallies(), connections)
}

// counters brings together what the proxy plane and the kernel counted.
func counters(tallies []*policy.Tally, connections []metrics.Connections) map[history.Key]history.Counters {
	out := make(map[history.Key]history.Counters, len(tallies))
	for _, t := range tallies {
		var c history.Counters
		c[history.Requests] = t.Requests()
		c[history.TooMany] = t.Code(429)
		for _, r := range policy.Refusals() {
			c[history.Refused] += t.Refused(r)
		}
		for _, o := range policy.Outcomes() {
			c.SetTraffic(o, t.Traffic(o))
		}
		out[history.Key{Destination: t.Destination, Exit: t.Exit}] = c
	}
	for _, n := range connections {
		key := history.Key{Destination: n.Destination, Exit: n.Exit}
		c := out[key]
		for _, o := range n.Outcomes {
			switch o.Label {
			case "redirected":
				c[history.ConnectionsRedirected] += o.N
			case "untouched":
				c[history.ConnectionsUntouched] += o.N
			case "refused":
				c[history.ConnectionsRefused] += o.N
			}
		}
		out[key] = c
	}
	return out
}

// Exits implements admin.Backend.
func (b backend) Exits(since time.Duration) admin.Exits {
	d := b.d
	grown := d.exitCounters()
	out := admin.Exits{From: d.started, To: time.Now()}
	if since > 0 {
		out.From, grown = d.history.Since(out.To, since, grown)
	}
	out.Exits, out.Pairs = exits(grown, d.engine.Meters(), d.engine.Lanes(), d.engine.Policy().Price, d.clock.Now())
	return out
}

// exits makes a row of each pair that counted anything, and one of each exit
// that did or that has a closed lane, in the order of their names.
func exits(grown map[history.Key]history.Counters, meters []*policy.ExitMeter, lanes []*policy.Lane, price func(exit string) float64, now ledger.Time) ([]admin.Exit, []admin.Pair) {
	sums := make(map[string]*history.Counters)
	pairs := []admin.Pair{}
	for key, c := range grown {
		if c == (history.Counters{}) {
			continue
		}
		pairs = append(pairs, admin.Pair{Destination: key.Destination, Exit: key.Exit, Use: use(&c, price(key.Exit))})
		if sums[key.Exit] == nil {
			sums[key.Exit] = new(history.Counters)
		}
		sums[key.Exit].Add(&c)
	}
	slices.SortFunc(pairs, func(a, b admin.Pair) int {
		return cmp.Or(cmp.Compare(a.Exit, b.Exit), cmp.Compare(a.Destination, b.Destination))
	})
	closed := closures(lanes, now)
	for exit := range closed {
		if sums[exit] == nil {
			sums[exit] = new(history.Counters)
		}
	}
	metered := make(map[string]*policy.ExitMeter, len(meters))
	for _, m := range meters {
		metered[m.Exit] = m
	}
	list := []admin.Exit{}
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		e := admin.Exit{Exit: name, Use: use(sums[name], price(name))}
		if m := metered[name]; m != nil {
			e.PerSecond = m.PerSecond(now)
			if score, known := m.Lockstep(now); known {
				e.Lockstep = &score
			}
		}
		e.Closed, e.ClosedFor = closed[name].lanes, closed[name].longest.Seconds()
		list = append(list, e)
	}
	return list, pairs
}

// use shows counters.
func use(c *history.Counters, price float64) admin.Use {
	u := admin.Use{
		Requests: c[history.Requests],
		TooMany:  c[history.TooMany],
		Refused:  c[history.Refused],
		Connections: admin.Connections{
			Redirected: c[history.ConnectionsRedirected],
			Untouched:  c[history.ConnectionsUntouched],
			Refused:    c[history.ConnectionsRefused],
		},
		Outcomes: make(map[string]admin.Traffic, policy.NumOutcomes),
		Price:    price,
	}
	for _, o := range policy.Outcomes() {
		u.Outcomes[o.String()] = admin.Traffic(c.Traffic(o))
	}
	u.Estimate()
	return u
}

// closure is how far the lanes of an exit are closed.
type closure struct {
	lanes   int
	longest time.Duration
}

// closures are those of exits that have a closed lane.
func closures(lanes []*policy.Lane, now ledger.Time) map[string]closure {
	out := make(map[string]closure)
	for _, l := range lanes {
		if d := l.State(now).ClosedFor; d > 0 {
			c := out[l.Tally.Exit]
			out[l.Tally.Exit] = closure{c.lanes + 1, max(c.longest, d)}
		}
	}
	return out
}

// using is the exits in short.
func using(meters []*policy.ExitMeter, lanes []*policy.Lane, now ledger.Time) admin.Using {
	u := admin.Using{Closed: len(closures(lanes, now))}
	for _, m := range meters {
		if m.Highest() > 0 {
			u.Seen++
		}
		if score, _ := m.Lockstep(now); score > policy.FullLockstep {
			u.Lockstep = append(u.Lockstep, m.Exit)
		}
	}
	slices.Sort(u.Lockstep)
	return u
}
