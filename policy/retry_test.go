// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"sync"
	"testing"
)

func TestRetryBudgetReturn(t *testing.T) {
	var r RetryBudget
	draw := func() (n int) {
		for r.Withdraw() {
			n++
		}
		return n
	}
	draw()
	r.Return()
	if got := draw(); got != 1 {
		t.Errorf("after one was returned %d repetitions, want 1", got)
	}
	for range 20 {
		r.Return()
	}
	if got := draw(); got != 10 {
		t.Errorf("%d repetitions, want at most 10", got)
	}
}

func TestRetryBudgetShared(t *testing.T) {
	var r RetryBudget
	var wg sync.WaitGroup
	var mu sync.Mutex
	const clients, each = 8, 1000
	got := 0
	for range clients {
		wg.Go(func() {
			n := 0
			for range each {
				r.Deposit()
				if r.Withdraw() {
					n++
				}
			}
			mu.Lock()
			defer mu.Unlock()
			got += n
		})
	}
	wg.Wait()
	for r.Withdraw() {
		got++
	}
	// What is beyond the most that it holds is lost, but each client withdraws
	// after each deposit: it never comes near.
	if want := clients*each/5 + 3; got != want {
		t.Errorf("%d were withdrawn, want %d", got, want)
	}
}

func TestTallyRetried(t *testing.T) {
	tally := newTally("store", DirectExit)
	tally.CountRetried()
	tally.CountRetried()
	if got := tally.Retried(); got != 2 {
		t.Errorf("retried = %d, want 2", got)
	}
}
