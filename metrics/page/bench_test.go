// SPDX-License-Identifier: Apache-2.0

package page

import (
	"fmt"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
)

// crowd is a daemon with n lanes, on a tenth as many exits.
func crowd(n int) *scene {
	src := &scene{status: Status{Version: "v1", Attached: true}, until: time.Unix(2000, 0)}
	for i := range n {
		exit := fmt.Sprintf("E-%03d/session-%04d", i%7, i%(n/10))
		src.lanes = append(src.lanes, Lane{
			ID:     fmt.Sprintf("shop/host-%05d.shop.example/%s", i, exit),
			Budget: "shop", Destination: fmt.Sprintf("host-%05d.shop.example", i), Exit: exit, CountedBy: exit,
			Per: policy.PerDestination | policy.PerExit, Mode: "enforce", Rate: 2, Base: 2, Burst: 1, Sent: uint64(i % 50),
		})
	}
	for i := range n / 10 {
		src.exits = append(src.exits, Exit{Name: src.lanes[i].Exit, Seconds: make([]float64, history)})
	}
	for i := range keptEvents {
		src.events = append(src.events, Event{At: time.Unix(1999, 0), Mono: uint64(i), Kind: "refused", Lane: src.lanes[i%n].ID, Detail: "max_wait"})
	}
	return src
}

// A State stays small however many lanes there are: what a browser has to read
// and lay out each second.
func TestStateIsBounded(t *testing.T) {
	for _, n := range []int{1000, 10_000} {
		p := New(Config{Source: crowd(n)})
		text := p.write(p.see(0), mustQuery(t, ""))
		if len(text) > 64<<10 {
			t.Errorf("%d lanes: got %d bytes, want at most 64 KiB", n, len(text))
		}
		text = p.write(p.see(0), mustQuery(t, "lanes=500&exits=48&events=200"))
		if len(text) > 512<<10 {
			t.Errorf("%d lanes, asked for as much as can be: got %d bytes, want at most 512 KiB", n, len(text))
		}
	}
}

// BenchmarkSee is what a page that is watched costs each second, whoever many
// watch it, and BenchmarkWrite what each different wish adds to it.
func BenchmarkSee(b *testing.B) {
	src := crowd(10_000)
	var e eyes
	now := time.Unix(5000, 0)
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(time.Second)
		e.see(src, now)
	}
}

func BenchmarkWrite(b *testing.B) {
	for _, raw := range []string{"", "q=host-01", "sort=lane", "lanes=500&exits=48&events=200"} {
		b.Run(raw, func(b *testing.B) {
			p := New(Config{Source: crowd(10_000)})
			s, q := p.see(0), mustQuery(b, raw)
			b.ReportAllocs()
			for b.Loop() {
				clear(s.written)
				b.SetBytes(int64(len(p.write(s, q))))
			}
		})
	}
}
