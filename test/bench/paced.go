// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"
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
	granted           int // connections that egressd counted
}

// measurePaced compares requests whose connections the kernel plane counts and
// grants with those that are none of egressd's affair. The latter go twice: how
// far those are apart is what the machine does. Both have a cgroup.
func measurePaced(ctx context.Context, l *lab, subjects []*subject, rounds int) ([]pacedRow, error) {
	i := slices.IndexFunc(subjects, func(s *subject) bool { return s.name == nameEgressd })
	if i < 0 {
		return nil, nil
	}
	egressd := subjects[i]
	var rows []pacedRow
	for _, sc := range pacedScenarios {
		part := []pacedRow{
			{scenario: sc.title, name: "directly"},
			{scenario: sc.title, name: "directly, once more"},
			{scenario: sc.title, name: "granted by the kernel plane"},
		}
		for round := range rounds {
			for _, n := range rand.Perm(len(part)) {
				cgroup := l.outside
				if n == 2 {
					cgroup = egressd.cgroup
				}
				before, err := egressd.counters(ctx)
				if err != nil {
					return nil, err
				}
				got, requests, err := runWrk(ctx, cgroup, sc, l.paced, pacedSlot)
				if err != nil {
					return nil, fmt.Errorf("%s, %s: %w", sc.title, part[n].name, err)
				}
				after, err := egressd.counters(ctx)
				if err != nil {
					return nil, err
				}
				granted, want := after.granted-before.granted, 0
				if n == 2 {
					want = sc.conns
					if sc.reconnect {
						want = requests
					}
				}
				if granted < want || n != 2 && granted > 0 || after.redirected != before.redirected || got.errors > 0 {
					return nil, fmt.Errorf("%s, %s: egressd granted %d connections, want %d, and redirected %d; %d socket errors",
						sc.title, part[n].name, granted, want, after.redirected-before.redirected, got.errors)
				}
				part[n].granted += granted
				part[n].perSecond = append(part[n].perSecond, got.perSecond)
			}
			log.Printf("%s, round %d: %.0f, %.0f, granted %.0f requests/s", sc.title, round+1,
				part[0].perSecond[round], part[1].perSecond[round], part[2].perSecond[round])
		}
		for n := range part {
			part[n].direct = part[0].perSecond
		}
		rows = append(rows, part...)
	}
	return rows, nil
}
