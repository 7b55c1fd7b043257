// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"testing"
	"time"
)

// TestFleet has eight hosts share a budget of 20/s: they come, one of them is
// refused, and half of them go.
func TestFleet(t *testing.T) {
	t.Parallel()
	const rate, hosts = 20, 8
	l := newFleetLab(t, hosts)
	const budgets = "  - {name: shop, rate: 20/s, cooldown: {spread: 0%}, recovery: {factor: 1}}"
	var workers []*process
	for _, h := range l.hosts {
		l.join(t, h, budgets)
		workers = append(workers, l.work(t, h, 3)...)
	}
	now := func() time.Duration { return time.Duration(time.Now().UnixNano()) }
	time.Sleep(2 * time.Second)
	begin := now()
	time.Sleep(10 * time.Second)
	end := now()
	used := between(l.sightings(t, "/"), begin, end)
	part := float64(len(used)) / rate / (end - begin).Seconds()
	t.Logf("%d requests in %v: %.1f %% of the budget", len(used), end-begin, 100*part)
	if part < 0.9 {
		t.Errorf("the fleet used %.1f %% of its budget", 100*part)
	}
	for _, h := range l.hosts {
		f := h.fleetLane(t).Fleet
		if f.Hosts != hosts || f.Mode != "fleet" || f.Scheme != "leases" || f.Bound == nil {
			t.Errorf("host %d tells %+v", h.n, f)
		}
	}
	t.Logf("%s", l.hosts[0].daemon.ask(t, "lanes"))
	worst := mustBound(t, l.sightings(t, "/"), 1, rate, 8)
	t.Logf("at most %.2f beyond 1 + 20/s", worst)
	if said := wrong(workers); said != "" {
		t.Errorf("workers: %s", said)
	}
}
