// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"testing"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

func mustBuiltin(t testing.TB, name string) *Workload {
	t.Helper()
	text, ok := BuiltinText(name)
	if !ok {
		t.Fatalf("no built-in workload %s", name)
	}
	return mustParse(t, name, string(text))
}

func mustParse(t testing.TB, name, text string) *Workload {
	t.Helper()
	w, err := Parse(name, []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func mustSimulate(t testing.TB, w *Workload, o Options) *Result {
	t.Helper()
	r, err := Simulate(t.Context(), w, o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// of finds the figures of a strategy.
func (r *Result) of(t testing.TB, label string) *Figures {
	t.Helper()
	for i := range r.Strategies {
		if r.Strategies[i].Strategy == label {
			return &r.Strategies[i]
		}
	}
	t.Fatalf("no strategy %q in the result", label)
	return nil
}

func near(got, want, tolerance float64) bool { return math.Abs(got-want) <= tolerance }

// Four workers "at 1/s" against 1/s: forty requests, thirty of them for
// nothing; behind egressd ten, and none.
func TestMultiplication(t *testing.T) {
	w := mustBuiltin(t, "articles/multiplication")
	for seed := range uint64(10) {
		r := mustSimulate(t, w, Options{Seed: seed})
		if f := r.of(t, "naive"); f.Sent != 40 || f.OK != 10 || f.Limited != 30 || f.BusiestSecond != 4 {
			t.Errorf("naive: got %v sent, %v ok, %v limited, %v in a second, want 40, 10, 30, 4", f.Sent, f.OK, f.Limited, f.BusiestSecond)
		}
		if f := r.of(t, "egressd"); f.Sent != 10 || f.OK != 10 || f.Limited != 0 || f.BusiestSecond != 1 || f.Lost != 0 {
			t.Errorf("egressd: got %v sent, %v ok, %v limited, %v in a second, %v lost, want 10, 10, 0, 1, 0", f.Sent, f.OK, f.Limited, f.BusiestSecond, f.Lost)
		}
	}
}

// The rate of limiters in each process is their number times what was meant.
func TestMultiplicationByProcesses(t *testing.T) {
	w := mustBuiltin(t, "articles/multiplication")
	for _, tt := range []struct{ workers, processes, perSecond int }{
		{1, 1, 1}, {2, 2, 2}, {4, 4, 4}, {8, 8, 8},
		{8, 2, 2}, // workers of one process share its limiter
	} {
		w.Clients.Workers, w.Clients.Processes = tt.workers, tt.processes
		r := mustSimulate(t, w, Options{})
		if got := r.of(t, "naive").Sent; got != float64(10*tt.perSecond) {
			t.Errorf("%d workers in %d processes: got %v sent in 10 s, want %d", tt.workers, tt.processes, got, 10*tt.perSecond)
		}
		if got := r.of(t, "egressd").Sent; got != 10 {
			t.Errorf("%d workers in %d processes behind egressd: got %v sent in 10 s, want 10", tt.workers, tt.processes, got)
		}
	}
}

// An outage of ten seconds costs four workers 40 requests with a fixed wait of
// a second, about 16 with exponential waits and jitter, 8 if they mind a
// Retry-After of five. Whatever they do behind egressd, one goes, and one more
// when the first Retry-After is over.
func TestOutage(t *testing.T) {
	w := mustBuiltin(t, "articles/outage")
	r := mustSimulate(t, w, Options{Seed: 1, Runs: 500})
	for _, tt := range []struct {
		strategy        string
		want, tolerance float64
	}{
		{"fixed", 40, 0},
		{"exponential-added-jitter", 16, 0.5},
		{"exponential-full-jitter", 19, 1}, // full jitter halves the waits: one more each
		{"retry-after", 8, 0},
	} {
		f := r.of(t, tt.strategy)
		if !near(f.Errors, tt.want, tt.tolerance) {
			t.Errorf("%s: got %v requests in the outage, want %v ± %v", tt.strategy, f.Errors, tt.want, tt.tolerance)
		}
		behind := r.of(t, tt.strategy+Suffix)
		if behind.Errors != 2 {
			t.Errorf("%s: got %v requests in the outage, want 2", tt.strategy+Suffix, behind.Errors)
		}
		for _, f := range []*Figures{f, behind} {
			want := 4.0
			if f.Strategy == "exponential-full-jitter" {
				want = 3.5 // some still wait, of up to 30 s, when the workload ends
			}
			if f.OK < want || f.Lost != 0 || f.Done != f.OK {
				t.Errorf("%s: got %v served, %v jobs lost, want %v served of 4", f.Strategy, f.OK, f.Lost, want)
			}
		}
		if behind.Wait.Max > 13000 {
			t.Errorf("%s: got a wait of %v ms, want none of more than 3 s after the outage", behind.Strategy, behind.Wait.Max)
		}
	}
}

// Naive clients that go on through an outage are all there when it is over.
func TestOutageEndsInAPeak(t *testing.T) {
	w := mustBuiltin(t, "articles/outage")
	r := mustSimulate(t, w, Options{Seed: 1})
	if f := r.of(t, "fixed"); f.Series.OK[10] != 4 {
		t.Errorf("fixed: got %v served in the first second after the outage, want all 4", f.Series.OK[10])
	}
	if f := r.of(t, "fixed"+Suffix); f.Busiest100ms != 1 {
		t.Errorf("behind egressd: got %v in 100 ms, want 1", f.Busiest100ms)
	}
}

// Fifty that mind the same Retry-After come back together, and each round of
// them is asked for twice as long.
func TestStampede(t *testing.T) {
	w := mustBuiltin(t, "articles/stampede")
	r := mustSimulate(t, w, Options{Seed: 1})
	f := r.of(t, "retry-after")
	if f.Busiest100ms != 50 {
		t.Errorf("got %v sent in 100 ms, want all 50 workers", f.Busiest100ms)
	}
	// Round n is at about 2^n-1 s; five of each are served.
	for n, at := range []int{0, 1, 3, 7, 15, 31, 63, 123} { // the last Retry-After is 60
		got := 0.0
		for _, s := range []int{at, at + 1} {
			got += f.Series.OK[s] + f.Series.Limited[s]
		}
		if n == 0 || n == 1 { // they share second 1
			got = f.Series.OK[at] + f.Series.Limited[at]
		}
		if want := float64(50 - 5*n); got != want {
			t.Errorf("round %d, at %d s: got %v sent, want the %v that were refused so far", n, at, got, want)
		}
	}
	if f.Lost != 10 {
		t.Errorf("got %v jobs given up, want 10: eight rounds of five serve 40 of 50", f.Lost)
	}
	b := r.of(t, "retry-after"+Suffix)
	if b.OK != 50 || b.Lost != 0 || b.Limited > 15 || b.Busiest100ms > 10 {
		t.Errorf("behind egressd: got %v served, %v lost, %v limited, %v in 100 ms; want 50, 0, at most 15, at most the burst of 10",
			b.OK, b.Lost, b.Limited, b.Busiest100ms)
	}
}

// Behind egressd nothing is sent while the lane is closed, one probe goes when
// it opens, the others when that has its answer, slower than before.
func TestProbeThenRamp(t *testing.T) {
	for _, strategy := range []string{"egressd", "retry-after" + Suffix} {
		t.Run(strategy, func(t *testing.T) {
			w := mustBuiltin(t, "articles/stampede")
			s, err := ParseStrategy(strategy, w.Clients.Retry)
			if err != nil {
				t.Fatal(err)
			}
			r, err := newRun(w, &s, &Options{Policy: w.Policy, Host: w.Clients.Host}, 1)
			if err != nil {
				t.Fatal(err)
			}
			var opened, last ledger.Time // what the lane's reopening is, and the send before
			probes, underWay := 0, false
			for sent := 0; r.step(); {
				lanes := r.guard.engine.Lanes()
				if len(lanes) == 0 || r.over {
					continue
				}
				c := lanes[0].Cell
				until := ledger.Time(c.OpenUntil.Load())
				if underWay = underWay && c.Probing(); r.tally.sent == sent {
					continue
				}
				if r.tally.sent != sent+1 {
					t.Fatalf("at +%v: %d sent at once", r.now.Sub(epoch), r.tally.sent-sent)
				}
				sent = r.tally.sent
				switch since := r.now.Sub(epoch); {
				case r.now < until:
					t.Fatalf("at +%v: sent, but closed until +%v", since, until.Sub(epoch))
				case underWay:
					t.Fatalf("at +%v: sent while the probe is under way", since)
				case until > opened:
					opened, underWay = until, true
					probes++
					if !c.Probing() {
						t.Fatalf("at +%v: the first after a cooldown is no probe", since)
					}
				case opened > 0 && last > opened && r.now.Sub(last) < 100*time.Millisecond:
					t.Fatalf("at +%v: sent %v after the last, faster than the budget", since, r.now.Sub(last))
				}
				last = r.now
			}
			if probes < 2 {
				t.Errorf("got %d probes, want one after each of the cooldowns", probes)
			}
		})
	}
}

// Full jitter does not keep fifty workers apart: the expected busiest 100 ms,
// and the share of runs without two requests in any.
func TestJitter(t *testing.T) {
	w := mustBuiltin(t, "articles/jitter")
	for _, tt := range []struct {
		strategy      string
		runs          int // enough for the standard error to be half of what is allowed
		busiest       float64
		alone, within float64
	}{
		{"within 1 s", 1000, 8.8, 0, 0.01},
		{"within 4 s", 1000, 4.3, 0, 0.01},
		{"within 16 s", 1000, 2.5, 0, 0.01},
		{"within 60 s", 12_000, 1.9, 0.12, 0.05 * 0.12},
	} {
		var strategies []Strategy
		for _, s := range w.Strategies {
			if s.Label == tt.strategy {
				strategies = append(strategies, s)
			}
		}
		f := mustSimulate(t, w, Options{Seed: 1, Runs: tt.runs, Strategies: strategies}).of(t, tt.strategy)
		if f.Sent != 50 {
			t.Errorf("%s: got %v sent after the outage, want 50", tt.strategy, f.Sent)
		}
		if !near(f.Busiest100ms, tt.busiest, 0.05*tt.busiest) {
			t.Errorf("%s: got %.2f in the busiest 100 ms, want %v ± 5 %%", tt.strategy, f.Busiest100ms, tt.busiest)
		}
		if !near(f.Alone, tt.alone, tt.within) {
			t.Errorf("%s: got a share of %.4f without two in 100 ms, want %v ± %v", tt.strategy, f.Alone, tt.alone, tt.within)
		}
	}
	few := mustSimulate(t, w, Options{Seed: 1, Runs: 200, Strategies: w.Strategies[4:]})
	if f := few.of(t, "within 1 s + egressd"); f.Busiest100ms != 1 || f.Alone != 1 || f.Sent != 50 {
		t.Errorf("behind egressd: got %v sent, %v in the busiest 100 ms, want 50, 1", f.Sent, f.Busiest100ms)
	}
}
