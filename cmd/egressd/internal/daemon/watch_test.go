// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/loader"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/userspace/events"
)

// heard gathers events.
type heard struct{ all []policy.Event }

func (h *heard) emit(ev policy.Event) { h.all = append(h.all, ev) }

// take gives what was heard since the last time, as a person would read it.
func (h *heard) take() (out []string) {
	for _, ev := range h.all {
		out = append(out, messageOf(ev))
	}
	h.all = nil
	return out
}

// TestLaneStory follows one lane through a limit and back.
func TestLaneStory(t *testing.T) {
	var h heard
	w := laneWatch{emit: h.emit, lanes: map[string]*watched{}}
	slowed := func(rate float64) policy.State { return policy.State{Rate: rate, Budget: 1} }
	for _, step := range []struct {
		what  string
		event policy.EventKind // that comes before
		state policy.State
		want  []string
	}{
		{"closed by a quota", policy.EventCooldown, policy.State{Rate: 1, Budget: 1, ClosedFor: time.Second}, nil},
		{"its time is over", "", slowed(1), []string{"reopened a its time is over"}},
		{"closed and slowed", policy.EventPenalty, policy.State{Rate: 0.125, Budget: 1, ClosedFor: time.Second}, nil},
		{"closed yet", "", policy.State{Rate: 0.125, Budget: 1, ClosedFor: time.Millisecond}, nil},
		{"open for a probe", "", policy.State{Rate: 0.125, Budget: 1, Probing: true}, nil},
		{"the probe succeeded", policy.EventReopened, slowed(0.14), nil},
		{"not twice as fast", "", slowed(0.24), nil},
		{"twice as fast", "", slowed(0.26), []string{"ramp a 0.26/s of 1/s"}},
		{"slowed once more", policy.EventPenalty, policy.State{Rate: 0.13, Budget: 1, ClosedFor: time.Second}, nil},
		{"opened by hand", policy.EventReopened, slowed(0.26), []string{"ramp a 0.26/s of 1/s"}},
		{"as before", "", slowed(1), []string{"ramp a 1/s as fast as its budget"}},
	} {
		if step.event != "" {
			w.note(policy.Event{Kind: step.event, Lane: "a"})
		}
		if w.lanes["a"] == nil {
			t.Fatalf("%s: the lane is not watched", step.what)
		}
		w.one("a", step.state, noon)
		if got := h.take(); !slices.Equal(got, step.want) {
			t.Errorf("%s: got %q, want %q", step.what, got, step.want)
		}
	}
	if len(w.lanes) != 0 {
		t.Error("a lane that is as before is still watched")
	}
	w.note(policy.Event{Kind: policy.EventReopened, Lane: "b"})
	w.note(policy.Event{Kind: policy.EventRefused, Lane: "b"})
	if len(w.lanes) != 0 {
		t.Error("a lane is watched that nothing has closed")
	}
}

// TestLanesOfTheEngine looks at real lanes, and forgets those that are gone.
func TestLanesOfTheEngine(t *testing.T) {
	e := busyEngine(t, 3)
	var h heard
	w := laneWatch{emit: h.emit, lanes: map[string]*watched{}}
	l := e.Lanes()[1]
	l.Cell.Close(noon.Add(time.Minute))
	for _, id := range []string{l.ID(), "gone"} {
		w.note(policy.Event{Kind: policy.EventCooldown, Lane: id})
	}
	w.look(e.Lanes(), noon)
	if got := h.take(); len(got) != 0 || len(w.lanes) != 1 {
		t.Errorf("got %q and %d watched, want silence and the one lane that there is", got, len(w.lanes))
	}
	l.Cell.ClearCooldown(noon)
	w.look(e.Lanes(), noon)
	if got, want := h.take(), []string{"reopened " + l.ID() + " its time is over"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestHookStory(t *testing.T) {
	var h heard
	w := hookWatch{emit: h.emit, gates: map[string]*passed{}}
	for _, step := range []struct {
		at    time.Duration
		gates []loader.Gate
		want  []string
	}{
		{0, []loader.Gate{{Name: "heartbeat"}, {Name: "unnamed", Passed: 100}, {Name: loader.GateRedirected, Passed: 100}}, nil},
		{1, []loader.Gate{{Name: "heartbeat", Passed: 3}}, []string{"untouched 3 connections heartbeat"}},
		{2, []loader.Gate{{Name: "heartbeat", Passed: 5}, {Name: "listener", Passed: 1, Refused: 2}}, []string{"untouched 1 connections listener", "refused 2 connections by the hook: listener"}},
		{10, []loader.Gate{{Name: "heartbeat", Passed: 9}}, nil},
		{11, []loader.Gate{{Name: "heartbeat", Passed: 10}}, []string{"untouched 7 connections heartbeat"}},
		{60, []loader.Gate{{Name: "heartbeat", Passed: 10}, {Name: "udp", Passed: 5, Refused: 1}}, []string{"refused 1 connections by the hook: udp"}},
	} {
		w.look(step.gates, noon.Add(step.at*time.Second))
		if got := h.take(); !slices.Equal(got, step.want) {
			t.Errorf("at %ds: got %q, want %q", step.at, got, step.want)
		}
	}
}

// TestJournalFields holds what a message of the journal has, and that names
// of fields are such as journald keeps.
func TestJournalFields(t *testing.T) {
	d := new(Daemon)
	got := d.journalFields(policy.Event{
		At: ledger.Time(5), Kind: policy.EventPenalty, Lane: "store:a.example:direct", Wait: 1500 * time.Millisecond, Detail: "limited, 1.5s as asked",
		Extended: true, Rate: 0.5, Count: 2, Suppressed: 7,
	})
	want := []events.Field{
		{Name: "MESSAGE", Value: "penalty store:a.example:direct 1.5s 0.5/s 2 connections limited, 1.5s as asked (and 7 before)"},
		{Name: "PRIORITY", Value: "5"},
		{Name: "SYSLOG_IDENTIFIER", Value: "egressd"},
		{Name: "EGRESSD_KIND", Value: "penalty"},
		{Name: "EGRESSD_MONO_NS", Value: "5"},
		{Name: "EGRESSD_LANE", Value: "store:a.example:direct"},
		{Name: "EGRESSD_WAIT_S", Value: "1.5"},
		{Name: "EGRESSD_DETAIL", Value: "limited, 1.5s as asked"},
		{Name: "EGRESSD_EXTENDED", Value: "1"},
		{Name: "EGRESSD_RATE_PER_SECOND", Value: "0.5"},
		{Name: "EGRESSD_COUNT", Value: "2"},
		{Name: "EGRESSD_SUPPRESSED", Value: "7"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
	for _, f := range got {
		if strings.Trim(f.Name, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_") != "" || strings.HasPrefix(f.Name, "_") {
			t.Errorf("journald does not keep a field %s", f.Name)
		}
	}
	if got := len(d.journalFields(policy.Event{Kind: policy.EventReload})); got != 5 {
		t.Errorf("got %d fields of an event that has nothing more, want 5", got)
	}
	for kind, want := range map[policy.EventKind]int{policy.EventReloadFailed: 3, policy.EventUntouched: 4, policy.EventCooldown: 5, policy.EventReload: 6} {
		if got := priorityOf(kind); got != want {
			t.Errorf("%s: got priority %d, want %d", kind, got, want)
		}
	}
}
