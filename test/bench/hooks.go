// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// hookCases are the ways through the connect hooks, by the name of their
// benchmark: loader/Connect/FAMILY/NAME.
var hookCases = []struct{ what, name string }{
	{"any: a program that only returns", emptyHook},
	{"not named", "unnamed"},
	{"not named, policy has prefixes", "prefixes"},
	{"not named, policy has exits of every kind and proxies", "exits"},
	{"not named, but in the neighbourhood of a prefix", "near"},
	{"named, left alone", "untouched"},
	{"budget of connections with room: counted, granted", "granted"},
	{"the same without room: delayed, the SYN gets a time", "held"},
	{"the same without room nor `fq`: the proxy holds it", "over"},
	{"named, redirected", "named"},
}

// emptyHook is the case that shows what measuring costs.
const emptyHook = "empty"

// synCases are what the program of a device does with a packet, by the name of
// their benchmark: loader/SYN/NAME.
var synCases = []struct{ what, name string }{
	{"any but a SYN", "other"},
	{"SYN to a destination that is not named", "unnamed"},
	{"SYN of a connection that was granted", "granted"},
	{"SYN that was given a time", "held"},
	{"SYN whose lane shows only here, with room", "late"},
}

// The program of devices, as the kernel calls it.
const deviceProgram = "egressd_pace"

// Rounds of all hook benchmarks, and connections of each in a round. They are
// interleaved: whatever the machine does in a moment meets few of one kind.
const (
	hookRounds      = 5
	hookConnections = 4000
)

// hookBenchmarks are those of connect hooks and of the device's program.
const hookBenchmarks = "^Benchmark(Connect|SYN)$"

// manyBenchmark makes connections of every kind and reports how many entries
// they left in the maps. It is run by itself, with manyConnections rounds.
const (
	manyBenchmark   = "ManyConnections"
	manyConnections = 100000
)

// hooks are what the programs cost and leave behind.
type hooks struct {
	costs []micro
	left  *float64 // entries in the maps after manyConnections; nil if not measured
}

// measureHooks runs the benchmarks of the programs, and manyBenchmark.
func measureHooks(ctx context.Context) (h hooks, err error) {
	log.Printf("programs, and %d connections", manyConnections)
	dir, err := os.MkdirTemp("", "egressd-bench-")
	if err != nil {
		return h, fmt.Errorf("making a folder for benchmarks: %w", err)
	}
	defer os.RemoveAll(dir)
	binary := filepath.Join(dir, "loader.test")
	if _, err := output(ctx, nil, nil, "go", "test", "-c", "-o", binary, "./loader"); err != nil {
		return h, err
	}
	bench := func(pattern string, n int) ([]byte, error) {
		return output(ctx, nil, nil, binary, "-test.run", "^$", "-test.bench", pattern, "-test.benchtime", strconv.Itoa(n)+"x")
	}
	var text []byte
	for range hookRounds {
		out, err := bench(hookBenchmarks, hookConnections)
		if err != nil {
			return h, err
		}
		text = append(text, out...)
	}
	if h.costs, err = parseMicro(text); err != nil {
		return h, err
	}
	out, err := bench("^Benchmark"+manyBenchmark+"$", manyConnections)
	if err != nil {
		return h, fmt.Errorf("connections in great number: %w", err)
	}
	all, err := parseMicro(out)
	if err != nil {
		return h, err
	}
	left, ok := all[0].units["left"]
	if !ok {
		return h, fmt.Errorf("benchmark %s reports no entries left", all[0].name)
	}
	h.left = &left
	return h, nil
}

// cost is what the program costs in the benchmark, of the package loader.
func (h hooks) cost(benchmark, program string) (ns float64, ok bool) {
	for _, m := range h.costs {
		if m.name == benchmark {
			ns, ok = m.units["ns/"+program]
			return ns, ok
		}
	}
	return 0, false
}

// write makes tables of what Go benchmarks found of the programs. It writes
// nothing where no such benchmark ran.
func (h hooks) write(w io.Writer) {
	const v4, v6 = "Connect/v4/", "Connect/v6/"
	nothing, measured := h.cost(v4+emptyHook, "connect4")
	cell := func(benchmark, program string) string {
		ns, ok := h.cost(benchmark, program)
		switch {
		case !ok:
			return "–"
		case !measured || strings.HasSuffix(benchmark, "/"+emptyHook):
			return fmt.Sprintf("%.0f", ns)
		}
		return fmt.Sprintf("%.0f → %.0f", ns, max(0, ns-nothing))
	}
	t := table{head: []string{"destination", "connect4", "connect6", "sock_release"}}
	for _, c := range hookCases {
		row := []string{c.what, cell(v4+c.name, "connect4"), cell(v6+c.name, "connect6"), cell(v4+c.name, "sock_release")}
		if strings.Join(row[1:], "") != "–––" {
			t.rows = append(t.rows, row)
		}
	}
	if len(t.rows) == 0 {
		return
	}
	fmt.Fprintf(w, "\n### Hooks\n\nTime in the programs for one connection in ns, by the kernel's own count (bpf_stats): means of %d connections, "+
		"and of those the median of %d interleaved rounds. The count itself costs what the first row says; behind the arrow that is taken off. "+
		"sock_release is of IPv4.\n\n", hookConnections, hookRounds)
	t.write(w)
	d := table{head: []string{"packet on its way out", "program at the device"}}
	for _, c := range synCases {
		if text := cell("SYN/"+c.name, deviceProgram); text != "–" {
			d.rows = append(d.rows, []string{c.what, text})
		}
	}
	if len(d.rows) > 0 {
		fmt.Fprint(w, "\nThe same of the program at the way out of devices, for each packet. Where connections are delayed they are connected through a pair "+
			"of devices without a qdisc, so the SYN that was given a time goes at once: the numbers are what egressd adds to it, not the wait in `fq`.\n\n")
		d.write(w)
	}
	if h.left != nil {
		fmt.Fprintf(w, "\n%d connections of every kind that is not delayed left %.0f entries in the maps.\n", manyConnections, *h.left)
	}
}
