// SPDX-License-Identifier: Apache-2.0

package gate

import "math"

// How the turns of a lane are shared.
//
// Who waits is sorted into flows, one for each client as the budget's fair_by
// tells them apart. Inside a flow it is first come, first served; between
// flows it is deficit round robin (Shreedhar and Varghese, 1996) on the two
// lists of FQ-CoDel (RFC 8290, section 4.2): a flow that comes anew is on the
// fresh list and goes once before all others; from there, also when it is
// empty by then, it goes to the old list, and only from that it disappears.
// Being idle for an instant thus gains nothing.
//
// The quantum is what the lane takes for a request when it goes, so that a
// flow has one request a round. What a request turns out to have cost beyond
// that is charged to its flow as long as the flow is there.
//
// Without fairness all are one flow.

const (
	// maxFlows bounds the flows of a lane. Clients beyond it share.
	maxFlows = 64
	// handSize is the number of flows, picked by hash, of which such a client
	// joins the shortest: shuffle sharding, as in the priority and fairness of
	// Kubernetes' API server. Another client that floods one of them leaves it
	// the rest of its hand.
	handSize = 8
	// maxDebt is in requests: more than that a flow is never held back by what
	// its answers told.
	maxDebt = 1 << 16
)

// flow is one client of one lane, or several that share.
type flow struct {
	key        uint64
	slot       int   // place in flows.slots
	members    list  // all who need the lane, in order of arrival
	line       list  // those of them who stand in its line
	deficit    int64 // units that it may still take in this round
	ring       *ring // that it is in; nil: none, it has nobody in line
	prev, next *flow
	cursor     *spot // of roll
	sits       int64 // rounds that it sits out, in roll
}

// ring is a list of flows. Its head is next.
type ring struct{ head, tail *flow }

func (r *ring) push(f *flow) {
	f.ring, f.prev, f.next = r, r.tail, nil
	if r.tail != nil {
		r.tail.next = f
	} else {
		r.head = f
	}
	r.tail = f
}

func (f *flow) unlink() {
	r := f.ring
	if f.prev != nil {
		f.prev.next = f.next
	} else {
		r.head = f.next
	}
	if f.next != nil {
		f.next.prev = f.prev
	} else {
		r.tail = f.prev
	}
	f.ring, f.prev, f.next = nil, nil, nil
}

// flows are the flows of a lane, guarded by the gate's lock.
type flows struct {
	slots      []*flow // at most maxFlows; nil where one is free
	used       int     // of slots
	lined      int     // spots in line, of all flows
	fresh, old ring
	pool       *pool
}

// pool keeps flows to be used again.
type pool struct{ free *flow }

// find is the flow of a client; nil if it has none.
func (q *flows) find(key uint64) *flow {
	for _, f := range q.slots {
		if f != nil && f.key == key {
			return f
		}
	}
	return nil
}

// place is the flow that a request of a client joins. nil stands for one of its
// own that is yet to be made.
func (q *flows) place(key uint64) *flow {
	f := q.find(key)
	if f == nil && q.used == maxFlows {
		f = q.shortest(key)
	}
	return f
}

// shortest is the shortest flow of a client's hand, where all slots are used.
// Each card of the hand is one of those not dealt yet.
func (q *flows) shortest(key uint64) *flow {
	var rest [handSize]uint64
	var best *flow
	h := mix(key)
	for i := range rest {
		rest[i] = h % uint64(maxFlows-i)
		h /= uint64(maxFlows - i)
		card := rest[i]
		for k := i - 1; k >= 0; k-- {
			if card >= rest[k] {
				card++
			}
		}
		if f := q.slots[card]; best == nil || f.members.n < best.members.n {
			best = f
		}
	}
	return best
}

// mix is the finalizer of splitmix64: every bit of the key moves about half of
// the bits of the hash.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// enroll makes s a member of the flow of a client.
func (q *flows) enroll(s *spot, key uint64) {
	f := q.place(key)
	if f == nil {
		f = q.open(key)
	}
	s.flow = f
	f.members.insert(s)
}

func (q *flows) open(key uint64) *flow {
	f := q.pool.free
	if f == nil {
		f = &flow{members: list{links: memberLinks}, line: list{links: lineLinks}}
	} else {
		q.pool.free = f.next
		f.next = nil
	}
	f.key, f.deficit = key, 0
	for f.slot = 0; f.slot < len(q.slots) && q.slots[f.slot] != nil; f.slot++ {
	}
	if f.slot == len(q.slots) {
		q.slots = append(q.slots, nil)
	}
	q.slots[f.slot] = f
	q.used++
	return f
}

// strike takes s out of its flow.
func (q *flows) strike(s *spot) {
	f := s.flow
	f.members.remove(s)
	s.flow = nil
	q.drop(f)
}

// drop gives a flow back that is no more.
func (q *flows) drop(f *flow) {
	if f.members.n > 0 || f.ring != nil {
		return
	}
	q.slots[f.slot] = nil
	q.used--
	f.next, q.pool.free = q.pool.free, f
}

// stand puts s in line.
func (q *flows) stand(s *spot, quantum int64) {
	f := s.flow
	f.line.insert(s)
	q.lined++
	if f.ring == nil {
		f.deficit = quantum + min(f.deficit, 0)
		q.fresh.push(f)
	}
}

// step takes s out of line. Its flow keeps its place: see first.
func (q *flows) step(s *spot) {
	s.flow.line.remove(s)
	q.lined--
}

// first is the first in line: by the round, and by arrival in its flow. nil if
// nobody stands in line. To ask again changes nothing.
func (q *flows) first(quantum int64) *spot {
	if q.lined == 0 {
		return nil
	}
	for looks := 0; ; looks++ {
		f := q.fresh.head
		if f == nil {
			f = q.old.head
		}
		switch {
		case f.deficit <= 0:
			f.deficit += quantum
			f.unlink()
			q.old.push(f)
			if looks == 2*maxFlows { // all who stand in line are in debt
				q.skip(quantum)
				looks = 0
			}
		case f.line.head != nil:
			return f.line.head
		case f.ring == &q.fresh:
			f.unlink()
			q.old.push(f)
		default:
			f.unlink()
			q.drop(f)
		}
	}
}

// skip goes at once through the rounds after which the first of those who
// stand in line is out of debt by the next.
func (q *flows) skip(quantum int64) {
	least := int64(math.MaxInt64)
	for f := q.old.head; f != nil; f = f.next {
		if f.line.n > 0 {
			least = min(least, max(-f.deficit, 0)/quantum)
		}
	}
	for f := q.old.head; f != nil; f = f.next {
		f.deficit += least * quantum
	}
}

// charge takes units from what a flow may take in this round.
func (f *flow) charge(units, quantum int64) {
	f.deficit = min(max(f.deficit-units, -maxDebt*quantum), quantum)
}

// forget ends all rounds, as nobody stands in line: there is nobody to be fair
// to.
func (q *flows) forget() {
	for _, r := range [...]*ring{&q.fresh, &q.old} {
		for f := r.head; f != nil; f = r.head {
			f.unlink()
			f.deficit = 0
			q.drop(f)
		}
	}
}

// ahead is how many of those who wait go before the next request that joins f
// (nil: a flow yet to be made), if nobody else comes: those of its own flow,
// and of each other flow one for each round that it takes.
func (q *flows) ahead(f *flow) (n int) {
	if f == nil {
		for at := q.fresh.head; at != nil; at = at.next {
			if at.deficit > 0 { // the others have had theirs
				n += min(at.members.n, 1)
			}
		}
		return n // it goes before the old ones
	}
	return q.rank(f, f.members.n)
}

// rank is how many go before the one with own before it in its flow.
func (q *flows) rank(f *flow, own int) int {
	n := own
	if q.used > 1 {
		for _, at := range q.slots {
			if at != nil && at != f {
				n += min(at.members.n, own+1)
			}
		}
	}
	return n
}

// before is how many go before s.
func (q *flows) before(s *spot) int {
	own := 0
	for at := s.links[memberLinks].prev; at != nil; at = at.links[memberLinks].prev {
		own++
	}
	return q.rank(s.flow, own)
}

// victim is who makes room for another request of f (nil: a flow yet to be
// made) where a lane's queue is full: the newest of its longest flow, if that
// is longer than f will be. Otherwise it is nobody. So nobody can keep others
// out by filling the queue, and nobody gains by pushing others out of a queue
// that is shared evenly.
func (q *flows) victim(f *flow) *spot {
	own := 0
	if f != nil {
		own = f.members.n
	}
	var longest *flow
	for _, at := range q.slots {
		if at != nil && at.members.n > own+1 && (longest == nil || at.members.n > longest.members.n) {
			longest = at
		}
	}
	if longest == nil {
		return nil
	}
	return longest.members.tail
}

// roll calls visit for all who wait, in the order in which they will go if
// nobody else comes and nobody's lanes differ. visit may take the one that it
// is called for out, no other.
func (q *flows) roll(quantum int64, visit func(*spot)) {
	var rounds [maxFlows]*flow
	n := 0
	add := func(f *flow) {
		f.cursor, f.sits = f.members.head, 0
		if f.ring != nil && f.deficit <= 0 {
			f.sits = 1 - f.deficit/quantum
		}
		rounds[n] = f
		n++
	}
	for f := q.fresh.head; f != nil; f = f.next {
		add(f)
	}
	for f := q.old.head; f != nil; f = f.next {
		add(f)
	}
	for _, f := range q.slots {
		if f != nil && f.ring == nil {
			add(f)
		}
	}
	for skip := int64(0); n > 0; {
		left, least := rounds[:0], int64(math.MaxInt64)
		for _, f := range rounds[:n] {
			s := f.cursor
			if s == nil {
				continue
			}
			left = append(left, f)
			if f.sits -= skip; f.sits > 0 {
				least = min(least, f.sits)
				f.sits--
				continue
			}
			least = 0
			f.cursor = s.links[memberLinks].next
			visit(s)
		}
		n = len(left)
		skip = max(least-1, 0) // rounds in which all sit
	}
}
