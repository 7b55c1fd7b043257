// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// plenty is a budget for port that holds nobody.
func plenty(port int) string {
	return fmt.Sprintf("  - {name: all, match: {hosts: [localhost, 127.0.0.1], ports: [%d]}, rate: 100000/s, burst: 1000}", port)
}

const heartbeatMax = time.Second // after which a daemon that stands still gets no more connections

func TestKill(t *testing.T) {
	t.Parallel()
	scope := newGroup(t)
	o := newOrigin(t)
	d := newDaemon(t, scope, plenty(o.port))
	p := startProbe(t, scope, o.addr(), time.Minute, 2*time.Millisecond)
	waitAttempts(t, p, time.Time{}, "a redirected connection", redirected)
	killed := time.Now()
	d.kill()
	dead := time.Now()
	waitAttempts(t, p, dead, "a native connection", native)
	p.kill()
	for _, a := range attempts(t, p) {
		switch {
		case a.At < killed.UnixNano():
			if a.Error != "" && time.Unix(0, a.At+a.Took).Before(killed) {
				t.Errorf("before the end of the daemon: got %+v, want no error", a)
			}
		case a.At > dead.UnixNano() && !native(a):
			t.Errorf("after the end of the daemon: got %+v, want a native connection", a)
		}
		if a.Error == "" && a.Peer != o.addr() {
			t.Errorf("got peer %s, want %s", a.Peer, o.addr())
		}
	}
	mustBeClean(t, scope)
	mustOnlyLedger(t, d)
}

// mustOnlyLedger fails the test if a dead daemon left more than the ledger.
func mustOnlyLedger(t testing.TB, d *daemon) {
	t.Helper()
	var got []string
	err := filepath.WalkDir(d.pins, func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			got = append(got, e.Name())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"lanes", "ledger"}; !slices.Equal(got, want) {
		t.Errorf("pins: got %v, want %v", got, want)
	}
}

func TestStandstill(t *testing.T) {
	t.Parallel()
	scope := newGroup(t)
	o := newOrigin(t)
	d := newDaemon(t, scope, plenty(o.port))
	// Each connection of the probe takes five seconds at most, so a client
	// that hangs is seen as an error.
	p := startProbe(t, scope, o.addr(), time.Minute, 2*time.Millisecond)
	others := startProbe(t, scope, o.addr(), time.Minute, 100*time.Millisecond)
	waitAttempts(t, p, time.Time{}, "a redirected connection", redirected)
	d.signal(t, unix.SIGSTOP)
	stopped := time.Now()
	// What becomes of the clients in the daemon's hands, TestStandstillFrees
	// shows; those that come after the heartbeat is old do not see it.
	fresh := []*process{}
	for _, wait := range []time.Duration{0, 300 * time.Millisecond, 600 * time.Millisecond, heartbeatMax + 100*time.Millisecond, 2 * heartbeatMax} {
		time.Sleep(time.Until(stopped.Add(wait)))
		fresh = append(fresh, startProbe(t, scope, o.addr(), 500*time.Millisecond, 10*time.Millisecond))
	}
	for _, f := range fresh[3:] {
		f.mustSucceed(t, 20*time.Second)
		all := attempts(t, f)
		if len(all) == 0 {
			t.Error("got no connection of a client that came during the standstill")
		}
		for _, a := range all {
			if !native(a) {
				t.Errorf("%v after SIGSTOP: got %+v, want a native connection", time.Unix(0, a.At).Sub(stopped), a)
			}
		}
	}
	d.signal(t, unix.SIGCONT)
	continued := time.Now()
	waitAttempts(t, p, continued, "a redirected connection after SIGCONT", redirected)
	for _, f := range fresh[:3] {
		f.mustSucceed(t, 20*time.Second)
	}
	p.kill()
	others.kill()
	for _, p := range append(fresh, p, others) {
		for _, a := range attempts(t, p) {
			// Those that were redirected in the last second before the
			// heartbeat was too old are reset, or wait for SIGCONT.
			if at := time.Unix(0, a.At); a.Error != "" && !(at.Before(stopped.Add(heartbeatMax)) && at.Add(time.Duration(a.Took)).After(stopped)) {
				t.Errorf("%v after SIGSTOP: got %+v, want no error", at.Sub(stopped), a)
			}
		}
	}
}

// hang is how late a client may learn that the daemon stands still, beyond the
// age of its heartbeat: what a busy machine takes.
const hang = time.Second

// Clients connect all the time up to the standstill of the daemon and on through
// it, each with a clock of its own. None that the daemon has not taken hangs for
// longer than its heartbeat may be old; those that it has, until it has been
// stopped for three times as long.
//
// It is not parallel: what it looks at is how long clients hang.
func TestStandstillFrees(t *testing.T) {
	scope := newGroup(t)
	o := newOrigin(t)
	d := newDaemon(t, scope, plenty(o.port))
	p := startRush(t, scope, o.addr(), 3*time.Second, 5*time.Millisecond)
	waitAttempts(t, p, time.Time{}, "a redirected connection", redirected)
	time.Sleep(heartbeatMax / 2)
	d.signal(t, unix.SIGSTOP)
	stopped := time.Now()
	p.mustSucceed(t, 40*time.Second)
	d.signal(t, unix.SIGCONT)
	var longest, longestTaken time.Duration
	freed, nativeOnes := 0, 0
	for _, a := range attempts(t, p) {
		at, took := time.Unix(0, a.At).Sub(stopped), time.Duration(a.Took)
		switch {
		case at+took < 0:
			if a.Error != "" {
				t.Errorf("%v before SIGSTOP: got %+v, want no error", -at, a)
			}
		case at < hang/10: // perhaps taken before the last thread stood still
			longestTaken = max(longestTaken, at+took)
		default:
			longest = max(longest, took)
			switch {
			case native(a):
				nativeOnes++
			case a.Error != "" && at < heartbeatMax+hang:
				freed++
			default:
				t.Errorf("%v after SIGSTOP: got %+v, want a native connection or an end of it", at, a)
			}
		}
	}
	t.Logf("%d were freed, the longest hang was %v; of what the daemon had taken, %v", freed, longest, longestTaken)
	if most := heartbeatMax + hang; longest > most {
		t.Errorf("a client hung for %v, want %v at most", longest, most)
	}
	if most := 3*heartbeatMax + hang; longestTaken > most {
		t.Errorf("a client that the daemon had taken hung until %v after SIGSTOP, want %v at most", longestTaken, most)
	}
	if freed == 0 || nativeOnes == 0 {
		t.Errorf("%d clients were freed and %d went untouched, want some of each", freed, nativeOnes)
	}
	again := startProbe(t, scope, o.addr(), 30*time.Second, 10*time.Millisecond)
	waitAttempts(t, again, time.Now(), "a redirected connection after SIGCONT", redirected)
	again.kill()
	waitFor(t, 15*time.Second, "the last flow to end", func() bool { return d.status(t).Flows == 0 })
}

// What waits for its turn in the daemon survives a pause, but is reset when that
// lasts, so that its client can go on without.
func TestStandstillOfHeld(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		pause time.Duration
		freed bool
	}{
		{"a pause", heartbeatMax + heartbeatMax/2, false},
		{"for good", 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			scope := newGroup(t)
			o := newOrigin(t)
			// The second has to wait for four seconds, less than its client does.
			d := newDaemon(t, scope, fmt.Sprintf(
				"  - {name: slow, match: {hosts: [127.0.0.1], ports: [%d]}, rate: 15/min, queue: {max_wait: 1m}}", o.port))
			startProbe(t, scope, o.addr(), 0, 0).mustSucceed(t, 10*time.Second)
			held := startProbe(t, scope, o.addr(), 0, 0)
			waitFor(t, 10*time.Second, "a request to wait", func() bool { return d.lane(t).Waiting == 1 })
			d.signal(t, unix.SIGSTOP)
			if tt.freed {
				held.mustSucceed(t, 20*time.Second)
			} else {
				time.Sleep(tt.pause)
			}
			d.signal(t, unix.SIGCONT)
			held.mustSucceed(t, 20*time.Second)
			a := attempts(t, held)[0]
			if freed := strings.Contains(a.Error, "reset"); freed != tt.freed || !freed && !redirected(a) {
				t.Errorf("got %+v, want freed = %v", a, tt.freed)
			}
		})
	}
}

func TestRestartKeepsCooldown(t *testing.T) {
	t.Parallel()
	const retryAfter = 30 * time.Second
	scope := newGroup(t)
	o := newOrigin(t)
	d := newDaemon(t, scope, fmt.Sprintf(
		"  - {name: shop, match: {hosts: [127.0.0.1], ports: [%d]}, rate: 100/s, burst: 10, queue: {max_wait: 5s}}", o.port))
	ask := func() attempt {
		t.Helper()
		p := startProbe(t, scope, o.addr(), 0, 0)
		p.mustSucceed(t, 10*time.Second)
		return attempts(t, p)[0]
	}
	o.limitNext(retryAfter)
	begin := time.Now()
	if a := ask(); a.Status != 429 || a.Error != "" {
		t.Fatalf("got %+v, want the origin's own 429", a)
	}
	closedFor := func() float64 {
		t.Helper()
		l := d.lane(t)
		if l.Open {
			t.Fatalf("got lane %+v, want it closed", l)
		}
		return l.ClosedFor
	}
	// The spread of the reopening is 10 % by default.
	if got, most := closedFor(), 1.1*retryAfter.Seconds(); got > most || got < (retryAfter-time.Since(begin)).Seconds() {
		t.Errorf("got lane closed for %v s, want from %v to %v", got, retryAfter-time.Since(begin), most)
	}
	before, at := closedFor(), time.Now()
	d.kill()
	mustOnlyLedger(t, d)
	d.start(t)
	got, want := closedFor(), before-time.Since(at).Seconds()
	if math.Abs(got-want) > 1 {
		t.Errorf("after the restart: got lane closed for %v s, want %v", got, want)
	}
	sent := o.count()
	if a := ask(); a.Status != 429 || a.Native || o.count() != sent {
		t.Errorf("got %+v and %d requests at the origin, want egressd's own 429 and %d", a, o.count(), sent)
	}
	d.ask(t, "cooldown", "clear", d.lane(t).Lane)
	if a := ask(); !redirected(a) || o.count() != sent+1 {
		t.Errorf("after cooldown clear: got %+v and %d requests at the origin, want an answer and %d", a, o.count(), sent+1)
	}
}

func TestStrangerAtProxyPort(t *testing.T) {
	t.Parallel()
	scope := newGroup(t)
	o := newOrigin(t)
	d := newDaemon(t, scope, plenty(o.port))
	ports := listeners(t, d.pid())
	if len(ports) < 2 {
		t.Fatalf("got listening ports %v of the daemon, want the proxy's and that of metrics", ports)
	}
	metrics := d.status(t).Metrics
	for _, port := range ports {
		addr := hostPort("127.0.0.1", port)
		if addr == metrics {
			continue
		}
		// From outside of the scope and from inside.
		if a := try(addr); a.Error == "" || a.Took > int64(2*time.Second) {
			t.Errorf("stranger at %s: got %+v, want the connection closed", addr, a)
		}
		p := startProbe(t, scope, addr, time.Millisecond, 0)
		p.mustSucceed(t, 10*time.Second)
		if a := attempts(t, p)[0]; a.Error == "" || a.Took > int64(2*time.Second) {
			t.Errorf("stranger in scope at %s: got %+v, want the connection closed", addr, a)
		}
	}
	if n := o.count(); n != 0 {
		t.Errorf("got %d requests at the origin, want none", n)
	}
}

// tcpSocket is a line of /proc/net/tcp.
type tcpSocket struct {
	localPort, remotePort int
	state, uid, inode     string
}

func tcpSockets(t testing.TB, table string) (all []tcpSocket) {
	t.Helper()
	text, err := os.ReadFile(table)
	if err != nil {
		t.Fatal(err)
	}
	port := func(addr string) int {
		_, hex, _ := strings.Cut(addr, ":")
		n, err := strconv.ParseUint(hex, 16, 16)
		if err != nil {
			t.Fatal(err)
		}
		return int(n)
	}
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) < 10 || f[0] == "sl" {
			continue
		}
		all = append(all, tcpSocket{port(f[1]), port(f[2]), f[3], f[7], f[9]})
	}
	return all
}

func TestManyConnections(t *testing.T) {
	t.Parallel()
	const processes, each, atOnce = 4, 2500, 16
	scope := newGroup(t)
	o := newOrigin(t)
	d := newDaemon(t, scope, plenty(o.port))
	run := func(n int) {
		t.Helper()
		var all []*process
		for range processes {
			all = append(all, start(t, how{in: scope, env: []string{roleName + "=" + roleChurn}},
				here.self, o.addr(), strconv.Itoa(n), strconv.Itoa(atOnce)))
		}
		for _, p := range all {
			p.mustSucceed(t, time.Minute)
		}
		waitFor(t, 10*time.Second, "the last flow to end", func() bool { return d.status(t).Flows == 0 })
	}
	run(each / 10) // what the daemon keeps for use again is there from now on
	fds, rss := descriptors(t, d.pid()), resident(t, d.pid())
	run(each)
	// One more connection of the admin socket may be about to close.
	waitFor(t, 10*time.Second, "descriptors to return to the baseline", func() bool { return descriptors(t, d.pid()) <= fds+1 })
	const slack = 16 << 20 // what Go's collector leaves for the next time
	if got := resident(t, d.pid()); got > rss+slack {
		t.Errorf("got %d bytes resident after %d connections, want at most %d + %d", got, processes*each, rss, slack)
	}
	s := d.status(t)
	if n := s.Kernel.Untouched["full"] + s.Kernel.Untouched["backlog"]; n > 0 {
		t.Logf("%d connections went untouched because too many came at once", n)
	}
	// Connections that were closed before anyone took them left no record.
	waitFor(t, 10*time.Second, "the last flow record to go", func() bool { return entries(t, d.pid(), "flows") == 0 })
	if n := entries(t, d.pid(), "enrolments"); n != 1 {
		t.Errorf("got %d network namespaces enrolled, want that of the daemon", n)
	}
	// A new connection is redirected as ever.
	p := startProbe(t, scope, o.addr(), time.Millisecond, 0)
	p.mustSucceed(t, 10*time.Second)
	if a := attempts(t, p)[0]; !redirected(a) {
		t.Errorf("got %+v, want a redirected connection", a)
	}
}

func descriptors(t testing.TB, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// resident is the resident memory of a process, in bytes.
func resident(t testing.TB, pid int) int {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(text))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}
