// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

// FuzzLane plays whatever a store may answer, in whatever order things happen.
// The lane must not ask without end, must have two calls under way at most, must
// not hold more than it asked for, and must let nothing go while it is closed.
func FuzzLane(f *testing.F) {
	f.Add([]byte("\x00\x05\x01\x08\x00\x00\x02\x00\x03\x09\x00\x00\x00\x04\x05\x06\x07\x08\x09"), uint8(10))
	f.Add([]byte("slots, and a store that answers this and that, and fails, and is young"), uint8(200))
	f.Fuzz(func(t *testing.T, script []byte, pace uint8) {
		chance := uint64(1)
		l := New(Config{
			Lane: "a/-/-", Host: "h", Limit: Limit{time.Duration(pace) * time.Millisecond, uint64(pace % 7)}, Loss: Loss(pace % 3), Hosts: int(pace % 5),
			Chance: func() float64 { chance = chance*6364136223846793005 + 1; return float64(chance>>11) / (1 << 53) },
		})
		now := ledger.Time(time.Hour)
		var flights []Flight
		next := func() (b byte) {
			if len(script) > 0 {
				b, script = script[0], script[1:]
			}
			return b
		}
		number := func() uint64 { // small, large, and all between
			var b [8]byte
			for i := range next() % 9 {
				b[i] = next()
			}
			return binary.LittleEndian.Uint64(b[:])
		}
		for len(script) > 0 {
			switch op := next(); op % 9 {
			case 0:
				now = now.Add(time.Duration(number() % uint64(time.Hour)))
			case 1:
				if at, ok := l.Wake(now); ok {
					now = max(now, min(at, now.Add(time.Hour)))
				}
			case 2:
				l.Want(int(next()), now)
			case 3, 4:
				if len(flights) > 0 {
					f := flights[0]
					flights = flights[1:]
					l.Answered(f, Answer{
						Granted: number(), After: time.Duration(number()), Term: time.Duration(number()), Grant: string(rune(next())),
						Epoch: number(), OpenAfter: time.Duration(number() % uint64(time.Hour)), Interval: time.Duration(number()),
						Hosts: int(int32(number())), Retry: time.Duration(number()), Young: next()%2 == 0,
					}, now)
				}
			case 5:
				if len(flights) > 0 {
					l.Failed(flights[0], now)
					flights = flights[1:]
				}
			case 6:
				l.Penalize(uint64(next()), time.Duration(number()%uint64(time.Hour)), float64(next())/200, now)
			case 7:
				l.Reward(l.State().Epoch, 1+float64(next())/100, now)
			case 8:
				l.Heard(Answer{Epoch: number(), OpenAfter: time.Duration(number()), Interval: time.Duration(number())}, now)
			}
			for range 8 {
				foreseen, ready := l.Peek(now)
				u, wait, ok := l.Take(now)
				if wait != foreseen || ok != ready {
					t.Fatalf("Take gives %v, %v, Peek foresaw %v, %v", wait, ok, foreseen, ready)
				}
				if ok && now < l.State().OpenUntil {
					t.Fatal("a unit of a lane that is closed")
				}
				if wait < 0 || wait > 0 && ok {
					t.Fatalf("wait %v, granted %v", wait, ok)
				}
				if ok && next()%4 == 0 {
					l.Return(u, now)
				}
			}
			for n := 0; ; n++ {
				f, due := l.Next(now)
				if !due {
					break
				}
				if flights = append(flights, f); len(flights) > 2 || n > 2 {
					t.Fatalf("%d calls under way: %+v", len(flights), flights)
				}
			}
			if at, ok := l.Wake(now); ok && at <= now {
				t.Fatalf("wakes at %v, now is %v, and nothing is due", at, now)
			}
			if held, most := l.Held(now), Batch(l.c.Limit, l.c.Hosts); held > most {
				t.Fatalf("%d held, %d at most", held, most)
			}
		}
	})
}
