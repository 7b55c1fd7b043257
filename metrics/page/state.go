// SPDX-License-Identifier: Apache-2.0

package page

import (
	"encoding/json"
	"math"
	"net/http"
	"time"

	"github.com/egressd/egressd/policy"
)

// State is a daemon at one instant, as the page and scripts get it. Rates are
// requests per second, times seconds.
type State struct {
	// Epoch is another one for each daemon: numbers of two do not belong together.
	Epoch  string    `json:"epoch"`
	Seq    uint64    `json:"seq"` // of the look; it only grows within an epoch
	At     time.Time `json:"at"`
	Daemon Daemon    `json:"daemon"`
	Totals Totals    `json:"totals"`
	// Until is the end of the last second in Exit.Counts, in Unix time.
	Until float64 `json:"until"`
	// ExitsMatched and LanesMatched are how many there were to choose from.
	Exits        []ExitState  `json:"exits"`
	ExitsMatched int          `json:"exits_matched"`
	Lanes        []LaneState  `json:"lanes"`
	LanesMatched int          `json:"lanes_matched"`
	Events       []EventState `json:"events"` // the newest first
}

// Daemon is how the daemon fares.
type Daemon struct {
	Version      string    `json:"version"`
	Started      time.Time `json:"started"`
	Attached     bool      `json:"attached"`
	CanaryFailed bool      `json:"canary_failed"`
	ReloadFailed bool      `json:"reload_failed"`
}

// Totals are over all exits and lanes, whatever was chosen.
type Totals struct {
	PerSecond float64 `json:"per_second"` // over the last ten seconds
	Exits     int     `json:"exits"`
	Lanes     int     `json:"lanes"`
	Closed    int     `json:"closed"`
	Waiting   int64   `json:"waiting"`
}

// ExitState is one exit.
type ExitState struct {
	Exit      string    `json:"exit"`
	PerSecond float64   `json:"per_second"`       // over the last ten seconds
	Budget    float64   `json:"budget,omitempty"` // that its lanes allow together; absent where nothing bounds it, or that is not known yet
	Rate      float64   `json:"rate,omitempty"`   // … that they allow now
	Lanes     int       `json:"lanes"`
	Closed    int       `json:"lanes_closed"`
	ClosedFor float64   `json:"longest_cooldown_s,omitempty"`
	Waiting   int64     `json:"waiting"`
	TooMany   uint64    `json:"answers_429"`
	Lockstep  *float64  `json:"lockstep_score,omitempty"`
	Counts    []float64 `json:"counts"` // requests in each second, the last one ends at State.Until
}

// LaneState is one lane.
type LaneState struct {
	Lane        string   `json:"lane"` // id
	Budget      string   `json:"budget"`
	Destination string   `json:"destination"`
	Exit        string   `json:"exit"`
	Path        string   `json:"path,omitempty"`
	Mode        string   `json:"mode"`
	PerSecond   *float64 `json:"per_second"`       // over the last ten seconds; null: not known yet
	Rate        float64  `json:"rate"`             // that may go now; 0: any number
	Base        float64  `json:"base_rate"`        // that the budget allows
	Auto        bool     `json:"auto,omitempty"`   // … which is learned from the origin
	Over        bool     `json:"over,omitempty"`   // it sent more than that, as only one that is not held can
	Slowed      bool     `json:"slowed,omitempty"` // below what the budget allows
	Waiting     int64    `json:"waiting"`
	InFlight    int64    `json:"in_flight"`
	Concurrency int      `json:"concurrency,omitempty"`
	Sent        uint64   `json:"sent"`
	Refused     uint64   `json:"refused"`
	Limited     uint64   `json:"limited"`
	Open        bool     `json:"open"`
	ClosedFor   float64  `json:"closed_for_s,omitempty"`
	Reason      string   `json:"reason,omitempty"`
	Probing     bool     `json:"probing,omitempty"`
	Stalled     float64  `json:"stalled_s,omitempty"`
	Window      *Usage   `json:"window,omitempty"`
	Quota       *Usage   `json:"quota,omitempty"`
}

// Usage is how far a number of units is used up.
type Usage struct {
	Limit uint64  `json:"limit,omitempty"`
	Left  uint64  `json:"left"`
	Until float64 `json:"until_s"`
}

// EventState is one thing that happened. IDs of an epoch grow by one.
type EventState struct {
	ID     uint64    `json:"id"`
	Time   time.Time `json:"time"`
	Kind   string    `json:"kind"`
	Lane   string    `json:"lane,omitempty"`
	Wait   float64   `json:"wait_s,omitempty"`
	Detail string    `json:"detail,omitempty"`
}

// state answers one request for a State.
func (p *Page) state(w http.ResponseWriter, r *http.Request) {
	q, err := parseQuery(r.URL.RawQuery)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	// The only error is that of the reader's connection.
	_, _ = w.Write(p.write(p.see(fresh), q))
}

// write is the State of s that q asks for, in JSON on one line. Readers who ask
// for the same share it.
func (p *Page) write(s *sight, q query) []byte {
	s.mu.Lock()
	text := s.written[q]
	if text == nil {
		text = new(writing)
		s.written[q] = text
	}
	s.mu.Unlock()
	text.once.Do(func() {
		var err error
		if text.text, err = json.Marshal(s.state(p.epoch, &q)); err != nil {
			panic(err) // a State has no value that JSON lacks
		}
	})
	return text.text
}

// state writes s down.
func (s *sight) state(epoch string, q *query) *State {
	out := &State{
		Epoch: epoch, Seq: s.seq, At: s.at,
		Daemon: Daemon(s.status),
		Totals: s.totals(),
		Until:  float64(s.until.UnixMilli()) / 1e3,
		Exits:  []ExitState{}, Lanes: []LaneState{}, Events: []EventState{},
	}
	exits, matched := q.chooseExits(s.exits, s.lanes)
	out.ExitsMatched = matched
	for _, e := range exits {
		out.Exits = append(out.Exits, e.state())
	}
	lanes, matched := q.choose(s.lanes)
	out.LanesMatched = matched
	for _, l := range lanes {
		out.Lanes = append(out.Lanes, l.state())
	}
	for _, e := range q.chooseEvents(s.events) {
		out.Events = append(out.Events, EventState{
			ID: e.id, Time: e.At, Kind: e.Kind, Lane: e.Lane, Wait: short(e.Wait.Seconds()), Detail: e.Detail,
		})
	}
	return out
}

func (s *sight) totals() Totals {
	t := Totals{Lanes: len(s.lanes)}
	for i := range s.exits {
		if e := &s.exits[i]; e.Name != policy.AllExits {
			t.PerSecond += e.perSecond
			t.Exits++
		}
	}
	t.PerSecond = short(t.PerSecond)
	for i := range s.lanes {
		t.Waiting += s.lanes[i].Waiting
		if s.lanes[i].closed() {
			t.Closed++
		}
	}
	return t
}

func (e *exitSeen) state() ExitState {
	out := ExitState{
		Exit: e.Name, PerSecond: short(e.perSecond), Budget: short(e.budget), Rate: short(e.rate),
		Lanes: e.lanes, Closed: e.closed, ClosedFor: short(e.longest.Seconds()), Waiting: e.waiting,
		TooMany: e.TooMany, Counts: e.Seconds,
	}
	if out.Counts == nil {
		out.Counts = []float64{}
	}
	if e.HasLockstep {
		out.Lockstep = new(short(e.Lockstep))
	}
	return out
}

func (l *laneSeen) state() LaneState {
	out := LaneState{
		Lane: l.ID, Budget: l.Budget, Destination: l.Destination, Exit: l.Exit, Path: l.Path,
		Mode: l.Mode, Rate: short(l.Rate), Base: short(l.Base), Auto: l.Auto, Over: l.over, Slowed: l.slowed(),
		Waiting: l.Waiting, InFlight: l.InFlight, Concurrency: l.Concurrency,
		Sent: l.Sent, Refused: l.Refused, Limited: l.Limited,
		Open: !l.closed(), Probing: l.Probing, Stalled: short(l.Stalled.Seconds()),
		Window: usage(l.Window), Quota: usage(l.Quota),
	}
	if l.closed() {
		out.ClosedFor, out.Reason, out.Probing = short(l.ClosedFor.Seconds()), l.Reason, false
	}
	if l.known {
		out.PerSecond = new(short(l.perSecond))
	}
	return out
}

func usage(u *policy.Usage) *Usage {
	if u == nil {
		return nil
	}
	return &Usage{Limit: u.Limit, Left: u.Left, Until: short(u.Until.Seconds())}
}

// short is x with no more digits than people read: four that count, and
// thousandths at least. What is no number, or has no end, is none.
func short(x float64) float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return 0
	}
	if x == 0 {
		return 0
	}
	unit := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(x))))
	unit = max(unit, 1e3)
	if math.IsInf(unit, 0) {
		return 0
	}
	return math.Round(x*unit) / unit
}
