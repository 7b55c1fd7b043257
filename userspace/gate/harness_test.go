// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
	"github.com/egressd/egressd/userspace/events"
)

const ms, sec = time.Millisecond, time.Second

// t0 is some instant; stories count from it.
const t0 = ledger.Time(1000 * time.Second)

// world is a gate on explicit time: its clock moves when the test says so, and
// its alarm rings on the way.
type world struct {
	*Gate
	t      testing.TB
	engine *policy.Engine
	log    *events.Log
	now    ledger.Time
	alarm  ledger.Time // 0: not set
	live   []*request
	queued []*request // some of which may be no more
	order  []*request // granted, in order
}

func (w *world) Set(at ledger.Time) { w.alarm = at }
func (w *world) Close() error       { return nil }

func newWorld(t testing.TB, budgets ...*policy.Budget) *world {
	t.Helper()
	w := &world{t: t, now: t0, log: events.New(0)}
	engine, err := policy.NewEngine(&policy.Policy{Budgets: budgets}, make([]ledger.Cell, 256), nil, t0)
	if err != nil {
		t.Fatal(err)
	}
	w.engine = engine
	w.Gate = New(Config{
		Now:    func() ledger.Time { return w.now },
		Events: w.log,
		Alarm:  func(func() ledger.Time, func()) (Alarm, error) { return w, nil },
	})
	return w
}

// budget is a complete budget of one unit per interval; change it at will.
func budget(name string, per policy.Per, interval time.Duration, hosts ...string) *policy.Budget {
	b := &policy.Budget{
		Name:     name,
		Match:    policy.Match{Ports: []uint16{80, 443}},
		Per:      per,
		Rate:     policy.Rate{Count: 1, Every: interval},
		Burst:    1,
		Queue:    policy.Queue{Max: 1000, MaxWait: time.Hour},
		Cooldown: policy.Cooldown{Default: sec, Max: 24 * time.Hour, Statuses: []int{429}},
		Recovery: policy.Recovery{Factor: 0.5, Step: 1.1},
	}
	for _, h := range hosts {
		b.Match.Hosts = append(b.Match.Hosts, policy.HostPattern{Name: h})
	}
	return b
}

const (
	perBoth = policy.PerDestination | policy.PerExit
	perDest = policy.PerDestination
	perExit = policy.PerExit
)

// request is a client of a world.
type request struct {
	Waiter
	name     string
	world    *world
	lanes    []*policy.Lane
	entered  Outcome
	notified int
	left     bool
	at       ledger.Time // when it was granted or refused
}

func (w *world) lanes(host, path, exit string) []*policy.Lane {
	return w.engine.Select(nil, &policy.Facts{
		Host: host, Path: path, Method: "GET", Exit: exit,
		Dest: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 1}), 80),
	}, policy.ForRequest, w.now)
}

func (w *world) lane(id string) *policy.Lane {
	w.t.Helper()
	l := w.engine.Find(id)
	if l == nil {
		w.t.Fatalf("no lane %q", id)
	}
	return l
}

// enter sends a request for host through exit into the gate.
func (w *world) enter(name, host, exit string) *request {
	w.t.Helper()
	return w.enterPath(name, host, "/", exit)
}

func (w *world) enterPath(name, host, path, exit string) *request {
	w.t.Helper()
	return w.send(&request{name: name, lanes: w.lanes(host, path, exit)})
}

// enterAs is enter for a client, by its cgroup.
func (w *world) enterAs(cgroup uint64, name, host, exit string) *request {
	w.t.Helper()
	return w.send(&request{name: name, lanes: w.lanes(host, "/", exit), Waiter: Waiter{Client: policy.Client{Cgroup: cgroup}}})
}

func (w *world) send(r *request) *request {
	w.t.Helper()
	r.world = w
	r.Notify = func() {
		r.notified++
		r.at = w.now
		if r.Outcome().State == Granted {
			w.order = append(w.order, r)
		}
	}
	w.live = append(w.live, r)
	r.entered = w.Enter(&r.Waiter, r.lanes, w.now)
	if r.entered.State != Queued {
		r.at = w.now
	} else {
		w.queued = append(w.queued, r)
	}
	if r.entered.State == Granted {
		w.order = append(w.order, r)
	}
	return r
}

// mustNotLeaveBehind fails if someone waits who could go: all its lanes have a unit,
// and nobody else keeps a turn in one of them. It also looks at the books.
func (w *world) mustNotLeaveBehind() {
	w.t.Helper()
	w.queued = slices.DeleteFunc(w.queued, func(r *request) bool { return r.phase != queued })
	for _, r := range w.queued {
		t := r.ticket
		ready := true
		for i := range t.spots[:t.n] {
			s := &t.spots[i]
			_, has := s.queue.peek(w.now)
			ready = ready && has && (s.queue.turn == nil || s.queue.turn == s)
			if s.inLine && i < t.stage && s.queue.turn != s {
				w.t.Fatalf("at +%v: %s passed line %d without its turn there", w.now.Sub(t0), r.name, i)
			}
			if s.keeps != (s.inLine && i == t.stage && i > 0 && !t.parked) {
				w.t.Fatalf("at +%v: %s: keeps = %v at %d, in line %v, stage %d, parked %v", w.now.Sub(t0), r.name, s.keeps, i, s.inLine, t.stage, t.parked)
			}
		}
		if ready {
			where := ""
			for i := range t.spots[:t.n] {
				q := t.spots[i].queue
				where += fmt.Sprintf("\n%s: in line %v of %d, looked at +%v, budget %+v, cell %+v", q.lane.ID(), t.spots[i].inLine, q.lined, q.at.Sub(t0), q.lane.Budget(), q.lane.Cell)
			}
			w.t.Fatalf("at +%v: %s is left behind at stage %d, parked %v, waited %v, patience %v, hold %v%s", w.now.Sub(t0), r.name, t.stage, t.parked, t.waited, t.patience, t.hold, where)
		}
		if t.deadline < w.now {
			w.t.Fatalf("at +%v: %s waits beyond its deadline", w.now.Sub(t0), r.name)
		}
	}
	for _, l := range w.engine.Lanes() {
		if waits, told := l.Waiting.Load() > 0, l.Cell.Flags.Load()&ledger.FlagQueued != 0; waits != told {
			w.t.Fatalf("at +%v: %s: somebody waits = %v, the kernel is told %v", w.now.Sub(t0), l.ID(), waits, told)
		}
		q, ok := l.Queue.(*queue)
		if !ok {
			continue
		}
		members, lined, used := 0, 0, 0
		for i, f := range q.slots {
			if f == nil {
				continue
			}
			used++
			members += f.members.n
			lined += f.line.n
			if f.slot != i || f.members.n == 0 && f.ring == nil || f.line.n > 0 && f.ring == nil {
				w.t.Fatalf("%s: bad flow %+v in slot %d", l.ID(), f, i)
			}
		}
		if int64(members) != l.Waiting.Load() || lined != q.lined || used != q.used || used > maxFlows {
			w.t.Fatalf("%s: %d members, %d lined, %d flows, want %d, %d, %d", l.ID(), members, lined, used, l.Waiting.Load(), q.lined, q.used)
		}
		if t := q.turn; t != nil && t.ticket.stage < t.i {
			w.t.Fatalf("%s: the turn is of one who waits at %d", l.ID(), t.ticket.stage)
		}
	}
}

// until moves the clock to +d; the alarm rings on time, on the way.
func (w *world) until(d time.Duration) {
	w.t.Helper()
	end := t0.Add(d)
	for n := 0; w.alarm != 0 && w.alarm <= end; n++ {
		if n > 1_000_000 {
			w.t.Fatal("the alarm rings without end")
		}
		w.now = max(w.now, w.alarm)
		w.alarm = 0
		w.tick()
	}
	w.now = max(w.now, end)
}

// state is where a request stands now.
func (r *request) state() State {
	if r.entered.State == Queued && r.notified == 0 {
		return Queued
	}
	return r.Outcome().State
}

// mustBe fails unless each request stands in that state, notified at most once.
func (w *world) mustBe(want State, rs ...*request) {
	w.t.Helper()
	for _, r := range rs {
		if got := r.state(); got != want {
			w.t.Fatalf("at +%v: %s is in state %d, want %d", w.now.Sub(t0), r.name, got, want)
		}
		if r.notified > 1 {
			w.t.Fatalf("%s was notified %d times", r.name, r.notified)
		}
	}
}

// mustGo fails unless r was granted at +d.
func (w *world) mustGo(d time.Duration, r *request) {
	w.t.Helper()
	w.mustBe(Granted, r)
	if r.at != t0.Add(d) || r.Dispatched() != r.at {
		w.t.Fatalf("%s went at +%v (ledger +%v), want +%v", r.name, r.at.Sub(t0), r.Dispatched().Sub(t0), d)
	}
}

func (w *world) ok(r *request) { w.Done(&r.Waiter, verdict.Verdict{}, 0, w.now) }

func (w *world) limited(r *request, delay time.Duration) {
	w.Done(&r.Waiter, verdict.Verdict{Kind: verdict.Limited, Delay: delay, HasDelay: delay > 0}, 0, w.now)
}

// quiet fails unless the gate is empty and at rest.
func (w *world) quiet() {
	w.t.Helper()
	for _, l := range w.engine.Lanes() {
		if n := l.Waiting.Load(); n != 0 {
			w.t.Errorf("%s: %d waiting in an empty gate", l.ID(), n)
		}
		if l.Cell.Flags.Load()&ledger.FlagQueued != 0 {
			w.t.Errorf("%s: the kernel is told that somebody waits in an empty gate", l.ID())
		}
		if n := l.Tally.Waiting.Load(); n != 0 {
			w.t.Errorf("%s: tally shows %d waiting in an empty gate", l.ID(), n)
		}
		if q, ok := l.Queue.(*queue); ok && (q.used != 0 || q.lined != 0 || q.fresh != ring{} || q.old != ring{} || q.due.n != 0 || q.due.head != nil ||
			q.keepers.n != 0 || q.keepers.head != nil || q.turn != nil || q.slot != -1 || q.dirty) {
			w.t.Errorf("%s: queue is not clean: %+v", l.ID(), q)
		}
	}
	if len(w.timers.heap) != 0 {
		w.t.Errorf("%d timers in an empty gate", len(w.timers.heap))
	}
}

// count gives the kinds of all events that were recorded.
func (w *world) count(kind policy.EventKind) (n int) {
	for _, ev := range w.log.Recent(1 << 20) {
		if ev.Kind == kind {
			n++
		}
	}
	return n
}
