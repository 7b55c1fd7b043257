// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"sync"
	"time"
)

// keep is how long the store keeps a lane that is idle. The memory forgets it in
// half of that, so that a lane that expired is not taken for one that was lost.
const keep = time.Hour

// known is what the scripts are told that the host saw last of a lane; the zero
// value is nothing. Spans are microseconds from the moment of sending.
type known struct {
	born, seq, clock  int64
	ahead, open, slow int64
	epoch             uint64
	suspect           bool
}

// sight is a lane as an answer showed it.
type sight struct {
	reply
	at      time.Time // receipt, by the clock that does not jump
	trouble uint64    // of the memory's trouble, what was known when the call was made
}

// memory is what was last seen of each lane. Safe for concurrent use.
type memory struct {
	mu      sync.Mutex
	lanes   map[string]sight
	trouble uint64 // grows with each connection and failure: the server may be another
	swept   time.Time
}

// recall is what to tell of a lane with a call at now, and the trouble until then.
func (m *memory) recall(lane string, now time.Time) (known, uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.lanes[lane]
	passed := now.Sub(s.at)
	if !ok || passed > keep/2 {
		return known{}, m.trouble
	}
	us := passed.Microseconds()
	return known{
		born: s.born, seq: s.seq, clock: s.clock + us, ahead: max(0, s.ahead-us), open: max(0, s.open-us),
		slow: s.slow, epoch: uint64(s.epoch), suspect: s.trouble != m.trouble,
	}, m.trouble
}

// see takes in an answer that came at now to a call of which recall returned
// trouble.
func (m *memory) see(lane string, r *reply, trouble uint64, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.Sub(m.swept) > time.Minute {
		m.swept = now
		for name, s := range m.lanes {
			if now.Sub(s.at) > keep/2 {
				delete(m.lanes, name)
			}
		}
	}
	// Of two calls at a time the answers may come in either order.
	if old, ok := m.lanes[lane]; ok && old.born == r.born && old.seq > r.seq {
		return
	}
	m.lanes[lane] = sight{*r, now, trouble}
}

// trust reports whether the server is surely the one that it was when recall
// returned trouble.
func (m *memory) trust(trouble uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.trouble == trouble
}

// doubt says that the server may be another from now on.
func (m *memory) doubt() {
	m.mu.Lock()
	m.trouble++
	m.mu.Unlock()
}
