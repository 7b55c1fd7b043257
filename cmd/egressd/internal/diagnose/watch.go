// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"context"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
)

// Daemon is what is asked. *admin.Client is one.
type Daemon interface {
	Status(ctx context.Context) (admin.Status, error)
	Lanes(ctx context.Context) ([]admin.Lane, error)
	Flows(ctx context.Context) ([]admin.Flow, error)
	Exits(ctx context.Context, since time.Duration) (admin.Exits, error)
	Counts(ctx context.Context) (admin.Counts, error)
	Events(ctx context.Context, follow, dispatches bool, f func(admin.Event) error) error
}

// How often it is asked, and for how far back.
const (
	lookEvery   = 100 * time.Millisecond // at connections
	sampleEvery = 500 * time.Millisecond // of lanes
	// ease is how much longer than an answer took the next question waits: a
	// daemon with ten thousand lanes must not spend its time on answers.
	ease       = 4
	pastMost   = time.Hour
	minuteMost = 30
)

// Watch watches a daemon for a time, or until enough is closed, and asks what
// it remembers. It ends with the first question that is not answered.
func Watch(ctx context.Context, d Daemon, destination string, span time.Duration, enough <-chan struct{}) (*Snapshot, error) {
	s := &Snapshot{Destination: destination}
	var err error
	if s.First, err = d.Counts(ctx); err != nil {
		return nil, err
	}
	if err := s.sample(ctx, d); err != nil {
		return nil, err
	}
	listen := s.listen(ctx, d)
	began := time.Now()
	sampled := began
	s.Clients.Look(began, nil)
	pause := lookEvery
watching:
	for time.Since(began) < span {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-enough:
			break watching
		case <-time.After(min(pause, span-time.Since(began))):
		}
		asked := time.Now()
		flows, err := d.Flows(ctx)
		if err != nil {
			return nil, err
		}
		s.Clients.Look(asked, flows)
		if asked.Sub(sampled) >= sampleEvery {
			sampled = asked
			if err := s.sample(ctx, d); err != nil {
				return nil, err
			}
		}
		pause = max(lookEvery, ease*time.Since(asked))
	}
	s.Stream = listen()
	if span > 0 {
		if err := s.sample(ctx, d); err != nil {
			return nil, err
		}
	}
	return s, s.recall(ctx, d)
}

func (s *Snapshot) sample(ctx context.Context, d Daemon) error {
	at := time.Now()
	lanes, err := d.Lanes(ctx)
	if err != nil {
		return err
	}
	s.Samples = append(s.Samples, Sample{At: at, Lanes: lanes})
	return nil
}

// recall asks for the rest, at the end of the watch.
func (s *Snapshot) recall(ctx context.Context, d Daemon) (err error) {
	if s.Last, err = d.Counts(ctx); err != nil {
		return err
	}
	if s.Status, err = d.Status(ctx); err != nil {
		return err
	}
	if s.Past, err = d.Exits(ctx, pastMost); err != nil {
		return err
	}
	var back []admin.Exits
	for n := 1; n <= minuteMost; n++ {
		e, err := d.Exits(ctx, time.Duration(n)*time.Minute)
		if err != nil {
			return err
		}
		back = append(back, e)
		if !e.From.After(s.Status.Started) {
			break // there is no more of the past
		}
	}
	s.Minutes = minutes(back)
	return d.Events(ctx, false, false, func(e admin.Event) error {
		s.Events = append(s.Events, e)
		return nil
	})
}
