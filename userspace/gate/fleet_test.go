// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/fleet"
	"github.com/egressd/egressd/policy/fleet/model"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/userspace/agenda"
)

// union is a fleet on explicit time: hosts, each a world, that share a store,
// with messages that take wire one way.
type union struct {
	t     testing.TB
	store model.Store
	hosts []*ally
	wire  time.Duration
	down  bool // the store answers nobody
	todo  agenda.Queue[func()]
	now   ledger.Time
	calls int
	sent  []ledger.Time
}

// ally is a host of a union. It implements policy.Fleeted.
type ally struct {
	*world
	union *union
	links map[*policy.Shared]*policy.Lane
}

func newUnion(t testing.TB, hosts int, budgets ...*policy.Budget) *union {
	t.Helper()
	u := &union{t: t, wire: 500 * time.Microsecond, now: t0}
	for _, b := range budgets {
		if b.Fleet == nil {
			b.Fleet = &policy.Fleet{Hosts: hosts}
		}
	}
	for i := range hosts {
		a := &ally{world: newWorld(t, budgets...), union: u, links: map[*policy.Shared]*policy.Lane{}}
		a.engine.Join(a, fmt.Sprint("host", i), t0)
		u.hosts = append(u.hosts, a)
	}
	u.store.Publish = func(lane string, answer fleet.Answer) {
		for _, a := range u.hosts {
			u.after(u.wire, func() {
				for s, l := range a.links {
					if l.ID() == lane {
						s.Heard(answer, u.now)
						a.Follow(l)
					}
				}
			})
		}
	}
	return u
}

func (u *union) after(d time.Duration, f func()) { u.todo.Push(u.now.Add(d), f) }

// Share implements policy.Fleeted.
func (a *ally) Share(l *policy.Lane, s *policy.Shared) (wake func(at ledger.Time)) {
	a.links[s] = l
	return func(at ledger.Time) { a.union.todo.Push(max(at, a.union.now), func() { a.ask(s, l) }) }
}

func (a *ally) Sleeps() uint64 { return 0 }

// ask makes the calls that are due.
func (a *ally) ask(s *policy.Shared, l *policy.Lane) {
	u := a.union
	if l.Shared() != s {
		return
	}
	for _, f := range s.Due(u.now) {
		u.calls++
		if u.down {
			u.after(s.Timeout(), func() { s.Failed(f, u.now); a.Follow(l) })
			continue
		}
		u.after(u.wire, func() {
			answer := u.store.Do(u.now, &f.Call)
			u.after(u.wire, func() { s.Answered(f, answer, u.now); a.Follow(l) })
		})
	}
}

// until moves time to +d: what is due happens, and alarms ring.
func (u *union) until(d time.Duration) {
	u.t.Helper()
	for end := t0.Add(d); ; {
		next := end
		if at, ok := u.todo.Next(); ok {
			next = min(next, at)
		}
		for _, a := range u.hosts {
			if a.alarm != 0 {
				next = min(next, max(a.alarm, u.now))
			}
		}
		u.now = next
		for _, a := range u.hosts {
			a.until(next.Sub(t0))
			if len(u.hosts) <= 3 {
				a.mustNotLeaveBehind()
			}
		}
		due := false
		for at, ok := u.todo.Next(); ok && at <= next; at, ok = u.todo.Next() {
			_, f := u.todo.Pop()
			f()
			due = true
		}
		if next >= end && !due {
			return
		}
	}
}

// hungry has a host keep n requests in its gate; each is answered soon after it
// went.
func (a *ally) hungry(n int) {
	for range n {
		a.another()
	}
}

func (a *ally) another() {
	u := a.union
	r := &request{name: "r", lanes: a.lanes("shop.example", "/", "direct"), world: a.world}
	went := func() {
		u.sent = append(u.sent, r.Dispatched())
		u.after(3*ms, func() { a.ok(r); a.another() })
	}
	r.Notify = func() {
		if r.Outcome().State == Granted {
			went()
		}
	}
	if a.Enter(&r.Waiter, r.lanes, u.now).State == Granted {
		went()
	}
}

// over is by how much what went exceeded burst + rate·τ in the worst window.
func over(sent []ledger.Time, l fleet.Limit) (worst float64) {
	slices.Sort(sent)
	var least float64 // of i - rate·t(i)
	for i, at := range sent {
		v := float64(i) - l.Rate()*at.Sub(t0).Seconds()
		if i == 0 || v < least {
			least = v
		}
		worst = max(worst, v-least+1-float64(l.Burst))
	}
	return worst
}

func TestFleetSharesABudget(t *testing.T) {
	for _, tc := range []struct {
		hosts    int
		interval time.Duration
		burst    float64
	}{{2, 200 * ms, 1}, {8, 50 * ms, 1}, {8, 50 * ms, 10}, {8, time.Second, 3}, {3, 2 * ms, 1}} {
		t.Run(fmt.Sprintf("%d hosts, one per %v, burst %v", tc.hosts, tc.interval, tc.burst), func(t *testing.T) {
			b := budget("shop", perBoth, tc.interval)
			b.Burst = tc.burst
			u := newUnion(t, tc.hosts, b)
			limit := b.FleetLimit()
			for _, a := range u.hosts {
				a.hungry(3)
			}
			u.until(60 * time.Second)
			most := fleet.Bound(limit, fleet.SchemeOf(limit), tc.hosts, fleet.Term)
			if worst := over(u.sent, limit); worst > most {
				t.Errorf("%.2f units beyond burst and rate, want %.2f at most", worst, most)
			}
			want := 60 * limit.Rate()
			if n := float64(len(u.sent)); n < 0.95*want {
				t.Errorf("%v requests went, of %v", n, want)
			}
			for i, a := range u.hosts {
				s := a.lane("shop/shop.example/direct").Shared().State(u.now)
				if s.Mode != fleet.Together || s.Hosts != tc.hosts {
					t.Errorf("host %d: %+v", i, s)
				}
			}
		})
	}
}

// A refusal closes the lane on all hosts within the time of two messages, and
// slows it for all of them.
func TestFleetCloses(t *testing.T) {
	b := budget("shop", perBoth, 50*ms)
	u := newUnion(t, 4, b)
	for _, a := range u.hosts {
		a.hungry(2)
	}
	u.until(5 * time.Second)
	a := u.hosts[0]
	l := a.lane("shop/shop.example/direct")
	probe := &request{name: "probe", lanes: []*policy.Lane{l}, world: a.world, Waiter: Waiter{Notify: func() {}}}
	if a.Enter(&probe.Waiter, probe.lanes, u.now); probe.Outcome().State == Queued {
		u.until(6 * time.Second)
	}
	if probe.Outcome().State != Granted {
		t.Fatal("the probe did not go")
	}
	a.limited(probe, 3*time.Second)
	at, known := u.now, u.now.Add(2*u.wire)
	u.until(at.Sub(t0) + 2500*ms)
	for i, a := range u.hosts {
		l := a.lane("shop/shop.example/direct")
		if open := ledger.Time(l.Cell.OpenUntil.Load()); open.Sub(at) < 3*time.Second || open.Sub(at) > 3*time.Second+10*ms {
			t.Errorf("host %d is closed for %v", i, open.Sub(at))
		}
		if closed, ok := l.Closed(); !ok || closed.Fleet != (i > 0) {
			t.Errorf("host %d: closed as %+v", i, closed)
		}
		if got := a.count(policy.EventPenalty); got != 1 {
			t.Errorf("host %d: %d events of a penalty, want 1", i, got)
		}
	}
	for _, sent := range u.sent {
		if sent > known && sent < at.Add(3*time.Second) {
			t.Errorf("a request went %v after the refusal", sent.Sub(at))
		}
	}
	u.until(at.Sub(t0) + 23*time.Second)
	after := 0
	for _, sent := range u.sent {
		if sent >= at.Add(3*time.Second) {
			after++
		}
	}
	if after < 180 || after > 395 {
		t.Errorf("%d requests in the 20 s after the cooldown: slowed by half, and then faster", after)
	}
}

// A store that is lost: a share of the rate goes on, or nothing, or all of it.
func TestFleetWithoutStore(t *testing.T) {
	for _, tc := range []struct {
		loss        fleet.Loss
		least, most float64 // of the rate, by all hosts
		mode        fleet.Mode
	}{
		{fleet.LossShare, 0.9, 1.1, fleet.Shared}, {fleet.LossClosed, 0, 0.02, fleet.Shut}, {fleet.LossOpen, 3.6, 4.1, fleet.Alone},
	} {
		t.Run(tc.loss.String(), func(t *testing.T) {
			b := budget("shop", perBoth, 50*ms)
			b.Fleet = &policy.Fleet{Loss: tc.loss, Hosts: 4}
			u := newUnion(t, 4, b)
			for _, a := range u.hosts {
				a.hungry(3)
			}
			u.until(10 * time.Second)
			u.down = true
			u.until(12 * time.Second)
			before := len(u.sent)
			u.until(32 * time.Second)
			part := float64(len(u.sent)-before) / 400
			if part < tc.least || part > tc.most {
				t.Errorf("%.3f of the rate without the store, want %v to %v", part, tc.least, tc.most)
			}
			l := u.hosts[0].lane("shop/shop.example/direct")
			if s := l.Shared().State(u.now); s.Mode != tc.mode {
				t.Errorf("mode %v, want %v", s.Mode, tc.mode)
			}
			u.down = false
			u.until(40 * time.Second)
			before = len(u.sent)
			u.until(50 * time.Second)
			if n := len(u.sent) - before; n < 190 || n > 205 {
				t.Errorf("%d requests in 10 s when the store was back", n)
			}
			if tc.loss == fleet.LossOpen {
				return
			}
			limit := b.FleetLimit()
			most := fleet.Bound(limit, fleet.Leases, 4, fleet.Term) + fleet.Outage(limit, 4)
			if worst := over(u.sent, limit); worst > most {
				t.Errorf("%.2f units beyond burst and rate, want %.2f at most", worst, most)
			}
		})
	}
}

// Who waits for a store that is lost, and may not go without it, is refused
// when its budget says, and nobody waits for ever.
func TestFleetRefusesInTime(t *testing.T) {
	b := budget("shop", perBoth, 50*ms)
	b.Fleet, b.Queue.MaxWait = &policy.Fleet{Loss: fleet.LossClosed}, 2*time.Second
	u := newUnion(t, 1, b)
	u.down = true
	a := u.hosts[0]
	r := a.enter("r", "shop.example", "direct")
	u.until(1900 * ms)
	a.mustBe(Queued, r)
	u.until(2600 * ms)
	a.mustBe(Refused, r)
	if waited := r.at.Sub(t0); waited > 2250*ms {
		t.Errorf("refused after %v", waited)
	}
	a.quiet()
}

// Units of the fleet are for who goes: what another lane holds up takes none,
// and what leaves gives them back.
func TestFleetUnitsComeBack(t *testing.T) {
	b := budget("shop", perBoth, 20*ms)
	own := budget("all", 0, 10*time.Second)
	u := newUnion(t, 1, b)
	w := newWorld(t, b, own)
	a := &ally{world: w, union: u, links: map[*policy.Shared]*policy.Lane{}}
	a.engine.Join(a, "host", t0)
	u.hosts = []*ally{a}
	first := a.enter("first", "shop.example", "direct")
	u.until(100 * ms)
	a.mustBe(Granted, first)
	second := a.enter("second", "shop.example", "direct")
	u.until(5 * time.Second)
	a.mustBe(Queued, second)
	if s := a.lane("shop/shop.example/direct").Shared().State(u.now); s.Stats.Granted > 2+s.Stats.Given+s.Stats.Expired {
		t.Errorf("granted for nobody: %+v", s)
	}
	if !a.Leave(&second.Waiter) {
		t.Fatal("second had been decided")
	}
	a.Abort(&first.Waiter, true, u.now)
	u.until(12 * time.Second)
	third := a.enter("third", "shop.example", "direct")
	u.until(13 * time.Second)
	a.mustBe(Granted, third)
}

// TestFleetLate has a request that is written too late: its unit is another's
// by then.
func TestFleetLate(t *testing.T) {
	for _, unit := range []policy.Unit{policy.Requests, policy.Connections} {
		b := budget("shop", perBoth, 20*ms)
		b.Unit = unit
		u := newUnion(t, 1, b)
		a := u.hosts[0]
		facts := policy.Facts{Host: "shop.example", Dest: netip.MustParseAddrPort("192.0.2.1:80")}
		r := &request{name: "r", world: a.world, lanes: a.engine.Select(nil, &facts, policy.ForOpaque, u.now), Waiter: Waiter{Notify: func() {}}}
		if len(r.lanes) != 1 {
			t.Fatalf("%d lanes", len(r.lanes))
		}
		a.Enter(&r.Waiter, r.lanes, u.now)
		u.until(100 * ms)
		if r.Outcome().State != Granted || a.Late(&r.Waiter, u.now) {
			t.Fatalf("unit %v: state %v, late %v", unit, r.Outcome().State, a.Late(&r.Waiter, u.now))
		}
		u.until(fleet.Term - 20*ms)
		if a.Late(&r.Waiter, u.now) {
			t.Errorf("unit %v: late within its term", unit)
		}
		u.until(fleet.Term + 20*ms)
		if late := a.Late(&r.Waiter, u.now); late != (unit == policy.Requests) {
			t.Errorf("unit %v: late = %v after its term", unit, late)
		}
		a.Abort(&r.Waiter, true, u.now)
	}
}

// What leaves with another request, from which it cannot be parted, is owed: the
// fleet does not send more by it.
func TestFleetOwes(t *testing.T) {
	b := budget("shop", perBoth, 100*ms)
	u := newUnion(t, 1, b)
	a := u.hosts[0]
	var waiters [5]Waiter
	for i := range waiters {
		a.Along(&waiters[i], a.lanes("shop.example", "/", "direct"), u.now)
		u.sent = append(u.sent, u.now)
	}
	a.hungry(2)
	u.until(5 * time.Second)
	if n := len(u.sent); n < 44 || n > 52 { // the cell is owed, too
		t.Errorf("%d requests in 5 s at 10/s, five of them at once", n)
	}
}

// TestFleetReload changes the rate of a shared budget, shares one that was not,
// and leaves the fleet.
func TestFleetReload(t *testing.T) {
	b := budget("shop", perBoth, 100*ms)
	u := newUnion(t, 2, b)
	count := func(from, to time.Duration) int {
		u.until(from)
		before := len(u.sent)
		u.until(to)
		return len(u.sent) - before
	}
	swap := func(interval time.Duration, f *policy.Fleet) {
		next := budget("shop", perBoth, interval)
		next.Fleet = f
		for _, a := range u.hosts {
			a.engine.Swap(&policy.Policy{Budgets: []*policy.Budget{next}}, u.now)
			a.Reconfigured()
		}
	}
	for _, a := range u.hosts {
		a.hungry(3)
	}
	if n := count(2*time.Second, 12*time.Second); n < 97 || n > 103 {
		t.Errorf("%d in 10 s at 10/s", n)
	}
	swap(50*ms, b.Fleet)
	if n := count(14*time.Second, 24*time.Second); n < 195 || n > 205 {
		t.Errorf("%d in 10 s at 20/s", n)
	}
	swap(50*ms, nil)
	if n := count(26*time.Second, 36*time.Second); n < 390 || n > 405 {
		t.Errorf("%d in 10 s at 20/s for each of two", n)
	}
	swap(50*ms, b.Fleet)
	if n := count(38*time.Second, 48*time.Second); n < 195 || n > 205 {
		t.Errorf("%d in 10 s at 20/s together again", n)
	}
}

// TestFleetChance lets everything happen: hosts of different hunger, stores that
// come and go, refusals.
func TestFleetChance(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 8))
		b := budget("shop", perBoth, time.Duration(1+rnd.IntN(200))*ms)
		b.Burst = float64(1 + rnd.IntN(5))
		b.Queue.MaxWait = time.Duration(1+rnd.IntN(20)) * time.Second
		hosts := 1 + rnd.IntN(5)
		u := newUnion(t, hosts, b)
		for _, a := range u.hosts {
			a.hungry(rnd.IntN(6))
		}
		outages := 0
		for at := time.Duration(0); at < time.Minute; {
			at += time.Duration(rnd.IntN(8000)) * ms
			u.until(at)
			if rnd.IntN(3) == 0 {
				u.down = !u.down
				if u.down {
					outages++
				}
			}
		}
		limit := b.FleetLimit()
		most := fleet.Bound(limit, fleet.SchemeOf(limit), hosts, fleet.Term) + float64(outages)*fleet.Outage(limit, hosts)
		if worst := over(u.sent, limit); worst > most {
			t.Errorf("seed %d: %.2f units beyond burst and rate, want %.2f at most", seed, worst, most)
		}
		u.down = false
		u.until(80 * time.Second)
		for _, a := range u.hosts {
			a.mustNotLeaveBehind()
		}
	}
}

// TestFleetIsFair has hosts want more than there is: who wants little gets that,
// and the others the rest in equal parts (max-min).
func TestFleetIsFair(t *testing.T) {
	b := budget("shop", perBoth, time.Second/120)
	b.Queue.MaxWait = time.Second
	u := newUnion(t, 4, b)
	const while = 30 * time.Second
	counts := make([]int, len(u.hosts))
	for i, every := range []time.Duration{time.Second / 1000, time.Second / 500, time.Second / 30, time.Second / 6} {
		a := u.hosts[i]
		var come func()
		come = func() {
			r := &request{name: "r", lanes: a.lanes("shop.example", "/", "direct"), world: a.world}
			r.Notify = func() {
				if r.Outcome().State == Granted {
					counts[i]++
					u.after(ms, func() { a.ok(r) })
				}
			}
			if a.Enter(&r.Waiter, r.lanes, u.now).State == Granted {
				r.Notify()
			}
			u.after(every, come)
		}
		u.after(every, come)
	}
	u.until(while)
	for i, want := range []float64{42, 42, 30, 6} { // of 120
		if got := float64(counts[i]) / while.Seconds(); got < 0.9*want || got > 1.1*want {
			t.Errorf("host %d got %.1f/s, want %v: %v", i, got, want, counts)
		}
	}
}
