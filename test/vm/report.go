// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// describe writes all that is to be known of one kernel's results but the table.
func (r *result) describe(w io.Writer) {
	for _, s := range r.suites {
		for _, o := range s.failed {
			fmt.Fprintf(w, "%s: FAIL %s %s\n%s", r.label, s.name, o.name, indent(cut(o.output)))
		}
		for _, name := range s.missing {
			fmt.Fprintf(w, "%s: MISSING %s %s: no result of this test came out of the machine\n", r.label, s.name, name)
		}
		if !s.ended && s.begun {
			fmt.Fprintf(w, "%s: the last words of %s\n%s", r.label, s.name, indent(tail(s.text.String(), 20)))
		}
		for _, o := range s.skipped {
			fmt.Fprintf(w, "%s: skip %s %s: %s\n", r.label, s.name, o.name, o.reason())
		}
	}
	for _, fault := range r.faults {
		fmt.Fprintf(w, "%s: FAULT %s\n", r.label, fault)
	}
}

// table writes the results of all kernels, one line each, and one for each
// package below it.
func table(w io.Writer, results []*result) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "kernel\trelease\tpassed\tfailed\tskipped\tmissing\tfaults\tseconds\tCPU s\t")
	for _, r := range results {
		var passed, failed, skipped, missing int
		for _, s := range r.suites {
			passed += s.passed
			failed += len(s.failed)
			skipped += len(s.skipped)
			missing += len(s.missing)
		}
		word := "ok"
		if !r.good() {
			word = "FAILED"
		}
		release := r.release
		if release == "" {
			release = "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%d\t%d\t%d\t%.0f\t%.0f\t%s\n", r.label, release, passed, failed, skipped, missing, len(r.faults), r.elapsed.Seconds(), r.cpu.Seconds(), word)
		for _, s := range r.suites {
			fmt.Fprintf(t, "\t  %s\t%d\t%d\t%d\t%d\t\t%.0f\t\t\n", s.name, s.passed, len(s.failed), len(s.skipped), len(s.missing), s.elapsed.Seconds())
		}
	}
	return t.Flush()
}

func indent(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString("    ")
		b.WriteString(strings.TrimRight(line, "\n"))
		b.WriteByte('\n')
	}
	return b.String()
}

// cut leaves out the middle of a long text: one test that a verifier did not
// like may print thousands of lines.
func cut(text string) string {
	const head, foot = 20, 40
	lines := strings.SplitAfter(text, "\n")
	if len(lines) <= head+foot+1 {
		return text
	}
	left := len(lines) - head - foot
	return strings.Join(lines[:head], "") + fmt.Sprintf("... %d lines left out\n", left) + strings.Join(lines[len(lines)-foot:], "")
}
