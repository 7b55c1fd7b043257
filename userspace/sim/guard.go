// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
	"github.com/egressd/egressd/userspace/gate"
)

// guard is egressd between the workers and the origin: the engine and the gate
// of the daemon, on virtual time. It does for them what the proxy does.
type guard struct {
	engine *policy.Engine
	gate   *gate.Gate
	spread *rand.Rand
	facts  policy.Facts

	at   ledger.Time // what the alarm is set to; 0 if to nothing
	fire func()
	text []byte
}

// maxCells bounds the ledger of a simulation, as that of the daemon is.
const maxCells = 65536

func newGuard(p *policy.Policy, w *Workload, host string, spread *rand.Rand, now func() ledger.Time) (*guard, error) {
	// As many lanes as there can be, one for each exit and shape and a few
	// without an exit.
	cells := min(w.Clients.Exits*policy.MaxLanes+policy.MaxLanes+1, maxCells)
	engine, err := policy.NewEngine(p, make([]ledger.Cell, cells), nil, now())
	if err != nil {
		return nil, fmt.Errorf("simulate: %w", err)
	}
	g := &guard{engine: engine, spread: spread, facts: policy.Facts{
		Host: host, Dest: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 1}), 443),
		Method: w.Clients.Method, Path: w.Clients.Path,
	}}
	if addr, err := netip.ParseAddr(host); err == nil {
		g.facts.Dest = netip.AddrPortFrom(addr, 443)
	}
	g.gate = gate.New(gate.Config{
		Now: now,
		Alarm: func(_ func() ledger.Time, fire func()) (gate.Alarm, error) {
			g.fire = fire
			return g, nil
		},
	})
	return g, nil
}

// Set implements gate.Alarm.
func (g *guard) Set(at ledger.Time) { g.at = at }

// Close implements gate.Alarm.
func (g *guard) Close() error { return nil }

// ring lets the alarm go off, which is due.
func (g *guard) ring() {
	g.at = 0
	g.fire()
}

// held is what egressd keeps of a worker.
type held struct {
	waiter    gate.Waiter
	lanes     []*policy.Lane
	exit      string
	connected bool // its connection is open

	attempts int         // of the request in hand, made by egressd
	since    ledger.Time // when the request came
	drawn    *policy.Lane
}

// newHeld is for a worker of a process, which is a client of its own however
// queues tell them apart.
func newHeld(process int, exit string, notify func()) *held {
	n := process + 1
	return &held{exit: exit, waiter: gate.Waiter{
		Notify: notify,
		Client: policy.Client{Process: uint32(n), UID: uint32(n), Cgroup: uint64(n)},
	}}
}

// enter takes the next request to the gate. The first one also opens the
// connection that the others go by.
func (g *guard) enter(h *held, now ledger.Time) gate.Outcome {
	h.attempts, h.since, h.waiter.Since = 1, now, 0
	g.choose(h, now)
	if !h.connected {
		h.connected = true
		h.lanes = g.engine.Select(h.lanes, &g.facts, policy.ForHTTPConnection, now)
	}
	return g.gate.Enter(&h.waiter, h.lanes, now)
}

// choose finds the lanes of a request.
func (g *guard) choose(h *held, now ledger.Time) {
	g.facts.Exit = h.exit
	h.lanes = g.engine.Select(h.lanes[:0], &g.facts, policy.ForRequest, now)
}

// answered tells the gate what the origin said. It returns how that is judged.
func (g *guard) answered(h *held, a *answer, wall time.Time, now ledger.Time) verdict.Verdict {
	if a.status == 0 {
		g.gate.Abort(&h.waiter, true, now)
		return verdict.Verdict{Kind: verdict.Error}
	}
	head := verdict.Head{Status: a.status, At: wall}
	var statuses []int
	if l := policy.Target(h.lanes); l != nil {
		rule := l.Budget()
		statuses = rule.Cooldown.Statuses
		head.RetryAfterOnly = rule.HeadersOff
		if head.Only = rule.Dialect; head.Only == nil {
			head.Dialects = g.engine.Policy().Dialects
		}
	}
	g.fields(a, &head)
	v := head.Verdict(statuses)
	g.gate.Done(&h.waiter, v, g.spread.Float64(), now)
	return v
}

// fields gives h the fields of an answer.
func (g *guard) fields(a *answer, h *verdict.Head) {
	number := func(name, before string, n uint64, after string) {
		g.text = append(strconv.AppendUint(append(g.text[:0], before...), n, 10), after...)
		h.Field([]byte(name), g.text)
	}
	if a.retryAfter > 0 {
		number("Retry-After", "", uint64(a.retryAfter/time.Second), "")
	}
	if !a.hasQuota {
		return
	}
	q := &a.quota
	window, reset := uint64(inSeconds(q.window)/time.Second), uint64(inSeconds(q.reset)/time.Second)
	if a.dialect == HeadersXRateLimit {
		number("X-RateLimit-Limit", "", q.limit, "")
		number("X-RateLimit-Remaining", "", q.left, "")
		number("X-RateLimit-Reset", "", reset, "")
		return
	}
	number("RateLimit-Policy", `"default";q=`+strconv.FormatUint(q.limit, 10)+";w=", window, "")
	number("RateLimit", `"default";r=`+strconv.FormatUint(q.left, 10)+";t=", reset, "")
}
