// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/config"
)

func TestParse(t *testing.T) {
	w := mustParse(t, "full.yml", `
summary: >
  all that
  there is
duration: 1h30m
runs: 3
measure_from: 2s
clients:
  workers: 50
  processes: 10
  exits: 5
  start: {uniform: [0s, 1s]}
  think: {exponential: 250ms}
  rate: 90/min
  jobs: 1000
  retry: {attempts: 8, base: 2s, cap: 30s}
  host: store.example.com
  path: /api/
  method: POST
strategies:
  - naive
  - fixed+egressd
  - {strategy: retry-after, label: patient, attempts: 20, cap: 1h}
origin:
  limit: {rate: 10/30s, burst: 5, window: {limit: 100, per: 1m, kind: fixed}, concurrency: 4, per: all, count_refused: true}
  refusal: {status: 403, retry_after: 2s, escalate: {factor: 1.5, max: 60s, forget: 5m}}
  outages:
    - {from: 1m, to: 2m, answer: 500, retry_after: 5s}
    - {from: 3m, to: 4m, answer: error}
    - {from: 5m, to: 6m}
  latency: 35ms
  headers: x-ratelimit
policy:
  # with a comment
# at any place
  budgets:

    - name: store
      rate: 1/s
`)
	if w.Summary != "all that there is" || w.Duration != 90*time.Minute || w.Runs != 3 || w.MeasureFrom != 2*time.Second {
		t.Errorf("got %+v", w)
	}
	wantClients := Clients{
		Workers: 50, Processes: 10, Exits: 5, Start: Dist{kind: uniform, b: time.Second}, Think: Dist{kind: exponential, a: 250 * ms},
		Rate: policy.Rate{Count: 90, Every: time.Minute}, Jobs: 1000, Retry: Retry{8, 2 * time.Second, 30 * time.Second},
		Host: "store.example.com", Path: "/api/", Method: "POST",
	}
	if w.Clients != wantClients {
		t.Errorf("got clients %+v, want %+v", w.Clients, wantClients)
	}
	wantStrategies := []Strategy{
		{"naive", Naive, false, Retry{8, 2 * time.Second, 30 * time.Second}},
		{"fixed+egressd", Fixed, true, Retry{8, 2 * time.Second, 30 * time.Second}},
		{"patient", RetryAfter, false, Retry{20, 2 * time.Second, time.Hour}},
	}
	if !slices.Equal(w.Strategies, wantStrategies) {
		t.Errorf("got strategies %+v, want %+v", w.Strategies, wantStrategies)
	}
	wantLimit := Limit{Rate: policy.Rate{Count: 10, Every: 30 * time.Second}, Burst: 5, Window: Window{100, time.Minute, true}, Concurrency: 4, Shared: true, CountRefused: true}
	if w.Origin.Limit != wantLimit {
		t.Errorf("got limit %+v, want %+v", w.Origin.Limit, wantLimit)
	}
	if want := (Refusal{403, 2 * time.Second, 1.5, time.Minute, 5 * time.Minute}); w.Origin.Refusal != want {
		t.Errorf("got refusal %+v, want %+v", w.Origin.Refusal, want)
	}
	wantOutages := []Outage{
		{time.Minute, 2 * time.Minute, 500, 5 * time.Second}, {3 * time.Minute, 4 * time.Minute, 0, 0}, {5 * time.Minute, 6 * time.Minute, 503, 0},
	}
	if !slices.Equal(w.Origin.Outages, wantOutages) {
		t.Errorf("got outages %+v, want %+v", w.Origin.Outages, wantOutages)
	}
	if w.Origin.Latency != (Dist{a: 35 * ms}) || w.Origin.Headers != HeadersXRateLimit {
		t.Errorf("got latency %+v, headers %s", w.Origin.Latency, w.Origin.Headers)
	}
	if w.Policy == nil || len(w.Policy.Budgets) != 1 || w.Policy.Budgets[0].Name != "store" {
		t.Errorf("got policy %+v", w.Policy)
	}
}

func TestParseDefaults(t *testing.T) {
	w := mustParse(t, "least.yml", "{duration: 1s, strategies: [naive], clients: {workers: 3}}")
	if c := w.Clients; c.Processes != 3 || c.Exits != 1 || c.Jobs != 0 || c.Retry != (Retry{10, time.Second, time.Minute}) || c.Method != "GET" {
		t.Errorf("got clients %+v", c)
	}
	if o := w.Origin; o.Limit != (Limit{Burst: 1}) || o.Refusal != (Refusal{Status: 429, Factor: 1, Max: maxDuration}) || o.Latency != (Dist{a: 20 * ms}) || o.Headers != HeadersNone {
		t.Errorf("got origin %+v", o)
	}
	if w.Runs != 1 || w.Policy != nil {
		t.Errorf("got %+v", w)
	}
}

// least is a workload that lacks nothing.
const least = "duration: 1s\nstrategies: [naive]\n"

func TestParseErrors(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		want       []string
	}{
		{"empty", "", []string{"bad.yml:1: the file is empty; copy a built-in workload: egressd simulate --show articles/outage"}},
		{"null", "~\n", []string{"bad.yml:1: the file is empty; copy a built-in workload: egressd simulate --show articles/outage"}},
		{"a comment", "# nothing\n", []string{"bad.yml:1: the file is empty; copy a built-in workload: egressd simulate --show articles/outage"}},
		{"no YAML", "duration: [\n", []string{"bad.yml:1: not valid YAML: did not find expected node content"}},
		{"two documents", least + "---\nduration: 1s\n", []string{"bad.yml:3: a second document begins here; a workload is one document: remove the line ---"}},
		{"no mapping", "naive\n", []string{"bad.yml:1: the workload must be a mapping; the keys are summary, duration, runs, measure_from, clients, strategies, origin, policy"}},
		{"nothing in it", "summary: x\n", []string{
			"bad.yml:1: the workload has no duration; write how much time to simulate, as in duration: 10s",
			"bad.yml:1: the workload has no strategies; write at least one, as in strategies: [naive, egressd]",
		}},
		{"unknown key", least + "clients: {wokers: 4}\n", []string{
			"bad.yml:3: clients.wokers: unknown key; known here are workers, processes, exits, start, think, rate, jobs, retry, host, path, method",
		}},
		{"twice", least + "duration: 2s\n", []string{"bad.yml:3: duration: is given twice, first on line 1; remove one"}},
		{"no value", least + "runs:\n", []string{"bad.yml:3: runs: has no value; give it one or remove the line"}},
		{"alias", "duration: &d 1s\nstrategies: [naive]\nmeasure_from: *d\n", []string{
			"bad.yml:1: duration: uses an anchor or an alias, which are not supported; write the value out",
			"bad.yml:3: measure_from: uses an anchor or an alias, which are not supported; write the value out",
		}},
		{"tag", "duration: !!str 1s\nstrategies: [naive]\n", []string{`bad.yml:1: duration: has the YAML tag "!!str"; remove it`}},
		{"numbers", least + "runs: 0\nclients:\n  workers: 1e3\n  jobs: -1\n  exits: [1]\n", []string{
			`bad.yml:3: runs: must be a whole number from 1 to 100000, not "0"`,
			`bad.yml:5: clients.workers: must be a whole number from 1 to 100000, not "1e3"`,
			`bad.yml:6: clients.jobs: must be a whole number from 1 to 1000000000, not "-1"`,
			`bad.yml:7: clients.exits: must be a whole number from 1 to 100000`,
		}},
		{"durations", "duration: 10\nstrategies: [naive]\norigin:\n  latency: 0s\n  refusal: {retry_after: 1500ms}\n", []string{
			`bad.yml:1: duration: must be a duration with a unit, as in 250ms, 30s or 1h30m, not "10"`,
			`bad.yml:4: origin.latency: must reach 10µs: an answer takes time, not "0s"`,
			`bad.yml:5: origin.refusal.retry_after: must be whole seconds, as Retry-After has no others, not "1500ms"`,
		}},
		{"too long", "duration: 25h\nstrategies: [naive]\n", []string{`bad.yml:1: duration: must be from 1ms to 24h, not "25h"`}},
		{"measure_from", least + "measure_from: 1s\n", []string{"bad.yml:3: measure_from: is not before the end of the 1s that are simulated; write a shorter one"}},
		{"distributions", least + "clients:\n  start: {normal: 1s}\n  think: {uniform: [2s, 1s]}\norigin:\n  latency: {uniform: [1s]}\n", []string{
			"bad.yml:4: clients.start.normal: unknown key; known here are uniform, exponential",
			"bad.yml:5: clients.think.uniform: the shorter one comes first, as in [10ms, 30ms]",
			"bad.yml:7: origin.latency.uniform: must be two durations, as in [10ms, 30ms]",
			"bad.yml:7: origin.latency: must reach 10µs: an answer takes time",
		}},
		{"two distributions", least + "clients:\n  think: {uniform: [1s, 2s], exponential: 1s}\n", []string{
			"bad.yml:4: clients.think: must be one of 20ms, {uniform: [10ms, 30ms]} and {exponential: 20ms}",
		}},
		{"rates", least + "clients: {rate: 4}\norigin:\n  limit: {rate: 1/fortnight}\n", []string{
			`bad.yml:3: clients.rate: must be a rate, as in 1/s, 90/min, 10/30s or 5000/h, not "4"`,
			`bad.yml:5: origin.limit.rate: must be a rate, as in 1/s, 90/min, 10/30s or 5000/h, not "1/fortnight"`,
		}},
		{"rate out of range", least + "clients: {rate: 2000000/s}\n", []string{`bad.yml:3: clients.rate: must be from one in 24h to one in 1µs, not "2000000/s"`}},
		{"more processes than workers", least + "clients: {workers: 2, processes: 3, exits: 4}\n", []string{
			"bad.yml:3: clients.processes: is more than there are workers (2)",
			"bad.yml:3: clients.exits: is more than there are workers (2)",
		}},
		{"host", least + "clients: {host: 'https://a', path: b, method: get}\n", []string{
			`bad.yml:3: clients.host: must be a host name in lower case, without scheme and port, not "https://a"`,
			`bad.yml:3: clients.path: must begin with a slash, not "b"`,
			`bad.yml:3: clients.method: must be GET, HEAD, POST, PUT, PATCH, DELETE or OPTIONS, not "get"`,
		}},
		{"strategies", "duration: 1s\nstrategies:\n  - naive\n  - naive\n  - lazy\n  - {label: x}\n  - {strategy: fixed, base: 2m}\n", []string{
			`bad.yml:4: strategies[1]: "naive" is there twice; remove one, or give it another label`,
			`bad.yml:5: strategies[2]: no strategy "lazy"; there are naive, fixed, exponential-full-jitter, exponential-equal-jitter, exponential-added-jitter, decorrelated, retry-after, egressd, and all of them with +egressd`,
			"bad.yml:6: strategies[3]: has no strategy; write which, as in strategy: fixed",
			"bad.yml:7: strategies[4]: base (2m) is more than cap (1m); raise cap",
		}},
		{"no strategies", "duration: 1s\nstrategies: []\n", []string{"bad.yml:2: strategies: must be a list of at least one, as in [naive, egressd]"}},
		{"limit", least + "origin:\n  limit: {burst: 2}\n", []string{
			"bad.yml:4: origin.limit: has a burst without a rate; add rate, as in rate: 1/s",
			"bad.yml:4: origin.limit: allows everything; add rate, window or concurrency, or remove it",
		}},
		{"window", least + "origin:\n  limit:\n    window: {limit: 3, kind: tumbling}\n", []string{
			"bad.yml:5: origin.limit.window.kind: must be sliding or fixed, not \"tumbling\"",
			"bad.yml:5: origin.limit.window: needs limit and per, as in {limit: 100, per: 1m, kind: fixed}",
		}},
		{"escalation", least + "origin:\n  refusal:\n    escalate: {factor: 0.5}\n", []string{
			`bad.yml:5: origin.refusal.escalate.factor: must be a number from 1 to 100, not "0.5"`,
			"bad.yml:5: origin.refusal.escalate: needs a retry_after to begin with, as in retry_after: 1s",
		}},
		{"escalation below its beginning", least + "origin:\n  refusal: {retry_after: 9s, escalate: {max: 3s}}\n", []string{
			"bad.yml:4: origin.refusal.escalate: max (3s) is less than retry_after (9s); raise it",
		}},
		{"outages", least + "origin:\n  outages:\n    - {from: 2s, to: 1s}\n    - {to: 1s, answer: error, retry_after: 1s}\n    - {to: 1s, answer: 200}\n", []string{
			"bad.yml:5: origin.outages[0]: must end after it begins; write both, as in {from: 0s, to: 10s}",
			"bad.yml:6: origin.outages[1]: cannot ask for retry_after, as a connection that fails brings no answer; remove it",
			`bad.yml:7: origin.outages[2].answer: must be a whole number from 400 to 599, not "200"`,
		}},
		{"policy with a mistake", least + "policy:\n  # a comment\n  budgets:\n    - {rate: 1/s}\n    - {rat: 1/s}\nruns: x\n", []string{
			"bad.yml:7: policy: budgets[1].rat: unknown key; did you mean rate?",
			"bad.yml:7: policy: budgets[1]: nothing limits it",
			`bad.yml:8: runs: must be a whole number from 1 to 100000, not "x"`,
		}},
		{"policy on the line", least + "policy: {budgets: []}\n", []string{"bad.yml:3: policy: must be a policy file, indented, on the lines below"}},
		{"policy as text", least + "policy: |\n  budgets: []\n", []string{"bad.yml:3: policy: must be a policy file, indented, on the lines below"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w, err := Parse("bad.yml", []byte(tt.text))
			if err == nil || w != nil {
				t.Fatalf("got %+v, error %v, want an error alone", w, err)
			}
			got := strings.Split(err.Error(), "\n")
			for i := range max(len(got), len(tt.want)) {
				switch {
				case i >= len(tt.want):
					t.Errorf("line %d: got %q, want no more", i+1, got[i])
				case i >= len(got):
					t.Errorf("line %d: got none, want %q", i+1, tt.want[i])
				case !strings.HasPrefix(got[i], tt.want[i]): // what policies say ends as they like
					t.Errorf("line %d:\n got %q\nwant %q", i+1, got[i], tt.want[i])
				}
			}
		})
	}
}

func TestLoad(t *testing.T) {
	if _, err := Load(t.TempDir() + "/none.yml"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got error %v, want %v", err, fs.ErrNotExist)
	}
}

func TestBuiltins(t *testing.T) {
	names := Builtins()
	want := []string{"articles/jitter", "articles/multiplication", "articles/outage", "articles/stampede"}
	if !slices.Equal(names, want) {
		t.Errorf("got %v, want %v", names, want)
	}
	for _, name := range names {
		if w := mustBuiltin(t, name); w.Summary == "" || w.Policy == nil {
			t.Errorf("%s: got summary %q, policy %v, want both", name, w.Summary, w.Policy)
		}
	}
	for _, name := range []string{"", "articles", "../sim", "articles/none", "/articles/jitter"} {
		if _, ok := BuiltinText(name); ok && name != "/articles/jitter" {
			t.Errorf("%q: got a workload, want none", name)
		}
	}
}

// Whatever a file says, there is a workload within bounds that can be played,
// or errors with places, one line each.
func FuzzParse(f *testing.F) {
	for _, name := range Builtins() {
		text, _ := BuiltinText(name)
		f.Add(text)
	}
	f.Add([]byte(mixed))
	f.Add([]byte(least + "policy:\n  budgets: [{rate: 1/s}]\n"))
	f.Add([]byte(least + "policy:\r\n budgets: []\r\n"))
	f.Add([]byte("{duration: 1s, strategies: [naive], policy:\n {budgets: []}}"))
	f.Add([]byte(least + "clients: {workers: &x 1, exits: *x}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		w, err := Parse("fuzz.yml", text)
		if err != nil {
			var errs config.Errors
			if w != nil || !errors.As(err, &errs) || len(errs) == 0 {
				t.Fatalf("got %+v, error %v", w, err)
			}
			for _, e := range errs {
				if e.File != "fuzz.yml" || e.Line < 1 || e.Msg == "" || strings.ContainsAny(e.Msg, "\n\r") {
					t.Fatalf("got error %+v", e)
				}
			}
			return
		}
		c := &w.Clients
		if w.Duration < time.Millisecond || w.Duration > maxDuration || w.Runs < 1 || len(w.Strategies) < 1 ||
			c.Workers < 1 || c.Workers > maxWorkers || c.Processes < 1 || c.Processes > c.Workers || c.Exits < 1 || c.Exits > c.Workers {
			t.Fatalf("got %+v", w)
		}
		// Some steps of each strategy, if that is no great matter.
		if c.Workers > 1000 || w.Duration > time.Hour || behind(w.Strategies) && w.Policy == nil {
			return
		}
		for i := range w.Strategies {
			r, err := newRun(w, &w.Strategies[i], &Options{Policy: w.Policy, Host: c.Host}, 1)
			if err != nil {
				t.Fatal(err)
			}
			before := r.now
			for n := 0; n < 500 && r.step(); n++ {
				if r.now < before {
					t.Fatalf("time went back from %v to %v", before, r.now)
				}
				before = r.now
			}
		}
	})
}

// The example in the documentation is a workload that can be played.
func TestDocumentedWorkload(t *testing.T) {
	doc, err := os.ReadFile("../../docs/SIMULATION.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, found := strings.Cut(string(doc), "```yaml\n")
	if !found {
		t.Fatal("no YAML in docs/SIMULATION.md")
	}
	text, _, _ = strings.Cut(text, "```")
	w := mustParse(t, "docs/SIMULATION.md", text)
	r := mustSimulate(t, w, Options{})
	for i := range r.Strategies {
		mustAddUp(t, w, &r.Strategies[i])
	}
}
