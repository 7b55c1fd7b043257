// SPDX-License-Identifier: Apache-2.0

package names

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/egressd/egressd/policy/ledger"
)

const (
	start = ledger.Time(time.Hour)
	sec   = time.Second
)

var (
	addr1 = netip.MustParseAddr("192.0.2.1")
	addr2 = netip.MustParseAddr("2001:db8::1")
)

func at(d time.Duration) ledger.Time { return start.Add(d) }

// follower keeps what Changed told.
type follower map[netip.Addr][]string

func (f follower) changed(addr netip.Addr, names []string) {
	slices.Sort(names)
	if slices.Equal(names, f[addr]) {
		panic(fmt.Sprintf("%s has the names %q still", addr, names))
	}
	if len(names) == 0 {
		delete(f, addr)
	} else {
		f[addr] = names
	}
}

func newTable(cfg Config) (*Table, follower) {
	f := follower{}
	cfg.Changed = f.changed
	return New(cfg), f
}

func (t *Table) sorted(addr netip.Addr, now ledger.Time) []string {
	return slices.Sorted(slices.Values(t.Names(addr, now)))
}

func TestNamesLive(t *testing.T) {
	for _, tt := range []struct {
		name    string
		ttl     time.Duration
		last    time.Duration // the last moment that it is known
		forgets time.Duration
	}{
		{"no time at all", 0, MinTTL - 1, MinTTL},
		{"a short time", 5 * sec, MinTTL - 1, MinTTL},
		{"a time between", 10 * time.Minute, 10*time.Minute - 1, 10 * time.Minute},
		{"a week", 7 * 24 * time.Hour, MaxTTL - 1, MaxTTL},
		{"less than none", -sec, MinTTL - 1, MinTTL},
	} {
		table, told := newTable(Config{})
		table.Learn(start, addr1, "store.example", tt.ttl)
		table.Expire(at(tt.last))
		if got := table.Names(addr1, at(tt.last)); !slices.Equal(got, []string{"store.example"}) || len(told) != 1 {
			t.Errorf("%s, after %s: got %q, told %v", tt.name, tt.last, got, told)
		}
		if got := table.Names(addr1, at(tt.forgets)); got != nil {
			t.Errorf("%s, after %s: got %q before Expire, want none", tt.name, tt.forgets, got)
		}
		table.Expire(at(tt.forgets))
		if got := table.Names(addr1, at(tt.forgets)); got != nil || len(told) != 0 || table.Counts() != (Counts{}) {
			t.Errorf("%s, after %s: got %q, told %v, %+v; want nothing", tt.name, tt.forgets, got, told, table.Counts())
		}
	}
}

func TestSeveralNames(t *testing.T) {
	table, told := newTable(Config{})
	table.Learn(start, addr1, "a.example", 0)
	table.Learn(start, netip.MustParseAddr("::ffff:192.0.2.1"), "b.example", 10*time.Minute)
	table.Learn(start, addr2, "a.example", 0)
	if got := table.sorted(addr1, start); !slices.Equal(got, []string{"a.example", "b.example"}) || !slices.Equal(told[addr1], got) {
		t.Errorf("got %q, told %q", got, told[addr1])
	}
	// The first one is asked for again, with less time: it keeps what it had.
	table.Learn(at(time.Minute), addr1, "b.example", 0)
	table.Expire(at(MinTTL))
	if got := table.Names(addr1, at(MinTTL)); !slices.Equal(got, []string{"b.example"}) || !slices.Equal(told[addr1], got) {
		t.Errorf("got %q, told %q", got, told[addr1])
	}
	if _, ok := told[addr2]; ok || table.Names(addr2, at(MinTTL)) != nil {
		t.Errorf("%s is still told: %v", addr2, told)
	}
}

func TestRange(t *testing.T) {
	table, told := newTable(Config{})
	table.Learn(start, addr1, "a.example", 0)
	table.Learn(start, addr2, "b.example", time.Hour)
	for i := range MaxNames + 1 {
		table.Learn(start, netip.MustParseAddr("192.0.2.9"), fmt.Sprintf("n%d.example", i), 0)
	}
	for _, now := range []ledger.Time{start, at(MinTTL), at(time.Hour)} {
		table.Expire(now)
		got := follower{}
		table.Range(now, got.changed)
		if !reflect.DeepEqual(got, told) {
			t.Errorf("after %s: got %v, told %v", now.Sub(start), got, told)
		}
	}
}

// With more names than are kept nothing is said of an address, until those that
// found no room would have ended.
func TestCrowd(t *testing.T) {
	table, told := newTable(Config{})
	for i := range MaxNames {
		table.Learn(start, addr1, fmt.Sprintf("n%d.example", i), 10*time.Minute)
	}
	if got := table.Names(addr1, start); len(got) != MaxNames || len(told[addr1]) != MaxNames {
		t.Fatalf("got %q, told %q", got, told[addr1])
	}
	table.Learn(start, addr1, "more.example", 5*time.Minute)
	if got := table.Names(addr1, start); got != nil || told[addr1] != nil {
		t.Errorf("with one more: got %q, told %q; want none", got, told[addr1])
	}
	if c := table.Counts(); c.Crowded != 1 || c.Overflown != 1 || c.Text != MaxNames*len("n0.example") {
		t.Errorf("got %+v", c)
	}
	table.Expire(at(5*time.Minute - 1))
	if told[addr1] != nil {
		t.Errorf("too soon: told %q", told[addr1])
	}
	table.Expire(at(5 * time.Minute))
	if got := table.Names(addr1, at(5*time.Minute)); len(got) != MaxNames || len(told[addr1]) != MaxNames || table.Counts().Crowded != 0 {
		t.Errorf("after it has ended: got %q, told %q", got, told[addr1])
	}
}

// What has ended, but was not looked at since, takes no room.
func TestNoCrowdOfTheDead(t *testing.T) {
	table, told := newTable(Config{})
	for i := range MaxNames {
		table.Learn(start, addr1, fmt.Sprintf("n%d.example", i), 0)
	}
	table.Learn(at(MinTTL), addr1, "new.example", 0)
	if got := table.Names(addr1, at(MinTTL)); !slices.Equal(got, []string{"new.example"}) || !slices.Equal(told[addr1], got) {
		t.Errorf("got %q, told %q", got, told[addr1])
	}
}

func TestEviction(t *testing.T) {
	table, told := newTable(Config{Addresses: 4})
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}) }
	for i := range 4 {
		table.Learn(start, addr(i), "store.example", time.Duration(10-i)*time.Minute)
	}
	// The newest stays, though it ends first; then the soonest goes.
	table.Learn(start, addr(4), "store.example", 0)
	table.Learn(start, addr(5), "store.example", 30*time.Minute)
	left := slices.SortedFunc(maps.Keys(told), netip.Addr.Compare)
	if want := []netip.Addr{addr(0), addr(1), addr(2), addr(5)}; !slices.Equal(left, want) {
		t.Errorf("got %v, want %v", left, want)
	}
	if c := table.Counts(); c.Addresses != 4 || c.Evicted != 2 {
		t.Errorf("got %+v", c)
	}

	table, told = newTable(Config{Text: 1000})
	long := strings.Repeat("x", 100)
	for i := range 50 {
		table.Learn(at(time.Duration(i)*sec), addr(i), long, 0)
	}
	if c := table.Counts(); c.Addresses != 10 || c.Text != 1000 || c.Evicted != 40 || len(told) != 10 {
		t.Errorf("got %+v, told of %d; want 10 addresses", c, len(told))
	}
}

// TestTableIsRight compares with a list of all that was ever learned: an address
// has exactly the names that live, or none while one of more than MaxNames would.
// What was evicted lacks some.
func TestTableIsRight(t *testing.T) {
	t.Run("room for all", func(t *testing.T) { compare(t, 24) })
	t.Run("evictions", func(t *testing.T) { compare(t, 20) })
}

func compare(t *testing.T, addresses int) {
	type fact struct {
		addr netip.Addr
		name string
	}
	exact, crowded := 0, 0
	for seed := range uint64(4) {
		rng := rand.New(rand.NewPCG(seed, 7))
		table, told := newTable(Config{Addresses: addresses})
		facts := map[fact]ledger.Time{}
		crowds := map[netip.Addr]ledger.Time{} // until when an address may have none
		now := start
		for range 1500 {
			now = now.Add(time.Duration(rng.IntN(3000)) * time.Millisecond)
			f := fact{netip.AddrFrom4([4]byte{10, 0, 0, byte(rng.IntN(24))}), fmt.Sprintf("n%d.example", rng.IntN(12))}
			ttl := time.Duration(rng.IntN(400)) * sec
			table.Learn(now, f.addr, f.name, ttl)
			facts[f] = max(facts[f], now.Add(max(ttl, MinTTL)))
			var want []string
			var ends []ledger.Time
			for had, end := range facts {
				if had.addr == f.addr && end > now {
					want, ends = append(want, had.name), append(ends, end)
				}
			}
			slices.Sort(want)
			slices.Sort(ends)
			if len(ends) > MaxNames {
				crowds[f.addr] = max(crowds[f.addr], ends[len(ends)-1-MaxNames])
			}
			switch got := table.sorted(f.addr, now); {
			case slices.Equal(got, want):
				exact++
			case got == nil && now < crowds[f.addr]:
				crowded++
			case addresses >= 24 || !subset(got, want):
				t.Fatalf("seed %d: %s: got %q, want %q", seed, f.addr, got, want)
			}
			if rng.IntN(16) == 0 {
				table.Expire(now)
				for i := range 24 {
					addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
					if got := table.sorted(addr, now); !slices.Equal(got, told[addr]) {
						t.Fatalf("seed %d: %s has %q, told %q", seed, addr, got, told[addr])
					}
				}
			}
		}
		if evicted := table.Counts().Evicted; evicted > 0 != (addresses < 24) {
			t.Errorf("seed %d: %d were evicted", seed, evicted)
		}
		table.Expire(now.Add(MaxTTL))
		if c := table.Counts(); c.Addresses != 0 || c.Text != 0 || len(told) != 0 {
			t.Errorf("seed %d: at the end: %+v, told %v", seed, c, told)
		}
	}
	if exact == 0 || crowded == 0 {
		t.Errorf("%d addresses were right and %d crowded: the test holds nothing", exact, crowded)
	}
}

func subset(part, of []string) bool {
	return !slices.ContainsFunc(part, func(s string) bool { return !slices.Contains(of, s) })
}

// BenchmarkLearn is an answer that is known already, in a full table, and one
// that takes another one's place.
func BenchmarkLearn(b *testing.B) {
	full := func() *Table {
		table := New(Config{})
		for i := range DefaultAddresses {
			table.Learn(start, netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), "www.store.example", time.Duration(i)*time.Millisecond)
		}
		return table
	}
	b.Run("known", func(b *testing.B) {
		table, i := full(), 0
		b.ReportAllocs()
		for b.Loop() {
			i = (i + 7919) % DefaultAddresses
			table.Learn(start, netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), "www.store.example", time.Minute)
		}
	})
	b.Run("new", func(b *testing.B) {
		table, i := full(), 0
		b.ReportAllocs()
		for b.Loop() {
			i++
			table.Learn(start, netip.AddrFrom4([4]byte{byte(20 + i>>24), byte(i >> 16), byte(i >> 8), byte(i)}), "www.store.example", time.Minute)
		}
	})
}
