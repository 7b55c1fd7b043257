// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"slices"
	"strings"
)

// fleetBenchmark measures limits that hosts share, in microModule. It is run by
// itself: its requests come at the rate of the limit, so their number says how
// long it takes.
const fleetBenchmark = "Fleet"

// fleetLoads are the rates of fleetBenchmark and the requests of each: half a
// minute of 80 % of the rate, or 16 s of the largest.
var fleetLoads = []struct {
	rate     string // the name of the benchmark, as go test writes it
	what     string
	requests int
}{{"5_per_s", "5/s", 120}, {"100_per_s", "100/s", 2400}, {"5000_per_s", "5000/s", 64000}}

// fleetLimiters are its limiters, by the last part of the benchmark's name.
var fleetLimiters = []struct{ name, what string }{
	{"egressd", "egressd"},
	{"redis_rate", "go-redis/redis_rate"},
	{"token-bucket-script", "a token-bucket script"},
}

// Units that fleetBenchmark reports.
const (
	unitTrips = "trips/request"
	unitP50   = "added-p50-ms"
	unitP99   = "added-p99-ms"
)

// measureFleet runs fleetBenchmark. With an error come the results until then.
func measureFleet(ctx context.Context) ([]micro, error) {
	log.Print("limits that hosts share")
	var all []micro
	var errs error
	for _, load := range fleetLoads {
		out, err := output(ctx, nil, nil, "go", "-C", microModule, "test", "-run", "^$",
			"-bench", "^Benchmark"+fleetBenchmark+"$/^"+load.rate+"$", "-benchtime", fmt.Sprintf("%dx", load.requests), ".")
		some, parseErr := parseMicro(out)
		errs = errors.Join(errs, err, parseErr)
		all = append(all, some...)
	}
	return all, errs
}

// writeFleet makes a table of what fleetBenchmark found; it writes nothing where
// it did not run.
func writeFleet(w io.Writer, all []micro) {
	t := table{head: []string{"limit and limiter", "round trips per request", "of redis_rate", "added p50", "added p99"}}
	for _, load := range fleetLoads {
		units := func(limiter string) map[string]float64 {
			i := slices.IndexFunc(all, func(m micro) bool { return m.name == strings.Join([]string{fleetBenchmark, load.rate, limiter}, "/") })
			if i < 0 {
				return nil
			}
			return all[i].units
		}
		for _, l := range fleetLimiters {
			u := units(l.name)
			if u == nil {
				continue
			}
			t.rows = append(t.rows, []string{
				load.what + ", " + l.what, fmt.Sprintf("%.3g", u[unitTrips]), times(u[unitTrips], units("redis_rate")[unitTrips]),
				fmt.Sprintf("%.2f ms", u[unitP50]), fmt.Sprintf("%.2f ms", u[unitP99]),
			})
		}
	}
	if len(t.rows) == 0 {
		return
	}
	fmt.Fprint(w, "\n### A limit that eight hosts share\n\n"+
		"Through a redis-server beside them, 80 % of the limit in requests that come at random to a random host; the burst is what the limit gives in a\n"+
		"tenth of a second, at least 1. Added is what a request waits longer than a limiter would make it wait that costs nothing; one that overtakes\n"+
		"others waits less. All eight hosts are goroutines of one process.\n\n")
	t.write(w)
}

// times is a in terms of b, as a fraction of it where it is smaller.
func times(a, b float64) string {
	switch {
	case a <= 0 || b <= 0:
		return "–"
	case a < b:
		return fmt.Sprintf("1/%.3g", b/a)
	default:
		return fmt.Sprintf("%.3g", a/b)
	}
}
