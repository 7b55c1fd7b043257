// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/policy/ledger"
	"github.com/egressd/egressd/policy/verdict"
	"github.com/egressd/egressd/userspace/gate"
	"github.com/egressd/egressd/userspace/http1"
)

// How a request is repeated.
//
// While a request that may be repeated is forwarded, its bytes are copied. If
// the origin refuses it, the answer stays where it was read until it is whole
// (rsKeep, rsKept). Then it is put by, the request goes to its gate again, like
// one that just came, and once it is let go the copy is sent (rqReplay).
//
// From then on the client is owed an answer. Whatever happens before the head
// of another final answer is there, it gets the one that was put by, byte for
// byte. Interim answers are passed on as they come.

const (
	// maxKept is how many bytes of requests and answers the proxy keeps for
	// repeating. Beyond it, requests go without.
	maxKept = 64 << 20
	// maxAnswer is the size in bytes of an answer that is kept. A longer one
	// is passed on, and its request not repeated.
	maxAnswer = 64 << 10
	// keepTime is how long the rest of an answer, or of the request that it
	// came too early for, is waited for before the answer is passed on.
	keepTime = time.Second
)

// replay is a request that can be sent again, and the answer that its client
// is owed.
type replay struct {
	request  []byte // as it came, head and body
	most     int64  // bytes that request may have
	headLen  int    // bytes of its head
	left     []byte // of request: still to be sent again …
	body     []byte // … and then this
	attempts int    // made so far
	opening  bool   // the first was the first of its connection
	expects  bool   // its client waits for an answer before it sends the body
	since    ledger.Time
	drawn    *policy.Lane // what it costs to repeat it was taken from there, and is not spent yet

	// An origin may close a connection that stands at the very moment at which
	// an attempt is sent on it. That attempt is void.
	last   int32 // generation of the connection that answered
	reused bool  // the attempt is made on it, and the origin said nothing yet
	void   bool  // the attempt before was

	answer []byte             // put by; nil: none is owed
	head   http1.ResponseHead // of answer
	at     ledger.Time        // when it was put by
}

// reserve counts n bytes more that are kept, if there is room for them.
func (p *Proxy) reserve(n int) bool {
	if p.kept.Add(int64(n)) <= maxKept {
		return true
	}
	p.kept.Add(int64(-n))
	return false
}

// remember begins to copy the pending request, if it may have to be repeated.
// opening says that it is the first of its connection.
func (c *conn) remember(opening bool) {
	lane := policy.Target(c.lanes)
	if lane == nil || !lane.Budget().Retry.Absorb {
		return
	}
	rule := &lane.Budget().Retry
	head := c.client.buf[c.client.r : c.client.r+c.req.Len]
	if c.kind&(http1.ForCONNECT|http1.ForUpgrade) != 0 || !repeatable(c.req.Method, head) {
		return
	}
	if c.reqBody.Kind() == http1.BodyLength && c.reqBody.Remaining() > uint64(rule.MaxBody) {
		return
	}
	c.again = &replay{
		most:     int64(len(head)) + rule.MaxBody,
		headLen:  len(head),
		attempts: 1,
		opening:  opening,
		expects:  c.req.Expect100,
		since:    c.arrived,
	}
	c.copyRequest(head)
}

// repeatable reports whether a request may be sent twice: by its method
// (RFC 9110 §9.2.2), or because the origin can tell that it is the same.
func repeatable(method, head []byte) bool {
	switch string(method) {
	case "GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE":
		return true
	}
	key, _ := http1.Field(head, "idempotency-key")
	return len(key) > 0
}

// copyRequest takes the next bytes of the request into the copy, if there is
// one. It gives the copy up where it becomes too long.
func (c *conn) copyRequest(b []byte) {
	r := c.again
	if r == nil {
		return
	}
	if int64(len(r.request)+len(b)) <= r.most {
		had := cap(r.request)
		r.request = append(r.request, b...)
		grown := cap(r.request) - had
		if c.l.p.reserve(grown) {
			return
		}
		c.l.p.kept.Add(int64(grown)) // forget gives it back
	}
	c.giveUp()
}

// forget gives the copy up, and the answer with it.
func (c *conn) forget() {
	r := c.again
	if r == nil {
		return
	}
	c.again = nil
	c.l.p.kept.Add(-int64(cap(r.request) + cap(r.answer)))
	c.undraw(r)
	c.req = http1.RequestHead{} // it may be made of views of the copy
}

// undraw gives back what was taken for an attempt that is not made.
func (c *conn) undraw(r *replay) {
	if r.drawn != nil {
		r.drawn.Retries.Return()
		r.drawn = nil
	}
}

// giveUp is forget while an answer may be held back.
func (c *conn) giveUp() {
	if c.keeping() {
		c.passOn()
		return
	}
	c.forget()
}

// keeping says that an answer is held back until it is whole, and its request.
func (c *conn) keeping() bool { return c.rs == rsKeep || c.rs == rsKept }

// owed says that an answer was put by.
func (c *conn) owed() bool { return c.again != nil && c.again.answer != nil }

// absorbs decides whether the answer with this head, judged v, is held back and
// its request repeated.
func (c *conn) absorbs(v verdict.Verdict, head []byte) bool {
	r, lane := c.again, policy.Target(c.lanes)
	if r == nil || lane == nil || c.l.draining {
		return false
	}
	b := lane.Budget()
	switch {
	case !b.Retry.Absorb, r.attempts >= b.Retry.Attempts:
		return false
	case v.Kind == verdict.Challenge:
		return false // no waiting solves it
	case v.Retry == verdict.DoNotRetry:
		return false
	case !slices.Contains(limits(b), c.resp.Status) && !slices.Contains(b.Retry.Statuses, c.resp.Status):
		return false
	case c.rq == rqSend && r.expects:
		return false // this is what it waits for; the body may never come
	case forbidden(head):
		return false
	case c.fixed() && c.resp.Close:
		return false // there will be no connection to repeat it on
	}
	if !lane.Retries.Withdraw() {
		return false
	}
	r.drawn = lane
	return true
}

// limits are the statuses that are limits under b.
func limits(b *policy.Budget) []int {
	if len(b.Cooldown.Statuses) == 0 {
		return defaultLimits
	}
	return b.Cooldown.Statuses
}

var defaultLimits = []int{429} // as of verdict.Head.Verdict

// forbidden reports whether the origin says that the request shall not be
// repeated, whatever dialects the rule believes.
func forbidden(head []byte) (no bool) {
	http1.Fields(head, func(name, value []byte) bool {
		if http1.EqualFold(name, "x-should-retry") || http1.EqualFold(name, "stripe-should-retry") {
			no = no || http1.EqualFold(value, "false")
		}
		return true
	})
	return no
}

// keep begins to hold back an answer whose head has n bytes.
func (c *conn) keep(n int) {
	c.kept = n
	c.resBody = c.resp.Body
	c.rs = rsKeep
	if c.resBody.Done() {
		c.rs = rsKept
	}
	c.l.timers.start(&c.timer, c.l.now.Add(keepTime))
}

// keepOn goes on holding back, after more was read, or gives it up. It reports
// whether that changed anything.
func (c *conn) keepOn() bool {
	u := &c.up
	switch {
	case !c.keeping():
		return false
	case c.kept > maxAnswer:
		c.passOn()
	case c.rs == rsKept:
		return false
	case !u.eof:
		if u.r > 0 || u.w < len(u.buf) {
			return false
		}
		if !grow(c.l, u) {
			c.passOn()
		}
	case c.resBody.EndsAtEOF():
		c.rs = rsKept
	case c.owed():
		c.fallBack()
	default:
		c.passOn()
	}
	return true
}

// passOn lets an answer go to the client after all.
func (c *conn) passOn() {
	c.up.ok += c.kept
	c.kept = 0
	c.rs = rsBody
	if c.resBody.Done() {
		c.rs = rsDone
	}
	c.rewatch()
	c.answering()
}

// rewatch gives the timer back to what it is for while a request is under way.
func (c *conn) rewatch() {
	if c.client.eof {
		c.l.timers.start(&c.timer, c.l.now.Add(watchTime))
		return
	}
	c.l.timers.stop(&c.timer)
}

// answering ends the copying: a final answer goes to the client, or none will.
func (c *conn) answering() {
	r := c.again
	if r == nil {
		return
	}
	lost := c.up.fd < 0 || c.up.broken
	switch {
	case c.rq == rqReplay && !lost: // what is left of the request is still to be sent
		c.l.p.kept.Add(-int64(cap(r.answer)))
		r.answer = nil
		c.undraw(r)
		return
	case c.rq == rqReplay:
		c.rq = rqDone
	}
	c.forget()
	if c.rq == rqSend && lost {
		c.nowhere()
	}
}

// repeat puts the answer by and takes the request to its gate again; or it
// passes the answer on, where that is of no use.
func (c *conn) repeat() {
	r, u, cl := c.again, &c.up, &c.client
	if cl.hup && !c.stillThere() {
		c.end(false, false)
		return
	}
	now := c.l.p.cfg.Now()
	opens := c.reselect()
	another := opens || c.strays() || c.resp.Close || c.rq == rqReplay || cl.ok > 0 // it ends, or does not have the whole request
	if another && c.fixed() || c.l.draining || u.pending() > c.kept || !c.inTime(now) || !c.l.p.reserve(c.kept) {
		c.passOn() // with what follows it, if that is why
		return
	}
	c.l.p.kept.Add(-int64(cap(r.answer)))
	r.answer = make([]byte, c.kept)
	copy(r.answer, u.buf[u.r:])
	r.head, r.at, r.last = c.resp, now, u.gen
	u.r += c.kept
	c.kept = 0
	c.release(u)
	if another {
		c.forgetUpstream()
	}
	if opens || c.strays() {
		c.unhold()
	}
	cl.r += cl.ok
	cl.ok = 0
	c.release(cl)
	c.rewatch()
	c.exchanged()
	c.reenter(now)
}

// reenter takes the request to the gate again.
func (c *conn) reenter(now ledger.Time) {
	r := c.again
	c.rq, c.rs = rqDone, rsIdle
	c.wrote = false
	c.waiter.Since = r.since
	c.countBy()
	switch c.l.p.cfg.Gate.Enter(&c.waiter, c.lanes, now).State {
	case gate.Granted:
		c.admitted = true
		c.goAhead()
	case gate.Queued:
		c.rq = rqHeld
	case gate.Refused:
		c.fallBack()
	}
}

// reselect finds the lanes of the copied request. It reports whether they count
// connections, of which the attempt then opens one as the first did.
func (c *conn) reselect() (opens bool) {
	r, e := c.again, c.l.p.cfg.Engine
	http1.ParseRequest(&c.req, r.request, 0) // which it was already, without an error
	f := c.facts()
	if c.pooled() {
		c.choose(&f)
	}
	c.lanes = e.Select(c.lanes[:0], &f, policy.ForRequest, c.l.now)
	n := len(c.lanes)
	if r.opening || c.strays() {
		c.lanes = e.Select(c.lanes, &f, policy.ForHTTPConnection, c.l.now)
	}
	return len(c.lanes) > n
}

// inTime reports whether the gate would let the request go soon enough, as it
// now looks. To ask the gate itself would count a refusal where the client sees
// none.
func (c *conn) inTime(now ledger.Time) bool {
	fits, held := c.fits(c.again.since, now)
	return fits && held
}

// fits reports whether the lanes of a request that first came at since would let
// it go soon enough, and whether any of them may hold it.
func (c *conn) fits(since, now ledger.Time) (fits, enforced bool) {
	after, most := time.Duration(0), time.Duration(math.MaxInt64)
	for _, l := range c.lanes {
		if !l.Enforced() {
			continue
		}
		enforced = true
		ahead, queue := l.Waiting.Load(), &l.Budget().Queue
		wait := l.After(now, uint64(ahead))
		if l.Key.Budget == policy.ExitBudget {
			after = max(after, wait)
			continue // it bounds no wait that a budget of the file bounds
		}
		if wait > 0 && ahead >= int64(queue.Max) {
			return false, true
		}
		after = max(after, wait)
		most = min(most, queue.MaxWait)
	}
	return now.Sub(since)+after <= most, enforced
}

// resend sends the copy, over the connection that stands.
func (c *conn) resend() {
	r := c.again
	r.reused = c.up.gen == r.last
	r.left, r.body = r.request, nil
	if c.pooled() {
		r.left, r.body = appendLogin(nil, r.request[:r.headLen], c.via.pool.line()), r.request[r.headLen:]
	}
	c.rq, c.seen = rqReplay, 0
	if r.void {
		r.void = false // it was counted
		return
	}
	r.attempts++
	r.drawn = nil
	c.tally().CountRetried()
	detail := strconv.Itoa(r.head.Status) + ", attempt " + strconv.Itoa(r.attempts)
	if lane := policy.Target(c.lanes); lane != nil {
		detail = fmt.Sprintf("%s of %d", detail, lane.Budget().Retry.Attempts)
	}
	now := c.l.p.cfg.Now()
	c.l.p.event(policy.Event{At: now, Kind: policy.EventRetry, Lane: c.laneID(), Wait: now.Sub(r.at), Detail: detail})
}

// sendAgain hands the copy on to the origin.
func (c *conn) sendAgain() (moved bool) {
	r, u := c.again, &c.up
	if u.fd < 0 {
		return false
	}
	for len(r.left) > 0 && u.writable {
		n, errno := write(u.fd, r.left)
		if errno == unix.EAGAIN {
			u.writable = false
			break
		}
		if errno != 0 {
			c.upstreamWriteFailed(errno)
			return true
		}
		if r.left = r.left[n:]; len(r.left) == 0 {
			r.left, r.body = r.body, nil
		}
		c.sent += int64(n)
		c.wrote, moved = true, true
	}
	if len(r.left) == 0 {
		c.rq, moved = rqDone, true
		if c.rs != rsHead && !c.keeping() {
			c.forget() // it was answered before
		}
	}
	return moved
}

// unanswered says that the request under way gets no answer. It reports whether
// another is owed, which the client then gets, if not the attempt is made anew.
func (c *conn) unanswered() bool {
	c.answered(nil)
	if !c.owed() {
		c.answering()
		return false
	}
	r, now := c.again, c.l.p.cfg.Now()
	if r.reused && !c.fixed() && c.up.pending() == 0 && !c.l.draining && c.inTime(now) {
		r.void = true
		c.forgetUpstream()
		c.reenter(now)
		return true
	}
	c.fallBack()
	return true
}

// fallBack gives the client the answer that was put by.
func (c *conn) fallBack() {
	r, u := c.again, &c.up
	c.forsake()
	if c.rs != rsIdle || !c.connected || u.pending() > 0 {
		// The connection is busy with an attempt that came to nothing. What of
		// it may be handed on, interim answers, is.
		u.w = u.r + u.ok
		c.dropUpstream()
	}
	buf := u.buf
	if buf == nil {
		buf = c.l.buffers.get()
	}
	n := copy(buf, buf[u.r:u.w])
	if n+len(r.answer) > len(buf) {
		long := make([]byte, n+len(r.answer))
		copy(long, buf[:n])
		c.l.buffers.put(buf)
		buf = long
	}
	n += copy(buf[n:], r.answer)
	u.buf, u.r, u.w, u.ok = buf, 0, n, n
	c.resp = r.head
	if c.fixed() && (u.fd < 0 || u.hup || u.eof || u.broken) {
		c.resp.Close = true // nothing can follow
	}
	c.rq, c.rs, c.kept, c.seen = rqDone, rsDone, 0, 0
	c.rewatch()
	c.forget()
}
