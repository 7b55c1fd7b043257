// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"regexp"
	"strconv"
	"time"
)

// scenario is one way of asking.
type scenario struct {
	title string
	about string
	conns int
	// reconnect opens a connection for each request.
	reconnect bool
}

var scenarios = []scenario{
	{title: "32 keep-alive connections", about: "Small answers, as fast as they come.", conns: 32},
	{title: "One keep-alive connection", about: "One request at a time: what a hop adds to each.", conns: 1},
	{
		title: "A connection per request",
		about: "32 clients that connect, ask and close. nginx, HAProxy and Go keep their connections to the origin; " +
			"egressd opens one for each of the client's, since the origin is to see what it would see without egressd.",
		conns: 32, reconnect: true,
	},
}

// load is what one slot of one subject measured.
type load struct {
	perSecond float64 // requests
	p50, p99  time.Duration
	cpu       time.Duration // of the proxy, per request
	errors    int
}

// loadResult has the slots of each subject, in the order of the subjects.
type loadResult struct {
	scenario scenario
	names    []string
	slots    [][]load
}

// measureLoad gives each subject a slot in each round.
func measureLoad(ctx context.Context, sc scenario, subjects []*subject, rounds int, slot time.Duration) (loadResult, error) {
	res := loadResult{scenario: sc, slots: make([][]load, len(subjects))}
	for _, s := range subjects {
		res.names = append(res.names, s.name)
	}
	for round := range rounds {
		for i, s := range subjects {
			got, err := s.load(ctx, sc, slot)
			if err != nil {
				return res, fmt.Errorf("%s, %s: %w", sc.title, s.name, err)
			}
			log.Printf("%s, round %d, %s: %.0f requests/s, p50 %s, p99 %s", sc.title, round+1, s.name, got.perSecond, got.p50, got.p99)
			res.slots[i] = append(res.slots[i], got)
		}
	}
	return res, nil
}

// load runs wrk against the subject for the given time.
func (s *subject) load(ctx context.Context, sc scenario, slot time.Duration) (load, error) {
	before, err := s.counters(ctx)
	if err != nil {
		return load{}, err
	}
	got, requests, err := runWrk(ctx, s.cgroup, sc, s.http, slot)
	if err != nil {
		return load{}, err
	}
	after, err := s.counters(ctx)
	if err != nil {
		return load{}, err
	}
	if s.metrics != "" && after.requests-before.requests < requests {
		return load{}, fmt.Errorf("egressd counted %d of %d requests: the others went past it", after.requests-before.requests, requests)
	}
	got.cpu = (after.cpu - before.cpu) / time.Duration(requests)
	return got, nil
}

// runWrk runs wrk in the cgroup against addr. It returns what wrk measured, and
// the number of requests.
func runWrk(ctx context.Context, cgroup *os.File, sc scenario, addr string, slot time.Duration) (load, int, error) {
	out, err := output(ctx, cgroup, nil, "wrk", wrkArgs(sc, addr, slot)...)
	if err != nil {
		return load{}, 0, err
	}
	return parseWrk(out)
}

func wrkArgs(sc scenario, addr string, slot time.Duration) []string {
	args := []string{"--latency", "--threads", "1", "--connections", strconv.Itoa(sc.conns), "--duration", fmt.Sprintf("%.0fs", slot.Seconds())}
	if sc.reconnect {
		args = append(args, "--header", "Connection: close")
	}
	return append(args, "http://"+addr+"/")
}

var (
	wrkRate     = regexp.MustCompile(`(?m)^Requests/sec:\s+([0-9.]+)$`)
	wrkLatency  = regexp.MustCompile(`(?m)^\s+(50|99)%\s+([0-9.]+)(us|ms|s|m)$`)
	wrkRequests = regexp.MustCompile(`(?m)^\s*(\d+) requests in `)
	wrkSocket   = regexp.MustCompile(`Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)`)
	wrkStatus   = regexp.MustCompile(`Non-2xx or 3xx responses: (\d+)`)
)

// parseWrk reads the report of wrk --latency. Answers that are no 2xx or 3xx
// are an error: a limiter that refuses measures something else.
func parseWrk(out []byte) (l load, requests int, err error) {
	fail := func(what string) (load, int, error) {
		return load{}, 0, fmt.Errorf("%s in the report of wrk:\n%s", what, out)
	}
	if m := wrkStatus.FindSubmatch(out); m != nil {
		return fail("refused requests")
	}
	m := wrkRate.FindSubmatch(out)
	if m == nil {
		return fail("no rate")
	}
	if l.perSecond, err = strconv.ParseFloat(string(m[1]), 64); err != nil {
		return fail("no rate")
	}
	if m = wrkRequests.FindSubmatch(out); m == nil {
		return fail("no count")
	}
	if requests, err = strconv.Atoi(string(m[1])); err != nil || requests == 0 {
		return fail("no request")
	}
	for _, m := range wrkLatency.FindAllSubmatch(out, -1) {
		d, err := time.ParseDuration(string(m[2]) + string(m[3]))
		if err != nil {
			return fail("no latency")
		}
		if string(m[1]) == "50" {
			l.p50 = d
		} else {
			l.p99 = d
		}
	}
	if l.p50 == 0 || l.p99 == 0 {
		return fail("no latency")
	}
	if m = wrkSocket.FindSubmatch(out); m != nil {
		var errs []error
		for _, n := range m[1:] {
			count, err := strconv.Atoi(string(n))
			errs = append(errs, err)
			l.errors += count
		}
		if errors.Join(errs...) != nil {
			return fail("no count of errors")
		}
	}
	return l, requests, nil
}
