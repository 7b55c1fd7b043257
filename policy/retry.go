// SPDX-License-Identifier: Apache-2.0

package policy

import "sync/atomic"

// A lane's own repetitions may be a fifth of its first attempts, and a few
// more, so that an origin in trouble is not held under by what wants to help.
const (
	retryShare   = 200  // thousandths of a repetition that each first attempt allows
	retryReserve = 3000 // what a lane begins with
	retryMost    = 10000
)

// RetryBudget is the account of what may be repeated. The zero RetryBudget
// holds three repetitions. Safe for concurrent use.
type RetryBudget struct {
	account atomic.Int64 // thousandths, beyond retryReserve
}

// Deposit counts a first attempt.
func (r *RetryBudget) Deposit() { r.add(retryShare) }

func (r *RetryBudget) add(thousandths int64) {
	for {
		v := r.account.Load()
		n := min(v+thousandths, retryMost-retryReserve)
		if n <= v || r.account.CompareAndSwap(v, n) {
			return
		}
	}
}

// Withdraw takes one repetition and reports whether there was one.
func (r *RetryBudget) Withdraw() bool {
	for {
		v := r.account.Load()
		if v+retryReserve < 1000 {
			return false
		}
		if r.account.CompareAndSwap(v, v-1000) {
			return true
		}
	}
}

// Return gives a withdrawn repetition back that was not made.
func (r *RetryBudget) Return() { r.add(1000) }
