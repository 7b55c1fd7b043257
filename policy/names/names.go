// SPDX-License-Identifier: Apache-2.0

// Package names keeps which host names an IP address has, as DNS answers told
// them, and when each of them ends. It reads no clock and does no I/O.
//
// A name of an address is one that somebody asked for and was told the address:
// clients show it in Host fields and ClientHellos, and budgets are about it. Where
// a CNAME led on the way is none, since no client shows that.
//
// What a Table says of an address is all or nothing: if more names were asked for
// than it keeps, it says none.
package names

import (
	"container/heap"
	"net/netip"
	"slices"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

// How long an answer is believed, whatever it says. Clients keep addresses for
// longer than they should: curl, Chrome and Firefox for at least a minute, Java
// for half of one. A name that is believed for too long does harm only if the
// address changes hands and nobody on the host asks for its new name; one that is
// forgotten too soon sends connections through the proxy that need not.
const (
	MinTTL = 2 * time.Minute
	MaxTTL = time.Hour
)

// MaxNames is how many names an address has at most.
const MaxNames = 8

// Defaults of Config.
const (
	DefaultAddresses = 65536
	DefaultText      = 16 << 20
)

// Config bounds a Table.
type Config struct {
	// Addresses is the number of addresses; 0 means DefaultAddresses.
	Addresses int
	// Text is the length in bytes of all names together; 0 means DefaultText.
	Text int
	// Changed, if set, is told of each address whose Names are others than
	// before. It owns the slice, and must not use the Table.
	Changed func(addr netip.Addr, names []string)
}

// Table is the names of addresses. Not safe for concurrent use.
type Table struct {
	cfg     Config
	entries map[netip.Addr]*entry
	due     queue
	text    int // bytes of all names
	counts  Counts
}

// Counts are of a Table.
type Counts struct {
	Addresses int    // that it knows now
	Text      int    // bytes of their names
	Crowded   int    // addresses with more names than are kept
	Evicted   uint64 // addresses that were forgotten before their time, for others
	Overflown uint64 // names that an address had beyond MaxNames
}

// entry is an address.
type entry struct {
	addr  netip.Addr
	names []name
	// more is until when names that found no room live: till then those that
	// are kept are not all.
	more  ledger.Time
	due   ledger.Time // when the next of all this ends
	place int         // in the queue
}

type name struct {
	text string
	ends ledger.Time
}

// New makes an empty table.
func New(cfg Config) *Table {
	if cfg.Addresses == 0 {
		cfg.Addresses = DefaultAddresses
	}
	if cfg.Text == 0 {
		cfg.Text = DefaultText
	}
	if cfg.Changed == nil {
		cfg.Changed = func(netip.Addr, []string) {}
	}
	return &Table{cfg: cfg, entries: make(map[netip.Addr]*entry)}
}

// Learn notes that somebody who asked for a name was told addr, for ttl.
func (t *Table) Learn(now ledger.Time, addr netip.Addr, asked string, ttl time.Duration) {
	ends := now.Add(min(max(ttl, MinTTL), MaxTTL))
	addr = addr.Unmap()
	e := t.entries[addr]
	if e == nil {
		e = &entry{addr: addr, place: -1}
		t.entries[addr] = e
	}
	before := e.state()
	if lost := t.put(e, asked, ends); lost > now {
		t.crowd(e, max(e.more, lost))
		t.counts.Overflown++
	}
	t.end(e, now)
	t.place(e)
	t.tell(e, before)
	for len(t.entries) > t.cfg.Addresses || t.text > t.cfg.Text && len(t.entries) > 1 {
		t.evict(e)
	}
}

// put adds a name, or lets it live longer. If there is no room, the one that
// ends first goes, and put says when it does, or did; else 0.
func (t *Table) put(e *entry, text string, ends ledger.Time) (lost ledger.Time) {
	first := 0
	for i := range e.names {
		n := &e.names[i]
		if n.text == text {
			n.ends = max(n.ends, ends)
			return 0
		}
		if n.ends < e.names[first].ends {
			first = i
		}
	}
	switch {
	case len(e.names) < MaxNames:
	case ends < e.names[first].ends:
		return ends
	default:
		lost = e.names[first].ends
		t.text -= len(e.names[first].text)
		e.names = slices.Delete(e.names, first, first+1)
	}
	e.names = append(e.names, name{text, ends})
	t.text += len(text)
	return lost
}

// Expire forgets what has ended.
func (t *Table) Expire(now ledger.Time) {
	for len(t.due) > 0 && t.due[0].due <= now {
		e := t.due[0]
		before := e.state()
		t.end(e, now)
		if len(e.names) == 0 {
			t.remove(e)
		} else {
			t.place(e)
		}
		t.tell(e, before)
	}
}

// end takes off an address what has ended.
func (t *Table) end(e *entry, now ledger.Time) {
	e.names = slices.DeleteFunc(e.names, func(n name) bool {
		if n.ends > now {
			return false
		}
		t.text -= len(n.text)
		return true
	})
	if e.more <= now {
		t.crowd(e, 0)
	}
}

// crowd says until when e has more names than are kept; 0: it has not.
func (t *Table) crowd(e *entry, until ledger.Time) {
	if e.more > 0 {
		t.counts.Crowded--
	}
	if until > 0 {
		t.counts.Crowded++
	}
	e.more = until
}

// place puts an address where it belongs in the queue.
func (t *Table) place(e *entry) {
	e.due = ^ledger.Time(0)
	if e.more > 0 {
		e.due = e.more
	}
	for _, n := range e.names {
		e.due = min(e.due, n.ends)
	}
	if e.place < 0 {
		heap.Push(&t.due, e)
	} else {
		heap.Fix(&t.due, e.place)
	}
}

// evict forgets the address of which something ends first, but not keep, which
// is new.
func (t *Table) evict(keep *entry) {
	e := t.due[0]
	if e == keep {
		// The root's children are the next ones.
		e = t.due[1]
		if len(t.due) > 2 && t.due[2].due < e.due {
			e = t.due[2]
		}
	}
	before := e.state()
	for _, n := range e.names {
		t.text -= len(n.text)
	}
	e.names = nil
	t.crowd(e, 0)
	t.remove(e)
	t.counts.Evicted++
	t.tell(e, before)
}

func (t *Table) remove(e *entry) {
	heap.Remove(&t.due, e.place)
	delete(t.entries, e.addr)
}

// known is the state of an address as far as Names shows it.
type known struct {
	n     int // 0 where there are more than are kept
	texts [MaxNames]string
}

func (e *entry) state() (k known) {
	if e.more > 0 {
		return known{}
	}
	for i, n := range e.names {
		k.texts[i] = n.text
	}
	k.n = len(e.names)
	return k
}

// tell says it if the names of an address are others than before. Names keep
// their order for as long as they live.
func (t *Table) tell(e *entry, before known) {
	if now := e.state(); now != before {
		t.cfg.Changed(e.addr, slices.Clone(now.texts[:now.n]))
	}
}

// Names are the names of addr, in no order; none if more were asked for than are
// kept.
func (t *Table) Names(addr netip.Addr, now ledger.Time) (all []string) {
	e := t.entries[addr.Unmap()]
	if e == nil || e.more > now {
		return nil
	}
	for _, n := range e.names {
		if n.ends > now {
			all = append(all, n.text)
		}
	}
	return all
}

// Range calls f for each address that has Names, with them, in no order. f must
// not use the Table.
func (t *Table) Range(now ledger.Time, f func(addr netip.Addr, names []string)) {
	for addr := range t.entries {
		if all := t.Names(addr, now); len(all) > 0 {
			f(addr, all)
		}
	}
}

// Counts counts.
func (t *Table) Counts() Counts {
	c := t.counts
	c.Addresses, c.Text = len(t.entries), t.text
	return c
}

// queue is the addresses, that of which something ends first at the top.
type queue []*entry

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].due < q[j].due }

func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	e := x.(*entry)
	e.place = len(*q)
	*q = append(*q, e)
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := len(*q) - 1
	e := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return e
}
