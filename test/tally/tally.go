// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// event is a line of `go test -json`, see `go doc test2json` and, for the
// events of builds, `go help buildjson`.
type event struct {
	Action      string
	Package     string
	ImportPath  string // of build events, instead of Package
	Test        string // empty in the events of a package as a whole
	Output      string
	Elapsed     float64 // seconds
	FailedBuild string  // ImportPath of the build that failed the package
}

// testID names a test, or with an empty name the package around it.
type testID struct{ pkg, name string }

// tally counts results. Tests and their sub-tests count as one each.
type tally struct {
	out                     *bufio.Writer
	passed, failed, skipped int
	output                  map[testID][]string // of tests that have not ended
	builds                  map[string][]string // output of builds by import path
	failedIn                map[string]int      // failed tests by package
	running                 map[testID]bool
	skips                   []string
}

func newTally(out *bufio.Writer) *tally {
	return &tally{
		out:      out,
		output:   map[testID][]string{},
		builds:   map[string][]string{},
		failedIn: map[string]int{},
		running:  map[testID]bool{},
	}
}

// read takes events to the end of in. A line that is no event is passed on:
// the go command prints some errors as plain text.
func (t *tally) read(in io.Reader) error {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadBytes('\n')
		if line = bytes.TrimSpace(line); len(line) > 0 {
			var e event
			if jsonErr := json.Unmarshal(line, &e); jsonErr != nil {
				fmt.Fprintf(t.out, "%s\n", line)
			} else {
				t.add(e)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading test events: %w", err)
		}
	}
}

func (t *tally) add(e event) {
	id := testID{e.Package, e.Test}
	switch e.Action {
	case "run":
		t.running[id] = true
	case "output":
		t.output[id] = append(t.output[id], e.Output)
	case "build-output":
		t.builds[e.ImportPath] = append(t.builds[e.ImportPath], e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			t.endPackage(e)
		} else {
			t.endTest(id, e.Action)
		}
		delete(t.output, id)
		t.out.Flush()
	}
}

func (t *tally) endTest(id testID, action string) {
	delete(t.running, id)
	switch action {
	case "pass":
		t.passed++
	case "skip":
		t.skipped++
		t.skips = append(t.skips, id.pkg+" "+id.name+": "+reason(t.output[id]))
	case "fail":
		t.failed++
		t.failedIn[id.pkg]++
		t.print(t.output[id])
	}
}

// endPackage prints the line of a package. One that failed without a failed
// test (it does not build, it crashed, its TestMain gave up) counts as one
// failure, and each test that it left unfinished as one more.
func (t *tally) endPackage(e event) {
	for id := range t.running {
		if id.pkg == e.Package {
			t.failed++
			t.failedIn[id.pkg]++
			fmt.Fprintf(t.out, "--- UNFINISHED: %s\n", id.name)
			t.print(t.output[id])
			delete(t.output, id)
			delete(t.running, id)
		}
	}
	if e.Action != "fail" {
		if e.Action == "pass" {
			fmt.Fprintf(t.out, "ok    %s %.1fs\n", e.Package, e.Elapsed)
		}
		return
	}
	if t.failedIn[e.Package] == 0 {
		t.failed++
	}
	t.print(t.builds[e.FailedBuild])
	t.print(t.output[testID{pkg: e.Package}])
	fmt.Fprintf(t.out, "FAIL  %s %.1fs\n", e.Package, e.Elapsed)
}

// finish prints the count, and says whether it is a good one. A test whose
// package did not end is a failure: the events were cut off.
func (t *tally) finish() error {
	for id := range t.running {
		t.failed++
		fmt.Fprintf(t.out, "--- UNFINISHED: %s %s\n", id.pkg, id.name)
		t.print(t.output[id])
	}
	slices.SortFunc(t.skips, cmp.Compare[string])
	for _, s := range t.skips {
		fmt.Fprintln(t.out, "skip ", s)
	}
	fmt.Fprintf(t.out, "%d passed, %d failed, %d skipped\n", t.passed, t.failed, t.skipped)
	switch {
	case t.failed > 0:
		return errors.New("there were failures")
	case t.passed == 0:
		return errors.New("no test ran")
	}
	return nil
}

func (t *tally) print(output []string) {
	for _, line := range output {
		t.out.WriteString(line)
	}
}

// reason picks the text of t.Skip out of the output of a skipped test.
func reason(output []string) string {
	for _, line := range slices.Backward(output) {
		line = strings.TrimSpace(line)
		if line != "" && !strings.HasPrefix(line, "---") && !strings.HasPrefix(line, "===") {
			return line
		}
	}
	return "no reason given"
}
