// SPDX-License-Identifier: Apache-2.0

package agenda

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/egressd/egressd/policy/ledger"
)

// Events come out in the order of time, and of their making within an instant.
func TestQueue(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	type event struct {
		at     ledger.Time
		number int
	}
	before := func(a, b event) bool { return a.at < b.at || a.at == b.at && a.number < b.number }
	var q Queue[event]
	var want []event
	pop := func(what string, want event) {
		t.Helper()
		if at, ok := q.Next(); !ok || at != want.at {
			t.Fatalf("%s: next at %d, %t, want %+v", what, at, ok, want)
		}
		if at, got := q.Pop(); got != want || at != want.at {
			t.Fatalf("%s: got %+v at %d, want %+v", what, got, at, want)
		}
	}
	for number := range 2000 {
		if len(want) > 0 && r.IntN(3) == 0 {
			i := 0
			for k := range want {
				if before(want[k], want[i]) {
					i = k
				}
			}
			pop("in between", want[i])
			want = slices.Delete(want, i, i+1)
			continue
		}
		e := event{1_000_000 + ledger.Time(r.IntN(50)), number}
		q.Push(e.at, e)
		want = append(want, e)
	}
	slices.SortFunc(want, func(a, b event) int {
		if before(a, b) {
			return -1
		}
		return 1
	})
	for _, e := range want {
		pop("at the end", e)
	}
	if _, ok := q.Next(); ok {
		t.Error("there are more events")
	}
}
