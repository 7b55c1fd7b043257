// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestParseKernels(t *testing.T) {
	got, err := parseKernels("# list\n\n6.1 bookworm 6.1. 6.1.176-1 # old\nsid\tsid - 7.2.13-1\n")
	want := []kernel{{"6.1", "bookworm", "6.1.", "6.1.176-1"}, {"sid", "sid", "-", "7.2.13-1"}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	for text, want := range map[string]string{
		"":                      "no kernel",
		"# nothing\n":           "no kernel",
		"\n6.1 bookworm 6.1.":   "line 2: got 3 words",
		"6.1 b 6.1. 6.12.1-1":   "line 1: version 6.12.1-1 is not of the series 6.1.",
		"a b - 1\n#\na b - 2\n": "line 3: label a is there twice",
	} {
		if _, err := parseKernels(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want an error with %q", text, err, want)
		}
	}
}

func TestChoose(t *testing.T) {
	list := []kernel{{label: "6.1"}, {label: "6.12"}, {label: "sid"}}
	for _, tt := range []struct {
		labels []string
		want   string
		err    string
	}{
		{nil, "6.1 6.12 sid", ""},
		{[]string{"sid", "6.1"}, "sid 6.1", ""},
		{[]string{"6.1", "5.4"}, "", `no kernel "5.4": there are 6.1, 6.12, sid`},
	} {
		got, err := choose(list, tt.labels)
		var labels []string
		for _, k := range got {
			labels = append(labels, k.label)
		}
		if strings.Join(labels, " ") != tt.want || (err == nil) != (tt.err == "") || err != nil && err.Error() != tt.err {
			t.Errorf("%q: got %q, %v; want %q, %q", tt.labels, labels, err, tt.want, tt.err)
		}
	}
}

func TestParseSuites(t *testing.T) {
	list, err := parseSuites("loader 2m\n" +
		"loader 1s as=other run=X\n./loader/sight/  90s with=curl,ldd with=bash run=^(TestA|TestB)$ skip=B skips=^TestA/ env=A=b=c\n")
	if err != nil || len(list) != 3 {
		t.Fatalf("got %v, %v; want three packages", list, err)
	}
	if s := list[0]; s.name() != "loader" || s.timeout != 2*time.Minute || !s.wants("TestX") || s.maySkip("TestX") || s.dir() != "/src/loader" {
		t.Errorf("got %+v", s)
	}
	s := list[2]
	if s.name() != "loader/sight" || !s.wants("TestA") || s.wants("TestB") || s.wants("TestC") || !s.maySkip("TestA/sub") || s.maySkip("TestA") {
		t.Errorf("got %+v", s)
	}
	if want := []string{"curl", "ldd", "bash"}; !reflect.DeepEqual(s.with, want) || !reflect.DeepEqual(s.env, []string{"A=b=c"}) {
		t.Errorf("got programs %v and environment %v", s.with, s.env)
	}
	want := "-test.v=test2json -test.parallel=1 -test.timeout=1m30s -test.run=^(TestA|TestB)$ -test.skip=B"
	if got := strings.Join(s.args(), " "); got != want {
		t.Errorf("got arguments %s, want %s", got, want)
	}
	for text, want := range map[string]string{
		"":                       "no package",
		"loader":                 "line 1: want a package and its time limit",
		"\nloader soon":          `line 2: time limit "soon"`,
		"loader 0s":              `time limit "0s"`,
		"loader 1s quick":        `got "quick", want key=value`,
		"loader 1s with=":        `got "with=", want key=value`,
		"loader 1s runs=TestA":   `unknown key "runs"`,
		"loader 1s\n./loader 2s": "line 2: loader is there twice",
		"loader 1s run=(":        "line 1: run: ",
	} {
		if _, err := parseSuites(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want an error with %q", text, err, want)
		}
	}
}

// packages reads a list of tests that is used, and tells which packages it has.
// Each of them is there, and what a list names for itself are tests of it.
func packages(t *testing.T, file string) map[string]bool {
	t.Helper()
	suites, err := readList(file, parseSuites)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, s := range suites {
		names[s.pkg] = true
		sources, err := filepath.Glob("../../" + s.pkg + "/*_test.go")
		if err != nil || len(sources) == 0 {
			t.Errorf("%s: %s: got %d files of tests, %v", file, s.pkg, len(sources), err)
		}
		var code strings.Builder
		for _, source := range sources {
			text, err := os.ReadFile(source)
			if err != nil {
				t.Fatal(err)
			}
			code.Write(text)
		}
		if s.only == nil {
			continue
		}
		for _, name := range testName.FindAllString(s.only.String(), -1) {
			if !strings.Contains(code.String(), "func "+name+"(") {
				t.Errorf("%s: %s has no %s", file, s.pkg, name)
			}
		}
	}
	return names
}

var testName = regexp.MustCompile(`\bTest\w+`)

// TestOwnLists reads the lists that are used.
func TestOwnLists(t *testing.T) {
	kernels, err := readList("kernels.txt", parseKernels)
	if err != nil {
		t.Fatal(err)
	}
	whole := packages(t, "tests.txt")
	for name := range packages(t, "tests-ci.txt") {
		if !whole[name] {
			t.Errorf("tests-ci.txt: %s is not in tests.txt", name)
		}
	}
	// Nobody reads of a kernel that is not tested, or tests one untold.
	text, err := os.ReadFile("../../docs/KERNELS.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range kernels {
		if !strings.Contains(string(text), "| "+k.label+" ") {
			t.Errorf("docs/KERNELS.md has no row of the kernel %s", k.label)
		}
	}
}
