// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"testing"
)

func TestDescribe(t *testing.T) {
	const twoExits = "exits: [{name: a, mark: 1}, {name: b, mark: 2}]\n"
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"no budgets", "budgets: []", []string{}},
		{
			"without exits nothing multiplies",
			"budgets: [{rate: 1/s}, {rate: 90/min, burst: 2.5, match: {hosts: [a.example]}}]",
			[]string{
				"budget-1: requests to every host, ports 80/443: rate 1/s per destination",
				"budget-2: requests to a.example, ports 80/443: rate 90/min burst 2.5 in all",
			},
		},
		{
			"one exit and direct",
			"exits: [{name: a, mark: 1}]\nbudgets: [{rate: 0.1/s}]",
			[]string{"budget-1: requests to every host, ports 80/443: rate 0.1/s per exit × 1 exit (+direct) = up to 0.2/s per destination"},
		},
		{
			"several exits",
			twoExits + "budgets: [{rate: 0.1/s}, {rate: 10/30s, per: [exit]}, {rate: 5/h, per: [destination]}, {rate: 1/d, per: []}]",
			[]string{
				"budget-1: requests to every host, ports 80/443: rate 0.1/s per exit × 2 exits (+direct) = up to 0.3/s per destination",
				"budget-2: requests to every host, ports 80/443: rate 10/30s per exit × 2 exits (+direct) = up to 30/30s in all",
				"budget-3: requests to every host, ports 80/443: rate 5/h per destination",
				"budget-4: requests to every host, ports 80/443: rate 1/d in all",
			},
		},
		{
			"all that a match can say",
			`budgets: [{rate: 1/s, match: {hosts: ["*", "*.a.example", 10.0.0.0/8], ports: [80], path: /x, methods: [GET]}}]`,
			[]string{"budget-1: GET requests to *, *.a.example, 10.0.0.0/8, port 80, path /x…: rate 1/s per destination"},
		},
		{
			"an address alone is one destination",
			`budgets: [{rate: 1/s, unit: connections, match: {hosts: [10.0.0.1/32]}}]`,
			[]string{"budget-1: connections to 10.0.0.1/32, ports 80/443: rate 1/s in all"},
		},
		{
			"modes",
			"budgets: [{rate: 1/s, mode: shadow}, {rate: 1/s, mode: off}]",
			[]string{
				"budget-1: requests to every host, ports 80/443: rate 1/s per destination (shadow: measured, never held)",
				"budget-2: requests to every host, ports 80/443: rate 1/s per destination (off: as if it were not there)",
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := Describe(mustParse(t, c.text)); !slices.Equal(got, c.want) {
				t.Errorf("got:\n%q\nwant:\n%q", got, c.want)
			}
		})
	}
}
