// SPDX-License-Identifier: Apache-2.0

package member

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/egressd/egressd/policy"
	shared "github.com/egressd/egressd/policy/fleet"
	"github.com/egressd/egressd/policy/fleet/model"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/userspace/fleet"
	"github.com/egressd/egressd/userspace/gate"
	"github.com/egressd/egressd/userspace/mono"
)

// memory is a store in memory, which can be made to hang.
type memory struct {
	mu       sync.Mutex
	store    model.Store
	notices  []func(fleet.Notice)
	hangs    atomic.Bool
	underway atomic.Int64
}

func newMemory() *memory {
	m := &memory{}
	m.store.Publish = func(lane string, a shared.Answer) {
		for _, f := range m.notices {
			go f(fleet.Notice{Lane: lane, Host: "somebody", Epoch: a.Epoch, OpenAfter: a.OpenAfter, Interval: a.Interval})
		}
	}
	return m
}

func (m *memory) Do(ctx context.Context, c shared.Call) (shared.Answer, error) {
	m.underway.Add(1)
	defer m.underway.Add(-1)
	if m.hangs.Load() {
		<-ctx.Done()
		return shared.Answer{}, ctx.Err()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.store.Do(mono.Now(), &c), nil
}

func (m *memory) Subscribe(ctx context.Context, f func(fleet.Notice)) error {
	m.mu.Lock()
	m.notices = append(m.notices, f)
	m.mu.Unlock()
	f(fleet.Notice{}) // it begins
	<-ctx.Done()
	return ctx.Err()
}

// host is a host with a gate of its own.
type host struct {
	engine *policy.Engine
	gate   *gate.Gate
	member *Member
}

func newHost(t *testing.T, store Store, name string, loss shared.Loss, maxWait time.Duration) *host {
	t.Helper()
	b := &policy.Budget{
		Name: "shop", Match: policy.Match{Ports: []uint16{80}}, Per: policy.PerDestination,
		Rate: policy.Rate{Count: 100, Every: time.Second}, Burst: 1, Queue: policy.Queue{Max: 1000, MaxWait: maxWait},
		Cooldown: policy.Cooldown{Default: time.Second, Max: time.Hour}, Recovery: policy.Recovery{Factor: 0.5, Step: 1.1},
		Fleet: &policy.Fleet{Loss: loss, Hosts: 2},
	}
	engine, err := policy.NewEngine(&policy.Policy{Budgets: []*policy.Budget{b}}, make([]ledger.Cell, 64), nil, mono.Now())
	if err != nil {
		t.Fatal(err)
	}
	h := &host{engine: engine, gate: gate.New(gate.Config{Now: mono.Now})}
	h.member = New(Config{Store: store, Host: name, Now: mono.Now, Follow: h.gate.Follow})
	engine.Join(h.member, name, mono.Now())
	t.Cleanup(func() {
		if err := h.member.Close(); err != nil {
			t.Error(err)
		}
		if err := h.gate.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func (h *host) lanes() []*policy.Lane {
	f := policy.Facts{Host: "shop.example", Dest: netip.MustParseAddrPort("192.0.2.1:80")}
	return h.engine.Select(nil, &f, policy.ForRequest, mono.Now())
}

// send sends one request and reports whether it went.
func (h *host) send(t *testing.T) (*gate.Waiter, bool) {
	t.Helper()
	w := new(gate.Waiter)
	out, err := h.gate.Wait(context.Background(), w, h.lanes())
	if err != nil {
		t.Fatal(err)
	}
	return w, out.State == gate.Granted
}

// TestMembers has two hosts hold a limit together, of which one leaves.
func TestMembers(t *testing.T) {
	store := newMemory()
	a, b := newHost(t, store, "a", shared.LossShare, time.Minute), newHost(t, store, "b", shared.LossShare, time.Minute)
	start := time.Now()
	var all sync.WaitGroup
	for _, h := range []*host{a, b} {
		for range 4 {
			all.Go(func() {
				for range 25 {
					if w, went := h.send(t); went {
						h.gate.Abort(w, false, mono.Now())
					} else {
						t.Error("refused")
					}
				}
			})
		}
	}
	all.Wait()
	// 200 at 100/s, burst 1, and two hosts hold a unit or five each.
	if took := time.Since(start); took < 1900*time.Millisecond {
		t.Errorf("200 requests at 100/s took %v", took)
	}
	for _, h := range []*host{a, b} {
		if n := h.lanes()[0].Shared().State(mono.Now()).Stats; n.Calls[shared.Lease] == 0 || n.Failures != 0 {
			t.Errorf("calls by kind %v, %d failed", n.Calls, n.Failures)
		}
	}
}

// TestHeard closes a lane on a host that sends nothing, by what another
// published.
func TestHeard(t *testing.T) {
	store := newMemory()
	a, b := newHost(t, store, "a", shared.LossShare, time.Minute), newHost(t, store, "b", shared.LossShare, time.Minute)
	w, went := a.send(t)
	if !went {
		t.Fatal("refused")
	}
	for listening := 0; listening < 2; time.Sleep(time.Millisecond) {
		store.mu.Lock()
		listening = len(store.notices)
		store.mu.Unlock()
	}
	l := b.lanes()[0]
	a.gate.SetCooldown(a.lanes()[0], mono.Now().Add(time.Minute))
	a.gate.Abort(w, false, mono.Now())
	deadline := time.Now().Add(5 * time.Second)
	for ledger.Time(l.Cell.OpenUntil.Load()) < mono.Now().Add(50*time.Second) {
		if time.Now().After(deadline) {
			t.Fatalf("the other host did not hear: opens at %v", l.Cell.OpenUntil.Load())
		}
		time.Sleep(time.Millisecond)
	}
	if c, ok := l.Closed(); !ok || !c.Fleet {
		t.Errorf("closed as %+v", c)
	}
}

// TestHangs is a store that takes calls and never answers: requests go by the
// budget's rule, none hangs, and the member ends.
func TestHangs(t *testing.T) {
	for _, tc := range []struct {
		loss shared.Loss
		goes bool
	}{{shared.LossShare, true}, {shared.LossClosed, false}, {shared.LossOpen, true}} {
		store := newMemory()
		store.hangs.Store(true)
		h := newHost(t, store, "a", tc.loss, 3*time.Second)
		start := time.Now()
		if _, went := h.send(t); went != tc.goes {
			t.Errorf("%v: went = %v", tc.loss, went)
		}
		if took := time.Since(start); took > 8*time.Second {
			t.Errorf("%v: took %v", tc.loss, took)
		}
		if n := store.underway.Load(); n > 2 {
			t.Errorf("%v: %d calls under way for one lane", tc.loss, n)
		}
	}
}

// TestEnds ends lanes and members while calls are under way: nothing is called
// after Close.
func TestEnds(t *testing.T) {
	store := newMemory()
	h := newHost(t, store, "a", shared.LossShare, time.Minute)
	h.send(t)
	store.hangs.Store(true)
	l := h.lanes()[0]
	h.engine.Swap(&policy.Policy{}, mono.Now())
	if l.Shared() != nil {
		t.Error("a lane without a budget is shared")
	}
	if err := h.member.Close(); err != nil {
		t.Fatal(err)
	}
	if n := store.underway.Load(); n != 0 {
		t.Errorf("%d calls under way after Close", n)
	}
	if err := h.member.Close(); err != nil {
		t.Error("closed twice:", err)
	}
	if h.member.ctx.Err() == nil {
		t.Error("still open")
	}
}
