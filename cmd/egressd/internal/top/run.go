// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Run shows the daemon until somebody presses q, a signal that ends processes
// comes, or ctx ends. A daemon that does not answer is no error: it may come
// back. The error is that of the terminal.
func Run(ctx context.Context, c Config) (err error) {
	t, err := openTerminal()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.file.Close()) }()
	ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT)
	defer stop()
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGWINCH, unix.SIGTSTP, unix.SIGCONT)
	defer signal.Stop(signals)
	// Also where what follows panics.
	defer func() { err = errors.Join(err, t.leave()) }()
	if err := t.enter(); err != nil {
		return err
	}
	s := &session{
		cfg: c, terminal: t, view: newView(c), signals: signals,
		keys: make(chan []byte), looks: make(chan looked, 1),
	}
	return s.run(ctx)
}

// session is a view in a terminal.
type session struct {
	cfg      Config
	terminal *terminal
	view     *view
	signals  <-chan os.Signal
	keys     chan []byte
	looks    chan looked
	page     int
	rest     string // of a key that is not complete
}

// looked is what came of a look.
type looked struct {
	seen seen
	err  error
}

func (s *session) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	tasks.Go(func() { s.watch(ctx) })
	tasks.Go(func() { s.read(ctx) })
	defer func() {
		cancel()
		// A read that waits for a key ends by its deadline.
		_ = s.terminal.file.SetReadDeadline(time.Unix(1, 0))
		tasks.Wait()
	}()
	for {
		if err := s.draw(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case l := <-s.looks:
			s.took(l)
		case text, open := <-s.keys:
			if !open {
				return nil // the terminal is gone
			}
			if s.typed(string(text)) {
				return nil
			}
		case sig := <-s.signals:
			if err := s.signalled(ctx, sig); err != nil {
				return err
			}
		}
	}
}

// took takes what came of a look, unless people want to read the last one.
func (s *session) took(l looked) {
	switch {
	case l.err != nil:
		s.view.fail(l.err)
	case !s.view.paused:
		s.view.see(l.seen)
	}
}

// typed does what keys ask for, and reports whether that is to end.
func (s *session) typed(text string) (quit bool) {
	var keys []key
	keys, s.rest = decode(s.rest + text)
	for _, k := range keys {
		quit = quit || s.view.press(k, s.page)
	}
	return quit
}

func (s *session) draw() error {
	width, height := s.terminal.size()
	var lines []line
	lines, s.page = s.view.frame(width, height)
	return s.terminal.draw(lines, s.cfg.Colour)
}

// signalled follows a signal. To be stopped is to give the terminal back, stop
// as if nobody had caught the signal, and take the terminal again.
func (s *session) signalled(ctx context.Context, sig os.Signal) error {
	if sig != unix.SIGTSTP {
		return nil // the next frame is what was asked for
	}
	if err := s.terminal.leave(); err != nil {
		return err
	}
	for len(s.signals) > 0 { // a SIGCONT from before says nothing
		<-s.signals
	}
	if err := unix.Kill(os.Getpid(), unix.SIGSTOP); err != nil {
		return fmt.Errorf("stop: %w", err)
	}
	// The signal may stop another thread first, so this one may still run.
	for {
		select {
		case <-ctx.Done():
			return nil
		case sig := <-s.signals:
			if sig == unix.SIGCONT {
				return s.terminal.enter()
			}
		}
	}
}

// watch looks at the daemon, again and again until ctx ends.
func (s *session) watch(ctx context.Context) {
	tick := time.NewTicker(s.cfg.every())
	defer tick.Stop()
	for {
		seen, err := look(ctx, s.cfg.Daemon)
		select {
		case <-ctx.Done():
			return
		case s.looks <- looked{seen, err}:
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// read passes on what is typed until ctx ends or the terminal is gone.
func (s *session) read(ctx context.Context) {
	defer close(s.keys)
	for {
		text := make([]byte, 64)
		n, err := s.terminal.file.Read(text)
		if err != nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case s.keys <- text[:n]:
		}
	}
}
