// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/userspace/gate"
	"github.com/egressd/egressd/userspace/heads"
	"github.com/egressd/egressd/userspace/http1"
	"github.com/egressd/egressd/userspace/sniff"
	"github.com/egressd/egressd/userspace/tlsread"
)

// How a TLS connection is read that nobody ends.
//
// The proxy decrypts its own copy of both directions with keys that the
// client's process logs. No byte changes, and none waits for the copy to be
// read but those that begin a request: the client's records pass through a
// reader on the event loop, and a record in which a request begins stays in the
// client's buffer until the request was let go. The server's bytes go on at
// once; copies of them are read by a goroutine of its own (see copies), and what
// it finds comes back to the loop as answers.
//
// Whatever does not add up ends the reading: then the connection is paced by its
// flights (see paced), as one without keys is.

const (
	// keyTime is how long the first request of a process that logs its keys
	// waits for them. The process wrote them before it sent the request.
	keyTime = 100 * time.Millisecond
	// lateTime is how long after its first request keys are still of use.
	lateTime = 2 * time.Second
	// maxEarly is how many bytes of each direction are kept while keys may come.
	maxEarly = 128 << 10
	// behindTime is how long a request waits for answers to be read that came
	// before it.
	behindTime = 50 * time.Millisecond
)

// Keys is where the secrets of TLS sessions come from. Safe for concurrent
// use, and never blocks.
type Keys interface {
	// Ready says that there is such a source at all.
	Ready() bool
	// Find gives the secrets of the session with this client random, or nil.
	Find(random [32]byte) *tlsread.Secrets
	// Forget gives them up: the connection keeps what it needs.
	Forget(random [32]byte)
	// Await calls ready once they are complete, unless it is cancelled before.
	// It may call it before it returns.
	Await(random [32]byte, ready func()) (cancel func())
	// Expects says whether the process is known to log its keys.
	Expects(pid uint32) bool
}

// reading is a TLS connection of which a copy is read, or is to be as soon as
// there are keys.
type reading struct {
	streams
	cancel func() // of Keys.Await

	// Until there are keys:
	flights  *sniff.Flights // of the client
	early    []byte         // whole records that the client sent
	greeting []byte         // what the server sent
	expected bool           // the process logs its keys
	waits    bool           // a request waits for them
	due      bool           // a flight has begun and did not go yet
	ready    bool           // they are there
	late     bool           // they are no longer waited for

	// From then on:
	client *tlsread.Reader // nil: there are none
	heads  heads.Client
	server *copies
	// cleared is how many bytes of the server, in its socket, were looked at
	// already and are to be moved unseen.
	cleared int
	plain   []byte  // of the record at hand: what is not looked at yet
	record  int     // its length, 0 if none is at hand
	staged  int     // bytes before it that wait for the end of a head in it
	open    bool    // a head has begun
	begun   int     // heads in what is staged and at hand
	looked  bool    // at the first bytes
	asked   *stream // waits for answers to be read
	last    *stream // if it is answered so, what follows is no HTTP
	timer   timer
}

// mayRead says that the connection can be read if there are keys.
func (c *conn) mayRead() bool {
	keys := c.l.p.cfg.Keys
	return c.isTLS && c.tls >= policy.Observe && keys != nil && keys.Ready()
}

// willRead says that there will be keys. Then the connection itself need not be
// paid for: each of its requests will be.
func (c *conn) willRead() bool { return c.mayRead() && c.l.p.cfg.Keys.Expects(c.flow.PID) }

// startReading begins to read a connection that was let through, if it is TLS,
// and the policy and the sources of keys allow. Its admission then stays
// unreported: it is that of its first request.
func (c *conn) startReading() bool {
	if !c.mayRead() {
		return false
	}
	keys := c.l.p.cfg.Keys
	r := &reading{flights: &sniff.Flights{H2: c.offersH2}, expected: c.unpaid || c.willRead()}
	r.sight = policy.SightKeys
	r.timer.fire = c.readingTimedOut
	r.paid = append(r.paid, c.lanes...)
	c.reading = r
	c.wrote = true // the connection itself is no longer undone
	l := c.l
	r.cancel = keys.Await(c.random, func() {
		l.post(func() {
			if c.reading == r {
				c.keysCame()
			}
		})
	})
	return true
}

// knowMode finds out how far a TLS connection to the host, which begins with
// first, may be looked into.
func (c *conn) knowMode(host string, first []byte) {
	dest := c.flow.Dest
	if c.inside() {
		dest = c.via.dest
		if host == "" {
			host = c.via.host
		}
	}
	if host == "" {
		host = dest.Addr().String()
	}
	if !c.isTLS || c.session != nil {
		return
	}
	c.tls = c.l.p.cfg.Engine.TLSMode(host, dest)
	c.setSight(policy.SightBlind)
	if c.tls == policy.Terminate {
		c.planEnding(host, first)
	}
	if c.plan == nil {
		c.enrol()
	}
}

// setSight notes how the connection is seen from now on.
func (c *conn) setSight(s policy.Sight) {
	c.l.p.insight.Change(c.sight, s)
	c.sight = s
}

// keysCame begins to read with the keys that are there now, and catches up on
// what has passed.
func (c *conn) keysCame() {
	r := c.reading
	if r.client != nil {
		return
	}
	if c.paced != nil && c.paced.held && !c.l.p.cfg.Gate.Leave(&c.waiter) {
		r.ready = true // once the flight that was just decided is told
		return
	}
	params, status := tlsread.ServerHello(r.greeting)
	params.ClientRandom = c.random
	if status != sniff.Complete {
		c.goBlind(policy.DoubtUnsupported)
		return
	}
	secrets := c.l.p.cfg.Keys.Find(c.random)
	if secrets == nil {
		c.goBlind(policy.DoubtNoKeys)
		return
	}
	client, err := tlsread.NewReader(tlsread.Client, &params, secrets)
	var server *tlsread.Reader
	if err == nil {
		server, err = tlsread.NewReader(tlsread.Server, &params, secrets)
	}
	if err != nil {
		c.goBlind(policy.DoubtUnsupported)
		return
	}
	c.paced = nil
	c.l.timers.stop(&r.timer)
	c.l.p.cfg.Keys.Forget(c.random)
	r.client, r.server, r.waits = client, newCopies(c, r, server), false
	c.setSight(policy.SightKeys)
	if !c.catchUp() {
		return
	}
	r.server.take(r.greeting)
	r.early, r.greeting = nil, nil
	c.advance()
}

// catchUp reads what the client sent before there were keys. Its requests are
// under way: the first has the units that the connection took, the others went
// as flights.
func (c *conn) catchUp() bool {
	r := c.reading
	for rest := r.early; len(rest) > 0; {
		n, kind, plain, err := r.client.Next(rest)
		if err != nil || n == 0 {
			c.goBlind(doubtOfTLS(err))
			return false
		}
		rest = rest[n:]
		if kind == tlsread.ApplicationData && !c.likeHTTP(plain) {
			c.goBlind(policy.DoubtHTTP)
			return false
		}
		for kind == tlsread.ApplicationData && len(plain) > 0 {
			m, ev, err := r.heads.Next(plain)
			if err != nil || m == 0 && ev.Kind == heads.None {
				c.goBlind(policy.DoubtHTTP)
				return false
			}
			plain = plain[m:]
			switch ev.Kind {
			case heads.Begin:
				r.open = true
			case heads.RequestHead:
				r.open = false
				s, ok := c.newStream(&r.streams, ev.Request)
				if !ok {
					c.goBlind(policy.DoubtHTTP)
					return false
				}
				c.countStream(s)
				c.streamGoes(&r.streams, s)
				c.expect(s)
			}
		}
	}
	r.open = false // the first part of a head that is not whole yet has left
	return true
}

// doubtOfTLS is the doubt that an error of reading records stands for.
func doubtOfTLS(err error) policy.Doubt {
	if errors.Is(err, tlsread.ErrEarlyData) || errors.Is(err, tlsread.ErrUnsupported) {
		return policy.DoubtUnsupported
	}
	return policy.DoubtUndecided
}

// goBlind ends the reading, and has the connection paced by flights.
func (c *conn) goBlind(d policy.Doubt) {
	if c.reading == nil {
		return
	}
	c.l.p.insight.Doubt(d)
	resume := c.reading.client != nil
	c.endReading()
	c.setSight(policy.SightBlind)
	if c.admitted {
		c.flightGoes()
	}
	switch {
	case c.rq != rqTunnel || c.paced != nil:
	case resume:
		c.paced = &paced{f: sniff.ResumeFlights(c.offersH2)}
	default:
		c.pace()
	}
	c.l.again(c)
}

// endReading gives up what the reading holds.
func (c *conn) endReading() {
	r := c.reading
	if r == nil {
		return
	}
	c.letGoReading()
	c.leaveStreams(&r.streams)
	if r.server != nil {
		r.server.stop()
	}
}

// closeReading is endReading for a connection that ends. What its server sent
// may still have to be read: a client often closes as soon as it has its answer.
func (c *conn) closeReading() {
	r := c.reading
	if r == nil || r.server == nil || !r.server.behind() {
		c.endReading()
		return
	}
	c.letGoReading()
	c.leaveHeld(&r.streams)
}

func (c *conn) letGoReading() {
	r := c.reading
	c.reading = nil
	if !c.x.known && len(r.streams.open) == 0 {
		c.outcomeIs(policy.Unseen)
	}
	r.cancel()
	c.l.timers.stop(&r.timer)
}

// lastAnswers takes what the reader of the server's copies found after the
// connection ended.
func (c *conn) lastAnswers(r *reading, answers []answer, failed bool) {
	for i := range answers {
		if !answers[i].ended {
			c.streamAnswered(&r.streams, &answers[i])
		}
	}
	if failed || !r.server.behind() {
		c.leaveStreams(&r.streams)
	}
	c.exchanged()
}

// becomeTunnel follows a change of protocol: what comes now is no HTTP.
func (c *conn) becomeTunnel() {
	c.client.ok += c.reading.staged + c.reading.record
	c.endReading()
	c.paced = nil
}

// readingTimedOut is called by the loop when something was waited for too long.
func (c *conn) readingTimedOut() {
	r := c.reading
	switch {
	case r == nil:
		return
	case r.asked != nil:
		c.askedGoes()
	case r.waits:
		r.waits, r.late = false, true
		c.l.timers.start(&r.timer, c.l.now.Add(lateTime-keyTime))
	case r.client == nil:
		c.goBlind(policy.DoubtNoKeys)
	case r.staged > 0 && r.open:
		c.goBlind(policy.DoubtHTTP) // what should be a head does not end
	}
	if !c.closed {
		c.advance()
	}
}

// relayRead moves what the client may send.
func (c *conn) relayRead() (moved bool) {
	r, to := c.reading, &c.up
	if to.fd < 0 || !c.connected || to.broken {
		return false
	}
	if r.client == nil {
		c.passWithoutKeys()
	} else {
		c.readClient()
	}
	if c.closed || c.reading == nil {
		return true // there is another way for what is left
	}
	return c.moveClient(r.held != nil || r.waits || r.asked != nil || r.last != nil || c.paced != nil && c.paced.held)
}

// passWithoutKeys passes on whole records of the client, and keeps a copy of them.
func (c *conn) passWithoutKeys() {
	r, from := c.reading, &c.client
	f := r.flights
	if c.paced != nil {
		f = &c.paced.f
	}
	for !r.waits && from.pending() > from.ok {
		fresh := from.buf[from.r+from.ok : from.w]
		n := sniff.Record(fresh)
		if n == 0 && !from.eof && grow(c.l, from) {
			continue
		}
		if n == 0 && !from.eof {
			return // the rest of it is to come
		}
		if n <= 0 {
			c.goBlind(policy.DoubtUndecided)
			return
		}
		flight := r.due
		if !flight {
			_, flight = f.Client(fresh[:n])
		}
		if flight {
			switch first := f.Count() == 0; {
			case first && r.expected && !r.late:
				r.waits, r.due = true, true
				c.l.timers.start(&r.timer, c.l.now.Add(keyTime))
				return
			case first && !r.late:
				r.late = true
				c.l.timers.start(&r.timer, c.l.now.Add(lateTime))
			}
			r.due = false
			if c.paced != nil && (c.unpaid || f.Count() > 0) {
				if c.enterFlight(); c.closed || c.reading == nil || c.paced.held {
					return
				}
			}
			continue
		}
		if len(r.early)+n > maxEarly {
			c.goBlind(policy.DoubtNoKeys)
			return
		}
		r.early = append(r.early, fresh[:n]...)
		from.ok += n
	}
}

// readClient reads the client's records as they come. What begins no request
// may go at once.
func (c *conn) readClient() {
	r, from := c.reading, &c.client
	if !c.readRecord() {
		return
	}
	for {
		fresh := from.buf[from.r+from.ok+r.staged : from.w]
		if len(fresh) == 0 {
			return
		}
		n, kind, plain, err := r.client.Next(fresh)
		switch {
		case err != nil:
			c.goBlind(doubtOfTLS(err))
			return
		case n > 0:
		case from.eof:
			c.goBlind(policy.DoubtUndecided) // cut off in a record
			return
		case from.r+from.ok == 0 && from.w == len(from.buf):
			if !grow(c.l, from) {
				c.goBlind(policy.DoubtTooLong)
				return
			}
			continue
		default:
			return
		}
		r.record, r.plain = n, nil
		if kind == tlsread.ApplicationData {
			r.plain = plain
			if !c.likeHTTP(plain) {
				c.goBlind(policy.DoubtHTTP)
				return
			}
		}
		if !c.readRecord() {
			return
		}
	}
}

// likeHTTP looks at the first bytes inside TLS, and says whether they can be
// the beginning of HTTP. What is not must not be kept waiting for the end of a
// head.
func (c *conn) likeHTTP(plain []byte) bool {
	r := c.reading
	if r.looked || len(plain) == 0 {
		return true
	}
	r.looked = true
	switch sniff.First(plain) {
	case sniff.HTTP1, sniff.HTTP2, sniff.NeedMore:
		return true
	}
	return false
}

// readRecord looks at what is left of the record at hand. It reports whether
// the next one may be looked at.
func (c *conn) readRecord() bool {
	r := c.reading
	for len(r.plain) > 0 {
		if r.held != nil || r.asked != nil || r.last != nil {
			return false
		}
		n, ev, err := r.heads.Next(r.plain)
		if err != nil || n == 0 && ev.Kind == heads.None {
			c.goBlind(policy.DoubtHTTP)
			return false
		}
		r.plain = r.plain[n:]
		switch ev.Kind {
		case heads.Begin:
			r.open = true
			if r.begun++; r.begun > 1 {
				c.l.p.insight.Shared()
			}
		case heads.RequestHead:
			r.open = false
			s, ok := c.newStream(&r.streams, ev.Request)
			if !ok || len(r.streams.open) >= maxStreams {
				c.goBlind(policy.DoubtHTTP)
				return false
			}
			if r.begun > 1 {
				c.sendAlong(&r.streams, s)
				c.expect(s)
				continue
			}
			if r.server.behind() {
				r.asked = s
				c.l.timers.start(&r.timer, c.l.now.Add(behindTime))
				return false
			}
			if !c.readAsks(s) {
				return false
			}
		case heads.Reset:
			c.streamEnded(&r.streams, ev.Stream)
		}
	}
	if r.held != nil || r.asked != nil {
		return false
	}
	r.staged += r.record
	r.record = 0
	if !r.open {
		c.client.ok += r.staged
		r.staged, r.begun = 0, 0
	} else if r.timer.index == 0 {
		c.l.timers.start(&r.timer, c.l.now.Add(undecidedTime))
	}
	return true
}

// readAsks takes a request to its gate. It reports whether it may go.
func (c *conn) readAsks(s *stream) bool {
	switch out := c.enterStream(&c.reading.streams, s); out.State {
	case gate.Granted:
		c.expect(s)
		return true
	case gate.Refused:
		c.end(true, true)
	}
	return false
}

// expect tells the reader of the answers what was asked.
func (c *conn) expect(s *stream) {
	r := c.reading
	if r.heads.HTTP2() {
		return
	}
	r.server.expect(s.kind)
	if s.kind&(http1.ForUpgrade|http1.ForCONNECT) != 0 {
		r.last = s
	}
}

// askedGoes takes the request that waited for answers to be read to its gate.
func (c *conn) askedGoes() {
	r := c.reading
	s := r.asked
	r.asked = nil
	c.l.timers.stop(&r.timer)
	c.readAsks(s)
}

// readDecided is called on the loop after the gate notified the waiter of a
// request that was held.
func (c *conn) readDecided() {
	s, out := c.streamDecided(&c.reading.streams)
	if out.State == gate.Refused {
		c.end(true, true)
		return
	}
	c.expect(s)
	c.advance()
}

// heardServer takes note of bytes of the server, before they go on.
func (c *conn) heardServer(b []byte) {
	r := c.reading
	switch {
	case r.client != nil:
		r.server.take(b)
	case len(r.greeting)+len(b) > maxEarly:
		c.goBlind(policy.DoubtNoKeys)
	default:
		r.flights.Server()
		r.greeting = append(r.greeting, b...)
	}
}

// answersCame takes what the reader of the server's copies found.
func (c *conn) answersCame(answers []answer, doubt policy.Doubt, failed bool) {
	r := c.reading
	for i := range answers {
		a := &answers[i]
		if a.ended {
			c.streamEnded(&r.streams, a.stream)
			continue
		}
		c.streamAnswered(&r.streams, a)
		if a.tunnel && a.stream == 0 {
			c.becomeTunnel()
			c.advance()
			return
		}
	}
	if failed {
		c.goBlind(doubt)
		return
	}
	again := false
	if r.last != nil && r.streams.open[r.last.id] != r.last {
		r.last, again = nil, true // it was answered, and HTTP goes on
	}
	if r.asked != nil && !r.server.behind() {
		c.askedGoes()
		again = true
	}
	if again && !c.closed {
		c.advance()
	}
}
