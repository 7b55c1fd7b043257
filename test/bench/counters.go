// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// counters are what a subject has used and counted since it started.
type counters struct {
	cpu        time.Duration // user and system time of all its processes
	requests   int           // that egressd says it dispatched; 0 for the others
	answers    int           // that egressd says it saw inside TLS; 0 for the others
	redirected int           // connections that egressd says it took; 0 for the others
	granted    int           // connections that egressd says the kernel plane granted; 0 for the others
}

func (s *subject) counters(ctx context.Context) (c counters, err error) {
	if s.proc == nil {
		return c, nil
	}
	if c.cpu, err = treeCPU(s.proc.cmd.Process.Pid); err != nil {
		return c, err
	}
	if s.metrics == "" {
		return c, nil
	}
	text, err := scrape(ctx, s.metrics)
	if err != nil {
		return c, err
	}
	if c.requests, err = sumSeries(text, "egressd_requests_total", ""); err != nil {
		return c, err
	}
	if c.answers, err = sumSeries(text, "egressd_tls_answers_total", ""); err != nil {
		return c, err
	}
	if c.granted, err = sumSeries(text, "egressd_connections_total", `outcome="granted"`); err != nil {
		return c, err
	}
	c.redirected, err = sumSeries(text, "egressd_connections_total", `outcome="redirected"`)
	return c, err
}

// countersOf are those of several subjects.
func countersOf(ctx context.Context, subjects ...*subject) ([]counters, error) {
	var all []counters
	for _, s := range subjects {
		c, err := s.counters(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// tick is the unit of CPU time in /proc: 1/100 s on every Linux (USER_HZ).
const tick = 10 * time.Millisecond

// treeCPU adds up the CPU time of a process and its children.
func treeCPU(pid int) (time.Duration, error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // has ended since
		}
		st, err := parseStat(string(text))
		if err != nil {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		if st.pid == pid || st.parent == pid {
			sum += st.cpu
		}
	}
	if sum == 0 {
		if _, err := os.Stat(fmt.Sprintf("/proc/%d", pid)); err != nil {
			return 0, fmt.Errorf("reading the CPU time: %w", err)
		}
	}
	return sum, nil
}

// stat is what is used of /proc/PID/stat, see proc(5).
type stat struct {
	pid, parent int
	cpu         time.Duration // utime + stime
}

func parseStat(text string) (stat, error) {
	// The name in parentheses may hold spaces and parentheses itself.
	open, end := strings.Index(text, " ("), strings.LastIndex(text, ") ")
	if open < 0 || end < open {
		return stat{}, fmt.Errorf("no process name in %q", text)
	}
	rest := strings.Fields(text[end+2:])
	if len(rest) < 13 {
		return stat{}, fmt.Errorf("too few fields in %q", text)
	}
	var n [4]int
	for i, field := range []string{text[:open], rest[1], rest[11], rest[12]} {
		var err error
		if n[i], err = strconv.Atoi(field); err != nil {
			return stat{}, fmt.Errorf("field of %q: %w", text, err)
		}
	}
	return stat{pid: n[0], parent: n[1], cpu: time.Duration(n[2]+n[3]) * tick}, nil
}

// scrape reads the metrics of the daemon at addr.
func scrape(ctx context.Context, addr string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/metrics", nil)
	if err != nil {
		return "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return "", fmt.Errorf("reading metrics: %w", err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", fmt.Errorf("reading metrics: %w", err)
	}
	return string(text), nil
}

// sumSeries adds up the series of name, in the text format of Prometheus,
// whose labels contain label.
func sumSeries(text, name, label string) (int, error) {
	sum := 0.0
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, name)
		if !ok || rest == "" || (rest[0] != '{' && rest[0] != ' ') || !strings.Contains(rest, label) {
			continue
		}
		value := rest[strings.LastIndexByte(rest, ' ')+1:]
		v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			return 0, fmt.Errorf("metric %q: %w", line, err)
		}
		sum += v
	}
	return int(sum), nil
}
