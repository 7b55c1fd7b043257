// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/policy/fleet"
)

// fleetShop is a budget of 20/s that hosts share, without what makes cooldowns longer
// and lanes slower than the origin said.
const fleetShop = "  - {name: shop, rate: 20/s, cooldown: {spread: 0%}, recovery: {factor: 1}}"

var shopLimit = fleet.Limit{Interval: time.Second / 20, Burst: 1}

// TestFleet has eight hosts share an exit and its budget of 20/s: they come, one of
// them is refused, and half of them go, some well and some not.
func TestFleet(t *testing.T) {
	t.Parallel()
	const hosts = 8
	l := newFleetLab(t, hosts)
	l.startStore(t)
	l.addProxy(t, 8888)
	rate := shopLimit.Rate()
	bound := fleet.Bound(shopLimit, fleet.SchemeOf(shopLimit), hosts, fleet.Term)
	for _, h := range l.hosts {
		l.join(t, h, fleetShop)
		l.work(t, h, 3, "8888 http://"+originAddr+"/")
	}
	waitFor(t, 20*time.Second, "all hosts to know of each other", func() bool {
		f := l.hosts[0].fleetLanes(t)["shop"].Fleet
		return f != nil && f.Hosts == hosts
	})
	begin, end := l.sightings(t, "/")[0].at, now()
	l.mustBound(t, "while they came", "shop", "/", begin, end, shopLimit, bound)
	mustUse(t, "while they came", l.sightings(t, "/"), begin, end, rate, 0.8)

	time.Sleep(time.Second)
	begin = now()
	time.Sleep(10 * time.Second)
	end = now()
	mustUse(t, "all eight", l.sightings(t, "/"), begin, end, rate, 0.9)
	for _, h := range l.hosts {
		f := h.fleetLanes(t)["shop"].Fleet
		if f.Hosts != hosts || f.Mode != "fleet" || f.Scheme != "leases" || f.Bound == nil || *f.Bound != bound {
			t.Errorf("host %d tells %+v", h.n, f)
		}
	}
	t.Logf("%s", l.hosts[0].ask(t, "lanes"))

	if got := l.ask(t, l.hosts[2], limitPath); got != "429" {
		t.Fatalf("the origin answered %s to a request that it should refuse", got)
	}
	time.Sleep((limitDelay + 2) * time.Second)
	mustCool(t, l.sightings(t, "/"), limitDelay*time.Second)
	var closed []int64 // when, on each host
	for _, h := range l.hosts {
		for _, ev := range h.happened(t) {
			if ev.Kind == "penalty" || ev.Kind == "cooldown" {
				closed = append(closed, ev.Mono)
			}
		}
	}
	if len(closed) != hosts {
		t.Errorf("a refusal closed lanes %d times, want once on each of %d hosts", len(closed), hosts)
	} else {
		first := closed[2] // it was refused
		slices.Sort(closed)
		t.Logf("the other hosts were closed from %v to %v after it", time.Duration(closed[1]-first), time.Duration(closed[hosts-1]-first))
	}

	// Half of them go: two are stopped, two die with all that is on them.
	for i, h := range l.hosts[4:] {
		h.workers.kill()
		if i%2 == 0 {
			h.stop(t)
		} else {
			h.kill()
		}
	}
	gone := now()
	time.Sleep(5 * time.Second)
	mustUse(t, "four, as the store knows of eight", l.sightings(t, "/"), gone, now(), rate, 0.85)
	waitFor(t, 20*time.Second, "those who are left to know", func() bool {
		f := l.hosts[0].fleetLanes(t)["shop"].Fleet
		return f.Hosts == hosts/2
	})
	t.Logf("after %v the store counts %d", now()-gone, hosts/2)
	begin = now()
	time.Sleep(4 * time.Second)
	mustUse(t, "four", l.sightings(t, "/"), begin, now(), rate, 0.9)

	if from := byAddress(l.sightings(t, "/")); len(from) != 1 {
		t.Errorf("the origin saw %d addresses, want the one of the exit", len(from))
	}
	l.mustBound(t, "in the whole", "shop", "/", 0, now(), shopLimit, bound)
	mustServe(t, outcomes(t, l.hosts...), "", 30*time.Second)
}

// TestFleetPool has three hosts share a pool of three exits.
func TestFleetPool(t *testing.T) {
	t.Parallel()
	const hosts, exits = 3, 3
	l := newFleetLab(t, hosts)
	l.startStore(t)
	var from, names []string
	for n := range exits {
		from = append(from, l.addProxy(t, 8881+n))
		names = append(names, fmt.Sprintf("exit%d", n+1))
	}
	l.pools = fmt.Sprintf("pools: [{name: all, listen: \"127.0.0.77:3128\", exits: [%s]}]\n", strings.Join(names, ", "))
	for _, h := range l.hosts {
		l.join(t, h, fleetShop)
		l.workBy(t, h, "127.0.0.77", 9, "3128 http://"+originAddr+"/")
	}
	time.Sleep(2 * time.Second)
	begin := now()
	time.Sleep(4 * time.Second)
	at := now()
	t.Logf("%s", l.hosts[0].ask(t, "lanes"))

	// One exit is refused, by another host than those that hear of it.
	if got := l.ask(t, l.hosts[2], limitPath); got != "429" { // by the last one
		t.Fatalf("the origin answered %s to a request that it should refuse", got)
	}
	refused := now()
	time.Sleep((limitDelay + 1) * time.Second)
	seen := byAddress(l.sightings(t, "/"))
	mustCool(t, between(seen[from[exits-1]], at, now()), limitDelay*time.Second)
	bound := fleet.Bound(shopLimit, fleet.SchemeOf(shopLimit), hosts, fleet.Term)
	for i, addr := range from {
		mustUse(t, names[i], seen[addr], begin, at, shopLimit.Rate(), 0.8)
		if i < exits-1 {
			mustUse(t, names[i]+", while the last one is closed", seen[addr], refused, refused+limitDelay*time.Second, shopLimit.Rate(), 0.8)
		}
		n, in := overSent(seen[addr], shopLimit)
		t.Logf("%s: %.2f beyond 1 + 20/s at most, within %v; bound %v", names[i], n, in, bound)
		if n > bound+5 { // as in mustBound
			t.Errorf("%s: %.2f beyond its budget, want %v at most", names[i], n, bound)
		}
	}
	t.Logf("%s", l.hosts[0].ask(t, "lanes"))
	mustServe(t, outcomes(t, l.hosts...), "", 30*time.Second)
}

// mustCool looks whether the first refusal among what the origin saw stopped all
// hosts at once, until delay was over.
func mustCool(t testing.TB, all []sighting, delay time.Duration) {
	t.Helper()
	var at, last, again time.Duration
	for _, s := range all {
		switch {
		case at == 0:
			if s.status == 429 {
				at = s.at
			}
		case s.at < at+delay/2:
			last = max(last, s.at-at)
		case again == 0 || s.at-at < again:
			again = s.at - at
		}
	}
	n := len(between(all, at+1, at+delay/2))
	t.Logf("after a refusal %d requests came, the last %v later; the next %v later", n, last, again)
	// Told to all within a round trip; a busy machine adds to it.
	if at == 0 || last > 250*time.Millisecond || again < delay-5*time.Millisecond {
		t.Errorf("refused at %v: the last request came %v later, the next %v later, want %v", at, last, again, delay)
	}
}

// paths is YAML of budgets that are told apart by what they are asked for.
func paths(budgets ...string) (text string) {
	for _, b := range budgets {
		var name, more string
		if _, err := fmt.Sscan(b, &name); err != nil {
			panic(err)
		}
		more = b[len(name):]
		text += fmt.Sprintf("  - {name: %s, match: {hosts: [%q], path: /%s},%s, cooldown: {spread: 0%%}, recovery: {factor: 1}}\n",
			name, originAddr, name, more)
	}
	return text
}
