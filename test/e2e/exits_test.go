// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/base64"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

// TestExitBudgets has fifty workers go by four exits, each of which has a budget
// of its own.
func TestExitBudgets(t *testing.T) {
	t.Parallel()
	const (
		rate = 2
		span = 10 // seconds
	)
	l := newLab(t)
	l.addProxies(t, squid, tinyproxy, dante, microsocks)
	scope := newGroup(t)
	d := l.newDaemon(t, scope, fmt.Sprintf(
		"  - {name: shop, match: {hosts: [%s]}, per: [destination, exit], rate: %d/s}", originHost, rate))
	log := d.follow(t)
	all := l.startNaive(t, scope, "/with", span, 10, 5)
	for _, p := range all {
		p.mustSucceed(t, 4*span*time.Second)
	}
	from := byAddress(l.sightings(t, "/with"))
	for _, e := range l.exits {
		seen := from[e.far]
		mustKeep(t, e.name, seen, rate)
		for _, s := range seen {
			if s.status != 200 {
				t.Errorf("%s: the origin answered %+v, want 200: the budget is below its limit", e.name, s)
				break
			}
		}
		if least := rate * span / 2; len(seen) < least {
			t.Errorf("%s: the origin saw %d requests in %d s, want at least %d: the budget is not used", e.name, len(seen), span, least)
		}
		t.Logf("%s: %d requests in %d s, where %d are allowed", e.name, len(seen), span, rate*span+1)
	}
	if len(from) != len(l.exits) {
		t.Errorf("the origin saw %d addresses, want the %d exits", len(from), len(l.exits))
	}
	answers, end := naiveAnswers(t, all)
	mustPace(t, log, rate, end)
	for exit, got := range answers {
		for what := range got {
			if what != "200" {
				t.Errorf("by exit %s: workers got %v, want nothing but 200", exit, got)
				break
			}
		}
	}
	d.stop(t)

	// The same workers without egressd, to see that there was something to do.
	all = l.startNaive(t, scope, "/without", 3, 10, 5)
	for _, p := range all {
		p.mustSucceed(t, 60*time.Second)
	}
	answers, _ = naiveAnswers(t, all)
	for exit, got := range answers {
		if got["429"] < 10 {
			t.Errorf("without egressd: workers by exit %s got %v, want at least 10 429s: these workers prove nothing", exit, got)
		}
	}
}

// TestExitLimitedAlone has an origin limit one exit harder than the rest: what
// it says to that exit is no matter of the others.
func TestExitLimitedAlone(t *testing.T) {
	t.Parallel()
	const (
		rate = 2
		span = 10 // seconds
	)
	l := newLab(t)
	l.addProxies(t, squid, tinyproxy, dante, microsocks)
	scope := newGroup(t)
	d := l.newDaemon(t, scope, fmt.Sprintf(
		"  - {name: shop, match: {hosts: [%s]}, per: [destination, exit], rate: %d/s}", originHost, rate))
	log := d.follow(t)
	all := l.startNaive(t, scope, hardPath, span, 5, 4)
	for _, p := range all {
		p.mustSucceed(t, 4*span*time.Second)
	}
	lanes := exitLanes(t, d)
	from := byAddress(l.sightings(t, hardPath))
	for i, e := range l.exits {
		seen := from[e.far]
		mustKeep(t, e.name, seen, rate)
		id := "shop/" + originHost + "/" + e.name
		limited := 0
		for _, s := range seen {
			if s.status == 429 {
				limited++
			}
		}
		closed := closures(t, log)[id]
		if i == 0 {
			// One for each time that the lane was closed, and what was under way then.
			if most := span/hardDelay + 2; limited == 0 || limited > most || closed == 0 || lanes[id].Limited != limited {
				t.Errorf("%s: got %d 429s, %d closures and lane %+v, want from 1 to %d 429s", e.name, limited, closed, lanes[id], most)
			}
			if lanes[id].Rate >= rate {
				t.Errorf("%s: got rate %v after a 429, want less than %d", e.name, lanes[id].Rate, rate)
			}
			continue
		}
		if limited != 0 || closed != 0 || lanes[id].Rate != rate || !lanes[id].Open {
			t.Errorf("%s: got %d 429s, %d closures and lane %+v, want none and the full rate", e.name, limited, closed, lanes[id])
		}
		if least := rate * span / 2; len(seen) < least {
			t.Errorf("%s: the origin saw %d requests in %d s, want at least %d: the exit was held up", e.name, len(seen), span, least)
		}
	}
	_, end := naiveAnswers(t, all)
	mustPace(t, log, rate, end)
}

// TestDestinationOverExits has a budget for the origin hold over all exits
// together.
func TestDestinationOverExits(t *testing.T) {
	t.Parallel()
	const (
		rate = 2 // by each exit
		most = 4 // by all of them
		span = 8 // seconds
	)
	l := newLab(t)
	l.addProxies(t, squid, tinyproxy, dante, microsocks)
	scope := newGroup(t)
	d := l.newDaemon(t, scope, fmt.Sprintf(`  - {name: each, match: {hosts: [%[1]s]}, per: [destination, exit], rate: %[2]d/s}
  - {name: all, match: {hosts: [%[1]s]}, per: [destination], rate: %[3]d/s}`, originHost, rate, most))
	all := l.startNaive(t, scope, "/both", span, 10, 5)
	for _, p := range all {
		p.mustSucceed(t, 4*span*time.Second)
	}
	lanes := exitLanes(t, d)
	seen := l.sightings(t, "/both")
	mustKeep(t, "all exits together", seen, most)
	from := byAddress(seen)
	for _, e := range l.exits {
		mustKeep(t, e.name, from[e.far], rate)
		if len(from[e.far]) == 0 {
			t.Errorf("%s: the origin saw no request", e.name)
		}
	}
	if least := most * span / 2; len(seen) < least {
		t.Errorf("the origin saw %d requests in %d s, want at least %d: the budget is not used", len(seen), span, least)
	}
	sum := 0
	for _, e := range l.exits {
		sum += lanes["each/"+originHost+"/"+e.name].Granted
	}
	if whole := lanes["all/"+originHost+"/-"]; whole.Granted != sum {
		t.Errorf("got %d granted over all exits and %d by each, want the same", whole.Granted, sum)
	}
	t.Logf("%d requests in %d s, where %d are allowed", len(seen), span, most*span+1)
}

// TestExitSessions has the user name tell the exit, and looks for the password
// wherever egressd says something.
func TestExitSessions(t *testing.T) {
	t.Parallel()
	const password = "opensesame7731"
	l := newLab(t)
	l.addProxy(t, "gateway", squid, password).more = `, session: 'user-\w+-session-(?P<session>\w+)'`
	l.addProxy(t, "socks", microsocks, "user-x-session-b:"+password).more = `, session: dash-session`
	scope := newGroup(t)
	d := l.newDaemon(t, scope, fmt.Sprintf(
		"  - {name: shop, match: {hosts: [%s]}, per: [destination, exit], rate: 1/s}", originHost))
	log := d.follow(t)
	var said strings.Builder
	listen := func() {
		var all []*process
		for _, command := range [][]string{
			{"events"}, {"events", "--json"}, {"lanes"}, {"lanes", "--json"}, {"flows"}, {"flows", "--json"},
			{"exits"}, {"exits", "--json"}, {"exits", "--csv"}, {"status"}, {"status", "--json"},
		} {
			all = append(all, start(t, how{}, append(append([]string{here.bin}, command...), "--socket", d.socket)...))
		}
		for _, p := range all {
			p.mustSucceed(t, 20*time.Second)
			said.WriteString(p.stdout.String() + p.stderr.String())
		}
		said.WriteString(l.metrics(t, d))
	}
	curl := func(exit, scheme, user, path string, flags ...string) *process {
		e := l.exit(t, exit)
		return l.start(t, l.clients, how{in: scope, env: []string{"CURL_CA_BUNDLE=" + l.trust}},
			append(append([]string{"curl", "-sS", "-m", "30", "-o", "/dev/null", "-w", "%{http_code} %{http_connect}", "--proxy-user", user,
				"-x", scheme + "://" + hostPort(e.near, e.port)}, flags...), path)...)
	}
	page := "http://" + originHost + "/"
	user := func(session string) string { return "user-x-session-" + session + ":" + password }
	all := []*process{
		curl("gateway", "http", user("a"), page+"a1"),
		curl("gateway", "http", user("a"), page+"a2", "--proxytunnel"),
		curl("gateway", "http", user("a"), "https://"+originHost+"/a3"),
		curl("gateway", "http", user("a"), page+"a4", "-d", "password="+password),
		curl("gateway", "http", user("b"), page+"b1"),
		curl("gateway", "http", user("b"), page+"b2", "--proxytunnel"),
		curl("socks", "socks5h", user("b"), page+"s1"),
		curl("socks", "socks5h", user("b"), page+"s2"),
	}
	waitFor(t, 20*time.Second, "requests to be held", func() bool { return d.status(t).Waiting > 0 })
	listen()
	for _, p := range all {
		p.mustSucceed(t, 40*time.Second)
		if got := p.stdout.String(); !strings.HasPrefix(got, "200") && !strings.HasPrefix(got, "405") { // a page takes no POST
			t.Errorf("%q: got answers %q", p.cmd.Args, got)
		}
	}
	lanes := exitLanes(t, d)
	for exit, want := range map[string]int{"gateway/a": 4, "gateway/b": 2, "socks/b": 2} {
		if got := lanes["shop/"+originHost+"/"+exit]; got.Granted != want || got.Exit != exit || !got.Open {
			t.Errorf("exit %s: got lane %+v, want %d granted", exit, got, want)
		}
	}
	mustPace(t, log, 1, math.MaxInt64)
	for path, exit := range map[string]string{"/a": "gateway", "/b": "gateway", "/s": "socks"} {
		for _, s := range l.sightings(t, path) {
			if s.from != l.exit(t, exit).far {
				t.Errorf("by exit %s: the origin saw %+v", exit, s)
			}
		}
	}

	// A password that is wrong is trouble of that session alone.
	wrong := curl("gateway", "http", user("c")+"x", page+"c1", "--proxytunnel")
	if status := wrong.wait(t, 40*time.Second); status == 0 || !strings.HasSuffix(wrong.stdout.String(), "407") {
		t.Errorf("with a wrong password: got exit status %d and answers %q, want the proxy's 407", status, wrong.stdout.String())
	}
	waitClosed(t, log, "exits/-/gateway/c")
	badUser := curl("socks", "socks5h", user("d")+"x", page+"d1")
	if status := badUser.wait(t, 40*time.Second); status == 0 {
		t.Errorf("with a wrong password: SOCKS has let it in: %q", badUser.stdout.String())
	}
	waitClosed(t, log, "exits/-/socks/d")
	if got := closures(t, log); len(got) != 2 {
		t.Errorf("after wrong passwords of gateway/c and socks/d: got closures of lanes %v, want those of both alone", got)
	}
	if seen := append(l.sightings(t, "/c"), l.sightings(t, "/d")...); len(seen) != 0 {
		t.Errorf("with a wrong password: the origin saw %+v", seen)
	}
	listen()
	said.WriteString(log.stdout.String())
	d.stop(t)
	said.WriteString(d.stdout.String() + d.stderr.String())
	text := said.String()
	if !strings.Contains(text, "gateway/a") || !strings.Contains(text, "socks/b") {
		t.Errorf("got no word of the exits in %d bytes: nothing was looked through", len(text))
	}
	for _, secret := range []string{
		password,
		strings.TrimRight(base64.StdEncoding.EncodeToString([]byte(user("a"))), "="),
		strings.TrimRight(base64.StdEncoding.EncodeToString([]byte(user("b"))), "="),
		fmt.Sprintf("%x", password),
	} {
		if i := strings.Index(text, secret); i >= 0 {
			t.Errorf("egressd says %q: %q", secret, text[max(0, i-200):min(len(text), i+200)])
		}
	}
}

// closures counts how often lanes were closed, by their ids.
func closures(t testing.TB, log *process) map[string]int {
	t.Helper()
	closed := map[string]int{}
	for _, ev := range events(t, log) {
		if ev.Kind == "penalty" || ev.Kind == "cooldown" {
			closed[ev.Lane]++
		}
	}
	return closed
}

// waitClosed waits until a lane has been closed.
func waitClosed(t testing.TB, log *process, id string) {
	t.Helper()
	waitFor(t, 20*time.Second, "the end of lane "+id, func() bool { return closures(t, log)[id] > 0 })
}

// TestExitTrouble has proxies refuse tunnels themselves. That is no word of the
// origin, and no matter of other exits.
func TestExitTrouble(t *testing.T) {
	t.Parallel()
	const login = "somebody:secret"
	l := newLab(t)
	l.addProxies(t, tinyproxy, microsocks, broken)
	good, socks := l.exits[0], l.exits[1]
	bad := l.exits[2]
	l.exits = l.exits[:2] // the third is one exit for each of its ports
	scope := newGroup(t)
	d := l.prepareDaemon(t, scope)
	ports := map[string]int{"e407": brokenPort + 407, "e502": brokenPort + 502, "e503": brokenPort + 503}
	for name, port := range ports {
		d.extra += fmt.Sprintf("  - {name: %s, proxy: \"%s:%d\"}\n", name, bad.near, port)
	}
	d.write(t, fmt.Sprintf("  - {name: shop, match: {hosts: [%s]}, per: [destination, exit], rate: 20/s}", originHost))
	d.start(t)
	log := d.follow(t)
	curl := func(host string, port int, path string, flags ...string) *process {
		return l.start(t, l.clients, how{in: scope}, append([]string{"curl", "-sS", "-m", "30", "-o", "/dev/null", "-w", "%{http_code} %{http_connect}",
			"-x", "http://" + hostPort(host, port), "http://" + originHost + path}, flags...)...)
	}
	reach := func(path string) {
		t.Helper()
		p := curl(good.near, good.port, path, "-p")
		p.mustSucceed(t, 40*time.Second)
		q := l.start(t, l.clients, how{in: scope}, "curl", "-sS", "-m", "30", "-o", "/dev/null", "-w", "%{http_code}",
			"-x", "socks5h://"+hostPort(socks.near, socks.port), "http://"+originHost+path)
		q.mustSucceed(t, 40*time.Second)
		if a, b := p.stdout.String(), q.stdout.String(); a != "200 200" || b != "200" {
			t.Errorf("%s: got %q and %q by the exits that work, want 200", path, a, b)
		}
	}
	reach("/before")
	for name, port := range ports {
		status := strings.TrimPrefix(name, "e")
		p := curl(bad.near, port, "/"+name, "-p", "--proxy-user", login)
		if got := p.wait(t, 40*time.Second); got == 0 || !strings.HasSuffix(p.stdout.String(), status) {
			t.Errorf("%s: got exit status %d and answers %q, want the proxy's own %s", name, got, p.stdout.String(), status)
		}
		waitClosed(t, log, "exits/-/"+name)
		reach("/after-" + name)
	}
	if got := closures(t, log); len(got) != len(ports) {
		t.Errorf("got closures of lanes %v, want those of the exits that refuse tunnels alone", got)
	}
	for id, lane := range exitLanes(t, d) {
		if _, bad := ports[lane.Exit]; lane.Limited != 0 && (!bad || lane.Budget == "shop") {
			t.Errorf("lane %s: got %+v, want none limited: the origin has said nothing", id, lane)
		}
	}
	for _, path := range []string{"/e407", "/e502", "/e503"} {
		if seen := l.sightings(t, path); len(seen) != 0 {
			t.Errorf("%s: the origin saw %+v by a proxy that answers itself", path, seen)
		}
	}
}
