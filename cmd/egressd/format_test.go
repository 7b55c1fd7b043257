// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/cmd/egressd/internal/guard"
	"github.com/egressd/egressd/loader"
)

func TestReport(t *testing.T) {
	failed := func(err error) error { return &failure{command: "run", err: err} }
	for _, tt := range []struct {
		name   string
		err    error
		status int
		want   string
	}{
		{"nothing", nil, 0, ""},
		{"the parser's", errors.New("unknown flag: --x"), 2, "egressd: unknown flag: --x; see egressd help\n"},
		{"usage", failed(usagef("no")), 2, "egressd: no; see egressd help\n"},
		{"failure", failed(errors.New("broken")), 1, "egressd: broken\n"},
		{"several mistakes", failed(errors.New("a:1: x\na:2: y")), 1, "egressd: a:1: x\negressd: a:2: y\n"},
		{"status alone", failed(&statusError{status: 42}), 42, ""},
		{"status and reason", failed(&statusError{status: 127, err: errors.New("run x: not found")}), 127, "egressd: run x: not found\n"},
		{"privileges", failed(fmt.Errorf("%w: missing CAP_BPF", loader.ErrPrivileges)), 1,
			"egressd: not enough privileges: missing CAP_BPF: sudo egressd run …\n"},
		{"busy", failed(fmt.Errorf("cgroup /x: %w", loader.ErrBusy)), 1,
			"egressd: cgroup /x: in use by another egressd; stop that one first, egressd status tells about it\n"},
		{"not running", failed(admin.ErrNotRunning), 1, "egressd: no egressd is running; start it with: sudo egressd run\n"},
		{"not allowed", failed(admin.ErrNotAllowed), 1,
			"egressd: only root and the daemon's own user may ask it; try: sudo egressd run\n"},
		{"address in use", failed(fmt.Errorf("listen: %w", unix.EADDRINUSE)), 1,
			"egressd: listen: address already in use; stop what uses it, or set another address in the policy file\n"},
		{"no remedy", failed(fs.ErrNotExist), 1, "egressd: file does not exist\n"},
	} {
		var out bytes.Buffer
		if got := report(&out, tt.err); got != tt.status || out.String() != tt.want {
			t.Errorf("%s: got status %d and %q, want %d and %q", tt.name, got, out.String(), tt.status, tt.want)
		}
	}
}

func TestLaneState(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 0, time.Local)
	lane := func(change func(*admin.Lane)) admin.Lane {
		l := admin.Lane{Mode: "enforce", Rate: 1, BaseRate: 1, Open: true}
		change(&l)
		return l
	}
	for _, tt := range []struct {
		lane admin.Lane
		want string
	}{
		{lane(func(*admin.Lane) {}), "open"},
		{lane(func(l *admin.Lane) { l.Mode = "shadow" }), "open (shadow)"},
		{lane(func(l *admin.Lane) { l.Rate = 0.5 }), "slowed from 1/s"},
		{lane(func(l *admin.Lane) { l.Rate, l.Probing = 0.5, true }), "one probe"},
		{lane(func(l *admin.Lane) { l.Open, l.ClosedFor, l.OpensAt, l.Reason = false, 3, &at, "limited, 3s as asked" }),
			"closed for 3s, until 03:04:05: limited, 3s as asked"},
		{lane(func(l *admin.Lane) { l.Fleet = &admin.Fleet{Scheme: "slots", Mode: "fleet", Hosts: 8, Bound: new(1.5)} }), "open, fleet of 8 by slots, bound +1.5"},
		{lane(func(l *admin.Lane) {
			l.Fleet = &admin.Fleet{Scheme: "leases", Mode: "share", Hosts: 8, Bound: new(8.0)}
		}),
			"open, fleet of 8 by leases, without its store: this host's share, bound +8"},
		{lane(func(l *admin.Lane) { l.Fleet = &admin.Fleet{Scheme: "leases", Mode: "open"} }), "open, fleet by leases, without its store: as if alone, no bound"},
		{lane(func(l *admin.Lane) { l.Fleet = &admin.Fleet{Scheme: "leases", Mode: "closed", Bound: new(0.0)} }), "open, fleet by leases, without its store: nothing goes, bound +0"},
	} {
		if got := laneState(tt.lane); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

func TestFormatRate(t *testing.T) {
	for _, tt := range []struct {
		perSecond float64
		want      string
	}{{1, "1/s"}, {0.5, "0.5/s"}, {0.0056, "0.336/min"}, {1.0 / 7200, "0.5/h"}, {250, "250/s"}, {1000, "1000/s"}, {12345.6, "12346/s"}, {1.0 / 3, "0.333/s"}, {0, "none"}} {
		if got := formatRate(tt.perSecond); got != tt.want {
			t.Errorf("%v: got %q, want %q", tt.perSecond, got, tt.want)
		}
	}
}

func TestAge(t *testing.T) {
	for _, tt := range []struct {
		d    time.Duration
		want string
	}{
		{0, "0s"},
		{1234 * time.Millisecond, "1.2s"},
		{9960 * time.Millisecond, "10s"},
		{61 * time.Second, "1m1s"},
		{time.Hour - time.Second, "59m59s"},
		{time.Hour - time.Millisecond, "1h0m"},
		{3*time.Hour + 25*time.Minute + 10*time.Second, "3h25m"},
		{100 * time.Hour, "4d"},
	} {
		if got := age(tt.d); got != tt.want {
			t.Errorf("%v: got %q, want %q", tt.d, got, tt.want)
		}
	}
}

func TestFormatStatus(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.Local)
	got := formatStatus(admin.Status{
		Version: "v1", PID: 7, Started: now.Add(-time.Minute),
		Config: admin.Config{File: "p.yml", Loaded: now.Add(-time.Minute), Error: "p.yml:1: x\np.yml:2: y", Budgets: []string{"a: …", "b: …"}},
		Kernel: &admin.Kernel{
			Cgroups: []string{"/"}, Attached: true,
			Canary:    admin.Canary{At: now.Add(-2 * time.Second), Error: "no"},
			Untouched: map[string]uint64{"netns": 2, "device": 1},
		},
		Lanes: 1, Flows: 2, Waiting: 3, Metrics: "127.0.0.1:9477",
		Exits: admin.Using{Seen: 5, Closed: 2, Lockstep: []string{"E-1", "E-2", "E-3", "E-4"}},
		Fleet: &admin.Member{Store: "redis://h:6379", Host: "crawler-1", Lanes: map[string]int{"share": 2, "fleet": 1}},
	}, now)
	want := `daemon    v1, pid 7, up 1m0s
policy    p.yml, in force since 2030-01-02 03:03:05
          LAST RELOAD FAILED, the old policy stays: p.yml:1: x
          LAST RELOAD FAILED, the old policy stays: p.yml:2: y
budgets   a: …
          b: …
programs  attached to /
canary    FAILED 2s ago: no
untouched 1 by gate device
          2 by gate netns
now       1 lanes, 2 connections, 3 requests waiting
exits     5 seen, 2 with a closed lane; clients in lockstep at E-1, E-2, E-3 and 1 more
fleet     redis://h:6379, as crawler-1: STORE LOST, lanes 1 by fleet, 2 by share
metrics   http://127.0.0.1:9477/metrics
`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestFormatEvent(t *testing.T) {
	at := time.Date(2030, 1, 2, 3, 4, 5, 678e6, time.Local)
	for _, tt := range []struct {
		ev   admin.Event
		want string
	}{
		{admin.Event{Time: at, Kind: "reload"}, "03:04:05.678 reload"},
		{admin.Event{Time: at, Kind: "penalty", Lane: "a/b/c", Wait: 3, Detail: "limited\x1b[2J"},
			"03:04:05.678 penalty       a/b/c 3s limited?[2J"},
		{admin.Event{Time: at, Kind: "cooldown", Lane: "a/b/c", Wait: 3, Extended: true, Suppressed: 7}, "03:04:05.678 cooldown+     a/b/c 3s (and 7 before)"},
		{admin.Event{Time: at, Kind: "ramp", Lane: "a/b/c", Rate: 0.123456}, "03:04:05.678 ramp          a/b/c 0.1235/s"},
		{admin.Event{Time: at, Kind: "untouched", Count: 3, Detail: "heartbeat"}, "03:04:05.678 untouched     3× heartbeat"},
	} {
		if got := formatEvent(tt.ev); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

func TestFormatSummary(t *testing.T) {
	s := summary{
		Command:  []string{"crawl"},
		Lanes:    []guard.Lane{{Lane: "store/store.example.com/direct", Requests: 10, Held: 9, Limited: 1, LongestWait: 3.04, MaxInAnySecond: 1}},
		PassedBy: map[string]uint64{"device": 1, "netns": 3},
		Left:     2,
	}
	want := `LANE                            REQUESTS  HELD  REFUSED  429S  LONGEST WAIT  MAX IN 1S
store/store.example.com/direct        10     9        0     1            3s          1
1 connection went untouched by gate device
3 connections went untouched by gate netns
2 processes of crawl go on in the background, from now on without a budget
`
	if got := s.format(0); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for line := range strings.Lines(s.format(80)) {
		if strings.HasPrefix(line, "LANE") && len(line) > 80-len("egressd: ")+1 {
			t.Errorf("got a line of %d characters on a terminal of 80: %q", len(line), line)
		}
	}
}
