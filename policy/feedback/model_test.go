// SPDX-License-Identifier: Apache-2.0

package feedback

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

// greedy sends whatever the tracker lets go, from so many workers, with no
// pace and no other limit. Requests and answers are delayed at random, so they
// overtake each other; some answers are lost.
type greedy struct {
	agenda
	t       Tracker
	rand    *rand.Rand
	origin  origin
	workers int
	delay   [2]time.Duration // of one way: from, to
	lose    float64          // share of answers
	mood    time.Duration    // it is idle for so long at most, and then greedy again; 0: never idle

	heard    ledger.Time // when the first answer was observed
	taken    uint64      // units since the beginning
	inFlight int
	waking   bool
	idle     bool

	// Of what was sent after heard:
	last    ledger.Time
	gap     time.Duration // longest time in which nothing was sent
	served  int
	refused int
}

func (g *greedy) oneWay() time.Duration {
	return g.delay[0] + time.Duration(g.rand.Int64N(int64(g.delay[1]-g.delay[0])+1))
}

// turn changes the mood, now and from then on.
func (g *greedy) turn() {
	g.idle = !g.idle
	g.fill()
	g.after(time.Duration(g.rand.Int64N(int64(g.mood))), g.turn)
}

func (g *greedy) fill() {
	for g.inFlight < g.workers && !g.idle {
		wait, ok := g.t.Take(g.now, 1)
		if ok {
			g.send()
			continue
		}
		if !g.waking {
			g.waking = true
			g.after(wait, func() { g.waking = false; g.fill() })
		}
		return
	}
}

func (g *greedy) send() {
	late := g.heard != 0
	if late {
		g.gap = max(g.gap, g.now.Sub(g.last))
		g.last = g.now
	}
	before, sent := uint64(g.inFlight), g.now
	g.taken++
	mine := g.taken
	g.inFlight++
	g.after(g.oneWay(), func() {
		q, _, ok := g.origin.serve(g.now)
		switch {
		case late && ok:
			g.served++
		case late:
			g.refused++
		}
		lost := g.rand.Float64() < g.lose
		g.after(g.oneWay(), func() {
			g.inFlight--
			if !lost {
				if g.heard == 0 {
					g.heard, g.last = g.now, g.now
				}
				g.t.Observe(Observation{
					Quota: q, Dispatched: sent, Received: g.now,
					After: g.taken - mine, Before: before,
				}, g.now)
			}
			g.fill()
		})
	})
}

// Given honest answers, the origin refuses nothing that was sent after the
// first of them, the lane never stands still for longer than gap, and the
// share used of the limit is used. What is not used: the units that were in
// flight when the end of a window was near, since it is not known in which
// window they counted; where resets are whole seconds, up to a second and a
// twentieth more of each window; of a sliding window what comes back before
// its oldest answer said so. Measured: 64-98 %.
func TestNeverRefused(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	near, far := [2]time.Duration{1 * ms, 5 * ms}, [2]time.Duration{20 * ms, 120 * ms}
	for _, c := range []struct {
		name    string
		limit   uint64
		length  time.Duration
		origin  func(limit uint64, length time.Duration) origin
		workers int
		delay   [2]time.Duration
		lose    float64
		mood    time.Duration
		used    float64
		gap     time.Duration
	}{
		{"fixed", 100, 10 * s, fixed(ms, true), 4, near, 0, 0, 0.9, 11 * s},
		{"fixed, far", 100, 10 * s, fixed(ms, true), 8, far, 0, 0, 0.9, 11 * s},
		{"fixed, many", 100, 10 * s, fixed(ms, true), 60, far, 0, 0, 0.6, 11 * s},
		{"fixed, lossy", 100, 10 * s, fixed(ms, true), 8, far, 0.5, 0, 0.9, 11 * s},
		{"fixed, seconds", 100, 10 * s, fixed(s, true), 8, far, 0, 0, 0.8, 12 * s},
		{"fixed, moody", 40, 2 * s, fixed(ms, true), 30, far, 0, 300 * ms, 0.3, 4 * s},
		{"fixed, moody, seconds", 100, 10 * s, fixed(s, true), 30, far, 0.1, s, 0.3, 13 * s},
		{"sliding, moody", 40, 2 * s, sliding(ms, true), 30, far, 0.1, 300 * ms, 0.3, 4 * s},
		{"bucket, moody", 40, 2 * s, bucketOf, 30, far, 0.1, 300 * ms, 0.3, 4 * s},
		{"fixed, length unknown", 100, 10 * s, fixed(s, false), 8, far, 0.1, 0, 0.8, 12 * s},
		{"fixed, one second", 20, s, fixed(ms, true), 4, near, 0, 0, 0.8, 2 * s},
		{"fixed, one second, far", 20, s, fixed(ms, true), 4, far, 0.1, 0, 0.7, 4 * s},
		{"fixed, four seconds", 20, 4 * s, fixed(s, true), 4, near, 0, 0, 0.7, 9 * s},
		{"fixed, one unit", 1, 10 * s, fixed(s, true), 4, far, 0.1, 0, 0.8, 25 * s},
		{"fixed, an hour", 5000, time.Hour, fixed(s, false), 16, far, 0.1, 0, 0.9, time.Hour + 5*s},
		{"sliding", 100, 10 * s, sliding(ms, false), 8, far, 0, 0, 0.5, 11 * s},
		{"sliding, oldest", 100, 10 * s, sliding(ms, true), 8, far, 0, 0, 0.6, 11 * s},
		{"sliding, seconds", 100, 10 * s, sliding(s, false), 8, far, 0.1, 0, 0.5, 12 * s},
		{"sliding, oldest, seconds", 100, 10 * s, sliding(s, true), 8, far, 0.1, 0, 0.7, 12 * s},
		{"bucket", 100, 10 * s, bucketOf, 8, far, 0, 0, 0.8, s},
		{"bucket, lossy", 100, 10 * s, bucketOf, 8, far, 0.5, 0, 0.8, s},
		{"bucket, small", 3, 60 * s, bucketOf, 8, near, 0, 0, 0.8, (3 + 8) * 20 * s},
	} {
		t.Run(c.name, func(t *testing.T) {
			lowest, longest, refused := 2.0, time.Duration(0), 0
			windows := min(max(3, 3000/c.limit), 30)
			for seed := range uint64(20) {
				r := rand.New(rand.NewPCG(1, seed))
				start := t0.Add(time.Duration(r.Int64N(int64(c.length))))
				g := &greedy{
					agenda: agenda{now: start}, rand: r,
					origin: c.origin(c.limit, c.length), workers: c.workers, delay: c.delay, lose: c.lose, mood: c.mood,
				}
				g.fill()
				if g.mood > 0 {
					g.after(g.mood, g.turn)
				}
				g.run(start.Add(time.Duration(windows) * c.length))
				refused += g.refused
				lowest = min(lowest, float64(g.served)/float64(windows*c.limit))
				longest = max(longest, g.gap, g.now.Sub(g.last))
			}
			t.Logf("used %.3f, gap %v", lowest, longest)
			if refused > 0 {
				t.Errorf("%d units were refused", refused)
			}
			if lowest < c.used {
				t.Errorf("used %.3f of the limit, want %v", lowest, c.used)
			}
			if longest > c.gap {
				t.Errorf("nothing was sent for %v, want at most %v", longest, c.gap)
			}
		})
	}
}

func fixed(unit time.Duration, tells bool) func(uint64, time.Duration) origin {
	return func(limit uint64, length time.Duration) origin {
		return &fixedWindow{limit: limit, length: length, unit: unit, window: tells}
	}
}

func sliding(unit time.Duration, oldest bool) func(uint64, time.Duration) origin {
	return func(limit uint64, length time.Duration) origin {
		return &slidingLog{limit: limit, length: length, unit: unit, oldest: oldest}
	}
}

func bucketOf(limit uint64, length time.Duration) origin {
	return &tokenBucket{limit: limit, interval: length / time.Duration(limit)}
}
