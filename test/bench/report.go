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
	paced   []pacedRow
	connect []connectRow
	bulk    bulkResult
	hooks   hooks
	fleet   []micro
	micro   []micro
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
	writePaced(w, r.paced)
	writeConnect(w, r.connect)
	r.hooks.write(w)
	if len(r.bulk.names) > 0 {
		r.bulk.write(w)
	}
	writeFleet(w, r.fleet)
	if len(r.micro) > 0 {
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

func writePaced(w io.Writer, rows []pacedRow) {
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(w, "\n### Under a budget of connections\n\nThe kernel plane takes such a connection (`unit: connections`) where connect() is called, and the client talks to the "+
		"origin itself. The budget has room for all. The direct way goes twice, in a cgroup that the daemon does not watch: what its second row differs by is noise. "+
		"%d rounds of %s, in which all are under load by turns of %s, in an order that changes, and stand still in between; medians, of the ratios within a round as well, "+
		"and in brackets the middle half of the rounds. The goal is 0.97.\n\n",
		len(rows[0].perSecond), pacedRound, pacedTurn)
	t := table{head: []string{"connections", "way", "requests/s", "of direct"}, left: 2}
	for _, r := range rows {
		t.rows = append(t.rows, []string{r.scenario, r.name, middle("%.0f", r.perSecond), middle("%.3f", ratios(r.perSecond, r.direct))})
	}
	t.write(w)
}

func writeConnect(w io.Writer, rows []connectRow) {
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(w, "\n### connect()\n\nThe call alone, on loopback, with nobody who accepts at once. One thread makes all calls, of all kinds by turns in an order that changes, on sockets that "+
		"were made inside or outside of the daemon's scope. The median of %d calls of a kind is a round; %d rounds: medians, of the ratios within a round as well, and in brackets the middle "+
		"half of the rounds. Native calls go twice: what their second row differs by is noise. What a program takes that only returns is the kernel's share, whoever runs one there. "+
		"The goal for what is not named is 1.01. Redirected calls have rounds of their own, "+
		"in which the proxy works, and native calls of their own.\n\n", connectCalls, len(rows[0].time))
	t := table{head: []string{"destination", "time, µs", "of native", "more, ns"}}
	for _, r := range rows {
		ns, native := values(r.time, nanoseconds), values(r.native, nanoseconds)
		us, more := make([]float64, len(ns)), make([]float64, len(ns))
		for i := range ns {
			us[i], more[i] = ns[i]/1e3, ns[i]-native[i]
		}
		t.rows = append(t.rows, []string{r.name, middle("%.2f", us), middle("%.3f", ratios(ns, native)), middle("%.0f", more)})
	}
	t.write(w)
}

// ratios are those of each sample to the one of the same round.
func ratios(v, to []float64) []float64 {
	r := make([]float64, len(v))
	for i := range v {
		r[i] = v[i] / to[i]
	}
	return r
}

// middle writes the median, and in brackets the middle half of the samples.
func middle(format string, v []float64) string {
	s := slices.Sorted(slices.Values(v))
	return fmt.Sprintf(format+" ("+format+"–"+format+")", median(s), s[len(s)/4], s[len(s)-1-len(s)/4])
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

// table is a Markdown table; all columns but the first are numbers, or all but
// the first so many.
type table struct {
	head []string
	rows [][]string
	left int
}

func (t table) write(w io.Writer) {
	left := max(1, t.left)
	fmt.Fprintf(w, "| %s |\n|%s%s\n", strings.Join(t.head, " | "), strings.Repeat("---|", left), strings.Repeat("---:|", len(t.head)-left))
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
