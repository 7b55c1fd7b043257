// SPDX-License-Identifier: Apache-2.0

package feedback

import (
	"encoding/binary"
	"math"
	"testing"
	"time"

	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
)

// reader takes values off the front of a fuzzer's bytes; zeros follow them.
type reader []byte

func (r *reader) byte() byte {
	if len(*r) == 0 {
		return 0
	}
	b := (*r)[0]
	*r = (*r)[1:]
	return b
}

// number is small, whole or anything, by its first byte.
func (r *reader) number() int64 {
	switch b := r.byte(); {
	case b < 200:
		return int64(b)
	case b < 250:
		return int64(b-199) * int64(sec) / 2
	default:
		var all [8]byte
		for i := range all {
			all[i] = r.byte()
		}
		return int64(binary.LittleEndian.Uint64(all[:]))
	}
}

func (r *reader) observation(now ledger.Time) Observation {
	flags := r.byte()
	has := func(bit int) bool { return flags>>bit&1 != 0 }
	o := Observation{
		Quota: verdict.Quota{
			HasLimit: has(0), HasRemaining: has(1), HasReset: has(2), ToFull: has(3), Other: has(4) && has(5),
		},
		HasExhausted: has(6),
		Received:     now,
		Dispatched:   now.Add(-time.Duration(r.number())),
	}
	q := &o.Quota
	if q.HasLimit {
		q.Limit = r.number()
	}
	if q.HasRemaining {
		q.Remaining = r.number()
	}
	if q.HasReset {
		q.Reset = time.Duration(r.number())
	}
	if has(5) {
		q.Window = time.Duration(r.number())
	}
	if has(7) {
		q.PerSecond = math.Float64frombits(uint64(r.number()))
		o.Received = ledger.Time(r.number())
	}
	if o.HasExhausted {
		o.Exhausted = time.Duration(r.number())
	}
	o.After, o.Before = uint64(r.number()), uint64(r.number())
	return o
}

// Whatever an origin says and a lane asks, in whatever order: no wait and no
// closing is longer than a day, no pace is negative or slower than the
// slowest, a refusal comes with a wait, and a day after the last word nothing
// is left of it.
func FuzzTracker(f *testing.F) {
	f.Add([]byte{0, 0x27, 10, 60, 30, 230, 250, 0, 0, 0, 1, 5, 1, 9, 2, 3, 3, 1})
	f.Add([]byte{0, 0x0f, 10, 60, 30, 230, 1, 1, 1, 5, 0, 0x0f, 10, 60, 31, 220, 1, 1, 4, 255})
	f.Add([]byte{0, 0x83, 0, 0, 0, 250, 1, 2, 3, 4, 5, 6, 7, 8, 5, 210, 1, 1})
	f.Fuzz(func(t *testing.T, script []byte) {
		var tr Tracker
		now, last := t0, t0
		r := reader(script)
		checkWait := func(wait time.Duration) {
			if wait < 0 || wait > MaxTrust {
				t.Fatalf("wait %v", wait)
			}
		}
		checkInterval := func(interval time.Duration) {
			if interval < 0 || interval > MaxInterval {
				t.Fatalf("interval %v", interval)
			}
		}
		for len(r) > 0 {
			switch r.byte() % 6 {
			case 0:
				a := tr.Observe(r.observation(now), now)
				checkInterval(a.Interval)
				if a.Close != 0 {
					checkWait(a.Close.Sub(now))
					if a.Close <= now {
						t.Fatalf("closed until %v ago", now.Sub(a.Close))
					}
				}
				last = max(last, now)
			case 1:
				cost := uint64(r.number())
				left, _, known := tr.Left(now)
				before := tr.Wait(now, cost)
				wait, ok := tr.Take(now, cost)
				checkWait(wait)
				if ok != (wait == 0) || wait != before {
					t.Fatalf("took %d: %v, wait %v, predicted %v", cost, ok, wait, before)
				}
				if after, _, still := tr.Left(now); ok && known && still && after > left {
					t.Fatalf("took %d: %d left of %d", cost, after, left)
				}
			case 2:
				ahead, cost := uint64(r.number()), uint64(r.number())
				wait := tr.After(now, ahead, cost)
				checkWait(wait)
				if more := tr.After(now, sum(ahead, 1), cost); more < wait {
					t.Fatalf("the one behind waits %v, this one %v", more, wait)
				}
			case 3:
				tr.Give(uint64(r.number()), now)
			case 4:
				now = now.Add(time.Duration(r.number()))
			case 5:
				interval, _ := tr.Current(now)
				checkInterval(interval)
				if again, changed := tr.Current(now); again != interval || changed {
					t.Fatalf("interval %v, then %v (%v)", interval, again, changed)
				}
				if next := tr.Next(); next != 0 && next <= now {
					t.Fatalf("what changes next was %v ago", now.Sub(next))
				}
			}
		}
		end := max(now, last).Add(MaxTrust)
		if interval, _ := tr.Current(end); interval != 0 {
			t.Errorf("interval %v a day after the last word", interval)
		}
		if wait, ok := tr.Take(end, math.MaxUint64); !ok {
			t.Errorf("wait %v a day after the last word", wait)
		}
	})
}

// Whatever happens to it, a lane keeps a rate within reason.
func FuzzAuto(f *testing.F) {
	f.Add([]byte{1, 0, 1, 0, 230, 2, 1, 0, 1, 3, 10, 4, 1, 1})
	f.Add([]byte("2\x19\x19\xff00000001")) // refused at a high rate, then far below it
	f.Fuzz(func(t *testing.T, script []byte) {
		var a Auto
		now, interval := t0, time.Duration(0)
		r := reader(script)
		for len(r) > 0 {
			switch r.byte() % 5 {
			case 0:
				now = now.Add(time.Duration(r.number()))
				continue
			case 1:
				waited := r.byte()%2 == 1
				next := a.Success(now, interval, waited)
				if interval >= MaxAuto && interval <= SlowestAuto && float64(next) < float64(interval)/growth-1 {
					t.Fatalf("from %v to %v by one success", interval, next)
				}
				interval = next
			case 2:
				next := a.Limited(now, interval, math.Float64frombits(uint64(r.number())))
				if interval <= SlowestAuto && next < interval {
					t.Fatalf("from %v to %v by a refusal", interval, next)
				}
				interval = next
			case 3:
				told := time.Duration(r.number())
				interval = a.Learned(now, interval, told)
				if told > 0 && interval < min(told, MaxInterval) {
					t.Fatalf("told %v, went to %v", told, interval)
				}
			case 4:
				interval = a.Raise(now, interval)
			}
			if interval < MaxAuto || interval > MaxInterval {
				t.Fatalf("interval %v", interval)
			}
		}
	})
}
