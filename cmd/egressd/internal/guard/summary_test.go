// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/userspace/events"
)

func TestObserver(t *testing.T) {
	log := events.New(0)
	o := observe(log)
	const second = ledger.Time(time.Second)
	for _, ev := range []policy.Event{
		{At: second, Lane: "a", Wait: 2 * time.Millisecond},
		{At: second + 500, Lane: "b"},
		{At: 2*second - 1, Lane: "a", Wait: time.Second},
		{At: 2 * second, Lane: "a"}, // a second after the first: another window
		{At: 3*second - 2, Lane: "a"},
	} {
		ev.Kind = policy.EventDispatch
		log.Emit(ev)
	}
	log.Emit(policy.Event{At: 3 * second, Kind: policy.EventCooldown, Lane: "a", Wait: time.Hour})
	o.close()
	for _, tt := range []struct {
		lane    string
		longest time.Duration
		most    int
	}{
		{"a", time.Second, 3},
		{"b", 0, 1},
		{"c", 0, 0},
	} {
		got := o.of(tt.lane)
		if got.longest != tt.longest || got.most != tt.most {
			t.Errorf("%s: got longest wait %v and %d in a second, want %v and %d", tt.lane, got.longest, got.most, tt.longest, tt.most)
		}
	}
}
