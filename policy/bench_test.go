// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

// A lane is made and looked up by its host among a million others, and when
// the ledger is full the idle ones make room.
func BenchmarkMillionLanes(b *testing.B) {
	const lanes = 1_000_000
	hosts := make([]string, lanes+lanes/8)
	for i := range hosts {
		hosts[i] = "host-" + strconv.Itoa(i) + ".example.com"
	}
	for b.Loop() {
		cells := make([]ledger.Cell, lanes+1) // 128 B each, in the shared ledger
		before := heap()
		e, err := NewEngine(&Policy{Budgets: []*Budget{budget("b", perBoth, sec)}}, cells, nil, t0)
		if err != nil {
			b.Fatal(err)
		}
		f := &Facts{Dest: netip.MustParseAddrPort("192.0.2.7:80"), Exit: DirectExit}
		var dst [MaxLanes]*Lane
		begin := time.Now()
		for _, host := range hosts[:lanes] {
			f.Host = host
			e.Select(dst[:0], f, ForRequest, t0)
		}
		made := time.Since(begin)
		used := heap() - before

		later := t0.Add(time.Minute)
		begin = time.Now()
		for _, host := range hosts[:lanes] {
			f.Host = host
			e.Select(dst[:0], f, ForRequest, t0)
		}
		found := time.Since(begin)
		// The look at a million lanes, and the room that it makes.
		begin = time.Now()
		f.Host = hosts[lanes]
		e.Select(dst[:0], f, ForRequest, later)
		evicting := time.Since(begin)
		evicted := e.Evicted()
		if evicted == 0 || e.Dropped() > 0 {
			b.Fatalf("%d lanes evicted, %d dropped", evicted, e.Dropped())
		}
		runtime.KeepAlive(cells)
		b.ReportMetric(float64(used)/lanes, "B/lane")
		b.ReportMetric(float64(made)/lanes, "ns/new-lane")
		b.ReportMetric(float64(found)/lanes, "ns/look-up")
		b.ReportMetric(float64(evicting)/float64(evicted), "ns/evicted-lane")
		b.ReportMetric(evicting.Seconds()*1e3, "ms/eviction")
	}
}

// heap is the number of bytes that live on the heap.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
