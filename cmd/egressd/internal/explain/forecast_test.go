// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
	"github.com/egressd/egressd/userspace/gate"
)

// rig is the real engine and gate on a clock that the test moves.
type rig struct {
	t      *testing.T
	now    ledger.Time
	engine *policy.Engine
	gate   *gate.Gate
	flows  []admin.Flow
}

func newRig(t *testing.T, text string) *rig {
	t.Helper()
	r := &rig{t: t, now: ledger.Time(time.Hour)}
	var err error
	if r.engine, err = policy.NewEngine(mustParse(t, text), make([]ledger.Cell, 16), nil, r.now); err != nil {
		t.Fatal(err)
	}
	r.gate = gate.New(gate.Config{
		Now:   func() ledger.Time { return r.now },
		Alarm: func(func() ledger.Time, func()) (gate.Alarm, error) { return still{}, nil },
	})
	t.Cleanup(func() {
		if err := r.gate.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// still is an alarm that never rings.
type still struct{}

func (still) Set(ledger.Time) {}
func (still) Close() error    { return nil }

// enter sends one request of a process.
func (r *rig) enter(pid uint32) (*gate.Waiter, gate.Outcome) {
	r.t.Helper()
	w := &gate.Waiter{Notify: func() {}, Client: policy.Client{Process: pid}}
	lanes := r.engine.Select(nil, &policy.Facts{Host: "a.example", Dest: netip.MustParseAddrPort("192.0.2.1:80"), Method: "GET", Path: "/"}, policy.ForRequest, r.now)
	out := r.gate.Enter(w, lanes, r.now)
	if out.State == gate.Queued {
		r.flows = append(r.flows, admin.Flow{PID: pid, Command: fmt.Sprint("client", pid), State: "held", Lane: lanes[0].ID()})
	}
	return w, out
}

func (r *rig) explain() admin.Explanation {
	r.t.Helper()
	e, err := Explain(r.t.Context(), World{
		Policy: r.engine.Policy(),
		Live: &Live{
			Now: r.now, Lanes: r.engine.Lanes(),
			Show:  func(l *policy.Lane) admin.Lane { return admin.Lane{Lane: l.ID(), Waiting: l.Waiting.Load()} },
			Flows: func() []admin.Flow { return r.flows },
		},
	}, admin.Question{URL: "http://a.example/"})
	if err != nil {
		r.t.Fatal(err)
	}
	return e
}

// next asks and compares the outcome.
func (r *rig) next(want admin.Next) admin.Explanation {
	r.t.Helper()
	e := r.explain()
	if e.Next == nil || *e.Next != want {
		r.t.Errorf("got forecast %+v, want %+v", e.Next, want)
	}
	return e
}

const lane = "a/a.example/direct"

func TestForecast(t *testing.T) {
	r := newRig(t, `budgets: [{name: a, match: {hosts: [a.example]}, rate: 1/s, queue: {max: 10, max_wait: 3s}}]`)
	r.next(admin.Next{Outcome: admin.NextNow, Lane: lane})
	if n := len(r.engine.Lanes()); n != 0 {
		t.Fatalf("got %d lanes after a question, want none", n)
	}
	r.enter(1)
	r.next(admin.Next{Outcome: admin.NextWaits, Lane: lane, Wait: 1, MaxWait: 3})
	for range 2 {
		r.enter(7)
	}
	r.enter(8)
	r.flows = append(r.flows, admin.Flow{PID: 9, State: "idle", Lane: lane})
	e := r.next(admin.Next{Outcome: admin.NextRefused, Lane: lane, Wait: 4, MaxWait: 3, Reason: "max_wait"})
	if b := e.Budgets[0]; b.Ahead != 3 || len(b.Before) != 2 || b.Before[0] != (admin.Waiter{PID: 7, Command: "client7", Waiting: 2}) {
		t.Errorf("got %+v ahead", b)
	}
	// The gate says the same.
	if _, out := r.enter(5); out.State != gate.Refused || out.RetryAfter != 4*time.Second || out.Ahead != 3 {
		t.Errorf("the gate says %+v", out)
	}
	r.now = r.now.Add(500 * time.Millisecond)
	e = r.explain()
	if got, want := e.Next.Wait, 3.5; got != want {
		t.Errorf("0.5 s later: got %v s, want %v", got, want)
	}
	var out strings.Builder
	if err := Write(&out, &e, func(admin.Lane) string { return "open" }); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"MATCHES  a: lanes are told apart by destination, exit\n",
		"  allows   requests to a.example, ports 80/443: rate 1/s in all\n",
		"  ahead    3: client7 (pid 7) with 2, client8 (pid 8) with 1\n",
		"\nIt would be refused (max_wait), by lane a/a.example/direct: it would have to wait 3.5s, and may wait 3s.\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("got\n%s\nwant it to contain %q", out.String(), want)
		}
	}
}

func TestForecastOfFullQueue(t *testing.T) {
	r := newRig(t, `budgets: [{name: a, match: {hosts: [a.example]}, rate: 1/s, queue: {max: 2, max_wait: 1m}}]`)
	for range 3 {
		r.enter(1)
	}
	r.next(admin.Next{Outcome: admin.NextRefused, Lane: lane, Wait: 3, MaxWait: 60, Reason: "queue_full"})
	if _, out := r.enter(1); out.Reason != policy.RefusedQueueFull || out.RetryAfter != 3*time.Second {
		t.Errorf("the gate says %+v", out)
	}
}

func TestForecastOfTurns(t *testing.T) {
	r := newRig(t, `budgets: [{name: a, match: {hosts: [a.example]}, rate: 1/s, queue: {max: 9, fair_by: process}}]`)
	for range 6 {
		r.enter(1)
	}
	r.enter(2)
	e := r.explain()
	if b := e.Budgets[0]; b.Ahead != 2 || !b.AtMost {
		t.Errorf("got %d ahead, at most %v, want 2 at most: two clients wait", b.Ahead, b.AtMost)
	}
}

func TestForecastAfterLimit(t *testing.T) {
	r := newRig(t, `budgets: [{name: a, match: {hosts: [a.example]}, rate: 1/s, cooldown: {spread: 0%}}]`)
	w, _ := r.enter(1)
	r.gate.Done(w, verdict.Verdict{Kind: verdict.Limited, Delay: 10 * time.Second, HasDelay: true}, 0, r.now)
	e := r.explain()
	if e.Next.Outcome != admin.NextWaits || e.Next.Wait < 10 {
		t.Errorf("got %+v, want a wait of 10 s at least", e.Next)
	}
	// The probe is out: only its answer says how it goes on.
	r.now = r.now.Add(30 * time.Second)
	if _, out := r.enter(1); out.State != gate.Granted {
		t.Fatalf("the probe: got %+v", out)
	}
	e = r.explain()
	if !e.Next.AtLeast || e.Next.Outcome != admin.NextWaits || e.Budgets[0].Answer != "its probe" {
		t.Errorf("got %+v of %+v, want it to wait for the probe", e.Next, e.Budgets[0])
	}
}

func TestForecastWithoutHold(t *testing.T) {
	r := newRig(t, `budgets: [{name: a, match: {hosts: [a.example]}, rate: 1/h, mode: shadow}]`)
	r.enter(1)
	r.enter(1)
	r.next(admin.Next{Outcome: admin.NextUnlimited})
	r = newRig(t, `budgets: [{name: a, match: {hosts: [a.example], ports: [81]}, rate: 1/h}]`)
	r.next(admin.Next{Outcome: admin.NextUntouched})
}
