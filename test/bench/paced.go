// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// pacedScenarios are the ways of asking under a budget of connections.
var pacedScenarios = []scenario{
	{title: "32 keep-alive connections", conns: 32},
	{title: "a connection per request, 32 at a time", conns: 32, reconnect: true},
}

// In a round all ways are under load, but one at a time: the others are stopped.
// A turn is short, so that whatever the machine does meets all of them.
const (
	pacedRound = 8 * time.Second
	pacedTurn  = 50 * time.Millisecond
)

// pacedRow has the requests per second of each round of one way to the origin,
// and of the direct way in the same round.
type pacedRow struct {
	scenario, name    string
	perSecond, direct []float64
}

// pacedWay is a way to the origin.
type pacedWay struct {
	name   string
	cgroup *os.File
	daemon *subject // that grants the connections; nil if none does
}

// measurePaced compares requests whose connections the kernel plane counts and
// grants with those that are none of egressd's affair. The latter go twice: how
// far those are apart is what the machine does. All have a cgroup.
func measurePaced(ctx context.Context, l *lab, subjects []*subject, rounds int) ([]pacedRow, error) {
	i := slices.IndexFunc(subjects, func(s *subject) bool { return s.name == nameEgressd })
	if i < 0 {
		return nil, nil
	}
	ways := []pacedWay{
		{"directly", l.outside, nil},
		{"directly, once more", l.outside, nil},
		{"granted by the kernel plane", l.plain.cgroup, l.plain},
		{"granted, policy names hosts", subjects[i].cgroup, subjects[i]},
	}
	var rows []pacedRow
	for _, sc := range pacedScenarios {
		part := make([]pacedRow, len(ways))
		for round := range rounds {
			perSecond, err := loadPaced(ctx, l.paced, sc, ways)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", sc.title, err)
			}
			for n, v := range perSecond {
				part[n].perSecond = append(part[n].perSecond, v)
			}
			log.Printf("%s, round %d: %.0f, %.0f, granted %.0f, %.0f requests/s", sc.title, round+1,
				perSecond[0], perSecond[1], perSecond[2], perSecond[3])
		}
		for n := range part {
			part[n].scenario, part[n].name, part[n].direct = sc.title, ways[n].name, part[0].perSecond
		}
		rows = append(rows, part...)
	}
	return rows, nil
}

// loadPaced is a round of all ways against addr. It returns the requests per
// second of each in its own turns. A daemon has to have granted all connections.
func loadPaced(ctx context.Context, addr string, sc scenario, ways []pacedWay) ([]float64, error) {
	before := make([]counters, len(ways))
	for n, w := range ways {
		if w.daemon == nil {
			continue
		}
		var err error
		if before[n], err = w.daemon.counters(ctx); err != nil {
			return nil, err
		}
	}
	requests, times, err := takeTurns(ctx, addr, sc, ways)
	if err != nil {
		return nil, err
	}
	perSecond := make([]float64, len(ways))
	for n, w := range ways {
		perSecond[n] = float64(requests[n]) / times[n].Seconds()
		if w.daemon == nil {
			continue
		}
		after, err := w.daemon.counters(ctx)
		if err != nil {
			return nil, err
		}
		want := sc.conns
		if sc.reconnect {
			want = requests[n]
		}
		if granted := after.granted - before[n].granted; granted < want || after.redirected != before[n].redirected {
			return nil, fmt.Errorf("%s: egressd granted %d connections, want %d, and redirected %d", w.name, granted, want, after.redirected-before[n].redirected)
		}
	}
	return perSecond, nil
}

// takeTurns starts wrk for each way and lets one after the other go on for
// pacedTurn, in an order that changes. It returns how much each has asked, and
// for how long.
func takeTurns(ctx context.Context, addr string, sc scenario, ways []pacedWay) (requests []int, times []time.Duration, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		requests int
		err      error
	}
	start := time.Now()
	wrks := make([]*exec.Cmd, len(ways))
	results := make([]chan result, len(ways))
	for n, w := range ways {
		cmd := exec.CommandContext(ctx, "wrk", wrkArgs(sc, addr, pacedRound)...)
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(w.cgroup.Fd())}
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			return nil, nil, fmt.Errorf("%s: starting wrk: %w", w.name, err)
		}
		done := make(chan result, 1)
		go func() {
			if err := cmd.Wait(); err != nil {
				done <- result{err: fmt.Errorf("%s: running wrk: %w: %s", w.name, err, lastBytes(out.Bytes(), 1000))}
				return
			}
			got, requests, err := parseWrk(out.Bytes())
			if err == nil && got.errors > 0 {
				err = fmt.Errorf("%s: %d socket errors", w.name, got.errors)
			}
			done <- result{requests, err}
		}()
		wrks[n], results[n] = cmd, done
		if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
			return nil, nil, fmt.Errorf("%s: stopping wrk: %w", w.name, err)
		}
	}
	times = make([]time.Duration, len(ways))
	// wrk counts its time while it is stopped, too, from its own start on, which is
	// later: none finds that the time is over, and ends, before its last turn here.
	for time.Since(start) < pacedRound {
		for _, n := range rand.Perm(len(ways)) {
			from := time.Now()
			if err := wrks[n].Process.Signal(unix.SIGCONT); err != nil {
				return nil, nil, fmt.Errorf("%s: %w", ways[n].name, errors.Join(err, (<-results[n]).err))
			}
			time.Sleep(pacedTurn)
			if err := wrks[n].Process.Signal(unix.SIGSTOP); err != nil && !errors.Is(err, os.ErrProcessDone) {
				return nil, nil, fmt.Errorf("%s: stopping wrk: %w", ways[n].name, err)
			}
			times[n] += time.Since(from)
		}
	}
	requests = make([]int, len(ways))
	for n, cmd := range wrks {
		from := time.Now()
		if err := cmd.Process.Signal(unix.SIGCONT); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return nil, nil, fmt.Errorf("%s: ending wrk: %w", ways[n].name, err)
		}
		r := <-results[n]
		if r.err != nil {
			return nil, nil, r.err
		}
		requests[n], times[n] = r.requests, times[n]+time.Since(from)
	}
	return requests, times, nil
}
