// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"testing"
	"time"
)

func TestParseDate(t *testing.T) {
	utc := func(year int, month time.Month, day, hour, minute, second, nano int) time.Time {
		return time.Date(year, month, day, hour, minute, second, nano, time.UTC)
	}
	noon := utc(2026, time.November, 29, 12, 0, 20, 0)
	for _, c := range []struct {
		text string
		want time.Time // zero: not a date
	}{
		// IMF-fixdate
		{"Sun, 29 Nov 2026 12:00:20 GMT", noon},
		{"SUN, 29 NOV 2026 12:00:20 gmt", noon},
		{"Mon, 29 Nov 2026 12:00:20 GMT", noon}, // the day's name is not checked
		{"Sunday, 29 Nov 2026 12:00:20 GMT", noon},
		{"Sun,29 Nov 2026 12:00:20 GMT", noon},
		{"Sun, 29 Nov 2026 12:00:20 UTC", noon},
		{"Sun, 29 Nov 2026 12:00:20", noon},
		{"Sun, 29 Nov 2026 13:00:20 +0100", noon},
		{"Sun, 6 Nov 1994 08:49:37 GMT", utc(1994, time.November, 6, 8, 49, 37, 0)},
		{"Sun, 06 Nov 1994 08:49:37 GMT", utc(1994, time.November, 6, 8, 49, 37, 0)},
		{"Tue, 30 Jun 2026 23:59:60 GMT", utc(2026, time.July, 1, 0, 0, 0, 0)}, // leap second
		{"Thu, 29 Feb 2024 00:00:00 GMT", utc(2024, time.February, 29, 0, 0, 0, 0)},
		{"Sun, 29 Feb 2026 00:00:00 GMT", time.Time{}},
		{"Sun, 31 Nov 2026 12:00:20 GMT", time.Time{}},
		{"Sun, 00 Nov 2026 12:00:20 GMT", time.Time{}},
		{"Sun, 29 Nov 2026 24:00:20 GMT", time.Time{}},
		{"Sun, 29 Nov 2026 12:60:20 GMT", time.Time{}},
		{"Sun, 29 Nov 2026 12:00:61 GMT", time.Time{}},
		{"Sun, 29 Nov 2026 12:00:20 PST", time.Time{}},
		{"Sun, 29 Nov 2026 12:00:20 GMT+1", time.Time{}},
		{"Sun, 29 Nov 2026 12:00 GMT", time.Time{}},
		{"Sun, 29 Now 2026 12:00:20 GMT", time.Time{}},
		{"Sön, 29 Nov 2026 12:00:20 GMT", time.Time{}},
		{"xyz, 29 Nov 2026 12:00:20 GMT", time.Time{}},
		{", 29 Nov 2026 12:00:20 GMT", time.Time{}},
		{"29 Nov 2026 12:00:20 GMT", time.Time{}},
		{"Sun, 29 Nov 20260 12:00:20 GMT", time.Time{}},
		{"Sun, 29 Nov 202 12:00:20 GMT", time.Time{}},
		{"Sun, 29-Nov 2026 12:00:20 GMT", time.Time{}},
		{"Sun", time.Time{}},

		// RFC 850, and the cookie form with a year of four digits
		{"Sunday, 29-Nov-26 12:00:20 GMT", noon},
		{"Sun, 29-Nov-2026 12:00:20 GMT", noon},
		{"Sun, 29 Nov 26 12:00:20 GMT", noon},
		{"Saturday, 28-Nov-76 12:00:00 GMT", utc(2076, time.November, 28, 12, 0, 0, 0)},
		{"Sunday, 29-Nov-76 12:00:00 GMT", utc(2076, time.November, 29, 12, 0, 0, 0)}, // 50 years to the second
		{"Monday, 29-Nov-76 12:00:01 GMT", utc(1976, time.November, 29, 12, 0, 1, 0)},
		{"Sunday, 06-Nov-94 08:49:37 GMT", utc(1994, time.November, 6, 8, 49, 37, 0)},
		{"Saturday, 29-Nov-70 12:00:00 GMT", utc(2070, time.November, 29, 12, 0, 0, 0)},
		{"Tuesday, 29-Feb-00 12:00:00 GMT", utc(2000, time.February, 29, 12, 0, 0, 0)},
		{"Monday, 29-Feb-27 12:00:00 GMT", time.Time{}},

		// asctime
		{"Sun Nov 29 12:00:20 2026", noon},
		{"sun nov 29 12:00:20 2026", noon},
		{"Sun Nov  6 08:49:37 1994", utc(1994, time.November, 6, 8, 49, 37, 0)},
		{"Sun Nov 6 08:49:37 1994", utc(1994, time.November, 6, 8, 49, 37, 0)},
		{"Sun Nov 29 12:00:20 2026 GMT", time.Time{}},
		{"Sun Nov 29 12:00:20 26", time.Time{}},

		// RFC 3339 and its relatives
		{"2026-11-29T12:00:20Z", noon},
		{"2026-11-29t12:00:20z", noon},
		{"2026-11-29 12:00:20", noon},
		{"2026-11-29T12:00:20", noon},
		{"2026-11-29T12:00:20 UTC", noon},
		{"2026-11-29T13:30:20+01:30", noon},
		{"2026-11-29T13:30:20+0130", noon},
		{"2026-11-29T07:00:20-05", noon},
		{"2026-11-30T00:00:20+12:00", noon},
		{"2026-11-29T12:00Z", utc(2026, time.November, 29, 12, 0, 0, 0)},
		{"2026-11-29T14:00+02:00", utc(2026, time.November, 29, 12, 0, 0, 0)},
		{"2026-11-29T12:00:20.5Z", utc(2026, time.November, 29, 12, 0, 20, 500_000_000)},
		{"2026-11-29T12:00:20.0000001Z", utc(2026, time.November, 29, 12, 0, 20, 1000)},
		{"2026-11-29T12:00:20.9999999Z", utc(2026, time.November, 29, 12, 0, 21, 0)},
		{"2026-11-29T12:00:20.Z", time.Time{}},
		{"2026-11-29", time.Time{}},
		{"2026-11-29T12", time.Time{}},
		{"2026-11-29T12:00:20+24:00", time.Time{}},
		{"2026-11-29T12:00:20+01:60", time.Time{}},
		{"2026-11-29T12:00:20+1", time.Time{}},
		{"2026-11-29T12:00:20Z ", time.Time{}},
		{"2026-11-29T12:00:20Zulu", time.Time{}},
		{"2026-13-29T12:00:20Z", time.Time{}},
		{"2026-1-29T12:00:20Z", time.Time{}},
		{"20261129T120020Z", time.Time{}},
		{"", time.Time{}},
	} {
		got, ok := parseDate([]byte(c.text), t0)
		if ok != !c.want.IsZero() || !got.Equal(c.want) {
			t.Errorf("%q: got %v (%v), want %v", c.text, got, ok, c.want)
		}
	}
}

// A year of two digits near the turn of a century.
func TestFullYear(t *testing.T) {
	for _, c := range []struct {
		at, text string
		want     int
	}{
		{"2099-06-01T00:00:00Z", "Monday, 01-Jan-01 00:00:00 GMT", 2101},
		{"2099-06-01T00:00:00Z", "Monday, 01-Jan-98 00:00:00 GMT", 2098},
		{"2099-06-01T00:00:00Z", "Monday, 01-Jan-49 00:00:00 GMT", 2149},
		{"2099-06-01T00:00:00Z", "Monday, 01-Jan-50 00:00:00 GMT", 2050},
		{"2001-06-01T00:00:00Z", "Monday, 01-Jan-99 00:00:00 GMT", 1999},
		{"2001-06-01T00:00:00Z", "Monday, 01-Jan-51 00:00:00 GMT", 2051},
		{"2001-06-01T00:00:00Z", "Monday, 01-Jan-52 00:00:00 GMT", 1952},
	} {
		at, err := time.Parse(time.RFC3339, c.at)
		if err != nil {
			t.Fatal(err)
		}
		if got, ok := parseDate([]byte(c.text), at); !ok || got.Year() != c.want {
			t.Errorf("%s at %s: got %v (%v), want year %d", c.text, c.at, got, ok, c.want)
		}
	}
}
