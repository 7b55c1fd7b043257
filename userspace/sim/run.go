// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/config/strict"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/userspace/agenda"
	"github.com/egressd/egressd/userspace/gate"
)

const (
	// epoch is where virtual time begins, some instant after boot.
	epoch = ledger.Time(time.Hour)
	// atOnce is how long a client takes to read an answer of egressd itself.
	atOnce = time.Millisecond
	// maxSteps bounds the work of one run to some minutes.
	maxSteps = 1_000_000_000
	// checkEvery is the number of steps between two looks at the context.
	checkEvery = 1 << 14
)

// wallEpoch is what clocks on the wall show at epoch.
var wallEpoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

var (
	errNoPolicy = errors.New("the workload brings no policy for egressd; name one with --config")
	errTooMuch  = errors.New("more than a thousand million events in one run; shorten duration, or lengthen think or latency")
)

// Options are what is not in the workload.
type Options struct {
	Policy     *policy.Policy // nil: that of the workload
	Strategies []Strategy     // nil: those of the workload
	Seed       uint64         // of all that is random
	Runs       int            // 0: as the workload says
	Host       string         // "": that of the workload
}

// Simulate plays the workload once for each strategy, and as often as it says.
// The same workload, options and policy give the same result. An error is that
// of ctx, or says what to change.
func Simulate(ctx context.Context, w *Workload, o Options) (*Result, error) {
	if o.Policy == nil {
		o.Policy = w.Policy
	}
	if o.Strategies == nil {
		o.Strategies = w.Strategies
	}
	if o.Runs == 0 {
		o.Runs = w.Runs
	}
	if o.Host == "" {
		o.Host = w.Clients.Host
	}
	if behind(o.Strategies) {
		if o.Policy == nil {
			return nil, errNoPolicy
		}
		if err := named(w, &o); err != nil {
			return nil, err
		}
	}
	result := &Result{Workload: w.Name, Seed: o.Seed, Runs: o.Runs, DurationMS: milliseconds(w.Duration)}
	for i := range o.Strategies {
		s := &o.Strategies[i]
		sum := newSum(s.Label)
		for n := range o.Runs {
			t, err := play(ctx, w, s, &o, o.Seed+uint64(n))
			if err != nil {
				return nil, fmt.Errorf("simulate %s: %w", s.Label, err)
			}
			sum.add(t)
		}
		result.Strategies = append(result.Strategies, sum.figures())
	}
	return result, nil
}

// named tells whether the policy says anything about the requests.
func named(w *Workload, o *Options) error {
	g, err := newGuard(o.Policy, w, o.Host, nil, func() ledger.Time { return epoch })
	if err != nil {
		return err
	}
	g.facts.Exit = w.exitName(0)
	if len(g.engine.Select(nil, &g.facts, policy.ForRequest, epoch)) == 0 {
		return fmt.Errorf("no budget of the policy counts %s https://%s%s; name a host that one does with --host, or change the workload",
			w.Clients.Method, o.Host, w.Clients.Path)
	}
	return g.gate.Close()
}

// worker is one client.
type worker struct {
	failures int           // of the job in hand
	busy     bool          // it has a job in hand
	last     time.Duration // its last back-off
	wanted   ledger.Time   // when it was ready to send the first request of the job
	sent     ledger.Time
	answer   answer

	held *held // behind egressd
}

// run is one simulation under way.
type run struct {
	w        *Workload
	strategy *Strategy
	guard    *guard // nil without egressd
	origin   *origin
	tally    *tally

	now, end ledger.Time
	queue    agenda.Queue[event]
	workers  []worker
	limits   []ledger.Time // when each process allows itself the next request
	interval time.Duration // of that
	jobs     int           // left to take
	over     bool

	latency, waits *rand.Rand
}

// Streams of random numbers: what one draws changes nothing for another.
const (
	latencyStream = iota
	waitStream
	spreadStream
)

// stream makes the source of one stream. Seeds in a row, as those of runs are,
// are scattered first (by SplitMix64): neighbours would resemble each other.
func stream(seed, n uint64) *rand.Rand {
	z := (seed + 1) * 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return rand.New(rand.NewPCG(z^z>>31, n))
}

// newRun makes a simulation that is about to begin.
func newRun(w *Workload, s *Strategy, o *Options, seed uint64) (*run, error) {
	c := &w.Clients
	r := &run{
		w: w, strategy: s,
		origin:   newOrigin(&w.Origin, c.Exits, epoch),
		tally:    newTally(w, epoch),
		now:      epoch,
		end:      epoch.Add(w.Duration),
		workers:  make([]worker, c.Workers),
		limits:   make([]ledger.Time, c.Processes),
		interval: c.Rate.Interval(),
		jobs:     c.Jobs,
		latency:  stream(seed, latencyStream),
		waits:    stream(seed, waitStream),
	}
	if c.Jobs == 0 {
		r.jobs = -1
	}
	if s.Egressd {
		var err error
		r.guard, err = newGuard(o.Policy, w, o.Host, stream(seed, spreadStream), func() ledger.Time { return r.now })
		if err != nil {
			return nil, err
		}
	}
	for i := range r.workers {
		n := int32(i)
		if s.Egressd {
			r.workers[i].held = newHeld(i%c.Processes, w.exitName(i%c.Exits), func() { r.queue.Push(r.now, event{n, decided}) })
		}
		r.queue.Push(epoch.Add(c.Start.draw(r.waits)), event{n, wake})
	}
	return r, nil
}

// play runs one simulation.
func play(ctx context.Context, w *Workload, s *Strategy, o *Options, seed uint64) (*tally, error) {
	r, err := newRun(w, s, o, seed)
	if err != nil {
		return nil, err
	}
	for n := 0; r.step(); n++ {
		if n%checkEvery == 0 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if n == maxSteps {
			return nil, errTooMuch
		}
	}
	if r.guard != nil {
		if err := r.guard.gate.Close(); err != nil {
			return nil, err
		}
	}
	return r.tally, nil
}

// step lets the next thing happen, in the order of time; false if there is
// nothing more. After the end nothing is sent, but what is under way gets its
// answers.
func (r *run) step() bool {
	next, more := r.queue.Next()
	if g := r.guard; g != nil && g.at != 0 && !r.over && (!more || g.at <= next) {
		if at := max(g.at, r.now); at < r.end {
			r.now = at
			g.ring()
			return true
		}
	}
	if !more {
		return false
	}
	var e event
	r.now, e = r.queue.Pop()
	r.over = r.over || r.now >= r.end
	r.happen(e)
	return true
}

func (r *run) happen(e event) {
	w := &r.workers[e.worker]
	switch e.kind {
	case arrive:
		w.answer = r.origin.judge(int(e.worker)%r.w.Clients.Exits, r.now)
		return
	case reply:
		r.reply(w, e.worker)
		return
	}
	if r.over {
		return
	}
	switch e.kind {
	case wake:
		r.begin(w, e.worker)
	case pass:
		r.ask(w, e.worker)
	case decided:
		r.decided(w, e.worker, w.held.waiter.Outcome())
	}
}

// begin has the worker send: a job that it takes, or again the one in hand.
func (r *run) begin(w *worker, n int32) {
	if !w.busy {
		if r.jobs == 0 {
			return
		}
		if r.jobs > 0 {
			r.jobs--
		}
		w.busy, w.failures, w.last = true, 0, 0
	}
	if r.interval > 0 {
		next := &r.limits[int(n)%len(r.limits)]
		at := max(*next, r.now)
		*next = at.Add(r.interval)
		if at > r.now {
			r.queue.Push(at, event{n, pass})
			return
		}
	}
	r.ask(w, n)
}

// ask sends the request, or takes it to the gate.
func (r *run) ask(w *worker, n int32) {
	if w.failures == 0 {
		w.wanted = r.now
	}
	if r.guard == nil {
		r.send(w, n)
		return
	}
	if out := r.guard.enter(w.held, r.now); out.State != gate.Queued {
		r.decided(w, n, out)
	}
}

func (r *run) decided(w *worker, n int32, out gate.Outcome) {
	if out.State == gate.Granted {
		r.send(w, n)
		return
	}
	if w.held.repeating() { // the client gets the answer that it would have got before
		w.held.undraw()
		r.fail(w, n, w.answer.retryAfter, 0)
		return
	}
	r.tally.note(refused, r.now)
	w.sent = r.now
	asked := inSeconds(out.RetryAfter)
	if out.Drop {
		asked = 0
	}
	r.fail(w, n, asked, atOnce)
}

func (r *run) send(w *worker, n int32) {
	w.sent = r.now
	r.tally.send(r.now)
	if w.held != nil && w.held.repeating() {
		w.held.drawn = nil
		r.tally.repeat(r.now)
	}
	took := r.w.Origin.Latency.draw(r.latency)
	r.queue.Push(r.now.Add(took/2), event{n, arrive})
	r.queue.Push(r.now.Add(took), event{n, reply})
}

// reply brings the worker its answer.
func (r *run) reply(w *worker, n int32) {
	a := &w.answer
	r.origin.done(int(n)%r.w.Clients.Exits, *a)
	fate := failed
	switch a.status {
	case 200:
		fate = served
	case r.w.Origin.Refusal.Status:
		fate = limited
	}
	r.tally.note(fate, w.sent)
	if fate == served {
		r.tally.end(true, w.sent, w.sent.Sub(w.wanted))
	}
	if r.over {
		return
	}
	if r.guard != nil {
		v := r.guard.answered(w.held, a, wallEpoch.Add(r.now.Sub(epoch)), r.now)
		if fate != served {
			if out, again := r.guard.repeat(w.held, a, v, r.now); again {
				if out.State == gate.Granted {
					r.send(w, n)
				}
				return
			}
		}
	}
	if fate != served {
		r.fail(w, n, a.retryAfter, 0)
		return
	}
	r.rest(w, n, 0)
}

// fail does what the strategy does about a failure, that the worker learns of
// after delay.
func (r *run) fail(w *worker, n int32, asked, delay time.Duration) {
	w.failures++
	if w.failures >= r.strategy.attempts() {
		r.tally.end(false, w.sent, 0)
		r.rest(w, n, delay)
		return
	}
	w.last = r.strategy.wait(w.failures-1, w.last, asked, r.waits)
	r.queue.Push(r.now.Add(delay+w.last), event{n, wake})
}

// rest ends the job in hand.
func (r *run) rest(w *worker, n int32, delay time.Duration) {
	w.busy = false
	r.queue.Push(r.now.Add(delay+r.w.Clients.Think.draw(r.waits)), event{n, wake})
}

// Title describes what is simulated in one line.
func (w *Workload) Title() string {
	c := &w.Clients
	parts := []string{count(c.Workers, "worker", "workers")}
	if c.Processes < c.Workers {
		parts = append(parts, "in "+count(c.Processes, "process", "processes"))
	}
	if c.Exits > 1 {
		parts = append(parts, fmt.Sprintf("through %d exits", c.Exits))
	}
	parts = append(parts, "for "+strict.Duration(w.Duration))
	return strings.Join(parts, " ")
}

func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
