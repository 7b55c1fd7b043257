// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"math/rand/v2"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/verdict"
	"github.com/egressd/egressd/userspace/socks"
)

// The handshake of SOCKS is forwarded message by message as it comes, but for
// the request, which waits in its gate. What a client sends behind that, ahead
// of the reply, waits for the reply.

// startSOCKS follows the handshake that the client's bytes begin.
func (c *conn) startSOCKS() {
	c.via.socks = new(socks.Observer)
	c.rq, c.rs = rqSOCKS, rsSOCKS
	c.l.timers.stop(&c.timer)
	c.hurry()
}

// socksClient takes the next message of the client. It reports whether there
// was one.
func (c *conn) socksClient(b []byte) bool {
	v := c.via
	if v.asked || v.refused {
		return false // the proxy has the word
	}
	o := v.socks
	n, ev, err := o.Client(b)
	switch {
	case err != nil && o.Version() == 0:
		// Nothing of it was understood, and nothing forwarded.
		v.socks = nil
		c.rs = rsIdle
		c.calm()
		c.admitOpaque("")
		return true
	case err != nil:
		c.breakHandshake(err.Error())
		return true
	case n == 0:
		return false
	}
	c.calm()
	if ev == socks.Request {
		v.asking = n
		v.ready = v.ready || o.Version() == 4
		c.admitSOCKS()
		return true
	}
	c.hurry()
	v.bound = true
	c.client.ok += n
	if c.up.fd < 0 {
		c.dial()
	}
	return true
}

// admitSOCKS takes the request for a tunnel to its gate.
func (c *conn) admitSOCKS() {
	v := c.via
	o := v.socks
	c.through(o.User())
	c.host = v.exit.Proxy.Host
	f := policy.Facts{Dest: c.flow.Dest}
	if cmd := o.Command(); cmd == socks.Connect || cmd == socks.Bind {
		c.host = o.Host()
		f.Dest = destOf(c.host, o.Port())
	}
	f.Host, f.Site = c.host, c.siteOf(c.host)
	v.asFacts(&f)
	c.lanes = c.l.p.cfg.Engine.Select(c.lanes[:0], &f, policy.ForOpaque, c.l.now)
	c.enter()
}

// ask forwards the request, which was let go.
func (c *conn) ask() {
	c.via.asked, c.via.bound = true, true
	c.client.ok += c.via.asking
	c.rq = rqSOCKS
	c.wrote = false // that was what came before it
}

// socksServer takes the next message of the proxy. It reports whether there was
// one.
func (c *conn) socksServer(b []byte) bool {
	v := c.via
	n, ev, err := v.socks.Server(b)
	switch {
	case err != nil:
		c.breakHandshake(err.Error())
		return true
	case n == 0:
		c.hurry()
		return false
	case v.ready && !v.asked:
		c.breakHandshake("answer before the question")
		return true
	}
	c.calm()
	switch ev {
	case socks.MethodChosen:
		v.ready = b[1] == 0 // no authentication
		c.myTurn()
	case socks.AuthResult:
		v.ready = true
		c.myTurn()
	case socks.Done:
		c.up.ok += n
		c.granted()
		return true
	case socks.Failed:
		c.up.ok += n
		c.denied()
		return true
	case socks.Opaque:
		// The two go on in a language of their own.
		c.rs = rsIdle
		c.admitOpaque("")
		return true
	}
	c.up.ok += n
	return true
}

// myTurn limits the time for the client's next message, after the proxy
// answered the one before.
func (c *conn) myTurn() {
	if c.rq == rqSOCKS && !c.via.asked && !c.via.refused {
		c.hurry()
	}
}

// granted follows the proxy's word that the request is granted.
func (c *conn) granted() {
	o := c.via.socks
	if o.Command() == socks.Connect {
		c.lookInside(o.Host(), o.Port())
		return
	}
	c.opaque = true
	c.goAhead()
}

// denied reports that the proxy refuses the request, or the client. Nothing
// more of the client is forwarded.
func (c *conn) denied() {
	v, g := c.via, c.l.p.cfg.Gate
	now := c.l.p.cfg.Now()
	trouble := v.trouble(v.socks.Outcome())
	c.tally().CountError()
	switch {
	case c.admitted && trouble:
		c.admitted = false
		g.Done(&c.waiter, verdict.Verdict{Kind: verdict.ExitTrouble}, rand.Float64(), now)
	case trouble && v.socks.Outcome() == socks.AuthFailed:
		c.through(v.socks.User())
		f := policy.Facts{Host: v.exit.Proxy.Host, Dest: c.flow.Dest}
		v.asFacts(&f)
		c.forsake() // a request that did not wait for the answer
		c.lanes = c.l.p.cfg.Engine.Select(c.lanes[:0], &f, policy.ForOpaque, c.l.now)
		g.Trouble(c.lanes, verdict.Verdict{Kind: verdict.ExitTrouble}, rand.Float64(), now)
		c.tally().CountLimited(verdict.ExitTrouble)
	}
	c.over()
}

// hungUp follows a proxy that ended the connection in the middle of the
// handshake.
func (c *conn) hungUp() {
	c.tally().CountError()
	c.over()
}

// over ends a handshake that came to nothing: what the proxy said last goes to
// the client.
func (c *conn) over() {
	c.calm()
	c.forsake()
	c.rq, c.rs = rqLinger, rsTunnel
	c.discard()
}

// trouble reports whether an outcome is trouble of the exit. A destination that
// cannot be reached is none, nor is what the proxy does not do at all, or a
// client without a password: it may come again with one.
func (v *via) trouble(o socks.Outcome) bool {
	switch o {
	case socks.NotAllowed, socks.AuthFailed, socks.NoIdent, socks.OtherIdent:
		return true
	case socks.GeneralFailure, socks.TTLExpired, socks.Unassigned:
		return !v.Rotating // of one address among many
	}
	return false
}

// refuseSOCKS answers in the proxy's place, once it has answered what came
// before the request.
func (c *conn) refuseSOCKS() {
	v := c.via
	if !v.ready || c.up.pending() > 0 {
		v.refused = true
		c.rq = rqSOCKS
		return
	}
	v.refused = false
	reply := socks5Refusal
	if v.socks.Version() == 4 {
		reply = socks4Refusal
	}
	c.answer([]byte(reply), false)
}

const (
	socks5Refusal = "\x05\x02\x00\x01\x00\x00\x00\x00\x00\x00" // not allowed by ruleset, RFC 1928 §6
	socks4Refusal = "\x00\x5b\x00\x00\x00\x00\x00\x00"
)
