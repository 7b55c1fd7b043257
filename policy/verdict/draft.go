// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"bytes"
	"time"
)

// The fields RateLimit and RateLimit-Policy of the IETF draft "RateLimit
// header fields for HTTP": a dictionary in its version 07, lists of RFC 9651
// from version 08 on. A field that breaks the syntax is ignored whole.

// maxItems bounds how many policies and items of an answer are looked at.
const maxItems = 4

// item is a member of RateLimit or of RateLimit-Policy. Policies are
// remembered by a hash of their name, since the name is not kept.
type item struct {
	name      uint64
	limit     int64         // q
	window    time.Duration // w
	remaining int64         // r
	reset     time.Duration // t

	hasLimit, hasRemaining, hasReset bool
	// other says that what is counted is not requests (qu).
	other bool
}

// rateLimit takes one line of RateLimit and reports whether it could be read.
func (h *Head) rateLimit(value []byte, counter int32, r *rule) bool {
	if dictionary(value) {
		return h.rateLimitDictionary(value, counter, r)
	}
	var out shortage
	n, ok := members(value, h.items[h.numItems:], &out)
	if !ok {
		return false
	}
	if h.numItems == 0 || counter < h.listedBy {
		h.listedBy = counter
	}
	h.numItems += n
	h.listedOut = h.listedOut || out.is
	h.listedReset = max(h.listedReset, out.reset)
	return true
}

// rateLimitPolicy takes one line of RateLimit-Policy and reports whether it
// could be read.
func (h *Head) rateLimitPolicy(value []byte) bool {
	n, ok := members(value, h.policies[h.numPolicies:], nil)
	h.numPolicies += n
	return ok
}

// dictionary reports whether the first member is key=value.
func dictionary(b []byte) bool {
	s := scanner{rest: b}
	s.key()
	return !s.failed && s.skip('=')
}

// rateLimitDictionary takes limit=100, remaining=40, reset=30.
func (h *Head) rateLimitDictionary(value []byte, id int32, r *rule) bool {
	s := scanner{rest: value}
	var told counter
	for {
		key := s.key()
		s.expect('=')
		n := s.integer()
		switch {
		case is(key, "limit"):
			told.setLimit(n)
		case is(key, "remaining"):
			told.setRemaining(n)
		case is(key, "reset"):
			told.setReset(moment{after: duration(n, time.Second)})
		}
		if s.failed {
			return false
		}
		if len(s.rest) == 0 {
			break
		}
		s.comma()
	}
	c := h.counter(id, r)
	c.merge(&told)
	return true
}

// members reads a list of names, each with parameters, into kept and returns
// how many of them that took; ok is false if the list is malformed. Where
// short is not nil, all items are looked at that leave nothing, also those
// that are not kept.
func members(value []byte, kept []item, short *shortage) (n int, ok bool) {
	s := scanner{rest: value}
	for {
		it := s.item()
		if s.failed {
			return 0, false
		}
		if n < len(kept) {
			kept[n] = it
			n++
		}
		if short != nil && it.hasRemaining && it.remaining == 0 {
			short.is, short.reset = true, max(short.reset, it.reset)
		}
		if len(s.rest) == 0 {
			return n, true
		}
		s.comma()
	}
}

// item scans one member: "default";q=100;w=60. The draft's own appendix has
// the name as a token; drafts 03 to 06 had the quota in its place.
func (s *scanner) item() (it item) {
	switch {
	case len(s.rest) > 0 && s.rest[0] == '"':
		it.name = s.quoted()
	case len(s.rest) > 0 && isDigit(s.rest[0]):
		it.limit, it.hasLimit = s.integer(), true
	default:
		it.name = hash(s.key())
	}
	for s.blanks(); s.skip(';'); s.blanks() {
		s.blanks()
		key := s.key()
		if !s.skip('=') {
			continue // a parameter that is true
		}
		switch {
		case is(key, "q"):
			it.limit, it.hasLimit = s.integer(), true
		case is(key, "w"):
			it.window = duration(s.integer(), time.Second)
		case is(key, "r"):
			it.remaining, it.hasRemaining = s.integer(), true
		case is(key, "t"):
			it.reset, it.hasReset = duration(s.integer(), time.Second), true
		case is(key, "qu"):
			it.other = s.quoted() != hash([]byte("requests"))
		default:
			s.bare()
		}
	}
	return it
}

// listed is the quota of the item that leaves the least, and its rank. Items
// that count something else than requests come last.
func (h *Head) listed() (Quota, int) {
	var best *item
	var rule item
	for i := range h.items[:h.numItems] {
		it := &h.items[i]
		p := h.policy(it.name)
		switch {
		case best == nil, rule.other && !p.other:
		case p.other && !rule.other, !less(it, best):
			continue
		}
		best, rule = it, p
	}
	if best == nil {
		return Quota{}, 0
	}
	return Quota{
		Limit: rule.limit, HasLimit: rule.hasLimit,
		Remaining: best.remaining, HasRemaining: best.hasRemaining,
		Reset: best.reset, HasReset: best.hasReset,
		Window: rule.window, Other: rule.other,
	}, rank(true, rule.other, best.hasRemaining && best.remaining == 0)
}

// less reports whether a leaves less than b.
func less(a, b *item) bool {
	if a.hasRemaining != b.hasRemaining {
		return a.hasRemaining
	}
	if a.remaining != b.remaining {
		return a.remaining < b.remaining
	}
	return a.reset > b.reset
}

// policy is the policy of a name, or one that says nothing.
func (h *Head) policy(name uint64) item {
	for _, p := range h.policies[:h.numPolicies] {
		if p.name == name {
			return p
		}
	}
	return item{}
}

// unnamedWindow is the window of the policy with that quota and no name, as
// drafts 03 to 06 wrote them: 100;w=60.
func (h *Head) unnamedWindow(limit int64) time.Duration {
	for _, p := range h.policies[:h.numPolicies] {
		if p.name == 0 && p.limit == limit {
			return p.window
		}
	}
	return 0
}

// The scanner's part for structured fields (RFC 9651).

// key scans a key or a token: a letter or *, then what may follow it. Upper
// case is let pass.
func (s *scanner) key() []byte {
	n := 0
	for n < len(s.rest) {
		c := s.rest[n]
		if !isLetter(c) && c != '*' && (n == 0 || !isDigit(c) && c != '_' && c != '-' && c != '.') {
			break
		}
		n++
	}
	if n == 0 {
		s.failed = true
	}
	return s.take(n)
}

// integer scans a number that is not negative, of at most 15 digits.
func (s *scanner) integer() int64 {
	n, v := 0, int64(0)
	for n < len(s.rest) && n <= 15 && isDigit(s.rest[n]) {
		v = 10*v + int64(s.rest[n]-'0')
		n++
	}
	if n == 0 || n > 15 {
		s.failed = true
		return 0
	}
	s.take(n)
	return v
}

// quoted scans a string and returns the hash of what it means.
func (s *scanner) quoted() uint64 {
	s.expect('"')
	sum := hash(nil)
	for i := 0; i < len(s.rest) && !s.failed; i++ {
		c := s.rest[i]
		switch {
		case c == '"':
			s.take(i + 1)
			return sum
		case c < ' ' || c > '~':
			s.failed = true
		case c == '\\':
			if i++; i == len(s.rest) || s.rest[i] != '"' && s.rest[i] != '\\' {
				s.failed = true
				return 0
			}
			c = s.rest[i]
		}
		sum = mix(sum, c)
	}
	s.failed = true
	return 0
}

// bare scans any other value: string, bytes between colons, number, token or
// boolean.
func (s *scanner) bare() {
	if len(s.rest) > 0 && s.rest[0] == '"' {
		s.quoted()
		return
	}
	n := 0
	for n < len(s.rest) && bytes.IndexByte([]byte(" \t;,\""), s.rest[n]) < 0 {
		n++
	}
	if n == 0 {
		s.failed = true
	}
	s.take(n)
}

func (s *scanner) blanks() {
	for s.skip(' ') || s.skip('\t') {
	}
}

func (s *scanner) comma() {
	s.blanks()
	s.expect(',')
	s.blanks()
}

// hash is FNV-1a of 64 bits: names of one answer need no better.
func hash(b []byte) uint64 {
	sum := uint64(14695981039346656037)
	for _, c := range b {
		sum = mix(sum, c)
	}
	return sum
}

func mix(sum uint64, c byte) uint64 { return (sum ^ uint64(c)) * 1099511628211 }
