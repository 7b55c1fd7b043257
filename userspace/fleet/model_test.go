// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	shared "github.com/egressd/egressd/policy/fleet"
	"github.com/egressd/egressd/policy/fleet/model"
	"github.com/egressd/egressd/policy/ledger"
)

// TestScriptsDoWhatTheModelDoes tells random stories to the scripts and to the
// store in memory by which the hosts' side is simulated.
func TestScriptsDoWhatTheModelDoes(t *testing.T) {
	s := serve(t)
	near := func(a, b time.Duration) bool { return (a - b).Abs() <= 100*time.Microsecond } // the scripts count in µs
	for seed := range uint64(8) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		c := newClocked(t, s, fmt.Sprintf("model/%d/-", seed))
		var m model.Store
		limit := shared.Limit{Interval: time.Duration(1+rnd.IntN(500)) * time.Millisecond, Burst: uint64(1 + rnd.IntN(6))}
		both := func(call shared.Call) (a, b shared.Answer) {
			call.Lane, call.Limit = c.lane, limit
			if call.Host == "" {
				call.Host = "host"
			}
			return c.must(call), m.Do(ledger.Time(c.now), &call)
		}
		// A new lane is the one thing that they see otherwise.
		both(shared.Call{Kind: shared.Book, Units: 1})
		c.pass(time.Hour)
		var epoch uint64
		for i := range 120 {
			call := shared.Call{Host: fmt.Sprint("host", rnd.IntN(5)), Term: time.Second}
			switch k := rnd.IntN(16); {
			case k < 4:
				call.Kind, call.Units = shared.Book, 1
			case k < 8:
				call.Kind, call.Units = shared.Lease, uint64(1+rnd.IntN(6))
			case k == 8:
				call.Kind, call.Factor = shared.Close, []float64{0.5, 0.8, 1}[rnd.IntN(3)]
				call.Epoch, call.Until = epoch+uint64(rnd.IntN(3)), time.Duration(rnd.IntN(2000))*time.Millisecond
				call.Epoch -= min(call.Epoch, 1)
			case k == 9:
				call.Kind, call.Epoch, call.Step = shared.Reward, epoch, 1.3
			case k == 10:
				call.Kind = shared.Watch
			default:
				c.pass(time.Duration(rnd.IntN(1500)) * time.Millisecond)
				continue
			}
			a, b := both(call)
			if a.Granted != b.Granted || !near(a.After, b.After) || !near(a.Retry, b.Retry) || a.Epoch != b.Epoch ||
				!near(a.OpenAfter, b.OpenAfter) || !near(a.Interval, b.Interval) || a.Hosts != b.Hosts ||
				a.Term != b.Term && a.Granted > 0 && call.Kind == shared.Lease {
				t.Fatalf("seed %d, step %d, limit %+v\n%+v\nscripts %+v\nmodel   %+v", seed, i, limit, call, a, b)
			}
			epoch = a.Epoch
			// What is given back at once, both take back.
			if a.Granted > 0 && rnd.IntN(4) == 0 {
				x := c.must(shared.Call{Kind: shared.Give, Limit: limit, Host: "host0", Units: a.Granted, Grant: a.Grant})
				y := m.Do(ledger.Time(c.now), &shared.Call{Kind: shared.Give, Lane: c.lane, Limit: limit, Host: "host0", Units: b.Granted, Grant: b.Grant})
				if x.Granted != y.Granted {
					t.Fatalf("seed %d, step %d: the scripts took back %d, the model %d", seed, i, x.Granted, y.Granted)
				}
			}
		}
	}
}
