// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
	"github.com/egressd/egressd/userspace/sniff"
)

// Probes says which processes show what they send and receive inside TLS. Safe
// for concurrent use; it must not block.
type Probes interface {
	// Shows says that answers to what the process sends from now on will be
	// shown (see Proxy.Show).
	Shows(pid uint32) bool
}

// Shown is an answer that a probe in the client's process showed, and the
// request that it is to as far as that is known.
type Shown struct {
	PID       uint32
	Random    [32]byte // of the ClientHello; only if HasRandom
	HasRandom bool
	Cookie    uint64 // of the client's socket; 0 if not known
	Source    string // how the connection was found, for people

	Method, Host, Path string // empty if not known
	Answer             Head
}

// Head is the head of an answer. Its owner gives it away.
type Head struct {
	Status  int // 0: not known
	Partial bool
	At      time.Time
	Fields  [][2]string
}

// closedTime is how long after its end a connection is still known: what a
// probe shows comes some milliseconds late.
const closedTime = 2 * time.Second

// registry finds connections by what probes know of them. Safe for concurrent
// use.
type registry struct {
	mu       sync.Mutex
	byRandom map[[32]byte]*conn
	byCookie map[uint64]*conn
}

func (r *registry) add(c *conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byRandom == nil {
		r.byRandom, r.byCookie = map[[32]byte]*conn{}, map[uint64]*conn{}
	}
	r.byRandom[c.random] = c
	if c.flow.Cookie != 0 {
		r.byCookie[c.flow.Cookie] = c
	}
}

func (r *registry) remove(c *conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byRandom[c.random] == c {
		delete(r.byRandom, c.random)
	}
	if r.byCookie[c.flow.Cookie] == c {
		delete(r.byCookie, c.flow.Cookie)
	}
}

func (r *registry) find(s *Shown) *conn {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s.HasRandom {
		return r.byRandom[s.Random] // a socket could have been guessed, this not
	}
	if s.Cookie != 0 {
		return r.byCookie[s.Cookie]
	}
	return nil
}

// grave is a connection that ended and is known until then.
type grave struct {
	c     *conn
	until ledger.Time
}

// enrol makes the connection known to probes.
func (c *conn) enrol() {
	if c.l.p.cfg.Probes == nil || c.tls < policy.Observe || c.enrolled {
		return
	}
	c.enrolled = true
	c.l.p.registry.add(c)
}

// bury notes that the connection ended.
func (c *conn) bury() {
	if c.enrolled {
		c.l.graves = append(c.l.graves, grave{c, c.l.now.Add(closedTime)})
	}
}

// forgetBuried is called at each tick.
func (l *loop) forgetBuried() {
	n := 0
	for n < len(l.graves) && l.graves[n].until <= l.now {
		l.p.registry.remove(l.graves[n].c)
		l.graves[n].c = nil
		n++
	}
	if l.graves = l.graves[n:]; len(l.graves) == 0 {
		l.graves = nil
	}
}

// Show tells the proxy of an answer. It reports whether the connection is known;
// one that is not is counted and nothing is made of the answer. It keeps s.
// Safe for concurrent use, never blocks.
func (p *Proxy) Show(s *Shown) bool {
	c := p.registry.find(s)
	if c == nil || s.PID != c.flow.PID && !s.HasRandom {
		p.insight.Unknown()
		return false
	}
	c.l.post(func() { c.shown(s) })
	return true
}

// shown takes an answer that a probe showed. What is read with keys is known
// better, and so is what ends here.
func (c *conn) shown(s *Shown) {
	if c.reading != nil && c.reading.client != nil || c.sight == policy.SightKeys || c.sight == policy.SightTerminate {
		return
	}
	if !c.closed && c.sight != policy.SightUprobe {
		c.setSight(policy.SightUprobe)
	}
	c.l.p.insight.Answer(policy.SightUprobe)
	host := c.host
	if name, _, ok := sniff.CanonicalHost(s.Host); ok && s.Host != "" {
		host = name
	}
	f := c.factsWithin(host, s.Method, s.Path)
	lanes := c.l.p.cfg.Engine.Select(nil, &f, policy.ForRequest, c.l.now)
	a := &s.Answer
	h := verdict.Head{Status: a.Status, At: a.At}
	statuses := c.heed(&h, lanes)
	for _, field := range a.Fields {
		h.Field([]byte(field[0]), []byte(field[1]))
	}
	rotating := c.waiter.Rotating
	v := conclude(&h, statuses, rotating)
	if a.Status == 0 {
		v.Kind = verdict.Error // of which nobody can say more
	}
	if len(lanes) > 0 {
		label := lanes[0].Label
		c.l.p.cfg.Engine.Tally(label, f.Exit).CountCode(a.Status)
		if log := c.l.p.cfg.Events; log.Dispatches() {
			log.Emit(policy.Event{At: c.l.now, Kind: policy.EventObserved, Lane: lanes[0].ID(), Detail: s.detail(c)})
		}
	}
	if v.HasDelay && c.waiter.Meter != nil {
		c.waiter.Meter.NoteDelay(v.Delay)
	}
	g, now := c.l.p.cfg.Gate, c.l.p.cfg.Now()
	if c.admitted && !c.closed && c.rq == rqTunnel && c.reading == nil {
		// The flight that was let go last is what this answers.
		c.admitted = false
		c.outcomeIs(policy.OutcomeOf(v.Kind, a.Status))
		g.Done(&c.waiter, v, rand.Float64(), now)
		if !sameTarget(c.lanes, lanes) && v.Kind != verdict.OK {
			g.Heard(lanes, rotating, v, rand.Float64(), now)
		}
		return
	}
	g.Heard(lanes, rotating, v, rand.Float64(), now)
}

// sameTarget reports whether a verdict on either would touch the same lane.
func sameTarget(a, b []*policy.Lane) bool { return policy.Target(a) == policy.Target(b) }

// detail says what was shown, for people and tests.
func (s *Shown) detail(c *conn) string {
	text := "status=" + strconv.Itoa(s.Answer.Status) + " by=" + policy.SightUprobe.String() + " pid=" + strconv.FormatUint(uint64(c.flow.PID), 10)
	for _, f := range s.Answer.Fields {
		if strings.EqualFold(f[0], "retry-after") {
			text += " retry-after=" + strconv.Quote(f[1])
		}
	}
	if s.Answer.Partial {
		text += " partial"
	}
	return text + " found=" + s.Source + " path=" + strconv.Quote(s.Path)
}
