// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"net/netip"
	"strconv"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/exitid"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/userspace/gate"
	"github.com/egressd/egressd/userspace/http1"
	"github.com/egressd/egressd/userspace/socks"
)

// How a connection to a forward proxy goes.
//
// The client speaks to the proxy, and egressd listens: to requests in absolute
// form, to CONNECT, to the handshake of SOCKS. What it asks for is its
// destination, what it says of itself tells the exit. A tunnel goes to its gate
// once, with the message that asks for it. When the proxy has opened it, the
// connection is looked into again, as if it had just begun: HTTP/1 is followed
// request by request, and all else passes. The first request, or the ClientHello
// that names a host where the client asked for an address, spends only where
// the tunnel has not.
//
// Inside a tunnel there is no second upstream connection: whatever goes with
// the first one ends the client's.

// handshakeTime is how long half a message of a handshake is waited for.
const handshakeTime = 30 * time.Second

// via is what is known of a connection to a forward proxy.
type via struct {
	pool *pooled      // nil: the connection goes to the proxy of one exit
	exit *policy.Exit // that of the chosen member of a pool; nil before there is one
	user string       // that told through
	policy.Through
	login bool // the pending request came with a user name and a password

	bound  bool           // to the upstream connection that stands
	inside bool           // a tunnel was opened
	host   string         // … to this host, in canonical form
	dest   netip.AddrPort // … and port, with the address if the host is one
	paid   []*policy.Lane // what its admission, not reported yet, has spent in
	more   gate.Waiter    // for what that did not spend in
	rest   []*policy.Lane // of it

	socks   *socks.Observer // of the handshake, nil if there is none
	asking  int             // bytes of the request for a tunnel, while it is not forwarded
	asked   bool            // it was
	ready   bool            // the proxy has answered everything before it
	refused bool            // it is refused as soon as that has happened

	deadline timer // by which a message that began must be whole

	tally *policy.Tally // of label, at the exit that user told
	label string
}

// newVia is for a new connection to the proxy of an exit.
func newVia(c *conn, exit *policy.Exit) *via {
	v := newHandshake(c)
	v.exit = exit
	v.Through = exit.Through(c.flow.Dest.Port(), "")
	return v
}

// newHandshake is what each via begins with.
func newHandshake(c *conn) *via {
	v := new(via)
	v.deadline.fire = c.tooSlow
	v.more.Notify, v.more.Client = c.waiter.Notify, c.waiter.Client
	return v
}

// outside says that the client speaks to a proxy that the policy names.
func (c *conn) outside() bool { return c.via != nil && !c.via.inside }

// inside says that the client speaks through a tunnel of such a proxy.
func (c *conn) inside() bool { return c.via != nil && c.via.inside }

// fixed says that the upstream connection cannot be replaced by another one:
// the proxy was told something on it that it was told once, or it is one end of
// a TLS connection that was ended here.
func (c *conn) fixed() bool { return c.via != nil && c.via.bound || c.session != nil }

// lost ends a connection whose upstream connection is gone and cannot be
// replaced. What the origin said last goes to the client.
func (c *conn) lost() {
	if c.owed() {
		c.fallBack()
		return
	}
	if c.up.fd < 0 {
		c.linger()
		return
	}
	c.forsake()
	c.forget()
	c.rq, c.rs = rqLinger, rsTunnel
	c.discard()
}

// through finds the exit that a user at the proxy means.
func (c *conn) through(user string) {
	v := c.via
	if user == v.user {
		return
	}
	v.user = user
	v.Through = v.exit.Through(c.flow.Dest.Port(), user)
	v.tally = nil
}

// throughRequest finds the exit of the request with this head. Each request
// tells its own: one without a user name has none of a request before it.
func (c *conn) throughRequest(head []byte) {
	value, _ := http1.Field(head, "proxy-authorization")
	user, _ := exitid.BasicUser(value)
	c.via.login = user != ""
	c.through(user)
}

// exitOf is the exit of the pending request, or of the connection.
func (c *conn) exitOf() string {
	if c.via != nil {
		return c.via.Exit
	}
	return c.flow.Exit
}

// asFacts completes facts of what goes through the proxy.
func (v *via) asFacts(f *policy.Facts) {
	f.Exit, f.Session = v.Exit, v.Session
	f.Proxied, f.Lifetime = true, v.Lifetime
}

// countBy has waiters counted by the exit of what they stand for.
func (c *conn) countBy() {
	v := c.via
	if v == nil {
		c.waiter.Tally = c.tally()
		return
	}
	t, m := c.tally(), c.l.p.cfg.Engine.Meter(v.Exit)
	for _, w := range []*gate.Waiter{&c.waiter, &v.more} {
		w.Tally, w.Meter, w.Rotating = t, m, v.Rotating
	}
}

// tallyOf is where traffic of a label is counted, at the exit that it has now.
func (c *conn) tallyOf(label string) *policy.Tally {
	v := c.via
	if v.tally == nil || v.label != label {
		v.label, v.tally = label, c.l.p.cfg.Engine.Tally(label, v.Exit)
	}
	return v.tally
}

// destOf is the address and port of a host and port that a proxy is asked for.
// Of a name there is no address.
func destOf(host string, port uint16) netip.AddrPort {
	addr, _ := netip.ParseAddr(host)
	return netip.AddrPortFrom(addr, port)
}

// hurry limits the time until the message that just began is whole.
func (c *conn) hurry() {
	if d := &c.via.deadline; d.index == 0 {
		c.l.timers.start(d, c.l.now.Add(c.l.p.cfg.HandshakeTime))
	}
}

// calm ends the time limit.
func (c *conn) calm() {
	if c.via != nil {
		c.l.timers.stop(&c.via.deadline)
	}
}

// tooSlow is called by the loop when the limit is reached.
func (c *conn) tooSlow() {
	c.breakHandshake("not finished within " + c.l.p.cfg.HandshakeTime.String())
}

// breakHandshake cuts a connection whose handshake with the proxy leads
// nowhere.
func (c *conn) breakHandshake(why string) {
	c.tally().CountRefused(policy.RefusedFraming)
	c.l.p.event(policy.Event{
		At: c.l.now, Kind: policy.EventRefused, Lane: c.laneID(),
		Detail: "handshake of pid " + strconv.FormatUint(uint64(c.flow.PID), 10) + " with " + c.via.name() + ": " + why,
	})
	c.abort()
}

// name is whom the client speaks to, for people.
func (v *via) name() string {
	if v.pool != nil && !v.inside {
		return "pool " + v.pool.picker.Pool.Name
	}
	return "exit " + v.exit.Identity()
}

// connects reports whether b may be the beginning of a CONNECT.
func connects(b []byte) bool {
	const method = "CONNECT "
	b = bytes.TrimLeft(b, "\r\n")
	n := min(len(b), len(method))
	return string(b[:n]) == method[:n]
}

// closedNow reports whether a lane is in a cooldown.
func closedNow(l *policy.Lane, now ledger.Time) bool {
	return now < ledger.Time(l.Cell.OpenUntil.Load())
}
