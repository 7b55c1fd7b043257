// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"fmt"
	"strconv"

	"github.com/egressd/egressd/loader"
	"github.com/egressd/egressd/metrics"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/verdict"
)

// source shows a daemon to Prometheus.
type source struct{ d *Daemon }

var _ metrics.Source = source{}

// limitKinds are the kinds of verdict by which an origin limits.
var limitKinds = []verdict.Kind{verdict.Limited, verdict.Capacity, verdict.Challenge, verdict.ExitTrouble}

// Lanes implements metrics.Source.
func (s source) Lanes() []metrics.Lane {
	now := s.d.clock.Now()
	lanes := s.d.engine.Lanes()
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
	}
	return out
}

// Tallies implements metrics.Source.
func (s source) Tallies() metrics.Tallies {
	var out metrics.Tallies
	for _, t := range s.d.engine.Tallies() {
		tally := metrics.Tally{
			Destination: t.Destination,
			Exit:        t.Exit,
			Requests:    []metrics.Count{{Label: metrics.NoAnswer, N: t.Errors()}},
			Retried:     t.Retried(),
			Wait:        t.Wait(),
			Sent:        t.Bytes(policy.Sent),
			Received:    t.Bytes(policy.Received),
		}
		for _, o := range policy.Outcomes() {
			moved := t.Traffic(o)
			tally.Outcomes = append(tally.Outcomes, metrics.OutcomeBytes{Outcome: o.String(), Sent: moved.Sent, Received: moved.Received})
		}
		for code, n := range t.Codes() {
			tally.Requests = append(tally.Requests, metrics.Count{Label: strconv.Itoa(code), N: n})
		}
		for _, r := range policy.Refusals() {
			tally.Refused = append(tally.Refused, metrics.Count{Label: r.String(), N: t.Refused(r)})
		}
		for _, k := range limitKinds {
			tally.Limited = append(tally.Limited, metrics.Count{Label: k.String(), N: t.Limited(k)})
		}
		out.Pairs = append(out.Pairs, tally)
	}
	now := s.d.clock.Now()
	for _, m := range s.d.engine.Meters() {
		e := metrics.ExitSeconds{Exit: m.Exit, Seconds: m.Seconds(now)}
		e.Lockstep, e.HasLockstep = m.Lockstep(now)
		out.Exits = append(out.Exits, e)
	}
	for _, w := range s.d.engine.Switches() {
		out.Switches = append(out.Switches, metrics.ExitSwitches{Pool: w.Pool, From: w.From, To: w.To, N: w.Count()})
	}
	out.ExitMismatches = s.d.mismatches.Load()
	out.TLS = s.insight()
	out.Dropped = s.d.engine.Dropped()
	return out
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
		if g.Name != loader.GateRedirected {
			out.Untouched = append(out.Untouched, metrics.Count{Label: g.Name, N: g.Passed})
		}
	}
	for _, p := range programs {
		out.Programs = append(out.Programs, metrics.ProgramTime{Program: p.Name, Time: p.Runtime})
	}
	return out, nil
}

// Reload implements metrics.Source.
func (s source) Reload() metrics.Reload {
	s.d.mu.Lock()
	defer s.d.mu.Unlock()
	return metrics.Reload{OK: s.d.reload.ok, Last: s.d.reload.loaded}
}
