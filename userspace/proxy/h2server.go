// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"encoding/binary"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/userspace/h2"
	"github.com/egressd/egressd/userspace/heads"
	"github.com/egressd/egressd/userspace/http1"
)

// maxControl is the size in bytes of a Settings frame that is read, and how many
// of them may be without acknowledgement.
const maxControl = 4 << 10

// fromServer moves what the origin sends, and what is said in its place.
func (h *h2relay) fromServer() (moved bool) {
	c := h.c
	from := &c.up
	moved = h.deliver()
	if c.h2 != h {
		return true
	}
	moved = h.lookBack() || moved
	if c.h2 != h {
		return true
	}
	moved = h.deliver() || moved
	if c.h2 != h || from.ok > 0 || len(h.reply) > 0 {
		return moved
	}
	if from.eof {
		return from.pending() == 0 && h.endsServer() || moved
	}
	if !from.readable {
		return moved
	}
	return c.refill(from) || moved
}

// deliver writes to the client what may go.
func (h *h2relay) deliver() (moved bool) {
	c := h.c
	for len(h.reply) > 0 && c.client.writable {
		n, errno := write(c.client.fd, h.reply)
		if errno == unix.EAGAIN {
			c.client.writable = false
			break
		}
		if errno != 0 {
			c.clientBroke()
			return true
		}
		h.reply = h.reply[n:]
		moved = true
	}
	if len(h.reply) > 0 {
		return moved
	}
	h.reply = nil
	m, errno := c.deliver()
	if errno != 0 {
		c.clientBroke()
	}
	return m || moved
}

// between says that a frame of our own may come next.
func (h *h2relay) between() bool { return h.server.Between() && !h.server.InBlock() }

// say puts our own frames behind what the origin sent so far, if this is a place
// for them: the first frame of all is the origin's (RFC 9113 §3.4). It reports
// whether there were any.
func (h *h2relay) say() bool {
	if !h.greeted || h.over || len(h.inject) == 0 && h.owed == 0 || !h.between() {
		return false
	}
	h.skip(0)
	h.reply = h.appendOwed(append(h.reply, h.inject...))
	h.inject = h.inject[:0]
	return true
}

// skip takes what may go out of the origin's buffer, and n bytes behind it that
// go nowhere.
func (h *h2relay) skip(n int) {
	s := &h.c.up
	h.c.received += int64(s.ok)
	h.reply = append(h.reply, s.buf[s.r:s.r+s.ok]...)
	s.r += s.ok + n
	s.ok = 0
	h.c.release(s)
}

// lookBack reads the origin's frames as far as they came.
func (h *h2relay) lookBack() (moved bool) {
	s := &h.c.up
	for h.c.h2 == h && len(h.reply) == 0 {
		if h.say() {
			return true
		}
		fresh := s.buf[s.r+s.ok : s.w]
		if len(fresh) == 0 {
			break
		}
		if h.server.Left() == 0 {
			n := h.nextFrame(fresh)
			if n == 0 {
				break
			}
			if fresh = fresh[:max(n, 0)]; n < 0 {
				moved = true
				continue
			}
		}
		h.read(fresh)
		moved = true
	}
	return moved
}

// nextFrame looks at the header of the next frame. It returns how many bytes may
// be read now; 0 if there are too few of them, and less if it was dealt with.
func (h *h2relay) nextFrame(fresh []byte) int {
	const dealt = -1
	s := &h.c.up
	f, ok := h.server.Peek(fresh)
	gives := ok && f.Type == h2.WindowUpdate && f.Stream == 0 && f.Length == 4 && !h.server.InBlock()
	switch {
	case !ok || gives && len(fresh) < h2.FrameHeaderLen+4:
		if !s.eof {
			return 0
		}
		s.ok += len(fresh) // it is cut short
		return dealt
	case !h.greeted && !greets(fresh):
		h.doubtServer()
		return dealt
	case !gives:
		return h2.FrameHeaderLen
	}
	n := int64(binary.BigEndian.Uint32(fresh[h2.FrameHeaderLen:]) &^ (1 << 31))
	lent := h.lent > 0 && n > 0
	rest := h.given(n)
	if lent { // it pays that back
		h.skip(h2.FrameHeaderLen + 4)
		h.owed += rest
	}
	if len(h.queue) > 0 {
		h.resume()
		h.lend()
	}
	if lent {
		return dealt
	}
	return h2.FrameHeaderLen
}

// read reads the next bytes, of one frame's header or payload, and lets them go.
func (h *h2relay) read(b []byte) {
	n, part, err := h.server.Next(b)
	if err != nil {
		h.doubtServer()
		return
	}
	b = b[:n]
	_, ev, err := h.answers.Next(b)
	if err != nil {
		h.doubtServer()
		return
	}
	h.c.up.ok += n
	if f := h.server.Frame(); f.Type == h2.Settings && !f.Has(h2.Ack) {
		if part == h2.PartHeader {
			b, h.control = nil, h.control[:0]
		}
		h.settings(f, b)
	}
	switch ev.Kind {
	case heads.ResponseHead:
		h.answered(ev.Response)
	case heads.End:
		h.closed(ev.Stream)
	case heads.Reset:
		h.c.streamEnded(&h.streams, ev.Stream)
		h.closed(ev.Stream)
	case heads.GoAway:
		h.goesAway(ev.Stream)
	}
}

// settings takes a piece of the origin's Settings.
func (h *h2relay) settings(f h2.FrameHeader, piece []byte) {
	if f.Length <= maxControl {
		h.control = append(h.control, piece...)
	}
	if h.server.Left() > 0 {
		return
	}
	h.greeted = true
	size := int64(-1)
	h2.ParseSettings(h.control, func(s h2.Setting, value uint32) bool {
		if s == h2.HeaderTableSize {
			size = int64(value)
		}
		return true
	})
	if h.sizes = append(h.sizes, size); len(h.sizes) > maxControl {
		h.doubtServer() // nobody acknowledges them
	}
}

// acknowledged follows the client's acknowledgement of Settings, which goes to
// the origin now.
func (h *h2relay) acknowledged() {
	if len(h.sizes) == 0 {
		return
	}
	size := h.sizes[0]
	if h.sizes = h.sizes[1:]; size >= 0 {
		h.table.Acknowledge(uint32(size))
	}
}

// answered follows the head of an answer.
func (h *h2relay) answered(r *heads.Response) {
	if r.Stream%2 == 0 {
		return // nobody asked for it
	}
	a := newAnswer(r, time.Now())
	if s := h.open[r.Stream]; s != nil && s.kind&http1.ForCONNECT != 0 && r.Status/100 == 2 && !r.End {
		a.tunnel = true
		h.becomesTunnel(s)
	}
	h.c.streamAnswered(&h.streams, &a)
	if r.End {
		h.closed(r.Stream)
	}
}

// goesAway follows the origin's word that it looks at no stream above last
// (RFC 9113 §6.8). The client hears it too, and knows by it what becomes of a
// request that was held.
func (h *h2relay) goesAway(last uint32) {
	h.barred = min(h.barred, last)
	for id := range h.open {
		if id > last && (h.granted == nil || h.granted.stream != id) {
			h.c.streamEnded(&h.streams, id)
			h.closed(id)
		}
	}
	for _, it := range h.queue {
		if it.asks != nil {
			if it.stream > last {
				h.forgetQueue() // those behind it have higher numbers
			}
			return
		}
	}
}

// endsServer follows the end of what the origin sends: there will be no answers.
func (h *h2relay) endsServer() bool {
	if h.over {
		return false
	}
	h.over = true
	h.forgetQueue()
	h.c.leaveStreams(&h.streams)
	for id := range h.live {
		h.closed(id)
	}
	return true
}
