// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/test/vm/frame"
)

// twoSuites is what the stories below expect of a machine.
func twoSuites() []packed {
	return []packed{
		{suite: suite{as: "loader", skips: regexp.MustCompile(`^TestMaySkip$`)}, tests: []string{"TestA", "TestB", "TestMaySkip"}},
		{suite: suite{as: "lab"}, tests: []string{"TestC"}},
	}
}

// lines of a test binary, marked as with -test.v=test2json.
const (
	goodA    = "\x16=== RUN   TestA\n\x16=== RUN   TestA/sub\n\x16--- PASS: TestA (0.01s)\n    \x16--- PASS: TestA/sub (0.01s)\n"
	goodB    = "\x16=== RUN   TestB\n\x16--- PASS: TestB (0.01s)\n"
	badB     = "\x16=== RUN   TestB\n    b_test.go:7: got 1, want 2\n\x16--- FAIL: TestB (0.01s)\n"
	skipB    = "\x16=== RUN   TestB\n    b_test.go:9: no such thing here\n\x16--- SKIP: TestB (0.00s)\n"
	skipMay  = "\x16=== RUN   TestMaySkip\n    b_test.go:8: since 6.9\n\x16--- SKIP: TestMaySkip (0.00s)\n"
	goodC    = "\x16=== RUN   TestC\n\x16--- PASS: TestC (0.01s)\n"
	goodEnd  = "\x16PASS\n"
	badEnd   = "\x16FAIL\n"
	crashedB = "\x16=== RUN   TestB\npanic: oh\n\ngoroutine 1 [running]:\nmain.main()\n"
	liedB    = "\x16=== RUN   TestB\n--- PASS: TestB (0.01s)\nand then nothing\n"
)

// tell makes the frames of a machine that runs both suites.
func tell(loader string, code int, more ...frame.Frame) []frame.Frame {
	return append([]frame.Frame{
		{Kind: frame.Boot, Text: "6.1.0"},
		{Kind: frame.Begin, Run: "loader"},
		{Kind: frame.Output, Run: "loader", Text: loader[:len(loader)/2]}, // anywhere
		{Kind: frame.Output, Run: "loader", Text: loader[len(loader)/2:]},
		{Kind: frame.End, Run: "loader", Code: code, Elapsed: time.Second},
	}, more...)
}

var labAndDone = []frame.Frame{
	{Kind: frame.Begin, Run: "lab"},
	{Kind: frame.Output, Run: "lab", Text: goodC + goodEnd},
	{Kind: frame.End, Run: "lab"},
	{Kind: frame.Done},
}

func TestVerdict(t *testing.T) {
	hangs := errors.New("not off after 90s: the machine hangs")
	for _, tt := range []struct {
		name   string
		frames []frame.Frame
		end    error    // of the machine
		row    string   // passed, failed, skipped, missing, faults
		tells  []string // lines of the description
	}{
		{
			name:   "good",
			frames: tell(goodA+goodB+skipMay+goodEnd, 0, labAndDone...),
			row:    "4 0 1 0 0 ok",
			tells:  []string{"6.1: skip loader TestMaySkip: b_test.go:8: since 6.9"},
		},
		{
			name:   "a test fails",
			frames: tell(goodA+badB+skipMay+badEnd, 1, labAndDone...),
			row:    "3 1 1 0 0 FAILED",
			tells:  []string{"6.1: FAIL loader TestB", "b_test.go:7: got 1, want 2"},
		},
		{
			name:   "a test is skipped that must not be",
			frames: tell(goodA+skipB+skipMay+goodEnd, 0, labAndDone...),
			row:    "3 0 2 0 1 FAILED",
			tells: []string{
				"6.1: skip loader TestB: b_test.go:9: no such thing here",
				"6.1: FAULT loader: TestB was skipped, which tests.txt does not allow: b_test.go:9: no such thing here",
			},
		},
		{
			name:   "a test is not told of",
			frames: tell(goodA+skipMay+goodEnd, 0, labAndDone...),
			row:    "3 0 1 1 0 FAILED",
			tells:  []string{"6.1: MISSING loader TestB: no result of this test came out of the machine"},
		},
		{
			name:   "the binary crashes",
			frames: tell(goodA+crashedB, 2, labAndDone...),
			row:    "3 0 0 2 1 FAILED",
			tells:  []string{"6.1: MISSING loader TestB", "6.1: FAULT loader: exit status 2 without a failed test", "panic: oh"},
		},
		{
			name:   "output that looks like a result",
			frames: tell(goodA+liedB, 0, labAndDone...),
			row:    "3 0 0 2 0 FAILED",
			tells:  []string{"6.1: MISSING loader TestB"},
		},
		{
			name:   "exit status alone",
			frames: tell(goodA+goodB+skipMay+goodEnd+"left behind: a cgroup\n", 1, labAndDone...),
			row:    "4 0 1 0 1 FAILED",
			tells:  []string{"6.1: FAULT loader: exit status 1 without a failed test", "left behind: a cgroup"},
		},
		{
			name: "the test hangs and is killed",
			frames: tell(goodA+"\x16=== RUN   TestB\n", 137, append([]frame.Frame{
				{Kind: frame.Fault, Run: "loader", Text: "not done after 10s: killed"}}, labAndDone...)...),
			row:   "3 0 0 2 2 FAILED",
			tells: []string{"6.1: FAULT loader: not done after 10s: killed", "6.1: MISSING loader TestB"},
		},
		{
			name: "the kernel panics",
			frames: []frame.Frame{
				{Kind: frame.Boot, Text: "6.1.0"},
				{Kind: frame.Begin, Run: "loader"},
				{Kind: frame.Output, Run: "loader", Text: goodA + "\x16=== RUN   TestB\n"},
			},
			row: "2 0 0 3 3 FAILED",
			tells: []string{
				"6.1: FAULT it ended before its tests did", "6.1: FAULT loader: did not end",
				"6.1: FAULT lab: never started", "6.1: the last words of loader",
			},
		},
		{
			name: "the machine hangs",
			frames: []frame.Frame{
				{Kind: frame.Boot, Text: "6.1.0"},
				{Kind: frame.Begin, Run: "loader"},
			},
			end:   hangs,
			row:   "0 0 0 4 4 FAILED",
			tells: []string{"6.1: FAULT not off after 90s: the machine hangs"},
		},
		{
			name:  "it does not boot",
			end:   hangs,
			row:   "0 0 0 4 2 FAILED",
			tells: []string{"6.1: FAULT it did not boot: init never spoke"},
		},
		{
			name:   "good, but it did not power off",
			frames: tell(goodA+goodB+skipMay+goodEnd, 0, labAndDone...),
			end:    hangs,
			row:    "4 0 1 0 1 FAILED",
			tells:  []string{"6.1: FAULT not off after 90s: the machine hangs"},
		},
		{
			name:   "init has something to say",
			frames: tell(goodA+goodB+skipMay+goodEnd, 0, append([]frame.Frame{{Kind: frame.Fault, Text: "load module: no"}}, labAndDone...)...),
			row:    "4 0 1 0 1 FAILED",
			tells:  []string{"6.1: FAULT load module: no"},
		},
		{
			name:   "a run that nobody asked for",
			frames: tell(goodA+goodB+skipMay+goodEnd, 0, append([]frame.Frame{{Kind: frame.Begin, Run: "other"}}, labAndDone...)...),
			row:    "4 0 1 0 1 FAILED",
			tells:  []string{`6.1: FAULT the machine tells of a run "other" that nobody asked for`},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newResult("6.1", twoSuites())
			for _, f := range tt.frames {
				r.add(f)
			}
			if err := r.close(tt.end); err != nil {
				t.Fatal(err)
			}
			var rows, text strings.Builder
			if err := table(&rows, []*result{r}); err != nil {
				t.Fatal(err)
			}
			r.describe(&text)
			row := strings.Fields(strings.Split(rows.String(), "\n")[1])
			// Without the label, the release and the seconds.
			if got := strings.Join(append(row[2:7:7], row[9]), " "); got != tt.row {
				t.Errorf("got %s, want %s\n%s%s", got, tt.row, rows.String(), text.String())
			}
			if good := strings.HasSuffix(tt.row, "ok"); r.good() != good {
				t.Errorf("got good %t, want %t", r.good(), good)
			}
			for _, line := range tt.tells {
				if !strings.Contains(text.String(), line) {
					t.Errorf("got\n%s\nwithout %q", text.String(), line)
				}
			}
		})
	}
}

func TestLongOutputIsCut(t *testing.T) {
	r := newResult("6.1", twoSuites()[1:])
	long := "\x16=== RUN   TestC\n    the first line\n" + strings.Repeat("    log\n", 5000) + "    the last line\n\x16--- FAIL: TestC (0.01s)\n" + badEnd
	for _, f := range []frame.Frame{
		{Kind: frame.Boot, Text: "6.1.0"}, {Kind: frame.Begin, Run: "lab"},
		{Kind: frame.Output, Run: "lab", Text: long}, {Kind: frame.End, Run: "lab", Code: 1}, {Kind: frame.Done},
	} {
		r.add(f)
	}
	if err := r.close(nil); err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	r.describe(&text)
	if n := strings.Count(text.String(), "\n"); n > 100 {
		t.Errorf("got %d lines of a failed test, want at most 100", n)
	}
	for _, line := range []string{"the first line", "the last line", "lines left out"} {
		if !strings.Contains(text.String(), line) {
			t.Errorf("got no line with %q", line)
		}
	}
}

// A machine may print anything: it is never taken for a test that passed unless
// it says so in a line of its own, and everything wanted is told or missing.
func FuzzJudge(f *testing.F) {
	f.Add(`{"Action":"output","Test":"TestA","Output":"--- PASS: TestA (0.00s)\n"}` + "\n" + `{"Action":"pass","Test":"TestA"}`)
	f.Add(`{"Action":"pass","Test":"TestA"}{"Action":"skip","Test":"TestB"}`)
	f.Add(`{"Action":"output","Test":"TestB","Output":"x"}[]`)
	f.Fuzz(func(t *testing.T, text string) {
		events, err := parseEvents(strings.NewReader(text))
		if err != nil {
			return
		}
		s := newResult("x", twoSuites()).suites[0]
		s.judge(events)
		passed := map[string]bool{}
		for _, e := range events {
			if e.Action == "pass" {
				passed[e.Test] = true
			}
		}
		if s.passed > strings.Count(text, "--- PASS: ") {
			t.Errorf("%q: got %d passed", text, s.passed)
		}
		missing := map[string]bool{}
		for _, name := range s.missing {
			missing[name] = true
		}
		for _, name := range s.want {
			told := passed[name]
			for _, o := range append(s.failed, s.skipped...) {
				told = told || o.name == name
			}
			if !told && !missing[name] {
				t.Errorf("%q: %s is neither told nor missing", text, name)
			}
		}
	})
}

func TestComplaints(t *testing.T) {
	for _, tt := range []struct {
		name, file string
		want       []string // one for each complaint
	}{
		{"a good boot", "console-good.txt", nil},
		{"a panic by sysrq", "console-panic.txt", []string{"Kernel panic - not syncing: sysrq triggered crash"}},
		{"a warning of the verifier", "console-warning.txt", []string{"cut here", "WARNING: CPU: 0 PID: 88 at kernel/bpf/verifier.c:532"}},
		{"an oops", "console-oops.txt", []string{"BUG: kernel NULL pointer dereference", "Oops: 0002"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, err := os.Open("testdata/" + tt.file)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			got, err := complaints(f)
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != len(tt.want) {
				t.Fatalf("got %d complaints %q, want %d", len(got), got, len(tt.want))
			}
			for i, want := range tt.want {
				if !strings.Contains(got[i], want) {
					t.Errorf("got %q, want %q in it", got[i], want)
				}
			}
		})
	}
	endless, err := complaints(strings.NewReader(strings.Repeat("BUG: bad\n", 1000)))
	if err != nil || len(endless) != most+1 || endless[most] != "and 980 lines more like these" {
		t.Errorf("got %d lines and %v of a console without end, want %d", len(endless), err, most+1)
	}
}

func FuzzComplaints(f *testing.F) {
	f.Add("[  1.0] WARNING: CPU: 0\x1b[31m\n")
	f.Add("Oops: \xff" + strings.Repeat("\u00e9", 400))
	f.Fuzz(func(t *testing.T, text string) {
		found, err := complaints(strings.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		if len(found) > most+1 {
			t.Errorf("got %d lines", len(found))
		}
		for _, line := range found {
			if strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r == 0x7f }) || len(line) > 310 {
				t.Errorf("got line %q", line)
			}
		}
	})
}
