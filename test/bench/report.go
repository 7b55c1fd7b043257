// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
)

// report is one run.
type report struct {
	date    time.Time
	machine machine
	rounds  int
	slot    time.Duration
	loads   []loadResult
	connect connectResult
	bulk    bulkResult
	fleet   []micro
	micro   []micro
	left    *float64 // entries in the maps after manyConnections; nil if not measured
}

// write prints the report as Markdown.
func (r *report) write(w io.Writer) {
	m := r.machine
	fmt.Fprintf(w, "Measured %s on %d cores (%s), Linux %s, %s; %s.\n", r.date.UTC().Format("2006-01-02 15:04 MST"),
		m.cores, m.cpu, m.kernel, m.system, strings.Join(m.versions, ", "))
	fmt.Fprintf(w, "Client, proxy and origin share the cores. %d interleaved rounds of %s each; medians, the range in brackets.\n", r.rounds, r.slot)
	for _, l := range r.loads {
		l.write(w)
	}
	if len(r.connect.names) > 0 {
		r.connect.write(w)
	}
	r.bulk.write(w)
	writeFleet(w, r.fleet)
	if len(r.micro) > 0 {
		writeHooks(w, r.micro, r.left)
		writeMicro(w, r.micro)
	}
}

func (l loadResult) write(w io.Writer) {
	fmt.Fprintf(w, "\n### %s\n\n%s\n\n", l.scenario.title, l.scenario.about)
	t := table{head: []string{"through", "requests/s", "of nginx", "of HAProxy", "p50", "p99", "proxy CPU per request"}}
	rate := func(name string) float64 {
		return median(values(l.slots[slices.Index(l.names, name)], func(s load) float64 { return s.perSecond }))
	}
	for i, name := range l.names {
		perSecond := values(l.slots[i], func(s load) float64 { return s.perSecond })
		cpu := values(l.slots[i], func(s load) float64 { return float64(s.cpu) })
		row := []string{
			name,
			fmt.Sprintf("%.0f (%.0f–%.0f)", median(perSecond), slices.Min(perSecond), slices.Max(perSecond)),
			ratio(median(perSecond), rate(nameNginx)),
			ratio(median(perSecond), rate(nameHAProxy)),
			micros(median(values(l.slots[i], func(s load) float64 { return float64(s.p50) }))),
			micros(median(values(l.slots[i], func(s load) float64 { return float64(s.p99) }))),
			micros(median(cpu)),
		}
		if median(cpu) == 0 {
			row[len(row)-1] = "–"
		}
		errs := 0
		for _, s := range l.slots[i] {
			errs += s.errors
		}
		if errs > 0 {
			row[1] += fmt.Sprintf(", %d socket errors", errs)
		}
		t.rows = append(t.rows, row)
	}
	t.write(w)
}

func (c connectResult) write(w io.Writer) {
	fmt.Fprintf(w, "\n### connect()\n\nThe call alone, on loopback: medians of %d calls, and of those the median of %d interleaved rounds.\n\n", connectCalls, len(c.rounds[0]))
	t := table{head: []string{"destination", "time", "of native"}}
	ns := func(i int) []float64 { return values(c.rounds[i], func(d time.Duration) float64 { return float64(d) }) }
	for i, name := range c.names {
		t.rows = append(t.rows, []string{
			name,
			fmt.Sprintf("%s (%s–%s)", micros(median(ns(i))), micros(slices.Min(ns(i))), micros(slices.Max(ns(i)))),
			fmt.Sprintf("%.3f", median(ns(i))/median(ns(0))),
		})
	}
	t.write(w)
}

func (b bulkResult) write(w io.Writer) {
	fmt.Fprintf(w, "\n### TLS passed through\n\nOne download of %d MiB with curl; nobody but the ends decrypts.\n\n", b.mib)
	t := table{head: []string{"through", "GB/s", "of direct", "proxy CPU per GB"}}
	direct := 0.0
	for i, name := range b.names {
		speed := values(b.runs[i], func(r bulk) float64 { return r.gbPerSecond })
		if i == 0 {
			direct = median(speed)
		}
		cpu := "–"
		if c := median(values(b.runs[i], func(r bulk) float64 { return float64(r.cpu) })); c > 0 {
			cpu = fmt.Sprintf("%.0f ms", c/1e6)
		}
		if name == nameHAProxy {
			name = "HAProxy TCP, splice-auto"
		}
		t.rows = append(t.rows, []string{
			name,
			fmt.Sprintf("%.2f (%.2f–%.2f)", median(speed), slices.Min(speed), slices.Max(speed)),
			ratio(median(speed), direct),
			cpu,
		})
	}
	t.write(w)
}

// comparisons are the pairs of Go benchmarks whose ratio is worth a line.
// Names are folder/benchmark.
var comparisons = []struct{ what, one, other string }{
	{"a cell that grants, against x/time/rate", "policy/ledger/Acquire/granted", "policy/ledger/TimeRate/granted"},
	{"a cell that does not", "policy/ledger/Acquire/not_yet", "policy/ledger/TimeRate/not_yet"},
	{"a cell that all cores take from", "policy/ledger/Acquire/contended", "policy/ledger/TimeRate/contended"},
	{"the gate's whole decision, clock included", "userspace/gate/Decision/egressd", "userspace/gate/Decision/x-time-rate"},
}

func writeMicro(w io.Writer, all []micro) {
	fmt.Fprint(w, "\n### Parts\n\nGo benchmarks (`go test -bench . -benchmem`), medians of three.\n\n")
	t := table{head: []string{"benchmark", "time", "bytes", "allocations", "and"}}
	ns := map[string]float64{}
	for _, m := range all {
		name := m.pkg + "/" + m.name
		ns[name] = m.ns
		t.rows = append(t.rows, []string{"`" + name + "`", nanos(m.ns), fmt.Sprint(m.bytes), fmt.Sprint(m.allocs), strings.Join(m.others, ", ")})
	}
	t.write(w)
	var lines []string
	for _, c := range comparisons {
		if ns[c.one] > 0 && ns[c.other] > 0 {
			lines = append(lines, fmt.Sprintf("- %s: %s against %s, %.2f times the speed\n", c.what, nanos(ns[c.one]), nanos(ns[c.other]), ns[c.other]/ns[c.one]))
		}
	}
	if len(lines) > 0 {
		fmt.Fprintf(w, "\n%s", strings.Join(lines, ""))
	}
}

// values picks one number out of each sample.
func values[T any](samples []T, pick func(T) float64) []float64 {
	var v []float64
	for _, s := range samples {
		v = append(v, pick(s))
	}
	return v
}

// median is the middle value, or the mean of the two in the middle; 0 of none.
func median(v []float64) float64 {
	if len(v) == 0 {
		return 0
	}
	v = slices.Sorted(slices.Values(v))
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}

func ratio(a, b float64) string {
	if b == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", a/b)
}

func micros(ns float64) string { return fmt.Sprintf("%.1f µs", ns/1e3) }

// nanos writes a time per operation with three digits or so.
func nanos(ns float64) string {
	switch {
	case ns < 100:
		return fmt.Sprintf("%.1f ns", ns)
	case ns < 10e3:
		return fmt.Sprintf("%.0f ns", ns)
	default:
		return fmt.Sprintf("%.1f µs", ns/1e3)
	}
}

// table is a Markdown table; all columns but the first are numbers.
type table struct {
	head []string
	rows [][]string
}

func (t table) write(w io.Writer) {
	fmt.Fprintf(w, "| %s |\n|---|%s\n", strings.Join(t.head, " | "), strings.Repeat("---:|", len(t.head)-1))
	for _, row := range t.rows {
		fmt.Fprintf(w, "| %s |\n", strings.Join(row, " | "))
	}
}

// The measured part of the document stands between these lines; the rest is
// written by hand and kept.
const (
	measuredBegin = "<!-- measured: written by make bench -->\n"
	measuredEnd   = "<!-- end of what was measured -->\n"
)

// replaceMeasured puts text into the document, which is made if need be.
func replaceMeasured(file string, text []byte) error {
	old, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		old = []byte("# Benchmarks\n\n" + measuredBegin + measuredEnd)
	} else if err != nil {
		return fmt.Errorf("reading the old report: %w", err)
	}
	head, rest, ok := bytes.Cut(old, []byte(measuredBegin))
	_, tail, ok2 := bytes.Cut(rest, []byte(measuredEnd))
	if !ok || !ok2 {
		return fmt.Errorf("%s has no lines %q and %q", file, measuredBegin, measuredEnd)
	}
	updated := slices.Concat(head, []byte(measuredBegin+"\n"), text, []byte("\n"+measuredEnd), tail)
	if err := os.WriteFile(file, updated, 0o644); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}
