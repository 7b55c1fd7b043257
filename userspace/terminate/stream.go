// SPDX-License-Identifier: Apache-2.0

package terminate

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

var (
	// errCut says that a peer's side of the connection ended without TLS having
	// said so: what came before may not be all there was.
	errCut = errors.New("the connection ended without close_notify")
	// errGone says that nobody takes any more what a connection brings.
	errGone = errors.New("nobody reads any more")
)

const (
	// watchEvery is how often a read looks whether anyone is left to read for,
	// once one direction has ended.
	watchEvery = 2 * time.Second
	// lingerTime is how long a peer may still send after nobody reads any more:
	// to close at once would reset what is under way to it.
	lingerTime = 2 * time.Second
	// stallTime is how long a write to a peer that takes nothing goes on
	// after nobody is left behind it.
	stallTime = 2 * time.Minute
)

// stream is a TCP connection below TLS. It tells an end without close_notify
// from one with it, which the TLS libraries do not: they never see io.EOF. It
// reads and writes without time limits for as long as somebody is at the other
// end of local.
type stream struct {
	net.Conn
	first []byte // read by somebody else before; comes first
	local *local // nil during the handshake, whose deadline holds
	tail  []byte // what was read last during the handshake, at most an alert

	stall    time.Duration // as stallTime; shorter in tests
	watching atomic.Bool   // one direction has ended: reads look after local
	lingers  atomic.Int64  // when reading ends, in Unix nanoseconds; 0: not set
}

// Read is as that of net.Conn but for the end, which is errCut.
func (s *stream) Read(b []byte) (int, error) {
	if len(s.first) > 0 {
		n := copy(b, s.first)
		s.first = s.first[n:]
		return n, nil
	}
	for {
		n, err := s.Conn.Read(b)
		switch {
		case n > 0 || err == nil:
			if s.local == nil {
				s.tail = append(s.tail, b[:n]...)
				s.tail = s.tail[max(0, len(s.tail)-plainAlert):]
			}
			return n, nil
		case errors.Is(err, io.EOF):
			return 0, errCut
		case !errors.Is(err, os.ErrDeadlineExceeded) || !s.watching.Load():
			return 0, err
		}
		if err := s.look(); err != nil {
			return 0, err
		}
	}
}

// plainAlert is the length of a record with an alert that is not encrypted.
const plainAlert = recordHeader + 2

// alerted reports whether the peer's last word in the handshake was a fatal
// alert in plaintext. A client that has not switched keys yet sends that even
// in TLS 1.3, where the library takes it for a broken record.
func (s *stream) alerted() bool {
	const fatal = 2
	t := s.tail
	return len(t) == plainAlert && t[0] == recordAlert && t[1] == 3 && t[3] == 0 && t[4] == 2 && t[5] == fatal
}

// watch makes reads look whether anyone is left; it wakes the one that waits.
func (s *stream) watch() {
	s.watching.Store(true)
	_ = s.Conn.SetReadDeadline(time.Now())
}

// look sets the next time to look, or says that it is over.
func (s *stream) look() error {
	now := time.Now()
	next := now.Add(watchEvery)
	if s.local.gone() {
		s.lingers.CompareAndSwap(0, now.Add(lingerTime).UnixNano())
		until := time.Unix(0, s.lingers.Load())
		if !now.Before(until) {
			return errGone
		}
		next = until
	}
	return s.Conn.SetReadDeadline(next)
}

// Write writes all of b.
func (s *stream) Write(b []byte) (int, error) {
	if s.local == nil {
		return s.Conn.Write(b)
	}
	var deserted time.Time
	for done := 0; ; {
		if err := s.Conn.SetWriteDeadline(time.Now().Add(watchEvery)); err != nil {
			return done, err
		}
		n, err := s.Conn.Write(b[done:])
		done += n
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return done, err
		}
		switch now := time.Now(); {
		case n > 0 || !s.local.gone():
			deserted = time.Time{}
		case deserted.IsZero():
			deserted = now
		case now.Sub(deserted) > s.stall:
			return done, errGone
		}
	}
}

// finish ends sending, after what was written.
func (s *stream) finish() error {
	if c, ok := s.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return s.Conn.Close()
}

// reset closes with a reset instead of an end.
func (s *stream) reset() {
	if c, ok := s.Conn.(interface{ SetLinger(int) error }); ok {
		_ = c.SetLinger(0)
	}
	_ = s.Conn.Close()
}

// local is this package's end of a socket pair.
type local struct {
	*net.UnixConn
	raw rawConn
}

// rawConn is what is used of syscall.RawConn.
type rawConn interface {
	Control(f func(fd uintptr)) error
	Read(f func(fd uintptr) bool) error
}

// pairBuffer is what a socket pair holds in each direction, in bytes; the
// kernel may allow less (net.core.wmem_max).
const pairBuffer = 256 << 10

// newPair makes a connected socket pair: an end for this package and a
// non-blocking descriptor for the caller, who owns it.
func newPair() (_ *local, fd int, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, -1, fmt.Errorf("make a socket pair: %w", err)
	}
	for _, fd := range fds {
		// Smaller buffers work as well.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, pairBuffer)
	}
	conn, err := fileConn(fds[0])
	if err != nil {
		_ = unix.Close(fds[1])
		return nil, -1, err
	}
	l := &local{UnixConn: conn.(*net.UnixConn)}
	if l.raw, err = l.SyscallConn(); err != nil {
		_ = l.Close()
		_ = unix.Close(fds[1])
		return nil, -1, fmt.Errorf("use a socket pair: %w", err)
	}
	return l, fds[1], nil
}

// fileConn makes a net.Conn of the socket fd, which it takes over, also when
// it fails. Options of the socket stay as they are.
func fileConn(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "")
	if f == nil {
		return nil, fmt.Errorf("take over descriptor %d: %w", fd, unix.EBADF)
	}
	defer f.Close() // the connection has a copy
	restore := keptOptions(fd)
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("take over a socket: %w", err)
	}
	restore()
	return c, nil
}

// keptOptions remembers what package net changes of a TCP socket, where it
// turns keep-alives on: to probe or not is up to who made the socket.
func keptOptions(fd int) (restore func()) {
	options := []struct{ level, name, value int }{
		{level: unix.IPPROTO_TCP, name: unix.TCP_KEEPIDLE},
		{level: unix.IPPROTO_TCP, name: unix.TCP_KEEPINTVL},
		{level: unix.IPPROTO_TCP, name: unix.TCP_KEEPCNT},
		{level: unix.SOL_SOCKET, name: unix.SO_KEEPALIVE},
	}
	for i := range options {
		var err error
		o := &options[i]
		if o.value, err = unix.GetsockoptInt(fd, o.level, o.name); err != nil {
			return func() {} // no TCP
		}
	}
	return func() {
		for _, o := range options {
			// What could be read can be set again.
			_ = unix.SetsockoptInt(fd, o.level, o.name, o.value)
		}
	}
}

// gone reports whether the other end was closed, not only for sending.
func (l *local) gone() bool {
	gone := true
	err := l.raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd)}}
		if n, err := unix.Poll(p, 0); err == nil {
			gone = n > 0 && p[0].Revents&(unix.POLLHUP|unix.POLLNVAL) != 0
		}
	})
	return gone || err != nil
}

// next waits for bytes from the other end and returns them in a buffer that the
// caller puts back; 0 bytes and no error at the end. No buffer is held while
// it waits.
func (l *local) next() (buf *[bufferSize]byte, n int, err error) {
	werr := l.raw.Read(func(fd uintptr) bool {
		b := buffers.Get().(*[bufferSize]byte)
		n, err = unix.Read(int(fd), b[:])
		if n > 0 {
			buf = b
			return true
		}
		n = 0
		buffers.Put(b)
		return err != unix.EAGAIN && err != unix.EINTR
	})
	if werr != nil {
		return nil, 0, werr
	}
	return buf, n, err
}
