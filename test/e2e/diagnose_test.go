// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy/config"
)

// sick is an origin with a limit that clients run into.
type sick struct {
	rate, burst float64         // of its bucket; rate 0: none
	hiccup      time.Duration   // in each hiccupEvery, for which it limits everything
	delays      []time.Duration // it asks for, one after the other, the last again and again
	status      int             // of all answers; 0 is what the limits say
	fields      http.Header     // of limits, and of all answers if there is a status

	mu      sync.Mutex
	start   time.Time
	last    time.Time
	tokens  float64
	until   time.Time // nothing before it
	round   int
	limits  []time.Time
	answers int
}

// hiccupEvery is how often one begins.
const hiccupEvery = 3 * time.Second

func (o *sick) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	status, delay := o.judge(time.Now())
	if status != http.StatusOK {
		for name, values := range o.fields {
			w.Header()[name] = values
		}
	}
	if delay > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(delay/time.Second)))
	}
	w.WriteHeader(status)
}

func (o *sick) judge(now time.Time) (status int, delay time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.answers++
	if o.start.IsZero() {
		o.start, o.last, o.tokens = now, now, o.burst
	}
	if o.status != 0 {
		return o.status, 0
	}
	o.tokens = min(o.burst, o.tokens+now.Sub(o.last).Seconds()*o.rate)
	o.last = now
	limited := o.hiccup > 0 && now.Sub(o.start) > hiccupEvery && now.Sub(o.start)%hiccupEvery < o.hiccup
	if len(o.delays) > 0 && now.Before(o.until) {
		limited = true
	} else if o.rate > 0 && !limited {
		if limited = o.tokens < 1; !limited {
			o.tokens--
		}
	}
	if !limited {
		return http.StatusOK, 0
	}
	if n := len(o.limits); n == 0 || now.Sub(o.limits[n-1]) > 500*time.Millisecond {
		o.round++ // a wave, however many are in it
	}
	o.limits = append(o.limits, now)
	if n := len(o.delays); n > 0 {
		delay = o.delays[min(o.round, n)-1]
		o.until = now.Add(delay)
	}
	return http.StatusTooManyRequests, delay
}

// after is the number of limits later than t, and of all of them.
func (o *sick) after(t time.Time) (n, all int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, at := range o.limits {
		if at.After(t) {
			n++
		}
	}
	return n, len(o.limits)
}

// finding is what the test wants to know of one.
type finding struct {
	Kind, Certainty, Saw, Do, Policy string
	Processes                        []struct {
		PID     int
		Command string
	}
	Numbers map[string]float64
}

// diagnosis is what `egressd diagnose --json` says.
type diagnosis struct {
	Requests, Limited int
	Findings          []finding
}

// kinds are those of the findings that are more than possible.
func (d *diagnosis) kinds() (all []string) {
	for _, f := range d.Findings {
		if f.Certainty != "possible" {
			all = append(all, f.Kind)
		}
	}
	return all
}

// job is the command line of a script in testdata/jobs.
func job(t testing.TB, script string, args ...string) []string {
	t.Helper()
	path, err := filepath.Abs("testdata/jobs/" + script)
	if err != nil {
		t.Fatal(err)
	}
	return append([]string{"python3", path}, args...)
}

// scene is an incident: an origin, clients, a policy that knows nothing of either,
// and the cause that diagnose is to find.
type scene struct {
	name   string
	origin *sick
	// clients are the command lines of processes; more than one of a kind are as
	// many processes.
	clients func(t testing.TB, port string) [][]string
	watch   time.Duration
	exit    int      // the status with which a proxy refuses all tunnels; 0: there is no proxy
	first   string   // what is found; "": nothing is
	names   string   // the command of each process that is named; "": none is
	number  int      // of processes
	says    []string // in the report for people
	cured   bool     // the lines that are given end the limits, or nearly
}

func scenes() []scene {
	several := func(n int, script string, args ...string) func(testing.TB, string) [][]string {
		return func(t testing.TB, port string) (all [][]string) {
			for range n {
				all = append(all, job(t, script, append([]string{"127.0.0.1", port}, args...)...))
			}
			return all
		}
	}
	return []scene{
		{
			name:    "multiplication",
			origin:  &sick{rate: 1, burst: 1},
			clients: several(4, "worker.py", "1"),
			first:   "multiplication", names: "python3 worker.py", number: 4,
			says:  []string{"4 processes sent ", "each of them within it"},
			cured: true,
		},
		{
			name:    "wrong limit",
			origin:  &sick{rate: 4, burst: 2},
			clients: several(1, "worker.py", "0.1"),
			first:   "wrong_limit", names: "python3 worker.py", number: 1,
			says:  []string{"1 process alone sent more than it let through"},
			cured: true,
		},
		{
			name:    "stated limit",
			origin:  &sick{rate: 4, burst: 2, fields: http.Header{"Ratelimit-Policy": {`"all";q=4;w=1`}, "Ratelimit": {`"all";r=0;t=1`}}},
			clients: several(1, "worker.py", "0.1"),
			first:   "wrong_limit", names: "python3 worker.py", number: 1,
			says: []string{"(certain)", "its answers state a limit of 4/s", "rate: 4/s"},
		},
		{
			name:    "retry storm",
			origin:  &sick{rate: 20, burst: 20, hiccup: 600 * time.Millisecond, delays: []time.Duration{time.Second}},
			clients: several(2, "worker.py", "0.4", "0.02"),
			watch:   9 * time.Second,
			first:   "retry_storm", names: "python3 worker.py", number: 2,
			says:  []string{"requests were sent for ", "repetitions came before the delay was over"},
			cured: true,
		},
		{
			name:    "window edges",
			origin:  &sick{rate: 5, burst: 5},
			clients: several(1, "windowed.py", "8", "2"),
			watch:   9 * time.Second,
			first:   "window_edges", names: "python3 windowed.py", number: 1,
			says:  []string{"bursts of about 8", "each window of 2s"},
			cured: true,
		},
		{
			name:    "nothing wrong",
			origin:  &sick{rate: 10, burst: 5},
			clients: several(3, "worker.py", "0.5"),
			says:    []string{"Nothing found: no origin limited anything that was seen, and nothing went past egressd."},
		},
		{
			name:    "escalation",
			origin:  &sick{rate: 2, burst: 2, delays: []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second, 32 * time.Second}},
			clients: several(2, "crowd.py", "8", "0.2", "1.6"),
			watch:   8 * time.Second,
			first:   "escalation",
			says:    []string{"grows with each round", "were sent before such a delay was over"},
		},
		{
			name:    "challenge",
			origin:  &sick{status: http.StatusForbidden, fields: http.Header{"Cf-Mitigated": {"challenge"}}},
			clients: several(1, "worker.py", "0.3"),
			watch:   3 * time.Second,
			first:   "challenged",
			says:    []string{"the origin challenges"},
		},
		{
			name:   "exit trouble",
			origin: &sick{},
			clients: func(t testing.TB, port string) [][]string {
				return [][]string{job(t, "tunnel.py", port, "127.0.0.1", "9", "0.3")}
			},
			watch: 3 * time.Second, exit: http.StatusTooManyRequests,
			first: "exit_trouble",
			says:  []string{"the proxy of the exit refuses, and not the origin", "through gateway"},
		},
	}
}

// TestDiagnose plays incidents with real clients and has diagnose tell what is
// the matter, with a budget that only measures and is for no destination. Then
// it does as it was told.
func TestDiagnose(t *testing.T) {
	for _, s := range scenes() {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			scope := newGroup(t)
			port := serve(t, s.origin)
			look := fmt.Sprintf("  - {name: look, match: {ports: [%d]}, rate: 1000/s, mode: shadow}", port)
			d := prepareDaemon(t, scope)
			destination := "127.0.0.1"
			if s.exit != 0 {
				destination = "" // it has no part in it
				s.origin.status = s.exit
				d.extra = fmt.Sprintf("exits: [{name: gateway, proxy: \"127.0.0.1:%d\"}]\n", port)
			}
			d.write(t, look)
			d.start(t)
			for _, args := range s.clients(t, strconv.Itoa(port)) {
				start(t, how{in: scope}, args...)
			}
			waitFor(t, 20*time.Second, "the clients to ask", func() bool {
				s.origin.mu.Lock()
				defer s.origin.mu.Unlock()
				return s.origin.answers >= 2
			})
			if s.watch == 0 {
				s.watch = 5 * time.Second
			}
			people := start(t, how{}, append(append([]string{here.bin}, asking(s.watch, destination)...), "--socket", d.socket)...)
			got := d.diagnose(t, s.watch, destination)
			people.mustSucceed(t, 20*time.Second)
			s.check(t, &got, people.stdout.String())
			keepReport(t, s.name, people.stdout.String())
			if s.cured && !t.Failed() {
				s.cure(t, d, got.Findings[0].Policy, look)
			}
		})
	}
}

// diagnose has the daemon watched.
func (d *daemon) diagnose(t testing.TB, watch time.Duration, destination string) (got diagnosis) {
	t.Helper()
	d.askJSON(t, &got, asking(watch, destination)...)
	for _, f := range got.Findings {
		mustCheck(t, f.Policy)
	}
	return got
}

// asking is the command line of diagnose.
func asking(watch time.Duration, destination string) []string {
	args := []string{"diagnose", "--for", watch.String()}
	if destination != "" {
		args = append(args, destination)
	}
	return args
}

// mustCheck holds that lines which are to help are a policy.
func mustCheck(t testing.TB, lines string) {
	t.Helper()
	if lines == "" {
		return
	}
	if _, err := config.Parse("policy", []byte(lines)); err != nil {
		t.Errorf("%v in\n%s", err, lines)
	}
	path := filepath.Join(shortDir(t), "policy.yml")
	mustWrite(t, path, lines)
	mustRun(t, here.bin, "check", "--config", path)
}

// check holds what was found, and what people are told, by a look at the same
// time.
func (s *scene) check(t testing.TB, got *diagnosis, text string) {
	t.Helper()
	kinds := got.kinds()
	switch {
	case s.first == "" && len(got.Findings) > 0:
		t.Errorf("got %+v, want nothing", got.Findings)
	case s.first == "":
	case !slices.Equal(kinds, []string{s.first}):
		t.Errorf("got %v, want %s", kinds, s.first)
	}
	for _, want := range s.says {
		if !strings.Contains(text, want) {
			t.Errorf("got\n%s\nwant it to say %q", text, want)
		}
	}
	if s.names != "" && len(got.Findings) > 0 {
		f := got.Findings[0]
		if len(f.Processes) != s.number {
			t.Errorf("got processes %+v, want %d", f.Processes, s.number)
		}
		for _, p := range f.Processes {
			if p.Command != s.names || p.PID == 0 {
				t.Errorf("got process %+v, want %s", p, s.names)
			}
		}
	}
	if t.Failed() {
		t.Logf("got %+v\n%s", *got, text)
	}
}

// keepReport keeps what people are told, for the documentation, where
// EGRESSD_REPORTS names a folder.
func keepReport(t testing.TB, name, text string) {
	t.Helper()
	if dir := os.Getenv("EGRESSD_REPORTS"); dir != "" {
		mustWrite(t, filepath.Join(dir, strings.ReplaceAll(name, " ", "-")+".txt"), text)
	}
}

// cure puts lines that were given where they belong, and holds that limits end,
// or come no more often than a lane that learns has them.
func (s *scene) cure(t testing.TB, d *daemon, lines, look string) {
	t.Helper()
	before, _ := s.origin.after(time.Time{})
	budgets, is := strings.CutPrefix(lines, "budgets:\n")
	if !is || !strings.Contains(lines, "# before budget look") {
		t.Fatalf("got\n%s\nwant a budget, and where it belongs", lines)
	}
	d.write(t, budgets+look)
	d.signal(t, unix.SIGHUP)
	waitFor(t, 10*time.Second, "the policy to be read", func() bool {
		return d.hasBudget(t, budgets)
	})
	const span = 4 * time.Second
	from := time.Now()
	time.Sleep(span)
	after, _ := s.origin.after(from)
	t.Logf("limits: %d before, %d in %v after the lines were followed", before, after, span)
	if after > max(3, before/8) {
		t.Errorf("got %d limits in %v after the lines were followed, %d before", after, span, before)
	}
}

// hasBudget reports whether the daemon has the budget that lines name.
func (d *daemon) hasBudget(t testing.TB, lines string) bool {
	t.Helper()
	_, rest, _ := strings.Cut(lines, "- name: ")
	name, _, _ := strings.Cut(rest, "\n")
	var s struct{ Config struct{ Budgets []string } }
	d.askJSON(t, &s, "status")
	return slices.ContainsFunc(s.Config.Budgets, func(b string) bool { return strings.HasPrefix(b, strings.Trim(name, `"`)+": ") })
}
