// SPDX-License-Identifier: Apache-2.0

package gate

// spot is a ticket's place in the queue of one lane.
type spot struct {
	ticket *ticket
	queue  *queue
	flow   *flow
	i      int  // ticket.spots[i] is this
	inLine bool // it is in flow.line
	keeps  bool // it is in queue.keepers
	links  [4]struct{ prev, next *spot }
}

// The lists that a spot can be in, each by links of its own.
const (
	memberLinks = iota // flow.members
	lineLinks          // flow.line
	keeperLinks        // queue.keepers
	dueLinks           // queue.due, in order of deadlines
)

// list is a list of spots: in order of arrival, or of deadlines.
type list struct {
	head, tail *spot
	links      int
	n          int
}

func (l *list) before(a, b *spot) bool {
	if l.links == dueLinks {
		return a.ticket.deadline < b.ticket.deadline
	}
	return a.ticket.seq < b.ticket.seq
}

// insert puts s in its place. Nearly always that is the end; that of someone
// who comes back is near the head.
func (l *list) insert(s *spot) {
	after := l.tail
	if after != nil && l.before(s, after) {
		for front := l.head; ; front = front.links[l.links].next {
			if l.before(s, front) {
				after = front.links[l.links].prev
				break
			}
			if after = after.links[l.links].prev; !l.before(s, after) {
				break
			}
		}
	}
	before := l.head
	if after != nil {
		before = after.links[l.links].next
		after.links[l.links].next = s
	} else {
		l.head = s
	}
	if before != nil {
		before.links[l.links].prev = s
	} else {
		l.tail = s
	}
	s.links[l.links].prev, s.links[l.links].next = after, before
	l.n++
}

func (l *list) remove(s *spot) {
	at := &s.links[l.links]
	if at.prev != nil {
		at.prev.links[l.links].next = at.next
	} else {
		l.head = at.next
	}
	if at.next != nil {
		at.next.links[l.links].prev = at.prev
	} else {
		l.tail = at.prev
	}
	at.prev, at.next = nil, nil
	l.n--
}
