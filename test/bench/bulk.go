// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strconv"
	"strings"
	"time"
)

// bulk is what one download measured.
type bulk struct {
	gbPerSecond float64       // 10^9 bytes per second
	cpu         time.Duration // of the proxy, per 10^9 bytes
}

// bulkResult has the downloads of each subject that takes part.
type bulkResult struct {
	mib   int
	names []string
	runs  [][]bulk
}

// measureBulk downloads the big file over TLS through each subject that passes
// TLS on, once a round.
func measureBulk(ctx context.Context, subjects []*subject, rounds, mib int) (bulkResult, error) {
	res := bulkResult{mib: mib}
	var part []*subject
	for _, s := range subjects {
		if s.tls == "" {
			continue
		}
		part = append(part, s)
		if s.name == nameEgressd {
			part = append(part, s.observing())
		}
	}
	for _, s := range part {
		res.names = append(res.names, s.name)
	}
	// The first download also fills the page cache.
	if _, err := part[0].download(ctx, mib); err != nil {
		return res, fmt.Errorf("TLS download, %s: %w", part[0].name, err)
	}
	res.runs = make([][]bulk, len(part))
	for round := range rounds {
		for i, s := range part {
			got, err := s.download(ctx, mib)
			if err != nil {
				return res, fmt.Errorf("TLS download, %s: %w", s.name, err)
			}
			log.Printf("TLS download, round %d, %s: %.2f GB/s", round+1, s.name, got.gbPerSecond)
			res.runs[i] = append(res.runs[i], got)
		}
	}
	return res, nil
}

func (s *subject) download(ctx context.Context, mib int) (bulk, error) {
	before, err := s.counters(ctx)
	if err != nil {
		return bulk{}, err
	}
	port, host := portOf(s.tls), bulkHost
	var env []string
	if s.observed {
		host, env = observedHost, []string{"SSLKEYLOGFILE=" + s.keys}
	}
	out, err := output(ctx, s.cgroup, env, "curl", "--silent", "--show-error", "--fail", "--insecure", "--http1.1", "--noproxy", "*",
		"--resolve", fmt.Sprintf("%s:%d:127.0.0.1", host, port),
		"--output", "/dev/null", "--write-out", "%{size_download} %{time_starttransfer} %{time_total}",
		fmt.Sprintf("https://%s:%d/bulk", host, port))
	if err != nil {
		return bulk{}, err
	}
	after, err := s.counters(ctx)
	if err != nil {
		return bulk{}, err
	}
	size, seconds, err := parseDownload(string(out))
	if err != nil {
		return bulk{}, err
	}
	if want := mib << 20; size != want {
		return bulk{}, fmt.Errorf("got %d bytes, want %d", size, want)
	}
	if s.metrics != "" && after.redirected == before.redirected {
		return bulk{}, errors.New("the download went past egressd")
	}
	if s.observed && after.answers == before.answers {
		return bulk{}, errors.New("the answer was not read")
	}
	gb := float64(size) / 1e9
	return bulk{gbPerSecond: gb / seconds, cpu: time.Duration(float64(after.cpu-before.cpu) / gb)}, nil
}

// parseDownload reads "BYTES START TOTAL" and returns the bytes and the
// seconds from the first byte to the last.
func parseDownload(text string) (size int, seconds float64, err error) {
	fields := strings.Fields(text)
	if len(fields) != 3 {
		return 0, 0, fmt.Errorf("curl wrote %q, want three numbers", text)
	}
	if size, err = strconv.Atoi(fields[0]); err != nil {
		return 0, 0, fmt.Errorf("curl wrote %q: %w", text, err)
	}
	start, err := strconv.ParseFloat(fields[1], 64)
	if err != nil {
		return 0, 0, fmt.Errorf("curl wrote %q: %w", text, err)
	}
	total, err := strconv.ParseFloat(fields[2], 64)
	if err != nil {
		return 0, 0, fmt.Errorf("curl wrote %q: %w", text, err)
	}
	if total <= start {
		return 0, 0, fmt.Errorf("curl wrote %q: the download took no time", text)
	}
	return size, total - start, nil
}
