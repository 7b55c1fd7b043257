// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
)

func TestCeiling(t *testing.T) {
	const each, whole = policy.PerDestination | policy.PerExit, policy.PerExit
	lane := func(per policy.Per, base, rate, sent float64) laneSeen {
		return laneSeen{Lane: Lane{CountedBy: "E", Per: per, Base: base, Rate: rate}, perSecond: sent, known: true}
	}
	for _, tt := range []struct {
		name         string
		lanes        []laneSeen
		perSecond    float64
		budget, rate float64
	}{
		{"none", nil, 3, 0, 0},
		{"one", []laneSeen{lane(each, 2, 1, 2)}, 2, 2, 1},
		{"one, idle", []laneSeen{lane(each, 2, 2, 0)}, 0, 2, 2},
		{"destinations add up", []laneSeen{lane(each, 2, 2, 1), lane(each, 3, 1, 1)}, 2, 5, 3},
		{"one of them without a rate", []laneSeen{lane(each, 2, 2, 1), lane(each, 0, 0, 1)}, 2, 0, 0},
		{"a narrow total over wide parts", []laneSeen{lane(each, 4, 4, 2), lane(each, 4, 4, 3), lane(whole, 5, 5, 5)}, 5, 5, 5},
		{"narrow parts under a wide total", []laneSeen{lane(each, 2, 1, 2), lane(each, 2, 2, 2), lane(whole, 50, 50, 4)}, 4, 4, 3},
		{"a total without a rate", []laneSeen{lane(each, 4, 4, 4), lane(whole, 0, 0, 4)}, 4, 4, 4},
		{"budgets for different requests", []laneSeen{lane(each, 10, 10, 10), lane(whole, 5, 4, 5)}, 15, 15, 14},
		{"most requests are of no lane", []laneSeen{lane(each, 10, 10, 1), lane(whole, 5, 5, 1)}, 15, 0, 0},
		{"not known yet", []laneSeen{lane(each, 4, 4, 2), {Lane: Lane{CountedBy: "E", Per: whole, Base: 5}}}, 5, 0, 0},
		{"trouble of the exit", []laneSeen{lane(each, 2, 2, 2), {Lane: Lane{Budget: policy.ExitBudget, CountedBy: "E", Per: whole}}}, 2, 2, 2},
	} {
		var c ceiling
		for i := range tt.lanes {
			c.add(&tt.lanes[i])
		}
		if budget, rate := c.of(tt.perSecond); budget != tt.budget || rate != tt.rate {
			t.Errorf("%s: got budget %g and rate %g, want %g and %g", tt.name, budget, rate, tt.budget, tt.rate)
		}
	}
}

func TestExitsOf(t *testing.T) {
	shared := laneSeen{Lane: Lane{CountedBy: policy.AllExits, Per: policy.PerDestination, Base: 7, Rate: 7, ClosedFor: time.Second}}
	show := func(seen []exitSeen) (text string) {
		for _, e := range seen {
			text += fmt.Sprintf("%s %v lanes %d closed %d budget %g; ", e.Name, e.Seconds, e.lanes, e.closed, e.budget)
		}
		return text
	}
	for _, tt := range []struct {
		exits []Exit
		lanes []laneSeen
		want  string
	}{
		{nil, []laneSeen{shared}, ""},
		// Of an only exit, all lanes are.
		{[]Exit{{Name: "direct", Seconds: []float64{1, 2}}}, []laneSeen{shared}, "direct [1 2] lanes 1 closed 1 budget 7; "},
		// Of several, those together are what the lane holds.
		{
			[]Exit{{Name: "b", Seconds: []float64{1, 2, 3}}, {Name: "a", Seconds: []float64{5}}}, []laneSeen{shared},
			"a [5] lanes 0 closed 0 budget 0; b [1 2 3] lanes 0 closed 0 budget 0; all [1 2 8] lanes 1 closed 1 budget 7; ",
		},
		{[]Exit{{Name: "never"}, {Name: "once", Seconds: []float64{0}}}, nil, "once [0] lanes 0 closed 0 budget 0; "},
	} {
		if got := show(exitsOf(tt.exits, tt.lanes)); got != tt.want {
			t.Errorf("got %s, want %s", got, tt.want)
		}
	}
}
