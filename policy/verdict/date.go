// SPDX-License-Identifier: Apache-2.0

package verdict

import "time"

// parseDate reads an instant in one of the forms that origins use: the three
// of RFC 9110 section 5.6.7 (IMF-fixdate, RFC 850, asctime) and RFC 3339, the
// latter also without seconds. Letters may be in any case. A date without a
// zone is UTC: all three forms of RFC 9110 are.
//
// at resolves years of two digits.
func parseDate(b []byte, at time.Time) (time.Time, bool) {
	s := scanner{rest: b}
	var d civil
	switch {
	case len(b) == 0:
		return time.Time{}, false
	case isDigit(b[0]):
		d = s.rfc3339()
	default:
		d = s.named(at)
	}
	if s.failed || len(s.rest) > 0 || !d.valid() {
		return time.Time{}, false
	}
	return d.time(), true
}

// civil is a date as written.
type civil struct {
	year, month, day     int
	hour, minute, second int
	nano                 int           // rounded up, so 1e9 is possible
	east                 time.Duration // offset from UTC
}

func (d civil) valid() bool {
	// A second may be 60 (RFC 9110 section 5.6.7); time.Date carries it over.
	return 1 <= d.month && d.month <= 12 && 1 <= d.day && d.day <= daysIn(d.year, d.month) &&
		d.hour <= 23 && d.minute <= 59 && d.second <= 60
}

func (d civil) time() time.Time {
	t := time.Date(d.year, time.Month(d.month), d.day, d.hour, d.minute, d.second, d.nano, time.UTC)
	return t.Add(-d.east)
}

func daysIn(year, month int) int {
	switch month {
	case 4, 6, 9, 11:
		return 30
	case 2:
		if year%4 == 0 && (year%100 != 0 || year%400 == 0) {
			return 29
		}
		return 28
	}
	return 31
}

// scanner takes a date apart from left to right. After a failure it takes
// nothing more, so that only the end has to be checked.
type scanner struct {
	rest   []byte
	failed bool
}

// rfc3339 scans 2026-11-29T12:00:30.5+01:00. A blank may stand for the T, and
// seconds, fraction and zone may be missing.
func (s *scanner) rfc3339() (d civil) {
	d.year = s.digits(4)
	s.expect('-')
	d.month = s.digits(2)
	s.expect('-')
	d.day = s.digits(2)
	if !s.skip('T') && !s.skip('t') {
		s.expect(' ')
	}
	d.hour = s.digits(2)
	s.expect(':')
	d.minute = s.digits(2)
	if s.skip(':') {
		d.second = s.digits(2)
		if s.skip('.') {
			d.nano = s.fraction()
		}
	}
	d.east = s.zone()
	return d
}

// named scans the forms that begin with the name of a day. Its agreement with
// the date is not checked: some origins keep the name of a template.
func (s *scanner) named(at time.Time) (d civil) {
	s.weekday()
	if !s.skip(',') { // asctime: Sun Nov  6 08:49:37 1994
		s.expect(' ')
		d.month = s.month()
		s.expect(' ')
		d.day = s.day()
		s.expect(' ')
		s.clock(&d)
		s.expect(' ')
		d.year = s.digits(4)
		return d
	}
	s.skip(' ')
	d.day = s.day()
	dash := s.skip('-')
	if !dash {
		s.expect(' ')
	}
	d.month = s.month()
	if dash {
		s.expect('-')
	} else {
		s.expect(' ')
	}
	d.year = s.digits(2)
	short := len(s.rest) == 0 || !isDigit(s.rest[0])
	if !short {
		d.year = 100*d.year + s.digits(2)
	}
	s.expect(' ')
	s.clock(&d)
	d.east = s.zone()
	if short && !s.failed {
		d.year = fullYear(d, at)
	}
	return d
}

// fullYear finds the century of a year of two digits: the latest in which the
// date is not more than 50 years after at (RFC 9110 section 5.6.7).
func fullYear(d civil, at time.Time) int {
	horizon := at.UTC().AddDate(50, 0, 0)
	d.year += horizon.Year() / 100 * 100
	if d.time().After(horizon) {
		d.year -= 100
	}
	return d.year
}

// clock scans 08:49:37.
func (s *scanner) clock(d *civil) {
	d.hour = s.digits(2)
	s.expect(':')
	d.minute = s.digits(2)
	s.expect(':')
	d.second = s.digits(2)
}

// day scans the day of a month: two digits, one, or a blank and one.
func (s *scanner) day() int {
	if s.skip(' ') || len(s.rest) > 1 && !isDigit(s.rest[1]) {
		return s.digits(1)
	}
	return s.digits(2)
}

// zone scans what is left as a zone: none, GMT, UTC, Z or a numeric offset.
func (s *scanner) zone() time.Duration {
	s.skip(' ')
	switch {
	case len(s.rest) == 0:
		return 0
	case is(s.rest, "z"), is(s.rest, "gmt"), is(s.rest, "utc"):
		s.rest = nil
		return 0
	}
	east := s.skip('+')
	if !east {
		s.expect('-')
	}
	hours := s.digits(2)
	minutes := 0
	if s.skip(':') || len(s.rest) > 0 {
		minutes = s.digits(2)
	}
	if hours > 23 || minutes > 59 {
		s.failed = true
	}
	d := time.Duration(hours)*time.Hour + time.Duration(minutes)*time.Minute
	if !east {
		return -d
	}
	return d
}

var months = [...]string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}

func (s *scanner) month() int {
	word := s.word()
	for i, m := range months {
		if is(word, m) {
			return i + 1
		}
	}
	s.failed = true
	return 0
}

var weekdays = [...]string{"sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday"}

func (s *scanner) weekday() {
	word := s.word()
	for _, day := range weekdays {
		if is(word, day) || is(word, day[:3]) {
			return
		}
	}
	s.failed = true
}

// word takes the letters at the front.
func (s *scanner) word() []byte {
	n := 0
	for n < len(s.rest) && isLetter(s.rest[n]) {
		n++
	}
	return s.take(n)
}

// digits takes exactly n digits.
func (s *scanner) digits(n int) int {
	if s.failed || len(s.rest) < n {
		s.failed = true
		return 0
	}
	v := 0
	for _, c := range s.take(n) {
		if !isDigit(c) {
			s.failed = true
			return 0
		}
		v = 10*v + int(c-'0')
	}
	return v
}

// fraction takes the digits of a fraction of a second, of which there must be
// one, and returns nanoseconds: microseconds rounded up.
func (s *scanner) fraction() int {
	n := 0
	for n < len(s.rest) && isDigit(s.rest[n]) {
		n++
	}
	if n == 0 {
		s.failed = true
	}
	d := fraction(s.take(n), time.Second)
	return int(d)
}

func (s *scanner) expect(c byte) {
	if !s.skip(c) {
		s.failed = true
	}
}

// skip takes c if it is next.
func (s *scanner) skip(c byte) bool {
	if s.failed || len(s.rest) == 0 || s.rest[0] != c {
		return false
	}
	s.rest = s.rest[1:]
	return true
}

func (s *scanner) take(n int) []byte {
	b := s.rest[:n]
	s.rest = s.rest[n:]
	return b
}
