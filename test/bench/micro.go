// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"regexp"
	"strconv"
	"strings"
)

// microPackages are the packages whose benchmarks are reported, and
// microModule is the module of those that compare egressd with other limiters.
var microPackages = []string{"./policy/...", "./userspace/...", "./loader"}

const microModule = "test/bench/limiters"

// micro is the result of one Go benchmark: the medians of its runs.
type micro struct {
	pkg, name string
	ns        float64            // per operation
	bytes     float64            // per operation
	allocs    float64            // per operation
	others    []string           // what else the benchmark reports, such as "12 ns/connect4"
	units     map[string]float64 // the same by its unit
}

// measureMicro runs the benchmarks of microPackages, three times each, but for
// those of measureHooks. With an error come the results until then.
func measureMicro(ctx context.Context) ([]micro, error) {
	log.Printf("Go benchmarks of %s, %s", strings.Join(microPackages, ", "), microModule)
	skip := strings.Join([]string{manyBenchmark, hookBenchmarks, fleetBenchmark + "$"}, "|")
	flags := []string{"-run", "^$", "-bench", ".", "-skip", skip, "-benchmem", "-benchtime", "0.2s", "-count", "3"}
	out, err := output(ctx, nil, nil, "go", append(append([]string{"test"}, flags...), microPackages...)...)
	others, othersErr := output(ctx, nil, nil, "go", append([]string{"-C", microModule, "test"}, flags...)...)
	all, parseErr := parseMicro(append(out, others...))
	return all, errors.Join(err, othersErr, parseErr)
}

var benchLine = regexp.MustCompile(`^(Benchmark\S+?)(?:-\d+)?\s+\d+\s+(.*)$`)

// parseMicro reads the output of `go test -bench`. Runs of one benchmark
// become one result, in the order of their first.
func parseMicro(out []byte) ([]micro, error) {
	type key struct{ pkg, name string }
	type runs struct {
		units  []string // in the order of the line
		values map[string][]float64
	}
	var order []key
	byKey := map[key]*runs{}
	pkg := ""
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		if p, ok := strings.CutPrefix(lines.Text(), "pkg: "); ok {
			pkg = p[strings.Index(p, "/egressd/egressd/")+len("/egressd/egressd/"):]
			continue
		}
		m := benchLine.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		k := key{pkg, strings.TrimPrefix(m[1], "Benchmark")}
		r := byKey[k]
		if r == nil {
			r = &runs{values: map[string][]float64{}}
			byKey[k] = r
			order = append(order, k)
		}
		fields := strings.Fields(m[2])
		for i := 0; i+1 < len(fields); i += 2 {
			v, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				return nil, fmt.Errorf("benchmark line %q: %w", lines.Text(), err)
			}
			unit := fields[i+1]
			if r.values[unit] == nil {
				r.units = append(r.units, unit)
			}
			r.values[unit] = append(r.values[unit], v)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading benchmarks: %w", err)
	}
	if len(order) == 0 {
		return nil, errors.New("no benchmark ran")
	}
	var all []micro
	for _, k := range order {
		r := byKey[k]
		m := micro{pkg: k.pkg, name: k.name}
		for _, unit := range r.units {
			switch v := median(r.values[unit]); unit {
			case "ns/op":
				m.ns = v
			case "B/op":
				m.bytes = v
			case "allocs/op":
				m.allocs = v
			case "MB/s": // the same as ns/op
			default:
				m.others = append(m.others, fmt.Sprintf("%.4g %s", v, unit))
				if m.units == nil {
					m.units = make(map[string]float64)
				}
				m.units[unit] = v
			}
		}
		all = append(all, m)
	}
	return all, nil
}
