// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/exitid"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
	"github.com/egressd/egressd/userspace/http1"
)

// How a connection to a pool goes.
//
// Nothing listens at a pool's address: egressd itself is the HTTP proxy that the
// client speaks to. It chooses an exit of the pool for each request, and again for
// each attempt that it makes itself, and the request goes to the proxy of that
// exit as it came, but for the login. The client keeps its connection, whatever
// exits its requests go by; an upstream connection is of one exit, and is given up
// where the next request goes by another.
//
// A CONNECT chooses for all that goes through its tunnel. From then on the
// connection is like any other through a proxy.

const (
	// connectTime is the default for how long a connection to the proxy of a pool's
	// exit may take to stand: long enough for two lost SYNs (RFC 6298 §2.1). The
	// client believes to be connected, so no timeout of its own looks after this.
	connectTime = 5 * time.Second
	// maxMoves is how many more exits are tried for one request, where the
	// proxies of those before could not be reached.
	maxMoves = 3
)

// errNoAddress says that the name of an exit's proxy has no address.
var errNoAddress = errors.New("the name of the proxy has no address")

// pooled is what is known of a connection to a pool.
type pooled struct {
	picker *policy.Picker
	user   string         // that the client gave with the pending request, where that tells its exit
	member *policy.Member // chosen for it; nil before the first
	addr   netip.AddrPort // of the member's proxy …
	known  bool           // … if it has one
	moves  int            // of the pending request, to other members

	up      *policy.Member // whose proxy the upstream connection goes to
	dialing timer          // by which that must stand

	login   []byte         // the field line by which egressd logs in, secret …
	loginOf *policy.Member // … at this member
}

// newPooled is for a new connection to a pool.
func newPooled(c *conn, k *policy.Picker) *via {
	v := newHandshake(c)
	v.pool = &pooled{picker: k}
	v.pool.dialing.fire = c.dialTooSlow
	v.Through = policy.Through{Exit: k.Pool.Name} // until a request has one
	v.login = true                                // egressd's own: a client's is no matter of the exit
	return v
}

// pooled says that the client speaks to a pool, and not through a tunnel.
func (c *conn) pooled() bool { return c.via != nil && c.via.pool != nil && !c.via.inside }

// goal is where the upstream connection goes.
func (c *conn) goal() netip.AddrPort {
	if c.via != nil && c.via.pool != nil {
		return c.via.pool.addr
	}
	return c.flow.Dest
}

// goalName is goal for people.
func (c *conn) goalName() string {
	if c.via == nil || c.via.pool == nil {
		return c.flow.Dest.String()
	}
	p := c.via.pool
	name := p.member.String() + " of pool " + p.picker.Pool.Name
	if p.known {
		name += " at " + p.addr.String()
	}
	return name
}

// takesPart looks whether a pool takes the pending request, and who sends it. If
// not, it is answered.
func (c *conn) takesPart() bool {
	p := c.via.pool
	k := c.l.p.cfg.Engine.Pool(c.flow.Dest)
	switch {
	case k == nil:
		c.badRequest(&http1.Error{Status: 502, Reason: "the policy has no pool " + p.picker.Pool.Name + " any more"})
		return false
	case c.toItself():
		c.badRequest(&http1.Error{Status: 400, Reason: "this is the pool " + k.Pool.Name + ", an HTTP proxy: ask for http://HOST/PATH, or CONNECT HOST:PORT"})
		return false
	case http1.EqualFold(c.req.Method, "trace"):
		// The proxy of the exit might show what it got, with the login.
		c.badRequest(&http1.Error{Status: 501, Reason: "a pool does not take TRACE"})
		return false
	}
	p.picker, p.moves, p.user = k, 0, ""
	if k.Pool.Sticky == policy.StickySession {
		value, _ := http1.Field(c.client.buf[c.client.r:c.client.r+c.req.Len], "proxy-authorization")
		p.user, _ = exitid.BasicUser(value)
	}
	return true
}

// choose chooses the exit of the pending request, and completes its facts.
func (c *conn) choose(f *policy.Facts) {
	p, v, e := c.via.pool, c.via, c.l.p.cfg.Engine
	now := c.l.p.cfg.Now()
	ch := e.Choose(p.picker, policy.PickKey{Client: c.waiter.Client, Session: p.user, Host: f.Host}, f, now)
	p.addr, p.known = e.ProxyAddr(ch.Member)
	if p.member != ch.Member {
		p.member = ch.Member
		v.exit, v.Through, v.tally = ch.Member.Exit, ch.Member.Through(), nil
	}
	if ch.First {
		c.switched(&ch, now)
	}
}

// switched tells that requests go by another exit than the one whose turn it was.
func (c *conn) switched(ch *policy.Choice, now ledger.Time) {
	ev := policy.Event{At: now, Kind: policy.EventExitSwitch, Wait: ch.Why.Until.Sub(now)}
	why := "is closed"
	if _, ok := c.l.p.cfg.Engine.ProxyAddr(ch.From); !ok {
		why, ev.Wait = "has no address", 0 // until it has one
	} else if ch.Why.Trouble {
		why = "is in trouble"
	}
	ev.Detail = "pool " + c.via.pool.picker.Pool.Name + ": " + ch.From.String() + " " + why + ", " + ch.Member.String() + " takes its turn"
	c.l.p.event(ev)
}

// turnToExit makes way for the exit that was chosen: an upstream connection to another
// one is given up, and what counted it.
func (c *conn) turnToExit() {
	if p := c.via.pool; c.up.fd >= 0 && p.up != p.member {
		c.forgetUpstream()
	}
	if c.up.fd < 0 {
		c.unhold()
		c.first = true // of the connection to come
	}
}

// strays says that the upstream connection, if there is one, is not that of the
// exit which was chosen.
func (c *conn) strays() bool { return c.pooled() && c.via.pool.up != c.via.pool.member }

// idleEnded follows a proxy that ended the upstream connection between two
// requests. The client had no share in that.
func (c *conn) idleEnded() bool {
	if !c.pooled() || c.rs != rsIdle || c.rq != rqHead && c.rq != rqDiscard {
		return false
	}
	c.forgetUpstream()
	c.unhold()
	return true
}

// elsewhere takes the pending request to the gate by another exit of its pool,
// after the one that was chosen could not take it. It reports whether there was
// one that can take it in time; what keeps its exit has no other.
func (c *conn) elsewhere() bool {
	p := c.via.pool
	if p.moves == maxMoves || c.l.draining {
		return false
	}
	p.moves++
	from, since := p.member, c.arrived
	if c.owed() {
		since = c.again.since
		c.reselect()
	} else {
		f := c.facts()
		c.choose(&f)
		c.turnToExit()
		c.selectLanes(&f)
	}
	now := c.l.p.cfg.Now()
	if fits, _ := c.fits(since, now); p.member == from || !fits {
		return false
	}
	if c.owed() {
		c.turnToExit()
		c.reenter(now)
		return true
	}
	c.countBy()
	c.wrote = false
	c.waiter.Since = since
	c.pending = &c.waiter
	c.pass(now)
	return true
}

// exitFailed follows a proxy of an exit that could not be reached: that is trouble
// of the exit. Nothing was sent, so the request goes by another exit, or learns
// that there is none.
func (c *conn) exitFailed(err error) {
	p, g := c.via.pool, c.l.p.cfg.Gate
	c.dropUpstream()
	p.up = nil
	g.Trouble(c.lanes, verdict.Verdict{Kind: verdict.ExitTrouble}, rand.Float64(), c.l.p.cfg.Now())
	c.forsake() // whoever is next in line sees that it is closed
	c.tally().CountLimited(verdict.ExitTrouble)
	name := c.goalName()
	switch {
	case c.elsewhere():
		return
	case c.owed():
		c.fallBack()
		return
	}
	kind := "destination_unavailable"
	switch {
	case errors.Is(err, errNoAddress):
		kind = "dns_error"
	case errors.Is(err, unix.ECONNREFUSED):
		kind = "connection_refused"
	case errors.Is(err, unix.ETIMEDOUT):
		kind = "connection_timeout"
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH):
		kind = "destination_ip_unroutable"
	}
	keep := !c.req.Close && !c.req.Expect100
	c.answer(http1.AppendRefusal(nil, &http1.Refusal{
		Status:  502,
		Error:   kind,
		Details: name,
		Date:    time.Now(),
		Body:    "egressd: the proxy of exit " + name + " cannot be reached: " + err.Error() + "\n",
		ToHEAD:  c.kind&http1.ForHEAD != 0,
		Close:   !keep,
	}), keep)
}

// dialTooSlow is called by the loop when the upstream connection should stand.
func (c *conn) dialTooSlow() {
	c.unreachable(unix.ETIMEDOUT)
	if !c.closed {
		c.advance()
	}
}

// foreign refuses what a pool cannot choose an exit for. A client that has said
// nothing only leaves.
func (c *conn) foreign() {
	if c.client.pending() == 0 {
		c.finish()
		return
	}
	c.tally().CountRefused(policy.RefusedFraming)
	c.l.p.event(policy.Event{
		At: c.l.now, Kind: policy.EventRefused,
		Detail: "connection of pid " + strconv.FormatUint(uint64(c.flow.PID), 10) + " to pool " + c.via.pool.picker.Pool.Name + ": not HTTP; use it as an HTTP proxy",
	})
	c.abort()
}

// dialing limits the time until the upstream connection stands.
func (c *conn) dialing() {
	if c.pooled() {
		c.l.timers.start(&c.via.pool.dialing, c.l.now.Add(c.l.p.cfg.ConnectTime))
	}
}

// dialDone ends that limit.
func (c *conn) dialDone() {
	if c.via != nil && c.via.pool != nil {
		c.l.timers.stop(&c.via.pool.dialing)
	}
}

// line is the login at the chosen exit, as loginLine.
func (p *pooled) line() []byte {
	if p.loginOf != p.member {
		p.loginOf, p.login = p.member, loginLine(p.member.Exit.Proxy)
	}
	return p.login
}

// upstreamFlow is the flow by which the upstream connection is made: the client's,
// and where that leads to no proxy itself, to the proxy that was chosen.
func (c *conn) upstreamFlow() (policy.Flow, error) {
	f := c.flow
	if c.pooled() {
		p := c.via.pool
		if !p.known {
			return f, errNoAddress
		}
		f.Dest, p.up = p.addr, p.member
		// The client's own socket would have taken its route now.
		if c.way, c.wayErr = c.route(); c.wayErr != nil {
			return f, c.wayErr
		}
	}
	return f, nil
}
