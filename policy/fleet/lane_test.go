// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"strconv"
	"testing"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

const (
	ms  = time.Millisecond
	sec = time.Second
	t0  = ledger.Time(1000 * time.Second)
)

var (
	slots  = Limit{Interval: 200 * ms, Burst: 1}
	leases = Limit{Interval: 10 * ms, Burst: 1}
)

// tester drives a lane by hand: it plays the store.
type tester struct {
	*Lane
	t   *testing.T
	now ledger.Time
}

func newTester(t *testing.T, c Config) *tester {
	c.Lane, c.Host, c.Chance = "store/-/direct", "a", func() float64 { return 0.5 }
	return &tester{New(c), t, t0}
}

func (x *tester) after(d time.Duration) { x.now = x.now.Add(d) }

// next wants a call of a kind to be due.
func (x *tester) next(want Kind) Flight {
	x.t.Helper()
	f, due := x.Next(x.now)
	if !due || f.Kind != want {
		x.t.Fatalf("at +%v: Next = %v, %v, want %v", x.now.Sub(t0), f.Kind, due, want)
	}
	return f
}

// quiet wants no call to be due before Wake, and Wake to be in the future.
func (x *tester) quiet() {
	x.t.Helper()
	if f, due := x.Next(x.now); due {
		x.t.Fatalf("at +%v: Next = %v, want nothing", x.now.Sub(t0), f.Kind)
	}
	if at, ok := x.Wake(x.now); ok && at <= x.now {
		x.t.Fatalf("at +%v: Wake = +%v with nothing due", x.now.Sub(t0), at.Sub(t0))
	}
}

// grab wants n units to go.
func (x *tester) grab(n int) (last Unit) {
	x.t.Helper()
	for i := range n {
		u, wait, ok := x.Take(x.now)
		if !ok {
			x.t.Fatalf("at +%v: unit %d of %d refused, wait %v", x.now.Sub(t0), i+1, n, wait)
		}
		last = u
	}
	return last
}

// dry wants no unit to go, for so long as can be said.
func (x *tester) dry(wait time.Duration) {
	x.t.Helper()
	if _, got, ok := x.Take(x.now); ok || got != wait {
		x.t.Fatalf("at +%v: granted %v, wait %v, want none and %v", x.now.Sub(t0), ok, got, wait)
	}
}

func (x *tester) holds(n uint64) {
	x.t.Helper()
	if got := x.Held(x.now); got != n {
		x.t.Fatalf("at +%v: %d held, want %d", x.now.Sub(t0), got, n)
	}
}

func (x *tester) mode(m Mode) {
	x.t.Helper()
	if got := x.Mode(x.now); got != m {
		x.t.Fatalf("at +%v: mode %v, want %v", x.now.Sub(t0), got, m)
	}
}

func (x *tester) want(n int) { x.Lane.Want(n, x.now) }

// answer answers a call as a store of one host does, unless a says otherwise.
func (x *tester) answer(f Flight, a Answer) {
	if a.Interval == 0 {
		a.Interval = f.Limit.Interval
	}
	if a.Hosts == 0 {
		a.Hosts = 1
	}
	x.Answered(f, a, x.now)
}

// lose fails calls until the store counts as lost.
func (x *tester) lose() {
	x.t.Helper()
	for range breakerFailures {
		for n := 0; ; n++ {
			if f, due := x.Next(x.now); due {
				x.after(75 * ms)
				x.Failed(f, x.now)
				break
			}
			at, ok := x.Wake(x.now)
			if !ok || n > 5 {
				x.t.Fatal("no call is made any more")
			}
			x.now = max(x.now, at)
		}
	}
}

func TestSlots(t *testing.T) {
	x := newTester(t, Config{Limit: slots})
	x.quiet()
	x.dry(0)
	x.want(3)
	f := x.next(Book)
	if f.Units != 2 || f.Term != Ahead || f.Limit != slots || f.Host != "a" {
		t.Fatalf("call %+v", f.Call)
	}
	x.quiet() // one at a time
	x.after(20 * ms)
	x.answer(f, Answer{Granted: 1, After: 300 * ms, Grant: "1"})
	x.dry(300 * ms)  // from the receipt
	f = x.next(Book) // the one after it, meanwhile
	if f.Units != 1 {
		t.Fatalf("asks for %d", f.Units)
	}
	x.answer(f, Answer{Granted: 1, After: 500 * ms, Grant: "2"})
	x.quiet()
	x.after(300*ms - 1)
	x.dry(1)
	x.after(1)
	x.grab(1)
	x.dry(200 * ms)
	// The other: for the timeout and half an interval from 500 ms after the call.
	x.after(200*ms + 175*ms)
	x.holds(1)
	x.after(1)
	x.holds(0)
}

// A unit's slot counts from the receipt of the answer, its end from the sending
// of the call.
func TestLease(t *testing.T) {
	x := newTester(t, Config{Limit: leases})
	x.want(100)
	f := x.next(Lease)
	if f.Units != 10 || f.Term != Term { // of a tenth of a second
		t.Fatalf("call %+v", f.Call)
	}
	x.after(50 * ms)
	x.answer(f, Answer{Granted: 10, Grant: "1", Term: Term})
	x.grab(7)
	x.quiet() // not for each unit a call
	x.grab(1)
	f = x.next(Lease) // calls take so long that the last two would be gone by then
	if f.Units != 8 {
		t.Fatalf("asks for %d, with two of ten left", f.Units)
	}
	x.after(10 * ms)
	x.answer(f, Answer{Granted: 5, After: 30 * ms, Grant: "2", Term: Term})
	x.grab(2)
	x.dry(30 * ms)
	x.after(30 * ms)
	x.grab(1)
	x.dry(10 * ms) // booked ahead: one after the other
	x.after(760*ms + 1)
	x.holds(2) // two ends are over
	x.grab(2)
	x.dry(0)
	if s := x.Stats(); s.Expired != 2 || s.Granted != 15 {
		t.Errorf("%+v", s)
	}
}

func TestReturnedUnits(t *testing.T) {
	x := newTester(t, Config{Limit: leases})
	x.want(100)
	f := x.next(Lease)
	x.answer(f, Answer{Granted: 1, After: 10 * ms, Grant: "1", Term: Term})
	x.after(10 * ms)
	u := x.grab(1)
	x.dry(0)
	x.Return(u, x.now)
	x.holds(1)
	u = x.grab(1)
	x.dry(0)
	x.after(750 * ms)
	x.Return(u, x.now) // at its end
	x.holds(1)
	u = x.grab(1)
	x.after(1)
	x.Return(u, x.now)
	x.holds(0)
	x.dry(0)
}

// A host that spends evenly asks for what it will spend, before it is without.
func TestAsksAhead(t *testing.T) {
	for _, tt := range []struct {
		gap   time.Duration // between requests
		took  time.Duration // by a call
		calls int           // for a hundred requests
		late  int           // milliseconds that they wait, together
	}{{20 * ms, ms, 12, 0}, {20 * ms, 40 * ms, 20, 0}, {150 * ms, ms, 101, 0}, {500 * ms, ms, 101, 100}} {
		x := newTester(t, Config{Limit: Limit{Interval: 10 * ms, Burst: 10}})
		var flight Flight
		var landing ledger.Time
		calls, late, queue := 0, 0, 0
		for i := range 200 * int(tt.gap/ms) {
			x.now = t0.Add(time.Duration(i) * ms)
			measured := i >= 100*int(tt.gap/ms)
			if x.now == landing {
				x.answer(flight, Answer{Granted: flight.Units, Grant: strconv.Itoa(i), Term: Term})
			}
			if i%int(tt.gap/ms) == 0 {
				queue++
			}
			for ; queue > 0; queue-- {
				if _, _, ok := x.Take(x.now); !ok {
					break
				}
			}
			if measured {
				late += queue
			}
			x.want(queue)
			if f, due := x.Next(x.now); due {
				flight, landing = f, x.now.Add(tt.took)
				if measured {
					calls++
				}
			}
		}
		if calls > tt.calls || late > tt.late {
			t.Errorf("a request each %v: %d calls, %d ms late, want %d and %d at most", tt.gap, calls, late, tt.calls, tt.late)
		}
		if s := x.Stats(); s.Expired > 0 || s.Given > 0 {
			t.Errorf("a request each %v: %+v", tt.gap, s)
		}
	}
}

// What will be spent, by what went before, is kept until shortly before its end.
func TestKept(t *testing.T) {
	x := newTester(t, Config{Limit: leases})
	x.want(10)
	x.answer(x.next(Lease), Answer{Granted: 10, Grant: "1", Term: Term})
	x.grab(9) // 37 a second, if it goes on so
	x.want(0)
	x.after(Term - Guard - 30*ms)
	x.quiet()
	x.after(5 * ms)
	if f := x.next(Give); f.Units != 1 || f.Grant != "1" {
		t.Fatalf("call %+v", f.Call)
	}
}

// A host calls each second while something could go by what it knows.
func TestBeats(t *testing.T) {
	for _, tt := range []struct {
		name  string
		limit Limit
		do    func(*tester)
		least time.Duration
	}{
		{"unused since", slots, func(*tester) {}, beatMost},
		{"a request waits", slots, func(x *tester) { x.want(1); x.answer(x.next(Book), Answer{Retry: 8 * sec}) }, beatEvery},
		{"a unit is held", slots, func(x *tester) {
			x.want(1)
			x.answer(x.next(Book), Answer{Granted: 1, After: 8 * sec, Grant: "1"})
		}, beatEvery},
		{"closed", slots, func(x *tester) { x.Heard(Answer{Epoch: 1, OpenAfter: 8 * sec, Interval: slots.Interval}, x.now) }, beatEvery},
		{"slowed", slots, func(x *tester) { x.Heard(Answer{Epoch: 1, Interval: 2 * slots.Interval}, x.now) }, beatEvery},
		{"no rate", Limit{}, func(*tester) {}, beatEvery},
	} {
		x := newTester(t, Config{Limit: tt.limit})
		x.Take(x.now)
		x.answer(x.next(Watch), Answer{})
		tt.do(x)
		from := x.now
		for {
			at, ok := x.Wake(x.now)
			if !ok {
				t.Fatalf("%s: no heartbeat", tt.name)
			}
			x.now = at
			if f, due := x.Next(x.now); due && f.Kind == Watch {
				break
			}
		}
		if d := x.now.Sub(from); d > tt.least || d < tt.least*7/8 {
			t.Errorf("%s: called after %v, want %v at most", tt.name, d, tt.least)
		}
	}
}

// Who has not heard for long how many hosts there are asks before it takes much.
func TestHostsMayHaveCome(t *testing.T) {
	x := newTester(t, Config{Limit: leases})
	x.want(1)
	x.answer(x.next(Lease), Answer{Granted: 1, Grant: "1", Term: Term})
	x.grab(1)
	x.want(0)
	x.after(beatEvery * 2)
	x.want(10)
	if f := x.next(Lease); f.Units != 10 {
		t.Fatalf("asks for %d", f.Units)
	} else {
		x.answer(f, Answer{Granted: 10, Grant: "2", Term: Term})
	}
	x.grab(10)
	x.want(0)
	x.after(beatEvery*2 + 1)
	x.want(10)
	f := x.next(Lease)
	if f.Units != 1 {
		t.Fatalf("asks for %d", f.Units)
	}
	x.answer(f, Answer{Granted: 1, Grant: "3", Term: Term, Hosts: 5})
	x.grab(1)
	if f := x.next(Lease); f.Units != 2 {
		t.Fatalf("asks for %d", f.Units)
	}
}

// What is not wanted goes back once, and is forgotten before it is offered.
func TestGive(t *testing.T) {
	x := newTester(t, Config{Limit: leases})
	x.want(10)
	x.answer(x.next(Lease), Answer{Granted: 10, Grant: "1", Term: Term})
	x.grab(3)
	x.want(0)
	x.quiet()
	x.after(hold)
	f := x.next(Give)
	if f.Units != 7 || f.Grant != "1" {
		t.Fatalf("call %+v", f.Call)
	}
	x.holds(0)
	x.dry(0)
	x.Failed(f, x.now)
	x.holds(0)
	x.after(sec)
	x.quiet()
	x.after(beatMost - sec)
	if f := x.next(Watch); f.Units != 0 { // and not again
		t.Fatalf("call %+v", f.Call)
	}
}

func TestSlotGoesBackWithItsClient(t *testing.T) {
	x := newTester(t, Config{Limit: slots})
	x.want(1)
	x.answer(x.next(Book), Answer{Granted: 1, After: 3 * sec, Grant: "7"})
	x.quiet()
	x.want(0)
	x.after(hold)
	if f := x.next(Give); f.Grant != "7" || f.Units != 1 {
		t.Fatalf("call %+v", f.Call)
	}
}

func TestStoreHasNothing(t *testing.T) {
	x := newTester(t, Config{Limit: slots, Hosts: 100})
	x.want(1)
	var last time.Duration
	for i := range 6 {
		x.answer(x.next(Book), Answer{Retry: 100 * ms})
		start := x.now
		for {
			at, _ := x.Wake(x.now)
			x.now = at
			f, due := x.Next(x.now)
			if !due {
				t.Fatal("Wake, and nothing due")
			}
			if f.Kind == Book {
				x.answer(f, Answer{Retry: 100 * ms})
				break
			}
			x.answer(f, Answer{})
		}
		wait := x.now.Sub(start)
		if wait < 100*ms || wait < last || wait > 8*sec {
			t.Fatalf("asked again after %v, the time before %v", wait, last)
		}
		if last = wait; i == 0 && wait > sec {
			t.Fatalf("asked again after %v only", wait)
		}
		x.now = x.now.Add(sec * 8)
	}
}

func TestLossShare(t *testing.T) {
	x := newTester(t, Config{Limit: leases, Grace: time.Minute})
	x.want(100)
	x.answer(x.next(Lease), Answer{Granted: 1, Grant: "1", Term: Term, Hosts: 4})
	u := x.grab(1)
	lost := x.now
	x.lose()
	x.Return(u, x.now) // it was not sent
	if d := x.now.Sub(lost); d > 400*ms {
		t.Errorf("the loss took %v to see", d)
	}
	x.mode(Shared)
	x.grab(1)
	x.dry(20 * ms) // Chance: half of a share's interval
	x.after(20 * ms)
	x.grab(1)
	x.dry(40 * ms) // a quarter of the rate, one at a time
	x.after(10 * sec)
	x.grab(1)
	x.dry(40 * ms)
	if b := x.Bound(x.now); b != 4 {
		t.Errorf("bound %v", b)
	}
	x.after(time.Minute)
	x.mode(Shut)
	x.dry(0)

	// It is back: first the probe, then a while, then a share from the store.
	x.answer(x.next(Watch), Answer{Hosts: 4})
	x.mode(Shut)
	x.after(returnLeast)
	x.mode(Returning)
	f := x.next(Lease)
	if f.Units != 1 && f.Units != 3 {
		t.Errorf("asks for %d of a share", f.Units)
	}
	x.answer(f, Answer{Granted: f.Units, Grant: "2", Term: Term, Hosts: 4})
	x.after(settle(4))
	x.mode(Together)
}

func TestLossClosedAndOpen(t *testing.T) {
	for _, tt := range []struct {
		loss Loss
		mode Mode
	}{{LossClosed, Shut}, {LossOpen, Alone}} {
		x := newTester(t, Config{Limit: Limit{Interval: 10 * ms, Burst: 3}, Loss: tt.loss})
		x.want(100)
		x.lose()
		x.mode(tt.mode)
		if tt.mode == Alone {
			x.grab(3)
			x.dry(10 * ms)
		} else {
			x.dry(0)
		}
		at, _ := x.Wake(x.now)
		x.now = at
		x.answer(x.next(Watch), Answer{})
		x.after(returnLeast)
		x.mode(Together) // nobody was on a share
	}
}

// A share of nobody knows how many is none.
func TestLossWithoutNumber(t *testing.T) {
	x := newTester(t, Config{Limit: leases})
	x.want(1)
	x.lose()
	x.mode(Shut)
	x = newTester(t, Config{Limit: leases, Hosts: 10})
	x.want(1)
	x.lose()
	x.mode(Shared)
}

// Fewer than three failures in a row change nothing.
func TestFailuresNotInARow(t *testing.T) {
	x := newTester(t, Config{Limit: slots})
	x.want(1)
	for range 10 {
		for range breakerFailures - 1 {
			f := x.next(Book)
			x.after(75 * ms)
			x.Failed(f, x.now)
			x.quiet()
			x.after(2 * retryDelay)
		}
		x.answer(x.next(Book), Answer{Retry: ms})
		x.mode(Together)
		x.after(sec / 2)
	}
}

func TestPenalty(t *testing.T) {
	x := newTester(t, Config{Limit: leases})
	x.want(100)
	f := x.next(Lease)
	x.after(75 * ms)
	x.answer(f, Answer{Granted: 10, Grant: "1", Term: Term})
	x.grab(8)
	late := x.next(Lease)
	if !x.Penalize(0, 3*sec, 0.5, x.now) {
		t.Fatal("the first refusal did not slow the lane")
	}
	if x.Penalize(0, 2*sec, 0.5, x.now) {
		t.Fatal("the second refusal of the epoch slowed it again")
	}
	x.holds(0) // the bucket is emptied
	x.dry(3 * sec)
	if s := x.State(); s != (State{1, x.now.Add(3 * sec), 20 * ms}) {
		t.Fatalf("state %+v", s)
	}
	c := x.next(Close) // while another call is under way
	if c.Epoch != 0 || c.Until != 3*sec || c.Factor != 0.5 {
		t.Fatalf("call %+v", c.Call)
	}
	// An answer from before the penalty changes nothing, and its units are void.
	x.answer(late, Answer{Granted: 5, Grant: "2", Term: Term})
	x.holds(0)
	x.answer(c, Answer{Epoch: 1, OpenAfter: 3 * sec, Interval: 20 * ms})
	x.after(sec)
	x.answer(x.next(Watch), Answer{Epoch: 1, OpenAfter: 2 * sec, Interval: 20 * ms})
	x.after(2*sec - 1)
	x.dry(1)
	x.after(ms)
	x.answer(x.next(Lease), Answer{Epoch: 1, Granted: 1, Grant: "3", Term: Term, Interval: 20 * ms})
	u := x.grab(1)

	// Successes make all hosts faster, with one call for some of them.
	x.Reward(0, 1.1, x.now)
	x.Reward(u.Epoch, 1.1, x.now)
	x.Reward(u.Epoch, 1.1, x.now)
	x.answer(x.next(Lease), Answer{Epoch: 1, Retry: sec, Interval: 20 * ms})
	r := x.next(Reward)
	if r.Epoch != 1 || r.Step < 1.2 || r.Step > 1.22 {
		t.Fatalf("call %+v", r.Call)
	}
	x.answer(r, Answer{Epoch: 1, Interval: 16 * ms})
	if s := x.State(); s.Interval != 16*ms {
		t.Errorf("state %+v", s)
	}
}

func TestHeard(t *testing.T) {
	x := newTester(t, Config{Limit: leases})
	x.want(100)
	x.answer(x.next(Lease), Answer{Granted: 10, Grant: "1", Term: Term})
	x.Heard(Answer{Epoch: 4, OpenAfter: 2 * sec, Interval: 40 * ms}, x.now)
	x.holds(0)
	x.dry(2 * sec)
	x.Heard(Answer{Epoch: 4, OpenAfter: sec, Interval: 40 * ms}, x.now) // shortens nothing
	x.Heard(Answer{Epoch: 3, OpenAfter: 9 * sec, Interval: 40 * ms}, x.now)
	x.dry(2 * sec)
	if x.Penalize(0, sec, 0.5, x.now) || x.Penalize(9, sec, 0.5, x.now) {
		t.Error("a refusal of another epoch slowed the lane")
	}
	x.quiet() // and is no news
	x.Penalize(0, 5*sec, 0.5, x.now)
	if c := x.next(Close); c.Epoch != 3 || c.Until != 5*sec || c.Factor != 1 {
		t.Errorf("call %+v", c.Call)
	}
}

// A store that forgot is told; a store that knows more is believed.
func TestReassert(t *testing.T) {
	x := newTester(t, Config{Limit: leases})
	x.want(100)
	x.answer(x.next(Lease), Answer{Epoch: 5, OpenAfter: 10 * sec, Interval: 80 * ms})
	x.after(sec)
	f := x.next(Watch)
	x.answer(f, Answer{Young: true})
	x.dry(9 * sec) // its own copy holds
	x.after(probeDelay)
	c := x.next(Close)
	if c.Epoch != 4 || c.Factor != 0.125 || c.Until != 9*sec-probeDelay {
		t.Fatalf("call %+v", c.Call)
	}
	x.answer(c, Answer{Epoch: 5, OpenAfter: c.Until, Interval: 80 * ms})
	x.quiet()

	// It knows the epoch but an earlier end.
	x.after(sec)
	x.answer(x.next(Watch), Answer{Epoch: 5, OpenAfter: sec, Interval: 80 * ms})
	x.after(probeDelay)
	if c = x.next(Close); c.Epoch != 4 || c.Factor != 1 {
		t.Fatalf("call %+v", c.Call)
	}
	x.answer(c, Answer{Epoch: 6, OpenAfter: 20 * sec, Interval: 160 * ms})
	if s := x.State(); s != (State{6, x.now.Add(20 * sec), 160 * ms}) {
		t.Errorf("state %+v", s)
	}
}

// What happened while the store was lost is told in order when it is back.
func TestPenaltiesWithoutStore(t *testing.T) {
	x := newTester(t, Config{Limit: leases, Hosts: 2})
	x.want(100)
	x.lose()
	for i := range uint64(3) {
		if !x.Penalize(i, sec, 0.5, x.now) {
			t.Fatalf("refusal %d slowed nothing", i)
		}
		x.after(2 * sec)
	}
	for i := range uint64(3) {
		c := x.next(Close) // which is the probe, too
		if c.Epoch != i || c.Factor != 0.5 || c.Until != 0 {
			t.Fatalf("call %+v", c.Call)
		}
		x.answer(c, Answer{Epoch: i + 1, Interval: leases.Interval << (i + 1)})
	}
	if s := x.State(); s.Epoch != 3 || s.Interval != 80*ms {
		t.Errorf("state %+v", s)
	}
}

// A store that began anew does not know of the slots that are still ahead.
func TestYoung(t *testing.T) {
	x := newTester(t, Config{Limit: leases})
	x.want(100)
	x.answer(x.next(Lease), Answer{Granted: 10, After: 50 * ms, Grant: "1", Term: Term})
	x.after(72 * ms)
	x.grab(1) // three are due, one of them goes
	x.want(10)
	x.after(sec)
	x.batches[0].Until = x.now.Add(sec) // as with a longer term
	x.batches[0].From = x.now.Add(-15 * ms)
	x.answer(x.next(Watch), Answer{Young: true})
	x.grab(2)
	x.holds(0)
	x.answer(x.next(Lease), Answer{Granted: 4, After: 50 * ms, Grant: "2", Term: Term, Young: true})
	x.holds(4) // those of the new one stay
}

func TestNoRate(t *testing.T) {
	x := newTester(t, Config{})
	x.want(1)
	x.grab(100)
	if f := x.next(Watch); f.Lane == "" {
		t.Error("no heartbeat")
	}
	x.Penalize(0, sec, 0.5, x.now)
	x.dry(sec)
	x.next(Close)
	x.after(sec)
	x.grab(100)
}

func TestReconfigure(t *testing.T) {
	x := newTester(t, Config{Limit: leases})
	x.want(100)
	x.answer(x.next(Lease), Answer{Granted: 10, Grant: "1", Term: Term, Interval: 20 * ms})
	x.Reconfigure(Limit{Interval: 5 * ms, Burst: 1}, LossClosed, x.now)
	x.holds(10)
	if s := x.State(); s.Interval != 10*ms {
		t.Errorf("interval %v of a lane at half its rate", s.Interval)
	}
	x.Reconfigure(slots, LossClosed, x.now)
	x.holds(0)
	if x.Scheme() != Slots {
		t.Errorf("scheme %v", x.Scheme())
	}
}

func TestIdleHostIsQuiet(t *testing.T) {
	x := newTester(t, Config{Limit: slots})
	x.want(1)
	x.answer(x.next(Book), Answer{Granted: 1, Grant: "1"})
	x.grab(1)
	x.want(0)
	beats := 0
	for {
		at, ok := x.Wake(x.now)
		if !ok {
			break
		}
		x.now = max(at, x.now+1)
		if f, due := x.Next(x.now); due {
			x.answer(f, Answer{})
			if beats++; beats > 100 {
				t.Fatal("it never stops")
			}
		}
	}
	if beats < int(Alive/beatMost) || x.now > t0.Add(Alive+beatMost) {
		t.Errorf("%d heartbeats until +%v", beats, x.now.Sub(t0))
	}
}

func TestRefills(t *testing.T) {
	x := newTester(t, Config{Limit: leases})
	x.want(100)
	x.answer(x.next(Lease), Answer{Granted: 3, After: 30 * ms, Grant: "1"}) // no term said: that of leases
	got := x.Refills(x.now)
	want := Refill{Units: 3, From: t0.Add(30 * ms), Until: t0.Add(780 * ms), Every: 10 * ms}
	if len(got) != 1 || got[0] != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}
