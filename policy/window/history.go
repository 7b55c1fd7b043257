// SPDX-License-Identifier: Apache-2.0

package window

import (
	"sort"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

// history is what was charged to a window in its last Per: a ring of entries,
// oldest first. Charges that lie less than a grain apart share an entry and
// count from the last of them, and where the ring is full the two oldest
// entries become one that counts from the later. So no charge is ever taken
// for older than it is, and the charges of one instant always belong to the
// first entry that is not older.
type history struct {
	ring  []entry
	head  int           // index of the oldest entry
	n     int           // entries
	base  uint64        // sum before the oldest entry
	sum   uint64        // sum of the newest entry
	grain time.Duration // 1 ns: only charges of the same instant share an entry
	until ledger.Time   // end of the newest entry's grain
	gone  ledger.Time   // charges before this instant are forgotten
}

// entry is one or several charges.
type entry struct {
	at  ledger.Time // of the last of them
	sum uint64      // all units ever charged, these included; may wrap around
}

func (h *history) entry(i int) *entry {
	i += h.head
	if i >= len(h.ring) {
		i -= len(h.ring)
	}
	return &h.ring[i]
}

// before is the sum of all entries older than entry i.
func (h *history) before(i int) uint64 {
	if i == 0 {
		return h.base
	}
	return h.entry(i - 1).sum
}

// total is the number of units remembered.
func (h *history) total() uint64 { return h.sum - h.base }

// add charges units at an instant that is no earlier than any before. The
// charge shares no entry with charges before floor.
func (h *history) add(at ledger.Time, units uint64, floor ledger.Time) {
	h.sum += units
	if h.n > 0 {
		if last := h.entry(h.n - 1); at < h.until && last.at >= floor {
			*last = entry{at, h.sum}
			return
		}
	}
	if h.n == len(h.ring) {
		h.drop() // without moving base: the units pass to the next entry
	}
	h.n++
	*h.entry(h.n - 1) = entry{at, h.sum}
	h.until = at.Add(h.grain)
}

// forget drops what was charged before (now-per, now].
func (h *history) forget(now ledger.Time, per time.Duration) {
	for h.n > 0 {
		oldest := h.entry(0)
		if oldest.at.Add(per) > now {
			return
		}
		h.base, h.gone = oldest.sum, oldest.at+1
		h.drop()
	}
}

func (h *history) drop() {
	h.n--
	if h.head++; h.head == len(h.ring) {
		h.head = 0
	}
}

// first is the index of the first entry that is not older than t, n if all are.
func (h *history) first(t ledger.Time) int {
	return sort.Search(h.n, func(i int) bool { return h.entry(i).at >= t })
}

// since is the number of units charged at t or later.
func (h *history) since(t ledger.Time) uint64 {
	if h.n == 0 || h.entry(h.n-1).at < t {
		return 0
	}
	if h.entry(0).at >= t {
		return h.total()
	}
	return h.sum - h.before(h.first(t))
}

// spent is the instant of the entry with which so many units, counted from the
// oldest, are used up. There are that many.
func (h *history) spent(units uint64) ledger.Time {
	return h.entry(sort.Search(h.n-1, func(i int) bool { return h.entry(i).sum-h.base >= units })).at
}

// undo takes back units that were charged at an instant. Reports whether they
// were still there.
func (h *history) undo(at ledger.Time, units uint64) bool {
	i := h.first(at)
	if i == h.n || at < h.gone || h.entry(i).sum-h.before(i) < units {
		return false
	}
	h.sum -= units
	for j := i; j < h.n; j++ {
		h.entry(j).sum -= units
	}
	if h.entry(i).sum != h.before(i) {
		return true
	}
	for j := i + 1; j < h.n; j++ {
		*h.entry(j - 1) = *h.entry(j)
	}
	if h.n--; i == h.n {
		h.until = 0 // the entry before has its own grain
	}
	return true
}
