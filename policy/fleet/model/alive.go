// SPDX-License-Identifier: Apache-2.0

package model

import (
	"maps"
	"slices"

	"github.com/egressd/egressd/policy/fleet"
	"github.com/egressd/egressd/policy/ledger"
)

// alive knows which hosts called within fleet.Alive.
type alive struct {
	seen  map[string]ledger.Time
	beats []heartbeat // in order; those before first are dealt with
	first int
}

type heartbeat struct {
	host string
	at   ledger.Time
}

// beat counts a call of a host.
func (a *alive) beat(host string, now ledger.Time) {
	if a.seen == nil {
		a.seen = map[string]ledger.Time{}
	}
	if at, ok := a.seen[host]; ok && now < at.Add(fleet.Alive/16) {
		return // soon enough after the last one that was written down
	}
	a.seen[host] = now
	a.beats = append(a.beats, heartbeat{host, now})
}

// count is how many hosts are alive.
func (a *alive) count(now ledger.Time) int {
	for a.first < len(a.beats) && a.beats[a.first].at.Add(fleet.Alive) < now {
		b := a.beats[a.first]
		if a.seen[b.host] == b.at {
			delete(a.seen, b.host)
		}
		a.first++
	}
	if a.first > len(a.beats)/2 {
		a.beats = slices.Delete(a.beats, 0, a.first)
		a.first = 0
	}
	return len(a.seen)
}

func (a *alive) clone() alive {
	return alive{maps.Clone(a.seen), slices.Clone(a.beats), a.first}
}
