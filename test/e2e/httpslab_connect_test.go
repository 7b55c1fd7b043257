// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/egressd/egressd/test/tlsorigin"
)

// originServer is the origin of the HTTPS lab as a command, built when it is
// first asked for.
var originServer = sync.OnceValues(func() (string, error) {
	path := filepath.Join(here.dir, "tlsorigin")
	out, err := exec.Command("go", "build", "-o", path, "../tlsorigin/serve").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build the origin: %w\n%s", err, out)
	}
	return path, nil
})

const tunnelledPort = 8443

// serveTLS starts an origin of the HTTPS lab beside the one that the lab has. It
// returns the file with its authority's certificate, and the socket of its log.
func (l *lab) serveTLS(t testing.TB, args ...string) (trust, log string) {
	t.Helper()
	bin, err := originServer()
	if err != nil {
		t.Fatal(err)
	}
	trust, log = filepath.Join(l.dir, "ca.pem"), filepath.Join(l.dir, "log.sock")
	addr := netip.AddrPortFrom(netip.MustParseAddr(originAddr), tunnelledPort)
	l.serve(t, l.origin, addr, append([]string{bin, "-listen", addr.String(), "-host", originHost, "-trust", trust, "-log", log}, args...)...)
	return trust, log
}

// tunnelled is a client behind a proxy.
type tunnelled struct {
	labClient
	labRun
	exit  string // as lanes name it
	proxy string // URL
	far   string // address that the origin sees
}

// TestHTTPSConnect has the clients go through proxies by CONNECT: one that asks
// nothing, and a gateway where a part of the user name is the exit.
func TestHTTPSConnect(t *testing.T) {
	t.Parallel()
	needRoot(t)
	for _, src := range sources {
		t.Run(src.name, func(t *testing.T) {
			t.Parallel()
			runConnect(t, src)
		})
	}
}

func runConnect(t *testing.T, src source) {
	const password = "opensesame"
	l := newLab(t)
	plain := l.addProxy(t, "plain", squid, "")
	gateway := l.addProxy(t, "gateway", squid, password)
	gateway.more = `, session: 'user-session-(?P<session>\w+)'`
	var parts []tunnelled
	var args []string
	for i, c := range labClients {
		if c.noProxy {
			continue
		}
		run := labRun{port: tunnelledPort, path: "/connect/" + c.name, count: 6, width: 3}
		for path := range run.pages(t) {
			args = append(args, "-page", path+"="+filepath.Join(clientsDir, "page.html"))
		}
		parts = append(parts, tunnelled{c, run, plain.name, "http://" + hostPort(plain.near, plain.port), plain.far})
		if strings.HasPrefix(c.name, "chromium") {
			continue // it asks a person for the password
		}
		session := string("ab"[i%2])
		run.path += "-" + session
		parts = append(parts, tunnelled{c, run, gateway.name + "/" + session,
			fmt.Sprintf("http://user-session-%s:%s@%s", session, password, hostPort(gateway.near, gateway.port)), gateway.far})
	}
	// Each lane is told to rest once.
	for _, path := range []string{"/connect/curl-h1/2", "/connect/curl-h1-a/2", "/connect/curl-h2-b/2"} {
		args = append(args, "-force", path+"=429,1")
	}
	trust, socket := l.serveTLS(t, args...)
	scope := newGroup(t)
	d := l.prepareDaemon(t, scope)
	env := append(trusting(t, trust), d.look(t, src)...)
	d.write(t, fmt.Sprintf("  - {name: shop, match: {hosts: [%s], ports: [%d]}, per: [destination, exit], rate: %d/s, queue: {max_wait: 60s}}",
		originHost, tunnelledPort, sightRate))
	d.start(t)
	log := d.follow(t)

	t.Run("clients", func(t *testing.T) {
		for _, p := range parts {
			t.Run(p.path[len("/connect/"):], func(t *testing.T) {
				t.Parallel()
				run := func(r labRun) map[int]reply {
					env := append(append([]string{}, env...), "HTTPS_PROXY="+p.proxy, "https_proxy="+p.proxy)
					return replies(t, l.start(t, l.clients, how{in: scope, env: env}, p.command(t, r)...), p.labClient, r)
				}
				if src.name == "uprobe" && src.sees(p.labClient) {
					warmUp(t, p.labRun, log, func(r labRun) { run(r) })
				}
				got := run(p.labRun)
				seen, err := tlsorigin.ReadLog(socket)
				if err != nil {
					t.Fatal(err)
				}
				sent := arrived(t, onlyOf(seen, p.labRun), p.labRun)
				mustAgree(t, got, sent)
				for _, req := range sent {
					if req.Client != p.far {
						t.Errorf("%s came from %s, want %s", req.Path, req.Client, p.far)
					}
				}
				p.mustSee(t, src, log, sent)
			})
		}
	})
	lanes := exitLanes(t, d)
	for _, exit := range []string{"plain", "gateway/a", "gateway/b"} {
		if got := lanes["shop/"+originHost+"/"+exit]; got.Granted == 0 {
			t.Errorf("exit %s: got lane %+v, want some granted", exit, got)
		}
	}
	burst := 1
	for _, p := range parts {
		if p.packs && src.exact {
			burst = max(burst, p.width)
		}
	}
	mustPaceBursts(t, log, sightRate, burst, 1<<62)
}

// onlyOf leaves of a log what a run has asked for by numbers.
func onlyOf(log tlsorigin.Log, r labRun) tlsorigin.Log {
	var mine tlsorigin.Log
	for _, req := range log.Requests {
		rest, ok := strings.CutPrefix(req.Path, r.path+"/")
		if _, err := strconv.Atoi(rest); ok && err == nil {
			mine.Requests = append(mine.Requests, req)
		}
	}
	return mine
}

// mustSee holds what egressd saw in a client's tunnels against what the origin
// did.
func (p *tunnelled) mustSee(t testing.TB, src source, log *process, sent map[int]tlsorigin.Request) {
	t.Helper()
	want := 0
	if src.sees(p.labClient) {
		want = p.count
	}
	right, unseen, wrong := settled(t, log, sent, p.labRun, src.name, want)
	for _, w := range wrong {
		t.Error("egressd saw ", w)
	}
	if right != want {
		t.Errorf("egressd saw %d of %d answers right, want %d; unseen:\n%s", right, p.count, want, strings.Join(unseen, "\n"))
	}
	for _, o := range saw(t, log) {
		if lane := "shop/" + originHost + "/" + p.exit; strings.HasPrefix(o.path, p.path+"/") && o.lane != lane {
			t.Errorf("egressd saw %+v, want it of lane %s", o, lane)
		}
	}
}
