// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"time"

	"github.com/egressd/egressd/loader"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/userspace/events"
)

const (
	watchEvery    = time.Second
	untouchedTold = 10 * time.Second // at most so often of one gate
)

// watch makes events of what nobody tells while it happens, until ctx ends: a
// lane that opens since its time is over, or grows faster again; connections
// that the hook let pass.
func (d *Daemon) watch(ctx context.Context) error {
	_, sub := d.events.Subscribe(0, events.Options{Buffer: 4096})
	defer sub.Close()
	lanes := laneWatch{emit: d.events.Emit, lanes: map[string]*watched{}}
	hook := hookWatch{emit: d.events.Emit, gates: map[string]*passed{}}
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case ev, open := <-sub.C:
			if !open {
				return nil
			}
			lanes.note(ev)
		case <-tick.C:
			now := d.clock.Now()
			if len(lanes.lanes) > 0 {
				lanes.look(d.engine.Lanes(), now)
			}
			if gates, err := d.kernel.Gates(); err != nil {
				d.log.Warn("gates cannot be read", "err", err)
			} else {
				hook.look(gates, now)
			}
			d.events.Settle(now)
		}
	}
}

// laneWatch follows lanes from the event that they were closed or slowed until
// they are as before.
type laneWatch struct {
	emit  func(policy.Event)
	lanes map[string]*watched // by id
}

// watched is a lane that is not as it should be.
type watched struct {
	closed bool    // no event told that it is open
	told   float64 // its rate, as it was last told; 0: not yet
}

func (w *laneWatch) note(ev policy.Event) {
	switch ev.Kind {
	case policy.EventCooldown, policy.EventPenalty:
		l := w.lanes[ev.Lane]
		if l == nil {
			l = new(watched)
			w.lanes[ev.Lane] = l
		}
		l.closed = true
	case policy.EventReopened:
		if l := w.lanes[ev.Lane]; l != nil {
			l.closed = false
		}
	}
}

// look tells what has become of the watched among the lanes that there are.
func (w *laneWatch) look(all []*policy.Lane, now ledger.Time) {
	here := 0
	for _, l := range all {
		if _, ok := w.lanes[l.ID()]; ok {
			here++
			w.one(l.ID(), l.State(now), now)
		}
	}
	if here == len(w.lanes) {
		return
	}
	ids := make(map[string]bool, len(all))
	for _, l := range all {
		ids[l.ID()] = true
	}
	for id := range w.lanes {
		if !ids[id] {
			delete(w.lanes, id) // it was forgotten, as nobody used it
		}
	}
}

func (w *laneWatch) one(id string, s policy.State, now ledger.Time) {
	l := w.lanes[id]
	// The end of a probe has an event of its own.
	if l.closed && s.ClosedFor == 0 && !s.Probing {
		l.closed = false
		w.emit(policy.Event{At: now, Kind: policy.EventReopened, Lane: id, Detail: "its time is over"})
	}
	slow := s.Rate > 0 && s.Budget > 0 && s.Rate < s.Budget
	switch {
	case l.told == 0 || s.Rate < l.told:
		if slow {
			l.told = s.Rate
		}
	case !slow || s.Rate >= 2*l.told:
		l.told = s.Rate
		detail := "as fast as its budget"
		if slow {
			detail = "of " + number(s.Budget) + "/s"
		}
		w.emit(policy.Event{At: now, Kind: policy.EventRamp, Lane: id, Rate: s.Rate, Detail: detail})
	}
	if !l.closed && !slow {
		delete(w.lanes, id)
	}
}

// hookWatch follows what the connect hook counts.
type hookWatch struct {
	emit  func(policy.Event)
	gates map[string]*passed // by name
}

// passed is what was told of a gate.
type passed struct {
	passed, refused uint64
	at              ledger.Time
}

func (w *hookWatch) look(gates []loader.Gate, now ledger.Time) {
	for _, g := range gates {
		if ordinary[g.Name] {
			g.Passed = 0
		}
		told := w.gates[g.Name]
		if told == nil {
			told = new(passed)
			w.gates[g.Name] = told
		}
		if g.Passed <= told.passed && g.Refused <= told.refused || told.at != 0 && now.Sub(told.at) < untouchedTold {
			continue
		}
		if g.Passed > told.passed {
			w.emit(policy.Event{At: now, Kind: policy.EventUntouched, Count: g.Passed - told.passed, Detail: g.Name})
		}
		if g.Refused > told.refused {
			w.emit(policy.Event{At: now, Kind: policy.EventRefused, Count: g.Refused - told.refused, Detail: "by the hook: " + g.Name})
		}
		*told = passed{g.Passed, g.Refused, now}
	}
}
