// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/egressd/egressd/test/tlsorigin"
)

// source is a way to see what is in TLS connections.
type source struct {
	name   string // as egressd calls what it saw by it
	config string // of tls in the policy file
	sees   func(labClient) bool
	// exact says that each request that is seen waits for its turn: what is
	// not exact sees answers only, and paces by flights.
	exact bool
}

// sources are all of them. The argument of config is the folder for keys.
var sources = []source{
	{
		name: "blind", config: "tls: {mode: passthrough}\n",
		sees: func(labClient) bool { return false },
	},
	{
		name: "keys", config: "tls: {mode: observe, sources: [keylog], key_dir: %s}\n", exact: true,
		sees: func(c labClient) bool { return !c.noKeys },
	},
	{
		name: "uprobe", config: "tls: {mode: observe, sources: [uprobes]}\n",
		sees: func(c labClient) bool { return !c.noProbe },
	},
}

// sightRate is how many requests a second a budget of most tests lets go.
const sightRate = 20

// observation is an answer that egressd saw inside a TLS connection.
type observation struct {
	mono       int64
	lane       string
	status     int
	retryAfter string
	by         string
	found      string // how its connection was, by probes
	pid        int
	path       string
	partial    bool // some of it was not to be known
}

// detailField is a field of what an event of this kind says: a name and a value,
// which is quoted if anything may be in it, or a name alone.
var detailField = regexp.MustCompile(`^ ?([a-z-]+)(?:=("(?:[^"\\]|\\.)*"|[^ "]*))?`)

// readObservation reads an event of this kind.
func readObservation(ev event) (o observation, err error) {
	o = observation{mono: ev.Mono, lane: ev.Lane}
	for rest := ev.Detail; rest != ""; {
		m := detailField.FindStringSubmatch(rest)
		if m == nil {
			return o, fmt.Errorf("cannot read %q in %q", rest, ev.Detail)
		}
		rest = rest[len(m[0]):]
		value := m[2]
		if strings.HasPrefix(value, `"`) {
			if value, err = strconv.Unquote(value); err != nil {
				return o, fmt.Errorf("%q: %w", ev.Detail, err)
			}
		}
		switch m[1] {
		case "status":
			o.status, err = strconv.Atoi(value)
		case "by":
			o.by = value
		case "found":
			o.found = value
		case "pid":
			o.pid, err = strconv.Atoi(value)
		case "retry-after":
			o.retryAfter = value
		case "partial":
			o.partial = true
		case "path":
			o.path = value
		}
		if err != nil {
			return o, fmt.Errorf("%q: %w", ev.Detail, err)
		}
	}
	if o.by == "" || o.pid == 0 {
		return o, fmt.Errorf("%q does not tell by and pid", ev.Detail)
	}
	return o, nil
}

// saw is what egressd saw so far, by the events that a process from follow has
// printed.
func saw(t testing.TB, log *process) (all []observation) {
	t.Helper()
	for _, ev := range events(t, log) {
		if ev.Kind != "observed" {
			continue
		}
		o, err := readObservation(ev)
		if err != nil {
			t.Fatalf("events: %v", err)
		}
		all = append(all, o)
	}
	return all
}

// sightRow is a row of the table: what egressd saw of a client.
type sightRow struct {
	client               string
	right, wrong, unseen int
	dispatches           int
	limited              int // by the origin, which is as strict as the budget
	span                 time.Duration
	found                string // how the connections of answers were found, and how often
}

// judge compares what egressd saw with what the origin did. wrong has each
// observation that is no request's, or not as it was, or told twice.
func judge(seen []observation, sent map[int]tlsorigin.Request, r labRun, by string) (right int, unseen, wrong []string) {
	left := map[string]tlsorigin.Request{}
	for _, req := range sent {
		left[req.Path] = req
	}
	for _, o := range seen {
		rest, mine := strings.CutPrefix(o.path, r.path+"/")
		if _, err := strconv.Atoi(rest); !mine || err != nil {
			continue
		}
		req, known := left[o.path]
		switch {
		case !known:
			wrong = append(wrong, fmt.Sprintf("%+v: no such request, or told before", o))
		case o.partial && (o.status == 0 || o.status == req.Status):
			continue // it says what it does not know
		case o.status != req.Status || o.retryAfter != req.RetryAfter || o.by != by:
			wrong = append(wrong, fmt.Sprintf("%+v: the origin answered %d, %q", o, req.Status, req.RetryAfter))
		default:
			right++
		}
		delete(left, o.path)
	}
	for _, path := range slices.Sorted(maps.Keys(left)) {
		req := left[path]
		unseen = append(unseen, fmt.Sprintf("%s: %d on connection %d, stream %d", path, req.Status, req.Connection, req.Stream))
	}
	return right, unseen, wrong
}

// foundBy counts how the connections of a lane's answers were found.
func foundBy(seen []observation, lane string) string {
	counts := map[string]int{}
	for _, o := range seen {
		if o.lane == lane && o.found != "" {
			counts[o.found]++
		}
	}
	var all []string
	for _, how := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, fmt.Sprintf("%s:%d", how, counts[how]))
	}
	return strings.Join(all, " ")
}

// settled judges what egressd saw when as much of it is right as should be, or
// when there was time enough: the last answers are on their way yet.
func settled(t testing.TB, log *process, sent map[int]tlsorigin.Request, r labRun, by string, want int) (right int, unseen, wrong []string) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		right, unseen, wrong = judge(saw(t, log), sent, r, by)
		if right >= want || time.Now().After(end) {
			return right, unseen, wrong
		}
	}
}

// letGo is when requests of a lane were, ns of CLOCK_MONOTONIC.
func letGo(t testing.TB, log *process, lane string) (at []int64) {
	t.Helper()
	for _, ev := range events(t, log) {
		if ev.Kind == "dispatch" && ev.Lane == lane {
			at = append(at, ev.Mono)
		}
	}
	return at
}

// TestHTTPSSight is the table of clients and sources: what egressd sees of each
// client's answers, and that the client keeps its budget.
func TestHTTPSSight(t *testing.T) {
	t.Parallel()
	for _, src := range sources {
		t.Run(src.name, func(t *testing.T) {
			t.Parallel()
			runSight(t, src, sightPlan{clients: labClients, count: 24, width: 8, rate: sightRate})
		})
	}
}

// TestHTTPSSightOfMany has the clients with most connections have many of them.
func TestHTTPSSightOfMany(t *testing.T) {
	t.Parallel()
	plan := sightPlan{count: 120, width: 50, rate: 50}
	for _, name := range []string{"asyncio", "aiohttp", "node-https", "go-h1"} {
		plan.clients = append(plan.clients, mustLabClient(t, name))
	}
	for _, src := range sources {
		t.Run(src.name, func(t *testing.T) {
			t.Parallel()
			runSight(t, src, plan)
		})
	}
}

// sightPlan says what is run.
type sightPlan struct {
	clients      []labClient
	count, width int // of each client's requests
	rate         int // a second, both of the budget and what the origin allows
}

// runSight runs the clients with one daemon, and an origin and a budget for
// each.
func runSight(t *testing.T, src source, plan sightPlan) {
	s := newShop(t)
	scope := newGroup(t)
	type part struct {
		labClient
		labRun
		origin *tlsorigin.Origin
	}
	var parts []part
	var budgets strings.Builder
	for _, c := range plan.clients {
		p := part{labClient: c, labRun: labRun{path: "/sight/" + c.name, count: plan.count, width: plan.width}}
		p.origin, p.port = s.open(t, tlsorigin.Config{
			Rate: float64(plan.rate), Pages: p.pages(t),
			// One answer is a limit that is there for all who see it.
			Forced: []tlsorigin.Forced{{Path: p.path + "/9", Status: 429, RetryAfter: "1"}},
		})
		fmt.Fprintf(&budgets, "  - {name: %s, match: {hosts: [%s], ports: [%d]}, rate: %d/s, queue: {max_wait: 60s}}\n",
			strings.ReplaceAll(c.name, ".", "-"), originHost, p.port, plan.rate)
		parts = append(parts, p)
	}
	d := prepareDaemon(t, scope)
	d.within = s.within()
	env := d.look(t, src)
	d.write(t, budgets.String())
	d.start(t)
	log := d.follow(t)

	var mu sync.Mutex
	var rows []sightRow
	t.Run("clients", func(t *testing.T) {
		for _, p := range parts {
			t.Run(p.name, func(t *testing.T) {
				t.Parallel()
				if src.name == "uprobe" && src.sees(p.labClient) {
					warmUp(t, p.labRun, log, func(r labRun) { replies(t, s.start(t, how{in: scope}, p.labClient, r), p.labClient, r) })
				}
				lane := fmt.Sprintf("%s/%s/direct", strings.ReplaceAll(p.name, ".", "-"), originHost)
				before, warm := p.origin.Log(), len(letGo(t, log, lane))
				client := s.start(t, how{in: scope, env: env}, p.labClient, p.labRun)
				got := replies(t, client, p.labClient, p.labRun)
				seen := newLog(p.origin, before)
				sent := arrived(t, seen, p.labRun)
				mustAgree(t, got, sent)
				row := mustSee(t, src, p.labClient, p.labRun, log, lane, plan.rate, sent, len(seen.Requests)+warm, len(seen.Connections))
				mu.Lock()
				defer mu.Unlock()
				rows = append(rows, row)
			})
		}
	})
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "client\tright\twrong\tunseen\tdispatches\tlimited\tspan\tfound")
	slices.SortFunc(rows, func(a, b sightRow) int { return strings.Compare(a.client, b.client) })
	for _, r := range rows {
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%v\t%s\n", r.client, r.right, r.wrong, r.unseen, r.dispatches, r.limited, r.span, r.found)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s:\n%s", src.name, text.String())
}

// mustSee holds what egressd saw of a client, and did, against what the origin
// saw of it: of the requests with numbers what they were, and how many requests
// and connections there were in all.
func mustSee(t *testing.T, src source, c labClient, r labRun, log *process, lane string, rate int, sent map[int]tlsorigin.Request, all, conns int) sightRow {
	t.Helper()
	row := sightRow{client: c.name}
	sees := src.sees(c)
	want := 0
	if sees {
		want = r.count
	}
	var unseen, wrong []string
	row.right, unseen, wrong = settled(t, log, sent, r, src.name, want)
	row.unseen, row.wrong = len(unseen), len(wrong)
	for _, w := range wrong {
		t.Error("egressd saw ", w)
	}
	row.found = foundBy(saw(t, log), lane)
	if row.right != want {
		t.Errorf("egressd saw %d of %d answers right, want %d; unseen:\n%s", row.right, r.count, want, strings.Join(unseen, "\n"))
	}

	at := letGo(t, log, lane)
	row.dispatches = len(at)
	var when []sighting
	for i, req := range sent {
		when = append(when, sighting{at: time.Duration(req.At), path: req.Path})
		if req.Status == 429 && i != 9 {
			row.limited++
		}
	}
	slices.SortFunc(when, func(a, b sighting) int { return int(a.at - b.at) })
	row.span = (when[len(when)-1].at - when[0].at).Round(time.Millisecond)
	burst := 1
	if c.packs && src.exact {
		burst = r.width // what leaves together is owed: as much later waits for it
	}
	for i := burst; i < len(at); i++ {
		if apart := time.Duration(at[i] - at[i-burst]); apart < time.Second/time.Duration(rate) {
			t.Errorf("%d dispatches within %v, want at most %d a second and %d at once", burst+1, apart, rate, burst)
		}
	}
	// Whoever sees no requests counts flights: each is one of HTTP/1, and any
	// number of HTTP/2.
	if src.exact && sees || !c.http2 {
		mustKeepPace(t, when, burst, float64(rate))
		// A connection may have taken a unit and carried nothing, as those that
		// browsers open in advance.
		if len(at) < all || len(at) > all+conns {
			t.Errorf("got %d dispatches of %d requests on %d connections", len(at), all, conns)
		}
	}
	if sees {
		mustRest(t, saw(t, log), at, lane)
	}
	return row
}

// sightLate is by how much the origin may see a request later than another one
// that left with it: the machine may be busy, and some clients write several
// requests of HTTP/2 as one record of TLS.
const sightLate = 500 * time.Millisecond

// mustKeepPace looks whether requests keep the budget, of which burst may leave at
// once, in every window of time.
func mustKeepPace(t testing.TB, all []sighting, burst int, rate float64) {
	t.Helper()
	for i := range all {
		for j := i; j < len(all); j++ {
			window := all[j].at - all[i].at
			if got, most := float64(j-i+1), float64(burst)+rate*(window+sightLate).Seconds(); got > most {
				t.Errorf("the origin received %v requests within %v, want at most %v with a tolerance of %v", got, window, most, sightLate)
				return
			}
		}
	}
}

// mustRest looks whether a lane rested for the second that an answer asked for,
// from when it was seen.
func mustRest(t testing.TB, seen []observation, at []int64, lane string) {
	t.Helper()
	asked := 0
	for _, o := range seen {
		if o.lane != lane || o.retryAfter != "1" {
			continue
		}
		asked++
		// An event may be told by another clock reading than the one that a
		// dispatch at the same time has.
		from, to := o.mono+int64(10*time.Millisecond), o.mono+int64(990*time.Millisecond)
		for _, d := range at {
			if d > from && d < to {
				t.Errorf("a request was let go %v after %s asked for a second of rest", time.Duration(d-o.mono), o.path)
			}
		}
	}
	if asked == 0 {
		t.Errorf("lane %s: no answer that asked for rest was seen", lane)
	}
}

// warmUp has run run a client until egressd has seen something of it: it takes
// time until the probes are in a program that was not there before.
func warmUp(t testing.TB, r labRun, log *process, run func(labRun)) {
	t.Helper()
	r.path, r.count, r.width = r.path+"/warm", 1, 1
	for end := time.Now().Add(20 * time.Second); ; {
		run(r)
		for wait := time.Now().Add(500 * time.Millisecond); time.Now().Before(wait); time.Sleep(20 * time.Millisecond) {
			if slices.ContainsFunc(saw(t, log), func(o observation) bool { return o.path == r.path+"/0" }) {
				return
			}
		}
		if time.Now().After(end) {
			t.Errorf("egressd saw nothing of %s within 20 s", r.path)
			return
		}
	}
}

// look has a daemon that is not started yet look into TLS by a source, and is
// what clients need in their environment for it.
func (d *daemon) look(t testing.TB, src source) (env []string) {
	t.Helper()
	config := src.config
	if strings.Contains(config, "%s") {
		keys := newKeyDir(t)
		config = fmt.Sprintf(config, keys)
		env = keyEnv(t, keys)
	}
	d.extra += config
	return env
}

// newKeyDir makes a folder for keys. Keys never lie on a disk.
func newKeyDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "e2e-keys-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
		waitFor(t, 20*time.Second, "the end of the keeper of "+dir, func() bool {
			return !slices.ContainsFunc(here.processes(), func(pid int) bool {
				cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				return err == nil && strings.Contains(string(cmdline), dir)
			})
		})
	})
	return dir
}

// keyEnv makes a pipe for root's keys and is what clients need in their
// environment to write to it.
func keyEnv(t testing.TB, dir string) []string {
	t.Helper()
	start(t, how{}, here.bin, "observe", "pipe", "lab", "--user", "root", "--key-dir", dir).mustSucceed(t, 20*time.Second)
	pipe := filepath.Join(dir, "lab")
	return []string{"SSLKEYLOGFILE=" + pipe, "NODE_OPTIONS=--tls-keylog=" + pipe}
}

// TestHTTPSSightIsJudged looks whether the judge of the table finds what is
// wrong.
func TestHTTPSSightIsJudged(t *testing.T) {
	r := labRun{path: "/p", count: 3}
	sent := map[int]tlsorigin.Request{
		0: {Path: "/p/0", Status: 200}, 1: {Path: "/p/1", Status: 429, RetryAfter: "1"}, 2: {Path: "/p/2", Status: 200},
	}
	good := []observation{
		{path: "/p/0", status: 200, by: "keys"}, {path: "/p/1", status: 429, retryAfter: "1", by: "keys"}, {path: "/p/2", status: 200, by: "keys"},
	}
	change := func(i int, f func(*observation)) []observation {
		c := slices.Clone(good)
		f(&c[i])
		return c
	}
	for _, tt := range []struct {
		name                 string
		seen                 []observation
		right, unseen, wrong int
	}{
		{"all", good, 3, 0, 0},
		{"none", nil, 0, 3, 0},
		{"one not", good[1:], 2, 1, 0},
		{"status", change(0, func(o *observation) { o.status = 429 }), 2, 0, 1},
		{"retry-after", change(1, func(o *observation) { o.retryAfter = "" }), 2, 0, 1},
		{"other source", change(1, func(o *observation) { o.by = "uprobe" }), 2, 0, 1},
		{"of another client", change(1, func(o *observation) { o.path = "/q/1" }), 2, 1, 0},
		{"of no request", change(1, func(o *observation) { o.path = "/p/7" }), 2, 1, 1},
		{"partial", change(1, func(o *observation) { o.partial, o.retryAfter = true, "" }), 2, 1, 0},
		{"partial and wrong", change(1, func(o *observation) { o.partial, o.status = true, 200 }), 2, 0, 1},
		{"the page", append(slices.Clone(good), observation{path: "/p/page", status: 200}), 3, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			right, unseen, wrong := judge(tt.seen, sent, r, "keys")
			if right != tt.right || len(unseen) != tt.unseen || len(wrong) != tt.wrong {
				t.Errorf("got %d right, unseen %q, wrong %q, want %d, %d, %d", right, unseen, wrong, tt.right, tt.unseen, tt.wrong)
			}
		})
	}
	// What is told twice is wrong, though all was seen.
	if _, _, wrong := judge(append(slices.Clone(good), good[0]), sent, r, "keys"); len(wrong) != 1 {
		t.Errorf("told twice: got wrong %v, want one", wrong)
	}
}
