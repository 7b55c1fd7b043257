// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/config"
)

// noon is when watches begin.
var noon = time.Date(2030, 1, 2, 12, 0, 0, 0, time.UTC)

// scene makes snapshots: of a daemon that is watched for ten seconds and has
// run for an hour.
type scene struct {
	t *testing.T
	Snapshot
}

const (
	watched = 10 * time.Second
	ticks   = int(watched / sampleEvery)
)

func newScene(t *testing.T) *scene {
	s := &scene{t: t}
	for i := range ticks + 1 {
		s.Samples = append(s.Samples, Sample{At: noon.Add(time.Duration(i) * sampleEvery)})
	}
	s.Clients.Look(noon, nil)
	s.Status = admin.Status{
		Started: noon.Add(-time.Hour),
		Kernel:  &admin.Kernel{Attached: true, Canary: admin.Canary{At: noon, OK: true}},
	}
	s.Past = admin.Exits{From: noon.Add(-time.Hour), To: noon.Add(watched)}
	return s
}

// lane adds a lane to all samples. sent and limited are what it counts between
// one sample and the next. It has counted before the watch, too.
func (s *scene) lane(l admin.Lane, sent, limited func(i int) uint64) {
	s.t.Helper()
	if l.Budget == "" {
		l.Budget = "store"
	}
	if l.Label == "" {
		l.Label = l.Destination
	}
	if l.Mode == "" {
		l.Mode = "enforce"
	}
	if l.Rate == 0 {
		l.Rate = l.BaseRate
	}
	l.Lane = l.Budget + "/" + l.Destination + "/" + l.Exit
	if l.Path != "" {
		l.Lane += ";path=" + l.Path
	}
	l.Sent += 1000
	first := admin.PairCounts{Destination: l.Label, Exit: l.Exit, Sent: l.Sent, Limited: map[string]uint64{"limited": l.Limited}}
	for i := range s.Samples {
		if i > 0 {
			l.Sent += sent(i)
			l.Limited += limited(i)
		}
		s.Samples[i].Lanes = append(s.Samples[i].Lanes, l)
	}
	last := first
	last.Sent, last.Limited = l.Sent, map[string]uint64{"limited": l.Limited}
	s.First.Pairs = append(s.First.Pairs, first)
	s.Last.Pairs = append(s.Last.Pairs, last)
}

func never(int) uint64 { return 0 }

// each counts n at every k-th sample.
func each(k int, n uint64) func(int) uint64 {
	return func(i int) uint64 {
		if i%k == 0 {
			return n
		}
		return 0
	}
}

// client has a process make a request on a connection of its own, n times.
func (s *scene) client(pid uint32, lane string, n int) {
	for i := range n {
		s.Clients.Look(noon.Add(time.Second), []admin.Flow{{
			Cookie: uint64(pid)<<32 | uint64(i), PID: pid, Command: fmt.Sprint("worker", pid), Lane: lane, Requests: 1, Age: 0.1,
		}})
	}
}

// penalty makes the daemon remember a limit.
func (s *scene) penalty(lane string, at time.Time, closed time.Duration) {
	s.Events = append(s.Events, admin.Event{Time: at, Kind: "penalty", Lane: lane, Wait: closed.Seconds(), Detail: "limited, 1s by default"})
}

// minute adds one to the past.
func (s *scene) minute(destination, exit string, requests, limited uint64) {
	from := noon.Add(-time.Hour)
	if n := len(s.Minutes); n > 0 {
		from = s.Minutes[n-1].To
	}
	s.Minutes = append(s.Minutes, Minute{From: from, To: from.Add(time.Minute), Pairs: []admin.Pair{
		{Destination: destination, Exit: exit, Use: admin.Use{Requests: requests, TooMany: limited}},
	}})
}

// only checks that there is one finding and returns it.
func (s *scene) only(kind Kind, certainty Certainty) Finding {
	s.t.Helper()
	all := s.find(kind)
	if len(all) != 1 {
		s.t.FailNow()
	}
	if got := all[0].Certainty; got != certainty {
		s.t.Errorf("%s: got it %s, want %s", kind, got, certainty)
	}
	return all[0]
}

// find checks the kinds of the findings, in their order.
func (s *scene) find(kinds ...Kind) []Finding {
	s.t.Helper()
	r := Analyse(&s.Snapshot)
	same := len(r.Findings) == len(kinds)
	for i, f := range r.Findings {
		same = same && f.Kind == kinds[i]
		if f.Saw == "" || f.Do == "" || f.Numbers == nil {
			s.t.Errorf("got finding %+v, want what was seen, its numbers, and what to do", f)
		}
		if f.Policy != "" {
			if _, err := config.Parse("policy", []byte(f.Policy)); err != nil {
				s.t.Errorf("%s: %v in\n%s", f.Kind, err, f.Policy)
			}
		}
	}
	if !same {
		s.t.Errorf("got findings %+v, want %v", r.Findings, kinds)
	}
	return r.Findings
}

// number checks a number of the evidence.
func number(t *testing.T, f Finding, name string, want float64) {
	t.Helper()
	if got, there := f.Numbers[name]; !there || got < want*0.999 || got > want*1.001 {
		t.Errorf("%s: got %s %v of %v, want %v", f.Kind, name, got, f.Numbers, want)
	}
}

// look is a lane of a budget that measures and is for no destination.
var look = admin.Lane{Budget: "look", Label: "look", Destination: "a.example", Exit: "direct", BaseRate: 1000, Mode: "shadow"}

const lookLane = "look/a.example/direct"

// tell makes a lane out of what happens request by request, and has the daemon
// say what its budgets are.
func (s *scene) tell(l admin.Lane, told ...admin.Event) {
	s.t.Helper()
	s.Stream = Stream{From: noon, To: noon.Add(watched), Commands: map[uint32]string{1: "python3 worker.py"}}
	slices.SortStableFunc(told, func(a, b admin.Event) int { return a.Time.Compare(b.Time) })
	s.Stream.Events = told
	count := func(kind policy.EventKind, only string) func(int) uint64 {
		return func(i int) (n uint64) {
			from, to := noon.Add(time.Duration(i-1)*sampleEvery), noon.Add(time.Duration(i)*sampleEvery)
			for _, e := range told {
				if e.Kind == string(kind) && (only == "" || e.Detail == only) && !e.Time.Before(from) && e.Time.Before(to) {
					n++
				}
			}
			return n
		}
	}
	s.lane(l, count(policy.EventDispatch, ""), count(policy.EventAsked, limited))
	s.Last.Budgets = []admin.Budget{{Name: "look", Lines: "budgets:\n  - {name: look, match: {ports: [8080]}, rate: 1000/s, mode: shadow}\n"}}
}

// sent is a request of a process for a job.
func sent(at time.Duration, pid uint32, job uint64) admin.Event {
	return admin.Event{Time: noon.Add(at), Kind: string(policy.EventDispatch), Lane: lookLane, PID: pid, Job: job}
}

// refused is a request and, a little later, its limit.
func refused(at time.Duration, pid uint32, job uint64, delay time.Duration) []admin.Event {
	return []admin.Event{sent(at, pid, job), {
		Time: noon.Add(at + 5*time.Millisecond), Kind: string(policy.EventAsked), Lane: lookLane, PID: pid, Job: job,
		Detail: limited, Wait: delay.Seconds(),
	}}
}
