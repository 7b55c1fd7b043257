// SPDX-License-Identifier: Apache-2.0

package ledger

import "sync/atomic"

// Shares of an interval, as divisors, by which Settle puts units off: on
// average at most the first, which costs less than 1 % of the rate, and at
// once at most the second.
const (
	settleShare = 128
	settleMost  = 4
)

// Slack is what Settle may put units of one cell off, as an account: each
// answered unit pays a small share of the interval into it. The zero Slack is
// full. Safe for concurrent use.
type Slack struct{ spent atomic.Uint64 } // ns

// Settle says that the unit of g was answered at the given instant, and keeps
// the next one an interval away from that, as far as slack has room for it.
//
// An origin counts from when a request arrives, and no two take equally long
// on their way. Units that are granted exactly an interval apart arrive closer
// together whenever the first took longer than the second, and an origin
// that, like the budget, allows no burst refuses the second. All that is known
// of the arrival is that it lies between the grant and the answer; so the
// next unit goes an interval after the answer. With an origin that is quick
// that costs nearly nothing and hiccups of the way are made up for in full;
// with a slow one slack keeps the cost below 1 % of the rate.
//
// A cell with a burst is left alone, as its origin has room for what arrives
// early. So is one from which another unit was taken in the meantime.
func (c *Cell) Settle(g Grant, answered Time, slack *Slack) {
	most := g.Span / settleMost
	if most == 0 || c.Tolerance.Load() >= most {
		return
	}
	granted := g.TAT - g.Span // without a burst, no unit is granted ahead of its time
	if uint64(answered) <= granted {
		return
	}
	spent := slack.spent.Load()
	spent -= min(spent, g.Span/settleShare)
	off := min(uint64(answered)-granted, most-min(spent, most))
	// Only one answer finds the cell as its unit left it.
	if c.TAT.CompareAndSwap(g.TAT, g.TAT+off) {
		slack.spent.Store(spent + off)
	}
}
