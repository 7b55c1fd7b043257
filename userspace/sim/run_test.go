// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// mixed has all that is random in it.
const mixed = `
duration: 20s
runs: 2
clients:
  workers: 30
  processes: 5
  exits: 3
  start: {uniform: [0s, 500ms]}
  think: {exponential: 300ms}
  rate: 20/s
  retry: {attempts: 4, base: 200ms, cap: 5s}
strategies: [naive, fixed, exponential-full-jitter, exponential-equal-jitter, exponential-added-jitter, decorrelated, retry-after,
  egressd, retry-after+egressd, decorrelated+egressd]
origin:
  limit: {rate: 8/s, burst: 4, window: {limit: 30, per: 5s, kind: sliding}, concurrency: 6, count_refused: true}
  refusal: {retry_after: 1s, escalate: {factor: 1.5, max: 8s, forget: 10s}}
  outages:
    - {from: 4s, to: 5s, answer: 503, retry_after: 2s}
    - {from: 12s, to: 13s, answer: error}
  latency: {exponential: 60ms}
  headers: ietf
policy:
  budgets:
    - {name: each, rate: 6/s, burst: 3, queue: {max: 20, max_wait: 2s}}
    - {name: all, per: [destination], rate: 15/s, burst: 2}
    - {name: connections, unit: connections, per: [exit], rate: 2/s}
`

func TestSameSeedSameResult(t *testing.T) {
	w := mustParse(t, "mixed.yml", mixed)
	first := mustJSON(t, mustSimulate(t, w, Options{Seed: 7}))
	if again := mustJSON(t, mustSimulate(t, w, Options{Seed: 7})); again != first {
		t.Errorf("got\n%s\nand then\n%s", first, again)
	}
	if other := mustJSON(t, mustSimulate(t, w, Options{Seed: 8})); other == first {
		t.Error("another seed gave the same result")
	}
}

// A strategy's figures do not depend on which others are played.
func TestStrategiesAreIndependent(t *testing.T) {
	w := mustParse(t, "mixed.yml", mixed)
	all := mustSimulate(t, w, Options{Seed: 7})
	for i := range w.Strategies {
		alone := mustSimulate(t, w, Options{Seed: 7, Strategies: w.Strategies[i : i+1]})
		if got, want := mustJSON(t, alone.Strategies[0]), mustJSON(t, all.Strategies[i]); got != want {
			t.Errorf("%s: got %s alone, %s among others", w.Strategies[i].Label, got, want)
		}
	}
}

// mustAddUp checks what holds for the figures of every run.
func mustAddUp(t *testing.T, w *Workload, f *Figures) {
	t.Helper()
	if f.Sent != f.OK+f.Limited+f.Errors {
		t.Errorf("%s: got %v sent, but %v ok, %v limited, %v errors", f.Strategy, f.Sent, f.OK, f.Limited, f.Errors)
	}
	totals := map[string][2]float64{"ok": {f.OK}, "limited": {f.Limited}, "errors": {f.Errors}, "refused": {f.Refused}}
	for name, series := range map[string][]float64{"ok": f.Series.OK, "limited": f.Series.Limited, "errors": f.Series.Errors, "refused": f.Series.Refused} {
		sum := 0.0
		for _, x := range series {
			sum += x
		}
		if want := totals[name][0]; !near(sum, want, 1e-6) {
			t.Errorf("%s: got a series of %v %s, want %v", f.Strategy, sum, name, want)
		}
	}
	if f.Done > f.OK || f.Busiest100ms > f.BusiestSecond || f.BusiestSecond > f.Sent || f.Wait.P50 > f.Wait.P99 || f.Wait.P99 > f.Wait.Max {
		t.Errorf("%s: figures contradict each other: %+v", f.Strategy, *f)
	}
	if c := &w.Clients; c.Jobs > 0 && f.Done+f.Lost > float64(c.Jobs) {
		t.Errorf("%s: got %v jobs done and %v lost of %d", f.Strategy, f.Done, f.Lost, c.Jobs)
	}
}

func TestFiguresAddUp(t *testing.T) {
	w := mustParse(t, "mixed.yml", mixed)
	for seed := range uint64(5) {
		r := mustSimulate(t, w, Options{Seed: seed, Runs: 1})
		for i := range r.Strategies {
			mustAddUp(t, w, &r.Strategies[i])
		}
		if f := r.of(t, "naive"); f.Limited == 0 || f.Errors == 0 || f.OK == 0 {
			t.Errorf("naive: got %v ok, %v limited, %v errors, want some of each", f.OK, f.Limited, f.Errors)
		}
		if f := r.of(t, "egressd"); f.Refused == 0 {
			t.Error("egressd: nobody was refused, but the queue is short")
		}
	}
}

// Whatever clients do behind egressd, in every stretch of time no more is sent
// than burst + rate·time; and the origin never serves more than it allows.
func TestBudgetHolds(t *testing.T) {
	rnd := rand.New(rand.NewPCG(3, 3))
	for i := range 40 {
		rate, burst, allowed := 1+rnd.IntN(20), 1+rnd.IntN(10), 1+rnd.IntN(30)
		w := mustParse(t, "random.yml", fmt.Sprintf(`
duration: 30s
clients: {workers: %d, think: {exponential: %dms}, retry: {base: 100ms}}
strategies: [egressd, fixed+egressd, exponential-full-jitter+egressd, retry-after+egressd, fixed]
origin:
  limit: {rate: %d/s, burst: %d}
  refusal: {retry_after: 1s}
  latency: {uniform: [5ms, %dms]}
policy: 
  budgets:
    - {rate: %d/s, burst: %d}
`, 1+rnd.IntN(50), 1+rnd.IntN(500), allowed, 1+rnd.IntN(5), 10+rnd.IntN(200), rate, burst))
		r := mustSimulate(t, w, Options{Seed: uint64(i)})
		for k := range r.Strategies {
			f := &r.Strategies[k]
			mustAddUp(t, w, f)
			if most := float64(w.Origin.Limit.Burst + allowed*31); f.OK > most {
				t.Errorf("workload %d, %s: got %v served, want at most %v", i, f.Strategy, f.OK, most)
			}
			if !strings.HasSuffix(f.Strategy, "egressd") {
				continue
			}
			for span, got := range map[float64]float64{1: f.BusiestSecond, 0.1: f.Busiest100ms, 30: f.Sent} {
				// Within the stretch, its last instant left out, begin the
				// burst and one unit for each interval.
				if most := float64(burst) + float64(rate)*span; got > most {
					t.Errorf("workload %d, %s: got %v sent in %v s, want at most %v", i, f.Strategy, got, span, most)
				}
			}
		}
	}
}

// A backlog uses its budget.
func TestBudgetIsUsed(t *testing.T) {
	w := mustParse(t, "backlog.yml", `
duration: 10m
clients: {workers: 40}
strategies: [egressd]
origin: {latency: {uniform: [10ms, 200ms]}}
policy:
  budgets: [{rate: 10/s}]
`)
	f := mustSimulate(t, w, Options{}).of(t, "egressd")
	if f.Sent < 0.99*6000 || f.Sent > 6001 {
		t.Errorf("got %v sent in 10 minutes, want at least 99 %% of 6000", f.Sent)
	}
}

// Several exits have a lane each.
func TestExits(t *testing.T) {
	w := mustParse(t, "exits.yml", `
duration: 10s
clients: {workers: 12, exits: 4, think: 100ms}
strategies: [egressd, naive]
origin: {limit: {rate: 1/s}, latency: 10ms}
policy:
  budgets: [{rate: 1/s}]
`)
	r := mustSimulate(t, w, Options{})
	if f := r.of(t, "egressd"); f.Sent != 40 || f.Limited != 0 {
		t.Errorf("egressd: got %v sent, %v limited, want 10 s × 4 exits, 0", f.Sent, f.Limited)
	}
	if f := r.of(t, "naive"); !near(f.OK, 40, 4) {
		t.Errorf("naive: got %v served, want about 10 s × 4 exits", f.OK)
	}
}

// The origin's fields reach the engine: with them a penalty knows its delay.
func TestHeaders(t *testing.T) {
	for _, headers := range []string{"ietf", "x-ratelimit"} {
		w := mustParse(t, "headers.yml", `
duration: 60s
clients: {workers: 10, think: 10ms}
strategies: [egressd]
origin: {limit: {window: {limit: 10, per: 20s, kind: fixed}}, latency: 10ms, headers: `+headers+`}
policy:
  budgets: [{rate: 10/s, burst: 20}]
`)
		f := mustSimulate(t, w, Options{}).of(t, "egressd")
		// A penalty without a delay would come again after a second.
		if f.OK < 20 || f.Limited > 30 {
			t.Errorf("%s: got %v served, %v limited, want at least 20, at most 30", headers, f.OK, f.Limited)
		}
	}
}

func TestMeasureFrom(t *testing.T) {
	w := mustParse(t, "measure.yml", `
duration: 10s
measure_from: 5s
clients: {workers: 2, think: 1s}
strategies: [naive]
origin: {limit: {rate: 1/s}, latency: 1ms}
`)
	f := mustSimulate(t, w, Options{}).of(t, "naive")
	if f.Sent != 10 || f.Lost != 5 || f.Done != 5 {
		t.Errorf("got %v sent, %v done, %v lost, want 10, 5, 5 in the latter half", f.Sent, f.Done, f.Lost)
	}
	if f.Series.OK[0] != 1 {
		t.Errorf("got %v in the first second of the series, want 1: it has everything", f.Series.OK[0])
	}
}

func TestJobs(t *testing.T) {
	w := mustParse(t, "jobs.yml", `
duration: 100s
clients: {workers: 3, jobs: 10, retry: {attempts: 2, base: 10ms}}
strategies: [naive, fixed]
origin: {outages: [{from: 0s, to: 50ms, answer: error}], latency: 20ms}
`)
	r := mustSimulate(t, w, Options{})
	// Three fail twice, at 0 and at 30 ms; the others come later.
	if f := r.of(t, "fixed"); f.Done+f.Lost != 10 || f.Errors < 6 || f.Lost < 3 {
		t.Errorf("fixed: got %v done, %v lost, %v errors, want 10 in all, the first three lost by two errors each", f.Done, f.Lost, f.Errors)
	}
	if f := r.of(t, "naive"); f.Sent != 10 {
		t.Errorf("naive: got %v sent, want one for each of 10 jobs", f.Sent)
	}
}

func TestSimulateErrors(t *testing.T) {
	w := mustParse(t, "bare.yml", "duration: 1s\nstrategies: [naive]\nclients: {host: a.example}\n")
	guarded := []Strategy{{Label: "egressd", Behaviour: Naive, Egressd: true}}
	if _, err := Simulate(t.Context(), w, Options{Strategies: guarded}); !errors.Is(err, errNoPolicy) {
		t.Errorf("without a policy: got error %v, want %v", err, errNoPolicy)
	}
	p := mustParse(t, "p.yml", "duration: 1s\nstrategies: [egressd]\npolicy:\n  budgets: [{rate: 1/s, match: {hosts: [b.example]}}]\n").Policy
	_, err := Simulate(t.Context(), w, Options{Strategies: guarded, Policy: p})
	if err == nil || !strings.Contains(err.Error(), "no budget of the policy counts GET https://a.example/; name a host") {
		t.Errorf("got error %v, want one that names the host", err)
	}
	if _, err := Simulate(t.Context(), w, Options{Strategies: guarded, Policy: p, Host: "b.example"}); err != nil {
		t.Errorf("with another host: got error %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Simulate(ctx, w, Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of its context: got error %v, want %v", err, context.Canceled)
	}
}

func TestTitle(t *testing.T) {
	for want, w := range map[string]Workload{
		"1 worker for 10s": {Duration: 10 * time.Second, Clients: Clients{Workers: 1, Processes: 1, Exits: 1}},
		"50 workers in 10 processes through 200 exits for 1h": {Duration: time.Hour, Clients: Clients{Workers: 50, Processes: 10, Exits: 200}},
		"5 workers in 1 process for 5m":                       {Duration: 5 * time.Minute, Clients: Clients{Workers: 5, Processes: 1, Exits: 1}},
	} {
		if got := w.Title(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// An hour of ten thousand workers has a hundred million events; this is a
// hundredth of it.
func BenchmarkSimulate(b *testing.B) {
	for _, strategy := range []string{"naive", "egressd"} {
		b.Run(strategy, func(b *testing.B) {
			w := mustParse(b, "bench.yml", `
duration: 36s
clients: {workers: 10000, exits: 10, think: {exponential: 1s}}
strategies: [`+strategy+`]
origin: {limit: {rate: 100/s, burst: 100}, latency: {uniform: [10ms, 90ms]}}
policy:
  budgets: [{rate: 100/s, queue: {max: 2000}}]
`)
			sent := 0.0
			for b.Loop() {
				r, err := Simulate(b.Context(), w, Options{})
				if err != nil {
					b.Fatal(err)
				}
				sent = r.Strategies[0].Sent
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/sent, "ns/request")
		})
	}
}
