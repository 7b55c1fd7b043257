// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

	"github.com/egressd/egressd/policy/fleet"
	"github.com/egressd/egressd/policy/fleet/model"
	"github.com/egressd/egressd/policy/ledger"
)

// Where no notice arrives, nothing goes later than a heartbeat after the store
// was told of a cooldown, on hosts that were busy and on hosts that were not.
func TestCooldownWithoutNotices(t *testing.T) {
	const (
		ms    = time.Millisecond
		hosts = 8
		took  = 3 * ms // by a call
		most  = time.Second + 2*took
	)
	type flight struct {
		fleet.Flight
		host int
		at   ledger.Time
	}
	for _, limit := range []fleet.Limit{
		{}, {Interval: 200 * ms, Burst: 1}, {Interval: 200 * ms, Burst: 20}, {Interval: 50 * ms, Burst: 5}, {Interval: 2 * ms, Burst: 50},
	} {
		for seed := range uint64(12) {
			rnd := rand.New(rand.NewPCG(seed, 0))
			every := []time.Duration{20 * ms, 100 * ms, 700 * ms}[seed%3] // requests, of all hosts
			var store model.Store
			var lanes [hosts]*fleet.Lane
			var queue [hosts]int
			for i := range lanes {
				lanes[i] = fleet.New(fleet.Config{Lane: "a", Host: strconv.Itoa(i), Limit: limit, Hosts: hosts, Chance: rnd.Float64})
				queue[i] = 1 // what goes first asks nobody where there is no rate
			}
			var flights []flight
			var refusedAt ledger.Time // by the origin, of a request that is on its way
			var toldAt ledger.Time
			t0 := ledger.Time(time.Hour)
			closeAt := t0.Add(3*time.Second + time.Duration(rnd.Int64N(int64(4*time.Second))))
			sent, late := 0, 0
			for now := t0; now < t0.Add(10*time.Second); now = now.Add(ms) {
				for len(flights) > 0 && flights[0].at <= now {
					f := flights[0]
					flights = flights[1:]
					lanes[f.host].Answered(f.Flight, store.Do(now.Add(-took/2), &f.Call), now)
					if f.Kind == fleet.Close && toldAt == 0 {
						toldAt = now
					}
				}
				if rnd.Float64() < float64(ms)/float64(every) {
					queue[rnd.IntN(hosts)]++
				}
				for i, l := range lanes {
					for ; queue[i] > 0; queue[i]-- {
						u, _, ok := l.Take(now)
						if !ok {
							break
						}
						sent++
						if toldAt != 0 && now > toldAt.Add(most) {
							late++
						}
						if refusedAt == 0 && now >= closeAt {
							refusedAt = now
							l.Penalize(u.Epoch, time.Minute, 0.5, now)
						}
					}
					l.Want(queue[i], now)
					for f, due := l.Next(now); due; f, due = l.Next(now) {
						flights = append(flights, flight{f, i, now.Add(took)})
					}
				}
			}
			if sent == 0 || refusedAt == 0 || toldAt == 0 {
				t.Fatalf("%v, seed %d: %d sent, nothing refused", limit, seed, sent)
			}
			if late > 0 {
				t.Errorf("%v, seed %d: %d sent more than %v after the store was told", limit, seed, late, most)
			}
		}
	}
}
