// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"fmt"
	"strings"
	"time"
)

// FieldRule is what one field of a dialect says.
type FieldRule struct {
	// Header is the name of the field, in any case. One that ends in * stands
	// for every name that begins so.
	Header string
	Says   Says
	// Unit is how a time is written, for fields that tell one.
	Unit Unit
	// Group names the counter that the field speaks of, for origins that keep
	// several; empty is "requests". Groups whose name begins with that word
	// count requests, every other counts something else: tokens, bytes.
	Group string
	// Window is the length of the counter's window where the field's name or
	// the vendor's manual tells it; 0 if nobody does.
	Window time.Duration
	// ToFull says that a reset is when the bucket is full again: the next
	// request may go earlier.
	ToFull bool

	counter string // which counter a built-in dialect means, by a name of its own
}

// Says is what a field tells.
type Says uint8

// What fields tell. Numbers are decimal; of limit and remaining the parts of a
// list may have parameters, as in "100, 100;w=60".
const (
	SaysLimit         Says = iota + 1 // units in a window
	SaysRemaining                     // units left
	SaysUsed                          // units taken
	SaysUsedLimit                     // both: "32/40", or "api-usage=25/5000; per-app=17/250(app=x)"
	SaysRemainingList                 // units left of several: "Get3Min;159,Get30Min;1259"
	SaysList                          // "total=100; remaining=99; resets=41"
	SaysStatus                        // a word; "rejected" is nothing left
	SaysReset                         // when the window ends
	SaysResetAfter                    // the same; a number is a time from now, whatever its size
	SaysWindow                        // the window's length
	SaysRate                          // units per second
	SaysFill                          // units that a bucket gains per interval
	SaysInterval                      // that interval
	SaysRetryAfter                    // the time to wait
	SaysShouldRetry                   // true or false: whether to send it again
	SaysRateLimit                     // as RateLimit of the IETF draft
	SaysPolicy                        // as RateLimit-Policy of the IETF draft
	SaysMark                          // nothing but which dialect this is

	// For fields that mean the same in every dialect.
	saysAge
	saysDate
	saysMitigated
	saysExitError
	saysScope
)

// saysWords are the words of a policy file.
var saysWords = [...]string{
	SaysLimit:         "limit",
	SaysRemaining:     "remaining",
	SaysUsed:          "used",
	SaysUsedLimit:     "used/limit",
	SaysRemainingList: "remaining-list",
	SaysList:          "list",
	SaysStatus:        "status",
	SaysReset:         "reset",
	SaysResetAfter:    "reset-after",
	SaysWindow:        "window",
	SaysRate:          "rate",
	SaysFill:          "fill",
	SaysInterval:      "interval",
	SaysRetryAfter:    "retry-after",
	SaysShouldRetry:   "should-retry",
	SaysRateLimit:     "ratelimit",
	SaysPolicy:        "ratelimit-policy",
	SaysMark:          "mark",
}

// String is the word of a policy file.
func (s Says) String() string {
	if s > 0 && int(s) < len(saysWords) {
		return saysWords[s]
	}
	return "unknown"
}

// ParseSays reads the word of a policy file.
func ParseSays(word string) (Says, error) {
	for i, w := range saysWords {
		if i > 0 && w == word {
			return Says(i), nil
		}
	}
	return 0, fmt.Errorf("%q is nothing that a field says; write one of %s", clip(word), list(saysWords[1:]))
}

// tellsTime reports whether a unit makes a difference.
func (s Says) tellsTime() bool {
	switch s {
	case SaysReset, SaysResetAfter, SaysList, SaysWindow, SaysInterval, SaysRetryAfter:
		return true
	}
	return false
}

// Unit is how a time is written.
type Unit uint8

// Units.
const (
	// UnitAuto tells the forms apart by themselves, and numbers by their
	// size: a reset is seconds from now, seconds since 1970 or milliseconds
	// since 1970, and a length is seconds.
	UnitAuto     Unit = iota
	UnitSeconds       // a number of seconds from now
	UnitMilli         // a number of milliseconds from now
	UnitEpoch         // seconds since 1970
	UnitEpochMs       // milliseconds since 1970
	UnitDate          // a date of RFC 9110 or RFC 3339
	UnitDuration      // numbers with units from now: 1m30s
)

var unitWords = [...]string{
	UnitAuto:     "auto",
	UnitSeconds:  "seconds",
	UnitMilli:    "ms",
	UnitEpoch:    "epoch",
	UnitEpochMs:  "epoch-ms",
	UnitDate:     "date",
	UnitDuration: "duration",
}

// String is the word of a policy file.
func (u Unit) String() string {
	if int(u) < len(unitWords) {
		return unitWords[u]
	}
	return "unknown"
}

// ParseUnit reads the word of a policy file.
func ParseUnit(word string) (Unit, error) {
	for i, w := range unitWords {
		if w == word {
			return Unit(i), nil
		}
	}
	return 0, fmt.Errorf("%q is no unit of time; write one of %s", clip(word), list(unitWords[:]))
}

// instant reports whether the unit is a point in time rather than a length.
func (u Unit) instant() bool { return u == UnitEpoch || u == UnitEpochMs || u == UnitDate }

// list writes words as a sentence does.
func list(words []string) string {
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

// clip shortens a word for a message.
func clip(word string) string {
	const most = 40
	if len(word) > most {
		return word[:most] + "…"
	}
	return word
}
