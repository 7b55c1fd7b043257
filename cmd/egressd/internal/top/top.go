// SPDX-License-Identifier: Apache-2.0

// Package top shows a daemon live in a terminal: exits and lanes with what they
// send against their budgets, cooldowns that count down, who waits, and what
// happened last.
//
// A frame is a function of what was seen and of the size of the terminal; what
// keys do to it is another. Only Run touches the terminal, and it gives it
// back as it was: when it returns, when it panics, when a signal ends the
// process and while one stops it.
package top

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/egressd/egressd/cmd/egressd/internal/admin"
)

// Daemon is what is asked. *admin.Client is one.
type Daemon interface {
	Status(ctx context.Context) (admin.Status, error)
	Lanes(ctx context.Context) ([]admin.Lane, error)
	Exits(ctx context.Context, since time.Duration) (admin.Exits, error)
	Events(ctx context.Context, follow, dispatches bool, f func(admin.Event) error) error
}

// Config is what a view needs. Daemon and State are required.
type Config struct {
	Daemon Daemon
	// State says in words how a lane is.
	State func(admin.Lane) string
	// Every is the time between two frames; 0 means a second.
	Every time.Duration
	// Colour lets rows have colours. What they say stands in their text, too.
	Colour bool
	// ASCII draws with ASCII alone.
	ASCII bool
}

func (c *Config) every() time.Duration {
	if c.Every <= 0 {
		return time.Second
	}
	return c.Every
}

// patience is how long a daemon may take to answer before it counts as gone.
const patience = 3 * time.Second

// keptEvents is the number of events that a frame shows at most.
const keptEvents = 100

// look asks the daemon for everything once.
func look(ctx context.Context, d Daemon) (s seen, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if s.status, err = d.Status(ctx); err != nil {
		return s, err
	}
	if s.lanes, err = d.Lanes(ctx); err != nil {
		return s, err
	}
	exits, err := d.Exits(ctx, 0)
	if err != nil {
		return s, err
	}
	s.at, s.exits = time.Now(), exits.Exits
	err = d.Events(ctx, false, false, func(e admin.Event) error {
		if len(s.events) == keptEvents {
			s.events = append(s.events[:0], s.events[1:]...)
		}
		s.events = append(s.events, e)
		return nil
	})
	return s, err
}

// Once looks at the daemon for one step of the clock and returns a frame of all
// there is, in lines of width characters where that can be helped; 0 is no
// bound.
func Once(ctx context.Context, c Config, width int) (string, error) {
	v := newView(c)
	for i := range 2 {
		if i > 0 {
			select {
			case <-ctx.Done():
				return "", ctx.Err()
			case <-time.After(c.every()):
			}
		}
		s, err := look(ctx, c.Daemon)
		if err != nil {
			return "", err
		}
		v.see(s)
	}
	return v.all(width), nil
}

// Plain writes a frame after the other until ctx ends, for terminals that only
// write on. Frames are of width characters and height lines at most; an empty line
// stands between two. A daemon that does not answer is no error.
func Plain(ctx context.Context, c Config, w io.Writer, width, height int) error {
	v := newView(c)
	tick := time.NewTicker(c.every())
	defer tick.Stop()
	for {
		s, err := look(ctx, c.Daemon)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			v.fail(err)
		default:
			v.see(s)
		}
		// Nobody presses keys here, so nothing says which there are.
		if _, err := io.WriteString(w, v.brief(width, height)); err != nil {
			return fmt.Errorf("write to terminal: %w", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
