// SPDX-License-Identifier: Apache-2.0

package fleetsim

import (
	"context"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/egressd/egressd/policy/fleet"
	"github.com/egressd/egressd/policy/fleet/model"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/userspace/agenda"
)

const (
	// epoch is where virtual time begins, further from zero than any skew.
	epoch = ledger.Time(2 * MaxDuration)
	// checkEvery is the number of events between two looks at the context.
	checkEvery = 1 << 14
	// closedFor is what the origin asks for in the end, and by how much the lane
	// is slowed then.
	closedFor    = time.Minute
	closedFactor = 0.5
	// backlog is how many requests wait where there is no end of them.
	backlog = 100
	// startWithin is the time within which hosts start that all come at once.
	startWithin = 100 * time.Millisecond
)

// host is one of the fleet.
type host struct {
	lane    *fleet.Lane
	offset  time.Duration // of its clock
	from    ledger.Time   // when it comes
	flights [2]flight
	wakeAt  ledger.Time // 0: never
	gen     uint32
	queue   []ledger.Time // arrivals of what waits
	sent    uint64
	there   bool
	cut     int // cuts that it is behind
	mode    fleet.Mode
	closed  bool // by the last cooldown
}

// flight is a call under way.
type flight struct {
	fleet.Flight
	answer fleet.Answer
	gen    uint32
	live   bool
}

// run is one simulation.
type run struct {
	o       *Options
	now     ledger.Time
	end     ledger.Time
	queue   agenda.Queue[event]
	hosts   []host
	store   model.Store
	replica *model.Store
	down    bool
	heard   []fleet.Answer // what was published
	calls   []fleet.Call   // on their way to the store
	free    []uint32       // places in calls

	modes   [fleet.Returning + 1]int // hosts in each
	alone   bool
	refused uint64
	waits   []int64
	tally   tally

	refusedAt ledger.Time // by the origin, in the end
	cooldown  Cooldown
	closed    int
	over      bool

	network, load, chance *rand.Rand
}

// Simulate plays the options. An error is that of ctx, or says what is wrong
// with them.
func Simulate(ctx context.Context, o Options) (*Result, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	r := newRun(&o)
	var result *Result
	for events := uint64(1); ; events++ {
		if events%checkEvery == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		var e event
		r.now, e = r.queue.Pop()
		if result == nil && e.kind == refuse {
			result = r.figures()
			result.Events = events
		}
		r.handle(&e)
		if r.over {
			result.Cooldown = r.cooldown
			return result, nil
		}
	}
}

func newRun(o *Options) *run {
	r := &run{
		o: o, now: epoch, end: epoch.Add(o.Duration), hosts: make([]host, o.Hosts),
		tally:   tally{rate: o.Limit.Rate(), last: epoch},
		network: rand.New(rand.NewPCG(o.Seed, 1)), load: rand.New(rand.NewPCG(o.Seed, 2)), chance: rand.New(rand.NewPCG(o.Seed, 3)),
	}
	r.store.Publish = func(_ string, a fleet.Answer) { r.publish(a) }
	r.modes[fleet.Together] = o.Hosts
	configured := 0
	if o.Known {
		configured = o.Hosts
	}
	for i := range r.hosts {
		h := &r.hosts[i]
		if o.Skew > 0 {
			h.offset = time.Duration(r.chance.Int64N(int64(2*o.Skew))) - o.Skew
		}
		h.lane = fleet.New(fleet.Config{
			Lane: "simulated/-/-", Host: "host-" + strconv.Itoa(i), Limit: o.Limit, Loss: o.Loss, Hosts: configured, Chance: r.chance.Float64,
		})
		after := time.Duration(r.chance.Int64N(int64(min(startWithin, o.Duration))))
		if o.Arrive > 0 {
			after = o.Arrive * time.Duration(i) / time.Duration(o.Hosts)
		}
		h.from = epoch.Add(after)
		r.wake(i, h.from)
	}
	for k, c := range o.Cuts {
		r.queue.Push(epoch.Add(c.At), event{kind: lose, gen: uint32(k)})
		r.queue.Push(epoch.Add(c.At+c.For), event{kind: find, gen: uint32(k)})
	}
	for k, f := range o.Faults {
		if f.Memory == Replica {
			r.queue.Push(epoch.Add(f.At-f.Lag), event{kind: snapshot})
		}
		r.queue.Push(epoch.Add(f.At), event{kind: fail})
		r.queue.Push(epoch.Add(f.At+f.For), event{kind: recovery, gen: uint32(k)})
	}
	if o.Load > 0 {
		r.arrival()
	}
	r.queue.Push(r.end, event{kind: refuse})
	return r
}

// local is the time on a host's clock.
func (h *host) local(now ledger.Time) ledger.Time { return now.Add(h.offset) }

func (r *run) handle(e *event) {
	h := &r.hosts[e.host]
	switch e.kind {
	case wake:
		if e.gen == h.gen {
			h.wakeAt = 0
			r.serve(int(e.host))
		}
	case request:
		r.arrived()
	case arrive:
		r.arrive(e)
	case reply:
		if f := &h.flights[e.slot]; f.live && f.gen == e.gen {
			f.live = false
			h.lane.Answered(f.Flight, f.answer, h.local(r.now))
			r.serve(int(e.host))
		}
	case timeout:
		if f := &h.flights[e.slot]; f.live && f.gen == e.gen {
			f.live = false
			h.lane.Failed(f.Flight, h.local(r.now))
			r.serve(int(e.host))
		}
	case published:
		if h.there {
			h.lane.Heard(r.heard[e.gen], h.local(r.now))
			r.serve(int(e.host))
		}
	case lose, find:
		by := 1
		if e.kind == find {
			by = -1
		}
		// Those in the middle, so that cuts of several sizes share hosts.
		n := max(1, int(r.o.Cuts[e.gen].Share*float64(r.o.Hosts)+0.5))
		first := (r.o.Hosts - n) / 2
		for i := first; i < first+n; i++ {
			r.hosts[i].cut += by
		}
	case fail:
		r.down = true
	case snapshot:
		r.replica = r.store.Clone()
	case recovery:
		r.recover(&r.o.Faults[e.gen])
	case refuse:
		r.refuse()
	case finish:
		r.over = true
		r.cooldown.Missed = r.o.Hosts - r.closed
	}
}

// recover brings the store back.
func (r *run) recover(f *Fault) {
	r.down = false
	switch f.Memory {
	case Kept:
		r.store.Restart()
	case Empty:
		r.store.Clear()
	case Replica:
		r.store.FailOver(r.replica)
	}
}

// wake makes a host look at its lane at an instant, or before it.
func (r *run) wake(i int, at ledger.Time) {
	h := &r.hosts[i]
	at = max(at, r.now)
	if h.wakeAt != 0 && h.wakeAt <= at {
		return
	}
	h.gen++
	h.wakeAt = at
	r.queue.Push(at, event{kind: wake, host: int32(i), gen: h.gen})
}

// arrival plans the next request.
func (r *run) arrival() {
	gap := r.load.ExpFloat64() / (r.o.Load * r.o.Limit.Rate())
	at := r.now.Add(time.Duration(gap * float64(time.Second)))
	if w := r.o.Waves; w > 0 {
		if phase := at.Sub(epoch) % w; phase >= w/2 {
			at = at.Add(w - phase)
		}
	}
	r.queue.Push(at, event{kind: request})
}

// arrived is a request at some host.
func (r *run) arrived() {
	r.arrival()
	i := r.load.IntN(r.o.Hosts)
	h := &r.hosts[i]
	switch {
	case !h.there:
	case len(h.queue) >= maxQueue:
		r.refused++
	default:
		h.queue = append(h.queue, r.now)
		r.serve(i)
	}
}

// serve lets go on a host what may go, makes the calls that are due, and says
// when to look again.
func (r *run) serve(i int) {
	h := &r.hosts[i]
	h.there = true
	now := h.local(r.now)
	var next ledger.Time // by the host's clock; 0: only an answer can say
	for r.o.Load == 0 || len(h.queue) > 0 {
		_, wait, ok := h.lane.Take(now)
		if !ok {
			if wait > 0 {
				next = now.Add(wait)
			}
			break
		}
		r.send(h)
	}
	if r.o.Load == 0 {
		h.lane.Want(backlog, now)
	} else {
		h.lane.Want(len(h.queue), now)
	}
	for {
		f, due := h.lane.Next(now)
		if !due {
			break
		}
		r.call(i, f)
	}
	if at, ok := h.lane.Wake(now); ok && (next == 0 || at < next) {
		next = at
	}
	r.look(h, now)
	if next != 0 {
		r.wake(i, next.Add(-h.offset))
	}
}

// send counts a request that goes.
func (r *run) send(h *host) {
	if r.refusedAt == 0 {
		h.sent++
		r.tally.send(r.now)
	} else if !h.closed {
		r.cooldown.Sent++
	}
	if len(h.queue) > 0 {
		r.waits = append(r.waits, int64(r.now.Sub(h.queue[0])))
		h.queue = h.queue[1:]
	}
}

// look keeps up to date what is known of a host.
func (r *run) look(h *host, now ledger.Time) {
	if mode := h.lane.Mode(now); mode != h.mode {
		r.modes[h.mode]--
		r.modes[mode]++
		h.mode = mode
		r.alone = r.alone || mode == fleet.Shared || mode == fleet.Alone
		extra := 0.0
		if r.modes[fleet.Together] > 0 {
			extra = fleet.Apart(r.o.Limit, r.modes[fleet.Shared], r.o.Hosts)
		}
		r.tally.allow(extra, r.now)
	}
	if r.refusedAt != 0 && !h.closed && h.lane.State().OpenUntil > now {
		h.closed = true
		r.closed++
		after := millis(r.now.Sub(r.refusedAt))
		r.cooldown.All = after
		if r.closed == (r.o.Hosts+1)/2 {
			r.cooldown.Half = after
		}
	}
}

// delay is that of one message; false if it is lost.
func (r *run) delay() (time.Duration, bool) {
	if r.o.Lost > 0 && r.network.Float64() < r.o.Lost {
		return 0, false
	}
	half := float64(r.o.Latency) / 2
	return time.Duration(half + r.network.ExpFloat64()*half), true
}

// call sends a call on its way.
func (r *run) call(i int, f fleet.Flight) {
	h := &r.hosts[i]
	slot := uint8(0)
	if h.flights[0].live {
		slot = 1
	}
	to := &h.flights[slot]
	*to = flight{Flight: f, gen: to.gen + 1, live: true}
	r.queue.Push(r.now.Add(h.lane.Timeout()), event{kind: timeout, host: int32(i), slot: slot, gen: to.gen})
	if d, ok := r.delay(); ok && h.cut == 0 {
		r.queue.Push(r.now.Add(d), event{kind: arrive, host: int32(i), slot: slot, gen: to.gen, call: r.keep(f.Call)})
	}
}

// keep keeps a call while it is on its way, which may be longer than its host
// waits.
func (r *run) keep(c fleet.Call) uint32 {
	if n := len(r.free); n > 0 {
		place := r.free[n-1]
		r.free = r.free[:n-1]
		r.calls[place] = c
		return place
	}
	r.calls = append(r.calls, c)
	return uint32(len(r.calls) - 1)
}

// arrive is a call at the store. It takes effect there even if its host has given
// it up meanwhile.
func (r *run) arrive(e *event) {
	c := &r.calls[e.call]
	r.free = append(r.free, e.call)
	if r.down {
		return
	}
	h := &r.hosts[e.host]
	answer := r.store.Do(r.now, c)
	if d, ok := r.delay(); ok && h.cut == 0 {
		if f := &h.flights[e.slot]; f.live && f.gen == e.gen {
			f.answer = answer
			r.queue.Push(r.now.Add(d), event{kind: reply, host: e.host, slot: e.slot, gen: e.gen})
		}
	}
}

// publish sends what changed to all hosts.
func (r *run) publish(a fleet.Answer) {
	r.heard = append(r.heard, a)
	for i := range r.hosts {
		if d, ok := r.delay(); ok && r.hosts[i].cut == 0 {
			r.queue.Push(r.now.Add(d), event{kind: published, host: int32(i), gen: uint32(len(r.heard) - 1)})
		}
	}
}

// refuse is a request of some host that the origin refuses, after all else.
func (r *run) refuse() {
	r.refusedAt = r.now
	i := r.chance.IntN(r.o.Hosts)
	h := &r.hosts[i]
	h.lane.Penalize(h.lane.State().Epoch, closedFor, closedFactor, h.local(r.now))
	r.serve(i)
	r.queue.Push(r.now.Add(closedFor/2), event{kind: finish})
}
