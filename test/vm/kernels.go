// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// kernel is a line of kernels.txt.
type kernel struct {
	label, suite, series, version string
}

// fetched is a kernel on this machine.
type fetched struct {
	kernel
	dir     string // vmlinuz and modules/ are in it
	release string // what uname -r says when it runs
}

// parseKernels reads the list of kernels. Errors begin with the line's number.
func parseKernels(text string) (list []kernel, err error) {
	for i, f := range fields(text) {
		if len(f) == 0 {
			continue
		}
		if len(f) != 4 {
			return nil, fmt.Errorf("line %d: got %d words, want label, suite, series and version", i+1, len(f))
		}
		k := kernel{f[0], f[1], f[2], f[3]}
		if k.series != "-" && !strings.HasPrefix(k.version, k.series) {
			return nil, fmt.Errorf("line %d: version %s is not of the series %s", i+1, k.version, k.series)
		}
		if slices.ContainsFunc(list, func(other kernel) bool { return other.label == k.label }) {
			return nil, fmt.Errorf("line %d: label %s is there twice", i+1, k.label)
		}
		list = append(list, k)
	}
	if len(list) == 0 {
		return nil, errors.New("no kernel in the list")
	}
	return list, nil
}

// choose picks the kernels with these labels, or all.
func choose(list []kernel, labels []string) ([]kernel, error) {
	if len(labels) == 0 {
		return list, nil
	}
	var chosen []kernel
	for _, label := range labels {
		i := slices.IndexFunc(list, func(k kernel) bool { return k.label == label })
		if i < 0 {
			var known []string
			for _, k := range list {
				known = append(known, k.label)
			}
			return nil, fmt.Errorf("no kernel %q: there are %s", label, strings.Join(known, ", "))
		}
		chosen = append(chosen, list[i])
	}
	return chosen, nil
}

// fetch gets the kernel by the script beside this file.
func (k kernel) fetch(script string) (fetched, error) {
	cmd := exec.Command(script, k.suite, k.series, k.version)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fetched{}, fmt.Errorf("get kernel %s: %w", k.label, err)
	}
	f := fetched{kernel: k, dir: strings.TrimSpace(string(out))}
	release, err := os.ReadFile(filepath.Join(f.dir, "release"))
	if err != nil {
		return fetched{}, fmt.Errorf("get kernel %s: %w", k.label, err)
	}
	f.release = strings.TrimSpace(string(release))
	return f, nil
}

// fields splits each line into words, without what follows a #. It keeps empty
// lines, so that an index is a line's number less one.
func fields(text string) (lines [][]string) {
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		lines = append(lines, strings.Fields(line))
	}
	return lines
}
