// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"math"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
	"github.com/egressd/egressd/policy"
)

// forecast fills in the lanes of what matches, and says what would become of a
// request that came now. It weighs what the gate weighs when one comes: how
// many are before it in each lane, and what the lane would need for them.
func (live *Live) forecast(e *admin.Explanation) *admin.Next {
	if !e.Led {
		return &admin.Next{Outcome: admin.NextUntouched}
	}
	lanes := make(map[string]*policy.Lane, len(live.Lanes))
	for _, l := range live.Lanes {
		lanes[l.ID()] = l
	}
	flows := live.Flows()
	next := &admin.Next{Outcome: admin.NextUnlimited}
	slowest, longest := time.Duration(-1), time.Duration(math.MaxInt64)
	var full *admin.Matched
	for i := range e.Budgets {
		m := &e.Budgets[i]
		l := lanes[m.Lane]
		if !m.Matches {
			continue
		}
		if l == nil {
			// A lane that nobody has used lets the first one go.
			if next.Outcome == admin.NextUnlimited {
				next.Outcome, next.Lane = admin.NextNow, m.Lane
			}
			continue
		}
		state := live.Show(l)
		m.State = &state
		if !l.Enforced() {
			continue
		}
		queue := l.Budget().Queue
		before(m, l, flows)
		wait := l.After(live.Now, uint64(m.Ahead))
		m.Wait, m.Answer = wait.Seconds(), answer(l)
		next.AtLeast = next.AtLeast || m.Answer != ""
		if m.Budget != policy.ExitBudget {
			longest = min(longest, queue.MaxWait)
		}
		if m.Budget != policy.ExitBudget && state.Waiting >= int64(queue.Max) && full == nil {
			full = m
		}
		if wait > slowest {
			slowest, next.Lane = wait, m.Lane
		}
	}
	if slowest < 0 {
		return next
	}
	next.Outcome, next.Wait = admin.NextNow, slowest.Seconds()
	if longest != math.MaxInt64 {
		next.MaxWait = longest.Seconds()
	}
	switch {
	case full != nil && !full.AtMost:
		next.Outcome, next.Lane, next.Reason = admin.NextRefused, full.Lane, policy.RefusedQueueFull.String()
	case slowest > longest:
		next.Outcome, next.Reason = admin.NextRefused, policy.RefusedMaxWait.String()
	case slowest > 0 || next.AtLeast:
		next.Outcome = admin.NextWaits
	}
	return next
}

// before finds how many would go before a new request in a lane, and who of
// them is known to wait for it: a connection tells of the most specific of its
// lanes only.
func before(m *admin.Matched, l *policy.Lane, flows []admin.Flow) {
	m.Ahead = max(0, l.Waiting.Load())
	by := l.Budget().Queue.FairBy
	clients := map[uint64]bool{}
	places := map[uint32]int{}
	for _, f := range flows {
		if f.State != held || f.Lane != m.Lane {
			continue
		}
		clients[policy.Client{Process: f.PID, UID: f.UID, Cgroup: f.Cgroup}.Key(by)] = true
		i, known := places[f.PID]
		if !known {
			i = len(m.Before)
			places[f.PID] = i
			m.Before = append(m.Before, admin.Waiter{PID: f.PID, Command: f.Command})
		}
		m.Before[i].Waiting++
	}
	if by != policy.FairNone && m.Ahead > 0 {
		// A client that has nobody in the queue goes after one of each of the
		// others at the latest.
		m.AtMost = true
		if n := int64(len(clients)); n > 0 {
			m.Ahead = min(m.Ahead, n)
		}
	}
}

// held is the state of a flow that waits in a gate.
const held = "held"

// answer says what has to be answered before the lane lets anything go; "" if
// only time holds it.
func answer(l *policy.Lane) string {
	switch {
	case l.Cell.Probing():
		return "its probe"
	case l.Full():
		return fmt.Sprintf("one of %d under way", l.InFlight.Load())
	}
	return ""
}
