// SPDX-License-Identifier: Apache-2.0

// Package gate holds requests in front of their lanes and lets them go when the
// ledger grants them: in order of arrival, or, where a budget says so, each
// client in its turn.
//
// Units are taken at the instant of dispatch and never before: a cooldown that
// is set later holds everyone who waits, and who leaves the queue has cost
// nothing. A request that falls into several lanes takes a unit of each or of
// none.
//
// A Waiter belongs to the gate from Enter until it was notified, left, or its
// dispatch was reported by Done or Abort. It must not be copied or used for
// another request in between.
package gate

import (
	"log/slog"
	"sync"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/userspace/events"
)

// Config is what a gate needs. Now is required.
type Config struct {
	// Now tells the time of the ledger.
	Now func() ledger.Time
	// Events is told what happens; nil means nobody is.
	Events *events.Log
	// Logger is told when lanes close and open; nil discards.
	Logger *slog.Logger
	// Alarm makes the timer that wakes the gate. It must not call fire before
	// it returns. nil means the most precise one that the system has.
	Alarm func(now func() ledger.Time, fire func()) (Alarm, error)
	// ProbeTimeout is how long the lane of a probe that gets no answer waits
	// before it sends another; 0 means 30 s. A hanging answer would otherwise
	// hold the lane for as long as it hangs.
	ProbeTimeout time.Duration
}

// State is where a waiter stands.
type State uint8

// States.
const (
	Granted State = iota // go now, then report by Done or Abort
	Queued               // Notify will be called, once
	Refused              // do not go
)

// Outcome is the gate's decision on a waiter.
type Outcome struct {
	State State
	// Of a refusal: why, the lane that has no room, whether the budget wants
	// the connection dropped rather than answered, and when to try again.
	Reason     policy.Refusal
	Lane       *policy.Lane
	Drop       bool
	RetryAfter time.Duration
	Ahead      int // how many would have gone before it in that lane
}

// Waiter is one request, or connection, on its way through the gate. Embed it
// in what it stands for; the zero Waiter with Notify set is ready, and can be
// used again when it is done. Its owner calls its methods, and those of the
// gate that take it, from one goroutine at a time.
type Waiter struct {
	// Notify is called once for each Enter that returned Queued and was not
	// undone by Leave, from any goroutine, without locks held. Outcome then
	// tells the decision.
	Notify func()
	// Client is who the request came from, where a budget's queue is fair.
	Client policy.Client
	// Job, where events tell of it, is the same for two requests for the same; 0
	// where that is not known.
	Job uint64
	// Since, when not zero, is when the request first came: the longest wait
	// that its budgets allow counts from then, not from Enter.
	Since ledger.Time
	// Tally and Meter are what the waiter is counted by. nil means those of
	// its first lane.
	Tally *policy.Tally
	Meter *policy.ExitMeter
	// Rotating says that the exit has another address for the next connection,
	// so that a limit of this one is no limit of the exit.
	Rotating bool

	outcome  Outcome
	phase    phase
	n        int
	enforced uint16 // bit i: lanes[i] may hold it
	entered  ledger.Time
	sent     ledger.Time // when it was dispatched
	lanes    [policy.MaxLanes]*policy.Lane
	grants   [policy.MaxLanes]policy.Grant
	ticket   *ticket // while queued
	done     chan struct{}
}

// phase guards a waiter against reports that come twice.
type phase uint8

const (
	idle phase = iota
	queued
	dispatched
)

// Outcome is the decision that Notify announced.
func (w *Waiter) Outcome() Outcome { return w.outcome }

// Dispatched is the instant at which the waiter was granted, exactly as the
// ledger saw it.
func (w *Waiter) Dispatched() ledger.Time { return w.sent }

// Held is the time that the waiter spent in the gate before it was granted.
func (w *Waiter) Held() time.Duration { return w.sent.Sub(w.entered) }

// Gate is the queue in front of all lanes of one engine. Safe for concurrent
// use. Requests that nobody stands before pass without a lock.
type Gate struct {
	cfg   Config
	alarm Alarm

	mu      sync.Mutex // guards all below, Lane.Queue, and waiters while queued
	closed  bool
	seq     uint64 // of the last ticket
	timers  timers
	armed   ledger.Time // what alarm is set to; 0 if to nothing
	dirty   *queue      // to be looked at before mu is released
	decided *ticket     // to be notified after that
	last    *ticket     // the end of decided
	round   uint64      // of choose
	spare   *ticket
	flows   pool
}

// New makes a gate. The caller closes it.
func New(cfg Config) *Gate {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.ProbeTimeout <= 0 {
		cfg.ProbeTimeout = 30 * time.Second
	}
	g := &Gate{cfg: cfg}
	if cfg.Alarm == nil {
		cfg.Alarm = Precise
	}
	var err error
	if g.alarm, err = cfg.Alarm(cfg.Now, g.tick); err != nil {
		cfg.Logger.Warn("no precise timer: requests are let go up to a millisecond late", "err", err)
		g.alarm = newTimer(cfg.Now, g.tick)
	}
	return g
}

// Close refuses everyone who waits, and from then on everyone who would have
// to. It waits for the timer to end, not for dispatched requests.
func (g *Gate) Close() error {
	g.mu.Lock()
	already := g.closed
	g.closed = true
	for _, q := range g.timers.all() {
		for s := q.due.head; s != nil; s = q.due.head {
			g.refuse(s.ticket, policy.RefusedShutdown, q.lane, 0, q.before(s))
		}
	}
	g.unlock()
	if already {
		return nil
	}
	return g.alarm.Close()
}

// Enter asks for a unit of each of the lanes, of which there are at most
// policy.MaxLanes and the most specific comes first. It never blocks.
//
// Granted: the request must go now, and its fate be reported by Done or Abort.
// Queued: w.Notify will be called. Refused: it would have to wait for longer
// than a budget allows, or too many wait already.
func (g *Gate) Enter(w *Waiter, lanes []*policy.Lane, now ledger.Time) Outcome {
	w.n = copy(w.lanes[:], lanes)
	w.entered = now
	w.outcome = Outcome{}
	w.enforced = 0
	free := true
	for i, l := range w.lanes[:w.n] {
		if l.Enforced() {
			w.enforced |= 1 << i
			// Who comes later must not overtake: with someone in the queue,
			// the queue decides.
			free = free && l.Waiting.Load() == 0
		}
	}
	if free && w.take(now) {
		g.dispatch(w, now)
		return w.outcome
	}
	return g.enqueue(w, free, now)
}

// take takes a unit of each lane at now, or of none. Lanes that are not
// enforced give one if they have it, and count who would have been held if
// not.
func (w *Waiter) take(now ledger.Time) bool {
	if w.n > 1 {
		// A look first: what is taken and given back is lost if someone else
		// takes in between.
		for i, l := range w.lanes[:w.n] {
			if w.held(i) {
				if _, ready := l.Peek(now); !ready {
					return false
				}
			}
		}
	}
	for i, l := range w.lanes[:w.n] {
		grant, _, ok := l.Take(now)
		w.grants[i] = grant
		switch {
		case ok:
		case w.held(i):
			for k := i - 1; k >= 0; k-- {
				w.lanes[k].Return(w.grants[k], now)
				w.lanes[k].Release()
			}
			return false
		default:
			l.Overrun()
		}
	}
	for i, l := range w.lanes[:w.n] {
		if !w.held(i) && w.grants[i].Cost == 0 {
			l.Cell.Held.Add(1) // would have been
		}
	}
	return true
}

// held reports whether the i-th lane may hold the waiter.
func (w *Waiter) held(i int) bool { return w.enforced>>i&1 != 0 }

// dispatch notes that the units of w were taken at now.
func (g *Gate) dispatch(w *Waiter, now ledger.Time) {
	w.phase, w.sent = dispatched, now
	w.outcome.State = Granted
	tally, meter := w.Tally, w.Meter
	for _, l := range w.lanes[:w.n] {
		if tally == nil {
			tally = l.Tally
		}
		if meter == nil {
			meter = l.Meter
		}
	}
	if tally != nil {
		tally.ObserveWait(now.Sub(w.entered))
	}
	if meter != nil {
		meter.Count(now)
	}
	if w.Since == 0 { // a first attempt: see policy.RetryBudget
		if i := w.target(); i >= 0 {
			w.lanes[i].Retries.Deposit()
		}
	}
	if w.n > 0 && g.cfg.Events != nil && g.cfg.Events.Dispatches() {
		g.cfg.Events.Emit(policy.Event{
			At: now, Kind: policy.EventDispatch, Lane: w.lanes[0].ID(), Wait: now.Sub(w.entered), Process: w.Client.Process, Job: w.Job,
		})
	}
}

func (w *Waiter) tally() *policy.Tally {
	if w.Tally == nil && w.n > 0 {
		return w.lanes[0].Tally
	}
	return w.Tally
}

func (g *Gate) emit(ev policy.Event) {
	if g.cfg.Events != nil {
		g.cfg.Events.Emit(ev)
	}
}
