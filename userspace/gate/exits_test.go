// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
)

// proxied is a world where everything goes through a proxy.
func proxied(t *testing.T, budgets ...*policy.Budget) *world {
	t.Helper()
	w := newWorld(t, budgets...)
	w.engine.Swap(&policy.Policy{
		Budgets: budgets,
		Exits:   []policy.Exit{{Name: "gw", Proxy: &policy.Proxy{Host: "gw.test", First: 1, Last: 1}}},
	}, w.now)
	return w
}

// through sends a request for a path of a host through gw.
func (w *world) through(name, host, path string, a policy.Admission) *request {
	w.t.Helper()
	r := &request{name: name, lanes: w.lanesThrough(host, path, a)}
	return w.send(r)
}

func (w *world) lanesThrough(host, path string, a policy.Admission) []*policy.Lane {
	f := policy.Facts{Host: host, Path: path, Exit: "gw", Proxied: true, Dest: netip.AddrPortFrom(netip.Addr{}, 80)}
	if path != "" {
		f.Method = "GET"
	}
	return w.engine.Select(nil, &f, a, w.now)
}

// The lane for trouble of exits is closed by that, and by nothing else; and it
// says nothing of how long a budget of the file lets wait.
func TestTroubleLane(t *testing.T) {
	patient := budget("patient", perBoth, 0, "a.test")
	patient.Rate = policy.Rate{}
	patient.Queue = policy.Queue{Max: 5000, MaxWait: time.Hour}
	w := proxied(t, patient)
	trouble := func() *policy.Lane { return w.lane("exits/-/gw") }
	closed := func() time.Duration { return ledger.Time(trouble().Cell.OpenUntil.Load()).Sub(w.now) }

	unnamed := w.through("unnamed", "other.test", "/", policy.ForRequest)
	w.Done(&unnamed.Waiter, verdict.Verdict{Kind: verdict.Limited, Delay: sec, HasDelay: true}, 0, w.now)
	unnamed = w.through("unnamed", "other.test", "/", policy.ForRequest)
	w.Done(&unnamed.Waiter, verdict.Verdict{Kind: verdict.Capacity}, 0, w.now)
	if closed() > 0 {
		t.Fatalf("limits of a destination close the exit for %v", closed())
	}
	w.Trouble(w.lanesThrough("a.test", "/", policy.ForRequest), verdict.Verdict{Kind: verdict.ExitTrouble, Delay: 100 * sec, HasDelay: true}, 0, w.now)
	if closed() != 100*sec {
		t.Fatalf("trouble closes the exit for %v, want 100s", closed())
	}
	if l := w.lane("patient/a.test/gw"); w.now < ledger.Time(l.Cell.OpenUntil.Load()) {
		t.Error("trouble of the exit closes a lane of a destination")
	}
	if r := w.through("unnamed", "other.test", "/", policy.ForRequest); r.entered.State != Refused {
		t.Errorf("a request that nothing but the exit holds is %v, want refused: it would wait 100s", r.entered.State)
	}
	var held []*request
	for range 1500 {
		r := w.through("patient", "a.test", "/", policy.ForRequest)
		if r.entered.State != Queued {
			t.Fatalf("after %d a request of a patient budget is %v, want queued", len(held), r.entered.State)
		}
		held = append(held, r)
	}
	w.until(101 * sec)
	for i, r := range held {
		if r.notified != 1 || r.Outcome().State != Granted {
			t.Fatalf("request %d of %d: notified %d times, %v", i, len(held), r.notified, r.Outcome().State)
		}
	}
}

// A limit through a rotating exit closes only lanes that do not tell exits
// apart, and teaches only those.
func TestRotatingExit(t *testing.T) {
	both, all := budget("both", perBoth, ms, "a.test"), budget("all", perDest, ms, "a.test")
	for _, tc := range []struct {
		name    string
		budgets []*policy.Budget
		kind    verdict.Kind
		closed  []string
	}{
		{"limit", []*policy.Budget{both, all}, verdict.Limited, []string{"all/a.test/-"}},
		{"limit, by exit alone", []*policy.Budget{both}, verdict.Limited, nil},
		{"capacity", []*policy.Budget{both, all}, verdict.Capacity, []string{"all/a.test/-"}},
		{"trouble", []*policy.Budget{both, all}, verdict.ExitTrouble, []string{"exits/-/gw"}},
	} {
		w := proxied(t, tc.budgets...)
		r := w.send(&request{lanes: w.lanesThrough("a.test", "/", policy.ForRequest), Waiter: Waiter{Rotating: true}})
		w.Done(&r.Waiter, verdict.Verdict{Kind: tc.kind, Delay: sec, HasDelay: true, Quota: verdict.Quota{Remaining: 0, HasRemaining: true, Reset: sec, HasReset: true}}, 0, w.now)
		var closed []string
		for _, l := range w.engine.Lanes() {
			if l.Cell.OpenUntil.Load() > uint64(w.now) {
				closed = append(closed, l.ID())
			}
		}
		if !slices.Equal(closed, tc.closed) {
			t.Errorf("%s: closed are %v, want %v", tc.name, closed, tc.closed)
		}
	}
}

// TestJoin: the first request of a tunnel is reported with what the tunnel
// spent, and lanes that it does not fall into are left.
func TestJoin(t *testing.T) {
	all, api := budget("all", perBoth, sec, "a.test"), budget("api", perBoth, sec, "a.test")
	api.Match.Path = "/api/"
	host := budget("host", perDest, sec, "a.test")
	host.Concurrency = 3
	w := proxied(t, api, all, host)
	tunnel := w.through("tunnel", "a.test", "", policy.ForOpaque)
	if tunnel.entered.State != Granted || len(tunnel.lanes) != 3 {
		t.Fatalf("a tunnel is %v in %d lanes, want granted in 3", tunnel.entered.State, len(tunnel.lanes))
	}
	inFlight := func(want map[string]int64) {
		t.Helper()
		for _, l := range w.engine.Lanes() {
			if got := l.InFlight.Load(); got != want[l.ID()] {
				t.Errorf("lane %s: %d under way, want %d", l.ID(), got, want[l.ID()])
			}
		}
	}
	lanes := w.lanesThrough("a.test", "/api/x", policy.ForRequest)
	more := w.send(&request{name: "more", lanes: lanes[:1]})
	inFlight(map[string]int64{"all/a.test/gw": 1, "api/a.test/gw": 1, "host/a.test/-": 1, "exits/-/gw": 1})
	w.Join(&tunnel.Waiter, &more.Waiter, lanes)
	inFlight(map[string]int64{"api/a.test/gw": 1, "host/a.test/-": 1, "exits/-/gw": 1})
	w.Abort(&more.Waiter, true, w.now) // it has no say any more
	inFlight(map[string]int64{"api/a.test/gw": 1, "host/a.test/-": 1, "exits/-/gw": 1})
	w.Done(&tunnel.Waiter, verdict.Verdict{Kind: verdict.Limited, Delay: 5 * sec, HasDelay: true}, 0, w.now)
	inFlight(nil)
	for id, want := range map[string]bool{"api/a.test/gw": true, "all/a.test/gw": false, "host/a.test/-": false, "exits/-/gw": false} {
		if got := w.lane(id).Cell.OpenUntil.Load() > uint64(w.now); got != want {
			t.Errorf("lane %s is closed %v, want %v", id, got, want)
		}
	}
	w.Join(&tunnel.Waiter, nil, lanes) // there is nothing to join
	inFlight(nil)
}

// A tunnel that is the probe of a lane goes on to be it, unless its request
// does not fall into that lane.
func TestJoinKeepsTheProbe(t *testing.T) {
	for _, stays := range []bool{true, false} {
		w := proxied(t, budget("all", perBoth, ms, "a.test"))
		r := w.through("first", "a.test", "/", policy.ForRequest)
		w.Done(&r.Waiter, verdict.Verdict{Kind: verdict.Limited, Delay: sec, HasDelay: true}, 0, w.now)
		w.until(2 * sec)
		tunnel := w.through("tunnel", "a.test", "", policy.ForOpaque)
		lane := w.lane("all/a.test/gw")
		if !lane.Cell.Probing() {
			t.Fatal("the tunnel is no probe")
		}
		lanes := tunnel.lanes
		if !stays {
			lanes = w.lanesThrough("b.test", "/", policy.ForRequest)
		}
		w.Join(&tunnel.Waiter, nil, lanes)
		if lane.Cell.Probing() != stays {
			t.Errorf("stays %v: the lane waits for its probe %v", stays, lane.Cell.Probing())
		}
		w.Done(&tunnel.Waiter, verdict.Verdict{}, 0, w.now)
		if lane.Cell.Probing() || (lane.Cell.Flags.Load()&ledger.FlagHalf == 0) != stays {
			t.Errorf("stays %v: after a success the flags are %b", stays, lane.Cell.Flags.Load())
		}
	}
}
