// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressd/egressd/loader"
	"github.com/egressd/egressd/metrics"
	"github.com/egressd/egressd/policy"
)

var (
	addrA = netip.MustParseAddrPort("192.0.2.1:443")
	addrB = netip.MustParseAddrPort("192.0.2.2:443")
)

// redirected sums up the outcome of that name for each label.
func redirected(all []metrics.Connections) map[string]uint64 {
	got := make(map[string]uint64)
	for _, c := range all {
		for _, o := range c.Outcomes {
			if o.Label == "redirected" {
				got[c.Destination] += o.N
			}
		}
	}
	return got
}

func TestNamesNeverMoveCounts(t *testing.T) {
	var n names
	counts := func(a, b uint64) []loader.Destination {
		return []loader.Destination{
			{Dest: addrA, Exit: "direct", Redirected: a},
			{Dest: addrB, Exit: "direct", Redirected: b},
		}
	}
	for _, step := range []struct {
		name         string
		act          func()
		a, b         uint64
		other, store uint64
	}{
		{"nothing is known", func() {}, 3, 1, 4, 0},
		{"an address shows its name", func() { n.saw(addrA, "store") }, 5, 1, 4, 2},
		{"the other one, too", func() { n.saw(addrB, "store") }, 5, 2, 4, 3},
		{"a new policy", func() { n.forget() }, 6, 2, 5, 3},
		{"a counter begins anew", func() {}, 2, 2, 7, 3},
	} {
		step.act()
		got := redirected(mustCount(t, &n, counts(step.a, step.b)))
		if got["other"] != step.other || got["store"] != step.store {
			t.Errorf("%s: got %v, want other %d and store %d", step.name, got, step.other, step.store)
		}
	}
}

func TestNamesAreBounded(t *testing.T) {
	var n names
	for i := range 3 * maxNames {
		addr := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		n.saw(netip.AddrPortFrom(addr, 443), "store")
		if len(n.labels) > maxNames {
			t.Fatalf("got %d labels, want at most %d", len(n.labels), maxNames)
		}
	}
}

func TestNamesSumHandshakes(t *testing.T) {
	var n names
	for _, total := range []uint64{1, 3, 3} {
		mustCount(t, &n, []loader.Destination{{Dest: addrA, Exit: "direct", Retransmits: total, Handshakes: total, HandshakeTime: time.Duration(total) * time.Millisecond}})
	}
	got := mustCount(t, &n, nil)
	if len(got) != 1 || got[0].Retransmits != 3 || got[0].Handshakes != 3 || got[0].HandshakeTime != 3*time.Millisecond {
		t.Errorf("got %+v, want 3 of each", got)
	}
}

// mustCount counts what the kernel is said to have counted.
func mustCount(t *testing.T, n *names, all []loader.Destination) []metrics.Connections {
	t.Helper()
	sums, err := n.count(func() ([]loader.Destination, error) { return all, nil })
	if err != nil {
		t.Fatal(err)
	}
	return sums
}

// Several who count at once, as two scrapes do, count nothing twice.
func TestNamesCountAtOnce(t *testing.T) {
	var n names
	var kernel atomic.Uint64
	read := func() ([]loader.Destination, error) {
		v := kernel.Add(1)
		time.Sleep(time.Duration(v%3) * 100 * time.Microsecond) // who read first need not be first
		return []loader.Destination{{Dest: addrA, Exit: "direct", Redirected: v}}, nil
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				if _, err := n.count(read); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if got := redirected(mustCount(t, &n, nil)); got[policy.OtherLabel] != kernel.Load() {
		t.Errorf("counted %v, want %d", got, kernel.Load())
	}
}
