// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/metrics"
	"github.com/egressd/egressd/metrics/dashboard"
)

// dashboardLoad does a little of everything that the dashboard shows, until it
// is killed: more than a budget allows, a budget over all exits, a pool,
// connections from a port of their own, TLS that nobody reads, and UDP.
const dashboardLoad = `
import http.client, itertools, socket, ssl, sys, threading, time
shop, whole, secure = map(int, sys.argv[1:4])

def get(make, path="/"):
    c = make()
    c.request("GET", path)
    c.getresponse().read()
    c.close()

ports = itertools.count(43000)
def named():
    c = http.client.HTTPConnection("127.0.0.1", shop, timeout=10, source_address=("127.0.0.1", next(ports)))
    get(lambda: c)

def udp():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    s.setblocking(False) # as those who speak QUIC do
    s.connect(("127.0.0.1", shop))
    s.close()

loose = ssl._create_unverified_context()
def again(pause, what):
    def run():
        while True:
            try:
                what()
            except OSError:
                pass
            except http.client.HTTPException:
                pass
            time.sleep(pause)
    threading.Thread(target=run).start()

for _ in range(12):
    again(0.05, lambda: get(lambda: http.client.HTTPConnection("localhost", shop, timeout=30)))
for _ in range(2):
    again(0.1, lambda: get(lambda: http.client.HTTPConnection("127.0.0.1", whole, timeout=30)))
    again(0.1, lambda: get(lambda: http.client.HTTPConnection("127.0.0.78", 3128, timeout=30), f"http://localhost:{shop}/"))
again(0.3, named)
again(0.1, lambda: get(lambda: http.client.HTTPSConnection("localhost", secure, timeout=30, context=loose)))
again(0.3, udp)
`

// touchy answers, but once in three seconds with a limit of one second.
type touchy struct {
	mu   sync.Mutex
	last time.Time
}

func (o *touchy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	limit := time.Since(o.last) > 3*time.Second
	if limit {
		o.last = time.Now()
	}
	o.mu.Unlock()
	if limit {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
	}
	_, _ = io.WriteString(w, strings.Repeat(r.RemoteAddr, 20))
}

// What the budgets of this test allow per second.
const (
	shopRate, wholeRate, secureRate = 40, 20, 10
	gigabytePrice, goodPrice        = 4, 3000
)

// TestDashboards has real Prometheus servers scrape a daemon under load, and
// evaluates everything that is shipped for them: every query of every panel
// and each rule has to have an answer that makes sense, and each example of the
// reference has to be a query.
func TestDashboards(t *testing.T) {
	t.Parallel()
	scope := newGroup(t)
	shop, whole := serve(t, new(touchy)), serve(t, new(touchy))
	secure := serveBy(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		time.Sleep(2 * time.Second) // so that scrapes find it open
		_, _ = io.WriteString(w, "secret")
	}), (*httptest.Server).StartTLS)
	// The proxy asks for what it is asked for; nobody is at the other's port.
	forward := serve(t, &httputil.ReverseProxy{Rewrite: func(*httputil.ProxyRequest) {}})
	gone, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	dead := gone.Addr().String()
	gone.Close()

	d := prepareDaemon(t, scope)
	// The store of the fleet is at the port where nobody is, so that the lane that is
	// shared goes by its share, of one host.
	d.extra = fmt.Sprintf("fleet: {redis: \"redis://%s\", hosts: 1}\n", dead) + fmt.Sprintf("exits:\n  - {name: good, proxy: \"127.0.0.1:%d\", price: %d}\n  - {name: dead, proxy: %q}\n"+
		"pools:\n  - {name: both, listen: \"127.0.0.78:3128\", exits: [good, dead]}\n", forward, goodPrice, dead)
	d.write(t, fmt.Sprintf(`  - {name: shop, match: {hosts: [localhost], ports: [%d]}, per: [destination, exit], rate: %d/s, burst: 5, queue: {max: 4}, fleet: false}
  - {name: whole, match: {hosts: [127.0.0.1], ports: [%d]}, per: [destination], rate: %d/s}
  - {name: secure, match: {hosts: [localhost], ports: [%d]}, per: [destination, exit], rate: %d/s, tls: {mode: observe}, fleet: false}`,
		shop, shopRate, whole, wholeRate, secure, secureRate))
	d.start(t)
	scraped := d.status(t).Metrics
	classic := startPrometheus(t, scraped)
	native := startPrometheus(t, scraped, "--enable-feature=native-histograms")
	d.signal(t, unix.SIGHUP) // a new policy, for all that the daemon knows
	load := start(t, how{in: scope}, "python3", "-c", dashboardLoad, fmt.Sprint(shop), fmt.Sprint(whole), fmt.Sprint(secure))

	begin := time.Now()
	servers := []struct {
		*prometheus
		other dashboard.Store // what this one does not keep
	}{{classic, dashboard.NativeOnly}, {native, dashboard.ClassicOnly}}
	empty := func(have bool) (list []string) {
		for i, s := range servers {
			for _, what := range shipped(t, s.prometheus, s.other, have) {
				list = append(list, fmt.Sprintf("server %d: %s", i, what))
			}
		}
		return list
	}
	broken := false
	for left := empty(true); len(left) > 0; left = empty(true) {
		if time.Since(begin) > 35*time.Second || !load.running() {
			t.Fatalf("without an answer after %v of load (which runs: %v):\n%s\n%s", time.Since(begin), load.running(), strings.Join(left, "\n"), load.stderr.String())
		}
		if !broken && time.Since(begin) > 4*time.Second {
			// From here on the file is bad, which leaves the old policy in force.
			mustWrite(t, d.config, "budgets: [")
			d.signal(t, unix.SIGHUP)
			broken = true
		}
		time.Sleep(time.Second)
	}
	t.Logf("everything has an answer after %v", time.Since(begin))
	for _, s := range servers {
		for _, r := range dashboard.Rows() {
			for _, p := range r.Panels {
				mustMakeSense(t, s.prometheus, s.other, p)
			}
		}
		mustRule(t, s.prometheus)
	}
	if left := empty(false); len(left) > 0 {
		t.Errorf("answers by histograms that the server should not keep:\n%s", strings.Join(left, "\n"))
	}
	for _, f := range metrics.Families() {
		classic.query(t, f.Query) // fails the test where it is none
	}
}

// expand puts values in the place of variables.
var expand = strings.NewReplacer(
	"$__rate_interval", "5s", "$__range", "30s", "$instance", ".*", "$exit", ".*", "$destination", ".*", "$price", fmt.Sprint(gigabytePrice),
).Replace

// evaluate runs a query of a panel as Grafana does.
func evaluate(t *testing.T, s *prometheus, p dashboard.Panel, q dashboard.Query) []series {
	t.Helper()
	if p.Kind == dashboard.Bars {
		return s.query(t, expand(q.Expr))
	}
	return s.queryRange(t, expand(q.Expr), 30*time.Second)
}

// shipped evaluates all queries and lists those that have no answer; or, if
// not have, those that have one though they are of the other store.
func shipped(t *testing.T, s *prometheus, other dashboard.Store, have bool) (list []string) {
	t.Helper()
	for _, r := range dashboard.Rows() {
		for _, p := range r.Panels {
			for _, q := range p.Queries {
				switch mine := q.Store != other; {
				case mine != have:
				case have && len(evaluate(t, s, p, q)) == 0:
					list = append(list, p.Title+": "+expand(q.Expr))
				// A histogram that has counted nothing yet has no native buckets, so
				// the first scrapes do not count.
				case !have && len(s.query(t, expand(q.Expr))) > 0:
					list = append(list, p.Title+": "+expand(q.Expr))
				}
			}
		}
	}
	if !have {
		return list
	}
	if len(s.queryRange(t, expand(dashboard.Reloads), 30*time.Second)) == 0 {
		list = append(list, "marks: "+dashboard.Reloads)
	}
	for _, v := range dashboard.Variables() {
		if len(s.query(t, fmt.Sprintf("count by (%s) (%s)", v.Label, v.Family))) == 0 {
			list = append(list, "choice: "+v.Name)
		}
	}
	for _, r := range s.rules(t) {
		asks := []string{r.Name}
		if r.Type == "alerting" {
			asks = selector.FindAllString(r.Query, -1) // the alert itself has an answer only where it fires
		}
		for _, ask := range asks {
			if len(s.query(t, ask)) == 0 {
				list = append(list, r.Name+": "+ask)
			}
		}
	}
	return list
}

// selector finds the series that a rule is about.
var selector = regexp.MustCompile(`[a-z_]*:?egressd_[a-z_]+(:[a-z0-9_]+)?(\{[^}]*\})?`)

// mustMakeSense evaluates a panel and looks at all its values.
func mustMakeSense(t *testing.T, s *prometheus, other dashboard.Store, p dashboard.Panel) {
	t.Helper()
	var all []series
	for _, q := range p.Queries {
		if q.Store == other {
			continue
		}
		part := evaluate(t, s, p, q)
		known := 0
		for _, got := range part {
			for _, v := range got.values {
				switch {
				case math.IsNaN(v) && strings.Contains(q.Expr, "histogram_quantile"):
					continue // of nothing, in the first seconds
				case math.IsNaN(v), math.IsInf(v, 0), v < 0, p.Unit == "percentunit" && v > 1:
					t.Errorf("%s: %s: got %v for %v", p.Title, expand(q.Expr), v, got.labels)
				}
				known++
			}
		}
		if known == 0 {
			t.Errorf("%s: %s: got no value that is a number", p.Title, expand(q.Expr))
		}
		all = append(all, part...)
	}
	for _, w := range sense[p.Title] {
		got := slices.DeleteFunc(slices.Clone(all), func(x series) bool {
			for name, value := range w.of {
				if x.labels[name] != value {
					return true
				}
			}
			return false
		})
		if w.query != "" {
			got = s.queryRange(t, expand(w.query), 30*time.Second)
		}
		top := math.Inf(-1)
		for _, x := range got {
			for _, v := range x.values {
				if !math.IsNaN(v) {
					top = max(top, v)
				}
			}
		}
		if top < w.low || top > w.high {
			t.Errorf("%s: %v %s: got at most %v, want from %v to %v", p.Title, w.of, w.query, top, w.low, w.high)
		}
	}
}

// wanted is what the greatest value of some series of a panel has to be.
type wanted struct {
	of        map[string]string // labels of the series
	query     string            // instead: a query of its own
	low, high float64
}

const tiny = 1e-12 // more than nothing

// sense is what the panels have to show of this load. Bounds from above are
// what cannot be: in five seconds a budget lets its burst pass, too, and
// Prometheus extends what it saw to the ends of the window.
var sense = map[string][]wanted{
	"Requests per second, and budgets": {
		{query: `sum(rate(egressd_requests_total{exit="direct"}[5s]))`, low: 1, high: 1.5 * (shopRate + wholeRate + secureRate)},
		{query: `egressd_lane_budget{destination="localhost",exit="good"}`, low: shopRate, high: shopRate},
		{query: `sum by (exit) (egressd_lane_budget{exit="direct"})`, low: shopRate + secureRate, high: shopRate + secureRate},
		{query: `sum by (exit) (egressd_lane_budget{exit="all"})`, low: wholeRate, high: wholeRate},
	},
	"Answered with 429":                      {{of: map[string]string{"exit": "direct"}, low: tiny, high: 1}, {of: map[string]string{"exit": "dead"}, low: math.Inf(-1), high: 0}},
	"Cooldowns":                              {{of: map[string]string{"exit": "direct", "destination": "localhost"}, low: 1, high: 1}},
	"Answers that limit":                     {{of: map[string]string{"kind": "limited"}, low: tiny, high: 10}, {of: map[string]string{"kind": "exit-trouble"}, low: tiny, high: 10}, {of: map[string]string{"kind": "challenge"}, low: 0, high: 0}},
	"Lockstep":                               {{of: map[string]string{"exit": "direct"}, low: 0, high: 1}},
	"Requests that changed their exit":       {{of: map[string]string{"from": "dead", "to": "good", "pool": "both"}, low: tiny, high: 1.5 * shopRate}},
	"Time in the gate":                       {{of: map[string]string{"le": "+Inf"}, low: 1, high: 10 * (shopRate*2 + wholeRate + secureRate)}},
	"Waiting now":                            {{of: map[string]string{"destination": "localhost"}, low: 1, high: 2*4 + 1}},
	"Answered by egressd":                    {{of: map[string]string{"reason": "queue_full"}, low: tiny, high: 1000}, {of: map[string]string{"reason": "framing"}, low: 0, high: 0}},
	"Busiest and usual seconds of each exit": {{of: map[string]string{"exit": "direct"}, low: 1, high: 10 * (shopRate + wholeRate + secureRate)}},
	"Bytes by exit":                          {{of: map[string]string{"exit": "good", "direction": "received"}, low: 1, high: 1e7}},
	"Bytes by outcome":                       {{of: map[string]string{"outcome": "useful"}, low: 1, high: 1e7}, {of: map[string]string{"outcome": "blocked"}, low: 1, high: 1e6}},
	"Cost of the time shown":                 {{of: map[string]string{"exit": "direct"}, low: 1e3 * gigabytePrice / 1e9, high: 1e8 * gigabytePrice / 1e9}, {of: map[string]string{"exit": "good"}, low: 1e3 * goodPrice / 1e9, high: 1e8 * goodPrice / 1e9}},
	"Top destinations by requests":           {{of: map[string]string{"destination": "localhost"}, low: 10, high: 1e4}, {of: map[string]string{"destination": "127.0.0.1"}, low: 1, high: 1e4}},
	"What became of connections":             {{of: map[string]string{"outcome": "redirected"}, low: tiny, high: 500}, {of: map[string]string{"outcome": "untouched"}, low: tiny, high: 100}, {of: map[string]string{"outcome": "refused"}, low: 0, high: 0}},
	"Untouched, by reason":                   {{of: map[string]string{"reason": "source_port"}, low: tiny, high: 100}},
	"QUIC":                                   {{of: map[string]string{"outcome": "untouched"}, low: tiny, high: 100}},
	"Mean time of a handshake":               {{low: 1e-6, high: 1}},
	"How TLS connections are seen":           {{query: `sum(egressd_tls_sight)`, low: 1, high: 10}, {of: map[string]string{"source": "terminate"}, low: 0, high: 0}},
	"Age of the policy":                      {{query: `1 - egressd_config_last_reload_successful`, low: 1, high: 1}, {query: `time() - egressd_config_last_reload_success_timestamp_seconds`, low: 1, high: 120}},
	"Not counted":                            {{low: 0, high: 0}},
}

// mustRule holds that the server has every rule of the file, could evaluate
// it, and sees what goes on.
func mustRule(t *testing.T, s *prometheus) {
	t.Helper()
	text, err := os.ReadFile("../../metrics/rules/egressd.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	rules := s.rules(t)
	if want := regexp.MustCompile(`(?m)^ *- (alert|record): `).FindAll(text, -1); len(rules) != len(want) || len(want) == 0 {
		t.Errorf("got %d rules, want the %d of the file", len(rules), len(want))
	}
	states := map[string]string{}
	for _, r := range rules {
		if r.Health != "ok" || r.LastError != "" {
			t.Errorf("%s: got health %s, error %q", r.Name, r.Health, r.LastError)
		}
		if r.Type != "alerting" {
			continue
		}
		states[r.Name] = r.State
		for _, what := range []string{"summary", "description", "runbook"} {
			if r.Annotations[what] == "" {
				t.Errorf("%s: has no %s", r.Name, what)
			}
		}
		if !slices.Contains([]string{"warning", "critical"}, r.Labels["severity"]) {
			t.Errorf("%s: got severity %q", r.Name, r.Labels["severity"])
		}
	}
	for name, want := range map[string]string{
		"EgressdConfigReloadFailed": "pending", // after one minute it fires
		"EgressdExitDown":           "pending",
		"EgressdUntouchedTraffic":   "pending",
		"EgressdBudgetExceeded":     "inactive",
	} {
		if states[name] != want {
			t.Errorf("%s: got %q, want %s", name, states[name], want)
		}
	}
}
