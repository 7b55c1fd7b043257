// SPDX-License-Identifier: Apache-2.0

package proxy

import "golang.org/x/sys/unix"

// relay moves bytes of a tunnel from one side to the other: by copy while they
// come in small pieces, inside the kernel once they fill buffers.
func (c *conn) relay(from, to *side, count *int64) (moved bool) {
	if to.fd < 0 || !c.connected || to.broken {
		return false
	}
	if from.pending() > 0 {
		from.ok = from.pending()
		m, errno := c.drain(from, to, count)
		if errno != 0 {
			c.writeBroke(to, errno)
			return false
		}
		if moved = m; from.pending() > 0 {
			return moved
		}
	}
	if c.reading != nil && from == &c.up {
		if m, whole := c.skimmed(to, count); whole {
			return m || moved
		}
	} else if from.bulk || from.pipe != nil {
		return c.spliced(from, to, count, pipeSize) || moved
	}
	if !from.readable || from.eof {
		return moved
	}
	return c.refill(from) || moved
}

// refill is fill for one side of a tunnel.
func (c *conn) refill(s *side) (moved bool) {
	moved, errno := c.fill(s)
	if errno != 0 {
		c.readBroke(s)
		return false
	}
	return moved
}

// spliced is relay through a pipe, of at most most bytes that are not in it yet.
func (c *conn) spliced(from, to *side, count *int64, most int) (moved bool) {
	if from.pipe == nil {
		if from.pipe = c.l.pipes.get(); from.pipe == nil {
			from.bulk = false
			return true
		}
	}
	p := from.pipe
	if p.held == 0 && from.readable && !from.eof {
		n, errno := splice(from.fd, p.w, most)
		switch {
		case errno == unix.EAGAIN && from.urgent:
			moved = true // it stops before urgent data, which a read passes
		case errno == unix.EAGAIN:
			from.readable = false
		case errno == 0 && n == 0:
			if errno = from.ended(); errno == 0 {
				moved = true
				break
			}
			fallthrough
		case errno != 0:
			c.readBroke(from)
			return false
		default:
			p.held += n
			if from == &c.up {
				c.heard()
				c.x.received += int64(n)
			}
			from.bulk = n >= bufferSize/2 && !from.urgent
			if c.reading != nil && from == &c.up {
				c.reading.cleared -= n
				from.bulk = true
			}
			moved = true
		}
	}
	for p.held > 0 && to.writable {
		n, errno := splice(p.r, to.fd, p.held)
		if errno == unix.EAGAIN {
			to.writable = false
			break
		}
		if errno != 0 {
			c.writeBroke(to, errno)
			return false
		}
		p.held -= n
		*count += int64(n)
		moved = true
	}
	if p.held == 0 && (!from.readable || from.eof || !from.bulk) {
		c.l.pipes.put(p)
		from.pipe = nil
	}
	return moved
}

// readBroke: one side of the tunnel was reset; the other side shall know.
func (c *conn) readBroke(s *side) {
	if s == &c.client {
		c.clientBroke()
		return
	}
	c.upstreamBroke()
}

// writeBroke: one side of the tunnel takes no more.
func (c *conn) writeBroke(s *side, errno unix.Errno) {
	if s == &c.client {
		c.clientBroke()
		return
	}
	c.upstreamWriteFailed(errno)
}
