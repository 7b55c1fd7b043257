// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/test/vm/frame"
)

// result is what one kernel made of the tests.
type result struct {
	label, release string
	elapsed        time.Duration // of the whole machine
	cpu            time.Duration // of this machine's processors: what the other would have taken on an idle one, but for waiting
	suites         []*suiteResult
	faults         []string // what is wrong besides tests: each one fails the kernel
	done           bool     // the machine came to its end
}

// suiteResult is what one kernel made of one package.
type suiteResult struct {
	name    string
	want    []string               // tests that are to be reported
	maySkip func(name string) bool // whether a test may be skipped
	text    strings.Builder
	begun   bool
	ended   bool
	code    int
	elapsed time.Duration

	passed  int
	failed  []outcome
	skipped []outcome
	missing []string // top-level tests of which no result came
	wrong   []string // what else is not as it has to be
}

// outcome is a test that did not pass, with what it printed.
type outcome struct{ name, output string }

// newResult expects the tests of suites.
func newResult(label string, suites []packed) *result {
	r := &result{label: label}
	for _, s := range suites {
		r.suites = append(r.suites, &suiteResult{name: s.name(), want: s.tests, maySkip: s.maySkip})
	}
	return r
}

// add takes the next frame.
func (r *result) add(f frame.Frame) {
	s := r.suite(f.Run)
	switch f.Kind {
	case frame.Boot:
		r.release = f.Text
	case frame.Done:
		r.done = true
	case frame.Fault:
		text := f.Text
		if f.Run != "" {
			text = f.Run + ": " + text
		}
		r.faults = append(r.faults, text)
		return
	}
	if f.Kind != frame.Begin && f.Kind != frame.Output && f.Kind != frame.End {
		return
	}
	if s == nil {
		r.faults = append(r.faults, fmt.Sprintf("the machine tells of a run %q that nobody asked for", f.Run))
		return
	}
	switch f.Kind {
	case frame.Begin:
		s.begun = true
	case frame.Output:
		s.text.WriteString(f.Text)
	case frame.End:
		s.ended, s.code, s.elapsed = true, f.Code, f.Elapsed
	}
}

func (r *result) suite(name string) *suiteResult {
	for _, s := range r.suites {
		if s.name == name {
			return s
		}
	}
	return nil
}

// close judges what came, once nothing more does. runErr is how the machine
// ended.
func (r *result) close(runErr error) error {
	if runErr != nil {
		r.faults = append(r.faults, runErr.Error())
	}
	switch {
	case r.release == "":
		r.faults = append(r.faults, "it did not boot: init never spoke")
	case !r.done:
		r.faults = append(r.faults, "it ended before its tests did")
	}
	for _, s := range r.suites {
		events, err := convert(s.text.String())
		if err != nil {
			return err
		}
		s.judge(events)
		for _, text := range s.wrong {
			r.faults = append(r.faults, s.name+": "+text)
		}
		switch {
		case r.release != "" && !s.begun:
			r.faults = append(r.faults, s.name+": never started")
		case s.begun && !s.ended:
			r.faults = append(r.faults, s.name+": did not end")
		case s.code != 0 && len(s.failed) == 0:
			r.faults = append(r.faults, fmt.Sprintf("%s: exit status %d without a failed test\n%s", s.name, s.code, tail(s.text.String(), 40)))
		}
	}
	return nil
}

// event is a line of test2json, see `go doc test2json`.
type event struct {
	Action, Test, Output string
	Elapsed              float64 // seconds
}

// test2json is the path of the go command's own reader of what test binaries
// print.
var test2json = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("go", "tool", "-n", "test2json").Output()
	if err != nil {
		return "", fmt.Errorf("find test2json: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
})

// convert makes events of what a test binary printed.
func convert(text string) (events []event, err error) {
	path, err := test2json()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(path)
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("test2json: %w", err)
	}
	return parseEvents(strings.NewReader(string(out)))
}

func parseEvents(in io.Reader) (events []event, err error) {
	for dec := json.NewDecoder(bufio.NewReader(in)); ; {
		var e event
		err := dec.Decode(&e)
		if errors.Is(err, io.EOF) {
			return events, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read test events: %w", err)
		}
		events = append(events, e)
	}
}

// judge counts tests and sub-tests, each as one, and finds out which of the
// wanted tests nobody told of. A test that began and did not end is one.
func (s *suiteResult) judge(events []event) {
	output := map[string]*strings.Builder{}
	told := map[string]bool{}
	for _, e := range events {
		switch e.Action {
		case "output":
			if output[e.Test] == nil {
				output[e.Test] = new(strings.Builder)
			}
			output[e.Test].WriteString(e.Output)
		case "pass", "fail", "skip":
			// test2json ends what the binary left open; only a line of the
			// binary itself counts.
			if e.Test == "" || !strings.Contains(textOf(output[e.Test]), "--- "+strings.ToUpper(e.Action)+": "+e.Test+" (") {
				continue
			}
			told[e.Test] = true
			o := outcome{e.Test, textOf(output[e.Test])}
			switch e.Action {
			case "pass":
				s.passed++
			case "fail":
				s.failed = append(s.failed, o)
			case "skip":
				s.skipped = append(s.skipped, o)
				if !s.maySkip(e.Test) {
					s.wrong = append(s.wrong, fmt.Sprintf("%s was skipped, which tests.txt does not allow: %s", e.Test, o.reason()))
				}
			}
		}
	}
	for _, name := range s.want {
		if !told[name] {
			s.missing = append(s.missing, name)
		}
	}
	slices.SortFunc(s.failed, func(a, b outcome) int { return strings.Compare(a.name, b.name) })
}

func textOf(b *strings.Builder) string {
	if b == nil {
		return ""
	}
	return b.String()
}

// reason picks the text of t.Skip out of what a skipped test printed.
func (o outcome) reason() string {
	for line := range strings.Lines(o.output) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "---") && !strings.HasPrefix(line, "===") {
			return line
		}
	}
	return "no reason given"
}

// good reports whether nothing at all went wrong.
func (r *result) good() bool {
	for _, s := range r.suites {
		if len(s.failed) > 0 || len(s.missing) > 0 {
			return false
		}
	}
	return len(r.faults) == 0 && r.done
}

// tail is the last n lines of text.
func tail(text string, n int) string {
	lines := strings.SplitAfter(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "")
}
