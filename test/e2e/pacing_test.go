// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// TestPacing floods a budget and looks at every window of time. It is not
// parallel: it measures what egressd does with all that the machine has.
func TestPacing(t *testing.T) {
	const (
		clients = 16
		rate    = 100 // per second
		burst   = 5
		every   = int64(time.Second) / rate
		span    = 20 * time.Second
	)
	scope := newGroup(t)
	o := newOrigin(t)
	d := newDaemon(t, scope, fmt.Sprintf(
		"  - {name: all, match: {hosts: [localhost], ports: [%d]}, rate: %d/s, burst: %d}", o.port, rate, burst))
	log := d.follow(t)
	var all []*process
	for range clients {
		all = append(all, start(t, how{in: scope, env: []string{roleName + "=" + roleFlood}},
			here.self, fmt.Sprintf("localhost:%d", o.port), (span+2*time.Second).String()))
	}
	for _, p := range all {
		p.mustSucceed(t, 2*span)
	}
	received := o.times()
	waitFor(t, 10*time.Second, "an event for each dispatch", func() bool {
		return len(dispatches(t, log)) >= len(received)
	})
	at := dispatches(t, log)
	if len(at) != len(received) {
		t.Errorf("got %d requests at the origin, want the %d dispatched", len(received), len(at))
	}

	// Exactly, in integers: the i-th to the j-th are no more than a burst and
	// what the rate allows between them.
	for i := range at {
		for j := i; j < len(at); j++ {
			if got, want := int64(j-i+1-burst)*every, at[j]-at[i]; got > want {
				t.Fatalf("dispatches %d to %d, %v apart: got %d, want at most %v",
					i, j, time.Duration(want), j-i+1, burst+float64(want)/float64(every))
			}
		}
	}
	// The origin may see a request late: one that was dispatched before a
	// window began counts in it.
	const jitter = 250 * time.Millisecond
	slices.SortFunc(received, time.Time.Compare)
	for i := range received {
		for j := i; j < len(received); j++ {
			window := received[j].Sub(received[i]) + jitter
			if got, want := j-i+1, burst+window.Seconds()*rate; float64(got) > want {
				t.Fatalf("receipts %d to %d, %v apart: got %d, want at most %v with a tolerance of %v",
					i, j, window-jitter, got, want, jitter)
			}
		}
	}
	used := 0
	for used < len(at) && at[used] < at[0]+int64(span) {
		used++
	}
	budget := int(span.Seconds()) * rate
	t.Logf("%d of %d used in %v; without the burst %d were possible", used, budget+burst, span, budget)
	if least := budget * 99 / 100; used < least {
		t.Errorf("got %d requests in %v under backlog, want at least %d (99%% of the budget)", used, span, least)
		explain(t, at, every, burst)
	}
}

// dispatches are the instants of dispatch that a process from follow printed.
func dispatches(t testing.TB, log *process) (at []int64) {
	t.Helper()
	for _, ev := range events(t, log) {
		if ev.Kind == "dispatch" {
			at = append(at, ev.Mono)
		}
	}
	slices.Sort(at)
	return at
}

// explain lists where a budget was lost: pauses for which the burst could not
// make up.
func explain(t testing.TB, at []int64, every int64, burst int) {
	t.Helper()
	tat := at[0]
	var lost time.Duration
	pauses := 0
	for _, now := range at {
		if late := now - tat; late > 0 {
			lost += time.Duration(late)
			pauses++
			t.Logf("%v after the start: %v lost", time.Duration(now-at[0]), time.Duration(late))
		}
		tat = max(tat, now) + every
	}
	t.Logf("%d pauses were longer than a burst of %d covers; they lost %v", pauses, burst, lost)
}
