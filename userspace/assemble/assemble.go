// SPDX-License-Identifier: Apache-2.0

// Package assemble puts the heads of requests and answers together out of what
// probes showed of the calls by which a process reads and writes inside TLS.
//
// Probes show the beginning of a call, and calls cut messages anywhere. What was
// not shown is passed over if it is known to be body; where it is not, and
// wherever an event was lost, reading goes on at the next place that is sure to
// be the beginning of a message, and what it finds may be partial. Nothing is
// guessed: an answer is only given the request that it is known to belong to.
package assemble

import (
	"strings"
	"time"

	"github.com/egressd/egressd/userspace/heads"
)

// Piece is one call that moved plaintext.
type Piece struct {
	PID   uint32
	Conn  uint64 // tells the connections of a process apart
	Write bool   // by the process: of the client's direction

	// How the connection is known elsewhere; see the probes.
	Random    [32]byte // only if HasRandom
	HasRandom bool
	Cookie    uint64
	Source    string

	// When the call began and ended, on any clock that all pieces share. Pieces
	// come in the order of ends, as nearly as can be.
	Began, Ended uint64

	Seq    uint64 // counts the pieces of this direction from 0
	Offset uint64 // bytes that were moved before, shown or not
	Total  int    // bytes that the call moved
	Data   []byte // the first of them; not kept
}

// Answer is the head of an answer, and of the request that it is to.
type Answer struct {
	PID       uint32
	Random    [32]byte
	HasRandom bool
	Cookie    uint64
	Source    string

	Method, Host, Path string // without query; empty if not known
	Status             int    // 0: none of those that HTTP/2 has a number for, and not known
	Partial            bool   // fields are missing
	Fields             [][2]string
}

const (
	// maxConns is how many connections are followed; beyond it the one that
	// was silent for longest is forgotten.
	maxConns = 16384
	// maxOpen is how many requests of a connection wait for their answers.
	maxOpen = 1024
	// earlyTime is how long an answer waits for its request. A call that writes is
	// shown when it returns, which may be after another thread has read the answer.
	earlyTime = 50 * time.Millisecond
	// maxValue is the length of the values that are passed on.
	maxValue = 512
)

// Assembler follows connections. It is not safe for concurrent use.
type Assembler struct {
	emit  func(*Answer)
	conns map[key]*conn
	early map[*conn]struct{} // with an answer that waits
	// The connections by when they last said something.
	newest, oldest *conn
	// Resyncs counts how often a direction could not be followed.
	Resyncs uint64
}

type key struct {
	pid  uint32
	conn uint64
}

type conn struct {
	key            key
	client, server direction
	one            []request          // HTTP/1: those without an answer
	early          *Answer            // HTTP/1: to a request that was not shown yet, …
	at             uint64             // … read at, by the clock of pieces, …
	since          time.Time          // … and since when it waits
	many           map[uint32]request // HTTP/2
	newer, older   *conn
	known          Piece // how it is known; without data
}

type request struct{ method, host, path string }

// direction is one way of a connection.
type direction struct {
	reader
	begun bool
	seq   uint64 // of the next piece
	at    uint64 // where it should begin
}

// reader is heads.Client or heads.Server.
type reader interface {
	Next(b []byte) (n int, ev heads.Event, err error)
	Skippable() int64
	Skip(n int64)
}

// New makes an Assembler that calls emit for every answer, which is then emit's.
func New(emit func(*Answer)) *Assembler {
	return &Assembler{emit: emit, conns: map[key]*conn{}, early: map[*conn]struct{}{}}
}

// Len is the number of connections that are followed.
func (a *Assembler) Len() int { return len(a.conns) }

// Close forgets a connection.
func (a *Assembler) Close(pid uint32, id uint64) {
	if c := a.conns[key{pid, id}]; c != nil {
		a.giveUp(c)
		a.unlink(c)
		delete(a.conns, c.key)
	}
}

// Take takes the next piece of a connection.
func (a *Assembler) Take(p *Piece) {
	if len(a.early) > 0 {
		a.overdue(time.Now())
	}
	c := a.conn(p)
	if begun := p.Write && c.client.begun || !p.Write && c.server.begun; begun && p.Seq == 0 && p.Offset == 0 {
		a.Close(p.PID, p.Conn) // it is another connection, at the same place
		c = a.conn(p)
	}
	d, late := &c.server, func() reader { return heads.NewLateServer() }
	if p.Write {
		d, late = &c.client, func() reader { return heads.NewLateClient() }
	}
	gap := p.Offset - d.at
	switch {
	case !d.begun && p.Write:
		d.reader = new(heads.Client)
	case !d.begun && d.reader == nil: // else it knows of a request already
		d.reader = new(heads.Server)
	case !d.begun:
	case p.Seq != d.seq || p.Offset < d.at || gap > 0 && !d.pass(gap):
		a.resync(c, d, late, p.Write)
	}
	if !d.begun && p.Offset > 0 {
		d.reader = late()
	}
	d.begun, d.seq, d.at = true, p.Seq+1, p.Offset+uint64(len(p.Data))
	if a.read(c, d.reader, p) {
		return
	}
	// It is not what it was taken for: perhaps it begins anew here.
	a.resync(c, d, late, p.Write)
	if !a.read(c, d.reader, p) {
		a.resync(c, d, late, p.Write)
	}
}

// pass passes over bytes that were not shown, if they are known to be body. The
// last byte of a body may be one that the reader wants to see, for the end that
// comes with it; which it is does not matter.
func (d *direction) pass(gap uint64) bool {
	n := uint64(d.Skippable())
	switch {
	case n == 0 || gap > n+1:
		return false
	case gap <= n:
		d.Skip(int64(gap))
		return true
	}
	d.Skip(int64(n))
	if d.Skippable() > 0 {
		return false
	}
	used, ev, err := d.Next([]byte{0})
	return err == nil && used == 1 && (ev.Kind == heads.End || ev.Kind == heads.None)
}

// resync has a direction begin anew, at a place that its reader is sure of. What
// belongs to what is not known any more.
func (a *Assembler) resync(c *conn, d *direction, late func() reader, write bool) {
	a.Resyncs++
	d.reader = late()
	c.one = nil
	if write {
		c.many = nil
	}
}

// read reads a piece. False says that it cannot be followed.
func (a *Assembler) read(c *conn, r reader, p *Piece) bool {
	for b := p.Data; len(b) > 0; {
		n, ev, err := r.Next(b)
		if err != nil {
			return false
		}
		b = b[n:]
		switch ev.Kind {
		case heads.RequestHead:
			a.asked(c, ev.Request, p.Began)
		case heads.ResponseHead:
			if !ev.Response.Interim {
				a.answered(c, ev.Response)
			}
			if t, ok := c.client.reader.(*heads.Client); ok && ev.Response.Tunnel && ev.Response.Stream == 0 {
				t.Tunnel()
			}
		case heads.Reset:
			delete(c.many, ev.Stream)
		case heads.None:
			if n == 0 {
				return false
			}
		}
	}
	return true
}

// asked notes a request, whose call began then.
func (a *Assembler) asked(c *conn, r *heads.Request, began uint64) {
	q := request{r.Method, r.Host, r.Path}
	if r.Stream == 0 {
		if x := c.early; x != nil {
			// What was sent after the answer was read is another request.
			its := began < c.at
			if its {
				x.Method, x.Host, x.Path = q.method, q.host, q.path
			}
			if a.giveUp(c); its {
				return
			}
		}
		if s, ok := c.server.reader.(*heads.Server); ok {
			s.Expect(r.Kind)
		} else if c.server.reader == nil {
			s := new(heads.Server)
			s.Expect(r.Kind)
			c.server.reader = s
		}
		if len(c.one) < maxOpen {
			c.one = append(c.one, q)
		}
		return
	}
	if c.many == nil {
		c.many = map[uint32]request{}
	}
	if len(c.many) < maxOpen {
		c.many[r.Stream] = q
	}
}

// answered emits an answer.
func (a *Assembler) answered(c *conn, r *heads.Response) {
	var q request
	known := true
	if r.Stream == 0 {
		if known = len(c.one) > 0; known {
			q, c.one = c.one[0], c.one[1:]
		}
	} else {
		q = c.many[r.Stream]
		delete(c.many, r.Stream)
	}
	k := &c.known
	out := &Answer{
		PID: k.PID, Random: k.Random, HasRandom: k.HasRandom, Cookie: k.Cookie, Source: k.Source,
		Method: q.method, Host: q.host, Path: q.path, Status: r.Status, Partial: r.Partial,
	}
	r.Fields(func(name, value []byte) bool {
		if len(value) <= maxValue && !strings.EqualFold(string(name), "set-cookie") {
			out.Fields = append(out.Fields, [2]string{string(name), string(value)})
		}
		return true
	})
	if known {
		a.emit(out)
		return
	}
	a.giveUp(c)
	c.early, c.at, c.since = out, k.Ended, time.Now()
	a.early[c] = struct{}{}
}

// giveUp emits the answer that waits for its request, as it is.
func (a *Assembler) giveUp(c *conn) {
	if x := c.early; x != nil {
		c.early = nil
		delete(a.early, c)
		a.emit(x)
	}
}

// overdue gives up answers whose requests will not be shown any more.
func (a *Assembler) overdue(now time.Time) {
	for c := range a.early {
		if now.Sub(c.since) > earlyTime {
			a.giveUp(c)
		}
	}
}

// conn is the connection of a piece, now the one that said something last.
func (a *Assembler) conn(p *Piece) *conn {
	k := key{p.PID, p.Conn}
	c := a.conns[k]
	if c == nil {
		if len(a.conns) >= maxConns {
			a.Close(a.oldest.key.pid, a.oldest.key.conn)
		}
		c = &conn{key: k}
		a.conns[k] = c
	} else {
		a.unlink(c)
	}
	if c.older = a.newest; c.older != nil {
		c.older.newer = c
	} else {
		a.oldest = c
	}
	a.newest = c
	c.known = *p
	c.known.Data = nil
	return c
}

// unlink takes a connection out of the order.
func (a *Assembler) unlink(c *conn) {
	if c.newer != nil {
		c.newer.older = c.older
	} else {
		a.newest = c.older
	}
	if c.older != nil {
		c.older.newer = c.newer
	} else {
		a.oldest = c.newer
	}
	c.newer, c.older = nil, nil
}
