// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/policy"
)

const ms = time.Millisecond

// pollers are processes that ask for one thing once a second, whatever comes of
// it, all of them within some milliseconds. One request in each second passes.
func pollers(n int) (all []admin.Event) {
	for second := range 10 {
		for pid := range n {
			at := 300*ms + time.Duration(second)*1003*ms + time.Duration(pid)*7*ms
			if pid == second%n {
				all = append(all, sent(at, uint32(pid+1), 99))
			} else {
				all = append(all, refused(at, uint32(pid+1), 99, 0)...)
			}
		}
	}
	return all
}

// TestMultiplicationOfPollers has no budget for the destination, and clients that
// ask for the same again and again: what they repeat is no storm, and that they
// are in step no window of a clock.
func TestMultiplicationOfPollers(t *testing.T) {
	s := newScene(t)
	s.tell(look, pollers(4)...)
	f := s.only(Multiplication, Likely)
	number(t, f, "sent_per_second", 4)
	number(t, f, "allowed_per_second", 1)
	number(t, f, "processes", 4)
	if f.Processes[0].Command != "python3 worker.py" || !strings.Contains(f.Saw, "4.0 times 1/s, which is what the origin let through") {
		t.Errorf("got %+v", f)
	}
	for _, want := range []string{"# before budget look\n", "hosts: [a.example], ports: [8080]", "rate: 1/s", "mode: enforce"} {
		if !strings.Contains(f.Policy, want) {
			t.Errorf("got\n%s\nwant it to contain %q", f.Policy, want)
		}
	}
}

// TestWrongLimitOfOne has one process that sends more than the origin allows.
func TestWrongLimitOfOne(t *testing.T) {
	steady := func(told float64) *scene {
		s := newScene(t)
		var all []admin.Event
		for i := range 60 {
			at := 13*ms + time.Duration(i)*160*ms
			if i%3 == 0 {
				e := refused(at, 1, uint64(i+1), 0)
				e[1].Told = told
				all = append(all, e...)
				continue
			}
			all = append(all, sent(at, 1, uint64(i+1)))
		}
		s.tell(look, all...)
		return s
	}
	f := steady(0).only(WrongLimit, Likely)
	number(t, f, "origin_least_per_second", 4)
	number(t, f, "processes_over", 1)
	if !strings.Contains(f.Policy, "rate: 4/s") || len(f.Processes) != 1 {
		t.Errorf("got %+v", f)
	}
	f = steady(3.5).only(WrongLimit, Certain)
	number(t, f, "told_per_second", 3.5)
	if !strings.Contains(f.Policy, "rate: 3.5/s") || !strings.Contains(f.Saw, "its answers state a limit of 3.5/s") {
		t.Errorf("got %+v", f)
	}
}

// storm is the requests of two processes, about two in a second, for a thing of
// its own each. One in six is refused so many times, and repeated after a pause
// each time.
func storm(pause, delay time.Duration, tries int) (all []admin.Event) {
	job := uint64(0)
	for i := range 20 {
		job++
		at, pid := 200*ms+time.Duration(i)*450*ms, uint32(i%2+1)
		if i%6 == 3 {
			for range tries {
				all = append(all, refused(at, pid, job, delay)...)
				at += pause
			}
		}
		all = append(all, sent(at, pid, job))
	}
	return all
}

func TestStormOfJobs(t *testing.T) {
	s := newScene(t)
	s.tell(look, storm(30*ms, time.Second, 8)...)
	f := s.only(RetryStorm, Certain)
	number(t, f, "jobs", 20)
	number(t, f, "repetitions", 24)
	number(t, f, "repetitions_early", 24)
	number(t, f, "requests_per_job", 44.0/20)
	number(t, f, "requests_per_limited_job", 9)
	if !strings.Contains(f.Policy, "retry: {absorb: true}") || !strings.Contains(f.Saw, "44 requests were sent for 20 jobs: 2.2 for each, and 9.0 for each that was limited once") {
		t.Errorf("got %+v", f)
	}

	// One repetition after the delay that was asked for is what should be done. The
	// limits themselves are then those of the budget.
	s = newScene(t)
	s.tell(look, storm(300*ms, 0, 1)...)
	s.only(WrongLimit, Likely)
}

// windowed are requests of one process: so many at once at the beginning of each
// two seconds, later by an offset. Half of them are refused.
func windowed(offset, delay time.Duration) (all []admin.Event) {
	for window := range 5 {
		for i := range 8 {
			at, job := offset+time.Duration(window)*2*time.Second+time.Duration(i)*3*ms, uint64(window*8+i+1)
			if i < 4 {
				all = append(all, sent(at, 1, job))
			} else {
				all = append(all, refused(at, 1, job, delay)...)
			}
		}
	}
	return all
}

func TestBursts(t *testing.T) {
	s := newScene(t)
	s.tell(look, windowed(10*ms, 0)...)
	f := s.only(WindowEdges, Likely)
	number(t, f, "window_s", 2)
	number(t, f, "bursts", 5)
	number(t, f, "burst_size", 8)
	number(t, f, "phase_0", 40)
	if !strings.Contains(f.Policy, "rate: 4/s") || !strings.Contains(f.Saw, "places in tenths of it: 40 0 0 0 0 0 0 0 0 0") {
		t.Errorf("got %+v", f)
	}

	// In the middle of the clock's windows it may have been the start of the process.
	s = newScene(t)
	s.tell(look, windowed(900*ms, 0)...)
	s.only(WindowEdges, Possible)

	// Where the delay that was asked for is the period, the origin made it.
	s = newScene(t)
	s.tell(look, windowed(10*ms, 2*time.Second)...)
	for _, f := range Analyse(&s.Snapshot).Findings {
		if f.Kind == WindowEdges {
			t.Errorf("got %+v, want no window of a clock", f)
		}
	}

	// What comes evenly has no place.
	s = newScene(t)
	var even []admin.Event
	for i := range 40 {
		even = append(even, refused(time.Duration(i)*247*ms, 1, uint64(i+1), 0)...)
	}
	s.tell(look, even...)
	for _, f := range Analyse(&s.Snapshot).Findings {
		if f.Kind == WindowEdges {
			t.Errorf("got %+v of an even load", f)
		}
	}
}

func TestEscalation(t *testing.T) {
	waves := func(delays ...int) *scene {
		s := newScene(t)
		var all []admin.Event
		for i, d := range delays {
			for k := range 4 {
				all = append(all, refused(time.Duration(i)*1800*ms+time.Duration(k)*9*ms+20*ms, uint32(k+1), 7, time.Duration(d)*time.Second)...)
			}
		}
		s.tell(look, all...)
		return s
	}
	f := waves(1, 2, 4, 8).only(Escalation, Certain)
	number(t, f, "delay_first_s", 1)
	number(t, f, "delay_last_s", 8)
	number(t, f, "rounds", 4)
	if !strings.Contains(f.Policy, "spread: 0.2") || !strings.Contains(f.Saw, "1s, 2s, 4s, 8s") {
		t.Errorf("got %+v", f)
	}
	for _, same := range [][]int{{2, 2, 2, 2}, {8, 6, 4, 2}, {1, 2}, {3, 9, 3, 9}} {
		for _, f := range Analyse(&waves(same...).Snapshot).Findings {
			if f.Kind == Escalation {
				t.Errorf("%v: got %+v, want none", same, f)
			}
		}
	}

	// A lane that holds remembers by its events.
	s := newScene(t)
	s.lane(direct, each(2, 1), each(7, 1))
	for i, d := range []int{2, 5, 11} {
		s.penalty(directLane, noon.Add(time.Duration(i-10)*time.Minute), time.Duration(d)*time.Second)
		s.Events[i].Detail = "limited, 2s as asked"
	}
	all := s.find(WrongLimit, Escalation)
	if len(all) == 2 && (all[1].Certainty != Likely || !strings.Contains(all[1].Policy, "rate: 48/min")) {
		t.Errorf("got %+v", all[1])
	}
}

func TestUnmeasured(t *testing.T) {
	s := newScene(t)
	s.Status.PID = 77
	if f := s.only(Unmeasured, Certain); !strings.Contains(f.Policy, "mode: shadow") || strings.Contains(f.Policy, "match") {
		t.Errorf("got %+v, want a budget that measures everything", f)
	}
	s.Last.Budgets = []admin.Budget{{Name: "::1", Lines: ""}}
	s.Destination = "::1"
	if f := s.only(Unmeasured, Possible); !strings.Contains(f.Policy, `hosts: ["::1"]`) {
		t.Errorf("got %+v", f)
	}
	s.Destination = "a lane/of/nobody"
	if f := s.only(Unmeasured, Possible); f.Policy != "" {
		t.Errorf("got %q for what is no host", f.Policy)
	}
}

// TestFix holds where lines belong, and that they leave alone what is not meant.
func TestFix(t *testing.T) {
	for _, tt := range []struct {
		budget string // of the lane
		all    bool
		want   string
	}{
		{"{name: look, match: {hosts: [a.example], path: /x}, rate: 9/s, burst: 7, headers: github, mode: shadow}", false,
			"budgets:\n  # in place of budget look\n  - name: look\n    match: {hosts: [a.example], path: /x}\n    rate: 2/s\n    headers: github\n    mode: enforce\n"},
		{`{name: look, match: {hosts: ["*.example", b.example]}, rate: 9/s, cost: 3}`, false,
			"budgets:\n  # before budget look\n  - name: a.example\n    match: {hosts: [a.example]}\n    rate: 6/s\n    cost: 3\n"},
		{`{name: look, match: {hosts: ["*.example", b.example]}, rate: 9/s, mode: shadow}`, true,
			"budgets:\n  # in place of budget look\n  - name: look\n    match: {hosts: [\"*.example\", b.example]}\n    rate: 2/s\n    mode: enforce\n"},
		{"{name: look, per: [site, exit], rate: 9/s}", true,
			"budgets:\n  # before budget look\n  - name: a.example\n    match: {hosts: [a.example, \"*.a.example\"]}\n    per: [site, exit]\n    rate: 2/s\n"},
		{"{name: look, headers: unheard-of, rate: 9/s}", false,
			"budgets:\n  # in place of budget look\n  - name: look\n    match: {hosts: [a.example]}\n    rate: 2/s\n    mode: enforce\n"},
	} {
		s := newScene(t)
		s.tell(look)
		s.Last.Budgets[0].Lines = "budgets:\n  - " + tt.budget
		a := newAnalysis(&s.Snapshot)
		if got := a.fix(&a.lanes[0], tt.all, hold(2)); got != tt.want {
			t.Errorf("%s: got\n%s\nwant\n%s", tt.budget, got, tt.want)
		}
	}
}

func TestCommand(t *testing.T) {
	for _, tt := range []struct{ comm, cmdline, want string }{
		{"python3", "python3\x00/srv/app/worker.py\x00--token\x00secret\x00", "python3 worker.py"},
		{"python3", "/usr/bin/python3.12\x00-c\x00import x\x00", "python3"},
		{"gunicorn: worke", "/usr/bin/python3\x00/usr/bin/gunicorn\x00", "gunicorn: worke gunicorn"},
		{"curl", "curl\x00https://user:secret@a.example/\x00", "curl"},
		{"nodered", "nodered\x00settings.js\x00", "nodered"},
		{"kworker", "", "kworker"},
	} {
		if got := command(tt.comm, tt.cmdline); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.cmdline, got, tt.want)
		}
	}
}

// hearsay is a daemon that tells of events, and then of nothing more.
type hearsay struct {
	Daemon
	events []admin.Event
}

func (h hearsay) Events(ctx context.Context, follow, dispatches bool, f func(admin.Event) error) error {
	if !follow || !dispatches {
		return errors.New("not asked for")
	}
	for _, e := range h.events {
		if err := f(e); err != nil {
			return err
		}
	}
	<-ctx.Done()
	return nil
}

// TestListen holds that what was missed is known.
func TestListen(t *testing.T) {
	one := admin.Event{Time: time.Now(), Kind: string(policy.EventDispatch), PID: 1}
	var s Snapshot
	heard := s.listen(t.Context(), hearsay{events: []admin.Event{{Kind: "penalty"}, one, one}})()
	if len(heard.Events) != 2 || heard.Commands[1] == "" || heard.To.Before(heard.From) {
		t.Errorf("got %+v, want two requests of a process", heard)
	}
	heard = s.listen(t.Context(), hearsay{events: []admin.Event{one, {Kind: "lost"}, one}})()
	if len(heard.Events) != 1 || !heard.To.Equal(one.Time) {
		t.Errorf("got %+v, want what came before the gap, and that it ends there", heard)
	}
}

// FuzzCommand holds that arguments which are no script's name are not told.
func FuzzCommand(f *testing.F) {
	f.Add("python3", "/usr/bin/python3\x00/srv/worker.py\x00--token\x00secret\x00")
	f.Add("curl", "curl\x00https://user:secret@a.example/\x00")
	f.Add("", "\x00\x00")
	f.Fuzz(func(t *testing.T, comm, cmdline string) {
		got := command(comm, cmdline)
		rest, is := strings.CutPrefix(got, comm)
		if !is || len(rest) > maxScript+1 || strings.ContainsAny(rest, "/\x00") && rest != " /" {
			t.Errorf("%q, %q: got %q", comm, cmdline, got)
		}
	})
}
