// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The wires between clients and origin, and addresses of the origin. Without
// rules all goes by the first wire; a client can be told to use the second and
// rules send to the third and the fourth. Whoever asks for address number five
// goes by the fifth.
//
//	clients 10.79.N.2 wireN ── 10.79.N.1 origin with 10.78.0.1 to 10.78.0.5
const wires = 5

const (
	extraSource = "10.79.1.7" // of the first wire, too
	testMark    = 42
	testUID     = "65534"
)

const wiredOrigin = nginxMain + `
http {
	log_format receipt '$msec $status $remote_addr $request_uri';
	access_log %[1]s/access.log receipt;
` + nginxFolders + `	server {
		listen 80;
		location / { return 200 "$remote_addr\n"; }
	}
}
`

// localExits is what the policy says of them.
const localExits = `exits:
  - {name: alias, source: ` + extraSource + `}
  - {name: second, interface: wire2, rebind: true}
  - {name: marked, mark: 42}
  - {name: tenant, uid: ` + testUID + `}
  - {name: fifth, interface: wire5}
  - {name: first, source: 10.79.1.2}
`

// newWiredLab makes a lab whose clients reach the origin by several wires.
func newWiredLab(t testing.TB) *lab {
	t.Helper()
	l := newPlainLab(t)
	ip := func(netns string, args ...string) {
		t.Helper()
		mustRun(t, "ip", append([]string{"-n", netns}, args...)...)
	}
	// Answers may come by another wire than the one that the main table knows.
	for _, device := range []string{"all", "default"} {
		mustRun(t, "nsenter", "--net=/run/netns/"+l.clients, "--", "sysctl", "-q", "-w", "net.ipv4.conf."+device+".rp_filter=0")
	}
	for n := 1; n <= wires; n++ {
		wire, net := fmt.Sprintf("wire%d", n), fmt.Sprintf("10.79.%d.", n)
		ip(l.clients, "link", "add", wire, "type", "veth", "peer", "name", wire, "netns", l.origin)
		for netns, host := range map[string]string{l.clients: "2", l.origin: "1"} {
			ip(netns, "addr", "add", net+host+"/24", "dev", wire)
			ip(netns, "link", "set", wire, "up")
		}
		ip(l.origin, "addr", "add", fmt.Sprintf("10.78.0.%d/32", n), "dev", "lo")
		ip(l.clients, "route", "add", "default", "via", net+"1", "dev", wire, "table", strconv.Itoa(100+n))
	}
	ip(l.clients, "addr", "add", extraSource+"/24", "dev", "wire1")
	ip(l.clients, "route", "add", "default", "via", "10.79.1.1", "dev", "wire1")
	ip(l.clients, "route", "add", "default", "via", "10.79.2.1", "dev", "wire2", "metric", "200")
	ip(l.clients, "route", "add", "10.78.0.5/32", "via", "10.79.5.1", "dev", "wire5")
	ip(l.clients, "rule", "add", "pref", "103", "fwmark", strconv.Itoa(testMark), "lookup", "103")
	ip(l.clients, "rule", "add", "pref", "104", "uidrange", testUID+"-"+testUID, "lookup", "104")
	conf := filepath.Join(l.dir, "nginx.conf")
	mustWrite(t, conf, fmt.Sprintf(wiredOrigin, l.dir))
	l.serve(t, l.origin, netip.MustParseAddrPort(originAddr+":80"), "nginx", "-p", l.dir, "-c", conf, "-e", filepath.Join(l.dir, "error.log"))
	return l
}

// markedClient asks for the page that is given it by a socket with a mark.
var markedClient = fmt.Sprintf(`
import socket, sys
host, path = sys.argv[1:]
s = socket.socket()
s.settimeout(30)
s.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, %d)
s.connect((host, 80))
s.sendall(("GET %%s HTTP/1.1\r\nHost: %%s\r\nConnection: close\r\n\r\n" %% (path, host)).encode())
text = b""
while chunk := s.recv(4096):
    text += chunk
print(text.partition(b"\r\n\r\n")[2].decode(), end="")
assert text
`, testMark)

// localClient makes the command that asks an address of the origin for a page,
// by one of the ways out.
type localClient func(host, path string) []string

func localCurl(flags ...string) localClient {
	return func(host, path string) []string {
		return append(append([]string{"curl", "-sS", "-m", "30"}, flags...), "http://"+host+path)
	}
}

var (
	aliasClient  = localCurl("--interface", extraSource)
	deviceClient = localCurl("--interface", "if!wire2")
	markClient   = localClient(func(host, path string) []string {
		return []string{"python3", "-c", markedClient, host, path}
	})
	tenantClient = localClient(func(host, path string) []string {
		return append([]string{"setpriv", "--reuid", testUID, "--regid", testUID, "--clear-groups"}, localCurl()(host, path)...)
	})
)

// TestLocalExits has clients leave by an address, a device, a mark, a user and
// routes of their own. The origin must see each by the same address as without
// egressd, and egressd must know the exit.
func TestLocalExits(t *testing.T) {
	t.Parallel()
	l := newWiredLab(t)
	scope := newGroup(t)
	d := l.prepareDaemon(t, scope)
	d.extra = localExits
	d.write(t, `  - {name: shop, match: {hosts: [10.78.0.0/24], ports: [80]}, per: [destination, exit], rate: 100/s}`)
	d.start(t)
	var before map[string]exitLane
	for _, tt := range []struct {
		name   string
		client localClient
		host   string
		from   string
		exit   string
	}{
		{"source by route", localCurl(), "10.78.0.1", "10.79.1.2", "first"},
		{"source bound", aliasClient, "10.78.0.1", extraSource, "alias"},
		{"device bound", deviceClient, "10.78.0.1", "10.79.2.2", "second"},
		{"mark", markClient, "10.78.0.1", "10.79.3.2", "marked"},
		{"user", tenantClient, "10.78.0.1", "10.79.4.2", "tenant"},
		{"device by route", localCurl(), "10.78.0.5", "10.79.5.2", "fifth"},
		{"nothing named", localCurl("--interface", "if!wire4"), "10.78.0.1", "10.79.4.2", ""},
	} {
		ask := func(in *group) string {
			p := l.start(t, l.clients, how{in: in}, tt.client(tt.host, "/")...)
			p.mustSucceed(t, 30*time.Second)
			return strings.TrimSpace(p.stdout.String())
		}
		without := ask(nil)
		if without != tt.from {
			t.Errorf("%s: without egressd the origin sees %s, want %s: the lab is wrong", tt.name, without, tt.from)
		}
		if got := ask(scope); got != without {
			t.Errorf("%s: the origin sees %s, and %s without egressd", tt.name, got, without)
		}
		after := exitLanes(t, d)
		for id, lane := range after {
			grown, want := lane.Granted-before[id].Granted, 0
			if id == "shop/"+tt.host+"/"+tt.exit {
				want = 1
			}
			if grown != want {
				t.Errorf("%s: lane %s got %d requests, want %d", tt.name, id, grown, want)
			}
		}
		before = after
		// Without an exit: bound to a device that policy does not rebind, which
		// stays untouched.
		if _, ok := after["shop/"+tt.host+"/"+tt.exit]; !ok && tt.exit != "" {
			t.Errorf("%s: got no lane of exit %s", tt.name, tt.exit)
		}
	}
	if n := parseMetrics(t, l.metrics(t, d))["egressd_exit_mismatch_total"]; n != 0 {
		t.Errorf("got egressd_exit_mismatch_total %v, want 0", n)
	}
}

// TestExitMismatch changes the way out while requests are held: each of them
// would leave by another exit than its client chose, and must not leave at all.
func TestExitMismatch(t *testing.T) {
	t.Parallel()
	l := newWiredLab(t)
	scope := newGroup(t)
	d := l.prepareDaemon(t, scope)
	d.extra = localExits
	// The second request waits long enough for routes that are remembered to
	// be forgotten.
	d.write(t, `  - {name: shop, match: {hosts: [10.78.0.0/24], ports: [80]}, per: [destination, exit], rate: 6/min}`)
	d.start(t)
	const noData, timedOut, reset = "curl: (56)", "curl: (28)", "ConnectionResetError"
	cases := []struct {
		name   string
		client localClient
		host   string
		change []string // of ip, in the namespace of the clients
		says   []string // the client, one of these
	}{
		{"route leads elsewhere", localCurl(), "10.78.0.5",
			[]string{"route", "replace", "10.78.0.5/32", "via", "10.79.3.1", "dev", "wire3"}, []string{noData}},
		{"device gone", deviceClient, "10.78.0.2", []string{"link", "del", "wire2"}, []string{noData}},
		{"mark leads elsewhere", markClient, "10.78.0.3",
			[]string{"rule", "add", "pref", "50", "fwmark", strconv.Itoa(testMark), "lookup", "101"}, []string{reset}},
		{"user leads elsewhere", tenantClient, "10.78.0.4",
			[]string{"rule", "add", "pref", "51", "uidrange", testUID + "-" + testUID, "lookup", "103"}, []string{noData}},
		// With its address goes the way by which the client could hear of it.
		{"address gone", localCurl("--interface", extraSource, "-m", "15"), "10.78.0.1",
			[]string{"addr", "del", extraSource + "/24", "dev", "wire1"}, []string{timedOut, noData}},
	}
	ask := func(i int, path string) *process {
		return l.start(t, l.clients, how{in: scope}, cases[i].client(cases[i].host, path)...)
	}
	var first, held []*process
	for i := range cases {
		first = append(first, ask(i, "/first"))
	}
	for _, p := range first {
		p.mustSucceed(t, 30*time.Second)
	}
	for i := range cases {
		held = append(held, ask(i, "/held"+strconv.Itoa(i)))
	}
	waitFor(t, 20*time.Second, "all requests to be held", func() bool { return d.status(t).Waiting == len(cases) })
	for _, c := range cases {
		mustRun(t, "ip", append([]string{"-n", l.clients}, c.change...)...)
	}
	for i, p := range held {
		status, said := p.wait(t, 60*time.Second), p.stderr.String()
		if !slices.ContainsFunc(cases[i].says, func(what string) bool { return strings.Contains(said, what) }) {
			t.Errorf("%s: got exit status %d, %q and %q, want one of %q", cases[i].name, status, p.stdout.String(), said, cases[i].says)
		}
		if seen := l.sightings(t, "/held"+strconv.Itoa(i)); len(seen) != 0 {
			t.Errorf("%s: the origin saw %+v: by another exit than the client's", cases[i].name, seen)
		}
		if i > 0 {
			continue
		}
		// The next connection goes untouched, and by the way that there is now.
		next := ask(i, "/next")
		next.mustSucceed(t, 30*time.Second)
		if got := strings.TrimSpace(next.stdout.String()); got != "10.79.3.2" {
			t.Errorf("the next connection: the origin sees %s, want 10.79.3.2", got)
		}
		if n := d.status(t).Kernel.Untouched["negative"]; n != 1 {
			t.Errorf("got %d connections untouched since the one before failed, want 1", n)
		}
	}
	// What is counted follows what has happened a little later.
	waitFor(t, 10*time.Second, "the mismatches to be counted", func() bool {
		return parseMetrics(t, l.metrics(t, d))["egressd_exit_mismatch_total"] >= float64(len(cases)) || t.Failed()
	})
	if n := parseMetrics(t, l.metrics(t, d))["egressd_exit_mismatch_total"]; n != float64(len(cases)) {
		t.Errorf("got egressd_exit_mismatch_total %v, want %d", n, len(cases))
	}
	if t.Failed() {
		t.Logf("events:\n%s", d.ask(t, "events"))
	}
}
