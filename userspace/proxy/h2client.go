// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/userspace/h2"
)

// fate is what becomes of the client's frame at hand.
type fate uint8

const (
	fatePass  fate = iota // it goes on as it comes
	fateStage             // it belongs to a header block, and stays until that is whole
	fateWait              // it goes into the queue
	fateDrop              // its stream was refused
)

// fromClient moves what the client sends, as far as it may go.
func (h *h2relay) fromClient() (moved bool) {
	c := h.c
	from, to := &c.client, &c.up
	if to.fd < 0 || !c.connected || to.broken {
		return false
	}
	moved = h.send()
	if c.h2 != h || to.broken {
		return true
	}
	moved = h.look() || moved
	if c.h2 != h {
		return true
	}
	moved = h.send() || moved
	if c.h2 != h || to.broken {
		return true
	}
	full := h.full()
	if full && h.waitsForItself() {
		h.refuseHeld()
		return true
	}
	if len(h.queue) > 0 && from.hup && (from.eof || full) {
		if !c.stillThere() {
			c.end(false, false)
			return true
		}
		if c.timer.index == 0 {
			c.l.timers.start(&c.timer, c.l.now.Add(watchTime))
		}
	}
	if full || from.ok > 0 || len(h.out) > 0 || !from.readable || from.eof {
		return moved
	}
	return c.refill(from) || moved
}

// send writes to the origin what was put in order.
func (h *h2relay) send() (moved bool) {
	c := h.c
	for len(h.out) > 0 && c.up.writable {
		n, errno := write(c.up.fd, h.out)
		if errno == unix.EAGAIN {
			c.up.writable = false
			break
		}
		if errno != 0 {
			c.writeBroke(&c.up, errno)
			return true
		}
		c.sent += int64(n)
		h.out = h.out[n:]
		moved = true
	}
	if len(h.out) > 0 {
		return moved
	}
	h.out = nil
	m, errno := c.drain(&c.client, &c.up, &c.sent)
	if errno != 0 {
		c.writeBroke(&c.up, errno)
	}
	return m || moved
}

// look reads the client's frames as far as they came.
func (h *h2relay) look() (moved bool) {
	c, s := h.c, &h.c.client
	for c.h2 == h && len(h.out) < bufferSize && !h.full() {
		fresh := s.buf[s.r+s.ok+h.staged : s.w]
		if len(fresh) == 0 || !h.take(fresh) {
			break
		}
		moved = true
	}
	switch {
	case c.h2 != h || h.staged == 0:
	case s.eof && s.pending() == s.ok+h.staged:
		h.cutShort(0)
		return true
	case s.r == 0 && s.ok == 0 && s.w == len(s.buf):
		if !grow(c.l, s) {
			h.doubt(h2.ErrBlockTooLong)
		}
		return true
	}
	return moved
}

// take looks at the next bytes, at most to the end of a frame's header or of
// what there is of its payload. It reports whether there were enough of them.
func (h *h2relay) take(fresh []byte) bool {
	if h.client.Left() > 0 {
		n, _, _ := h.client.Next(fresh) // of payload, which has no errors
		h.move(fresh[:n])
		h.arrived(fresh[:n])
		return true
	}
	frame, ok := h.client.Peek(fresh)
	if !ok {
		if h.c.client.eof {
			h.cutShort(len(fresh))
			return true
		}
		return false
	}
	n, _, err := h.client.Next(fresh)
	if err == nil {
		err = h.begins(frame)
	}
	if err != nil {
		h.doubt(err)
		return true
	}
	h.move(fresh[:n])
	if frame.Length == 0 {
		h.arrived(nil)
	}
	return true
}

// begins decides what becomes of a frame.
func (h *h2relay) begins(f h2.FrameHeader) error {
	h.fate = fatePass
	switch f.Type {
	case h2.Headers, h2.Continuation:
		h.fate = fateStage
		return h.blocks.Begin(f)
	case h2.PushPromise:
		return h2.ErrStream // only servers push
	case h2.Priority: // which streams may have that are not open
		return nil
	case h2.Settings:
		if f.Has(h2.Ack) {
			h.acknowledged()
		}
		return nil
	case h2.RSTStream:
		h.cancels(f.Stream)
		return nil
	}
	data := f.Type == h2.Data
	switch _, gone := h.swallowed[f.Stream]; {
	case gone:
		h.fate = fateDrop
		if data {
			h.giveBack(int64(f.Length))
		}
	case h.mustWait(f.Stream) || data && h.short(f.Length):
		h.fate = fateWait
		it := &item{stream: f.Stream, ends: f.EndsStream()}
		if data {
			it.flow = f.Length
		}
		h.enqueue(it)
	case data:
		h.window -= int64(f.Length)
		h.endsRequest(f.Stream, f.EndsStream())
	}
	if data && h.overdrawn() {
		h.due = true // nothing is short any more
	}
	return nil
}

// mustWait says that something of a stream waits already, or its request will.
func (h *h2relay) mustWait(stream uint32) bool {
	return h.behind[stream] > 0 || h.asking > 0 && stream%2 == 1 && stream > h.decided
}

// endsRequest notes what ends of a request that was let go.
func (h *h2relay) endsRequest(stream uint32, end bool) {
	if l := h.live[stream]; l != nil && end {
		l.sent = true
	}
}

// move moves bytes of the frame at hand, the next ones of the client's buffer.
func (h *h2relay) move(b []byte) {
	switch h.fate {
	case fatePass:
		h.emit(len(b))
	case fateStage:
		h.staged += len(b)
	case fateWait:
		h.append(b)
		h.remove(len(b))
	case fateDrop:
		h.remove(len(b))
	}
}

// arrived goes on after a piece of payload was moved.
func (h *h2relay) arrived(piece []byte) {
	left := h.client.Left()
	if h.fate == fateStage {
		done, err := h.blocks.Add(piece, left)
		if err == nil && done {
			err = h.block()
		}
		if err != nil {
			h.doubt(err)
			return
		}
	}
	if left > 0 || h.c.h2 != h {
		return
	}
	h.lend()
	h.fate = fatePass
	if h.due && h.staged == 0 {
		h.resume()
	}
}

// cut says that a frame is on its way to the origin whose end is to come.
func (h *h2relay) cut() bool { return h.fate == fatePass && h.client.Left() > 0 }

// emit lets the next n bytes of the client's buffer go.
func (h *h2relay) emit(n int) {
	s := &h.c.client
	if len(h.out) == 0 {
		s.ok += n
		return
	}
	h.out = append(h.out, s.buf[s.r:s.r+n]...)
	h.remove(n)
}

// remove takes n bytes out of the client's buffer, behind those that may go.
func (h *h2relay) remove(n int) {
	h.lift()
	s := &h.c.client
	s.r += n
	h.c.release(s)
}

// lift takes what may go out of the client's buffer, so that something can come
// behind it.
func (h *h2relay) lift() {
	if s := &h.c.client; s.ok > 0 {
		h.out = append(h.out, s.buf[s.r:s.r+s.ok]...)
		s.r += s.ok
		s.ok = 0
	}
}

// cutShort follows a client that ended its sending in a header block or in the
// header of a frame, of which n bytes have come.
func (h *h2relay) cutShort(n int) {
	n += h.staged
	h.staged = 0
	if h.altered || h.keeps() {
		h.remove(n)
		return
	}
	h.emit(n)
}

// block follows a header block that is whole, and staged.
func (h *h2relay) block() error {
	hb := h.blocks.Block()
	b, err := h.table.Read(hb.Block)
	if err != nil {
		return err
	}
	id, end := hb.Frame.Stream, hb.Frame.EndsStream()
	_, gone := h.swallowed[id]
	switch {
	case id > h.last && id%2 == 0:
		return h2.ErrStream
	case id > h.last:
		h.last = id
		h.opens(hb, &b)
	case gone:
		h.swallow(&b)
		h.unstage()
	case h.mustWait(id):
		h.keep(hb, &b, nil)
	default:
		h.endsRequest(id, end)
		h.passBlock(hb, &b)
	}
	return nil
}

// opens takes a request to its gate, unless others wait there.
func (h *h2relay) opens(hb *h2.HeaderBlock, b *h2.Block) {
	r, ok := requestOf(hb, b.Fields)
	a := &asks{Request: r, ambiguous: !ok}
	if h.asking > 0 {
		h.keep(hb, b, a)
		return
	}
	switch h.ask(a) {
	case askGoes:
		h.passBlock(hb, b)
	case askHeld:
		h.keep(hb, b, a)
	case askRefused:
		h.swallow(b)
		h.unstage()
	}
}

// keep puts the header block at hand into the queue.
func (h *h2relay) keep(hb *h2.HeaderBlock, b *h2.Block, a *asks) {
	s := &h.c.client
	it := &item{stream: hb.Frame.Stream, ends: hb.Frame.EndsStream(), asks: a, block: b.Clone(), head: *hb}
	it.head.Block = bytes.Clone(hb.Block)
	h.enqueue(it)
	at := s.r + s.ok
	h.append(s.buf[at : at+h.staged])
	h.unstage()
}

// unstage takes the header block at hand out of the client's buffer.
func (h *h2relay) unstage() {
	n := h.staged
	h.staged = 0
	h.remove(n)
}

// passBlock lets the header block at hand go.
func (h *h2relay) passBlock(hb *h2.HeaderBlock, b *h2.Block) {
	h.scratch = h.table.Append(h.scratch[:0], b)
	if bytes.Equal(h.scratch, hb.Block) {
		n := h.staged
		h.staged = 0
		h.emit(n)
		return
	}
	h.altered = true
	h.unstage()
	h.out = appendBlock(h.out, hb, h.scratch)
}

// swallow keeps a header block from the origin.
func (h *h2relay) swallow(b *h2.Block) {
	h.altered = true
	h.table.Swallow(b)
}
