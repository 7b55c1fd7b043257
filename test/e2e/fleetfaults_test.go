// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy/fleet"
)

var pacedLimit = fleet.Limit{Interval: time.Second / 5, Burst: 1}

// troubled are the budgets of labs whose store has trouble, and how long their
// requests may wait.
var (
	troubled = paths(
		"share rate: 20/s, queue: {max_wait: 6s}",
		"slots rate: 5/s, queue: {max_wait: 10s}",
		"closed rate: 20/s, on_loss: closed, queue: {max_wait: 2s}",
		"open rate: 20/s, on_loss: open, queue: {max_wait: 6s}",
	)
	patience = map[string]time.Duration{"/share": 6 * time.Second, "/slots": 10 * time.Second, "/open": 6 * time.Second}
)

// spell is a part of a test with one trouble of the store.
type spell struct {
	what string
	at   time.Duration
	// more is what the trouble may add to the bound of a limit; nil: nothing.
	more func(l fleet.Limit) float64
}

// mustBoundAll looks whether the budgets of troubled kept their bounds in each
// spell and in all of them; open only where nothing cut it off.
func mustBoundAll(t testing.TB, l *fleetLab, spells []spell, end time.Duration) {
	t.Helper()
	for budget, limit := range map[string]fleet.Limit{"share": shopLimit, "closed": shopLimit, "slots": pacedLimit} {
		bound := fleet.Bound(limit, fleet.SchemeOf(limit), len(l.hosts), fleet.Term)
		sum := bound
		for i, s := range spells {
			until, own := end, bound
			if i+1 < len(spells) {
				until = spells[i+1].at
			}
			if s.more != nil {
				own += s.more(limit)
				sum += s.more(limit)
			}
			l.mustBound(t, s.what, budget, "/"+budget, s.at, until, limit, own)
		}
		l.mustBound(t, "in the whole", budget, "/"+budget, 0, end, limit, sum)
	}
}

// TestFleetFaults kills, stops, empties and cuts off the store of three hosts.
func TestFleetFaults(t *testing.T) {
	t.Parallel()
	const hosts = 3
	l := newFleetLab(t, hosts)
	l.startStore(t)
	all := []string{"share", "slots", "closed", "open"}
	failover := func(limit fleet.Limit) float64 { return fleet.Failover(limit, hosts) }
	outage := func(limit fleet.Limit) float64 { return fleet.Outage(limit, hosts) }
	both := func(limit fleet.Limit) float64 { return failover(limit) + outage(limit) }
	for _, h := range l.hosts {
		l.join(t, h, troubled)
		l.work(t, h, 3, "80 /share", "80 /slots", "80 /closed", "80 /open")
	}
	waitMode(t, "fleet", l.hosts, all...)
	time.Sleep(2 * time.Second)
	spells := []spell{{"before", 0, nil}, {"killed", now(), both}}
	use := func(what, path string, rate float64, from, to time.Duration, least float64) {
		t.Helper()
		mustUse(t, what+": "+path, l.sightings(t, path), from, to, rate, least)
	}

	// It dies, and comes back with nothing.
	down := now()
	l.store.endAll(t)
	time.Sleep(4 * time.Second)
	for _, h := range l.hosts {
		for budget, want := range map[string]string{"share": "share", "slots": "share", "closed": "closed", "open": "open"} {
			if lane := h.fleetLanes(t)[budget]; lane.mode() != want {
				t.Errorf("host %d without a store: lane %s by %q, want %q", h.n, lane.Lane, lane.mode(), want)
			}
		}
	}
	t.Logf("without its store:\n%s", l.hosts[0].ask(t, "lanes"))
	up := now()
	l.startStore(t)
	// What is held goes first: until three calls failed, and units are old.
	lost := down + 1500*time.Millisecond
	use("without its store", "/share", 20, lost, up, 0.7)
	use("without its store", "/slots", 5, lost, up, 0.6)
	use("without its store", "/open", hosts*20, lost, up, 0.6)
	if n := len(between(l.sightings(t, "/closed"), lost, up)); n > 0 {
		t.Errorf("without its store: %d requests of a budget that is closed then", n)
	}
	t.Logf("all hosts are back %v after the store", waitMode(t, "fleet", l.hosts, all...))
	begin := now()
	time.Sleep(3 * time.Second)
	for _, path := range []string{"/share", "/closed", "/open"} {
		use("after it came back", path, 20, begin, now(), 0.8)
	}
	use("after it came back", "/slots", 5, begin, now(), 0.7)
	replied := outcomes(t, l.hosts...)
	mustClosed(t, replied, down)

	// It does not answer for two seconds.
	spells = append(spells, spell{"stopped", now(), outage})
	l.store.signal(t, unix.SIGSTOP)
	time.Sleep(2 * time.Second)
	l.store.signal(t, unix.SIGCONT)
	t.Logf("all hosts are back %v after the store went on", waitMode(t, "fleet", l.hosts, all...))
	begin = now()
	time.Sleep(2 * time.Second)
	use("after it went on", "/share", 20, begin, now(), 0.75)

	// It forgets everything, a cooldown too, which hosts tell it again.
	begin = now()
	spells = append(spells, spell{"flushed", begin, failover})
	if got := l.ask(t, l.hosts[1], "/share"+limitPath); got != "429" {
		t.Fatalf("the origin answered %s to a request that it should refuse", got)
	}
	refused := now()
	l.redis(t, storePort, "FLUSHALL")
	time.Sleep((limitDelay + 2) * time.Second)
	mustCool(t, between(l.sightings(t, "/share"), begin, now()), limitDelay*time.Second)
	use("a second after the cooldown", "/share", 20, refused+(limitDelay+1)*time.Second, now(), 0.6)
	use("from two seconds after it was flushed", "/closed", 20, refused+2*time.Second, now(), 0.7)
	use("from two seconds after it was flushed", "/slots", 5, refused+2*time.Second, now(), 0.6)

	// It dies, and is back before anybody takes it for lost.
	begin = now()
	spells = append(spells, spell{"restarted", begin, both})
	l.store.endAll(t)
	l.startStore(t)
	up = now()
	t.Logf("the store was away for %v", up-begin)
	time.Sleep(2 * time.Second) // of which it learns for 1.5 s what was
	t.Logf("all hosts are back %v after the store", now()+waitMode(t, "fleet", l.hosts, all...)-up)
	up = now()
	time.Sleep(1500 * time.Millisecond)
	use("after it was restarted", "/share", 20, up, now(), 0.6)

	// Of its packets one in twenty is lost.
	failed := l.failedCalls(t)
	begin = now()
	spells = append(spells, spell{"lossy", begin, outage})
	whole := lose(t, l.origin, "far", storePort, 0.05)
	time.Sleep(6 * time.Second)
	use("with 5 % of packets lost", "/share", 20, begin, now(), 0.6)
	use("with 5 % of packets lost", "/closed", 20, begin, now(), 0.5)
	use("with 5 % of packets lost", "/slots", 5, begin, now(), 0.6)
	whole()
	failedThen := l.failedCalls(t)
	t.Logf("%v calls failed meanwhile", failedThen-failed)
	if failedThen == failed {
		t.Error("no call failed: no packet was lost, and nothing was tested")
	}

	for _, h := range l.hosts {
		if n := strings.Count(h.stderr.String(), "fleet store lost"); n < 2 || n > 6 {
			t.Errorf("host %d told %d times that the store is lost; it was away twice, and some calls failed", h.n, n)
		}
	}
	mustBoundAll(t, l, spells, now())
	replied = outcomes(t, l.hosts...)
	for path, longest := range patience {
		mustServe(t, replied, path, longest)
	}
}

// failedCalls are all calls to the store that failed.
func (l *fleetLab) failedCalls(t testing.TB) (n float64) {
	t.Helper()
	for _, h := range l.hosts {
		for name, v := range l.metrics(t, h) {
			if strings.HasPrefix(name, "egressd_fleet_calls_total{") && strings.Contains(name, `outcome="failed"`) {
				n += v
			}
		}
	}
	return n
}

// mustClosed looks whether requests of the budget that is closed without the
// store were refused when their time was over, and not before it was down.
func mustClosed(t testing.TB, all []outcome, down time.Duration) {
	t.Helper()
	refused, longest := 0, time.Duration(0)
	for _, r := range all {
		if r.path != "/closed" {
			continue
		}
		longest = max(longest, r.took)
		switch {
		case r.what == "200":
		case r.what == "429" && r.at > down:
			refused++
		default:
			t.Errorf("a request of a closed budget got %s %v after the store was down", r.what, r.at-down)
		}
	}
	t.Logf("/closed: %d requests were refused for their max_wait, after %v at most", refused, longest)
	if refused == 0 {
		t.Error("no request was refused: the store was not down for long enough")
	}
	if longest > 4*time.Second {
		t.Errorf("a request of a budget with a max_wait of 2s waited %v", longest)
	}
}

// TestFleetClocks has a host and a store whose clocks are wrong, and a replica
// take over from that store.
func TestFleetClocks(t *testing.T) {
	t.Parallel()
	const (
		hosts    = 2
		replica  = storePort + 1
		sentinel = storePort + 2
	)
	l := newFleetLab(t, hosts)
	clock := filepath.Join(l.dir, "clock")
	mustWrite(t, clock, "+0\n")
	library := strings.TrimSpace(mustRun(t, "faketime", "-f", "+0s", "printenv", "LD_PRELOAD"))
	// Redis has an allocator that asks for the time before that library can tell
	// it, so that it needs that of libc.
	l.startStore(t, "env", "LD_PRELOAD="+library+" libc.so.6", "FAKETIME_TIMESTAMP_FILE="+clock, "FAKETIME_NO_CACHE=1",
		"FAKETIME_DONT_FAKE_MONOTONIC=1")
	l.serveStore(t, replica, "--replicaof", originAddr+" "+fmt.Sprint(storePort))
	conf := filepath.Join(l.dir, "sentinel.conf")
	mustWrite(t, conf, fmt.Sprintf("sentinel monitor m %s %d 1\nsentinel down-after-milliseconds m 500\nsentinel failover-timeout m 3000\n",
		originAddr, storePort))
	l.serve(t, l.origin, netip.AddrPortFrom(netip.MustParseAddr(originAddr), sentinel), "redis-server", conf, "--sentinel",
		"--bind", originAddr, "--port", fmt.Sprint(sentinel), "--protected-mode", "no", "--dir", l.dir)
	waitFor(t, 20*time.Second, "the sentinel to know the replica", func() bool {
		return strings.Contains(l.redis(t, sentinel, "SENTINEL", "REPLICAS", "m"), fmt.Sprint(replica))
	})
	l.url = fmt.Sprintf("redis-sentinel://%s:%d/m", originAddr, sentinel)
	l.hosts[1].clock = time.Hour
	for _, h := range l.hosts {
		l.join(t, h, troubled)
		l.work(t, h, 3, "80 /share", "80 /slots", "80 /closed", "80 /open")
	}
	all := []string{"share", "slots", "closed", "open"}
	waitMode(t, "fleet", l.hosts, all...)
	apart := l.hosts[1].happened(t)[0].Mono - l.hosts[0].happened(t)[0].Mono
	if d := time.Duration(apart) - time.Hour; d.Abs() > time.Minute {
		t.Fatalf("the clocks of two daemons are %v apart, want an hour: nothing was tested", time.Duration(apart))
	}
	time.Sleep(time.Second)
	begin := now()
	time.Sleep(3 * time.Second)
	use := func(what string, from, to time.Duration, least float64) {
		t.Helper()
		for path, rate := range map[string]float64{"/share": 20, "/closed": 20, "/slots": 5} {
			mustUse(t, what+": "+path, l.sightings(t, path), from, to, rate, least)
		}
	}
	use("an hour between hosts", begin, now(), 0.8)
	spells := []spell{{"an hour between hosts", 0, nil}}

	failover := func(limit fleet.Limit) float64 { return fleet.Failover(limit, hosts) }
	for _, jump := range []string{"+3600", "+0"} {
		begin = now()
		spells = append(spells, spell{"the store's clock jumps to " + jump, begin, failover})
		mustWrite(t, clock, jump+"\n")
		time.Sleep(4 * time.Second)
		use("the store's clock jumps to "+jump, begin+2*time.Second, now(), 0.7)
	}

	begin = now()
	spells = append(spells, spell{"failover", begin, func(limit fleet.Limit) float64 {
		return failover(limit) + fleet.Outage(limit, hosts)
	}})
	// Stopped, it comes back as a master that nobody should heed.
	l.store.signal(t, unix.SIGSTOP)
	waitFor(t, 20*time.Second, "the replica to take over", func() bool {
		return strings.Contains(l.redis(t, replica, "ROLE"), "master")
	})
	l.store.signal(t, unix.SIGCONT)
	t.Logf("a replica took over after %v", now()-begin)
	t.Logf("all hosts are back %v later", waitMode(t, "fleet", l.hosts, all...))
	begin = now()
	time.Sleep(3 * time.Second)
	use("at the replica", begin, now(), 0.75)

	// Who listened to the old one now hears the replica.
	begin = now()
	spells = append(spells, spell{"refused", begin, nil})
	if got := l.ask(t, l.hosts[0], "/share"+limitPath); got != "429" {
		t.Fatalf("the origin answered %s to a request that it should refuse", got)
	}
	time.Sleep((limitDelay + 1) * time.Second)
	mustCool(t, between(l.sightings(t, "/share"), begin, now()), limitDelay*time.Second)

	mustBoundAll(t, l, spells, now())
	// The kernel's clock is not that of the second host's daemon, which may take
	// for old what has just come.
	replied := outcomes(t, l.hosts[0])
	for path, longest := range patience {
		mustServe(t, replied, path, longest)
	}
}
