// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"testing"

	"github.com/egressd/egressd/loader"
)

// Like TCP's, counts of QUIC stay with the name that they were counted for.
func TestQUICNamesNeverMoveCounts(t *testing.T) {
	var n names
	for _, step := range []struct {
		name                 string
		act                  func()
		untouched, refused   uint64 // of addrA
		other, store, denied uint64 // untouched, untouched and refused
	}{
		{"nothing is known", func() {}, 3, 0, 3, 0, 0},
		{"the address shows its name", func() { n.saw(addrA, "store") }, 5, 1, 3, 2, 1},
		{"a new policy", func() { n.forget() }, 6, 1, 4, 2, 1},
		{"a counter begins anew", func() {}, 2, 0, 6, 2, 1},
	} {
		step.act()
		got := map[string]uint64{}
		sums, err := n.countQUIC(func() ([]loader.QUIC, error) {
			return []loader.QUIC{{Dest: addrA, Exit: "direct", Untouched: step.untouched, Refused: step.refused}}, nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range sums {
			for _, o := range q.Outcomes {
				got[q.Destination+" "+o.Label] += o.N
			}
		}
		if got["other untouched"] != step.other || got["store untouched"] != step.store || got["store refused"] != step.denied {
			t.Errorf("%s: got %v, want other %d, store %d and %d refused", step.name, got, step.other, step.store, step.denied)
		}
	}
}
