// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"log"
)

// hookCases are the ways through the connect hooks, by the name of their
// benchmark: loader/Connect/FAMILY/NAME.
var hookCases = []struct{ what, name string }{
	{"any: a program that only returns", "empty"},
	{"not named", "unnamed"},
	{"not named, policy has prefixes", "prefixes"},
	{"not named, policy has exits of every kind and proxies", "exits"},
	{"not named, but in the neighbourhood of a prefix", "near"},
	{"named, left alone", "untouched"},
	{"named, redirected", "named"},
}

// manyBenchmark makes connections of every kind and reports how many entries
// they left in the maps. It is run by itself, with manyConnections rounds.
const (
	manyBenchmark   = "ManyConnections"
	manyConnections = 100000
)

// measureMany runs manyBenchmark and returns how many entries were left.
func measureMany(ctx context.Context) (*float64, error) {
	log.Printf("%d connections", manyConnections)
	out, err := output(ctx, nil, nil, "go", "test", "-run", "^$", "-bench", "^Benchmark"+manyBenchmark+"$",
		"-benchtime", fmt.Sprintf("%dx", manyConnections), "./loader")
	if err != nil {
		return nil, fmt.Errorf("connections in great number: %w", err)
	}
	all, err := parseMicro(out)
	if err != nil {
		return nil, err
	}
	left, ok := all[0].units["left"]
	if !ok {
		return nil, fmt.Errorf("benchmark %s reports no entries left", all[0].name)
	}
	return &left, nil
}

// writeHooks makes a table of what Go benchmarks found of the programs, and says
// what measureMany found unless left is nil. It writes nothing where no such
// benchmark ran.
func writeHooks(w io.Writer, all []micro, left *float64) {
	units := func(family, name string) map[string]float64 {
		for _, m := range all {
			if m.pkg == "loader" && m.name == "Connect/"+family+"/"+name {
				return m.units
			}
		}
		return nil
	}
	cost := func(units map[string]float64, program string) string {
		if ns, ok := units["ns/"+program]; ok {
			return fmt.Sprintf("%.0f ns", ns)
		}
		return "–"
	}
	t := table{head: []string{"destination", "connect4", "connect6", "sock_release"}}
	for _, c := range hookCases {
		v4, v6 := units("v4", c.name), units("v6", c.name)
		if v4 == nil && v6 == nil {
			continue
		}
		t.rows = append(t.rows, []string{c.what, cost(v4, "connect4"), cost(v6, "connect6"), cost(v4, "sock_release")})
	}
	if len(t.rows) == 0 {
		return
	}
	fmt.Fprint(w, "\n### Hooks\n\nTime in the programs for one connection, by the kernel's own count (bpf_stats), which costs what the first row says.\n\n")
	t.write(w)
	if left != nil {
		fmt.Fprintf(w, "\n%d connections of every kind left %.0f entries in the maps.\n", manyConnections, *left)
	}
}
