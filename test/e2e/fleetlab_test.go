// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// fleetLab is an origin and the store of a fleet, in a namespace of their own,
// and hosts that reach them by one wire each:
//
//	host N 10.78.0.1N ── 10.78.0.1 origin and store
type fleetLab struct {
	*lab
	store *process
	hosts []*fleetHost
	extra string // of the section fleet, each key after a comma
}

// fleetHost is a host of the lab: a namespace with a daemon and workers.
type fleetHost struct {
	*daemon
	n     int
	netns string
}

const storePort = 6379

// limitPath is where the origin refuses, and asks for limitDelay seconds of rest.
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
		location / {
			root %[1]s/www;
			try_files /index.html =404;
		}
		location = %[3]s {
			add_header Retry-After %[4]d always;
			return 429;
		}
	}
}
`

// newFleetLab makes a lab with so many hosts, whose daemons do not run yet.
func newFleetLab(t testing.TB, hosts int) *fleetLab {
	t.Helper()
	l := &fleetLab{lab: &lab{origin: newNetns(t), dir: shortDir(t)}}
	l.log, l.lab.hosts = filepath.Join(l.dir, "access.log"), filepath.Join(l.dir, "hosts")
	mustWrite(t, l.lab.hosts, "127.0.0.1 localhost\n"+originAddr+" "+originHost+"\n")
	for _, dir := range []string{"www", "redis"} {
		if err := os.Mkdir(filepath.Join(l.dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	mustWrite(t, filepath.Join(l.dir, "www", "index.html"), "hello\n")
	addBridge(t, l.origin, "far", originAddr+"/24")
	mustWrite(t, filepath.Join(l.dir, "nginx.conf"), fmt.Sprintf(fleetOrigin, l.dir, originAddr, limitPath, limitDelay))
	l.serve(t, l.origin, netip.MustParseAddrPort(originAddr+":80"),
		"nginx", "-p", l.dir, "-c", filepath.Join(l.dir, "nginx.conf"), "-e", filepath.Join(l.dir, "error.log"))
	l.startStore(t)
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

// startStore starts the store of the fleet, which begins empty.
func (l *fleetLab) startStore(t testing.TB) {
	t.Helper()
	l.store = l.serve(t, l.origin, netip.AddrPortFrom(netip.MustParseAddr(originAddr), storePort),
		"redis-server", "--bind", originAddr, "--port", fmt.Sprint(storePort), "--protected-mode", "no",
		"--save", "", "--appendonly", "no", "--dir", filepath.Join(l.dir, "redis"))
}

// redis runs a command at the store.
func (l *fleetLab) redis(t testing.TB, args ...string) string {
	t.Helper()
	p := l.start(t, l.origin, how{}, append([]string{"redis-cli", "-h", originAddr, "-p", fmt.Sprint(storePort)}, args...)...)
	p.mustSucceed(t, 20*time.Second)
	return p.stdout.String()
}

func (h *fleetHost) addr() string { return fmt.Sprintf("10.78.0.1%d", h.n) }

// join starts the daemon of a host with budgets as for newDaemon.
func (l *fleetLab) join(t testing.TB, h *fleetHost, budgets string) {
	t.Helper()
	h.daemon = prepareDaemon(t, newGroup(t))
	h.within = l.within(h.netns)
	h.daemon.extra = fmt.Sprintf("fleet: {redis: \"redis://%s:%d\"%s}\n", originAddr, storePort, l.extra)
	h.write(t, budgets)
	h.start(t)
}

// hungryWorker sends one request after the other, each on a connection of its
// own, and tells what went wrong.
const hungryWorker = `
import http.client, sys
host, path = sys.argv[1], sys.argv[2]
while True:
    try:
        c = http.client.HTTPConnection(host, 80, timeout=60)
        c.request("GET", path)
        r = c.getresponse()
        r.read()
        if r.status not in (200, 429): print("ERR:%d" % r.status, flush=True)
        c.close()
    except OSError as e:
        print("ERR:" + type(e).__name__, flush=True)
`

// work starts hungry workers on a host, which go on until its group is killed.
func (l *fleetLab) work(t testing.TB, h *fleetHost, n int) (workers []*process) {
	t.Helper()
	for range n {
		workers = append(workers, l.start(t, h.netns, how{in: h.scope}, "python3", "-c", hungryWorker, originAddr, "/"))
	}
	return workers
}

// ask sends one request from a host and returns the status of the answer.
func (l *fleetLab) ask(t testing.TB, h *fleetHost, path string) string {
	t.Helper()
	p := l.start(t, h.netns, how{in: h.scope}, "curl", "-sS", "-o", os.DevNull, "-w", "%{http_code}", "http://"+originAddr+path)
	p.mustSucceed(t, 60*time.Second)
	return p.stdout.String()
}

// fleetLane is what a host tells of the only lane there is.
type fleetLane struct {
	lane
	Reason string
	Fleet  *struct {
		Scheme, Mode string
		Hosts, Held  int
		Bound        *float64
	}
}

func (h *fleetHost) fleetLane(t testing.TB) fleetLane {
	t.Helper()
	var all []fleetLane
	h.askJSON(t, &all, "lanes")
	if len(all) != 1 || all[0].Fleet == nil {
		t.Fatalf("got lanes %+v, want one that is shared", all)
	}
	return all[0]
}

// mustBound looks whether what the origin saw keeps burst + rate·τ + bound in
// every window, allowing for what the way there adds: that its log has whole
// thousandths of a second, and a request that is held up on a busy machine.
func mustBound(t testing.TB, all []sighting, burst, rate, bound float64) (worst float64) {
	t.Helper()
	const busy = 20 * time.Millisecond
	slices.SortFunc(all, func(a, b sighting) int { return int(a.at - b.at) })
	for i := range all {
		for j := i; j < len(all); j++ {
			window := all[j].at - all[i].at
			over := float64(j-i+1) - burst - rate*window.Seconds()
			worst = max(worst, over)
			if over > bound+rate*busy.Seconds() {
				t.Errorf("%d requests within %v: %.1f beyond %v + %v/s, want %v at most", j-i+1, window, over, burst, rate, bound)
				return worst
			}
		}
	}
	return worst
}

// within is what was seen from one instant to another.
func between(all []sighting, from, to time.Duration) (some []sighting) {
	for _, s := range all {
		if s.at >= from && s.at < to {
			some = append(some, s)
		}
	}
	return some
}

// wrong is what workers told that went wrong.
func wrong(workers []*process) string {
	var all []string
	for _, w := range workers {
		all = append(all, strings.Fields(w.stdout.String())...)
	}
	return strings.Join(all, " ")
}
