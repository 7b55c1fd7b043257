// SPDX-License-Identifier: Apache-2.0

package fleetsim

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/egressd/egressd/policy/fleet"
)

const ms1, sec = time.Millisecond, time.Second

func perSecond(rate float64, burst uint64) fleet.Limit {
	return fleet.Limit{Interval: time.Duration(float64(time.Second)/rate + 0.999), Burst: burst}
}

func mustSimulate(t *testing.T, o Options) *Result {
	t.Helper()
	r, err := Simulate(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// limits are rates on both sides of that which divides slots from leases, with
// and without a burst.
var limits = []fleet.Limit{perSecond(0.5, 1), perSecond(5, 1), perSecond(9, 20), perSecond(20, 1), perSecond(100, 50), perSecond(250, 10)}

// Whatever the network does to calls and answers, hosts that do nothing
// without the store stay within the bound, and use the budget.
func TestSteady(t *testing.T) {
	for _, limit := range limits {
		for _, hosts := range []int{1, 2, 8, 40} {
			for seed := range uint64(3) {
				o := Options{
					Hosts: hosts, Known: seed != 1, Limit: limit, Latency: []time.Duration{0, ms1, 10 * ms1}[seed],
					Skew: time.Duration(seed) * time.Hour, Duration: 30 * sec, Seed: seed,
				}
				switch {
				case limit.Interval > sec:
					o.Duration = 5 * time.Minute
				case limit.Interval < 50*ms1:
					o.Duration = 10 * sec
				}
				r := mustSimulate(t, o)
				name := fmt.Sprintf("%d hosts at %v/s, burst %d, seed %d", hosts, r.Rate, limit.Burst, seed)
				if !r.Within {
					t.Errorf("%s: %v over burst + rate·τ, bound %v", name, r.Excess, *r.Bound)
				}
				if r.Used < 0.97 {
					t.Errorf("%s: %.1f%% of the budget used: %+v", name, 100*r.Used, r)
				}
				if r.Failed > 0 && o.Latency < 10*ms1 || r.Alone > 0 {
					t.Errorf("%s: %d calls failed, %d sent without the store", name, r.Failed, r.Alone)
				}
				if c := r.Cooldown; c.Missed > 0 || c.All > 200 {
					t.Errorf("%s: cooldown %+v", name, c)
				}
			}
		}
	}
}

// Partitions, restarts that forget, replicas that lag, messages that are lost,
// clocks that are off: the bound that is stated for them holds.
func TestTrouble(t *testing.T) {
	cuts := [][]Cut{nil, {{5 * sec, 8 * sec, 0.3}}, {{5 * sec, 8 * sec, 1}}, {{3 * sec, 3 * sec, 0.5}, {15 * sec, 2 * sec, 1}}}
	faults := [][]Fault{
		nil, {{At: 10 * sec, For: 0, Memory: Empty}}, {{At: 10 * sec, For: sec, Memory: Empty}},
		{{At: 10 * sec, For: 100 * ms1, Memory: Replica, Lag: 2 * sec}}, {{At: 10 * sec, For: 6 * sec, Memory: Kept}},
		{{At: 4 * sec, For: 200 * ms1, Memory: Replica, Lag: 500 * ms1}, {At: 20 * sec, For: 300 * ms1, Memory: Empty}},
	}
	seed := uint64(0)
	for _, limit := range limits {
		for i, cut := range cuts {
			for k, fault := range faults {
				seed++
				o := Options{
					Hosts: []int{1, 3, 8, 40}[seed%4], Known: seed%3 != 0, Limit: limit, Loss: fleet.Loss(seed / 2 % 2), Cuts: cut, Faults: fault,
					Latency: []time.Duration{ms1, 5 * ms1, 15 * ms1}[seed%3], Lost: []float64{0, 0, 0.02, 0.1}[seed/3%4], Skew: 30 * time.Minute,
					Load: []float64{0, 0, 0.6, 2}[seed/5%4], Duration: 30 * sec, Seed: seed,
				}
				if o.Load > 0 {
					o.Waves = []time.Duration{0, sec, 5 * sec}[seed%3]
				}
				r := mustSimulate(t, o)
				if !r.Within {
					j, _ := json.Marshal(r)
					t.Errorf("%d hosts at %v/s, on loss %v, cuts %d, faults %d, seed %d: %v over burst + rate·τ, bound %v\n%s",
						o.Hosts, r.Rate, o.Loss, i, k, seed, r.Excess, *r.Bound, j)
				}
				if o.Loss == fleet.LossClosed && r.Alone > 0 {
					t.Errorf("seed %d: %d sent without the store by a budget that says closed", seed, r.Alone)
				}
			}
		}
	}
}

// Requests that come in waves find units that were asked for in the wave before:
// they are still good, have gone back, or have expired, and whichever it is, no
// more goes than the bound says.
func TestWaves(t *testing.T) {
	for _, limit := range []fleet.Limit{perSecond(5, 1), perSecond(20, 5), perSecond(100, 1), perSecond(250, 75)} {
		given := uint64(0)
		for i, waves := range []time.Duration{300 * ms1, sec, 2 * sec, 4 * sec, 8 * sec} {
			for _, load := range []float64{0.4, 1, 3} {
				o := Options{
					Hosts: []int{2, 8, 30}[i%3], Known: true, Limit: limit, Latency: 2 * ms1, Load: load, Waves: waves,
					Duration: 16 * sec, Seed: uint64(i),
				}
				r := mustSimulate(t, o)
				if !r.Within {
					t.Errorf("%d hosts at %v/s, burst %d, load %v in waves of %v: %v over burst + rate·τ, bound %v",
						o.Hosts, r.Rate, limit.Burst, load, waves, r.Excess, *r.Bound)
				}
				given += r.Given
			}
		}
		// A slot is booked for a request that is there, and these clients wait.
		if given == 0 && fleet.SchemeOf(limit) == fleet.Leases {
			t.Errorf("at %v/s nothing was ever given back", limit.Rate())
		}
	}
}

// Hosts that all lost the store go on with their shares, and come back to it
// without sending more than it allows while some have found it and some have
// not.
func TestReturn(t *testing.T) {
	for seed := range uint64(3) {
		o := Options{
			Hosts: 8, Known: true, Limit: perSecond(600, 1), Latency: ms1, Cuts: []Cut{{5 * sec, 10 * sec, 1}}, Duration: 25 * sec, Seed: seed,
		}
		r := mustSimulate(t, o)
		most := *r.Bound // of which nothing is for hosts that are apart
		for _, w := range r.Windows {
			if over := float64(w.Sent) - w.Limit; over > most {
				t.Errorf("seed %d: %v over burst + rate·τ in %v ms, bound %v", seed, over, w.LengthMS, most)
			}
		}
		if r.Used < 0.97 || r.Alone < 4_500 {
			t.Errorf("seed %d: %.1f%% of the budget used, %d sent without the store", seed, 100*r.Used, r.Alone)
		}
	}
}

// Hosts that come one after the other, and nobody told them how many they will
// be.
func TestArrive(t *testing.T) {
	for _, limit := range []fleet.Limit{perSecond(5, 1), perSecond(20, 1), perSecond(300, 1)} {
		r := mustSimulate(t, Options{Hosts: 8, Limit: limit, Latency: ms1, Arrive: 16 * sec, Duration: 20 * sec, Seed: 7})
		if !r.Within || r.Used < 0.97 {
			t.Errorf("at %v/s: %v over burst + rate·τ, bound %v, %.1f%% used", r.Rate, r.Excess, *r.Bound, 100*r.Used)
		}
		if r.Least == 0 || r.Most < 3*r.Least {
			t.Errorf("at %v/s: hosts sent %d to %d, where the first was alone for long", r.Rate, r.Least, r.Most)
		}
	}
}

// Calls become few where rates are high, and are one for a request where they
// are low and nobody has to ask twice.
func TestCalls(t *testing.T) {
	for _, tt := range []struct {
		rate     float64
		most     float64
		kind     string
		duration time.Duration
	}{{5, 1.1, "book", time.Minute}, {100, 1.1, "lease", 10 * sec}, {5000, 0.05, "lease", 2 * sec}} {
		r := mustSimulate(t, Options{Hosts: 8, Known: true, Limit: perSecond(tt.rate, 1), Latency: ms1, Duration: tt.duration})
		if n := float64(r.Calls[tt.kind]) / float64(r.Sent); n > tt.most {
			t.Errorf("at %v/s: %v calls for units a request, want %v at most: %v", tt.rate, n, tt.most, r.Calls)
		}
	}
}

func TestThousandsOfHosts(t *testing.T) {
	r := mustSimulate(t, Options{Hosts: 5_000, Known: true, Limit: perSecond(50, 1), Latency: ms1, Duration: 2 * sec, Skew: time.Hour})
	if !r.Within || r.Used < 0.97 || r.Cooldown.Missed > 0 || r.Cooldown.All > 200 {
		t.Errorf("%+v, bound %v", r, *r.Bound)
	}
}

// What is published may be lost; who asks for units, or beats, hears all the
// same.
func TestCooldownIsHeardWithoutPublish(t *testing.T) {
	r := mustSimulate(t, Options{
		Hosts: 50, Known: true, Limit: perSecond(5, 1), Latency: ms1, Lost: 0.4, Loss: fleet.LossClosed, Duration: 5 * sec,
	})
	if c := r.Cooldown; c.Missed > 0 || c.All < 100 || c.All > 20_000 {
		t.Errorf("%+v", c)
	}
}

func TestSameSeedSameResult(t *testing.T) {
	o := Options{Hosts: 9, Limit: perSecond(20, 3), Latency: ms1, Lost: 0.1, Load: 1, Duration: 20 * sec, Seed: 3, Cuts: []Cut{{sec, sec, 0.5}}}
	a, b := mustSimulate(t, o), mustSimulate(t, o)
	x, _ := json.Marshal(a)
	y, _ := json.Marshal(b)
	if string(x) != string(y) {
		t.Errorf("%s\n%s", x, y)
	}
	o.Seed++
	if z, _ := json.Marshal(mustSimulate(t, o)); string(z) == string(x) {
		t.Error("another seed gives the same")
	}
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if r, err := Simulate(ctx, Options{Hosts: 8, Limit: perSecond(5000, 1), Duration: time.Minute}); r != nil || err == nil {
		t.Errorf("got %v, %v", r, err)
	}
}

// The level of the tally is the maximum over all windows, by counting them all.
func TestTally(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	tally := tally{rate: 10, last: epoch}
	now := epoch
	for range 300 {
		now = now.Add(time.Duration(rnd.ExpFloat64() * float64(90*ms1)))
		tally.send(now)
	}
	most, second := 0.0, 0
	for i, from := range tally.sends {
		for k, to := range tally.sends[i:] {
			most = max(most, float64(k+1)-10*to.Sub(from).Seconds())
			if to.Sub(from) <= sec {
				second = max(second, k+1)
			}
		}
	}
	if d := most - tally.peak; d > 1e-6 || d < -1e-6 {
		t.Errorf("peak %v, want %v", tally.peak, most)
	}
	if got := tally.busiest(sec); got != second {
		t.Errorf("busiest second %d, want %d", got, second)
	}
}
