// SPDX-License-Identifier: Apache-2.0

package keylog

import (
	"bytes"
	"container/list"
	"sync"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/userspace/tlsread"
)

// Bounds of a Store.
const (
	MaxLife     = 10 * time.Minute // of a secret, and the default
	DefaultRoom = 65536            // sessions
)

// Config is what a Store is made of. The zero Config gives the defaults.
type Config struct {
	Life time.Duration    // how long a session is remembered; MaxLife if 0 or more than that
	Max  int              // sessions at a time; DefaultRoom if 0
	Now  func() time.Time // time.Now if nil
}

// Store holds the secrets of TLS sessions, in memory alone, by client random.
// What it forgets it overwrites. It is safe for concurrent use.
type Store struct {
	life time.Duration
	max  int
	now  func() time.Time

	mu       sync.Mutex
	sessions map[[randomSize]byte]*session
	waiting  map[[randomSize]byte][]*waiter
	writers  map[*Writer]bool
	counts   Counts
	gone     LineCounts // of writers that are closed
}

// session is what is known of one session.
type session struct {
	random  [randomSize]byte
	secrets [numLabels][maxSecret]byte
	sizes   [numLabels]uint8
	born    time.Time
	wanted  bool // somebody asked for it
	writer  *Writer
	place   *list.Element // in writer.sessions
}

// waiter is one call of Await. It is told at most once.
type waiter struct {
	told  atomic.Bool
	ready func()
}

// Counts says what became of keys.
type Counts struct {
	LineCounts
	Sessions uint64 // that had a line
	Kept     int    // sessions that are remembered now
	Unwanted uint64 // sessions that were forgotten before anybody asked for them
	Evicted  uint64 // sessions that were forgotten early, for want of room
	Waiting  int    // connections that wait for keys now
}

// NewStore makes an empty store.
func NewStore(cfg Config) *Store {
	if cfg.Life <= 0 || cfg.Life > MaxLife {
		cfg.Life = MaxLife
	}
	if cfg.Max <= 0 {
		cfg.Max = DefaultRoom
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Store{
		life: cfg.Life, max: cfg.Max, now: cfg.Now,
		sessions: make(map[[randomSize]byte]*session),
		waiting:  make(map[[randomSize]byte][]*waiter),
		writers:  make(map[*Writer]bool),
	}
}

// Find returns what is known of the session with that client random, which may
// not be Complete yet, or nil. It is a copy: the caller owns it.
func (s *Store) Find(random [randomSize]byte) *tlsread.Secrets {
	s.mu.Lock()
	defer s.mu.Unlock()
	e := s.sessions[random]
	if e == nil || s.expired(e) {
		return nil
	}
	e.wanted = true
	return e.copy()
}

// Await calls ready when the secrets of the session are Complete: once, from a
// goroutine of its own or of a writer, with no lock held, and never before
// Await has begun to return, also if they are Complete already. ready must not
// block.
//
// Who no longer waits calls cancel, which may be called more than once. If
// ready has not begun by then, it never will. A session without keys is waited
// for until cancel is called.
func (s *Store) Await(random [randomSize]byte, ready func()) (cancel func()) {
	w := &waiter{ready: ready}
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.sessions[random]; e != nil && !s.expired(e) {
		e.wanted = true
		if e.complete() {
			go w.tell()
			return func() { w.told.Store(true) }
		}
	}
	s.waiting[random] = append(s.waiting[random], w)
	s.counts.Waiting++
	return func() { s.cancel(random, w) }
}

// tell calls ready, unless that was done or called off.
func (w *waiter) tell() {
	if w.told.CompareAndSwap(false, true) {
		w.ready()
	}
}

func (s *Store) cancel(random [randomSize]byte, w *waiter) {
	w.told.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.waiting[random]
	for i := range all {
		if all[i] == w {
			all[i] = all[len(all)-1]
			all[len(all)-1] = nil
			s.counts.Waiting--
			if all = all[:len(all)-1]; len(all) == 0 {
				delete(s.waiting, random)
			} else {
				s.waiting[random] = all
			}
			return
		}
	}
}

// Forget overwrites the secrets of a session that nobody will ask for again.
func (s *Store) Forget(random [randomSize]byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.sessions[random]; e != nil {
		s.drop(e)
	}
}

// Expire overwrites what has been remembered for long enough. Who reads into
// the store calls it every few seconds; Find does not return such secrets even
// if it was not called.
func (s *Store) Expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.writers {
		s.expire(w)
	}
}

// expire does so for the sessions of w, the oldest of which are in front.
func (s *Store) expire(w *Writer) {
	for front := w.sessions.Front(); front != nil; front = w.sessions.Front() {
		e := front.Value.(*session)
		if !s.expired(e) {
			return
		}
		s.drop(e)
	}
}

func (s *Store) expired(e *session) bool { return s.now().Sub(e.born) >= s.life }

// Clear overwrites all secrets.
func (s *Store) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.sessions {
		s.drop(e)
	}
}

// Counts says what became of keys so far.
func (s *Store) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.counts
	c.LineCounts = s.gone
	for w := range s.writers {
		c.add(w.parser.Counts())
	}
	c.Kept = len(s.sessions)
	return c
}

func (c *LineCounts) add(more LineCounts) {
	c.Lines += more.Lines
	c.Other += more.Other
	c.Garbage += more.Garbage
}

// take notes a line of w and returns who waited for it.
func (s *Store) take(w *Writer, l *Line) []*waiter {
	e := s.sessions[l.Random]
	if e != nil && s.expired(e) {
		s.drop(e)
		e = nil
	}
	if e == nil {
		if len(s.sessions) >= s.max {
			s.makeRoom()
		}
		e = &session{random: l.Random, born: s.now(), writer: w, wanted: len(s.waiting[l.Random]) > 0}
		e.place = w.sessions.PushBack(e)
		s.sessions[l.Random] = e
		s.counts.Sessions++
		w.count++
	}
	if e.sizes[l.Label] > 0 {
		return nil // the first word stands, whoever repeats or denies it
	}
	e.sizes[l.Label] = uint8(copy(e.secrets[l.Label][:], l.Secret))
	if !e.complete() {
		return nil
	}
	waiters := s.waiting[l.Random]
	delete(s.waiting, l.Random)
	s.counts.Waiting -= len(waiters)
	return waiters
}

// makeRoom forgets the oldest session of the writer that has the most: who
// floods the store with keys loses its own.
func (s *Store) makeRoom() {
	var most *Writer
	for w := range s.writers {
		if most == nil || w.sessions.Len() > most.sessions.Len() {
			most = w
		}
	}
	if front := most.sessions.Front(); front != nil {
		s.counts.Evicted++
		s.drop(front.Value.(*session))
	}
}

// drop overwrites e and forgets it.
func (s *Store) drop(e *session) {
	if !e.wanted {
		s.counts.Unwanted++
	}
	e.writer.sessions.Remove(e.place)
	s.retire(e.writer)
	delete(s.sessions, e.random)
	clear(e.secrets[:])
	clear(e.sizes[:])
}

// retire lets go of a writer that is closed and whose sessions are forgotten.
func (s *Store) retire(w *Writer) {
	if w.closed && w.sessions.Len() == 0 {
		delete(s.writers, w)
	}
}

// complete reports whether application data of both sides can be read.
func (e *session) complete() bool {
	return e.sizes[Master] > 0 || e.sizes[ClientTraffic] > 0 && e.sizes[ServerTraffic] > 0
}

// copy gives the secrets away.
func (e *session) copy() *tlsread.Secrets {
	return &tlsread.Secrets{
		Master:          e.secret(Master),
		ClientHandshake: e.secret(ClientHandshake),
		ServerHandshake: e.secret(ServerHandshake),
		ClientTraffic:   e.secret(ClientTraffic),
		ServerTraffic:   e.secret(ServerTraffic),
	}
}

func (e *session) secret(l Label) []byte {
	if e.sizes[l] == 0 {
		return nil
	}
	return bytes.Clone(e.secrets[l][:e.sizes[l]])
}
