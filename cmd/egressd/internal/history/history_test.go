// SPDX-License-Identifier: Apache-2.0

package history

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
)

var start = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

func requests(n uint64) Counters { return Counters{Requests: n} }

func TestSince(t *testing.T) {
	store, api := Key{"store", "E-017"}, Key{"api", "direct"}
	h := New(start)
	at := func(minutes float64) time.Time { return start.Add(time.Duration(minutes * float64(time.Minute))) }
	for i, counters := range []map[Key]Counters{
		{store: requests(10)},                    // minute 1
		{store: requests(10)},                    // 2: nothing
		{store: requests(25), api: requests(3)},  // 3
		{store: requests(26), api: requests(3)},  // 4
		{store: requests(20), api: requests(10)}, // 5: one fell, which counts do not
	} {
		h.Record(at(float64(i+1)), counters)
	}
	now := map[Key]Counters{store: requests(30), api: requests(10)}
	for _, tt := range []struct {
		name string
		now  float64
		back time.Duration
		from float64
		want map[Key]Counters
	}{
		{"less than what no step has yet", 5.5, 10 * time.Second, 5, map[Key]Counters{store: requests(4)}},
		{"just that", 5.5, 30 * time.Second, 5, map[Key]Counters{store: requests(4)}},
		{"a part of a step is all of it", 5.5, 31 * time.Second, 4, map[Key]Counters{store: requests(4), api: requests(7)}},
		{"a step", 5.5, 90 * time.Second, 4, map[Key]Counters{store: requests(4), api: requests(7)}},
		{"steps", 5.5, 3 * time.Minute, 2, map[Key]Counters{store: requests(20), api: requests(10)}},
		{"more than there is", 5.5, time.Hour, 0, map[Key]Counters{store: requests(30), api: requests(10)}},
	} {
		from, got := h.Since(at(tt.now), tt.back, now)
		if !from.Equal(at(tt.from)) || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: got %v from %v, want %v from %v", tt.name, got, from, tt.want, at(tt.from))
		}
	}
}

func TestADayIsKept(t *testing.T) {
	h := New(start)
	key := Key{"store", "E-017"}
	for minute := 1; minute <= 2000; minute++ {
		h.Record(start.Add(time.Duration(minute)*time.Minute), map[Key]Counters{key: requests(uint64(minute))})
	}
	end := start.Add(2000 * time.Minute)
	from, got := h.Since(end, Kept, map[Key]Counters{key: requests(2000)})
	if want := end.Add(-Kept); !from.Equal(want) || got[key] != requests(1440) {
		t.Errorf("got %d requests from %v, want 1440 from %v", got[key][Requests], from, want)
	}
	if n := len(h.steps); n != 1440 {
		t.Errorf("%d steps kept, want 1440", n)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	h := New(start)
	const pairs = 1000
	counters := make(map[Key]Counters)
	now := start
	for minute := 1; minute <= 200; minute++ {
		for i := range pairs {
			counters[Key{"store", fmt.Sprint(i)}] = requests(uint64(minute))
		}
		now = now.Add(time.Minute)
		h.Record(now, counters)
		if h.entries > maxEntries {
			t.Fatalf("%d entries after %d minutes, want at most %d", h.entries, minute, maxEntries)
		}
	}
	from, got := h.Since(now, Kept, counters)
	kept := maxEntries / pairs
	if want := now.Add(-time.Duration(kept) * time.Minute); !from.Equal(want) {
		t.Errorf("it reaches back to %v, want %v", from, want)
	}
	if n := got[Key{"store", "7"}]; n != requests(uint64(kept)) {
		t.Errorf("got %d requests, want %d", n[Requests], kept)
	}
}

func TestTrafficHasItsPlace(t *testing.T) {
	var c Counters
	for i := range trafficOf {
		c[i] = 99
	}
	for _, o := range policy.Outcomes() {
		c.SetTraffic(o, policy.Traffic{Exchanges: uint64(o), Sent: 10 + uint64(o), Received: 20 + uint64(o)})
	}
	for _, o := range policy.Outcomes() {
		if got, want := c.Traffic(o), (policy.Traffic{Exchanges: uint64(o), Sent: 10 + uint64(o), Received: 20 + uint64(o)}); got != want {
			t.Errorf("%v: got %+v, want %+v", o, got, want)
		}
	}
	for i := range trafficOf {
		if c[i] != 99 {
			t.Errorf("counter %d was overwritten", i)
		}
	}
}
