// SPDX-License-Identifier: Apache-2.0

// Package member makes this host a member of a fleet: it makes the calls to the
// store that shared lanes have due, one after the other for each lane, and tells
// the lanes, and who waits in them, what comes of it.
package member

import (
	"context"
	"sync"
	"time"

	"github.com/egressd/egressd/policy"
	shared "github.com/egressd/egressd/policy/fleet"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/userspace/fleet"
)

// Store is what the fleet shares: a *fleet.Store.
type Store interface {
	shared.Store
	// Subscribe calls f with every change that a host publishes, until ctx ends.
	Subscribe(ctx context.Context, f func(fleet.Notice)) error
}

// Config is what a Member is made of. All of it is needed.
type Config struct {
	Store Store
	// Host is this one's name in the fleet: what others publish is news, what it
	// published itself is not.
	Host string
	// Now tells the time of the ledger.
	Now func() ledger.Time
	// Follow is called, from any goroutine, after a lane's part in the fleet
	// changed: gate.Gate.Follow.
	Follow func(*policy.Lane)
}

// Member is this host's membership: see policy.Engine.Join. Safe for concurrent
// use. Close it before its store.
type Member struct {
	c      Config
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup

	sleeps sleeps

	mu     sync.Mutex // guards what follows
	closed bool
	lanes  map[string]*link // by id
	room   int              // with so many links, those of lanes that ended are looked for
}

// Sleeps implements policy.Fleeted.
func (m *Member) Sleeps() uint64 { return m.sleeps.count() }

// leastRoom is how many links are kept without looking.
const leastRoom = 64

// link is what the member has of a lane.
type link struct {
	member *Member
	lane   *policy.Lane
	shared *policy.Shared
	timer  *time.Timer
}

var _ policy.Fleeted = (*Member)(nil)

// New makes a member, which listens to what others publish from now on.
func New(c Config) *Member {
	m := &Member{c: c, lanes: map[string]*link{}, room: leastRoom}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.work.Go(func() { _ = c.Store.Subscribe(m.ctx, m.heard) }) // it ends by ctx alone
	return m
}

// Close ends all calls. Shared lanes then get nothing from the store.
func (m *Member) Close() error {
	m.mu.Lock()
	m.closed = true
	for _, k := range m.lanes {
		k.timer.Stop()
	}
	m.mu.Unlock()
	m.cancel()
	m.work.Wait()
	return nil
}

// Share implements policy.Fleeted.
func (m *Member) Share(l *policy.Lane, s *policy.Shared) (wake func(at ledger.Time)) {
	k := &link{member: m, lane: l, shared: s}
	const never = 1<<63 - 1
	k.timer = time.AfterFunc(never, k.run)
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.lanes) >= m.room {
		m.sweep()
	}
	m.lanes[l.ID()] = k
	return k.wake
}

// sweep forgets lanes that ended, or are no longer shared: those that had no
// call due then did not find out by themselves. Under mu, and never while
// another lane begins: Share comes for one after the other.
func (m *Member) sweep() {
	for id, k := range m.lanes {
		if k.lane.Shared() != k.shared {
			k.timer.Stop()
			delete(m.lanes, id)
		}
	}
	m.room = max(leastRoom, 2*len(m.lanes))
}

func (k *link) wake(at ledger.Time) { k.timer.Reset(max(0, at.Sub(k.member.c.Now()))) }

// run begins the calls that are due.
func (k *link) run() {
	m := k.member
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.closed:
		return
	case k.lane.Shared() != k.shared: // the lane ended, or is no longer shared
		if m.lanes[k.lane.ID()] == k {
			delete(m.lanes, k.lane.ID())
		}
		return
	}
	for _, f := range k.shared.Due(m.c.Now()) {
		m.work.Go(func() { k.call(f) })
	}
}

func (k *link) call(f shared.Flight) {
	m := k.member
	ctx, cancel := context.WithTimeout(m.ctx, k.shared.Timeout())
	defer cancel()
	answer, err := m.c.Store.Do(ctx, f.Call)
	if err != nil {
		k.shared.Failed(f, m.c.Now())
	} else {
		k.shared.Answered(f, answer, m.c.Now())
	}
	m.c.Follow(k.lane)
}

// heard takes in what a host published.
func (m *Member) heard(n fleet.Notice) {
	if n.Host == m.c.Host || n.Lane == "" {
		return // what was missed comes with the next heartbeat
	}
	m.mu.Lock()
	k := m.lanes[n.Lane]
	m.mu.Unlock()
	if k == nil {
		return // the lane's first call will tell
	}
	k.shared.Heard(shared.Answer{Epoch: n.Epoch, OpenAfter: n.OpenAfter, Interval: n.Interval}, m.c.Now())
	m.c.Follow(k.lane)
}
