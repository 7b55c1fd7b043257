// SPDX-License-Identifier: Apache-2.0

package model

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/egressd/egressd/policy/fleet"
	"github.com/egressd/egressd/policy/ledger"
)

const (
	ms  = time.Millisecond
	sec = time.Second
	t0  = ledger.Time(1000 * time.Second)
)

var five = fleet.Limit{Interval: 200 * ms, Burst: 1}

func call(kind fleet.Kind, l fleet.Limit, units uint64) *fleet.Call {
	return &fleet.Call{Lane: "a", Host: "h", Limit: l, Kind: kind, Units: units, Term: fleet.Term}
}

// The slots of all grants, whatever they were asked for and whatever went back,
// never exceed burst + rate·τ in any window, though the clock jumps.
func TestSlots(t *testing.T) {
	for seed := range uint64(40) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		limit := fleet.Limit{Interval: []time.Duration{200 * ms, 10 * ms, ms}[seed%3], Burst: []uint64{1, 3, 40}[seed/3%3]}
		var s Store
		type unit struct {
			at   ledger.Time
			used bool
		}
		var units []unit
		grants := map[string][]int{} // the units of each
		var last []string
		now, clock := t0, t0
		for range 400 {
			step := time.Duration(rnd.Int64N(int64(limit.Interval * 3)))
			now, clock = now.Add(step), clock.Add(step)
			if rnd.IntN(20) == 0 {
				clock = clock.Add(-time.Duration(rnd.Int64N(int64(sec)))) // NTP
			}
			if len(last) > 0 && rnd.IntN(3) == 0 { // the units of some grant that are last go back
				g := last[max(0, len(last)-1-rnd.IntN(2))]
				mine := grants[g]
				n := rnd.IntN(len(mine) + 1)
				c := call(fleet.Give, limit, uint64(n))
				c.Grant = g
				taken := int(s.Do(clock, c).Granted)
				if taken > n {
					t.Fatalf("%d came back of %d", taken, n)
				}
				for _, i := range mine[len(mine)-taken:] {
					units[i].used = false
				}
				grants[g] = mine[:len(mine)-taken]
				continue
			}
			c := call(fleet.Lease, limit, 1+rnd.Uint64N(8))
			a := s.Do(clock, c)
			if a.Granted > c.Units || a.Granted == 0 && a.Retry <= 0 {
				t.Fatalf("asked for %d: %+v", c.Units, a)
			}
			for i := range a.Granted {
				at := now.Add(a.After)
				if a.After > 0 {
					at = at.Add(a.Interval * time.Duration(i))
				}
				grants[a.Grant] = append(grants[a.Grant], len(units))
				units = append(units, unit{at, true})
			}
			if a.Granted > 0 {
				last = append(last, a.Grant)
			}
		}
		var used []ledger.Time
		for _, u := range units {
			if u.used {
				used = append(used, u.at)
			}
		}
		slices.Sort(used)
		// At an even pace these conform: no window has more.
		tat, tol := ledger.Time(0), limit.Interval*time.Duration(limit.Burst-1)
		for i, at := range used {
			if tat = max(tat, at); tat.Sub(at) > tol {
				t.Fatalf("seed %d: slot %d of %d, at +%v, comes %v too early", seed, i, len(used), at.Sub(t0), tat.Sub(at)-tol)
			}
			tat = tat.Add(limit.Interval)
		}
	}
}

// Hosts do not poll: who comes later is booked ahead, up to an end.
func TestAhead(t *testing.T) {
	var s Store
	for i := range 52 {
		a := s.Do(t0, call(fleet.Book, five, 1))
		want := time.Duration(i) * 200 * ms
		if i > 51 {
			want = 0
		}
		if a.Granted != 1 || a.After != want {
			t.Fatalf("slot %d: %+v, want it after %v", i, a, want)
		}
	}
	if a := s.Do(t0, call(fleet.Book, five, 1)); a.Granted != 0 || a.Retry != 52*200*ms-fleet.Ahead {
		t.Fatalf("%+v", a)
	}
}

func TestCloseOncePerEpoch(t *testing.T) {
	var s Store
	news := 0
	s.Publish = func(string, fleet.Answer) { news++ }
	for i := range 5 {
		c := call(fleet.Close, five, 0)
		c.Until, c.Factor = time.Duration(i+1)*sec, 0.5
		a := s.Do(t0, c)
		if a.Epoch != 1 || a.Interval != 400*ms || a.OpenAfter != c.Until {
			t.Fatalf("close %d: %+v", i, a)
		}
	}
	if news != 5 {
		t.Errorf("%d published, want 5", news)
	}
	// One unit when it opens, then the slowed pace.
	for i := range 3 {
		a := s.Do(t0, call(fleet.Book, five, 1))
		if want := 5*sec + time.Duration(i)*400*ms; a.After != want {
			t.Errorf("slot %d after %v, want %v", i, a.After, want)
		}
	}
	r := call(fleet.Reward, five, 0)
	r.Epoch, r.Step = 1, 4
	if a := s.Do(t0, r); a.Interval != 400*ms {
		t.Error("a success of a closed lane made it faster")
	}
	if a := s.Do(t0.Add(6*sec), r); a.Interval != 200*ms {
		t.Errorf("interval %v, want that of the limit", a.Interval)
	}
}

// Eight hosts tell a store that forgot: one of them changes something.
func TestReassert(t *testing.T) {
	var s Store
	s.Clear()
	for i := range 8 {
		c := call(fleet.Close, five, 0)
		c.Host, c.Epoch, c.Factor, c.Until = strconv.Itoa(i), 4, 0.25, 3*sec
		a := s.Do(t0, c)
		if a.Epoch != 5 || a.Interval != 800*ms || a.OpenAfter != 3*sec || a.Hosts != i+1 || !a.Young {
			t.Fatalf("host %d: %+v", i, a)
		}
	}
	if a := s.Do(t0.Add(fleet.Youth), call(fleet.Watch, five, 0)); a.Young {
		t.Error("still young")
	}
}

func TestHosts(t *testing.T) {
	var s Store
	for i := range 40 {
		c := call(fleet.Watch, five, 0)
		c.Host = strconv.Itoa(i % 8)
		if i >= 20 {
			c.Host = strconv.Itoa(i % 4) // four of them leave
		}
		a := s.Do(t0.Add(time.Duration(i)*sec), c)
		want := min(i+1, 8)
		if i > 20+int(fleet.Alive/sec) {
			want = 4
		}
		if a.Hosts != want && (i < 20 || i > 36) {
			t.Errorf("at +%ds: %d hosts, want %d", i, a.Hosts, want)
		}
	}
}

// A replica that takes over starts with an empty bucket.
func TestFailOver(t *testing.T) {
	limit := fleet.Limit{Interval: 200 * ms, Burst: 5}
	var s Store
	s.Do(t0, call(fleet.Watch, limit, 0))
	replica := s.Clone()
	s.Do(t0, call(fleet.Lease, limit, 5))
	s.FailOver(replica)
	if a := s.Do(t0.Add(ms), call(fleet.Book, limit, 1)); a.After != 200*ms {
		t.Errorf("%+v, want a slot after an interval", a)
	}
	if a := s.Do(t0.Add(ms), call(fleet.Watch, limit, 0)); a.Hosts != 1 || !a.Young {
		t.Errorf("%+v", a)
	}
}
