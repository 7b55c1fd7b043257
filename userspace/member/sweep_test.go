// SPDX-License-Identifier: Apache-2.0

package member

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	shared "github.com/egressd/egressd/policy/fleet"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/userspace/fleet"
)

// silent is a store that nobody asks anything.
type silent struct{}

func (silent) Do(context.Context, shared.Call) (shared.Answer, error) {
	return shared.Answer{}, fleet.ErrDown
}

func (silent) Subscribe(ctx context.Context, _ func(fleet.Notice)) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestEndedLanesAreForgotten has more destinations come and go than there are
// cells, each used once.
func TestEndedLanesAreForgotten(t *testing.T) {
	const start = ledger.Time(1000 * time.Second)
	budget := &policy.Budget{
		Name: "b", Match: policy.Match{Ports: []uint16{80}}, Per: policy.PerDestination, Rate: policy.Rate{Count: 1, Every: time.Second},
		Burst: 1, Queue: policy.Queue{Max: 1, MaxWait: time.Second}, Fleet: &policy.Fleet{},
	}
	const cells = 32
	e, err := policy.NewEngine(&policy.Policy{Budgets: []*policy.Budget{budget}}, make([]ledger.Cell, cells), nil, start)
	if err != nil {
		t.Fatal(err)
	}
	m := New(Config{Store: silent{}, Host: "h", Now: func() ledger.Time { return start }, Follow: func(*policy.Lane) {}})
	defer m.Close()
	e.Join(m, "h", start)
	now, most := start, 0
	for i := range 100 * cells {
		f := policy.Facts{Host: fmt.Sprintf("h%d.example", i), Dest: netip.MustParseAddrPort("192.0.2.7:80"), Method: "GET", Path: "/"}
		lanes := e.Select(nil, &f, policy.ForRequest, now)
		if len(lanes) != 1 || lanes[0].Shared() == nil {
			t.Fatalf("destination %d: lanes %v, want one that is shared", i, lanes)
		}
		now = now.Add(time.Minute)
		m.mu.Lock()
		most = max(most, len(m.lanes))
		m.mu.Unlock()
	}
	if most > leastRoom+1 {
		t.Errorf("the member knew %d lanes at once, of %d that there can be", most, cells)
	}
	for _, l := range e.Lanes() {
		m.mu.Lock()
		k := m.lanes[l.ID()]
		m.mu.Unlock()
		if k == nil || k.shared != l.Shared() {
			t.Errorf("lane %s was forgotten", l.ID())
		}
	}
}
