// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"math"
	"slices"
	"sync"

	"github.com/egressd/egressd/policy/ledger"
)

// Turns are a weighted round robin by earliest virtual deadline: a member's
// turns are 1/weight apart in virtual time, and the member whose turn is next
// goes. In as many turns as all weights together each member has as many as
// its weight, evenly spread.
//
// Turns of a closed member go by; when it opens it goes on with the next one,
// and does not make up for those it lost. The others share them as they share
// their own.

// lap is the virtual time in which a member of weight 1 has one turn. Dividing
// it by any weight loses less than a thousand millionth.
const lap = 1 << 40

// maxRotas bounds the destinations of a pool whose turns are counted apart.
// What goes beyond shares those of another destination.
const maxRotas = 256

// rota is whose turn it is at one destination, or at several that share it.
type rota struct {
	mu   sync.Mutex
	next []uint64      // virtual time of each member's next turn
	told []ledger.Time // until when each was closed as it was last reported
}

// rotaOf finds or makes the turns of a destination. They begin with the turn
// that the last new one did not have, so that many destinations of few
// requests each are as even as one of many.
func (k *Picker) rotaOf(host string) *rota {
	place := &k.hosts[hashText(host)%maxRotas]
	if t := place.Load(); t != nil {
		return t
	}
	s := &k.start
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := place.Load(); t != nil {
		return t
	}
	t := &rota{next: slices.Clone(s.next), told: make([]ledger.Time, len(s.next))}
	s.pass(s.head(), k.strides)
	place.Store(t)
	return t
}

// next is the member whose turn it is or, if that is closed, the next one
// that is not; the one that opens first if all are.
func (k *Picker) next(t *rota, now ledger.Time, healthy func(*Member) Health) Choice {
	members := k.Pool.Members
	t.mu.Lock()
	defer t.mu.Unlock()
	from := t.head()
	why := healthy(&members[from])
	if !why.Closed {
		t.pass(from, k.strides)
		return Choice{Member: &members[from]}
	}
	open, first, soonest := -1, from, why.Until
	for i := range members {
		if i == from {
			continue
		}
		switch h := healthy(&members[i]); {
		case !h.Closed:
			if open < 0 || t.next[i] < t.next[open] {
				open = i
			}
		case open < 0 && (h.Until < soonest || h.Until == soonest && t.next[i] < t.next[first]):
			first, soonest = i, h.Until
		}
	}
	if open < 0 {
		t.pass(from, k.strides)
		return Choice{Member: &members[first]}
	}
	// Whoever was before it is closed: their turns go by.
	at := t.next[open]
	for i, next := range t.next {
		if next < at || next == at && i < open {
			t.next[i] += ((at-next)/k.strides[i] + 1) * k.strides[i]
		}
	}
	t.pass(open, k.strides)
	c := Choice{Member: &members[open], From: &members[from], Why: why}
	if now >= t.told[from] && why.Until > now {
		t.told[from], c.First = why.Until, true
	}
	return c
}

// head is the member whose turn is next; of several the first.
func (t *rota) head() int {
	at := 0
	for i, next := range t.next {
		if next < t.next[at] {
			at = i
		}
	}
	return at
}

// pass ends the turn of a member. It begins virtual time anew before that
// overflows.
func (t *rota) pass(i int, strides []uint64) {
	if t.next[i] > math.MaxUint64/4 {
		least := t.next[t.head()]
		for j := range t.next {
			t.next[j] -= least
		}
	}
	t.next[i] += strides[i]
}
