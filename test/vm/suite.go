// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// suite is a line of tests.txt: the tests of one package, and what they need.
type suite struct {
	pkg     string         // path from the module's root
	as      string         // what it is called; pkg unless a package is there more than once
	timeout time.Duration  // of the whole package on one kernel
	only    *regexp.Regexp // names of tests to run; nil is all
	skip    *regexp.Regexp // names of tests not to run; nil is none
	skips   *regexp.Regexp // names of tests that may skip themselves; nil is none
	with    []string       // programs of this machine that the tests start
	env     []string
}

// packed is a suite whose test binary is built.
type packed struct {
	suite
	binary string   // path on this machine
	tests  []string // names of the tests that are to be reported
}

// parseSuites reads the list of tests. Errors begin with the line's number.
func parseSuites(text string) (list []suite, err error) {
	for i, f := range fields(text) {
		if len(f) == 0 {
			continue
		}
		s, err := parseSuite(f)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
		if slices.ContainsFunc(list, func(other suite) bool { return other.as == s.as }) {
			return nil, fmt.Errorf("line %d: %s is there twice", i+1, s.as)
		}
		list = append(list, s)
	}
	if len(list) == 0 {
		return nil, errors.New("no package in the list")
	}
	return list, nil
}

func parseSuite(words []string) (s suite, err error) {
	if len(words) < 2 {
		return s, errors.New("want a package and its time limit")
	}
	s.pkg = path.Clean(words[0])
	s.as = s.pkg
	if s.timeout, err = time.ParseDuration(words[1]); err != nil || s.timeout <= 0 {
		return s, fmt.Errorf("time limit %q: want a duration above 0", words[1])
	}
	for _, word := range words[2:] {
		key, value, ok := strings.Cut(word, "=")
		switch {
		case !ok || value == "":
			return s, fmt.Errorf("got %q, want key=value", word)
		case key == "as":
			s.as = value
		case key == "run":
			s.only, err = regexp.Compile(value)
		case key == "skip":
			s.skip, err = regexp.Compile(value)
		case key == "skips":
			s.skips, err = regexp.Compile(value)
		case key == "with":
			s.with = append(s.with, strings.Split(value, ",")...)
		case key == "env":
			s.env = append(s.env, value)
		default:
			return s, fmt.Errorf("unknown key %q", key)
		}
		if err != nil {
			return s, fmt.Errorf("%s: %w", key, err)
		}
	}
	return s, nil
}

// maySkip reports whether the test may say that it does not fit the machine.
func (s suite) maySkip(test string) bool { return s.skips != nil && s.skips.MatchString(test) }

// name is what the suite is called in frames and tables.
func (s suite) name() string { return s.as }

// dir is where the tests find their package's testdata in the machine.
func (s suite) dir() string { return "/src/" + s.as }

// args of the test binary.
func (s suite) args() []string {
	// Marks of the lines that tell results, which no test can print by
	// accident; and tests one by one, since the machine has one processor.
	args := []string{"-test.v=test2json", "-test.parallel=1", "-test.timeout=" + s.timeout.String()}
	if s.only != nil {
		args = append(args, "-test.run="+s.only.String())
	}
	if s.skip != nil {
		args = append(args, "-test.skip="+s.skip.String())
	}
	return args
}

// wants reports whether the test is one to run.
func (s suite) wants(test string) bool {
	return (s.only == nil || s.only.MatchString(test)) && (s.skip == nil || !s.skip.MatchString(test))
}

// build compiles the test binary in dir, static and without the race detector
// (which needs a C library), and lists its tests.
func (s suite) build(root, dir string) (p packed, err error) {
	p = packed{suite: s, binary: filepath.Join(dir, strings.ReplaceAll(s.as, "/", "-")+".test")}
	cmd := exec.Command("go", "test", "-c", "-o", p.binary, "./"+s.pkg)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return p, fmt.Errorf("build tests of %s: %w\n%s", s.pkg, err, bytes.TrimSpace(out))
	}
	list := exec.Command(p.binary, "-test.list=.")
	list.Dir = filepath.Join(root, s.pkg)
	out, err := list.Output()
	if err != nil {
		return p, fmt.Errorf("list tests of %s: %w", s.pkg, err)
	}
	for name := range strings.Lines(string(out)) {
		name = strings.TrimSpace(name)
		if (strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Fuzz")) && s.wants(name) {
			p.tests = append(p.tests, name)
		}
	}
	if len(p.tests) == 0 {
		return p, fmt.Errorf("tests of %s: none is left to run", s.pkg)
	}
	return p, nil
}
