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
			"all that limits",
			`budgets:
  - {rate: 1/s, burst: 5, window: {limit: 100, per: 1m}, concurrency: 4}
  - {rate: 1/s, burst: 50, window: {limit: 100, per: 1m}}
  - {rate: 2/s, window: {limit: 100, per: 1m, kind: fixed}}
  - {rate: 10/30s, window: {limit: 20, per: 1m}}
  - {rate: 10/30s, window: {limit: 21, per: 1m}}
  - {rate: 10/30s, cost: 2, window: {limit: 21, per: 1m}}
  - {rate: auto, start: 5/s, window: {limit: 1, per: 1m}}
  - {rate: auto, burst: 0.5}
  - {window: {limit: 1000, per: 1h30m}}
  - {concurrency: 1, match: {hosts: [a.example]}}`,
			[]string{
				"budget-1: requests to every host, ports 80/443: rate 1/s burst 5, at most 100 in any 1m (never reached: the rate lets 65 go), 4 at once per destination",
				"budget-2: requests to every host, ports 80/443: rate 1/s burst 50, at most 100 in any 1m (in the long run the rate binds) per destination",
				"budget-3: requests to every host, ports 80/443: rate 2/s, at most 100 in each 1m (in the long run the window binds) per destination",
				"budget-4: requests to every host, ports 80/443: rate 10/30s, at most 20 in any 1m (in the long run the rate binds) per destination",
				"budget-5: requests to every host, ports 80/443: rate 10/30s, at most 21 in any 1m (never reached: the rate lets 21 go) per destination",
				"budget-6: requests to every host, ports 80/443: rate 10/30s, at most 21 in any 1m (in the long run the rate binds) per destination; each takes 2",
				"budget-7: requests to every host, ports 80/443: rate auto from 5/s, at most 1 in any 1m per destination",
				"budget-8: requests to every host, ports 80/443: rate auto from 1/s per destination",
				"budget-9: requests to every host, ports 80/443: at most 1000 in any 1h30m per destination",
				"budget-10: requests to a.example, ports 80/443: 1 at once in all",
			},
		},
		{
			"what multiplies",
			twoExits + `budgets:
  - {rate: 1/s, window: {limit: 100, per: 1h}, concurrency: 4}
  - {rate: auto, window: {limit: 100, per: 1h, kind: fixed}}
  - {rate: auto}
  - {rate: 1/s, per: [destination, exit, session, path]}
  - {rate: 1/s, per: [session]}
  - {rate: 1/s, per: [exit, path], match: {hosts: [a.example]}}`,
			[]string{
				"budget-1: requests to every host, ports 80/443: rate 1/s, at most 100 in any 1h (in the long run the window binds), 4 at once per exit × 2 exits (+direct) = up to 3/s, 300 in any 1h, 12 at once per destination",
				"budget-2: requests to every host, ports 80/443: rate auto from 1/s, at most 100 in each 1h per exit × 2 exits (+direct) = up to 300 in each 1h per destination",
				"budget-3: requests to every host, ports 80/443: rate auto from 1/s per exit × 2 exits (+direct) per destination",
				"budget-4: requests to every host, ports 80/443: rate 1/s per exit × 2 exits (+direct) = up to 3/s per destination, session and path",
				"budget-5: requests to every host, ports 80/443: rate 1/s per session",
				"budget-6: requests to a.example, ports 80/443: rate 1/s per exit × 2 exits (+direct) = up to 3/s per path",
			},
		},
		{
			"cost and fairness",
			`budgets:
  - {rate: 1/s, cost: {header: X-Cost}, queue: {fair_by: process}}
  - {rate: 1/s, cost: {units: 3, header: x-cost}, queue: {fair_by: cgroup}, mode: off}
  - {rate: 1/s, cost: 1, queue: {fair_by: uid}}`,
			[]string{
				"budget-1: requests to every host, ports 80/443: rate 1/s per destination; each takes 1 until x-cost tells; turns by process",
				"budget-2: requests to every host, ports 80/443: rate 1/s per destination; each takes 3 until x-cost tells; turns by cgroup (off: as if it were not there)",
				"budget-3: requests to every host, ports 80/443: rate 1/s per destination; turns by uid",
			},
		},
		{
			"how far HTTPS is looked into",
			`quic: refuse
tls: {mode: observe, sources: [keylog]}
budgets:
  - {rate: 1/s, cost: 2}
  - {rate: 1/s, tls: {mode: passthrough}}
  - {rate: 1/s, tls: {mode: terminate}, mode: shadow}`,
			[]string{
				"budget-1: requests to every host, ports 80/443: rate 1/s per destination; each takes 2; HTTPS is observed by keys that its processes write",
				"budget-2: requests to every host, ports 80/443: rate 1/s per destination",
				"budget-3: requests to every host, ports 80/443: rate 1/s per destination; TLS ends here: WARNING: clients get certificates of this host's own authority, and fail unless they trust it (shadow: measured, never held)",
				"quic: refused to ports and addresses of budgets, so that clients fall back to TCP",
			},
		},
		{
			"sources of what is observed",
			"tls: {mode: observe}\nbudgets: [{rate: 1/s}]",
			[]string{"budget-1: requests to every host, ports 80/443: rate 1/s per destination; HTTPS is observed by keys that its processes write, or by uprobes in them"},
		},
		{
			"one source",
			"tls: {sources: [uprobes]}\nbudgets: [{rate: 1/s, tls: {mode: observe}}]",
			[]string{"budget-1: requests to every host, ports 80/443: rate 1/s per destination; HTTPS is observed by uprobes in its processes"},
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
