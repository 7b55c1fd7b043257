// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/userspace/dial"
	"github.com/egressd/egressd/userspace/gate"
	"github.com/egressd/egressd/userspace/http1"
	"github.com/egressd/egressd/userspace/terminate"
)

// requestState is where the bytes of the client stand.
type requestState uint8

const (
	rqSniff   requestState = iota // the first bytes have not told the protocol yet
	rqEnding                      // TLS is being ended here
	rqSOCKS                       // a handshake with a proxy goes to and fro
	rqHead                        // HTTP: a request head is awaited
	rqHeld                        // the request, or the whole connection, is in its gate
	rqDial                        // it may go; the upstream connection is being made
	rqSend                        // the request is being forwarded
	rqReplay                      // its copy is being sent again
	rqDone                        // it was forwarded whole
	rqDiscard                     // it was answered here; its body is read and dropped
	rqTunnel                      // bytes go through as they are
	rqLinger                      // whatever the client still sends is read and dropped
)

// responseState is where the bytes of the origin stand.
type responseState uint8

const (
	rsIdle   responseState = iota // no answer is owed
	rsSOCKS                       // a handshake with a proxy goes to and fro
	rsHead                        // a response head is awaited
	rsBody                        // the body is being forwarded
	rsKeep                        // the answer is held back until it is whole
	rsKept                        // it is whole
	rsDone                        // the answer was read whole
	rsTunnel                      // bytes go through as they are
)

// side is one of the two sockets of a connection, and what was read from it.
type side struct {
	fd       int   // -1: none
	gen      int32 // tells its events from those of the socket before it
	readable bool
	writable bool
	hup      bool // a FIN is in the receive queue, or behind what is in it
	urgent   bool // urgent data came: reads stop short at it, and splice for good
	eof      bool // the FIN was read
	shut     bool // a FIN was sent, or can no more be
	broken   bool // a write failed: only what came before is still to be read
	reset    bool // … with the error that the last read would have shown
	bulk     bool // reads fill the buffer: worth splicing in a tunnel

	buf  []byte
	r, w int   // buf[r:w] was read from fd and not handed on yet
	ok   int   // how much of that, from r on, may be handed on
	pipe *pipe // where spliced bytes wait
}

func (s *side) pending() int { return s.w - s.r }

// conn is a client connection with its upstream connection. It belongs to its
// loop's goroutine.
type conn struct {
	l      *loop
	slot   int32
	flow   policy.Flow
	ns     *dial.Netns
	remote netip.AddrPort // of the client, as the proxy sees it
	opened ledger.Time

	client, up side
	connected  bool // the upstream connection stands
	queued     bool // in the loop's ready list
	closed     bool
	timer      timer
	torn       bool        // the origin reset its connection: so will ours be, after what came before
	tearBy     ledger.Time // … but not later than this

	rq     requestState
	rs     responseState
	opaque bool // the connection is a tunnel once it is let through

	isTLS      bool                  // it began with a ClientHello …
	offersH2   bool                  // … that offers HTTP/2 …
	random     [32]byte              // … and has this random
	tls        policy.TLSMode        // how far it may be looked into
	sight      policy.Sight          // how far it is
	paced      *paced                // its flights are paced; nil: they are not
	reading    *reading              // a copy of it is read, or is to be; nil: none
	enrolled   bool                  // probes find it
	terminator *terminate.Terminator // that made the plan
	plan       *terminate.Plan       // how TLS is to be ended here; nil: not at all
	hello      []byte                // that it was made of
	session    *terminate.Session    // it was ended
	local      netip.AddrPort        // where the client's own connection leads, then
	unpaid     bool                  // it was let through for its requests to be admitted one by one, the first included
	h2         *h2relay              // it is relayed as HTTP/2; nil: it is not

	seen int // bytes of the pending head already searched for its end

	req     http1.RequestHead
	reqBody http1.Body
	kind    http1.Kind
	resp    http1.ResponseHead
	resBody http1.Body

	via     *via   // nil: the destination is no proxy that the policy names, and no pool
	hostRaw []byte // the Host of the last request as sent …
	host    string // … and in canonical form
	first   bool   // no request was admitted yet

	site, siteHost string // the last host that a site was told for, and that

	waiter   gate.Waiter
	pending  *gate.Waiter // which is in the gate, or was last
	stale    *gate.Waiter // left it too late, and its decision is still to be delivered
	arrived  ledger.Time  // when the pending request first came to its gate
	lanes    []*policy.Lane
	holds    []*policy.Lane // count the connection until it ends
	admitted bool           // the waiter was granted and has had no answer yet
	wrote    bool           // bytes of the admitted request have been written upstream
	requests int
	sent     int64 // bytes forwarded to the origin, and back, since the last note
	received int64
	own      int // bytes of our own answer, first in up.buf: nobody sent them
	x        metered

	way    dial.Route // that the client's own socket would have gone …
	wayErr error      // … or why there was none

	again *replay // the pending request's copy, if it may have to be repeated
	kept  int     // bytes of the answer held back, in up.buf behind what may be handed on
}

func newConn(l *loop, slot int32, fd int, ns *dial.Netns, flow policy.Flow, remote netip.AddrPort) *conn {
	c := &conn{
		l: l, slot: slot, flow: flow, ns: ns, remote: remote, opened: l.now,
		client: side{fd: fd, writable: true},
		up:     side{fd: -1},
		first:  true,
	}
	ns.Retain()
	c.timer.fire = c.timedOut
	c.pending = &c.waiter
	c.waiter.Notify = func() { l.postGranted(c) }
	c.waiter.Client = policy.Client{Process: flow.PID, UID: flow.UID, Cgroup: flow.Cgroup}
	c.way, c.wayErr = c.route()
	if pool := l.p.cfg.Engine.Pool(flow.Dest); pool != nil {
		c.via = newPooled(c, pool)
	} else if exit := l.p.cfg.Engine.Endpoint(flow.Dest); exit != nil {
		c.via = newVia(c, exit)
	} else {
		c.flow.Exit = c.localExit()
		c.waiter.Meter = l.p.cfg.Engine.Meter(c.flow.Exit) // lanes need not tell exits apart
	}
	return c
}

// idle says that no exchange is under way.
func (c *conn) idle() bool {
	return c.rq == rqHead && c.rs == rsIdle && c.client.pending() == 0 && c.up.pending() == 0
}

// event takes note of what epoll says and lets the connection go on.
func (c *conn) event(which int, gen int32, events uint32) {
	s := &c.client
	if which == sideUpstream {
		s = &c.up
	}
	if s.fd < 0 || s.gen != gen {
		return
	}
	if events&unix.EPOLLPRI != 0 {
		s.urgent, s.bulk = true, false
	}
	if events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		s.readable = true
	}
	if events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		s.hup = true
	}
	if events&(unix.EPOLLOUT|unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		s.writable = true
		if which == sideUpstream && !c.connected {
			c.dialed()
			if c.closed {
				return
			}
		}
	}
	if which == sideClient && s.eof && !s.shut && events&(unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		c.clientBroke() // a reset after its FIN, which no read would show
		return
	}
	c.advance()
}

// share is how many bytes a connection may move before the others have their
// turn: about a quarter of a millisecond in a tunnel.
const share = 1 << 20

// advance moves bytes and states as far as they go without waiting, within
// bounds that leave the other connections their turn.
func (c *conn) advance() {
	const turns = 32
	had := c.sent + c.received
	for range turns {
		moved := c.fromClient()
		moved = !c.closed && c.toUpstream() || moved
		moved = !c.closed && c.fromUpstream() || moved
		moved = !c.closed && c.toClient() || moved
		moved = !c.closed && c.turn() || moved
		if c.closed || !moved {
			return
		}
		if c.sent+c.received-had >= share {
			break
		}
	}
	c.l.again(c)
}

// fill reads once from s into its buffer. It reports whether anything,
// including the end of the stream, was read. A broken connection is told by
// errno.
func (c *conn) fill(s *side) (moved bool, errno unix.Errno) {
	if s.buf == nil {
		s.buf = c.l.buffers.get()
	}
	if s.r > 0 && s.w == len(s.buf) {
		copy(s.buf, s.buf[s.r:s.w])
		s.r, s.w = 0, s.w-s.r
	}
	if s.w == len(s.buf) {
		return false, 0
	}
	room := s.buf[s.w:]
	n, errno := read(s.fd, room)
	switch {
	case errno == unix.EAGAIN:
		s.readable = false
		c.release(s)
		return false, 0
	case errno != 0:
		c.release(s)
		return false, errno
	case n == 0:
		c.release(s)
		return true, s.ended()
	}
	s.w += n
	if s == &c.up {
		c.heard()
		c.x.received += int64(n)
		if c.reading != nil {
			c.heardServer(room[:n])
		}
	}
	s.bulk = n == len(room) && n >= bufferSize/2 && !s.urgent
	// A short read has emptied the queue, unless it stopped at urgent data;
	// more bytes make a new edge. With a FIN behind them there may be none.
	if n < len(room) && !s.hup && !s.urgent {
		s.readable = false
	}
	return true, 0
}

// ended notes the end of the stream. A reset that a write was told of before
// looks like one: the socket tells its error once.
func (s *side) ended() unix.Errno {
	s.eof, s.readable = true, false
	if s.reset {
		return unix.ECONNRESET
	}
	return 0
}

// release gives an empty buffer back.
func (c *conn) release(s *side) {
	if s.r == s.w && s.buf != nil {
		c.l.buffers.put(s.buf)
		s.buf, s.r, s.w, s.ok = nil, 0, 0, 0
	}
}

// drain writes what may be handed on from one side to the other.
func (c *conn) drain(from, to *side, count *int64) (moved bool, errno unix.Errno) {
	for from.ok > 0 && to.writable {
		n, errno := write(to.fd, from.buf[from.r:from.r+from.ok])
		if errno == unix.EAGAIN {
			to.writable = false
			break
		}
		if errno != 0 {
			return moved, errno
		}
		from.r += n
		from.ok -= n
		*count += int64(n)
		moved = true
	}
	if moved {
		c.release(from)
	}
	return moved, 0
}

// shutdown sends a FIN to s, once.
func (c *conn) shutdown(s *side) {
	if !s.shut && s.fd >= 0 {
		s.shut = true
		unix.Shutdown(s.fd, unix.SHUT_WR)
	}
}

// finish ends the connection in order: a FIN on both sides.
func (c *conn) finish() { c.end(false, false) }

// part is finish while the client may be sending: closing with unread bytes
// would reset its connection and lose what it has not received yet.
func (c *conn) part() {
	if c.client.eof || !c.client.readable && c.client.pending() == 0 {
		c.finish()
		return
	}
	c.linger()
}

// abort breaks the connection on both sides, so that neither takes it for a
// complete message.
func (c *conn) abort() { c.end(true, true) }

// end closes the sockets, with RST where asked, and gives back everything
// that the connection holds.
func (c *conn) end(resetClient, resetUp bool) {
	if c.closed {
		return
	}
	c.closed = true
	c.forsake()
	c.closeReading()
	c.bury()
	c.setSight(policy.SightNone)
	c.forget()
	c.unhold()
	c.exchanged()
	c.calm()
	c.dialDone()
	c.l.timers.stop(&c.timer)
	if c.session != nil {
		c.resetSession(resetClient, resetUp)
	}
	if c.client.fd >= 0 {
		if resetClient {
			reset(c.client.fd)
		}
		unix.Close(c.client.fd)
	}
	if c.up.fd >= 0 {
		if resetUp {
			reset(c.up.fd)
		}
		unix.Close(c.up.fd)
	}
	for _, s := range []*side{&c.client, &c.up} {
		s.fd = -1
		if s.pipe != nil {
			c.l.pipes.put(s.pipe)
			s.pipe = nil
		}
		if s.buf != nil {
			c.l.buffers.put(s.buf)
			s.buf = nil
		}
	}
	c.ns.Release()
	c.l.slots[c.slot] = nil
	c.l.free = append(c.l.free, c.slot)
	c.l.p.conns.Add(-1)
}

// timedOut is called by the loop when the connection's timer is due.
func (c *conn) timedOut() {
	switch {
	case c.torn:
		c.advance()
		return
	case c.keeping():
		c.passOn()
		c.advance()
		return
	}
	switch c.rq {
	case rqSniff:
		// The client waits for the server to speak, or has nothing to say
		// yet: either way it may have its connection.
		if c.outside() && c.client.pending() > 0 {
			return // a handshake began, which has a time limit of its own
		}
		if c.pooled() {
			return // who is to be spoken to, only a request tells
		}
		if c.up.fd < 0 && c.onlyConnects() {
			c.admitOpaque(c.flow.Dest.Addr().String())
			c.advance()
			return
		}
		if c.up.fd < 0 {
			if c.dial() {
				c.l.timers.start(&c.timer, c.l.now.Add(undecidedTime))
			}
			return
		}
		if c.client.pending() > 0 {
			// It began something that could become a protocol we know, and
			// waits for an answer to it.
			c.admitOpaque(c.flow.Dest.Addr().String())
			c.advance()
		}
	case rqLinger:
		if c.up.fd < 0 && c.up.ok == 0 {
			c.finish()
			return
		}
		c.watchClient()
	default:
		c.watchClient()
	}
}

// watchClient looks now and then whether a client that ended its sending still
// waits for the answer. If it closed its socket, no event would tell before
// the origin says something.
func (c *conn) watchClient() {
	if !c.client.hup {
		return
	}
	if !c.stillThere() {
		c.finish()
		return
	}
	c.l.timers.start(&c.timer, c.l.now.Add(watchTime))
}
