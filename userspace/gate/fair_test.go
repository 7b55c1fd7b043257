// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/verdict"
)

// fair is a budget whose queue tells cgroups apart.
func fair(name string, per policy.Per, interval time.Duration) *policy.Budget {
	b := budget(name, per, interval)
	b.Queue.FairBy = policy.FairCgroup
	return b
}

// names are those that went, in order.
func (w *world) names() (names []string) {
	for _, r := range w.order {
		names = append(names, r.name)
	}
	return names
}

func (w *world) mustGoInOrder(want ...string) {
	w.t.Helper()
	if got := w.names(); fmt.Sprint(got) != fmt.Sprint(want) {
		w.t.Errorf("order\n got %v\nwant %v", got, want)
	}
}

func TestClientsTakeTurns(t *testing.T) {
	w := newWorld(t, fair("b", perBoth, sec))
	for i := range 6 {
		w.enterAs(1, fmt.Sprint("a", i), "h", "direct")
	}
	for i := range 3 {
		w.enterAs(2, fmt.Sprint("b", i), "h", "direct")
	}
	w.until(4 * sec)
	w.enterAs(3, "c0", "h", "direct") // anew: goes once before the others
	w.enterAs(3, "c1", "h", "direct")
	w.until(time.Minute)
	w.mustGoInOrder("a0", "a1", "b0", "a2", "b1", "c0", "a3", "c1", "b2", "a4", "a5")
	w.quiet()
}

func TestWhoIsAClient(t *testing.T) {
	for _, tt := range []struct {
		by   policy.FairBy
		want []string
	}{
		{policy.FairNone, []string{"x", "p1c1u1", "p2c1u1", "p1c2u1", "p2c2u2"}},
		{policy.FairProcess, []string{"x", "p1c1u1", "p2c1u1", "p1c2u1", "p2c2u2"}},
		{policy.FairCgroup, []string{"x", "p1c1u1", "p1c2u1", "p2c1u1", "p2c2u2"}},
		{policy.FairUID, []string{"x", "p1c1u1", "p2c2u2", "p2c1u1", "p1c2u1"}},
	} {
		b := budget("b", perBoth, sec)
		b.Queue.FairBy = tt.by
		w := newWorld(t, b)
		for _, c := range []struct {
			name   string
			client policy.Client
		}{
			{"x", policy.Client{Process: 9, Cgroup: 9, UID: 9}},
			{"p1c1u1", policy.Client{Process: 1, Cgroup: 1, UID: 1}},
			{"p2c1u1", policy.Client{Process: 2, Cgroup: 1, UID: 1}},
			{"p1c2u1", policy.Client{Process: 1, Cgroup: 2, UID: 1}},
			{"p2c2u2", policy.Client{Process: 2, Cgroup: 2, UID: 2}},
		} {
			w.send(&request{name: c.name, lanes: w.lanes("h", "/", "direct"), Waiter: Waiter{Client: c.client}})
		}
		w.until(time.Minute)
		w.mustGoInOrder(tt.want...)
		w.quiet()
	}
}

// A thousand against one: under backlog they get the same.
func TestOneAgainstAThousand(t *testing.T) {
	b := fair("b", perBoth, 10*ms)
	b.Queue.Max = 2000
	w := newWorld(t, b)
	for range 1000 {
		w.enterAs(1, "crowd", "h", "direct")
	}
	one := w.enterAs(2, "one", "h", "direct")
	count := map[string]int{}
	seen := 0
	for at := time.Duration(0); at < 5*sec; at += 5 * ms {
		w.until(at)
		if one.state() == Granted {
			one = w.enterAs(2, "one", "h", "direct")
		}
		for ; seen < len(w.order); seen++ {
			r := w.order[seen]
			count[r.name]++
			w.ok(r)
			if r.name == "crowd" {
				w.enterAs(1, "crowd", "h", "direct")
			}
		}
	}
	if d := count["crowd"] - count["one"]; d < -2 || d > 2 || count["one"] < 249 {
		t.Errorf("granted %v, want 1 to 1", count)
	}
}

// Whoever comes again the instant that it went has no priority by that.
func TestIdleForAnInstant(t *testing.T) {
	w := newWorld(t, fair("b", perBoth, sec))
	for i := range 20 {
		w.enterAs(1, fmt.Sprint("a", i), "h", "direct")
		w.enterAs(2, fmt.Sprint("b", i), "h", "direct")
	}
	sly := w.enterAs(3, "sly", "h", "direct")
	n, seen := 0, 0
	for at := range 31 {
		w.until(time.Duration(at) * sec)
		for ; seen < len(w.order); seen++ {
			if w.order[seen] == sly {
				n++
				sly = w.enterAs(3, "sly", "h", "direct")
			}
		}
	}
	if n < 9 || n > 11 {
		t.Errorf("went %d times of 31 beside two others, want a third", n)
	}
}

// The queue is full of one client: others get in, at its cost, until all have
// the same.
func TestFullQueueIsShared(t *testing.T) {
	b := fair("b", perBoth, sec)
	b.Queue.Max = 6
	w := newWorld(t, b)
	var crowd []*request
	for i := range 7 {
		crowd = append(crowd, w.enterAs(1, fmt.Sprint("crowd", i), "h", "direct"))
	}
	w.mustBe(Refused, w.enterAs(1, "more", "h", "direct"))
	w.mustBe(Queued, w.enterAs(2, "b0", "h", "direct"))
	w.mustBe(Refused, crowd[6])
	if out := crowd[6].Outcome(); out.Reason != policy.RefusedQueueFull || out.Ahead != 5 || out.RetryAfter != 6*sec || crowd[6].notified != 1 {
		t.Errorf("outcome = %+v after %d notifications, want queue_full with 5 ahead, after 6s", out, crowd[6].notified)
	}
	w.mustBe(Queued, w.enterAs(2, "b1", "h", "direct"), w.enterAs(3, "c0", "h", "direct"))
	w.mustBe(Refused, crowd[5], crowd[4])
	w.mustBe(Queued, crowd[1], crowd[2], crowd[3])
	last := w.enterAs(2, "b2", "h", "direct")
	w.mustBe(Refused, last) // it has 2, the longest has 3: nothing to share
	if out := last.entered; out.Reason != policy.RefusedQueueFull || out.Ahead != 6 {
		t.Errorf("outcome = %+v, want queue_full with 6 ahead", out)
	}
	w.until(time.Minute)
	w.mustGoInOrder("crowd0", "crowd1", "b0", "c0", "crowd2", "b1", "crowd3")
	w.quiet()
}

// Without fairness, nobody makes room.
func TestFullQueueWithoutFairness(t *testing.T) {
	b := budget("b", perBoth, sec)
	b.Queue.Max = 3
	w := newWorld(t, b)
	for range 4 {
		w.enterAs(1, "crowd", "h", "direct")
	}
	w.mustBe(Refused, w.enterAs(2, "other", "h", "direct"))
}

// Two queues are full: one refusal makes room in both, or in each.
func TestRoomInSeveralLanes(t *testing.T) {
	dest, all := fair("dest", perDest, sec), fair("all", 0, sec)
	dest.Queue.Max, all.Queue.Max = 3, 4
	w := newWorld(t, dest, all)
	first := w.enterAs(1, "first", "a", "direct")
	var crowd []*request
	for i := range 3 {
		crowd = append(crowd, w.enterAs(1, fmt.Sprint("a", i), "a", "direct"))
	}
	b := w.enterAs(1, "b0", "b", "direct")
	w.mustBe(Granted, first)
	w.mustBe(Queued, append(crowd, b)...)
	// For all, the newest of client 1 is b0; at a, it is a2.
	w.mustBe(Queued, w.enterAs(2, "other", "a", "direct"))
	w.mustBe(Refused, crowd[2])
	w.mustBe(Queued, crowd[0], crowd[1], b)
	w.until(time.Minute)
	w.mustGoInOrder("first", "b0", "a0", "other", "a1")
	w.quiet()
}

// More clients than flows: everybody shares, nobody floods everybody.
func TestMoreClientsThanFlows(t *testing.T) {
	b := fair("b", perBoth, sec)
	b.Queue.Max = 10_000
	w := newWorld(t, b)
	w.enterAs(0, "first", "h", "direct")
	for i := range uint64(maxFlows) {
		w.enterAs(100+i, "one", "h", "direct")
	}
	q := w.lane("b/h/direct").Queue.(*queue)
	if q.used != maxFlows {
		t.Fatalf("%d flows, want %d", q.used, maxFlows)
	}
	for range 500 {
		w.enterAs(9999, "flood", "h", "direct")
	}
	w.mustNotLeaveBehind()
	long := 0
	for _, f := range q.slots {
		if f.members.n > 2 {
			long++
		}
	}
	if long > handSize || q.used != maxFlows {
		t.Errorf("a flood fills %d of %d flows, want at most its hand of %d", long, q.used, handSize)
	}
	var late []*request
	for i := range uint64(100) {
		late = append(late, w.enterAs(5000+i, "late", "h", "direct"))
	}
	// Everybody else is through within a few rounds; the flood is not.
	w.until(5 * maxFlows * sec)
	w.mustBe(Granted, late...)
	w.mustBe(Queued, w.live[maxFlows+500])
	w.until(time.Hour - 1)
	w.quiet()
}

// A hand has eight different cards, and two clients seldom the same.
func TestHands(t *testing.T) {
	q := flows{pool: &pool{}}
	for key := range uint64(maxFlows) {
		q.open(1_000_000 + key)
	}
	used := map[int]int{}
	for key := range uint64(2000) {
		hand := map[int]bool{}
		for range handSize {
			f := q.shortest(key)
			hand[f.slot] = true
			f.members.n += 10 // so that the next is another
		}
		if len(hand) != handSize {
			t.Fatalf("client %d has %d flows, want %d", key, len(hand), handSize)
		}
		for slot := range hand {
			used[slot]++
			q.slots[slot].members.n = 0
		}
	}
	for slot := range maxFlows { // 250 on average, with a deviation of 15
		if used[slot] < 150 || used[slot] > 350 {
			t.Errorf("flow %d is in %d hands of 2000, want about 250", slot, used[slot])
		}
	}
}

// Deficit round robin on two lists: two flows that always wait get the same
// within 2 costs and a quantum, whatever others do and whatever the answers
// told of costs; and to ask who is first never changes who is.
func TestRoundRobinBound(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 2))
		q := flows{pool: &pool{}}
		quantum := int64(1 + r.IntN(4))
		highest := quantum * int64(1+r.IntN(50))
		tickets := uint64(0)
		enter := func(key uint64) {
			tickets++
			s := &spot{ticket: &ticket{seq: tickets}}
			q.enroll(s, key)
			q.stand(s, quantum)
		}
		const steady = 4
		served := map[uint64]int64{}
		for key := range uint64(steady) {
			enter(key)
			enter(key)
		}
		base := map[uint64]int64{}
		for n := range 5000 {
			if r.IntN(3) == 0 {
				enter(steady + r.Uint64N(20))
			}
			s := q.first(quantum)
			for range 3 {
				if again := q.first(quantum); again != s {
					t.Fatal("to ask twice gives two answers")
				}
			}
			f := s.flow
			key := f.key
			cost := 1 + r.Int64N(highest)
			f.charge(quantum, quantum)
			served[key] += cost
			q.step(s)
			q.strike(s)
			if g := q.find(key); g != nil {
				g.charge(cost-quantum, quantum) // the answer tells what it did cost
			}
			if key < steady {
				enter(key)
			}
			if n == 100 {
				for key := range uint64(steady) {
					base[key] = served[key]
				}
			}
			if n < 100 {
				continue
			}
			for a := range uint64(steady) {
				for b := range a {
					if d := (served[a] - base[a]) - (served[b] - base[b]); max(d, -d) > 2*(2*highest+quantum) {
						t.Fatalf("seed %d, step %d: %d against %d units, costs to %d, quantum %d", seed, n, served[a]-base[a], served[b]-base[b], highest, quantum)
					}
				}
			}
		}
	}
}

// Costs that only the answers tell count for fairness: who asks for expensive
// things gets fewer of them.
func TestCostIsCharged(t *testing.T) {
	b := fair("b", perBoth, sec)
	b.Burst = 50
	b.Cost.Header = "x-cost"
	w := newWorld(t, b)
	for range 50 {
		w.enterAs(9, "first", "h", "direct")
	}
	for range 30 {
		w.enterAs(1, "dear", "h", "direct")
		w.enterAs(2, "cheap", "h", "direct")
	}
	count := map[string]uint64{}
	for seen := 50; count["dear"]+count["cheap"] < 60; {
		w.until(w.now.Sub(t0) + sec)
		for ; seen < len(w.order); seen++ {
			r := w.order[seen]
			cost := uint64(1)
			if r.name == "dear" {
				cost = 5
			}
			count[r.name] += cost
			w.Done(&r.Waiter, verdict.Verdict{Cost: cost, HasCost: true}, 0, w.now)
		}
	}
	if d, c := count["dear"], count["cheap"]; d > c+11 || c > d+11 {
		t.Errorf("units granted: %v, want about the same", count)
	}
}

// What a newcomer is told to expect is what it gets, if nobody else comes.
func TestPredictedPlace(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 3))
		b := fair("b", perBoth, sec)
		w := newWorld(t, b)
		w.enterAs(99, "first", "h", "direct")
		clients := uint64(1 + r.IntN(8))
		for range r.IntN(60) {
			w.enterAs(1+r.Uint64N(clients), "r", "h", "direct")
			if r.IntN(3) == 0 {
				w.until(w.now.Sub(t0) + sec)
			}
		}
		q, ok := w.lane("b/h/direct").Queue.(*queue)
		if !ok || q.lined == 0 {
			continue
		}
		key := 1 + r.Uint64N(clients+1)
		known := q.find(key)
		ahead := q.ahead(known)
		before := len(w.order)
		mine := w.enterAs(key, "mine", "h", "direct")
		if mine.state() != Queued {
			t.Fatalf("seed %d: not queued", seed)
		}
		s := &mine.ticket.spots[0]
		if known != nil {
			if got := q.flows.before(s); got != ahead {
				t.Errorf("seed %d: %d before it, %d foreseen", seed, got, ahead)
			}
		}
		place := -1
		n := 0
		q.roll(1, func(at *spot) {
			if at == s {
				place = n
			}
			n++
		})
		w.until(2 * time.Hour)
		got := -1
		for i, o := range w.order[before:] {
			if o == mine {
				got = i
			}
		}
		// The formula takes its own flow for the last of a round.
		if got > ahead || got < ahead-int(clients) {
			t.Errorf("seed %d: %d went before, %d foreseen, with %d clients", seed, got, ahead, clients)
		}
		if got != place || n != len(w.order)-before {
			t.Errorf("seed %d: %d went before, %d by the roll of %d", seed, got, place, n)
		}
		w.quiet()
	}
}

// A client is refused for its own backlog, not for that of others.
func TestPredictedWaitIsTheClients(t *testing.T) {
	b := fair("b", perBoth, sec)
	b.Queue.MaxWait = 20 * sec
	w := newWorld(t, b)
	for range 21 {
		w.enterAs(1, "crowd", "h", "direct")
	}
	full := w.enterAs(1, "crowd", "h", "direct")
	w.mustBe(Refused, full)
	if out := full.entered; out.Reason != policy.RefusedMaxWait || out.Ahead != 20 || out.RetryAfter != 21*sec {
		t.Errorf("outcome = %+v, want max_wait with 20 ahead, after 21s", out)
	}
	one := w.enterAs(2, "one", "h", "direct")
	w.until(2 * sec)
	w.mustGo(2*sec, one) // the other is as fresh, and came before
}

// A cooldown refuses those whose turn would come too late, in the order of
// turns: one client's long queue, not another's short one.
func TestCooldownRefusesByTurns(t *testing.T) {
	b := fair("b", perBoth, sec)
	b.Queue.MaxWait = 20 * sec
	b.Recovery.Factor = 1
	w := newWorld(t, b)
	first := w.enterAs(9, "first", "h", "direct")
	var crowd, few []*request
	for range 12 {
		crowd = append(crowd, w.enterAs(1, "crowd", "h", "direct"))
	}
	for range 3 {
		few = append(few, w.enterAs(2, "few", "h", "direct"))
	}
	w.limited(first, 12*sec) // room for 9: at 12, 13, … 20 s
	w.mustBe(Queued, few...)
	w.mustBe(Queued, crowd[:6]...)
	w.mustBe(Refused, crowd[6:]...)
	for _, r := range crowd[6:] {
		if out := r.Outcome(); out.Ahead != 9 || out.RetryAfter != 21*sec {
			t.Errorf("outcome = %+v, want 9 ahead, after 21s", out)
		}
	}
}

// Fair in one lane and first come first served in another: turns of both are
// kept, nobody is left.
func TestFairInOneLaneOnly(t *testing.T) {
	for _, swap := range []bool{false, true} {
		dest, all := fair("dest", perDest, sec), budget("all", 0, 600*ms)
		if swap {
			dest, all = budget("dest", perDest, sec), fair("all", 0, 600*ms)
		}
		w := newWorld(t, dest, all)
		r := rand.New(rand.NewPCG(1, 1))
		for i := range 300 {
			w.enterAs(uint64(i%7), "r", fmt.Sprint("h", r.IntN(3)), "direct")
			w.until(w.now.Sub(t0) + time.Duration(r.IntN(900))*ms)
			w.mustNotLeaveBehind()
			if i%5 == 0 {
				w.Leave(&w.live[r.IntN(len(w.live))].Waiter)
			}
		}
		left := 0
		w.until(time.Hour - 1)
		for _, r := range w.live {
			if r.entered.State == Queued && r.notified == 0 {
				left++
			}
		}
		if left > 60 || len(w.order)+left != 300 {
			t.Errorf("%d went and %d left, of 300", len(w.order), left)
		}
		w.quiet()
	}
}

// A client at the head keeps its turn while it waits for another lane, though
// a new client comes.
func TestTurnIsKeptFromNewClients(t *testing.T) {
	w := newWorld(t, fair("dest", perDest, sec), budget("all", 0, 900*ms))
	w.enterAs(1, "x", "x", "direct") // empties what all share
	w.until(100 * ms)
	w.enterAs(1, "head", "a", "direct") // has a's unit, waits for the other
	w.until(200 * ms)
	w.enterAs(2, "new", "a", "direct")
	w.until(time.Minute)
	w.mustGoInOrder("x", "head", "new")
	w.quiet()
}

// A reload changes who is a client under those who wait.
func TestReloadChangesClients(t *testing.T) {
	w := newWorld(t, budget("b", perBoth, sec))
	for i := range 4 {
		w.enterAs(1, fmt.Sprint("a", i), "h", "direct")
	}
	w.enterAs(2, "b0", "h", "direct")
	w.enterAs(2, "b1", "h", "direct")
	w.engine.Swap(&policy.Policy{Budgets: []*policy.Budget{fair("b", perBoth, sec)}}, w.now)
	w.Reconfigured()
	w.until(2 * sec)
	w.engine.Swap(&policy.Policy{Budgets: []*policy.Budget{budget("b", perBoth, sec)}}, w.now)
	w.Reconfigured()
	w.until(time.Minute)
	w.mustGoInOrder("a0", "a1", "b0", "a2", "a3", "b1")
	w.quiet()
}

// Nor has it who comes, leaves and comes again before its turn.
func TestLeavingGainsNothing(t *testing.T) {
	q := flows{pool: &pool{}}
	seq := uint64(0)
	enter := func(key uint64) *spot {
		seq++
		s := &spot{ticket: &ticket{seq: seq}}
		q.enroll(s, key)
		q.stand(s, 1)
		return s
	}
	leave := func(s *spot) {
		q.step(s)
		q.strike(s)
	}
	first := enter(1)
	enter(1)
	first.flow.charge(1, 1)
	leave(first)
	second := q.first(1)
	if second == nil || second.flow.key != 1 || second.flow.ring != &q.old {
		t.Fatal("a flow that has gone once is not on the old list")
	}
	leave(enter(2))
	if got := q.first(1); got != second {
		t.Fatal("somebody else is first who has left")
	}
	enter(2)
	if got := q.first(1); got != second {
		t.Error("who left and came again is first")
	}
}
