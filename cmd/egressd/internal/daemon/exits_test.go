// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/cmd/egressd/internal/history"
	"github.com/egressd/egressd/metrics"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/userspace/events"
)

// boot is long enough after it that nothing in the past is before it.
const boot = ledger.Time(1e15)

// engine is one with a budget for a name, through any exit.
func engine(t *testing.T) *policy.Engine {
	t.Helper()
	e, err := policy.NewEngine(&policy.Policy{
		Exits: []policy.Exit{{Name: "E-017", Price: 4}},
		Budgets: []*policy.Budget{{
			Name:  "store",
			Match: policy.Match{Hosts: []policy.HostPattern{{Name: "store.example.com"}}, Ports: []uint16{80}},
			Per:   policy.PerDestination | policy.PerExit,
			Rate:  policy.Rate{Count: 1, Every: time.Second}, Burst: 1,
		}},
	}, make([]ledger.Cell, 16), nil, boot)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func lane(e *policy.Engine, exit string) *policy.Lane {
	f := policy.Facts{Host: "store.example.com", Dest: netip.MustParseAddrPort("192.0.2.1:80"), Method: "GET", Path: "/", Exit: exit}
	return e.Select(nil, &f, policy.ForRequest, boot)[0]
}

func TestExitsOverTime(t *testing.T) {
	e := engine(t)
	abc, direct := lane(e, "E-017/abc"), lane(e, policy.DirectExit)
	var connections uint64
	now := func() map[history.Key]history.Counters {
		return counters(e.Tallies(), []metrics.Connections{{
			Destination: "store.example.com", Exit: policy.DirectExit,
			Outcomes: []metrics.Count{{Label: "redirected", N: connections}, {Label: "untouched", N: 1}, {Label: "held", N: 9}, {Label: "refused", N: 0}},
		}})
	}
	start := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	h := history.New(start)
	answer := func(l *policy.Lane, code int, sent, received uint64) {
		l.Tally.CountCode(code)
		l.Tally.AddExchange(policy.OutcomeOf(0, code), sent, received)
		l.Meter.Count(boot)
	}
	answer(abc, 200, 100, 1e9)
	connections = 3
	h.Record(start.Add(time.Minute), now())
	answer(abc, 429, 1e9, 0)
	answer(abc, 200, 0, 1e9)
	abc.Tally.CountRefused(policy.RefusedMaxWait)
	answer(direct, 302, 7, 8)
	h.Record(start.Add(2*time.Minute), now())
	abc.Cell.Close(boot.Add(time.Minute))

	moved := func(of map[policy.Outcome]admin.Traffic) map[string]admin.Traffic {
		out := map[string]admin.Traffic{}
		for _, o := range policy.Outcomes() {
			out[o.String()] = of[o]
		}
		return out
	}
	use := func(u admin.Use, of map[policy.Outcome]admin.Traffic) admin.Use {
		u.Outcomes = moved(of)
		u.Estimate()
		return u
	}
	priced := admin.Use{Requests: 2, TooMany: 1, Refused: 1, Price: 4}
	lastMinute := use(priced, map[policy.Outcome]admin.Traffic{policy.Useful: {Exchanges: 1, Received: 1e9}, policy.Blocked: {Exchanges: 1, Sent: 1e9}})
	priced.Requests = 3
	all := use(priced, map[policy.Outcome]admin.Traffic{policy.Useful: {Exchanges: 2, Sent: 100, Received: 2e9}, policy.Blocked: {Exchanges: 1, Sent: 1e9}})
	redirect := map[policy.Outcome]admin.Traffic{policy.Redirect: {Exchanges: 1, Sent: 7, Received: 8}}
	if got := *lastMinute.Cost; got != 8 {
		t.Errorf("the last minute is said to cost %v, want 8", got)
	}
	if got := *lastMinute.Waste; got != 0.5 {
		t.Errorf("the last minute's waste is %v, want 0.5", got)
	}
	for _, tt := range []struct {
		name        string
		since       time.Duration
		abc, direct admin.Use
	}{
		{"all of it", 0, all, use(admin.Use{Requests: 1, Connections: admin.Connections{Redirected: 3, Untouched: 1}}, redirect)},
		{"the last minute", time.Minute, lastMinute, use(admin.Use{Requests: 1}, redirect)},
	} {
		grown := now()
		if tt.since > 0 {
			_, grown = h.Since(start.Add(2*time.Minute+time.Second), tt.since, grown)
		}
		gotExits, gotPairs := exits(grown, e.Meters(), e.Lanes(), e.Policy().Price, boot.Add(2*time.Second))
		wantPairs := []admin.Pair{
			{Destination: "store.example.com", Exit: "E-017/abc", Use: tt.abc},
			{Destination: "store.example.com", Exit: policy.DirectExit, Use: tt.direct},
		}
		if !reflect.DeepEqual(gotPairs, wantPairs) {
			t.Errorf("%s: got pairs\n%+v\nwant\n%+v", tt.name, gotPairs, wantPairs)
		}
		wantExits := []admin.Exit{
			{Exit: "E-017/abc", Use: tt.abc, PerSecond: 0.3, Closed: 1, ClosedFor: 58},
			{Exit: policy.DirectExit, Use: tt.direct, PerSecond: 0.1},
		}
		if !reflect.DeepEqual(gotExits, wantExits) {
			t.Errorf("%s: got exits\n%+v\nwant\n%+v", tt.name, gotExits, wantExits)
		}
	}
}

// TestExitsWithoutNews holds that what did nothing has no row, unless it is
// closed.
func TestExitsWithoutNews(t *testing.T) {
	e := engine(t)
	lane(e, "E-017/idle")
	lane(e, "E-017/closed").Cell.Close(boot.Add(time.Hour))
	got, pairs := exits(counters(e.Tallies(), nil), e.Meters(), e.Lanes(), e.Policy().Price, boot)
	if len(got) != 1 || got[0].Exit != "E-017/closed" || got[0].Closed != 1 || got[0].Waste != nil {
		t.Errorf("got exits %+v, want the closed one", got)
	}
	if pairs == nil || len(pairs) != 0 {
		t.Errorf("got pairs %#v, want an empty list", pairs)
	}
}

func TestUsing(t *testing.T) {
	e := engine(t)
	lane(e, "E-017/idle")
	crowd := lane(e, "E-017/crowd")
	crowd.Cell.Close(boot.Add(time.Hour))
	now := boot
	for i := range 200 {
		now = boot.Add(time.Duration(i) * time.Second)
		if i%4 == 0 {
			for range 50 {
				crowd.Meter.Count(now)
			}
		}
	}
	if got, want := using(e.Meters(), e.Lanes(), now), (admin.Using{Seen: 1, Closed: 1}); !reflect.DeepEqual(got, want) {
		t.Errorf("before a delay was asked: got %+v, want %+v", got, want)
	}
	crowd.Meter.NoteDelay(4 * time.Second)
	if got, want := using(e.Meters(), e.Lanes(), now), (admin.Using{Seen: 1, Closed: 1, Lockstep: []string{"E-017/crowd"}}); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestMismatchesAreCounted(t *testing.T) {
	d := &Daemon{events: events.New(0)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.countMismatches(ctx) }()
	// The subscription begins at some time: emit until it is there.
	for end := time.Now().Add(10 * time.Second); d.mismatches.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("nothing was counted")
		}
		d.events.Emit(policy.Event{Kind: policy.EventExitMismatch})
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	before := d.mismatches.Load()
	d.events = events.New(0)
	d.events.Emit(policy.Event{Kind: policy.EventExitMismatch}) // before anyone listens
	go func() { done <- d.countMismatches(t.Context()) }()
	d.events.Emit(policy.Event{Kind: policy.EventUnreachable})
	d.events.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if got := d.mismatches.Load(); got != before {
		t.Errorf("%d were counted where there was none", got-before)
	}
}
