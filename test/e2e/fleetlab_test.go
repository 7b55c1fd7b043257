// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy/fleet"
)

// fleetLab is an origin and the store of a fleet, in a namespace of their own,
// and hosts that reach them by one wire each:
//
//	host N 10.78.0.1N ── 10.78.0.1 origin and store
type fleetLab struct {
	*lab
	store *process
	hosts []*fleetHost
	url   string   // of the store
	exit  string   // address of the proxy that was added last, "" if there is none
	exits []string // entries of that section
	pools string   // section of the policy file
	extra string   // of the section fleet, each key after a comma
}

// fleetHost is a host of the lab: a namespace with a daemon and workers.
type fleetHost struct {
	*daemon
	n       int
	netns   string
	clock   time.Duration // by which CLOCK_MONOTONIC of the daemon is ahead
	workers *process
	log     *process // what is let go
}

const (
	storePort   = 6379
	storeAddr   = originAddr + ":6379"
	connections = 81 // the origin's port beside 80
)

// limitPath ends paths where the origin refuses, and asks for limitDelay seconds of rest.
const (
	limitPath  = "/limit"
	limitDelay = 3
)

const fleetOrigin = nginxMain + `
http {
	log_format receipt '$msec $status $remote_addr $request_uri';
	access_log %[1]s/access.log receipt;
	keepalive_requests 1000000;
` + nginxFolders + `	server {
		listen %[2]s:80 backlog=1024;
		listen %[2]s:81 backlog=1024;
		location / {
			root %[1]s/www;
			try_files /index.html =404;
		}
		location ~ %[3]s$ {
			add_header Retry-After %[4]d always;
			return 429;
		}
	}
}
`

// newFleetLab makes a lab with so many hosts, whose daemons do not run yet.
func newFleetLab(t testing.TB, hosts int) *fleetLab {
	t.Helper()
	l := &fleetLab{lab: &lab{origin: newNetns(t), dir: shortDir(t)}, url: "redis://" + storeAddr}
	l.log, l.lab.hosts = filepath.Join(l.dir, "access.log"), filepath.Join(l.dir, "hosts")
	mustWrite(t, l.lab.hosts, "127.0.0.1 localhost\n"+originAddr+" "+originHost+"\n")
	if err := os.Mkdir(filepath.Join(l.dir, "www"), 0o755); err != nil {
		t.Fatal(err)
	}
	mustWrite(t, filepath.Join(l.dir, "www", "index.html"), "hello\n")
	addBridge(t, l.origin, "far", originAddr+"/24")
	mustWrite(t, filepath.Join(l.dir, "nginx.conf"), fmt.Sprintf(fleetOrigin, l.dir, originAddr, limitPath, limitDelay))
	l.serve(t, l.origin, netip.MustParseAddrPort(originAddr+":80"),
		"nginx", "-p", l.dir, "-c", filepath.Join(l.dir, "nginx.conf"), "-e", filepath.Join(l.dir, "error.log"))
	for n := 1; n <= hosts; n++ {
		h := &fleetHost{n: n, netns: newNetns(t)}
		plug := fmt.Sprintf("far%d", n)
		mustRun(t, "ip", "-n", l.origin, "link", "add", plug, "type", "veth", "peer", "name", "far", "netns", h.netns)
		mustRun(t, "ip", "-n", l.origin, "link", "set", plug, "master", "far", "up")
		mustRun(t, "ip", "-n", h.netns, "addr", "add", h.addr()+"/24", "dev", "far")
		mustRun(t, "ip", "-n", h.netns, "link", "set", "far", "up")
		l.hosts = append(l.hosts, h)
	}
	return l
}

// startStore starts the store of the fleet, which begins empty, with more
// arguments.
func (l *fleetLab) startStore(t testing.TB, args ...string) {
	t.Helper()
	l.store = l.serveStore(t, storePort, args...)
}

// serveStore starts a server at a port. What begins with -- is its argument, and
// what comes before is the command that it is run by.
func (l *fleetLab) serveStore(t testing.TB, port int, args ...string) *process {
	t.Helper()
	dir := filepath.Join(l.dir, fmt.Sprintf("redis%d", groups.Add(1)))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var by []string
	for len(args) > 0 && !strings.HasPrefix(args[0], "--") {
		by, args = append(by, args[0]), args[1:]
	}
	return l.serve(t, l.origin, netip.AddrPortFrom(netip.MustParseAddr(originAddr), uint16(port)), slices.Concat(by,
		[]string{"redis-server", "--bind", originAddr, "--port", fmt.Sprint(port), "--protected-mode", "no",
			"--save", "", "--appendonly", "no", "--dir", dir}, args)...)
}

// addProxy starts a proxy at a port of the origin's, which the origin sees at
// another address of its own. All hosts have it as an exit, by the name of exitN,
// N being the last digit of the port.
func (l *fleetLab) addProxy(t testing.TB, port int) (from string) {
	t.Helper()
	from = fmt.Sprintf("10.78.0.2%d", port%10)
	mustRun(t, "ip", "-n", l.origin, "addr", "add", from+"/24", "dev", "far")
	conf := filepath.Join(l.dir, fmt.Sprintf("tinyproxy%d.conf", port))
	mustWrite(t, conf, fmt.Sprintf("Listen %s\nPort %d\nBind %s\nTimeout 60\nMaxClients 200\n", originAddr, port, from))
	addr := netip.AddrPortFrom(netip.MustParseAddr(originAddr), uint16(port))
	l.serve(t, l.origin, addr, "tinyproxy", "-d", "-c", conf)
	l.exit = addr.String()
	l.exits = append(l.exits, fmt.Sprintf("{name: exit%d, proxy: %q}", port%10, addr))
	return from
}

// redis runs a command at a server.
func (l *fleetLab) redis(t testing.TB, port int, args ...string) string {
	t.Helper()
	p := l.start(t, l.origin, how{}, append([]string{"redis-cli", "-h", originAddr, "-p", fmt.Sprint(port)}, args...)...)
	p.mustSucceed(t, 20*time.Second)
	return p.stdout.String()
}

func (h *fleetHost) addr() string { return fmt.Sprintf("10.78.0.1%d", h.n) }

// join starts the daemon of a host with budgets as for newDaemon.
func (l *fleetLab) join(t testing.TB, h *fleetHost, budgets string) {
	t.Helper()
	h.daemon = prepareDaemon(t, newGroup(t))
	h.within = l.within(h.netns)
	if h.clock != 0 {
		ahead := fmt.Sprint(int(h.clock.Seconds()))
		h.within = append(h.within, "unshare", "--time", "--monotonic", ahead, "--boottime", ahead)
	}
	l.configure(t, h, budgets)
	h.start(t)
	h.log = h.follow(t)
}

// configure writes the policy file of a host.
func (l *fleetLab) configure(t testing.TB, h *fleetHost, budgets string) {
	t.Helper()
	h.daemon.extra = fmt.Sprintf("fleet: {redis: %q%s}\n", l.url, l.extra)
	if len(l.exits) > 0 {
		h.daemon.extra += fmt.Sprintf("exits: [%s]\n", strings.Join(l.exits, ", "))
	}
	h.daemon.extra += l.pools
	h.write(t, budgets)
}

// hungryWorker sends one request after the other, each on a connection of its
// own, in a thread for each PORT TARGET, and tells what became of them.
const hungryWorker = `
import http.client, os, sys, threading, time
def work(host, port, target):
    while True:
        begin = time.monotonic()
        try:
            c = http.client.HTTPConnection(host, port, timeout=60)
            c.request("GET", target)
            r = c.getresponse()
            r.read()
            what = str(r.status)
            c.close()
        except (OSError, http.client.HTTPException) as e:
            what = type(e).__name__
        took = time.monotonic() - begin
        os.write(1, ("%s %s %.6f %.6f\n" % (target, what, time.time(), took)).encode())
        if what != "200": time.sleep(0.2)
for arg in sys.argv[2:]:
    port, target = arg.split()
    threading.Thread(target=work, args=(sys.argv[1], int(port), target)).start()
`

// work starts hungry workers on a host, n for each PORT TARGET at the address of
// the origin, which go on until their process or its group is killed.
func (l *fleetLab) work(t testing.TB, h *fleetHost, n int, where ...string) {
	t.Helper()
	l.workBy(t, h, originAddr, n, where...)
}

// workBy is work by ports of another address.
func (l *fleetLab) workBy(t testing.TB, h *fleetHost, addr string, n int, where ...string) {
	t.Helper()
	command := []string{"python3", "-c", hungryWorker, addr}
	for range n {
		command = append(command, where...)
	}
	h.workers = l.start(t, h.netns, how{in: h.scope}, command...)
}

// outcome is what a worker got.
type outcome struct {
	path string
	what string // status, or what went wrong
	at   time.Duration
	took time.Duration
}

// outcomes are what the workers of some hosts got.
func outcomes(t testing.TB, hosts ...*fleetHost) (all []outcome) {
	t.Helper()
	for _, h := range hosts {
		for line := range strings.Lines(h.workers.stdout.String()) {
			var r outcome
			var at, took float64
			if !strings.HasSuffix(line, "\n") {
				break // is being written
			}
			if _, err := fmt.Sscan(line, &r.path, &r.what, &at, &took); err != nil {
				t.Fatalf("a worker says %q: %v", line, err)
			}
			r.at, r.took = time.Duration(at*1e9), time.Duration(took*1e9)
			all = append(all, r)
		}
	}
	return all
}

// mustServe fails the test if requests to a path, all paths if it is "", got
// anything but 200, or waited longer than patience.
func mustServe(t testing.TB, all []outcome, path string, patience time.Duration) {
	t.Helper()
	n, bad, longest := 0, map[string]int{}, time.Duration(0)
	for _, r := range all {
		if path != "" && r.path != path {
			continue
		}
		n++
		longest = max(longest, r.took)
		if r.what != "200" {
			bad[r.what]++
			t.Logf("%s: %s at %v after %v", r.path, r.what, time.Unix(0, int64(r.at)).UTC(), r.took)
		}
	}
	t.Logf("%s: %d answers, none later than %v", path, n, longest)
	if n == 0 || len(bad) > 0 {
		t.Errorf("%s: of %d answers these were no success: %v", path, n, bad)
	}
	// A busy machine may take its time besides.
	if longest > patience+2*time.Second {
		t.Errorf("%s: a request waited %v, want %v at most", path, longest, patience)
	}
}

// ask sends one request from a host, by the last proxy if there is one, and returns the status of the answer.
func (l *fleetLab) ask(t testing.TB, h *fleetHost, path string) string {
	t.Helper()
	p := l.start(t, h.netns, how{in: h.scope}, "curl", "-sS", "-x", l.exit, "-o", os.DevNull, "-w", "%{http_code}", "http://"+originAddr+path)
	p.mustSucceed(t, 60*time.Second)
	return p.stdout.String()
}

// fleetLane is what a host tells of a lane.
type fleetLane struct {
	exitLane
	Fleet *struct {
		Scheme, Mode string
		Hosts, Held  int
		Bound        *float64
	}
}

// mode is that of a lane that is shared, else "".
func (l *fleetLane) mode() string {
	if l.Fleet == nil {
		return ""
	}
	return l.Fleet.Mode
}

// fleetLanes are the lanes of a host by their budgets.
func (h *fleetHost) fleetLanes(t testing.TB) map[string]fleetLane {
	t.Helper()
	var all []fleetLane
	h.askJSON(t, &all, "lanes")
	by := map[string]fleetLane{}
	for _, l := range all {
		by[l.Budget] = l
	}
	return by
}

// waitMode waits until the lanes of some budgets have a mode on all hosts, and
// returns how long that took.
func waitMode(t testing.TB, mode string, hosts []*fleetHost, budgets ...string) time.Duration {
	t.Helper()
	begin := time.Now()
	waitFor(t, 30*time.Second, fmt.Sprintf("mode %s of %v", mode, budgets), func() bool {
		for _, h := range hosts {
			lanes := h.fleetLanes(t)
			for _, b := range budgets {
				if l := lanes[b]; l.mode() != mode {
					return false
				}
			}
		}
		return true
	})
	return time.Since(begin)
}

// happened are the events that a daemon remembers.
func (h *fleetHost) happened(t testing.TB) (all []event) {
	t.Helper()
	for line := range strings.Lines(h.ask(t, "events", "--json")) {
		var ev event
		if err := json.Unmarshal([]byte(line), &ev); err != nil {
			t.Fatalf("events: %v in %s", err, line)
		}
		all = append(all, ev)
	}
	return all
}

// metrics scrapes the daemon of a host.
func (l *fleetLab) metrics(t testing.TB, h *fleetHost) map[string]float64 {
	t.Helper()
	p := l.start(t, h.netns, how{}, "curl", "-sS", "-f", "http://"+h.status(t).Metrics+"/metrics")
	p.mustSucceed(t, 20*time.Second)
	return parseMetrics(t, p.stdout.String())
}

// now is the time as sightings and outcomes have it.
func now() time.Duration { return time.Duration(time.Now().UnixNano()) }

// letGo is what the daemons that run now, and those that ended last, let go by a
// budget.
func (l *fleetLab) letGo(t testing.TB, budget string) (all []sighting) {
	t.Helper()
	var mono unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono); err != nil {
		t.Fatal(err)
	}
	epoch := now() - time.Duration(mono.Nano())
	for _, h := range l.hosts {
		if h.log == nil {
			continue // it has yet to join
		}
		for _, ev := range events(t, h.log) {
			if ev.Kind == "dispatch" && strings.HasPrefix(ev.Lane, budget+"/") {
				all = append(all, sighting{at: epoch + time.Duration(ev.Mono) - h.clock})
			}
		}
	}
	return all
}

// mustBound looks whether a budget kept burst + rate·τ + bound in every window
// from one instant to another: as hosts let its requests go, and as the origin
// saw them, which has whole thousandths of a second in its log, and may see what
// is held up on a busy machine.
func (l *fleetLab) mustBound(t testing.TB, what, budget, path string, from, to time.Duration, limit fleet.Limit, bound float64) {
	t.Helper()
	const busy = 250 * time.Millisecond
	seen, went := between(l.sightings(t, path), from, to), between(l.letGo(t, budget), from, to)
	n, in := overSent(went, limit)
	m, within := overSent(seen, limit)
	t.Logf("%s: %s: %d let go, %d seen: %.2f and %.2f beyond %d + %.3v/s at most, within %v and %v; bound %.4v",
		what, budget, len(went), len(seen), n, m, limit.Burst, limit.Rate(), in, within, bound)
	if n > bound || m > bound+limit.Rate()*busy.Seconds() {
		t.Errorf("%s: %s: more went than %d + %.3v/s + %.4v", what, budget, limit.Burst, limit.Rate(), bound)
	}
	if len(went) == 0 {
		t.Errorf("%s: %s: nothing was let go", what, budget)
	}
}

// overSent is by how much the busiest window exceeds a limit.
func overSent(all []sighting, l fleet.Limit) (worst float64, in time.Duration) {
	slices.SortStableFunc(all, func(a, b sighting) int { return cmp.Compare(a.at, b.at) })
	for i := range all {
		for j := i; j < len(all); j++ {
			window := all[j].at - all[i].at
			if over := float64(j-i+1) - float64(l.Burst) - l.Rate()*window.Seconds(); over > worst {
				worst, in = over, window
			}
		}
	}
	return worst, in
}

// mustUse looks whether the origin saw at least a part of what rate allows from
// one instant to another.
func mustUse(t testing.TB, what string, all []sighting, from, to time.Duration, rate, least float64) {
	t.Helper()
	n := len(between(all, from, to))
	part := float64(n) / rate / (to - from).Seconds()
	t.Logf("%s: %d requests in %v, %.1f %% of %v/s", what, n, (to - from).Round(time.Millisecond), 100*part, rate)
	if part < least {
		t.Errorf("%s: %.1f %% of %v/s were used, want %v %%", what, 100*part, rate, 100*least)
	}
}

// between is what was seen from one instant to another.
func between(all []sighting, from, to time.Duration) (some []sighting) {
	for _, s := range all {
		if s.at >= from && s.at < to {
			some = append(some, s)
		}
	}
	return some
}
