// SPDX-License-Identifier: Apache-2.0

package feedback

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
)

// finder is a lane that finds its own rate: a cell, a tracker and an Auto,
// with more work than it can ever send. Requests and answers are delayed at
// random. A refusal closes the lane for as long as the origin asks.
type finder struct {
	agenda
	t        Tracker
	auto     Auto
	cell     ledger.Cell
	rand     *rand.Rand
	origin   origin
	interval time.Duration
	delay    [2]time.Duration // of one way: from, to

	taken, inFlight uint64
	waking          bool
	served, refused int
}

func (f *finder) oneWay() time.Duration {
	return f.delay[0] + time.Duration(f.rand.Int64N(int64(f.delay[1]-f.delay[0])+1))
}

func (f *finder) pace(interval time.Duration) {
	f.interval = interval
	f.cell.Configure(interval, 0, f.now)
}

func (f *finder) learned() {
	told, _ := f.t.Current(f.now)
	interval := f.auto.Learned(f.now, f.interval, told)
	if f.t.Sure() {
		interval = f.auto.Raise(f.now, interval)
	}
	f.pace(interval)
}

func (f *finder) fill() {
	if end := f.t.Next(); end != 0 && f.now >= end {
		f.learned()
	}
	for !f.waking {
		wait, ready := f.cell.Peek(f.now, 1)
		if ready {
			if wait, ready = f.t.Take(f.now, 1); ready {
				f.send()
				continue
			}
		}
		if wait == 0 {
			return // for the answer to the probe
		}
		f.waking = true
		f.after(wait, func() { f.waking = false; f.fill() })
	}
}

func (f *finder) send() {
	g, _, ok := f.cell.Take(f.now, 1)
	if !ok {
		panic("the cell was ready")
	}
	before, sent := f.inFlight, f.now
	f.taken++
	mine := f.taken
	f.inFlight++
	f.after(f.oneWay(), func() {
		q, retry, ok := f.origin.serve(f.now)
		f.after(f.oneWay(), func() {
			f.inFlight--
			a := f.t.Observe(Observation{
				Quota: q, Dispatched: sent, Received: f.now, After: f.taken - mine, Before: before,
			}, f.now)
			if a.Changed {
				f.learned()
			}
			f.cell.Close(a.Close)
			if g.Probe {
				defer f.fill()
				defer f.cell.EndProbe()
			}
			if ok {
				f.served++
				if f.cell.Epoch.Load() == g.Epoch {
					f.pace(f.auto.Success(f.now, f.interval, true))
					f.cell.Reward(f.now, g.Epoch, 1)
				}
			} else {
				f.refused++
				if f.cell.Penalize(f.now, g.Epoch, f.now.Add(retry), 1, 0) {
					f.pace(f.auto.Limited(f.now, f.interval, 0.5))
				}
			}
			f.fill()
		})
	})
}

// during runs for d and returns the share of the origin's limit that was
// served, and the share of requests that were refused.
func (f *finder) during(d time.Duration, perSecond float64) (used, refused float64) {
	f.served, f.refused = 0, 0
	f.run(f.now.Add(d))
	return float64(f.served) / perSecond / d.Seconds(), float64(f.refused) / float64(f.served+f.refused)
}

// quiet hides what an origin tells of its limit.
type quiet struct{ origin }

func (o quiet) serve(now ledger.Time) (verdict.Quota, time.Duration, bool) {
	_, retry, ok := o.origin.serve(now)
	return verdict.Quota{}, retry, ok
}

// A lane finds the origin's rate, follows it when it is doubled, and when it
// is cut to a fifth of that: each has five minutes, and is then measured for
// ten more. Measured: where the origin tells of its limit, 90-95 % are
// used and nothing is refused (87 % where the end slides; 78-94 % and 0.06 %
// where a window of a second tells its end in seconds, so that the last unit
// of one closes the lane for much of the next); where it is silent, 82-100 %
// and 0.05-3 %, most where there is a window of a minute, which allows any
// rate until it is used up, or no burst at all.
func TestAutoFinds(t *testing.T) {
	near, far := [2]time.Duration{5 * ms, 15 * ms}, [2]time.Duration{50 * ms, 150 * ms}
	bucket := func(burst uint64, perSecond float64) func(float64) origin {
		return func(factor float64) origin {
			return &tokenBucket{limit: burst, interval: time.Duration(float64(sec) / perSecond / factor)}
		}
	}
	window := func(limit float64, length, unit time.Duration, tells bool) func(float64) origin {
		return func(factor float64) origin {
			return &fixedWindow{limit: uint64(limit * factor), length: length, unit: unit, window: tells}
		}
	}
	slide := func(limit float64, length time.Duration) func(float64) origin {
		return func(factor float64) origin {
			return &slidingLog{limit: uint64(limit * factor), length: length, unit: sec}
		}
	}
	hide := func(f func(float64) origin) func(float64) origin {
		return func(factor float64) origin { return quiet{f(factor)} }
	}
	for _, c := range []struct {
		name      string
		origin    func(factor float64) origin
		perSecond float64
		delay     [2]time.Duration
		used      float64 // at least, in the long run
		refused   float64 // at most
	}{
		{"told bucket", bucket(20, 10), 10, near, 0.85, 0.01},
		{"told window", window(600, time.Minute, sec, true), 10, far, 0.85, 0.01},
		{"told window, fast", window(3000, time.Minute, sec, true), 50, far, 0.85, 0.01},
		{"told window, slow", window(20, time.Minute, sec, true), 1.0 / 3, far, 0.85, 0.01},
		{"told window of a second", window(50, sec, sec, true), 50, far, 0.75, 0.01},
		{"told window, no length", window(600, time.Minute, sec, false), 10, far, 0.85, 0.01},
		{"told sliding", slide(600, time.Minute), 10, far, 0.8, 0.01},
		{"silent bucket", hide(bucket(5, 10)), 10, near, 0.7, 0.03},
		{"silent bucket, far", hide(bucket(5, 10)), 10, far, 0.7, 0.03},
		{"silent bucket, fast", hide(bucket(20, 100)), 100, far, 0.7, 0.03},
		{"silent bucket, no burst", hide(bucket(1, 2)), 2, near, 0.7, 0.1},
		{"silent window", hide(window(600, time.Minute, sec, true)), 10, far, 0.7, 0.06},
		{"silent window of a second", hide(window(20, sec, sec, true)), 20, far, 0.7, 0.03},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &finder{
				agenda: agenda{now: t0}, rand: rand.New(rand.NewPCG(1, 2)),
				origin: c.origin(1), interval: DefaultAuto, delay: c.delay,
			}
			f.pace(DefaultAuto)
			f.fill()
			for _, phase := range []struct {
				name   string
				factor float64
			}{
				{"at first", 1}, {"doubled", 2}, {"cut", 0.4}, {"raised again", 1},
			} {
				f.origin = c.origin(phase.factor)
				f.during(5*time.Minute, c.perSecond*phase.factor)
				used, refused := f.during(10*time.Minute, c.perSecond*phase.factor)
				t.Logf("%s: used %.3f, refused %.4f", phase.name, used, refused)
				if used < c.used || used > 1.05 {
					t.Errorf("%s: used %.2f of the limit, want %v", phase.name, used, c.used)
				}
				if refused > c.refused {
					t.Errorf("%s: %.4f were refused, want at most %v", phase.name, refused, c.refused)
				}
			}
		})
	}
}

func TestAutoSteps(t *testing.T) {
	at := func(d time.Duration) ledger.Time { return t0.Add(d) }
	var a Auto
	for _, c := range []struct {
		name string
		got  func() time.Duration
		want time.Duration
	}{
		{"nobody waited", func() time.Duration { return a.Success(at(0), sec, false) }, sec},
		{"no interval yet", func() time.Duration { return a.Success(at(0), 0, false) }, DefaultAuto},
		{"the first step", func() time.Duration { return a.Success(at(0), sec, true) }, every(1.1)},
		{"too soon for another", func() time.Duration { return a.Success(at(sec-1), sec, true) }, sec},
		{"in time", func() time.Duration { return a.Success(at(sec), sec, true) }, every(1.1)},
		{"faster than answers come", func() time.Duration { return a.Success(at(sec+99*ms), 10*ms, true) }, 10 * ms},
		{"then", func() time.Duration { return a.Success(at(sec+100*ms), 10*ms, true) }, every(110)},
		{"the fastest", func() time.Duration { return a.Success(at(2*sec), MaxAuto, true) }, MaxAuto},
		{"refused at 100/s", func() time.Duration { return a.Limited(at(3*sec), 10*ms, 0.5) }, 20 * ms},
		{"again up, by factors", func() time.Duration { return a.Success(at(4*sec), 20*ms, true) }, every(55)},
		{"to the knee", func() time.Duration { return a.Success(at(5*sec), 13*ms, true) }, every(80)},
		{"by steps", func() time.Duration { return a.Success(at(6*sec), 12500*time.Microsecond, true) }, every(80.5)},
		{"which take their time", func() time.Duration { return a.Success(at(6*sec+499*ms), 12*ms, true) }, 12 * ms},
		{"and go beyond", func() time.Duration { return a.Success(at(7*sec), 10*ms, true) }, every(100.5)},
		{"until the refusal is refuted", func() time.Duration { return a.Success(at(8*sec), 9*ms, true) }, every(1e3 / 9 * 1.1)},
		{"for good", func() time.Duration { return a.Success(at(9*sec), 10*ms, true) }, every(110)},
		{"a factor of nonsense", func() time.Duration { return a.Limited(at(10*sec), 10*ms, 7) }, 20 * ms},
		{"the slowest", func() time.Duration { return a.Limited(at(11*sec), SlowestAuto, 0.5) }, SlowestAuto},
		{"told a slower pace", func() time.Duration { return a.Learned(at(12*sec), 10*ms, 19*ms) }, 20 * ms},
		{"told a faster pace", func() time.Duration { return a.Learned(at(13*sec), 40*ms, 19*ms) }, 40 * ms},
		{"which bounds growth", func() time.Duration { a.failed = 0; return a.Success(at(14*sec), 20*ms, true) }, 20 * ms},
		{"which is sure", func() time.Duration { return a.Raise(at(15*sec), 40*ms) }, 20 * ms},
		{"but was refuted", func() time.Duration { a.failed = 50; return a.Raise(at(16*sec), 40*ms) }, 40 * ms},
		{"told a rate beyond all", func() time.Duration { a.failed = 0; return a.Learned(at(17*sec), 40*ms, 1) }, 40 * ms},
		{"which is sure, too", func() time.Duration { return a.Raise(at(18*sec), 40*ms) }, MaxAuto},
		{"told nothing any more", func() time.Duration { return a.Learned(at(19*sec), 40*ms, 0) }, 40 * ms},
		{"so nothing to raise to", func() time.Duration { return a.Raise(at(20*sec), 40*ms) }, 40 * ms},
		{"the slowest that can be told", func() time.Duration { return a.Learned(at(21*sec), 40*ms, MaxInterval) }, MaxInterval},
	} {
		if got := c.got(); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
	}
}
