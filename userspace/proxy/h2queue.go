// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/userspace/gate"
	"github.com/egressd/egressd/userspace/h2"
	"github.com/egressd/egressd/userspace/heads"
)

// item is a frame of a client that waits, or a header block with all its frames.
type item struct {
	stream uint32
	raw    []byte // as it came; of the last item there may be more to come
	flow   uint32 // what a body takes from windows
	ends   bool   // the client's side of the stream
	asks   *asks  // it opens the stream
	block  *h2.Block
	head   h2.HeaderBlock // where block is not nil
}

// asks is a request that goes to its gate.
type asks struct {
	*heads.Request
	ambiguous bool
}

// enqueue has an item wait, whose bytes are to come.
func (h *h2relay) enqueue(it *item) {
	h.queue = append(h.queue, it)
	h.behind[it.stream]++
	h.waits += int64(it.flow)
	if it.asks != nil {
		h.asking++
	}
}

// append adds bytes to the last item.
func (h *h2relay) append(b []byte) {
	it := h.queue[len(h.queue)-1]
	it.raw = append(it.raw, b...)
	h.count(len(b))
}

// count notes that n bytes more wait.
func (h *h2relay) count(n int) {
	h.queued += n
	extra := int64(max(0, h.queued-maxQueued))
	h.c.l.p.kept.Add(extra - h.extra)
	h.extra = extra
}

// full says that no more is to be read of the client. The end of a frame that is
// cut is: what was let go waits for it.
func (h *h2relay) full() bool {
	return h.queued >= maxQueued && !h.cut() && (h.queued >= mostQueued || h.c.l.p.kept.Load() >= maxKept || !h.waitsForItself())
}

// dequeued notes that an item does not wait any more.
func (h *h2relay) dequeued(it *item) {
	if h.behind[it.stream]--; h.behind[it.stream] == 0 {
		delete(h.behind, it.stream)
	}
	h.count(-len(it.raw))
	h.waits -= int64(it.flow)
	if it.asks != nil {
		h.asking--
	}
}

// unfinished says that an item is the frame at hand, of which there is more to
// come.
func (h *h2relay) unfinished(it *item) bool {
	return h.fate == fateWait && h.client.Left() > 0 && it == h.queue[len(h.queue)-1]
}

// resume goes through the queue and lets go what may, as soon as no frame is cut
// by that. The order within a stream is kept, and requests are asked for one by
// one.
func (h *h2relay) resume() {
	h.due = h.cut()
	if h.due {
		return
	}
	var kept []*item
	stays := map[uint32]bool{}
	waiting, short := h.held != nil, false
	for _, it := range h.queue {
		_, gone := h.swallowed[it.stream]
		keep := stays[it.stream]
		switch {
		case gone:
			h.dropItem(it)
			continue
		case it.asks != nil && it == h.granted:
		case it.asks != nil && waiting:
			keep = true
		case it.asks != nil:
			switch h.ask(it.asks) {
			case askHeld:
				waiting, keep = true, true
			case askRefused:
				h.dropItem(it)
				continue
			}
		case it.flow > 0 && !keep && (short || h.short(it.flow)):
			short, keep = true, true
		}
		if keep {
			stays[it.stream] = true
			kept = append(kept, it)
			continue
		}
		h.passItem(it)
	}
	h.granted, h.queue = nil, kept
}

// passItem lets an item go.
func (h *h2relay) passItem(it *item) {
	if h.unfinished(it) {
		h.fate = fatePass
	}
	h.dequeued(it)
	h.window -= int64(it.flow)
	h.endsRequest(it.stream, it.ends)
	h.lift()
	if it.block != nil {
		h.scratch = h.table.Append(h.scratch[:0], it.block)
		if !bytes.Equal(h.scratch, it.head.Block) {
			h.altered = true
			h.out = appendBlock(h.out, &it.head, h.scratch)
			return
		}
	}
	h.out = append(h.out, it.raw...)
}

// dropItem keeps an item from the origin.
func (h *h2relay) dropItem(it *item) {
	if h.unfinished(it) {
		h.fate = fateDrop
	}
	h.dequeued(it)
	h.altered = true
	h.giveBack(int64(it.flow))
	if it.block != nil {
		h.table.Swallow(it.block)
	}
}

// dropStream drops all that waits of a stream, and reports whether that is all
// there was of it.
func (h *h2relay) dropStream(stream uint32) (whole bool) {
	if h.behind[stream] == 0 {
		return false
	}
	var kept []*item
	for _, it := range h.queue {
		if it.stream != stream {
			kept = append(kept, it)
			continue
		}
		whole = whole || it.asks != nil
		h.dropItem(it)
	}
	h.queue = kept
	return whole
}

// forgetQueue drops all requests that wait, unanswered.
func (h *h2relay) forgetQueue() {
	h.c.leaveHeld(&h.streams)
	if it := h.granted; it != nil {
		h.granted = nil
		h.ungrant(it.stream)
	}
	var kept []*item
	dropped := map[uint32]bool{}
	for _, it := range h.queue {
		if it.asks != nil {
			dropped[it.stream] = true
			h.forgetStream(it.stream)
		}
		if dropped[it.stream] {
			h.dropItem(it)
			continue
		}
		kept = append(kept, it)
	}
	h.queue = kept
}

// ungrant gives back what a request took that was let go and is not sent.
func (h *h2relay) ungrant(stream uint32) {
	if s := h.open[stream]; s != nil {
		delete(h.open, stream)
		if s.admitted {
			s.admitted = false
			h.c.l.p.cfg.Gate.Abort(s.waiter, true, h.c.l.p.cfg.Now())
		}
	}
	h.closed(stream)
}

// forgetStream has all dropped that the client still sends on a stream. It may
// reset one that it has sent whole.
func (h *h2relay) forgetStream(stream uint32) {
	h.altered = true
	if _, known := h.swallowed[stream]; known {
		return
	}
	h.swallowed[stream] = struct{}{}
	if h.oldest = append(h.oldest, stream); len(h.oldest) > maxSwallowed {
		delete(h.swallowed, h.oldest[0])
		h.oldest = h.oldest[1:]
	}
}

// waitsForItself says that the request that is held may wait for the end of one
// whose body could not come if no more were read of the client.
func (h *h2relay) waitsForItself() bool {
	if h.held == nil {
		return false
	}
	counts := false
	for _, l := range h.held.lanes {
		counts = counts || l.Counts()
	}
	if !counts {
		return false
	}
	for id := range h.open {
		if l := h.live[id]; l != nil && !l.sent {
			return true
		}
	}
	return false
}

// refuseHeld refuses the request that is held.
func (h *h2relay) refuseHeld() {
	s := h.held
	h.c.leaveHeld(&h.streams)
	s.tally.CountRefused(policy.RefusedQueueFull)
	h.denied(s, gate.Outcome{Reason: policy.RefusedQueueFull, Lane: s.lanes[0], RetryAfter: time.Second}, h.ended(s.id))
	h.resume()
}
