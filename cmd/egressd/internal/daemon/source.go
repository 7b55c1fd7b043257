// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"strconv"

	"github.com/egressd/egressd/loader"
	"github.com/egressd/egressd/metrics"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
)

// source shows a daemon to Prometheus.
type source struct{ d *Daemon }

var _ metrics.Source = source{}

// limitKinds are the kinds of verdict by which an origin limits.
var limitKinds = []verdict.Kind{verdict.Limited, verdict.Capacity, verdict.Challenge, verdict.ExitTrouble}

// Lanes implements metrics.Source.
func (s source) Lanes() []metrics.Lane { return showLanes(s.d.engine, s.d.clock.Now()) }

func showLanes(engine *policy.Engine, now ledger.Time) []metrics.Lane {
	lanes := engine.Lanes()
	out := make([]metrics.Lane, len(lanes))
	for i, l := range lanes {
		state := l.State(now)
		out[i] = metrics.Lane{
			Destination: l.Label,
			Exit:        l.Tally.Exit,
			Waiting:     int(l.Waiting.Load()),
			Cooldown:    state.ClosedFor,
			Rate:        state.Rate,
			Budget:      state.Budget,
		}
		if s := l.Shared(); s != nil {
			f := s.State(now)
			out[i].Fleet = &metrics.LaneFleet{Mode: f.Mode.String(), Hosts: f.Hosts, Bound: f.Bound}
		}
	}
	return out
}

// Tallies implements metrics.Source.
func (s source) Tallies() metrics.Tallies {
	out := showTallies(s.d.engine, s.d.clock.Now())
	out.ExitMismatches = s.d.mismatches.Load()
	out.TLS = s.insight()
	out.EventsLost = s.d.lostEvents()
	out.Fleet = s.d.fleetCallCounts()
	return out
}

func showTallies(engine *policy.Engine, now ledger.Time) metrics.Tallies {
	all := engine.Tallies()
	out := metrics.Tallies{Pairs: make([]metrics.Tally, 0, len(all))}
	prices := pricesOf(engine.Policy())
	refusals, outcomes := policy.Refusals(), policy.Outcomes()
	// There are thousands, so what they have is kept side by side.
	var counts list[metrics.Count]
	var moved list[metrics.OutcomeBytes]
	for _, t := range all {
		tally := metrics.Tally{
			Destination: t.Destination,
			Exit:        t.Exit,
			Retried:     t.Retried(),
			Wait:        t.Wait(),
			Sent:        t.Bytes(policy.Sent),
			Received:    t.Bytes(policy.Received),
		}
		counts.add(metrics.Count{Label: metrics.NoAnswer, N: t.Errors()})
		for i := range codeNames {
			if n := t.Code(100 + i); n > 0 {
				counts.add(metrics.Count{Label: codeNames[i], N: n})
			}
		}
		tally.Requests = counts.cut()
		for _, r := range refusals {
			counts.add(metrics.Count{Label: r.String(), N: t.Refused(r)})
		}
		tally.Refused = counts.cut()
		for _, k := range limitKinds {
			counts.add(metrics.Count{Label: k.String(), N: t.Limited(k)})
		}
		tally.Limited = counts.cut()
		for _, o := range outcomes {
			n := t.Traffic(o)
			moved.add(metrics.OutcomeBytes{Outcome: o.String(), Sent: n.Sent, Received: n.Received})
		}
		tally.Outcomes = moved.cut()
		out.Pairs = append(out.Pairs, tally)
		prices.note(t.Exit)
	}
	out.Prices = prices.told
	for _, m := range engine.Meters() {
		e := metrics.ExitSeconds{Exit: m.Exit, Seconds: m.Seconds(now)}
		e.Lockstep, e.HasLockstep = m.Lockstep(now)
		out.Exits = append(out.Exits, e)
	}
	for _, w := range engine.Switches() {
		out.Switches = append(out.Switches, metrics.ExitSwitches{Pool: w.Pool, From: w.From, To: w.To, N: w.Count()})
	}
	out.Dropped = engine.Dropped()
	return out
}

// codeNames are the status codes as labels.
var codeNames = func() (names [500]string) {
	for i := range names {
		names[i] = strconv.Itoa(100 + i)
	}
	return names
}()

// list makes many short slices in few pieces of memory.
type list[T any] struct{ rest []T }

func (l *list[T]) add(v T) {
	if len(l.rest) == cap(l.rest) {
		l.rest = append(make([]T, 0, max(256, 2*len(l.rest))), l.rest...)
	}
	l.rest = append(l.rest, v)
}

// cut gives what was added since the last one.
func (l *list[T]) cut() []T {
	out := l.rest[:len(l.rest):len(l.rest)]
	l.rest = l.rest[len(l.rest):]
	return out
}

// prices are those of the exits that traffic is counted for.
type prices struct {
	policy *policy.Policy
	seen   map[string]bool
	told   []metrics.ExitPrice
}

func pricesOf(p *policy.Policy) prices { return prices{policy: p, seen: map[string]bool{}} }

// note adds the price of an exit, unless it has none or was added before.
func (p *prices) note(exit string) {
	if p.seen[exit] {
		return
	}
	p.seen[exit] = true
	if price := p.policy.Price(exit); price > 0 {
		p.told = append(p.told, metrics.ExitPrice{Exit: exit, Price: price})
	}
}

// insight is how TLS connections are seen.
func (s source) insight() (out metrics.TLS) {
	n := s.d.proxy.Insight().Counts()
	for source, open := range n.Open {
		out.Open = append(out.Open, metrics.Count{Label: source.String(), N: uint64(max(0, open))})
	}
	for source, answers := range n.Answers {
		out.Answers = append(out.Answers, metrics.Count{Label: source.String(), N: answers})
	}
	for reason, doubts := range n.Doubts {
		out.Doubts = append(out.Doubts, metrics.Count{Label: reason.String(), N: doubts})
	}
	out.Unknown, out.Shared = n.Unknown, n.Shared
	return out
}

// Kernel implements metrics.Source.
func (s source) Kernel() (metrics.Kernel, error) {
	k := s.d.kernel
	connections, err := s.d.names.count(k.Connections)
	if err != nil {
		return metrics.Kernel{}, err
	}
	quic, err := s.d.names.countQUIC(k.QUIC)
	if err != nil {
		return metrics.Kernel{}, err
	}
	gates, err := k.Gates()
	if err != nil {
		return metrics.Kernel{}, err
	}
	programs, err := k.Programs()
	if err != nil {
		return metrics.Kernel{}, fmt.Errorf("read run times: %w", err)
	}
	out := metrics.Kernel{Connections: connections, QUIC: quic, Dropped: k.Dropped()}
	for _, g := range gates {
		if !served[g.Name] {
			out.Untouched = append(out.Untouched, metrics.Count{Label: g.Name, N: g.Passed})
		}
	}
	for _, p := range programs {
		out.Programs = append(out.Programs, metrics.ProgramTime{Program: p.Name, Time: p.Runtime})
	}
	return out, nil
}

// served are the gates whose connections go on as their budget wants: to the
// proxy, or by the kernel's own count.
var served = map[string]bool{loader.GateRedirected: true, "granted": true, "held": true}

// Reload implements metrics.Source.
func (s source) Reload() metrics.Reload {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return metrics.Reload{OK: s.d.reload.ok, Last: s.d.reload.loaded}
}
