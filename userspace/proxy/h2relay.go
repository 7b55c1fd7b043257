// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/userspace/h2"
	"github.com/egressd/egressd/userspace/heads"
)

// How a connection of HTTP/2 goes that can be read: without TLS, or inside TLS
// that ends here.
//
// The connection is let through and dialled for itself; then each Headers frame
// that opens a stream goes to its gate as a request. Frames are forwarded as
// they came, and what is held is held alone: frames of the connection and of
// streams that were let go pass ahead of it. Later requests wait behind it, as
// the numbers of streams only go up.
//
// A request that is refused never reaches the origin. Its answer is put
// between two frames of the origin. From then on the origin's header table is
// not the one that the client counts on, and header blocks are written anew where
// they differ (see h2.Translator). So is a block that was overtaken.

const (
	// maxQueued is how many bytes of a client wait behind a held request
	// before no more is read of it, …
	maxQueued = 1 << 20
	// … and mostQueued how many may while the held request waits for the end of
	// one whose body comes behind them.
	mostQueued = 8 << 20
	// maxSwallowed is how many refused requests are remembered: what the client
	// still sends on them is dropped.
	maxSwallowed = 1024
	// streamTableSize is the size in bytes that a client may give its header
	// table: what a reader of the origin's direction expects, too.
	streamTableSize = 64 << 10
)

// h2relay is a connection of HTTP/2 that is relayed frame by frame. It belongs
// to its connection.
type h2relay struct {
	streams
	c *conn

	// What the client sends. Bytes go on from the client's buffer, in place; or,
	// if something comes before them that is not in it, all through out.
	client  h2.Framer
	blocks  h2.Collector
	table   *h2.Translator
	fate    fate   // of the frame at hand
	staged  int    // bytes behind client.ok: of a header block that is not whole
	last    uint32 // the highest stream that was opened, …
	decided uint32 // … and that of those that were let go or refused in turn
	out     []byte // goes to the origin before what is in the client's buffer
	scratch []byte // a header block as it is to be sent

	queue   []*item
	queued  int            // bytes in it, …
	extra   int64          // … and those that are counted as kept, beyond maxQueued
	behind  map[uint32]int // items of queue, by stream
	asking  int            // items that open streams
	granted *item          // may go, once nothing is cut by that
	due     bool           // resume is to be called at the end of the frame

	swallowed map[uint32]struct{} // refused; what the client sends on them is dropped …
	oldest    []uint32            // … and in which order they were
	altered   bool                // the origin did not get what the client sent, byte for byte

	// What the origin sends.
	server  h2.Framer
	answers heads.Server
	greeted bool    // its first frame went on
	control []byte  // of a Settings frame that is not whole
	sizes   []int64 // of header tables in Settings without acknowledgement; -1: none
	inject  []byte  // frames of our own, for the next place between two frames
	reply   []byte  // goes to the client before what is in the origin's buffer

	live    map[uint32]*lively // streams that were let go and that the origin has not ended
	barred  uint32             // the origin looks at no stream above this
	leaving bool               // the client was told to open no more streams
	over    bool               // the origin will say no more
	named   bool
	windows
}

// lively is a stream that was let go.
type lively struct {
	sent  bool           // the request is whole
	holds []*policy.Lane // count it, as a tunnel, until it ends
}

// admitH2 takes a connection of HTTP/2 to its gate, for what counts connections.
// A proxy that is spoken to in HTTP/2 is not looked into.
func (c *conn) admitH2() {
	addr := c.flow.Dest.Addr().String()
	if c.outside() || c.pooled() {
		c.admitOpaque(addr)
		return
	}
	c.h2 = &h2relay{
		c: c, table: h2.NewTranslator(streamTableSize), barred: 1<<31 - 1,
		behind: map[uint32]int{}, swallowed: map[uint32]struct{}{}, live: map[uint32]*lively{},
		windows: windows{window: initialWindow},
	}
	c.h2.client.SetMaxFrameSize(h2.HardMaxFrameSize) // whom it is for knows what fits
	c.h2.server.SetMaxFrameSize(h2.HardMaxFrameSize)
	c.opaque = true
	if c.session != nil || c.inside() {
		c.goAhead() // it was paid for
		return
	}
	f := policy.Facts{Host: addr, Dest: c.flow.Dest, Exit: c.flow.Exit, Site: c.siteOf(addr)}
	c.host = addr
	c.lanes = c.l.p.cfg.Engine.Select(c.lanes[:0], &f, policy.ForHTTPConnection, c.l.now)
	c.enter()
}

// begin starts to relay, once the connection was let through and stands.
func (h *h2relay) begin() {
	c := h.c
	if c.session != nil {
		h.sight = policy.SightTerminate
	}
	if c.admitted {
		if c.inside() {
			h.paid = append(h.paid, c.lanes...) // by the tunnel, for its first request
		} else {
			// What counts connections counts it until it ends; its requests come
			// to the gate one by one.
			c.hold(false)
			c.admitted = false
			c.l.p.cfg.Gate.Abort(&c.waiter, false, c.l.p.cfg.Now())
		}
	}
	c.x.open = false // an exchange begins with a request
	c.wrote = true
	c.rq, c.rs = rqTunnel, rsTunnel
	c.client.ok = len(h2.Preface)
}

// greets reports whether b, the first bytes of a server, can be the start of
// HTTP/2: a Settings frame. Then the client, which is late, will say so too.
func greets(b []byte) bool {
	if len(b) < h2.FrameHeaderLen {
		return len(b) > 0 && b[0] == 0
	}
	f := h2.ParseFrameHeader(b)
	return f.Type == h2.Settings && !f.Has(h2.Ack) && f.Stream == 0 && f.Length%6 == 0 && f.Length < 1<<16
}

// leave gives up what the connection holds in its gate. What is on its way to
// the client stays.
func (h *h2relay) leave() {
	c := h.c
	h.forgetQueue()
	c.leaveStreams(&h.streams)
	for id := range h.live {
		h.closed(id)
	}
	c.l.p.kept.Add(-h.extra)
	c.h2 = nil
	if len(h.reply) > 0 {
		c.up.prepend(h.reply)
		c.up.ok = len(h.reply)
	}
}

// prepend puts b before what was read.
func (s *side) prepend(b []byte) {
	s.buf = append(b, s.buf[s.r:s.w]...)
	s.r, s.w, s.buf = 0, len(s.buf), s.buf[:cap(s.buf)]
}

// blind goes on without looking.
func (h *h2relay) blind() {
	c := h.c
	h.leave()
	if len(h.out) > 0 {
		c.client.prepend(h.out)
	}
	if c.admitted {
		c.unseen()
	}
	c.outcomeIs(policy.Unseen)
	c.client.ok, c.up.ok = c.client.pending(), c.up.pending()
	c.l.again(c)
}

// doubt follows an error of the client's framing. The origin sees it as it is,
// unless it has been spared something: then nobody but us can say what follows.
// Of headers that are longer than is read here it is not known what they ask
// for.
func (h *h2relay) doubt(why error) {
	h.countDoubt()
	switch why {
	case h2.ErrBlockTooLong, h2.ErrTooManyFields, h2.ErrFieldTooLong:
		h.c.tally().CountRefused(policy.RefusedFraming)
		h.goAway(h2.EnhanceYourCalm)
		return
	}
	if h.altered || len(h.queue) > 0 {
		h.c.tally().CountRefused(policy.RefusedFraming)
		h.goAway(h2.ProtocolError)
		return
	}
	h.blind()
}

// doubtServer follows an error of the origin's framing.
func (h *h2relay) doubtServer() {
	h.countDoubt()
	if h.altered || len(h.queue) > 0 {
		h.c.abort()
		return
	}
	h.blind()
}

func (h *h2relay) countDoubt() {
	if h.c.session != nil {
		h.c.l.p.insight.Doubt(policy.DoubtHTTP)
	}
}

// goAway ends the connection with a word to the client, if there is a place for
// it.
func (h *h2relay) goAway(code h2.Code) {
	c := h.c
	if !h.greeted || !h.between() {
		c.abort()
		return
	}
	u := &c.up
	h.skip(0)
	last := h2.AppendGoAway(append(h.reply, h.inject...), h.decided, code)
	h.reply = nil
	c.linger()
	u.r = u.w
	c.release(u)
	u.buf, u.r, u.w, u.ok = last, 0, len(last), len(last)
	c.own = len(last)
}

// drain has the client open no more streams, and ends the connection when there
// are none. It reports whether it did.
func (h *h2relay) drain() bool {
	c := h.c
	if !h.leaving {
		h.leaving, h.altered = true, true
		h.inject = h2.AppendGoAway(h.inject, h.decided, h2.NoError)
		h.forgetQueue()
	}
	if len(h.live) == 0 && (len(h.inject) == 0 || !h.greeted) && !h.owes() && c.up.ok == 0 {
		c.part()
	} else {
		c.advance()
	}
	return c.closed
}

// owes says that something goes to the client before the end of what the origin
// sent.
func (h *h2relay) owes() bool { return h != nil && len(h.reply) > 0 }

// keeps says that something goes to the origin before the end of what the
// client sent.
func (h *h2relay) keeps() bool { return h != nil && (len(h.queue) > 0 || len(h.out) > 0) }
