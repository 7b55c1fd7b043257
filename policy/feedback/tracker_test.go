// SPDX-License-Identifier: Apache-2.0

package feedback

import (
	"math"
	"testing"
	"time"

	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
)

const (
	ms   = time.Millisecond
	sec  = time.Second
	none = -1
)

// told is a quota of which none is not told, be it a count or a time.
func told(limit, remaining int64, reset, window time.Duration) verdict.Quota {
	var q verdict.Quota
	if limit != none {
		q.Limit, q.HasLimit = limit, true
	}
	if remaining != none {
		q.Remaining, q.HasRemaining = remaining, true
	}
	if reset != none {
		q.Reset, q.HasReset = reset, true
	}
	if window != none {
		q.Window = window
	}
	return q
}

func toFull(limit, remaining int64, reset time.Duration) verdict.Quota {
	q := told(limit, remaining, reset, none)
	q.ToFull = true
	return q
}

// What one answer, received as soon as it was asked for, makes of a tracker
// that has heard nothing.
func TestFirstWord(t *testing.T) {
	const unknown = math.MaxUint64
	for _, c := range []struct {
		name     string
		o        Observation
		interval time.Duration
		closed   time.Duration
		left     uint64        // unknown: not counted
		until    time.Duration // of left
		sure     bool
	}{
		{name: "nothing", o: Observation{}, left: unknown},
		// q/w is 10/s, r/t would be 1000/s: the example of the IETF draft.
		{name: "draft example", o: Observation{Quota: told(10000, 10000, 10*sec, 1000*sec)}, interval: 100 * ms, left: 10000, until: 11 * sec, sure: true},
		{name: "draft example, window unknown", o: Observation{Quota: told(10000, 10000, 10*sec, none)}, interval: divide(10500*ms, 9900), left: 10000, until: 10500 * ms},
		{name: "even", o: Observation{Quota: told(60, 30, 30*sec, 60*sec)}, interval: divide(31*sec, 30), left: 30, until: 31 * sec, sure: true},
		{name: "much left", o: Observation{Quota: told(60, 50, 10*sec, 60*sec)}, interval: sec, left: 50, until: 11 * sec, sure: true},
		{name: "little left", o: Observation{Quota: told(60, 2, 30500*ms, 60*sec)}, interval: 15250 * ms, left: 2, until: 30500 * ms, sure: true},
		{name: "reserve", o: Observation{Quota: told(1000, 110, 50500*ms, 60*sec)}, interval: 505 * ms, left: 110, until: 50500 * ms, sure: true},
		{name: "only the reserve is left", o: Observation{Quota: told(1000, 5, 30500*ms, 60*sec)}, interval: 30500 * ms, left: 5, until: 30500 * ms, sure: true},
		{name: "one left", o: Observation{Quota: told(1000, 1, 30500*ms, 60*sec)}, interval: 30500 * ms, left: 1, until: 30500 * ms, sure: true},
		{name: "sent since", o: Observation{Quota: told(60, 50, 30500*ms, 60*sec), After: 20}, interval: divide(30500*ms, 30), left: 30, until: 30500 * ms, sure: true},
		{name: "sent since and before", o: Observation{Quota: told(60, 50, 30500*ms, 60*sec), After: 20, Before: 25}, interval: divide(30500*ms, 30), left: 5, until: 30500 * ms, sure: true},
		{name: "more sent than was left", o: Observation{Quota: told(60, 5, 30500*ms, 60*sec), After: math.MaxUint64, Before: 1}, interval: sec, left: 0, until: 30500 * ms, sure: true},
		{name: "nothing left", o: Observation{Quota: told(60, 0, 30500*ms, 60*sec)}, interval: sec, closed: 30500 * ms, left: 0, until: 30500 * ms, sure: true},
		{name: "nothing left, in seconds", o: Observation{Quota: told(60, 0, 30*sec, 60*sec)}, interval: sec, closed: 31 * sec, left: 0, until: 31 * sec, sure: true},
		{name: "nothing left, short", o: Observation{Quota: told(60, 0, 300*ms, sec)}, interval: divide(sec, 60), closed: 300 * ms, left: 0, until: 300 * ms, sure: true},
		{name: "limit unknown", o: Observation{Quota: told(none, 20, 30500*ms, none)}, interval: 1525 * ms, left: 20, until: 30500 * ms},
		{name: "limit and window only", o: Observation{Quota: told(100, none, none, 21600*sec)}, interval: 216 * sec, left: unknown, sure: true},
		{name: "limit only", o: Observation{Quota: told(100, none, none, none)}, left: unknown},
		{name: "remaining only", o: Observation{Quota: told(none, 5, none, none)}, left: unknown},
		{name: "remaining 0 only", o: Observation{Quota: told(none, 0, none, none)}, left: unknown},
		{name: "no reset, short window", o: Observation{Quota: told(100, 5, none, 10500*ms)}, interval: 2625 * ms, left: 5, until: 10500 * ms, sure: true},
		{name: "no reset, long window", o: Observation{Quota: told(100, 5, none, 21600*sec)}, interval: 216 * sec, left: unknown, sure: true},
		{name: "no reset, nothing left", o: Observation{Quota: told(100, 0, none, 21600*sec)}, interval: 216 * sec, closed: time.Minute, left: unknown, sure: true},
		{name: "no reset, nothing left, limit unknown", o: Observation{Quota: told(none, 0, none, 30500*ms)}, closed: 30500 * ms, left: 0, until: 30500 * ms},
		{name: "reset now", o: Observation{Quota: told(60, 30, 0, 60*sec)}, interval: sec, left: 30, until: 2 * sec, sure: true},
		{name: "a rate outright", o: Observation{Quota: verdict.Quota{PerSecond: 0.0056}}, interval: even(sec, 0.0056), left: unknown, sure: true},
		{name: "a tiny rate", o: Observation{Quota: verdict.Quota{PerSecond: 1e-300}}, interval: MaxInterval, left: unknown, sure: true},
		{name: "an infinite rate", o: Observation{Quota: verdict.Quota{PerSecond: math.Inf(1)}}, interval: 1, left: unknown, sure: true},
		{name: "exhausted", o: Observation{Exhausted: 20 * sec, HasExhausted: true}, closed: 20 * sec, left: unknown},
		{name: "exhausted for longer than the window", o: Observation{Quota: told(60, 0, 30500*ms, 60*sec), Exhausted: 50 * sec, HasExhausted: true}, interval: sec, closed: 50 * sec, left: 0, until: 30500 * ms, sure: true},
		{name: "other units", o: Observation{Quota: verdict.Quota{Limit: 9, HasLimit: true, HasRemaining: true, Reset: 9 * sec, HasReset: true, Window: 60 * sec, Other: true}}, left: unknown},
		{name: "other units exhausted", o: Observation{Quota: verdict.Quota{Other: true, HasRemaining: true}, Exhausted: sec, HasExhausted: true}, closed: sec, left: unknown},

		{name: "limit 0", o: Observation{Quota: told(0, 0, 3600*sec, 3600*sec), Exhausted: 3600 * sec, HasExhausted: true}, left: unknown},
		{name: "more left than the limit", o: Observation{Quota: told(60, 1000, 30500*ms, 60*sec)}, interval: sec, left: 60, until: 30500 * ms, sure: true},
		{name: "reset in 100 years", o: Observation{Quota: told(60, 0, longest, none)}, interval: MaxInterval, closed: MaxTrust, left: 0, until: MaxTrust},
		{name: "reset in 100 years, some left", o: Observation{Quota: told(60, 1, longest, none)}, interval: MaxInterval, left: 1, until: MaxTrust},
		{name: "reset beyond all", o: Observation{Quota: told(60, 1, math.MaxInt64, none)}, interval: MaxInterval, left: 1, until: MaxTrust},
		{name: "exhausted for 100 years", o: Observation{Exhausted: longest, HasExhausted: true}, closed: MaxTrust, left: unknown},
		{name: "window of a nanosecond", o: Observation{Quota: told(60, none, none, 1)}, left: unknown},
		{name: "window of a millisecond", o: Observation{Quota: told(60, none, none, ms)}, interval: divide(ms, 60), left: unknown, sure: true},
		{name: "endless limit", o: Observation{Quota: told(math.MaxInt64, math.MaxInt64, 10500*ms, 60*sec)}, interval: 1, left: math.MaxInt64, until: 10500 * ms, sure: true},
		{name: "window shorter than its reset can tell", o: Observation{Quota: told(20, 1, sec, sec)}, interval: 50 * ms, left: unknown, sure: true},
		{name: "the same, nothing left", o: Observation{Quota: told(20, 0, sec, sec)}, interval: 50 * ms, closed: sec, left: unknown, sure: true},

		{name: "bucket", o: Observation{Quota: toFull(3500, 3490, 171*ms)}, interval: 17100 * time.Microsecond, left: 3490, until: 171 * ms, sure: true},
		{name: "bucket, little missing", o: Observation{Quota: toFull(60, 58, 2500*ms)}, interval: 1250 * ms, left: 58, until: 2500 * ms},
		{name: "bucket, sent since and before", o: Observation{Quota: toFull(60, 50, 12500*ms), After: 3, Before: 1}, interval: 1250 * ms, left: 46, until: 17500 * ms, sure: true},
		{name: "bucket, empty", o: Observation{Quota: toFull(10, 0, 5500*ms)}, interval: 550 * ms, closed: 550 * ms, left: 0, until: 5500 * ms, sure: true},
		{name: "bucket, full", o: Observation{Quota: toFull(10, 10, 0)}, left: unknown},
		// A second may be a millisecond, rounded up.
		{name: "bucket, too roughly", o: Observation{Quota: toFull(3500, 3499, sec)}, left: unknown},
		{name: "bucket, empty, too roughly", o: Observation{Quota: toFull(4, 0, sec)}, closed: 250 * ms, left: unknown},
		{name: "bucket, limit unknown", o: Observation{Quota: verdict.Quota{Remaining: 4, HasRemaining: true, Reset: 20500 * ms, HasReset: true, ToFull: true}}, left: unknown},
	} {
		t.Run(c.name, func(t *testing.T) {
			var tr Tracker
			c.o.Dispatched, c.o.Received = t0, t0
			a := tr.Observe(c.o, t0)
			if a.Interval != c.interval || a.Sure != c.sure || a.Changed != (c.interval > 0) {
				t.Errorf("got %v, sure %v, changed %v, want %v, sure %v", a.Interval, a.Sure, a.Changed, c.interval, c.sure)
			}
			if got, changed := tr.Current(t0); got != c.interval || changed {
				t.Errorf("Current: got %v, changed %v, want %v", got, changed, c.interval)
			}
			var closed time.Duration
			if a.Close != 0 {
				closed = a.Close.Sub(t0)
			}
			if closed != c.closed {
				t.Errorf("closed for %v, want %v", closed, c.closed)
			}
			left, until, known := tr.Left(t0)
			if known != (c.left != unknown) || known && (left != c.left || until.Sub(t0) != c.until) {
				t.Errorf("left %d for %v (%v), want %d for %v", left, until.Sub(t0), known, c.left, c.until)
			}
		})
	}
}

// Stories of one lane: what is observed and asked, and when.
type scene struct {
	at    time.Duration
	sent  time.Duration // when the request was, of an answer received at at
	quota *verdict.Quota
	after uint64

	take     uint64 // then so many units are taken, one by one
	refused  bool   // and one more is not there
	left     uint64 // and so many are left; only if known
	unknown  bool
	interval time.Duration // the pace then; 0: is not looked at
}

func TestStories(t *testing.T) {
	minute := func(remaining int64, reset time.Duration) *verdict.Quota {
		q := told(60, remaining, reset, 60*sec)
		return &q
	}
	of := func(limit, remaining int64, reset, window time.Duration) *verdict.Quota {
		q := told(limit, remaining, reset, window)
		return &q
	}
	bucket := func(remaining int64, reset time.Duration) *verdict.Quota {
		q := toFull(10, remaining, reset)
		return &q
	}
	for _, c := range []struct {
		name   string
		scenes []scene
	}{
		{"the smallest remainder of a window counts", []scene{
			{at: 100 * ms, sent: 0, quota: minute(30, 40500*ms), left: 30},
			{at: 200 * ms, sent: 50 * ms, quota: minute(29, 40450*ms), left: 29},
			{at: 250 * ms, sent: 20 * ms, quota: minute(31, 40480*ms), left: 29},
			{at: 300 * ms, take: 9, left: 20},
			{at: 400 * ms, sent: 300 * ms, quota: minute(28, 40200*ms), after: 8, left: 20},
			{at: 500 * ms, sent: 400 * ms, quota: minute(15, 40100*ms), left: 15}, // somebody else spends
		}},
		{"whole seconds wobble, which is no new window", []scene{
			{at: 0, sent: 0, quota: minute(30, 40*sec), left: 30},
			{at: 900 * ms, sent: 850 * ms, quota: minute(35, 40*sec), left: 30},
			{at: 1100 * ms, sent: 1050 * ms, quota: minute(35, 38*sec), left: 30},
			{at: 1900 * ms, sent: 1850 * ms, quota: minute(35, 39*sec), left: 30},
		}},
		{"so they do in an hour and a day", []scene{
			{at: 0, sent: 0, quota: of(5000, 100, 3599*sec, none), left: 100},
			{at: 999 * ms, sent: 999 * ms, quota: of(5000, 200, 3599*sec, none), left: 100},
			{at: 2 * sec, sent: 2 * sec, quota: of(5000, 200, 3596*sec, none), left: 100},
		}},
		{"the next window raises", []scene{
			{at: 0, sent: 0, quota: minute(1, 1500*ms), take: 1, refused: true},
			{at: 1499 * ms, refused: true},
			{at: 1500 * ms, take: 59, unknown: true},
			{at: 1600 * ms, take: 1, refused: true, unknown: true},
			{at: 1700 * ms, sent: 1510 * ms, quota: minute(59, 59800*ms), after: 59, refused: true},
		}},
		{"what was sent near the end may count in the next window", []scene{
			{at: 0, sent: -100 * ms, quota: minute(30, 10500*ms), left: 30},
			{at: 10200 * ms, take: 5, left: 25}, // there before the end, however slow
			{at: 10350 * ms, take: 2, left: 23},
			{at: 10500 * ms, take: 58, refused: true, unknown: true},
			{at: 70500 * ms, take: 60, refused: true, unknown: true},
		}},
		{"a stale answer tells nothing of the present window", []scene{
			{at: 0, sent: 0, quota: minute(30, 10500*ms), left: 30, interval: sec},
			{at: 10600 * ms, sent: 10550 * ms, quota: minute(59, 59950*ms), left: 59},
			{at: 10700 * ms, sent: 9 * sec, quota: minute(0, 1500*ms), left: 59},  // over already
			{at: 10800 * ms, sent: 10 * sec, quota: minute(0, 1500*ms), left: 59}, // over as seen from the present one
			{at: 10900 * ms, sent: 10560 * ms, quota: minute(58, 59940*ms), left: 58},
		}},
		{"nor of one that is only assumed", []scene{
			{at: 0, sent: 0, quota: minute(30, 10*sec), left: 30},
			{at: 11100 * ms, sent: 9500 * ms, quota: minute(3, 2*sec), unknown: true, take: 60, refused: true},
		}},
		{"the origin's window goes on for longer than it was told", []scene{
			{at: 0, sent: 0, quota: minute(30, 10500*ms), left: 30},
			{at: 10600 * ms, take: 1, unknown: true},
			{at: 10700 * ms, sent: 10600 * ms, quota: minute(9, sec), left: 9},
			{at: 12700 * ms, take: 60, refused: true, unknown: true},
		}},
		{"one absurd answer does not count for a day", []scene{
			{at: 0, sent: 0, quota: minute(3, 24*time.Hour), left: 3},
			{at: 100 * ms, sent: 50 * ms, quota: minute(50, 30500*ms), left: 3},
			{at: 30700 * ms, take: 60, refused: true, unknown: true},
		}},
		{"what was learned of a window ends with it", []scene{
			{at: 0, sent: 0, quota: of(60, 2, 30500*ms, 60*sec), left: 2, interval: 15250 * ms},
			{at: 30400 * ms, left: 2, interval: 15250 * ms},
			{at: 30500 * ms, unknown: true, interval: sec},
			{at: 90500 * ms, unknown: true, interval: sec},
			{at: 24*time.Hour - 1, unknown: true, interval: sec},
			{at: 24 * time.Hour, unknown: true, take: 1000, interval: none},
		}},
		{"and everything, where the length is unknown", []scene{
			{at: 0, sent: 0, quota: of(60, 1, 30500*ms, none), take: 1, refused: true, interval: 30500 * ms},
			{at: 30500 * ms, unknown: true, take: 1000, interval: none},
		}},
		{"where an answer of the window before changes nothing", []scene{
			{at: 0, sent: 0, quota: of(60, 1, 9500*ms, none), left: 1},
			{at: 10 * sec, sent: 9 * sec, quota: of(60, 0, sec, none), unknown: true},
			{at: 10100 * ms, sent: 9600 * ms, quota: of(60, 59, 60*sec, none), left: 59},
		}},
		{"a length that was not told is measured from end to end", []scene{
			{at: 0, sent: 0, quota: of(60, 40, 10500*ms, none), left: 40},
			{at: 10500 * ms, unknown: true, interval: none},
			{at: 10600 * ms, sent: 10600 * ms, quota: of(60, 50, 59900*ms, none), left: 50, interval: 1198 * ms},
			{at: 70500 * ms, unknown: true, take: 60, refused: true, interval: sec},
		}},
		{"two limits hold together", []scene{
			{at: 0, sent: 0, quota: of(10, 3, 4500*ms, 10*sec), left: 3, interval: 1500 * ms},
			{at: 100 * ms, sent: 50 * ms, quota: of(1000, 500, 3000500*ms, 3600*sec), left: 3, interval: divide(3000500*ms, 490)},
			{at: 200 * ms, take: 3, refused: true},
			{at: 4600 * ms, sent: 4500 * ms, quota: of(1000, 2, 2996*sec, 3600*sec), take: 2, refused: true},
		}},
		{"a new limit takes the old one's place", []scene{
			{at: 0, sent: 0, quota: of(50, 49, 10500*ms, 60*sec), left: 49},
			{at: 10600 * ms, sent: 10500 * ms, quota: of(100, 99, 59900*ms, 60*sec), take: 99, refused: true, interval: divide(59900*ms, 98)},
		}},
		{"a lower one holds at once", []scene{
			{at: 0, sent: 0, quota: of(100, 99, 10500*ms, 60*sec), left: 99},
			{at: 100 * ms, sent: 50 * ms, quota: of(10, 9, 10400*ms, 60*sec), take: 9, refused: true},
		}},
		{"an end that slides: each answer after the last one says what is left", []scene{
			{at: 0, sent: 0, quota: minute(50, 60500*ms), left: 50},
			{at: 5 * sec, sent: 4900 * ms, quota: minute(40, 60500*ms), left: 40},
			{at: 5100 * ms, sent: 5 * sec, quota: minute(45, 60500*ms), left: 45, interval: sec},
			{at: 5150 * ms, sent: 4950 * ms, quota: minute(30, 60500*ms), left: 30}, // overtaken, but stricter
			{at: 5200 * ms, sent: 5100 * ms, quota: minute(3, 60500*ms), left: 3, interval: even(sec, 3.0/7)},
		}},
		{"a bucket refills", []scene{
			{at: 0, sent: 0, quota: bucket(1, 9500*ms), left: 1, interval: divide(9500*ms, 9)},
			{at: 0, take: 1, refused: true},
			{at: 2200 * ms, take: 2, refused: true},
			{at: 2300 * ms, sent: 2200 * ms, quota: bucket(9, 1100*ms), left: 9},
			{at: 2350 * ms, sent: 2100 * ms, quota: bucket(0, 10*sec), refused: true}, // overtaken, but stricter
		}},
		{"a bucket that became faster", []scene{
			{at: 0, sent: 0, quota: bucket(5, 50*sec), interval: 10 * sec, left: 5},
			{at: 1 * sec, sent: 500 * ms, quota: bucket(4, 60*sec), interval: 10 * sec, left: 4},
			{at: 2 * sec, sent: 1500 * ms, quota: bucket(4, 6500*ms), interval: divide(6500*ms, 6), left: 4},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var tr Tracker
			for _, s := range c.scenes {
				now := t0.Add(s.at)
				if s.quota != nil {
					tr.Observe(Observation{Quota: *s.quota, Dispatched: t0.Add(s.sent), Received: now, After: s.after}, now)
				}
				for i := range s.take {
					if wait, ok := tr.Take(now, 1); !ok {
						t.Fatalf("at +%v: after %d units wait %v", s.at, i, wait)
					}
				}
				if wait := tr.Wait(now, 1); s.refused != (wait > 0) {
					t.Errorf("at +%v: wait %v, refused %v", s.at, wait, s.refused)
				}
				if got, ok := tr.Take(now, 1); s.refused && (ok || got != tr.Wait(now, 1)) {
					t.Errorf("at +%v: took one more, or to wait %v", s.at, got)
				} else if ok {
					tr.Give(1, now)
				}
				left, _, known := tr.Left(now)
				if known == s.unknown && s.take == 0 || known && left != s.left {
					t.Errorf("at +%v: left %d (%v), want %d", s.at, left, known, s.left)
				}
				if got, _ := tr.Current(now); s.interval != 0 && got != max(s.interval, 0) {
					t.Errorf("at +%v: interval %v, want %v", s.at, got, s.interval)
				}
			}
		})
	}
}

// Changes that make no difference are not reported, and add up to one that is.
func TestChanged(t *testing.T) {
	var tr Tracker
	reported, changes := time.Duration(0), 0
	for i := range int64(40) {
		now := t0.Add(time.Duration(i) * 10 * ms)
		a := tr.Observe(Observation{
			Quota:      told(60, 50-i, 60500*ms-time.Duration(i)*10*ms, 60*sec),
			Dispatched: now, Received: now,
		}, now)
		if a.Changed != (a.Interval != reported) {
			t.Fatalf("changed %v from %v to %v", a.Changed, reported, a.Interval)
		}
		if a.Changed {
			changes++
		}
		reported = a.Interval
		exact := max(sec, divide(60500*ms-time.Duration(i)*10*ms, uint64(50-i)))
		if off := max(exact-reported, reported-exact); off > reported/32 {
			t.Errorf("%d left: pace %v, want about %v", 50-i, reported, exact)
		}
	}
	if changes < 20 || changes > 39 {
		t.Errorf("%d changes", changes)
	}
}

func TestNext(t *testing.T) {
	var tr Tracker
	if got := tr.Next(); got != 0 {
		t.Errorf("of nothing: got %v", got)
	}
	tr.Observe(Observation{Quota: told(60, 10, 30500*ms, 60*sec), Received: t0}, t0)
	before, _ := tr.Current(t0)
	if got := tr.Next().Sub(t0); got != 30500*ms {
		t.Fatalf("got +%v", got)
	}
	if got, changed := tr.Current(tr.Next() - 1); got != before || changed {
		t.Errorf("just before: %v, changed %v", got, changed)
	}
	if got, changed := tr.Current(tr.Next()); got != sec || !changed {
		t.Errorf("then: %v, changed %v", got, changed)
	}
	// A bucket or a rate lasts until it is not trusted any more.
	tr = Tracker{}
	tr.Observe(Observation{Quota: verdict.Quota{PerSecond: 2}, Received: t0}, t0)
	if got := tr.Next().Sub(t0); got != MaxTrust {
		t.Errorf("of a rate: got +%v", got)
	}
	if got, changed := tr.Current(tr.Next()); got != 0 || !changed {
		t.Errorf("then: %v, changed %v", got, changed)
	}
	if got := tr.Next(); got != 0 {
		t.Errorf("in the end: got %v", got)
	}
}

func TestAfter(t *testing.T) {
	var window, unsure, bucket Tracker
	window.Observe(Observation{Quota: told(60, 10, 30500*ms, 60*sec), Received: t0}, t0)
	unsure.Observe(Observation{Quota: told(none, 10, 30500*ms, none), Received: t0}, t0)
	bucket.Observe(Observation{Quota: toFull(10, 0, 15*sec), Received: t0}, t0)
	for _, c := range []struct {
		name        string
		t           *Tracker
		ahead, cost uint64
		want        time.Duration
	}{
		{"nothing known", new(Tracker), 1000, 1, 0},
		{"enough", &window, 9, 1, 0},
		{"the next window", &window, 10, 1, 30500 * ms},
		{"all of the next window", &window, 69, 1, 30500 * ms},
		{"the one after that", &window, 70, 1, 90500 * ms},
		{"ten windows", &window, 610, 1, 630500 * ms},
		{"a cost of more than is left", &window, 0, 11, 30500 * ms},
		{"a cost of more than ever is", &window, 0, 1000, 30500 * ms},
		{"a day", &window, math.MaxUint64, math.MaxUint64, MaxTrust},
		{"limit unknown", &unsure, 1000, 1, 30500 * ms},
		{"bucket", &bucket, 0, 1, 1500 * ms},
		{"bucket, ahead", &bucket, 19, 1, 30 * sec},
		{"bucket, a cost of more than ever is", &bucket, 0, 1000, 15 * sec},
		{"bucket, a day", &bucket, math.MaxUint64, 1, MaxTrust},
	} {
		if got := c.t.After(t0, c.ahead, c.cost); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
	if wait, ok := window.Take(t0, 1000); ok || wait != 30500*ms {
		t.Errorf("took more than is left: %v", wait)
	}
	if _, ok := window.Take(t0.Add(30500*ms), 1000); !ok {
		t.Error("a fresh window does not do for a cost above the limit")
	}
	if _, ok := window.Take(t0.Add(30500*ms), 1); ok {
		t.Error("took from a window that a cost above the limit had emptied")
	}
}

// A window does not get back what was taken in the one before it, nor what an
// answer has already left out.
func TestGive(t *testing.T) {
	var tr Tracker
	tr.Give(1, t0)
	see := func(at time.Duration, remaining int64, reset time.Duration, after uint64) {
		now := t0.Add(at)
		tr.Observe(Observation{Quota: told(60, remaining, reset, 60*sec), Dispatched: now, Received: now, After: after}, now)
	}
	left := func(at time.Duration) uint64 {
		n, _, _ := tr.Left(t0.Add(at))
		return n
	}
	see(0, 10, 30500*ms, 0)
	tr.Take(t0, 3)
	tr.Give(1, t0)
	if got := left(0); got != 8 {
		t.Errorf("given one of three: %d left, want 8", got)
	}
	tr.Give(100, t0)
	if got := left(0); got != 10 {
		t.Errorf("given more than was taken: %d left, want 10", got)
	}
	tr.Take(t0, 5)
	see(ms, 4, 30499*ms, 0)
	tr.Give(1, t0.Add(ms))
	if got := left(ms); got != 4 {
		t.Errorf("given what the answer knows: %d left, want 4", got)
	}
	tr.Take(t0.Add(2*ms), 4)
	see(31*sec, 20, 59500*ms, 0)
	tr.Give(4, t0.Add(31*sec))
	if got := left(31 * sec); got != 20 {
		t.Errorf("given from the window before: %d left, want 20", got)
	}

	tr = Tracker{}
	tr.Observe(Observation{Quota: toFull(10, 5, 5500*ms), Received: t0}, t0)
	tr.Take(t0, 2)
	tr.Give(2, t0)
	if got := left(0); got != 5 {
		t.Errorf("bucket: %d left, want 5", got)
	}
}

func TestLimit(t *testing.T) {
	var tr Tracker
	for _, c := range []struct {
		q      verdict.Quota
		limit  uint64
		window time.Duration
	}{
		{verdict.Quota{}, 0, 0},
		{told(none, 5, 10*sec, none), 0, 0},
		{told(60, 5, 10*sec, 60*sec), 60, 60 * sec},
		{told(0, 0, 10*sec, none), 60, 60 * sec},
		{told(none, 4, 10*sec, none), 60, 60 * sec},
		{told(100, 5, 10*sec, none), 100, 0},
	} {
		tr.Observe(Observation{Quota: c.q, Received: t0}, t0)
		if limit, window := tr.Limit(); limit != c.limit || window != c.window {
			t.Errorf("%+v: got %d in %v, want %d in %v", c.q, limit, window, c.limit, c.window)
		}
	}
}

// Answers from the future, and clocks that go back, do no harm.
func TestOddTimes(t *testing.T) {
	var tr Tracker
	a := tr.Observe(Observation{Quota: told(60, 0, 30*sec, 60*sec), Received: t0.Add(-31 * sec)}, t0)
	if left, _, known := tr.Left(t0); a.Interval != 0 || a.Close != 0 || known {
		t.Errorf("a window that is over: %+v, %d left (%v)", a, left, known)
	}
	tr.Observe(Observation{Quota: told(60, 5, 30500*ms, 60*sec), Dispatched: t0.Add(time.Hour), Received: t0.Add(time.Hour)}, t0)
	if left, until, known := tr.Left(t0); left != 5 || until != t0.Add(30500*ms) || !known {
		t.Errorf("got %d until +%v (%v)", left, until.Sub(t0), known)
	}
	tr.Take(t0, 5)
	if wait, ok := tr.Take(0, 1); ok || wait != MaxTrust {
		t.Errorf("at the beginning of time: wait %v, %v", wait, ok)
	}
	if _, ok := tr.Take(^ledger.Time(0), 1); !ok {
		t.Error("nothing to be had at the end of time")
	}
}
