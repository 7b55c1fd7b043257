// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"slices"
	"time"
)

// pacedScenarios are the ways of asking under a budget of connections.
var pacedScenarios = []scenario{
	{title: "32 keep-alive connections", conns: 32},
	{title: "a connection per request, 32 at a time", conns: 32, reconnect: true},
}

// pacedSlot is the time of one load. It is short, so that the rounds are many:
// what is looked for is small.
const pacedSlot = time.Second

// pacedRow has the requests per second of each round of one way to the origin,
// and of the direct way in the same round.
type pacedRow struct {
	scenario, name    string
	perSecond, direct []float64
}

// measurePaced compares requests whose connections the kernel plane counts and
// grants with those that are none of egressd's affair. The latter go twice: how
// far those are apart is what the machine does. All have a cgroup.
func measurePaced(ctx context.Context, l *lab, subjects []*subject, rounds int) ([]pacedRow, error) {
	i := slices.IndexFunc(subjects, func(s *subject) bool { return s.name == nameEgressd })
	if i < 0 {
		return nil, nil
	}
	ways := []struct {
		name   string
		cgroup *os.File
		daemon *subject // that grants the connections; nil if none does
	}{
		{"directly", l.outside, nil},
		{"directly, once more", l.outside, nil},
		{"granted by the kernel plane", l.plain.cgroup, l.plain},
		{"granted, policy names hosts", subjects[i].cgroup, subjects[i]},
	}
	var rows []pacedRow
	for _, sc := range pacedScenarios {
		part := make([]pacedRow, len(ways))
		for round := range rounds {
			for _, n := range rand.Perm(len(ways)) {
				perSecond, err := loadPaced(ctx, l.paced, sc, ways[n].cgroup, ways[n].daemon)
				if err != nil {
					return nil, fmt.Errorf("%s, %s: %w", sc.title, ways[n].name, err)
				}
				part[n].perSecond = append(part[n].perSecond, perSecond)
			}
			log.Printf("%s, round %d: %.0f, %.0f, granted %.0f, %.0f requests/s", sc.title, round+1,
				part[0].perSecond[round], part[1].perSecond[round], part[2].perSecond[round], part[3].perSecond[round])
		}
		for n := range part {
			part[n].scenario, part[n].name, part[n].direct = sc.title, ways[n].name, part[0].perSecond
		}
		rows = append(rows, part...)
	}
	return rows, nil
}

// loadPaced runs wrk in the cgroup against addr and returns the requests per
// second. If there is a daemon, it has to have granted all connections.
func loadPaced(ctx context.Context, addr string, sc scenario, cgroup *os.File, daemon *subject) (float64, error) {
	var before counters
	var err error
	if daemon != nil {
		if before, err = daemon.counters(ctx); err != nil {
			return 0, err
		}
	}
	got, requests, err := runWrk(ctx, cgroup, sc, addr, pacedSlot)
	if err != nil {
		return 0, err
	}
	if got.errors > 0 {
		return 0, fmt.Errorf("%d socket errors", got.errors)
	}
	if daemon == nil {
		return got.perSecond, nil
	}
	after, err := daemon.counters(ctx)
	if err != nil {
		return 0, err
	}
	want := sc.conns
	if sc.reconnect {
		want = requests
	}
	if granted := after.granted - before.granted; granted < want || after.redirected != before.redirected {
		return 0, fmt.Errorf("egressd granted %d connections, want %d, and redirected %d", granted, want, after.redirected-before.redirected)
	}
	return got.perSecond, nil
}
