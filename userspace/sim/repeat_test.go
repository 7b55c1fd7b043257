// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"strings"
	"testing"
)

const absorbed = `
duration: 60s
clients: {workers: 20, jobs: 200, think: 100ms, method: GET}
strategies: [egressd]
origin:
  limit: {rate: 8/s, burst: 4}
  refusal: {retry_after: 1s}
  latency: {uniform: [20ms, 60ms]}
policy:
  budgets:
    - {rate: 10/s, burst: 8, retry: {absorb: true, attempts: 3}}
`

// What egressd repeats itself, naive clients do not lose; and it repeats no
// more than a fifth of first attempts, and a few.
func TestRepeat(t *testing.T) {
	play := func(from, to string) *Figures {
		w := mustParse(t, "absorbed.yml", strings.Replace(absorbed, from, to, 1))
		f := mustSimulate(t, w, Options{Seed: 1}).of(t, "egressd")
		mustAddUp(t, w, f)
		if f.Done+f.Lost != 200 {
			t.Errorf("with %s: got %v jobs done, %v lost, want 200 in all", to, f.Done, f.Lost)
		}
		if most := 0.2*200 + 3; f.Repeated > most {
			t.Errorf("with %s: got %v repeated, want at most %v", to, f.Repeated, most)
		}
		return f
	}
	with := play("absorb: true", "absorb: true")
	if with.Repeated == 0 || with.Limited == 0 || with.Lost > with.Limited/2 {
		t.Errorf("got %v limited, %v repeated, %v lost, want most of those limited repeated and not lost", with.Limited, with.Repeated, with.Lost)
	}
	without := play("retry: {absorb: true, attempts: 3}", "on_full: refuse")
	if without.Repeated != 0 || without.Lost != without.Limited+without.Refused || without.Lost <= with.Lost {
		t.Errorf("without it: got %v repeated, %v limited, %v refused, %v lost (with it %v), want none repeated and all of those lost",
			without.Repeated, without.Limited, without.Refused, without.Lost, with.Lost)
	}
	if post := play("method: GET", "method: POST"); post.Repeated != 0 {
		t.Errorf("POST: got %v repeated, want none", post.Repeated)
	}
}
