// SPDX-License-Identifier: Apache-2.0

package policy

import (
	queue "container/heap"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

// turn is a worker that acts at an instant.
type turn struct {
	at     time.Duration
	worker int
}

type turns []turn

func (t turns) Len() int           { return len(t) }
func (t turns) Less(i, j int) bool { return t[i].at < t[j].at }
func (t turns) Swap(i, j int)      { t[i], t[j] = t[j], t[i] }
func (t *turns) Push(x any)        { *t = append(*t, x.(turn)) }
func (t *turns) Pop() any {
	old := *t
	last := old[len(old)-1]
	*t = old[:len(old)-1]
	return last
}

// play lets workers send until end: send is told the instant of each request
// and says after what time that worker sends its next.
func play(m *ExitMeter, workers int, start func(worker int) time.Duration, end time.Duration, send func(at time.Duration) time.Duration) {
	var due turns
	for w := range workers {
		queue.Push(&due, turn{start(w), w})
	}
	for due.Len() > 0 && due[0].at < end {
		next := due[0]
		m.Count(t0.Add(next.at))
		next.at += send(next.at)
		due[0] = next
		queue.Fix(&due, 0)
	}
}

// origin limits by fixed windows.
type origin struct {
	limit, used int
	per         time.Duration
	window      time.Duration
}

// refuses reports whether it refuses a request, and the rest of the window.
func (o *origin) refuses(at time.Duration) (bool, time.Duration) {
	if w := at / o.per; w != o.window {
		o.window, o.used = w, 0
	}
	o.used++
	return o.used > o.limit, o.per - at%o.per
}

// TestLockstep holds the score against what it is for: workers that all do as
// Retry-After says come back together, and nothing else does.
func TestLockstep(t *testing.T) {
	const run = 520 * time.Second
	together := func(int) time.Duration { return 0 }
	for seed := range uint64(5) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		trip := func() time.Duration { return 30*ms + time.Duration(rnd.IntN(40))*ms }
		spread := func(int) time.Duration { return time.Duration(rnd.Int64N(int64(10 * sec))) }
		atOnce := func(int) time.Duration { return time.Duration(rnd.IntN(300)) * ms }
		// obedient workers, started together, sleep int(Retry-After) and send
		// again.
		obedient := func(asked time.Duration, limit int) func(*ExitMeter) {
			return func(m *ExitMeter) {
				o := origin{limit: limit, per: asked}
				play(m, 50, atOnce, run, func(at time.Duration) time.Duration {
					if no, _ := o.refuses(at); no {
						m.NoteDelay(asked)
						return asked + trip()
					}
					return trip()
				})
			}
		}
		poisson := func(perSecond float64, asked time.Duration) func(*ExitMeter) {
			return func(m *ExitMeter) {
				m.NoteDelay(asked)
				play(m, 1, together, run, func(time.Duration) time.Duration {
					return time.Duration(rnd.ExpFloat64() / perSecond * float64(sec))
				})
			}
		}
		paced := func(every, asked time.Duration) func(*ExitMeter) {
			return func(m *ExitMeter) {
				m.NoteDelay(asked)
				play(m, 1, together, run, func(time.Duration) time.Duration { return every })
			}
		}
		cron := func(every, asked time.Duration) func(*ExitMeter) {
			return func(m *ExitMeter) {
				m.NoteDelay(asked)
				play(m, 50, atOnce, run, func(time.Duration) time.Duration { return every })
			}
		}
		for _, tt := range []struct {
			name     string
			traffic  func(*ExitMeter)
			from, to float64
		}{
			{"workers that obey 3 s", obedient(3*sec, 5), FullLockstep, 1},
			{"workers that obey 10 s", obedient(10*sec, 20), FullLockstep, 1},
			{"workers that obey 60 s", obedient(60*sec, 30), FullLockstep, 1},
			{"workers that obey 1 s", obedient(sec, 5), FullLockstep, 1},
			{"workers that obey what a window has left", func(m *ExitMeter) {
				o := origin{limit: 10, per: 20 * sec}
				play(m, 50, spread, run, func(at time.Duration) time.Duration {
					no, left := o.refuses(at)
					if !no {
						return trip()
					}
					left = (left + sec - 1).Truncate(sec)
					m.NoteDelay(left)
					return left + trip()
				})
			}, FullLockstep, 1},
			{"workers that spread over the delay as much again", func(m *ExitMeter) {
				o := origin{limit: 5, per: 10 * sec}
				play(m, 50, spread, run, func(at time.Duration) time.Duration {
					if no, _ := o.refuses(at); no {
						m.NoteDelay(10 * sec)
						return 10*sec + time.Duration(rnd.Int64N(int64(10*sec)))
					}
					return 10 * sec
				})
			}, 0, SomeLockstep},

			// As periodic as can be, with and against the lag.
			{"paced at 1/s", paced(sec, 3*sec), 0, SomeLockstep},
			{"paced at 0.5/s", paced(2*sec, 2*sec), 0, SomeLockstep},
			{"paced at 1 in 3 s", paced(3*sec, 3*sec), 0, SomeLockstep},
			{"paced at 1.5/s", paced(sec*2/3, 2*sec), 0, SomeLockstep},
			{"paced at 2/s, tenths", paced(sec/2, sec), 0, SomeLockstep},
			{"paced at 40/s", paced(sec/40, 5*sec), 0, SomeLockstep},
			{"paced at 40/s, tenths", paced(sec/40, sec), 0, SomeLockstep},

			{"Poisson at 0.2/s", poisson(0.2, 3*sec), 0, SomeLockstep},
			{"Poisson at 5/s", poisson(5, 3*sec), 0, SomeLockstep},
			{"Poisson at 200/s", poisson(200, 60*sec), 0, SomeLockstep},
			{"Poisson at 5/s, tenths", poisson(5, sec), 0, SomeLockstep},

			{"cron every 10 s, lag 3 s", cron(10*sec, 3*sec), 0, SomeLockstep},
			{"cron every 10 s, lag 15 s", cron(10*sec, 15*sec), 0, SomeLockstep},
			{"cron every 60 s, lag 10 s", cron(60*sec, 10*sec), 0, SomeLockstep},
			{"cron every 60 s, tenths", cron(60*sec, sec), 0, SomeLockstep},

			{"a load that rises", func(m *ExitMeter) {
				m.NoteDelay(5 * sec)
				play(m, 1, together, run, func(at time.Duration) time.Duration {
					return time.Duration(rnd.ExpFloat64() / (1 + at.Seconds()/2) * float64(sec))
				})
			}, 0, SomeLockstep},
			{"a load that comes and goes", func(m *ExitMeter) {
				m.NoteDelay(5 * sec)
				play(m, 1, together, run, func(at time.Duration) time.Duration {
					if at/(90*sec)%2 == 1 {
						return 90 * sec
					}
					return time.Duration(rnd.ExpFloat64() / 30 * float64(sec))
				})
			}, 0, SomeLockstep},
			{"one worker that obeys is no crowd", paced(10*sec, 10*sec), 0, 0},
		} {
			m := new(ExitMeter)
			tt.traffic(m)
			got, known := m.Lockstep(t0.Add(run))
			if !known || got < tt.from || got > tt.to {
				t.Errorf("seed %d, %s: got %.3f, known %v, want %v to %v", seed, tt.name, got, known, tt.from, tt.to)
			}
			t.Logf("seed %d, %s: %.3f", seed, tt.name, got)
		}
	}
}

func TestLockstepNeedsToKnow(t *testing.T) {
	burst := func(seconds int, asked time.Duration) *ExitMeter {
		m := new(ExitMeter)
		m.NoteDelay(asked)
		for i := 0; i <= seconds; i += 4 {
			for range 20 {
				m.Count(t0.Add(time.Duration(i) * sec))
			}
		}
		return m
	}
	for _, tt := range []struct {
		name    string
		m       *ExitMeter
		seconds int
		known   bool
	}{
		{"nothing was sent", burst(-1, 4*sec), 500, false},
		{"no delay was asked", burst(500, 0), 500, false},
		{"a negative delay", burst(500, -sec), 500, false},
		{"too little of the past", burst(127, 4*sec), 127, false},
		{"just enough", burst(128, 4*sec), 128, true},
		{"too few lags", burst(300, 100*sec), 399, false},
		{"just enough lags", burst(400, 100*sec), 400, true},
		{"the longest delay", burst(600, 128*sec), 600, true},
		{"too long a delay", burst(600, 129*sec), 600, false},
		{"the shortest delay", burst(600, 200*ms), 600, true},
		{"too short a delay", burst(600, 199*ms), 600, false},
	} {
		if _, known := tt.m.Lockstep(t0.Add(time.Duration(tt.seconds) * sec)); known != tt.known {
			t.Errorf("%s: known is %v, want %v", tt.name, known, tt.known)
		}
	}
	// The past is forgotten, and with it the score.
	m := burst(500, 4*sec)
	for _, tt := range []struct{ seconds, want float64 }{{500, 0.9}, {500 + maxSlots + 1, 0}} {
		got, known := m.Lockstep(t0.Add(time.Duration(tt.seconds * float64(sec))))
		if !known || got < tt.want || got > tt.want+0.1 {
			t.Errorf("at +%vs: got %v, known %v, want %v", tt.seconds, got, known, tt.want)
		}
	}
}

// FuzzLockstep holds the range of the score for any past.
func FuzzLockstep(f *testing.F) {
	f.Add([]byte{50, 0, 0, 50, 0, 0, 50, 0, 0, 50, 0, 0}, uint8(3), uint8(1))
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0}, uint8(2), uint8(0))
	f.Fuzz(func(t *testing.T, counts []byte, lag, late uint8) {
		n := int(lag)%64 + minLag
		if len(counts) < 2*n+int(late)%8 {
			return
		}
		x := make([]float64, len(counts))
		for i, c := range counts {
			x[i] = float64(c)
		}
		if got := lockstep(x, n, int(late)%8); !(got >= 0 && got <= 1) {
			t.Errorf("lag %d: got %v", n, got)
		}
	})
}

func TestPerSecond(t *testing.T) {
	m := new(ExitMeter)
	if got := m.PerSecond(t0); got != 0 {
		t.Errorf("before the first request: got %v", got)
	}
	for i := range 100 {
		m.Count(t0.Add(time.Duration(i) * 100 * ms))
	}
	for _, tt := range []struct {
		at   time.Duration
		want float64
	}{
		{9999 * ms, 9}, // the present second is not over
		{10 * sec, 10},
		{15 * sec, 5},
		{20 * sec, 0},
		{time.Hour, 0},
	} {
		if got := m.PerSecond(t0.Add(tt.at)); got != tt.want {
			t.Errorf("at +%v: got %v, want %v", tt.at, got, tt.want)
		}
	}
}

// TestFineAgrees holds that the fine buckets tell the same as the others.
func TestFineAgrees(t *testing.T) {
	m := new(ExitMeter)
	counts := []int{1, 2, 3, 5, 8, 9, 0, 50, 51, 20_000}
	for i, n := range counts {
		for range n {
			m.Count(t0.Add(time.Duration(i) * sec))
		}
	}
	for _, now := range []time.Duration{5 * sec, 10 * sec, 30 * sec} {
		h := m.Seconds(t0.Add(now))
		var fine int64
		for _, n := range h.Fine {
			fine += n
		}
		if got, want := uint64(fine)+h.Counts[0], h.Count(); got != want {
			t.Errorf("at +%v: fine buckets and zeros are %d, all are %d", now, got, want)
		}
	}
	for n, want := range map[uint64]int{1: 0, 2: 8, 3: 13, 4: 16, 8: 24, 9: 26, 1024: 80, countMask: fineBuckets - 1} {
		if got := fineBucket(n); got != want {
			t.Errorf("%d is in bucket %d, want %d", n, got, want)
		}
	}
}

// TestMeterReadersNeverSeeLess reads while others count.
func TestMeterReadersNeverSeeLess(t *testing.T) {
	m := new(ExitMeter)
	m.NoteDelay(sec)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 200_000 {
			m.Count(t0.Add(time.Duration(i) * ms))
		}
	}()
	end := t0.Add(time.Hour)
	for last := 0.0; ; {
		sum := m.Seconds(end).Sum
		if sum < last {
			t.Fatalf("%v requests, after %v", sum, last)
		}
		last = sum
		m.Lockstep(end)
		select {
		case <-done:
			if got := m.Seconds(end).Sum; got != 200_000 {
				t.Errorf("%v requests, want 200000", got)
			}
			return
		default:
		}
	}
}

func BenchmarkLockstep(b *testing.B) {
	for _, asked := range []time.Duration{3 * sec, 60 * sec} {
		b.Run(fmt.Sprint(asked), func(b *testing.B) {
			m := new(ExitMeter)
			m.NoteDelay(asked)
			var now ledger.Time
			for i := range maxSlots {
				now = t0.Add(time.Duration(i) * sec)
				for range i % 7 * i % 5 * 10 {
					m.Count(now)
				}
			}
			for b.Loop() {
				m.Lockstep(now)
			}
		})
	}
}
