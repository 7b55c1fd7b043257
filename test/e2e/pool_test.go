// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/base64"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// poolURL is where clients reach the pool of a lab.
const poolURL = "http://127.0.0.77:3128"

// poolClient is a program that goes to the pool as to any proxy: it asks for a
// page so many times, and fails unless each is answered with 200.
func (l *lab) poolClient(t testing.TB, scope *group, program, url string, count int) *process {
	t.Helper()
	h := how{in: scope, env: []string{"CURL_CA_BUNDLE=" + l.trust, "REQUESTS_CA_BUNDLE=" + l.trust}}
	switch program {
	case "curl": // one connection for all
		return l.start(t, l.clients, h, "curl", "-sS", "-f", "-m", "60", "-x", poolURL, "--proxy-user", "worker:any", "-o", "/dev/null",
			fmt.Sprintf("%s?[1-%d]", url, count))
	case "curl-tunnel":
		return l.start(t, l.clients, h, "curl", "-sS", "-f", "-m", "60", "-x", poolURL, "--proxytunnel", "-o", "/dev/null",
			fmt.Sprintf("%s?[1-%d]", url, count))
	}
	return l.start(t, l.clients, h, "python3", "-c", requestsScript, poolURL, url, fmt.Sprint(count))
}

// TestPool has clients that know one proxy, and a pool behind its address: of a
// squid, to which egressd logs in, and of a tinyproxy. One of them is stopped and
// comes back.
func TestPool(t *testing.T) {
	t.Parallel()
	const (
		password = "opensesame4471"
		user     = "customer-7"
		rate     = 2
	)
	l := newLab(t)
	keyFile := filepath.Join(l.dir, "password")
	if err := os.WriteFile(keyFile, []byte(password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l.addProxy(t, "squid", squid, password).more = fmt.Sprintf(", user: %s, password_file: %s", user, keyFile)
	tiny := l.addExit(t, "tinyproxy")
	tiny.port = 8888
	conf := filepath.Join(l.dir, "tinyproxy.conf")
	mustWrite(t, conf, fmt.Sprintf("Listen %s\nPort %d\nTimeout 60\nMaxClients 200\n", tiny.near, tiny.port))
	startTiny := func() *process {
		return l.serve(t, tiny.netns, netip.AddrPortFrom(netip.MustParseAddr(tiny.near), uint16(tiny.port)), "tinyproxy", "-d", "-c", conf)
	}
	running := startTiny()

	scope := newGroup(t)
	d := l.prepareDaemon(t, scope)
	d.extra += "pools:\n  - {name: residential, listen: \"127.0.0.77:3128\", exits: [squid, tinyproxy]}\n"
	d.write(t, fmt.Sprintf("  - {name: shop, match: {hosts: [%s]}, per: [destination, exit], rate: %d/s}", originHost, rate))
	d.start(t)
	log := d.follow(t)
	var said strings.Builder
	listen := func() {
		for _, command := range [][]string{
			{"events"}, {"events", "--json"}, {"lanes", "--json"}, {"flows"}, {"flows", "--json"}, {"exits"}, {"exits", "--json"}, {"exits", "--csv"}, {"status", "--json"},
		} {
			said.WriteString(d.ask(t, command...))
		}
		said.WriteString(l.metrics(t, d))
	}

	// Turns, however a client speaks.
	page := "http://" + originHost
	for path, p := range map[string]*process{
		"/curl":     l.poolClient(t, scope, "curl", page+"/curl", 4),
		"/requests": l.poolClient(t, scope, "requests", page+"/requests", 4),
		"/tunnel":   l.poolClient(t, scope, "curl-tunnel", page+"/tunnel", 2),
		"/tls":      l.poolClient(t, scope, "curl", "https://"+originHost+"/tls", 2),
		"/secure":   l.poolClient(t, scope, "requests", "https://"+originHost+"/secure", 2),
	} {
		p.mustSucceed(t, 60*time.Second)
		if len(l.sightings(t, path)) == 0 {
			t.Errorf("the origin saw nothing of %s", path)
		}
	}
	from := byAddress(l.sightings(t, "/"))
	for _, e := range l.exits {
		seen := from[e.far]
		if len(seen) < 4 {
			t.Errorf("%s: the origin saw %d requests, want a half of about 14", e.name, len(seen))
		}
		for _, s := range seen {
			if s.status != 200 {
				t.Errorf("%s: the origin saw %+v, want 200: the budget of each exit is below its limit", e.name, s)
			}
		}
	}
	if len(from) != len(l.exits) {
		t.Errorf("the origin saw %d addresses, want the exits alone", len(from))
	}
	listen()

	// One exit is gone: the clients see nothing of it.
	running.endAll(t)
	for _, program := range []string{"curl", "requests"} {
		p := l.poolClient(t, scope, program, page+"/without-"+program, 6)
		p.mustSucceed(t, 60*time.Second)
		seen := byAddress(l.sightings(t, "/without-"+program))
		if n := len(seen[l.exit(t, "squid").far]); n != 6 || len(seen) != 1 {
			t.Errorf("%s: the origin saw %d requests by the exit that is left, and %d addresses; want all 6 by it", program, n, len(seen))
		}
	}
	has := func(kind, text string) func() bool {
		return func() bool {
			return slices.ContainsFunc(events(t, log), func(ev event) bool { return ev.Kind == kind && strings.Contains(ev.Detail, text) })
		}
	}
	waitFor(t, 10*time.Second, "word of the exit that is gone", has("unreachable", "tinyproxy of pool residential at "+hostPort(tiny.near, tiny.port)))
	waitFor(t, 10*time.Second, "word of the switch", has("exit_switch", "pool residential: tinyproxy is in trouble, squid takes its turn"))
	if text := l.metrics(t, d); !strings.Contains(text, `egressd_exit_switches_total{from="tinyproxy",pool="residential",to="squid"}`) {
		t.Errorf("metrics do not show the switch:\n%s", text)
	}
	listen()

	// It is back, and has its turns again.
	startTiny()
	waitFor(t, 20*time.Second, "requests by the exit that is back", func() bool {
		l.poolClient(t, scope, "requests", page+"/again", 2).mustSucceed(t, 60*time.Second)
		return len(byAddress(l.sightings(t, "/again"))[tiny.far]) > 0
	})
	listen()
	said.WriteString(log.stdout.String())
	d.stop(t)
	said.WriteString(d.stdout.String() + d.stderr.String())
	text := said.String()
	if !strings.Contains(text, "residential") {
		t.Errorf("got no word of the pool in %d bytes: nothing was looked through", len(text))
	}
	for _, secret := range []string{password, strings.TrimRight(base64.StdEncoding.EncodeToString([]byte(user+":"+password)), "="), user, "worker"} {
		if i := strings.Index(text, secret); i >= 0 {
			t.Errorf("egressd says %q: %q", secret, text[max(0, i-200):min(len(text), i+200)])
		}
	}
}
