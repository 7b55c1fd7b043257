// SPDX-License-Identifier: Apache-2.0

package ledger

// settleShare is the share of an interval by which Settle puts the next unit
// off at most: it costs less than 1 % of the rate.
const settleShare = 128

// Settle says that the unit of g was answered at the given instant, and keeps
// the next one far enough from it.
//
// An origin counts from when a request arrives, and no two take equally long
// on their way. Units that are granted exactly an interval apart arrive closer
// together whenever the first took longer than the second, and an origin
// that, like the budget, allows no burst refuses the second. All that is known
// of the arrival is that it lies between the grant and the answer. So the next
// unit is put off to an interval after the answer, though by no more than a
// small share of the interval: the answer may be slow for other reasons.
//
// A cell with a burst is left alone, as its origin has room for what arrives
// early. So is one from which another unit was taken in the meantime.
func (c *Cell) Settle(g Grant, answered Time) {
	share := g.Span / settleShare
	if share == 0 || c.Tolerance.Load() >= share {
		return
	}
	granted := g.TAT - g.Span // without a burst, no unit is granted ahead of its time
	if uint64(answered) <= granted {
		return
	}
	c.TAT.CompareAndSwap(g.TAT, g.TAT+min(uint64(answered)-granted, share))
}
