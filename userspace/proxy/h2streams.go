// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"strconv"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/userspace/gate"
	"github.com/egressd/egressd/userspace/h2"
	"github.com/egressd/egressd/userspace/http1"
)

// decision is what becomes of a request.
type decision uint8

const (
	askGoes    decision = iota // it may be sent
	askHeld                    // it is in its gate
	askRefused                 // it will not be sent
)

// ask takes a request to its gate. Requests are asked for in the order of their
// streams.
func (h *h2relay) ask(a *asks) decision {
	c := h.c
	switch {
	case h.leaving || a.Stream > h.barred:
		h.swallows(a.Stream) // the client is told that nobody looks at it
		return askRefused
	case a.ambiguous:
		h.malformed(a, "repeated or contradictory pseudo-header field")
		return askRefused
	case c.barsUDP() && http1.EqualFold([]byte(a.Protocol), connectUDP):
		h.answer(a.Stream, h.whole(a), udpRefusal())
		return askRefused
	}
	s, ok := c.newStream(&h.streams, a.Request)
	switch {
	case !ok:
		h.malformed(a, "invalid host")
		return askRefused
	case len(h.open) >= maxStreams:
		h.reset(a.Stream, h2.RefusedStream)
		return askRefused
	}
	if named := c.l.p.cfg.Named; named != nil && !h.named && c.via == nil && len(s.lanes) > 0 {
		named(c.flow.Dest, s.lanes[0].Label)
	}
	h.named = true
	switch out := c.enterStream(&h.streams, s); out.State {
	case gate.Granted:
		h.lives(a.Stream, a.End)
		return askGoes
	case gate.Queued:
		if h.over { // nobody would wait for it
			c.leaveHeld(&h.streams)
			h.swallows(a.Stream)
			return askRefused
		}
		return askHeld
	default:
		h.denied(s, out, h.whole(a))
		return askRefused
	}
}

// whole says that the client has sent all of a request.
func (h *h2relay) whole(a *asks) bool { return a.End || h.ended(a.Stream) }

// ended says that what waits of a stream ends it.
func (h *h2relay) ended(stream uint32) bool {
	if h.behind[stream] == 0 {
		return false
	}
	for _, it := range h.queue {
		if it.stream == stream && it.ends && !h.unfinished(it) {
			return true
		}
	}
	return false
}

// lives notes that a request was let go.
func (h *h2relay) lives(stream uint32, whole bool) {
	h.decided = max(h.decided, stream)
	h.live[stream] = &lively{sent: whole}
}

// decide goes on after the gate decided on the request that was held.
func (h *h2relay) decide() {
	c := h.c
	s, out := c.streamDecided(&h.streams)
	if out.State == gate.Granted {
		for _, it := range h.queue {
			if it.stream == s.id && it.asks != nil {
				h.granted = it
				h.lives(s.id, it.ends)
			}
		}
		if c.client.hup && !c.stillThere() {
			h.ungrant(s.id)
			c.end(false, false)
			return
		}
	} else {
		h.denied(s, out, h.ended(s.id))
	}
	h.resume()
	c.advance()
}

// denied answers a request that the gate refused.
func (h *h2relay) denied(s *stream, out gate.Outcome, ended bool) {
	if out.Drop {
		// Not REFUSED_STREAM, after which clients come again at once and by
		// themselves (RFC 9113 §8.7).
		h.reset(s.id, h2.EnhanceYourCalm)
		return
	}
	h.answer(s.id, ended, &http1.Refusal{
		Status:     429,
		RetryAfter: out.RetryAfter,
		Error:      "http_request_denied",
		Details:    out.Reason.String() + "; lane " + out.Lane.ID(),
		Date:       time.Now(),
	})
}

// malformed refuses a request that could be read in two ways.
func (h *h2relay) malformed(a *asks, why string) {
	c := h.c
	c.tally().CountRefused(policy.RefusedFraming)
	c.l.p.event(policy.Event{At: c.l.now, Kind: policy.EventRefused, Lane: c.laneID(), Detail: "request from pid " + strconv.FormatUint(uint64(c.flow.PID), 10) + ": " + why})
	h.answer(a.Stream, h.whole(a), &http1.Refusal{Status: 400, Error: "http_request_error", Details: why, Date: time.Now()})
}

// answer answers a request in the origin's place. It has no body, which would
// take from the window that the client gave to the origin. A client that has
// not ended the request is asked to stop it (RFC 9113 §8.1).
func (h *h2relay) answer(stream uint32, ended bool, r *http1.Refusal) {
	h.inject = h2.AppendRefusal(h.inject, stream, r, h2.DefaultMaxFrameSize)
	if !ended {
		h.inject = h2.AppendReset(h.inject, stream, h2.NoError)
	}
	h.swallows(stream)
}

// reset refuses a request without an answer.
func (h *h2relay) reset(stream uint32, code h2.Code) {
	h.inject = h2.AppendReset(h.inject, stream, code)
	h.swallows(stream)
}

// swallows notes that the origin will not see a stream. What waits of it drops out
// of the queue when that is gone through.
func (h *h2relay) swallows(stream uint32) {
	h.decided = max(h.decided, stream)
	h.forgetStream(stream)
}

// cancels follows the reset of a stream by the client.
func (h *h2relay) cancels(stream uint32) {
	c := h.c
	if _, gone := h.swallowed[stream]; gone {
		h.fate = fateDrop
		return
	}
	if !h.dropStream(stream) {
		c.streamEnded(&h.streams, stream)
		h.closed(stream)
		return
	}
	h.fate = fateDrop
	h.forgetStream(stream)
	if h.held != nil && h.held.id == stream {
		c.leaveHeld(&h.streams)
		h.due = true
	}
}

// closed notes that a stream that was let go has ended.
func (h *h2relay) closed(stream uint32) {
	l := h.live[stream]
	if l == nil {
		return
	}
	delete(h.live, stream)
	for _, lane := range l.holds {
		lane.Release()
		h.c.l.p.cfg.Gate.Wake(lane)
	}
}

// becomesTunnel has the lanes of a stream that is a tunnel from now on
// (RFC 8441, RFC 9113 §8.5) count it until it ends.
func (h *h2relay) becomesTunnel(s *stream) {
	l := h.live[s.id]
	if l == nil {
		return
	}
	for _, lane := range s.lanes {
		if lane.Counts() {
			lane.Hold()
			l.holds = append(l.holds, lane)
		}
	}
}
