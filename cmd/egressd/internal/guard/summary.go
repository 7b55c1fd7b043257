// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/userspace/events"
)

// Lane is what happened to one lane.
type Lane struct {
	Lane     string `json:"lane"`
	Requests uint64 `json:"requests"` // that were let go
	Held     uint64 `json:"held"`     // that had to wait first
	Refused  uint64 `json:"refused"`  // that were not let go
	Limited  uint64 `json:"limited"`  // answers that were limits
	// LongestWait is the longest time in the gate, in seconds;
	// MaxInAnySecond the largest number let go in any window of one second.
	LongestWait    float64 `json:"longest_wait_s"`
	MaxInAnySecond int     `json:"max_in_any_second"`
}

// Lanes tells what happened so far, in the order of lanes' names. It must be
// called before Stop.
func (g *Guard) Lanes() []Lane {
	var out []Lane
	for _, l := range g.daemon.Lanes() {
		seen := g.observer.of(l.ID())
		out = append(out, Lane{
			Lane:           l.ID(),
			Requests:       l.Cell.Granted.Load(),
			Held:           l.Cell.Held.Load(),
			Refused:        l.Cell.Refused.Load(),
			Limited:        l.Cell.Limited.Load(),
			LongestWait:    seen.longest.Seconds(),
			MaxInAnySecond: seen.most,
		})
	}
	slices.SortFunc(out, func(a, b Lane) int { return strings.Compare(a.Lane, b.Lane) })
	return out
}

// PassedBy counts connections that the policy names and that went untouched
// nevertheless, by the gate that did not hold. It must be called before Stop.
func (g *Guard) PassedBy() map[string]uint64 { return g.daemon.PassedBy() }

// observer follows the dispatches of all lanes.
type observer struct {
	sub  *events.Subscription
	done chan struct{}

	mu    sync.Mutex
	lanes map[string]*dispatches
}

// dispatches are those of one lane.
type dispatches struct {
	longest time.Duration
	most    int
	recent  []ledger.Time // within a second of the last
}

// observe begins to follow. The caller calls close.
func observe(log *events.Log) *observer {
	_, sub := log.Subscribe(0, events.Options{Buffer: 1 << 14, Dispatches: true})
	o := &observer{sub: sub, done: make(chan struct{}), lanes: make(map[string]*dispatches)}
	go func() {
		defer close(o.done)
		for ev := range sub.C {
			if ev.Kind == policy.EventDispatch {
				o.add(ev)
			}
		}
	}()
	return o
}

func (o *observer) close() {
	o.sub.Close()
	<-o.done
}

func (o *observer) add(ev policy.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	d := o.lanes[ev.Lane]
	if d == nil {
		d = new(dispatches)
		o.lanes[ev.Lane] = d
	}
	d.longest = max(d.longest, ev.Wait)
	old := 0
	for old < len(d.recent) && ev.At.Sub(d.recent[old]) >= time.Second {
		old++
	}
	d.recent = append(slices.Delete(d.recent, 0, old), ev.At)
	d.most = max(d.most, len(d.recent))
}

// of is what the lane has seen so far.
func (o *observer) of(lane string) dispatches {
	o.mu.Lock()
	defer o.mu.Unlock()
	if d := o.lanes[lane]; d != nil {
		return dispatches{longest: d.longest, most: d.most}
	}
	return dispatches{}
}
