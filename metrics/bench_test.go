// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"fmt"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/egressd/egressd/policy"
)

// crowded is a source of so many lanes, each with a pair of labels and counts
// of its own.
func crowded(lanes int) *fake {
	src := full()
	src.lanes, src.tallies.Pairs = nil, nil
	for i := range lanes {
		destination, exit := fmt.Sprintf("host-%d.example", i/10), fmt.Sprintf("E-%03d", i%10)
		src.lanes = append(src.lanes, Lane{Destination: destination, Exit: exit, Waiting: i % 3, Rate: 1, Budget: 2})
		tally := Tally{
			Destination: destination, Exit: exit,
			Requests: []Count{{NoAnswer, 1}, {"200", 70}, {"429", 2}},
			Refused:  []Count{{"queue_full", 0}, {"max_wait", 3}, {"framing", 0}, {"shutdown", 0}},
			Limited:  []Count{{"limited", 2}, {"capacity", 0}, {"challenge", 0}, {"exit-trouble", 0}},
			Wait:     policy.Histogram{Bounds: make([]float64, 13), Counts: make([]uint64, 14)},
			Sent:     1000, Received: 20000,
		}
		for b := range tally.Wait.Bounds {
			tally.Wait.Bounds[b], tally.Wait.Counts[b] = float64(b), 5
		}
		for _, o := range policy.Outcomes() {
			tally.Outcomes = append(tally.Outcomes, OutcomeBytes{Outcome: o.String(), Sent: 200, Received: 4000})
		}
		src.tallies.Pairs = append(src.tallies.Pairs, tally)
	}
	return src
}

// BenchmarkScrape is a scrape of many lanes, up to the text that is sent.
func BenchmarkScrape(b *testing.B) {
	for _, lanes := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("lanes=%d", lanes), func(b *testing.B) {
			registry := prometheus.NewPedanticRegistry()
			registry.MustRegister(NewCollector(Config{Source: crowded(lanes)}))
			b.ReportAllocs()
			for b.Loop() {
				gather(b, registry)
			}
		})
	}
}
