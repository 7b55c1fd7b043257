// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// End is how a peer's side of a connection ended.
type End uint32

// Ends.
const (
	EndNone  End = iota // it has not
	EndClean            // close_notify
	EndCut              // FIN alone: what was sent may not be whole
	EndReset            // a reset, or an error of TLS
)

// Session is a terminated connection. Its methods are safe for concurrent use.
type Session struct {
	client, origin *half

	mu     sync.Mutex
	doomed bool
}

// half is one of the two TLS connections with its end of a socket pair.
type half struct {
	tls   tlsConn
	wire  *stream
	local *local
	other *half

	ended  atomic.Uint32 // End
	silent func()        // called if the peer ends without having sent anything; or nil
	spoke  func()        // called when it sends first; or nil
	failed func()        // called if it breaks the rules of TLS, or asks for what is not known here; or nil
}

// tlsConn is what both TLS libraries have.
type tlsConn interface {
	io.ReadWriter
	CloseWrite() error
}

// ClientEnd is how the client ended its sending. It is decided before the end
// of file can be read at Result.Client.
func (s *Session) ClientEnd() End { return End(s.client.ended.Load()) }

// OriginEnd is how the origin ended its sending, decided before the end of file
// can be read at Result.Up.
func (s *Session) OriginEnd() End { return End(s.origin.ended.Load()) }

// ResetClient resets the connection to the client, now. A closed descriptor
// alone means an orderly end, unless the origin's was none.
func (s *Session) ResetClient() { s.client.abort() }

// ResetOrigin resets the connection to the origin, now.
func (s *Session) ResetOrigin() { s.origin.abort() }

// kill resets both, also what is still to come.
func (s *Session) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doomed = true
	for _, h := range []*half{s.client, s.origin} {
		if h == nil {
			continue
		}
		h.abort()
		if h.local != nil {
			_ = h.local.Close()
		}
	}
}

// change does f while nobody kills the session; false if somebody has.
func (s *Session) change(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.doomed {
		return false
	}
	f()
	return true
}

// abort resets the peer. Whoever reads of it ends by that.
func (h *half) abort() {
	h.ended.CompareAndSwap(uint32(EndNone), uint32(EndReset))
	h.wire.reset()
}

// bufferSize is that of the largest TLS record's plaintext.
const bufferSize = 16 << 10

// buffers are used while data is there: a waiting connection has none for the
// direction out.
var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// run moves bytes in both directions and closes everything when both have
// ended.
func (h *half) run() {
	in := make(chan struct{})
	go func() {
		defer close(in)
		h.fromPeer()
	}()
	h.toPeer()
	<-in
	_ = h.wire.Close()
	_ = h.local.Close()
}

// fromPeer moves what the peer sends to the socket pair.
func (h *half) fromPeer() {
	buf := make([]byte, bufferSize)
	spoke, deaf := false, false
	for {
		n, err := h.tls.Read(buf)
		if n > 0 && !spoke {
			spoke = true
			if h.spoke != nil {
				h.spoke()
			}
		}
		if n > 0 && !deaf {
			if _, werr := h.local.Write(buf[:n]); werr != nil {
				// Nobody reads any more. What still comes is read and dropped
				// for a while: see lingerTime.
				deaf = true
				h.wire.watch()
			}
		}
		if err != nil {
			h.end(err)
			if !spoke && h.silent != nil {
				h.silent()
			}
			return
		}
	}
}

// end notes how the peer ended and passes it on.
func (h *half) end(err error) {
	how := EndReset
	switch {
	case errors.Is(err, io.EOF):
		how = EndClean
	case errors.Is(err, errCut):
		how = EndCut
	}
	h.ended.CompareAndSwap(uint32(EndNone), uint32(how))
	if how == EndReset {
		if h.failed != nil && !broken(err) && !errors.Is(err, errGone) {
			h.failed()
		}
		_ = h.local.Close()
		return
	}
	_ = h.local.CloseWrite()
}

// toPeer moves what comes from the socket pair to the peer.
func (h *half) toPeer() {
	for {
		buf, n, err := h.local.next()
		if n > 0 {
			_, werr := h.tls.Write(buf[:n])
			buffers.Put(buf)
			if werr != nil {
				h.abort()
				return
			}
			continue
		}
		// Who closed its end without having read all means no more by it.
		if err != nil && !errors.Is(err, unix.ECONNRESET) {
			h.abort()
			return
		}
		break
	}
	h.finish()
}

// finish ends the sending to the peer as the other peer ended its own: who
// could have told that something is missing shall be able to.
func (h *half) finish() {
	switch End(h.other.ended.Load()) {
	case EndCut, EndReset:
	default:
		// An alert that cannot be sent is no worse than the end without it.
		_ = h.tls.CloseWrite()
	}
	_ = h.wire.finish()
	h.wire.watch()
}
