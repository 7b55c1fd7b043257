// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/userspace/heads"
	"github.com/egressd/egressd/userspace/http1"
	"github.com/egressd/egressd/userspace/tlsread"
)

const (
	// maxCopies is how many bytes of copies wait to be read, in all …
	maxCopies = 64 << 20
	// … and of one connection.
	maxConnCopies = 8 << 20
	// helpAt is how many bytes of one connection may wait before the loop reads
	// them itself: the goroutine then has too little of the processor.
	helpAt = 512 << 10
	// batch is how many pieces are read in one go.
	batch = 8
)

// copies reads a copy of what a server sent on one connection. Bytes are
// taken on the event loop and read by a goroutine of the proxy (see readers),
// which tells the loop what it found. When the goroutine has nothing left to do, the loop itself
// passes over bodies: that costs next to nothing and saves the copy.
//
// tls, heads, part and over belong to who holds work while pieces are left, and
// to the loop otherwise.
type copies struct {
	c     *conn
	r     *reading
	p     *Proxy
	tls   *tlsread.Reader
	heads heads.Server
	part  []byte // of a record that is not whole yet
	over  bool   // nothing that follows is to be read
	dead  bool   // it was given up; the loop's
	work  sync.Mutex

	left   atomic.Int32 // pieces that are not read yet
	untold atomic.Int32 // times that something was found which the loop does not know yet

	mu      sync.Mutex
	pieces  []piece
	bytes   int  // of pieces
	stopped bool // nobody wants to know any more
	asked   bool // the loop waits for the last piece
}

// piece is what comes next: bytes of the server, or what the next answer is to.
type piece struct {
	data []byte
	kind http1.Kind // where data is nil
}

func newCopies(c *conn, r *reading, server *tlsread.Reader) *copies {
	return &copies{c: c, r: r, p: c.l.p, tls: server}
}

// take takes the next bytes of the server. It keeps no reference to b.
func (s *copies) take(b []byte) {
	if s.dead {
		return
	}
	if s.left.Load() == 0 && len(s.part) == 0 {
		b = b[s.skim(b):]
	}
	for len(b) > 0 {
		buf := copyPool.Get().(*[]byte)
		n := copy(*buf, b)
		b = b[n:]
		if !s.push(piece{data: (*buf)[:n]}) {
			copyPool.Put(buf)
			s.dead = true
			c := s.c
			r := c.reading
			c.l.post(func() {
				if c.reading == r {
					c.goBlind(policy.DoubtQueueFull)
				}
			})
			return
		}
	}
}

// copyPool has memory for pieces.
var copyPool = sync.Pool{New: func() any { b := make([]byte, bufferSize); return &b }}

// skim passes over what nobody has to look at, and tells how much that was.
func (s *copies) skim(b []byte) (n int) {
	for n < len(b) {
		want := s.heads.Skippable()
		if want == 0 && !s.tls.Skimming() {
			break
		}
		m, plain := s.tls.Skim(b[n:], want)
		s.heads.Skip(plain)
		if m == 0 {
			break
		}
		n += m
	}
	return n
}

// minSkimmed is how much body must be ahead for it to be passed through the
// kernel: below that the calls cost more than copying.
const minSkimmed = 128 << 10

// skimmed relays bulk of a server that nobody has to look at through a pipe. It
// looks only at where records begin and end, which it can in the socket (Linux
// 6.9). whole says that this is the way for now.
func (c *conn) skimmed(to *side, count *int64) (moved, whole bool) {
	r, from := c.reading, &c.up
	if from.pipe != nil || r.cleared > 0 {
		return c.passCleared(to, count), true
	}
	s := r.server
	if s == nil || s.dead || !from.bulk || from.eof || from.urgent || c.l.p.noPeek.Load() || s.left.Load() != 0 || len(s.part) > 0 {
		return false, false
	}
	want := s.heads.Skippable()
	if want < minSkimmed {
		return false, false
	}
	look := func(at int, b []byte) bool {
		ok, errno := peek(from.fd, at, b)
		if errno != 0 {
			c.l.p.noPeek.Store(true)
		}
		return ok
	}
	n, plain := s.tls.SkimSparse(look, pipeSize, want)
	if s.heads.Skip(plain); n == 0 {
		return false, false // the rest of a record is to come, or something else is
	}
	r.cleared = n
	return c.passCleared(to, count), true
}

// passCleared moves what was cleared. The pipe does not stay: what comes next
// may have to be read.
func (c *conn) passCleared(to *side, count *int64) (moved bool) {
	from := &c.up
	moved = c.spliced(from, to, count, max(c.reading.cleared, 1))
	if !c.closed && from.pipe != nil && from.pipe.held == 0 {
		c.l.pipes.put(from.pipe)
		from.pipe = nil
	}
	return moved
}

// expect says what the next answer is to, in HTTP/1.
func (s *copies) expect(k http1.Kind) { s.push(piece{kind: k}) }

// behind says that not all is read that was taken. It asks for a word when it
// is.
func (s *copies) behind() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = s.left.Load() > 0 && !s.stopped
	return s.asked || s.untold.Load() > 0
}

// push has a piece read. False says that there is no room for it.
func (s *copies) push(x piece) bool {
	s.mu.Lock()
	n := len(x.data)
	if s.bytes+n > s.p.maxConnCopies || s.p.copied.Add(int64(n)) > maxCopies {
		if s.bytes+n <= s.p.maxConnCopies {
			s.p.copied.Add(int64(-n))
		}
		s.mu.Unlock()
		return false
	}
	s.pieces = append(s.pieces, x)
	s.bytes += n
	first, much := s.left.Add(1) == 1, s.bytes > helpAt
	s.mu.Unlock()
	if first {
		s.p.readers.add(s)
	}
	if much && s.work.TryLock() {
		s.readSome()
		s.work.Unlock()
	}
	return true
}

// stop gives all up that is not read.
func (s *copies) stop() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
}

// read reads all pieces there are. It runs on a goroutine of the readers.
func (s *copies) read() {
	for done := false; !done; {
		s.work.Lock()
		done = s.readSome()
		s.work.Unlock()
	}
}

// readSome reads the next few pieces, and reports whether these were all. The
// caller holds work.
func (s *copies) readSome() (done bool) {
	s.mu.Lock()
	var pieces [batch]piece
	n := copy(pieces[:], s.pieces)
	if n == 0 {
		s.mu.Unlock()
		return true // somebody else was here
	}
	clear(s.pieces[:n])
	if s.pieces = s.pieces[n:]; len(s.pieces) == 0 {
		s.pieces = nil
	}
	bytes, stopped := 0, s.stopped
	for _, x := range pieces[:n] {
		bytes += len(x.data)
	}
	s.bytes -= bytes
	s.mu.Unlock()
	s.p.copied.Add(int64(-bytes))
	var (
		found  []answer
		doubt  policy.Doubt
		failed bool
	)
	now := time.Now()
	for _, x := range pieces[:n] {
		switch {
		case stopped || failed || s.over:
		case x.data == nil:
			s.heads.Expect(x.kind)
		default:
			doubt, failed = s.piece(x.data, now, &found)
		}
		if x.data != nil {
			b := x.data[:cap(x.data)]
			copyPool.Put(&b)
		}
	}
	if failed {
		s.stop()
	}
	s.mu.Lock()
	tell := !s.stopped && (len(found) > 0 || int(s.left.Load()) == n && s.asked) || failed
	if tell {
		s.untold.Add(1) // before left falls: in between it would seem that all is known
	}
	if done = s.left.Add(int32(-n)) == 0; done {
		s.asked = false
	}
	s.mu.Unlock()
	if tell {
		s.tell(found, doubt, failed)
	}
	return done
}

// tell has the loop know what was found.
func (s *copies) tell(found []answer, doubt policy.Doubt, failed bool) {
	c := s.c
	c.l.post(func() {
		s.untold.Add(-1)
		switch {
		case c.closed:
			c.lastAnswers(s.r, found, failed)
		case c.reading == s.r:
			c.answersCame(found, doubt, failed)
		}
	})
}

// piece reads the next bytes.
func (s *copies) piece(b []byte, now time.Time, found *[]answer) (doubt policy.Doubt, failed bool) {
	if len(s.part) > 0 {
		s.part = append(s.part, b...)
		b = s.part
	}
	for len(b) > 0 {
		if n := s.skim(b); n > 0 {
			b = b[n:]
			continue
		}
		n, kind, plain, err := s.tls.Next(b)
		if err != nil {
			return doubtOfTLS(err), true
		}
		if n == 0 {
			break
		}
		b = b[n:]
		for kind == tlsread.ApplicationData && len(plain) > 0 {
			m, ev, err := s.heads.Next(plain)
			if err != nil || m == 0 && ev.Kind == heads.None {
				return policy.DoubtHTTP, true
			}
			plain = plain[m:]
			switch ev.Kind {
			case heads.ResponseHead:
				*found = append(*found, newAnswer(ev.Response, now))
				if ev.Response.Tunnel && ev.Response.Stream == 0 {
					s.over = true // what follows is no HTTP
					return 0, false
				}
			case heads.Reset:
				*found = append(*found, answer{stream: ev.Stream, ended: true})
			}
		}
	}
	s.part = append(s.part[:0], b...)
	return 0, false
}

// readers are the goroutines that read copies, and what waits for them. Safe
// for concurrent use.
type readers struct {
	mu   sync.Mutex
	list []*copies
	wake chan struct{}
}

func (r *readers) add(s *copies) {
	r.mu.Lock()
	r.list = append(r.list, s)
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// run reads until ctx ends.
func (r *readers) run(ctx context.Context) {
	for {
		r.mu.Lock()
		list := r.list
		r.list = nil
		r.mu.Unlock()
		for _, s := range list {
			s.read()
		}
		if len(list) > 0 {
			continue
		}
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		}
	}
}
