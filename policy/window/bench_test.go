// SPDX-License-Identifier: Apache-2.0

package window

import (
	"fmt"
	"testing"
	"time"
	"unsafe"

	"github.com/egressd/egressd/policy/ledger"
)

var benchConfigs = []struct {
	name string
	c    Config
}{
	{"sliding 1", Config{1, time.Second, Sliding}},
	{"sliding 100", Config{100, time.Second, Sliding}},
	{"sliding 1024", Config{MaxExact, time.Second, Sliding}},
	{"sliding 1e6", Config{1e6, time.Second, Sliding}},
	{"fixed 100", Config{100, time.Second, Fixed}},
	{"fixed 1e6", Config{1e6, time.Second, Fixed}},
}

// size is the number of bytes that w occupies.
func (w *Window) size() uintptr {
	return unsafe.Sizeof(*w) + uintptr(len(w.past.ring))*unsafe.Sizeof(entry{})
}

func BenchmarkTake(b *testing.B) {
	for _, bc := range benchConfigs {
		b.Run(bc.name+" granted", func(b *testing.B) {
			w, now := New(bc.c, newSaved(), t0), t0
			step := ledger.Time(bc.c.Per) / ledger.Time(bc.c.Limit)
			b.ReportAllocs()
			for b.Loop() {
				now += step + 1 + step/50
				if _, ok := w.Take(now, 1); !ok {
					b.Fatal("refused")
				}
			}
			b.ReportMetric(float64(w.size()), "B/window")
		})
		b.Run(bc.name+" refused", func(b *testing.B) {
			w := New(bc.c, newSaved(), t0)
			for now := t0; ; now += ledger.Time(bc.c.Per) / 8 / ledger.Time(bc.c.Limit) {
				if _, ok := w.Take(now, 1); !ok {
					break
				}
			}
			now := w.last
			b.ReportAllocs()
			for b.Loop() {
				if _, ok := w.Take(now, 1); ok {
					b.Fatal("granted")
				}
			}
		})
	}
}

func BenchmarkAfter(b *testing.B) {
	for _, bc := range benchConfigs {
		b.Run(bc.name, func(b *testing.B) {
			w := New(bc.c, newSaved(), t0)
			for i := range min(bc.c.Limit, 10_000) {
				w.Take(t0.Add(bc.c.Per/10_000*time.Duration(i)), 1)
			}
			now := w.last
			b.ReportAllocs()
			for b.Loop() {
				w.After(now, bc.c.Limit/2, 1)
			}
		})
	}
}

func BenchmarkTakeUndo(b *testing.B) {
	for _, bc := range benchConfigs {
		b.Run(bc.name, func(b *testing.B) {
			w := New(bc.c, newSaved(), t0)
			w.Take(t0, bc.c.Limit-1)
			now := t0
			b.ReportAllocs()
			for b.Loop() {
				now++
				s, _ := w.Take(now, 1)
				w.Undo(s, now)
			}
		})
	}
}

// No operation allocates, whatever the window.
func TestAllocs(t *testing.T) {
	for _, bc := range benchConfigs {
		w, now := New(bc.c, newSaved(), t0), t0
		got := testing.AllocsPerRun(1000, func() {
			now = now.Add(bc.c.Per / 700)
			s, _ := w.Take(now, 1)
			w.Take(now, 1)
			w.Undo(s, now)
			w.Debit(1, now)
			w.Align(now.Add(time.Duration(now%7)), now)
			w.After(now, 5, 1)
			w.Used(now)
		})
		if got != 0 {
			t.Errorf("%s: %s allocations", bc.name, fmt.Sprint(got))
		}
	}
}
