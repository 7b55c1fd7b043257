// SPDX-License-Identifier: Apache-2.0

package exitid

import (
	"strings"
	"time"
)

// ID is what a user name tells of the exit.
type ID struct {
	// Session names the exit among those of its gateway. It has 1 to
	// MaxSession bytes out of [A-Za-z0-9._-]; every other byte is written as
	// %XX. What does not fit is cut and ends in "~" and a hash of the whole,
	// the same in every process. So different sessions have different names,
	// but for collisions of that hash.
	Session string
	// Lifetime is how long the session keeps its address, counted from its
	// first use. 0 if the user name does not tell.
	Lifetime time.Duration
}

const (
	// MaxSession is the length of the longest ID.Session in bytes.
	MaxSession = 64
	// MaxLifetime is the longest ID.Lifetime; longer ones are cut to it.
	MaxLifetime = 30 * 24 * time.Hour
	// MaxUser is the length in bytes of the longest user name that is looked
	// at. RFC 1929 allows 255; HTTP sets no limit.
	MaxUser = 1024

	hashDigits = 16
)

// session writes raw as ID.Session. It allocates only if raw is not one as it
// is. raw has at least a byte.
func session(raw string) string {
	plain := 0
	for plain < len(raw) && isPlain(raw[plain]) {
		plain++
	}
	if plain == len(raw) && plain <= MaxSession {
		return raw
	}
	var b strings.Builder
	b.Grow(MaxSession)
	for i := range len(raw) {
		size := 1
		if !isPlain(raw[i]) {
			size = 3
		}
		if b.Len()+size > MaxSession {
			return hashed(raw)
		}
		appendPlain(&b, raw[i])
	}
	return b.String()
}

// hashed is the session of a raw one that is too long.
func hashed(raw string) string {
	var b strings.Builder
	b.Grow(MaxSession)
	for i := range len(raw) {
		size := 1
		if !isPlain(raw[i]) {
			size = 3
		}
		if b.Len()+size > MaxSession-1-hashDigits {
			break
		}
		appendPlain(&b, raw[i])
	}
	b.WriteByte('~')
	h := fnv1a(raw)
	for shift := 60; shift >= 0; shift -= 4 {
		b.WriteByte(hexDigits[h>>shift&15])
	}
	return b.String()
}

const hexDigits = "0123456789ABCDEF"

func appendPlain(b *strings.Builder, c byte) {
	if isPlain(c) {
		b.WriteByte(c)
		return
	}
	b.WriteByte('%')
	b.WriteByte(hexDigits[c>>4])
	b.WriteByte(hexDigits[c&15])
}

// isPlain reports whether c stands for itself in an ID.Session. "%" and "~" do
// not, so that no session looks like an escape or a hash.
func isPlain(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '.' || c == '_' || c == '-'
}

// fnv1a is the 64-bit FNV-1a hash: exits keep their names over restarts, which
// hash/maphash does not offer, and nobody gains by two of one name but to
// share a budget with himself.
func fnv1a(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// lifetime reads a decimal number of unit. 0 if s is none.
func lifetime(s string, unit time.Duration) time.Duration {
	var d time.Duration
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0
		}
		d = min(10*d+time.Duration(s[i]-'0')*unit, MaxLifetime) // at most 309 days before the cut
	}
	return d
}

// lifetimeUnit reads a decimal number followed by its unit: 10m.
func lifetimeUnit(s string) time.Duration {
	if s == "" {
		return 0
	}
	number := s[:len(s)-1]
	switch s[len(s)-1] {
	case 's':
		return lifetime(number, time.Second)
	case 'm':
		return lifetime(number, time.Minute)
	case 'h':
		return lifetime(number, time.Hour)
	case 'd':
		return lifetime(number, 24*time.Hour)
	}
	return 0
}
