// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// machine says where the numbers come from.
type machine struct {
	cores    int
	cpu      string
	kernel   string
	system   string
	versions []string // "nginx 1.22.1"
}

func cores() int { return runtime.NumCPU() }

var (
	version   = regexp.MustCompile(`\d+\.\d+(\.\d+)?`)
	modelName = regexp.MustCompile(`(?m)^model name\s*: (.*)$`)
	osName    = regexp.MustCompile(`(?m)^PRETTY_NAME="?([^"\n]*)"?$`)
)

// describeMachine collects what it can; what it cannot find is "unknown".
func describeMachine(ctx context.Context) machine {
	m := machine{cores: cores(), cpu: firstMatch("/proc/cpuinfo", modelName), kernel: "unknown", system: firstMatch("/etc/os-release", osName)}
	var u unix.Utsname
	if err := unix.Uname(&u); err == nil {
		m.kernel = unix.ByteSliceToString(u.Release[:])
	}
	m.versions = append(m.versions, fmt.Sprintf("Go %s", strings.TrimPrefix(runtime.Version(), "go")))
	for _, tool := range [][]string{{"nginx", "-v"}, {"haproxy", "-v"}, {"curl", "--version"}, {"wrk", "-v"}} {
		// wrk exits 1 after telling its version, nginx tells it on stderr.
		text, err := exec.CommandContext(ctx, tool[0], tool[1:]...).CombinedOutput()
		v := version.FindString(string(text))
		if v == "" {
			v = fmt.Sprintf("unknown (%v)", err)
		}
		m.versions = append(m.versions, tool[0]+" "+v)
	}
	return m
}

// firstMatch is the first group of pattern in a file, or "unknown".
func firstMatch(file string, pattern *regexp.Regexp) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return "unknown"
	}
	if m := pattern.FindSubmatch(text); m != nil {
		return string(m[1])
	}
	return "unknown"
}
