// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	shared "github.com/egressd/egressd/policy/fleet"
	"github.com/egressd/egressd/policy/redisurl"
)

const (
	// DefaultTimeout of a call.
	DefaultTimeout = 100 * time.Millisecond
	// DefaultLearn is long enough for hosts that watch their lanes once a
	// second.
	DefaultLearn = 1500 * time.Millisecond
)

// Config is what a Store is made of.
type Config struct {
	URL redisurl.URL
	// Timeout bounds a call, connecting and repetition included; 0 stands for
	// DefaultTimeout.
	Timeout time.Duration
	// Learn is for how long a store that lost its history grants nothing; 0
	// stands for DefaultLearn.
	Learn time.Duration
	// Observe, if not nil, is told of each call, before Do returns: a circuit
	// breaker or a metric. It must be safe for concurrent use, and quick.
	Observe func(Outcome)
	// Logger gets a line when the store is lost, for more than a call or two, and
	// when it is back, at Warn and Info; nil for none.
	Logger *slog.Logger
}

// Outcome is how one call fared.
type Outcome struct {
	Kind  shared.Kind
	Took  time.Duration
	Trips int   // round trips begun: one, but for a forgotten script or a broken connection
	Err   error // what Do returns
}

// Store is a shared.Store in Redis. Safe for concurrent use. Close it.
type Store struct {
	c       Config
	client  redis.UniversalClient
	scripts map[shared.Kind]script
	memory  memory
	// Calls are told apart by the process and a count, so that one that is
	// repeated is known.
	process string
	calls   atomic.Uint64
	outage  outage
	server  whereabouts // but in a cluster, which has many
}

var _ shared.Store = (*Store)(nil)

// New makes a store. It reads the files that the URL names, and connects when it
// is first used: a store that is down is no error here.
func New(c Config) (*Store, error) { return newStore(c, "") }

// newStore is New with another clock for the scripts: see newScripts.
func newStore(c Config, clock string) (*Store, error) {
	if c.Timeout < 0 || c.Learn < 0 {
		return nil, errors.New("fleet store: negative timeout")
	}
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	if c.Learn == 0 {
		c.Learn = DefaultLearn
	}
	var unique [8]byte
	if _, err := rand.Read(unique[:]); err != nil {
		return nil, fmt.Errorf("fleet store: %w", err)
	}
	s := &Store{c: c, scripts: newScripts(clock), process: hex.EncodeToString(unique[:])}
	s.memory.lanes = map[string]sight{}
	var err error
	s.client, err = dial(c.URL, c.Timeout, func(context.Context, *redis.Conn) error {
		s.memory.doubt()
		return nil
	})
	if err != nil {
		return nil, err
	}
	if c.URL.Mode != redisurl.Cluster {
		s.client.AddHook(&s.server)
	}
	return s, nil
}

// Close ends all connections and subscriptions.
func (s *Store) Close() error {
	if err := s.client.Close(); err != nil {
		return fmt.Errorf("fleet store: close: %s", s.c.URL.Clean(err.Error()))
	}
	return nil
}

// Do makes a call. It returns within Config.Timeout, or by the deadline of ctx
// if that is earlier. What failed may have taken effect all the same, though of
// a grant nobody will hear then: its units are lost until their slots are past.
// Errors are ErrTimeout, ErrDown or ErrRefused, but for calls that make no sense.
func (s *Store) Do(ctx context.Context, c shared.Call) (shared.Answer, error) {
	if err := check(&c); err != nil {
		return shared.Answer{}, err
	}
	start := time.Now()
	bounded, cancel := context.WithTimeout(ctx, s.c.Timeout)
	defer cancel()
	r := s.bounded(bounded, c)
	if r.err != nil {
		r.err = classify(r.err, ctx.Err(), s.c.URL.Clean)
	}
	s.report(&Outcome{Kind: c.Kind, Took: time.Since(start), Trips: r.trips, Err: r.err})
	return r.answer, r.err
}

// result is what became of a call.
type result struct {
	answer shared.Answer
	err    error
	trips  int
}

// bounded makes a call and waits for it no longer than ctx lasts. The client
// library does not promise that: while it connects and logs in, it goes by
// timeouts of its own, one after the other.
func (s *Store) bounded(ctx context.Context, c shared.Call) result {
	done := make(chan result, 1)
	go func() {
		var r result
		r.answer, r.err = s.call(ctx, &c, &r.trips)
		done <- r
	}()
	select {
	case r := <-done:
		return r
	case <-ctx.Done():
		return result{err: ctx.Err(), trips: 1}
	}
}

// call makes a call, once more if the connection broke before an answer came,
// and once more if the server took it for one that lay about.
func (s *Store) call(ctx context.Context, c *shared.Call, trips *int) (shared.Answer, error) {
	id := s.id()
	repeated, stale, told := false, false, false
	for {
		k, trouble := s.memory.recall(c.Lane, time.Now())
		r, err := s.once(ctx, c, id, k, trouble, trips)
		if err != nil {
			if broken(err) && !repeated && ctx.Err() == nil {
				repeated = true
				continue // with the same id: what was granted is granted once
			}
			return shared.Answer{}, err
		}
		if r.stale != 0 && !stale && ctx.Err() == nil {
			stale = true
			continue // the server's clock may have been set: now it is known
		}
		if k.born > 0 && !k.suspect && !told && !s.memory.trust(trouble) {
			// The connection was made for this call, to a server that may be another
			// and was not told what is known of the lane.
			told = true
			next, err := s.tell(ctx, c, k, trips)
			if err != nil {
				return shared.Answer{}, err
			}
			if next.raised != 0 && r.granted > 0 && c.Kind != shared.Give {
				id = s.id()
				continue // what was granted may overlap what the server had not heard of
			}
			r.epoch, r.open, r.interval, r.young = next.epoch, next.open, next.interval, next.young
		}
		return r.answer(c, id), nil
	}
}

// tell tells the server what was known of the lane of a call before it.
func (s *Store) tell(ctx context.Context, c *shared.Call, k known, trips *int) (reply, error) {
	watch := shared.Call{Kind: shared.Watch, Lane: c.Lane, Host: c.Host, Limit: c.Limit}
	_, trouble := s.memory.recall(c.Lane, time.Now())
	k.suspect = true
	return s.once(ctx, &watch, s.id(), k, trouble, trips)
}

// once runs the script of a call, telling what is known.
func (s *Store) once(ctx context.Context, c *shared.Call, id string, k known, trouble uint64, trips *int) (r reply, err error) {
	words, err := s.scripts[c.Kind].run(ctx, s.client, keysOf(c.Lane), s.values(c, id, k), trips)
	if err != nil {
		s.memory.doubt()
		return r, err
	}
	if err := r.read(words); err != nil {
		return r, err
	}
	s.memory.see(c.Lane, &r, trouble, time.Now())
	return r, nil
}

// id is one that no other call of any host has.
func (s *Store) id() string {
	return s.process + strconv.FormatUint(s.calls.Add(1), 36)
}

// report tells the observer, and the log when the store is lost or back.
func (s *Store) report(out *Outcome) {
	if s.c.Observe != nil {
		s.c.Observe(*out)
	}
	if errors.Is(out.Err, context.Canceled) {
		return // by the caller, which says nothing of the store
	}
	switch {
	case s.c.Logger == nil:
	case out.Err == nil:
		if s.outage.worked() {
			s.c.Logger.Info("fleet store is back", "store", s.c.URL)
		}
	case s.outage.failed(out.Err, time.Now()):
		s.c.Logger.Warn("fleet store lost", "store", s.c.URL, "error", out.Err)
	}
}
