// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy/fleet"
)

// wild are budgets of which some are shared.
var wild = paths(
	"shop rate: 20/s, queue: {max_wait: 10s}",
	"shut rate: 20/s, on_loss: closed, queue: {max_wait: 2s}",
	"own rate: 5/s, fleet: false",
) + fmt.Sprintf("  - {name: dials, match: {hosts: [%q], ports: [%d]}, unit: connections, rate: 5/s}\n", originAddr, connections)

// TestFleetInTheWild begins without a store, goes on with a wrong password and
// ends with budgets that are no longer shared.
func TestFleetInTheWild(t *testing.T) {
	t.Parallel()
	const hosts = 2
	const right, mistaken = "R1ghtSecret", "Mist4kenSecret"
	l := newFleetLab(t, hosts)
	one, two := l.hosts[0], l.hosts[1]
	login := func(password string) { l.url = fmt.Sprintf("redis://:%s@%s", password, storeAddr) }
	where := []string{"80 /shop", "80 /own", fmt.Sprintf("%d /dials", connections)}
	use := func(what, path string, rate float64, begin time.Duration, least float64) {
		t.Helper()
		mustUse(t, what+": "+path, l.sightings(t, path), begin, now(), rate, least)
	}
	var logs []*process

	// No store is there yet.
	login(right)
	l.extra = fmt.Sprintf(", hosts: %d", hosts)
	l.join(t, one, wild)
	logs = append(logs, one.process)
	l.work(t, one, 3, where...)
	t.Logf("without a store, shares begin %v after the first request", waitMode(t, "share", l.hosts[:1], "shop", "dials"))
	begin := now()
	time.Sleep(3 * time.Second)
	use("one of two, without a store", "/shop", 10, begin, 0.8)
	half := fleet.Limit{Interval: time.Second / 10, Burst: 1}
	l.mustBound(t, "one of two, without a store", "shop", "/shop", begin, now(), half, 1)
	if text := one.ask(t, "lanes"); !strings.Contains(text, "fleet of 2 by leases, without its store: this host's share, bound +2") {
		t.Errorf("without a store:\n%s", text)
	}
	began := now()
	l.startStore(t, "--requirepass", right)
	t.Logf("the host joined %v after the store was there", waitMode(t, "fleet", l.hosts[:1], "shop", "dials"))
	begin = now()
	time.Sleep(2 * time.Second)
	use("one, with a store", "/shop", 20, begin, 0.8)

	// Another has a password that the store does not take.
	login(mistaken)
	l.join(t, two, wild)
	logs = append(logs, two.process)
	l.work(t, two, 2, append(where, "80 /shut")...)
	waitMode(t, "share", l.hosts[1:], "shop")
	waitMode(t, "closed", l.hosts[1:], "shut")
	begin = now()
	time.Sleep(3 * time.Second)
	from := byAddress(between(l.sightings(t, "/shop"), begin, now()))[two.addr()]
	mustUse(t, "with a wrong password: /shop", from, begin, now(), 10, 0.7)
	if n := len(l.sightings(t, "/shut")); n > 0 {
		t.Errorf("with a wrong password: %d requests of a budget that is closed without the store", n)
	}
	said := two.stderr.String()
	if n := strings.Count(said, "fleet store lost"); n != 1 || !strings.Contains(said, "refused: WRONGPASS") {
		t.Errorf("with a wrong password the daemon said so %d times, want once:\n%s", n, said)
	}
	for _, o := range outcomes(t, two) {
		if o.path == "/shut" && (o.what != "429" || o.took < 1900*time.Millisecond || o.took > 4*time.Second) {
			t.Errorf("with a wrong password, a request of a closed budget got %s after %v, want 429 after its max_wait", o.what, o.took)
		}
	}
	mustServe(t, outcomes(t, two), "/shop", 10*time.Second)
	two.workers.kill()
	two.stop(t)

	// It is told the right one.
	login(right)
	l.join(t, two, wild)
	logs = append(logs, two.process)
	l.work(t, two, 3, append(where, "80 /shut")...)
	waitMode(t, "fleet", l.hosts, "shop", "dials")
	time.Sleep(time.Second)
	begin = now()
	time.Sleep(4 * time.Second)
	use("two of two", "/shop", 20, begin, 0.8)
	use("two of two", "/shut", 20, begin, 0.8)
	use("two of two", "/dials", 5, begin, 0.7)
	use("two of two, each for itself", "/own", 10, begin, 0.8)
	for budget, limit := range map[string]fleet.Limit{"shop": shopLimit, "shut": shopLimit, "dials": pacedLimit} {
		l.mustBound(t, "two of two", budget, "/"+budget, begin, now(), limit, fleet.Bound(limit, fleet.SchemeOf(limit), hosts, fleet.Term))
	}
	mustTell(t, l, one)

	// What the store is takes a restart; for how many hosts it is does not.
	login("0therSecret")
	l.configure(t, one, wild)
	one.signal(t, unix.SIGHUP)
	waitFor(t, 10*time.Second, "the reload to fail", func() bool {
		s := one.status(t)
		return !s.Config.OK && strings.Contains(s.Config.Error, "fleet has changed: that takes a restart")
	})
	login(right)
	l.extra = ", hosts: 3"
	l.configure(t, one, wild)
	one.signal(t, unix.SIGHUP)
	waitFor(t, 10*time.Second, "the reload to hold", func() bool {
		f := one.fleetLanes(t)["shop"].Fleet
		return one.status(t).Config.OK && f != nil && f.Hosts == 3
	})
	l.mustBound(t, "since the store is there", "dials", "/dials", began, now(), pacedLimit,
		fleet.Bound(pacedLimit, fleet.Slots, hosts, fleet.Term)+fleet.Outage(pacedLimit, hosts)+
			fleet.Apart(pacedLimit, 1, hosts)*(now()-began).Seconds())

	// Hosts have exits of their own.
	l.extra = ", per_host: [direct]"
	for _, h := range l.hosts {
		h.workers.kill()
		h.stop(t)
		l.join(t, h, wild)
		logs = append(logs, h.process)
		l.work(t, h, 3, "80 /shop")
	}
	time.Sleep(time.Second)
	begin = now()
	time.Sleep(3 * time.Second)
	use("two, each for itself", "/shop", 40, begin, 0.8)
	if f := one.fleetLanes(t)["shop"].Fleet; f != nil {
		t.Errorf("a lane of an exit that each host has for itself is shared: %+v", f)
	}
	mustServe(t, outcomes(t, l.hosts...), "", 30*time.Second)
	for _, p := range logs {
		if said := p.stderr.String(); strings.Contains(said, "Secret") {
			t.Errorf("a password is in the log:\n%s", said)
		}
	}
}

// mustTell looks whether a host tells in what it shares.
func mustTell(t testing.TB, l *fleetLab, h *fleetHost) {
	t.Helper()
	lanes, check := h.ask(t, "lanes"), mustRun(t, here.bin, "check", "--config", h.config)
	t.Logf("lanes:\n%s\ncheck:\n%s", lanes, check)
	for _, tt := range []struct{ text, want string }{
		{lanes, `(?m)^shop/.* open, fleet of 2 by leases, bound \+2$`},
		{lanes, `(?m)^dials/.* open, fleet of 2 by slots, bound \+1\.5$`},
		{lanes, `(?m)^own/.* open$`},
		{check, `(?m)^shop: .*; by all hosts together \(leases, at most 2 more with 2 hosts\), their shares without the store$`},
		{check, `(?m)^shut: .*; by all hosts together .*, nothing without the store$`},
		{check, `(?m)^own: .*; on each host of the fleet$`},
		{check, `(?m)^dials: .*; by all hosts together \(slots, at most 1\.5 more with 2 hosts\), their shares without the store$`},
		{check, `(?m)^fleet: budgets are held together with all hosts at redis://.*10\.78\.0\.1:6379$`},
	} {
		if !regexp.MustCompile(tt.want).MatchString(tt.text) {
			t.Errorf("%q is not in\n%s", tt.want, tt.text)
		}
	}
	told := l.metrics(t, h)
	for name, atLeast := range map[string]float64{
		`egressd_oversend_bound{destination="10.78.0.1",exit="direct"}`: 2,
		`egressd_fleet_hosts{destination="10.78.0.1",exit="direct"}`:    2,
		`egressd_fleet_lanes{mode="fleet"}`:                             2,
		`egressd_fleet_calls_total{kind="book",outcome="answered"}`:     5,
		`egressd_fleet_calls_total{kind="lease",outcome="answered"}`:    5,
		`egressd_fleet_calls_total{kind="watch",outcome="failed"}`:      3,
		`egressd_fleet_call_seconds_total{kind="lease"}`:                0.0001,
	} {
		if got, has := told[name]; !has || got < atLeast {
			t.Errorf("metrics: got %s %v, want %v at least", name, got, atLeast)
		}
	}
	text := fmt.Sprint(lanes, check, h.ask(t, "status"), h.ask(t, "events"))
	if strings.Contains(text, "Secret") {
		t.Errorf("a password is told:\n%s", text)
	}
}
