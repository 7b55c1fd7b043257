// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// eventLoad sends secrets in every place that a client has for them, until it
// is killed: to a budget that is too small for it, through a pool of which one
// exit is dead, from ports of its own, and once in a way that is refused.
const eventLoad = `
import base64, http.client, itertools, socket, sys, threading, time
shop, = map(int, sys.argv[1:2])
secrets = {"Authorization": "Bearer hunter2-bearer", "Cookie": "id=hunter2-cookie", "X-Api-Key": "hunter2-key"}
login = {"Proxy-Authorization": "Basic " + base64.b64encode(b"cust-session-s1:hunter2-login").decode()}

def get(port, host="localhost", path="/p?token=hunter2-query", headers=secrets, **more):
    c = http.client.HTTPConnection(host, port, timeout=20, **more)
    c.request("GET", path, headers=headers)
    c.getresponse().read()
    c.close()

def again(pause, what):
    def run():
        while True:
            try:
                what()
            except (OSError, http.client.HTTPException):
                pass
            time.sleep(pause)
    threading.Thread(target=run).start()

def framing():
    with socket.create_connection(("localhost", shop)) as s:
        s.sendall(b"GET /hunter2-path HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\nCookie: hunter2-cookie\r\n\r\n")
        s.recv(4096)

ports = itertools.count(44000)
for _ in range(12):
    again(0.02, lambda: get(shop))
for _ in range(2):
    again(0.1, lambda: get(3128, "127.0.0.79", f"http://localhost:{shop}/?token=hunter2-query", {**secrets, **login}))
again(0.5, lambda: get(shop, "127.0.0.1", source_address=("127.0.0.1", next(ports))))
again(0.5, framing)
again(0.5, lambda: get(3128, "127.0.0.79", f"http://hunter2-user:hunter2-url@localhost:{shop}/"))
`

// logged is one line of the event log.
type logged struct {
	Time       time.Time
	Kind       string
	Lane       string
	Wait       float64 `json:"wait_s"`
	Detail     string
	Extended   bool
	Rate       float64 `json:"rate_per_second"`
	Count      uint64
	Suppressed uint64
}

func readEventLog(t testing.TB, name string) (all []logged) {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text[:strings.LastIndexByte(string(text), '\n')+1])) {
		var ev logged
		if err := json.Unmarshal([]byte(line), &ev); err != nil {
			t.Fatalf("%s: %v in %s", name, err, line)
		}
		all = append(all, ev)
	}
	return all
}

// TestEventLog holds that what happens is in the event log, that a flood of it
// is not, that the log can be rotated, and that no secret is ever in it.
func TestEventLog(t *testing.T) {
	t.Parallel()
	scope := newGroup(t)
	// Every thirtieth answer limits for a second.
	var n atomic.Int64
	shop := serve(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n.Add(1)%30 == 0 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	forward := serveBy(t, &httputil.ReverseProxy{Rewrite: func(*httputil.ProxyRequest) {}}, (*httptest.Server).Start)
	gone, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := gone.Addr().String()
	gone.Close()

	d := prepareDaemon(t, scope)
	password := filepath.Join(d.dir, "pw")
	mustWrite(t, password, "hunter2-file\n")
	if err := os.Chmod(password, 0o600); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(d.dir, "events.jsonl")
	d.extra = fmt.Sprintf("events: {log: %s}\nexits:\n  - {name: good, proxy: \"127.0.0.1:%d\", user: cust, password_file: %s}\n  - {name: dead, proxy: %q}\n"+
		"pools:\n  - {name: both, listen: \"127.0.0.79:3128\", exits: [good, dead]}\n", name, forward, password, dead)
	d.write(t, fmt.Sprintf("  - {name: shop, match: {hosts: [localhost, 127.0.0.1], ports: [%d]}, rate: 40/s, burst: 5, queue: {max: 4}, recovery: {factor: 0.5, step: 1.5}}", shop))
	d.start(t)
	d.signal(t, unix.SIGHUP)
	load := start(t, how{in: scope}, "python3", "-c", eventLoad, fmt.Sprint(shop))

	begin := time.Now()
	seen := map[string]bool{}
	wanted := map[string]func(logged) bool{
		"reload": func(e logged) bool { return e.Kind == "reload" },
		"limit": func(e logged) bool {
			return e.Kind == "penalty" && e.Lane != "" && e.Wait > 0.5 && strings.HasPrefix(e.Detail, "limited")
		},
		"end of it":            func(e logged) bool { return e.Kind == "reopened" && e.Lane != "" },
		"ramp":                 func(e logged) bool { return e.Kind == "ramp" && e.Rate > 0 && e.Rate <= 40 },
		"refusal":              func(e logged) bool { return e.Kind == "refused" && e.Detail == "queue_full" },
		"refusals left out":    func(e logged) bool { return e.Kind == "refused" && e.Suppressed > 0 },
		"refusal for framing":  func(e logged) bool { return e.Kind == "refused" && strings.HasPrefix(e.Detail, "request from pid ") },
		"another exit":         func(e logged) bool { return e.Kind == "exit_switch" },
		"untouched connection": func(e logged) bool { return e.Kind == "untouched" && e.Detail == "source_port" && e.Count > 0 },
	}
	waitFor(t, 40*time.Second, "all kinds of events", func() bool {
		if !load.running() {
			t.Fatalf("the load has ended: %s", load.stderr.String())
		}
		for _, ev := range readEventLog(t, name) {
			for what, is := range wanted {
				seen[what] = seen[what] || is(ev)
			}
		}
		for what := range wanted {
			if seen[what] {
				delete(wanted, what)
			}
		}
		if len(wanted) > 0 && time.Since(begin) > 35*time.Second {
			t.Fatalf("not in the log: %v", slices.Collect(maps.Keys(wanted)))
		}
		return len(wanted) == 0
	})
	refusals := 0
	for _, ev := range readEventLog(t, name) {
		if ev.Kind == "refused" && ev.Detail == "queue_full" {
			refusals++
		}
	}
	// Ten at once and one more each second, of each of at most a few lanes.
	if most := 5 * (10 + 1 + int(time.Since(begin).Seconds())); refusals > most {
		t.Errorf("got %d lines of refusals in %v, want at most %d", refusals, time.Since(begin), most)
	}

	// Rotation, and a reload that fails.
	if err := os.Rename(name, name+".1"); err != nil {
		t.Fatal(err)
	}
	rotated := time.Now()
	mustWrite(t, d.config, "budgets: [")
	d.signal(t, unix.SIGHUP)
	waitFor(t, 10*time.Second, "the failed reload in the new file", func() bool {
		if _, err := os.Stat(name); err != nil {
			return false
		}
		for _, ev := range readEventLog(t, name) {
			if ev.Kind == "reload_failed" && strings.Contains(ev.Detail, d.config) {
				return true
			}
		}
		return false
	})

	// --since leaves out what is older.
	all, late := d.ask(t, "events", "--json"), d.ask(t, "events", "--json", "--since", rotated.Format(time.RFC3339Nano))
	if !strings.Contains(all, `"reload"`) || strings.Contains(late, `"reload"`) || !strings.Contains(late, `"reload_failed"`) {
		t.Errorf("got events\n%s\nand since %v\n%s", all, rotated, late)
	}
	if got := parseMetrics(t, d.metrics(t))["egressd_events_lost_total"]; got != 0 {
		t.Errorf("%v events were lost", got)
	}

	d.stop(t)
	for what, text := range map[string]string{
		"the log before": mustReadFile(t, name+".1"), "the log": mustReadFile(t, name), "egressd events": all,
	} {
		if strings.Contains(text, "hunter2") {
			t.Errorf("a secret is in %s:\n%s", what, text)
		}
	}
}

func mustReadFile(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
