// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
)

var direct = admin.Lane{Destination: "a.example", Exit: "direct", BaseRate: 1}

const directLane = "store/a.example/direct"

func TestNothing(t *testing.T) {
	s := newScene(t)
	s.lane(direct, each(2, 1), never)
	s.client(1, directLane, 5)
	s.client(2, directLane, 5)
	s.find()
	var out strings.Builder
	r := Analyse(&s.Snapshot)
	if err := r.Write(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Watched for 10s: 10 requests sent, 0 limited", "\nNothing found: no origin limited anything that was seen"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got\n%s\nwant %q", out.String(), want)
		}
	}
}

func TestSilence(t *testing.T) {
	r := Analyse(&newScene(t).Snapshot)
	var out strings.Builder
	if err := r.Write(&out); err != nil {
		t.Fatal(err)
	}
	if len(r.Findings) != 0 || !strings.Contains(out.String(), "no request came by") {
		t.Errorf("got %+v and\n%s", r.Findings, out.String())
	}
	// A daemon that was asked one instant only.
	if r := Analyse(&Snapshot{}); len(r.Findings) != 0 || r.Watched != 0 {
		t.Errorf("got %+v of nothing", r)
	}
}

func TestMultiplication(t *testing.T) {
	s := newScene(t)
	measured := direct
	measured.Mode = "shadow"
	s.lane(measured, each(1, 2), each(2, 3))
	for pid := uint32(1); pid <= 4; pid++ {
		s.client(pid, directLane, 10)
	}
	f := s.only(Multiplication, Likely)
	number(t, f, "sent_per_second", 4)
	number(t, f, "processes", 4)
	number(t, f, "limited", 30)
	if len(f.Processes) != 4 || f.Processes[0].PerSecond != 1 || f.Processes[0].Command != "worker1" {
		t.Errorf("got processes %+v, want four of 1/s", f.Processes)
	}
	if !strings.Contains(f.Policy, "mode: enforce") || !strings.Contains(f.Saw, "4 processes sent 4/s together") {
		t.Errorf("got %+v", f)
	}

	// Without a limit of the origin it is nobody's business.
	s = newScene(t)
	s.lane(measured, each(1, 2), never)
	s.client(1, directLane, 9)
	s.client(2, directLane, 9)
	s.find()
}

func TestOverBudget(t *testing.T) {
	s := newScene(t)
	measured := direct
	measured.Mode = "shadow"
	s.lane(measured, each(1, 2), each(2, 1))
	s.client(1, directLane, 38)
	s.client(2, directLane, 2)
	f := s.only(OverBudget, Likely)
	number(t, f, "processes_over", 1)
	number(t, f, "processes", 2)
}

func TestOverBudgetByNobodyKnown(t *testing.T) {
	s := newScene(t)
	measured := direct
	measured.Mode = "shadow"
	s.lane(measured, each(1, 2), each(2, 1))
	if f := s.only(OverBudget, Possible); f.Processes != nil || !strings.Contains(f.Saw, "by whom was not seen") {
		t.Errorf("got %+v", f)
	}
}

func TestMultiplicationByLanes(t *testing.T) {
	for _, by := range []string{"destination", "path"} {
		s := newScene(t)
		for _, name := range []string{"a", "b", "c"} {
			l := admin.Lane{Destination: name + ".example", Label: "*.example", Exit: "E-1", BaseRate: 1}
			if by == "path" {
				l.Destination, l.Path = "a.example", "/"+name
			}
			s.lane(l, each(2, 1), each(5, 1))
		}
		f := s.only(Multiplication, Likely)
		number(t, f, "lanes", 3)
		number(t, f, "sent_per_second", 3)
		if !strings.Contains(f.Saw, "one for each "+by) || strings.Contains(f.Policy, "site") != (by == "destination") {
			t.Errorf("%s: got %+v", by, f)
		}
	}
}

func TestWrongLimit(t *testing.T) {
	s := newScene(t)
	l := direct
	l.BaseRate, l.Rate = 2, 1.1
	l.Quota = &admin.Usage{Limit: 60, Left: 3, Until: 12}
	s.lane(l, each(1, 1), each(4, 1))
	f := s.only(WrongLimit, Likely)
	number(t, f, "origin_least_per_second", 1.5)
	number(t, f, "origin_most_per_second", 2)
	number(t, f, "limit_told", 60)
	if !strings.Contains(f.Policy, "rate: 1.5/s") || !strings.Contains(f.Saw, "slowed the lane to 1.1/s") {
		t.Errorf("got %+v", f)
	}

	// The same, if something may go past egressd.
	s.Last.PassedBy = map[string]uint64{"heartbeat": 3}
	all := s.find(PastEgressd, WrongLimit)
	if len(all) == 2 && all[1].Certainty != Possible {
		t.Errorf("got it %s, want possible", all[1].Certainty)
	}
}

// TestWrongLimitMeasured has a budget that measures, and is kept all the same.
func TestWrongLimitMeasured(t *testing.T) {
	s := newScene(t)
	l := direct
	l.BaseRate, l.Mode = 2, "shadow"
	s.lane(l, each(1, 1), each(4, 1))
	number(t, s.only(WrongLimit, Likely), "origin_least_per_second", 1.5)
}

func TestWrongLimitOfThePast(t *testing.T) {
	s := newScene(t)
	l := direct
	l.BaseRate = 0.5
	s.lane(l, never, never)
	for i := range 10 {
		limited := uint64(0)
		if i%2 == 0 {
			limited = 6
			s.penalty(directLane, noon.Add(time.Duration(i-60)*time.Minute+time.Duration(i*i*7)*time.Second/10), time.Second)
		}
		s.minute("a.example", "direct", 30, limited)
	}
	f := s.only(WrongLimit, Likely)
	number(t, f, "limits_remembered", 5)
	number(t, f, "origin_least_per_second", 0.4)
	number(t, f, "origin_most_per_second", 0.5)
	if !strings.Contains(f.Policy, "rate: 24/min") {
		t.Errorf("got %q, want a rate of 24/min", f.Policy)
	}
}

func TestOneLimitIsLittle(t *testing.T) {
	s := newScene(t)
	s.lane(direct, each(2, 1), func(i int) uint64 {
		if i == 7 {
			return 1
		}
		return 0
	})
	s.only(WrongLimit, Possible)
	s = newScene(t)
	learned := direct
	learned.Auto = true // it is how such a lane learns
	s.lane(learned, each(2, 1), each(9, 1))
	s.find()
}

func TestSharedExit(t *testing.T) {
	s := newScene(t)
	s.lane(direct, each(2, 1), never)
	for i := range 20 {
		switch i {
		case 9, 15:
			s.minute("a.example", "direct", 6, 1)
			s.penalty(directLane, s.Minutes[i].From.Add(time.Duration(i)*time.Second), time.Second)
		case 8, 14:
			s.minute("a.example", "direct", 5, 0)
		default:
			s.minute("a.example", "direct", 58, 0)
		}
	}
	f := s.only(SharedExit, Likely)
	number(t, f, "quiet_limits", 2)
	number(t, f, "quiet_per_second", 0.1)
	number(t, f, "free_per_second", 58.0/60)

	// A lane that was closed sends little: the limit of its probe says nothing.
	s = newScene(t)
	s.lane(direct, each(2, 1), never)
	for i := range 20 {
		limited := uint64(1)
		if i < 10 {
			limited = 0
		}
		s.minute("a.example", "direct", 58-50*limited, limited)
	}
	s.penalty(directLane, noon.Add(-time.Minute), time.Second)
	s.only(WrongLimit, Possible)
}

func TestWindowEdges(t *testing.T) {
	s := newScene(t)
	s.lane(direct, each(2, 1), never)
	for i := range 8 {
		// Forty seconds into each minute, give or take some.
		s.penalty(directLane, noon.Add(time.Duration(i-20)*time.Minute+time.Duration(38+i%5)*time.Second), 15*time.Second)
		s.minute("a.example", "direct", 42, 2)
	}
	all := s.find(WrongLimit, WindowEdges)
	f := all[1]
	number(t, f, "window_s", 60)
	number(t, f, "window_limit", 40)
	if place := f.Numbers["place_s"]; place < 38 || place > 42 || f.Certainty != Likely {
		t.Errorf("got place %v (%s), want about 40 s and likely", place, f.Certainty)
	}
	if !strings.Contains(f.Policy, "window: {limit: 40, per: 1m, kind: fixed}") {
		t.Errorf("got %q", f.Policy)
	}
}

func TestNoFixedPlace(t *testing.T) {
	at := func(every, closed time.Duration, wobble time.Duration) (all []onset) {
		for i := range 12 {
			all = append(all, onset{at: noon.Add(time.Duration(i)*every + time.Duration(i%3)*wobble), closed: closed})
		}
		return all
	}
	for _, tt := range []struct {
		name   string
		onsets []onset
		want   bool
	}{
		{"each minute", at(time.Minute, time.Second, time.Second), true},
		{"as soon as a cooldown of a minute ended", at(time.Minute, 55*time.Second, time.Second), false},
		{"at any time", at(47*time.Second, time.Second, 0), false},
		{"too few", at(time.Minute, time.Second, 0)[:minOnsets-1], false},
		{"all within one minute", at(time.Second, 0, 0), false},
		{"none", nil, false},
	} {
		if phase, n, vector, got := fixedPlace(tt.onsets, time.Minute); got != tt.want {
			t.Errorf("%s: got %v at %v of %d (%v), want %v", tt.name, got, phase, n, vector, tt.want)
		}
	}
	// What begins at the edge stands there, whichever side.
	if phase, _, _, found := fixedPlace(at(time.Minute, 0, time.Second), time.Minute); !found || phase > near {
		t.Errorf("got place %v, %v, want the beginning", phase, found)
	}
}

func TestRetryStorm(t *testing.T) {
	s := newScene(t)
	measured := direct
	measured.Mode, measured.BaseRate = "shadow", 50
	// Calm, a limit each 2.5 s, and ten times as much in the second after it.
	s.lane(measured, func(i int) uint64 {
		if i > 5 && (i%5 == 1 || i%5 == 2) {
			return 10
		}
		return 1
	}, each(5, 1))
	f := s.only(RetryStorm, Likely)
	number(t, f, "otherwise_per_second", 2)
	if f.Numbers["after_limit_per_second"] < 10 {
		t.Errorf("got %v", f.Numbers)
	}

	// An even load that the origin limits is none.
	s = newScene(t)
	s.lane(measured, each(1, 5), each(3, 1))
	s.only(WrongLimit, Likely)

	// Clients that go on regardless.
	s = newScene(t)
	s.lane(measured, each(1, 5), each(1, 4))
	if all := s.find(WrongLimit, RetryStorm); len(all) == 2 && all[1].Certainty != Possible {
		t.Errorf("got it %s, want possible", all[1].Certainty)
	}

	// Lockstep, as the meter of an exit sees it.
	for score, want := range map[float64]Certainty{0.7: Likely, 0.4: Possible, 0.2: ""} {
		s = newScene(t)
		s.Past.Exits = []admin.Exit{{Exit: "E-1", Use: admin.Use{Requests: 100, TooMany: 40}, Lockstep: &score}}
		if want == "" {
			s.find()
			continue
		}
		number(t, s.only(RetryStorm, want), "lockstep_score", score)
	}
}

func TestOwnRefusals(t *testing.T) {
	s := newScene(t)
	s.lane(direct, each(2, 1), never)
	s.Last.Pairs[0].Refused = map[string]uint64{"max_wait": 6, "queue_full": 2, "framing": 3}
	s.First.Pairs[0].Refused = map[string]uint64{"max_wait": 1, "framing": 3}
	f := s.only(OwnRefusals, Certain)
	number(t, f, "max_wait", 6)
	number(t, f, "queue_full", 2)
	number(t, f, "while_watched", 7)

	// Refused at once, and there again at once.
	s.Last.Pairs[0].Refused["max_wait"] = 400
	s.find(OwnRefusals, RetryStorm)
}

func TestPastEgressd(t *testing.T) {
	s := newScene(t)
	s.lane(direct, each(2, 1), never)
	s.First.PassedBy = map[string]uint64{"backlog": 1}
	s.Last.PassedBy = map[string]uint64{"backlog": 5, "heartbeat": 2}
	f := s.only(PastEgressd, Certain)
	number(t, f, "untouched", 7)
	number(t, f, "untouched_while_watched", 6)
	if !strings.Contains(f.Saw, "5 by gate backlog, 2 by gate heartbeat") {
		t.Errorf("got %q", f.Saw)
	}

	s = newScene(t)
	s.Last.QUIC = map[string]uint64{"a.example": 4, "other": 9}
	f = s.only(PastEgressd, Certain)
	if f.Policy != "quic: refuse" || f.Destination != "a.example" {
		t.Errorf("got %+v", f)
	}

	s = newScene(t)
	s.Status.Kernel.Attached = false
	s.only(PastEgressd, Certain)
	s = newScene(t)
	s.Status.Kernel.Canary = admin.Canary{At: noon, Error: "untouched by gate listener"}
	s.only(PastEgressd, Certain)
	s = newScene(t)
	s.Status.Kernel = nil // there are no programs that could be passed by
	s.find()
}

func TestBlindTLS(t *testing.T) {
	s := newScene(t)
	s.lane(direct, each(2, 1), never)
	s.Last.Sight = admin.SightCounts{Answers: map[string]uint64{"keys": 3}, Doubts: map[string]uint64{"no_keys": 2}}
	s.Clients.Look(noon, []admin.Flow{
		{Cookie: 1, PID: 7, Command: "java", Sight: "blind", Lane: directLane},
		{Cookie: 2, PID: 7, Command: "java", Sight: "blind", Lane: directLane},
		{Cookie: 3, PID: 8, Command: "curl", Sight: "keys", Lane: directLane},
		{Cookie: 4, PID: 9, Command: "curl", Sight: "blind"}, // no budget wants it
	})
	f := s.only(BlindTLS, Certain)
	number(t, f, "blind_connections", 2)
	if len(f.Processes) != 1 || f.Processes[0].PID != 7 || !strings.Contains(f.Saw, "2 for no_keys") {
		t.Errorf("got %+v", f)
	}
}

func TestOthers(t *testing.T) {
	s := newScene(t)
	s.lane(direct, each(2, 1), never)
	s.Last.Pairs[0].Limited = map[string]uint64{"challenge": 3, "exit-trouble": 1, "limited": 5, "capacity": 2}
	all := s.find(ExitTrouble, Challenged)
	number(t, all[1], "answers", 3)
}

func TestDestination(t *testing.T) {
	for _, tt := range []struct {
		destination string
		want        []Kind
	}{
		{"", []Kind{WrongLimit, WrongLimit, OwnRefusals}},
		{"a.example", []Kind{OwnRefusals, WrongLimit}},
		{directLane, []Kind{OwnRefusals, WrongLimit}},
		{"b.example", []Kind{WrongLimit}},
		{"c.example", []Kind{Unmeasured}},
	} {
		s := newScene(t)
		s.lane(direct, each(2, 1), each(5, 1))
		other := direct
		other.Destination = "b.example"
		s.lane(other, each(2, 1), each(5, 1))
		s.Last.Pairs[0].Refused = map[string]uint64{"max_wait": 1}
		s.Destination = tt.destination
		r := Analyse(&s.Snapshot)
		got := map[Kind]int{}
		for _, f := range r.Findings {
			got[f.Kind]++
		}
		for _, k := range tt.want {
			got[k]--
		}
		for k, n := range got {
			if n != 0 {
				t.Errorf("%q: got %+v, want %v (%s differs by %d)", tt.destination, r.Findings, tt.want, k, n)
			}
		}
	}
}

func TestMinutes(t *testing.T) {
	exits := func(back int, requests uint64) admin.Exits {
		return admin.Exits{From: noon.Add(-time.Duration(back) * time.Minute), To: noon, Pairs: []admin.Pair{
			{Destination: "a", Exit: "direct", Use: admin.Use{Requests: requests, TooMany: requests / 10}},
		}}
	}
	got := minutes([]admin.Exits{exits(1, 10), exits(2, 30), exits(2, 30), exits(3, 35)})
	want := []struct {
		from     int
		requests uint64
	}{{3, 5}, {2, 20}, {1, 10}}
	if len(got) != len(want) {
		t.Fatalf("got %+v, want three minutes", got)
	}
	for i, w := range want {
		from := noon.Add(-time.Duration(w.from) * time.Minute)
		if m := got[i]; !m.From.Equal(from) || !m.To.Equal(from.Add(time.Minute)) || m.Pairs[0].Requests != w.requests {
			t.Errorf("%d: got %+v, want %d requests from %v on", i, m, w.requests, from)
		}
	}
	if got := minutes(nil); len(got) != 0 {
		t.Errorf("got %v of nothing", got)
	}
}

func TestClients(t *testing.T) {
	var c Clients
	flow := func(cookie uint64, pid uint32, requests int, age float64) admin.Flow {
		return admin.Flow{Cookie: cookie, PID: pid, Requests: requests, Age: age, Lane: "l"}
	}
	c.Look(noon, []admin.Flow{flow(1, 1, 50, 30)})
	c.Look(noon.Add(time.Second), []admin.Flow{flow(1, 1, 53, 31), flow(2, 2, 0, 0.2)})
	c.Look(noon.Add(2*time.Second), []admin.Flow{flow(1, 1, 56, 32), flow(3, 2, 1, 0.2), flow(4, 3, 9, 60)})
	shares, total := c.of("l")
	// Six on the old connection since the first look; one for each new one; of
	// the one that is old and was not seen before nothing is known.
	if total != 8 || len(shares) != 2 || shares[0].PID != 1 || shares[0].requests != 6 || shares[1].requests != 2 || shares[1].part != 0.25 {
		t.Errorf("got %+v of %d", shares, total)
	}
	if shares, total := c.of("other"); shares != nil || total != 0 {
		t.Errorf("got %+v of %d for a lane without clients", shares, total)
	}
}

func TestRates(t *testing.T) {
	for _, tt := range []struct {
		perSecond  float64
		text, line string
	}{
		{2, "2/s", "2/s"}, {1.987, "1.99/s", "1.9/s"}, {0.5, "0.5/s", "30/min"}, {0.0123, "0.738/min", "44/h"},
		{123.4, "123/s", "120/s"}, {1.0 / 3600, "1/h", "1/h"}, {0, "0/h", "1/h"},
	} {
		if got := rateText(tt.perSecond); got != tt.text {
			t.Errorf("%v: got %s, want %s", tt.perSecond, got, tt.text)
		}
		if tt.perSecond > 0 {
			if got := lineRate(tt.perSecond); got != tt.line {
				t.Errorf("%v: got line %s, want %s", tt.perSecond, got, tt.line)
			}
		}
	}
}
