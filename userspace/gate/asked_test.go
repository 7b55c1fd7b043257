// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
	"github.com/egressd/egressd/userspace/events"
)

// TestAsked holds what is told of single requests, in a lane that only measures
// and has no other event of a limit.
func TestAsked(t *testing.T) {
	now := ledger.Time(time.Hour)
	budget := &policy.Budget{Name: "look", Rate: policy.Rate{Count: 1, Every: time.Second}, Burst: 1, Mode: policy.Shadow}
	engine, err := policy.NewEngine(&policy.Policy{Budgets: []*policy.Budget{budget}}, make([]ledger.Cell, 8), nil, now)
	if err != nil {
		t.Fatal(err)
	}
	log := events.New(0)
	g := New(Config{Now: func() ledger.Time { return now }, Events: log})
	defer g.Close()
	lanes := engine.Select(nil, &policy.Facts{Host: "a.example", Method: "GET", Path: "/"}, policy.ForRequest, now)
	limit := verdict.Verdict{
		Kind: verdict.Limited, Delay: 3 * time.Second, HasDelay: true,
		Quota: verdict.Quota{Limit: 30, HasLimit: true, Window: time.Minute},
	}
	send := func(v verdict.Verdict) {
		w := &Waiter{Notify: func() {}, Client: policy.Client{Process: 7}, Job: 99}
		if out := g.Enter(w, lanes, now); out.State != Granted {
			t.Fatalf("got %+v, want it to go", out)
		}
		g.Done(w, v, 0, now)
	}
	send(limit) // nobody listens
	_, sub := log.Subscribe(0, events.Options{Dispatches: true})
	send(limit)
	send(verdict.Verdict{})
	send(verdict.Verdict{Kind: verdict.Error})
	g.Heard(lanes, false, verdict.Verdict{Kind: verdict.Challenge}, 0, now)
	sub.Close()
	id := lanes[0].ID()
	dispatch := policy.Event{At: now, Kind: policy.EventDispatch, Lane: id, Process: 7, Job: 99}
	want := []policy.Event{
		dispatch,
		{At: now, Kind: policy.EventAsked, Lane: id, Wait: 3 * time.Second, Detail: "limited", Process: 7, Job: 99, Told: 0.5},
		dispatch, dispatch,
		{At: now, Kind: policy.EventAsked, Lane: id, Detail: "challenge"},
	}
	var got []policy.Event
	for ev := range sub.C {
		got = append(got, ev)
	}
	if len(got) != len(want) {
		t.Fatalf("got %+v, want %+v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%d: got %+v, want %+v", i, got[i], want[i])
		}
	}
	if n := len(log.Recent(100)); n != 0 {
		t.Errorf("got %d events remembered, want none", n)
	}
}

func TestTold(t *testing.T) {
	for _, tt := range []struct {
		q    verdict.Quota
		want float64
	}{
		{verdict.Quota{}, 0},
		{verdict.Quota{PerSecond: 2}, 2},
		{verdict.Quota{Limit: 60, HasLimit: true}, 0}, // in how long?
		{verdict.Quota{Limit: 60, HasLimit: true, Window: time.Minute}, 1},
		{verdict.Quota{Limit: 60, HasLimit: true, Window: time.Minute, PerSecond: 0.5}, 0.5},
		{verdict.Quota{Limit: 60, HasLimit: true, Window: time.Minute, Other: true}, 0},
		{verdict.Quota{HasLimit: true, Window: time.Minute}, 0},
	} {
		if got := told(&tt.q); got != tt.want {
			t.Errorf("%+v: got %v, want %v", tt.q, got, tt.want)
		}
	}
}
