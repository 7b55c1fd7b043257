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

// rateLimit takes one line of RateLimit.
func (h *Head) rateLimit(value []byte) {
	if dictionary(value) {
		h.rateLimitDictionary(value)
		return
	}
	h.numItems += members(value, h.items[h.numItems:])
}

// rateLimitPolicy takes one line of RateLimit-Policy.
func (h *Head) rateLimitPolicy(value []byte) {
	h.numPolicies += members(value, h.policies[h.numPolicies:])
}

// dictionary reports whether the first member is key=value.
func dictionary(b []byte) bool {
	s := scanner{rest: b}
	s.key()
	return !s.failed && s.skip('=')
}

// rateLimitDictionary takes limit=100, remaining=40, reset=30.
func (h *Head) rateLimitDictionary(value []byte) {
	s := scanner{rest: value}
	var c counter
	for {
		key := s.key()
		s.expect('=')
		n := s.integer()
		switch {
		case is(key, "limit"):
			c.setLimit(n)
		case is(key, "remaining"):
			c.setRemaining(n)
		case is(key, "reset"):
			c.setAfter(duration(n, time.Second))
		}
		if s.failed {
			return
		}
		if len(s.rest) == 0 {
			break
		}
		s.comma()
	}
	h.counters[draft] = c
}

// members reads a list of names, each with parameters, into out and returns
// how many there were; none if the list is malformed.
func members(value []byte, out []item) int {
	s := scanner{rest: value}
	n := 0
	for {
		it := s.item()
		if s.failed {
			return 0
		}
		if n < len(out) {
			out[n] = it
			n++
		}
		if len(s.rest) == 0 {
			return n
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

// listed fills q from the item that leaves the least, and reports whether
// there is one.
func (h *Head) listed(q *Quota) bool {
	var best *item
	var rule item
	for i := range h.items[:h.numItems] {
		it := &h.items[i]
		p := h.policy(it.name)
		if p.other || best != nil && !less(it, best) {
			continue
		}
		best, rule = it, p
	}
	if best == nil {
		return false
	}
	q.Limit, q.HasLimit = rule.limit, rule.hasLimit
	q.Remaining, q.HasRemaining = best.remaining, best.hasRemaining
	q.Reset, q.HasReset = best.reset, best.hasReset
	q.Window = rule.window
	return true
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
