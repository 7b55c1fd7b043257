// SPDX-License-Identifier: Apache-2.0

package keylog

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// clock is a time that the test moves.
type clock struct{ t time.Time }

func (c *clock) now() time.Time { return c.t }

func newClock() *clock { return &clock{time.Unix(1e9, 0)} }

// write writes one line of a log.
func write(w *Writer, label string, random [randomSize]byte, secret []byte) {
	_, _ = fmt.Fprintf(w, "%s %x %x\n", label, random, secret)
}

func secretOf(c byte, n int) []byte { return bytes.Repeat([]byte{c}, n) }

// told waits for a signal of Await; that it does not come only a test's
// timeout could tell.
func told(t *testing.T, ch <-chan struct{}) {
	t.Helper()
	select {
	case <-ch:
	case <-time.After(10 * time.Second):
		t.Fatal("Await did not tell")
	}
}

func TestFind(t *testing.T) {
	s := NewStore(Config{})
	w := s.Writer()
	a, b := [randomSize]byte{1}, [randomSize]byte{2}
	if s.Find(a) != nil {
		t.Fatal("an empty store finds something")
	}
	write(w, "SERVER_HANDSHAKE_TRAFFIC_SECRET", a, secretOf(3, 32))
	write(w, "SERVER_TRAFFIC_SECRET_0", a, secretOf(5, 32))
	if got := s.Find(a); got == nil || got.Complete() || !bytes.Equal(got.ServerHandshake, secretOf(3, 32)) {
		t.Errorf("got %+v, want what there is so far", got)
	}
	write(w, "CLIENT_TRAFFIC_SECRET_0", a, secretOf(4, 32))
	write(w, "CLIENT_HANDSHAKE_TRAFFIC_SECRET", a, secretOf(2, 32))
	write(w, "CLIENT_RANDOM", b, secretOf(9, 48))
	got := s.Find(a)
	if !got.Complete() || got.Master != nil || !bytes.Equal(got.ClientHandshake, secretOf(2, 32)) || !bytes.Equal(got.ServerHandshake, secretOf(3, 32)) ||
		!bytes.Equal(got.ClientTraffic, secretOf(4, 32)) || !bytes.Equal(got.ServerTraffic, secretOf(5, 32)) {
		t.Errorf("got %+v", got)
	}
	if got := s.Find(b); !got.Complete() || !bytes.Equal(got.Master, secretOf(9, 48)) || got.ClientTraffic != nil {
		t.Errorf("got %+v", got)
	}
	// It is the caller's own.
	clear(got.ServerTraffic)
	if again := s.Find(a); !bytes.Equal(again.ServerTraffic, secretOf(5, 32)) {
		t.Errorf("got %+v after the copy was overwritten", again)
	}
	want := Counts{LineCounts: LineCounts{Lines: 5}, Sessions: 2, Kept: 2}
	if got := s.Counts(); got != want {
		t.Errorf("got counts %+v, want %+v", got, want)
	}
}

// A second word on a secret, from whomever, changes nothing.
func TestFirstWordStands(t *testing.T) {
	s := NewStore(Config{})
	random := [randomSize]byte{1}
	write(s.Writer(), "CLIENT_RANDOM", random, secretOf(1, 48))
	write(s.Writer(), "CLIENT_RANDOM", random, secretOf(2, 48))
	if got := s.Find(random); !bytes.Equal(got.Master, secretOf(1, 48)) {
		t.Errorf("got %x", got.Master)
	}
}

func TestAwait(t *testing.T) {
	t.Run("before the keys", func(t *testing.T) {
		s := NewStore(Config{})
		w := s.Writer()
		random := [randomSize]byte{1}
		done := make(chan struct{})
		s.Await(random, func() {
			if !s.Find(random).Complete() { // also shows that no lock is held
				t.Error("told before the secrets are complete")
			}
			close(done) // fails the second time
		})
		write(w, "CLIENT_TRAFFIC_SECRET_0", random, secretOf(4, 32))
		select {
		case <-done:
			t.Fatal("told with half of the secrets")
		default:
		}
		if n := s.Counts().Waiting; n != 1 {
			t.Errorf("%d wait, want 1", n)
		}
		write(w, "SERVER_TRAFFIC_SECRET_0", random, secretOf(5, 32))
		write(w, "SERVER_TRAFFIC_SECRET_0", random, secretOf(5, 32))
		write(w, "CLIENT_RANDOM", random, secretOf(5, 48))
		told(t, done)
		if n := s.Counts().Waiting; n != 0 {
			t.Errorf("%d wait, want none", n)
		}
	})
	t.Run("after the keys", func(t *testing.T) {
		s := NewStore(Config{})
		random := [randomSize]byte{1}
		write(s.Writer(), "CLIENT_RANDOM", random, secretOf(4, 48))
		done := make(chan struct{})
		var mu sync.Mutex
		mu.Lock() // as a caller that is called back under its own lock would hang
		s.Await(random, func() { mu.Lock(); defer mu.Unlock(); close(done) })
		mu.Unlock()
		told(t, done)
	})
	t.Run("called off", func(t *testing.T) {
		s := NewStore(Config{})
		w := s.Writer()
		random := [randomSize]byte{1}
		cancel := s.Await(random, func() { t.Error("told after it was called off") })
		other := make(chan struct{})
		s.Await(random, func() { close(other) })
		cancel()
		cancel()
		if n := s.Counts().Waiting; n != 1 {
			t.Errorf("%d wait, want 1", n)
		}
		write(w, "CLIENT_RANDOM", random, secretOf(4, 48))
		told(t, other)
		cancel()
		if len(s.waiting) != 0 {
			t.Errorf("%d randoms are waited for", len(s.waiting))
		}
	})
}

func TestLife(t *testing.T) {
	c := newClock()
	s := NewStore(Config{Life: time.Minute, Now: c.now})
	w := s.Writer()
	wanted, unwanted, late := [randomSize]byte{1}, [randomSize]byte{2}, [randomSize]byte{3}
	write(w, "CLIENT_RANDOM", wanted, secretOf(1, 48))
	write(w, "CLIENT_RANDOM", unwanted, secretOf(2, 48))
	s.Find(wanted)
	held := s.sessions[wanted]
	c.t = c.t.Add(30 * time.Second)
	write(w, "CLIENT_RANDOM", late, secretOf(3, 48))
	c.t = c.t.Add(30*time.Second - 1)
	s.Expire()
	if s.Find(wanted) == nil {
		t.Error("forgotten before its time")
	}
	c.t = c.t.Add(1)
	if s.Find(wanted) != nil {
		t.Error("found after its time")
	}
	called := false
	cancel := s.Await(wanted, func() { called = true })
	cancel()
	s.Expire()
	if called {
		t.Error("Await tells of what is forgotten")
	}
	if held.secrets != [numLabels][maxSecret]byte{} {
		t.Errorf("what was forgotten is still there: %x", held.secrets)
	}
	want := Counts{LineCounts: LineCounts{Lines: 3}, Sessions: 3, Kept: 1, Unwanted: 1}
	if got := s.Counts(); got != want {
		t.Errorf("got counts %+v, want %+v", got, want)
	}
	// The same random anew, before anybody had called Expire.
	c.t = c.t.Add(time.Hour)
	write(w, "CLIENT_RANDOM", late, secretOf(7, 48))
	if got := s.Find(late); got == nil || !bytes.Equal(got.Master, secretOf(7, 48)) {
		t.Errorf("got %+v", got)
	}
}

func TestLifeHasAMaximum(t *testing.T) {
	for given, want := range map[time.Duration]time.Duration{0: MaxLife, -1: MaxLife, time.Hour: MaxLife, time.Second: time.Second} {
		if got := NewStore(Config{Life: given}).life; got != want {
			t.Errorf("%s: got %s, want %s", given, got, want)
		}
	}
}

// Who brings most loses first.
func TestRoom(t *testing.T) {
	s := NewStore(Config{Max: 10})
	quiet, flood := s.Writer(), s.Writer()
	for i := range byte(3) {
		write(quiet, "CLIENT_RANDOM", [randomSize]byte{1, i}, secretOf(i+1, 48))
	}
	for i := range byte(100) {
		write(flood, "CLIENT_RANDOM", [randomSize]byte{2, i}, secretOf(i+1, 48))
	}
	for i := range byte(3) {
		if s.Find([randomSize]byte{1, i}) == nil {
			t.Errorf("session %d of the quiet one is gone", i)
		}
	}
	if s.Find([randomSize]byte{2, 92}) != nil || s.Find([randomSize]byte{2, 93}) == nil {
		t.Error("want the last seven sessions of the flood")
	}
	want := Counts{LineCounts: LineCounts{Lines: 103}, Sessions: 103, Kept: 10, Unwanted: 93, Evicted: 93}
	if got := s.Counts(); got != want {
		t.Errorf("got counts %+v, want %+v", got, want)
	}
}

func TestForget(t *testing.T) {
	s := NewStore(Config{})
	w := s.Writer()
	for i := range byte(2) {
		write(w, "CLIENT_RANDOM", [randomSize]byte{i}, secretOf(1, 48))
	}
	all := []*session{s.sessions[[randomSize]byte{0}], s.sessions[[randomSize]byte{1}]}
	s.Forget([randomSize]byte{0})
	s.Forget([randomSize]byte{9})
	if s.Find([randomSize]byte{0}) != nil || s.Find([randomSize]byte{1}) == nil {
		t.Error("the wrong session is forgotten")
	}
	s.Clear()
	for i, e := range all {
		if e.secrets != [numLabels][maxSecret]byte{} {
			t.Errorf("session %d is still there: %x", i, e.secrets)
		}
	}
	if n := s.Counts().Kept; n != 0 {
		t.Errorf("%d are kept, want none", n)
	}
}

// A writer that is closed is let go of with its last session.
func TestClosedWriters(t *testing.T) {
	c := newClock()
	s := NewStore(Config{Now: c.now})
	for i := range byte(5) {
		w := s.Writer()
		write(w, "CLIENT_RANDOM", [randomSize]byte{i}, secretOf(1, 48))
		_, _ = w.Write([]byte("rubbish\nSERVER_TRAFFIC"))
		for range 2 {
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
		}
		write(w, "CLIENT_RANDOM", [randomSize]byte{100 + i}, secretOf(1, 48))
	}
	want := Counts{LineCounts: LineCounts{Lines: 5, Garbage: 5}, Sessions: 5, Kept: 5}
	if got := s.Counts(); got != want {
		t.Errorf("got counts %+v, want %+v", got, want)
	}
	c.t = c.t.Add(MaxLife)
	s.Expire()
	if len(s.writers) != 0 || len(s.sessions) != 0 {
		t.Errorf("%d writers and %d sessions are left", len(s.writers), len(s.sessions))
	}
}

// Writers, waiters and readers at once, for the race detector; each waiter is
// told exactly once.
func TestManyAtOnce(t *testing.T) {
	s := NewStore(Config{Max: 1 << 20})
	const writers, each = 4, 500
	var calls atomic.Int64
	var all, waiting sync.WaitGroup
	waiting.Add(writers * each)
	for range writers {
		randoms := make([][randomSize]byte, each)
		for i := range randoms {
			if _, err := rand.Read(randoms[i][:]); err != nil {
				t.Fatal(err)
			}
		}
		all.Go(func() {
			w := s.Writer()
			for _, r := range randoms {
				write(w, "CLIENT_TRAFFIC_SECRET_0", r, secretOf(1, 32))
				write(w, "SERVER_TRAFFIC_SECRET_0", r, secretOf(2, 32))
			}
		})
		all.Go(func() {
			for _, r := range randoms {
				s.Await(r, func() { calls.Add(1); waiting.Done() })
				s.Find(r)
				s.Await(r, func() {})()
			}
		})
		all.Go(func() {
			for range 50 {
				s.Expire()
				s.Counts()
			}
		})
	}
	all.Wait()
	waiting.Wait()
	if n := calls.Load(); n != writers*each {
		t.Errorf("told %d times, want %d", n, writers*each)
	}
}

func BenchmarkWrite(b *testing.B) {
	s := NewStore(Config{})
	w := s.Writer()
	var random [randomSize]byte
	line := fmt.Appendf(nil, "SERVER_TRAFFIC_SECRET_0 %x %x\n", random, secretOf(1, 32))
	b.SetBytes(int64(len(line)))
	for i := 0; b.Loop(); i++ {
		copy(line[len("SERVER_TRAFFIC_SECRET_0 "):], fmt.Sprintf("%08x", i))
		_, _ = w.Write(line)
	}
}
