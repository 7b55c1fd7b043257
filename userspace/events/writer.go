// SPDX-License-Identifier: Apache-2.0

package events

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/egressd/egressd/policy"
)

// Sink is what events are written to, one at a time, by one goroutine. It may
// be slow.
type Sink interface {
	Write(ev policy.Event) error
	// Reopen begins anew, as after a rotation.
	Reopen() error
	Close() error
}

// Writer writes the events of a log to a sink. What the sink is too slow for, or
// cannot take, is lost, and counted: nothing that happens waits for it. Made by
// NewWriter, and run by Run.
type Writer struct {
	sub    *Subscription
	sink   Sink
	log    *slog.Logger
	reopen chan struct{}
	failed atomic.Uint64 // events that the sink did not take
}

// maxUnwritten is how many events may wait for a sink.
const maxUnwritten = 4096

// NewWriter makes a writer of all events from now on. It owns the sink.
func NewWriter(l *Log, sink Sink, log *slog.Logger) *Writer {
	_, sub := l.Subscribe(0, Options{Buffer: maxUnwritten})
	return &Writer{sub: sub, sink: sink, log: log, reopen: make(chan struct{}, 1)}
}

// Reopen has the sink begin anew soon. It may be called at any time.
func (w *Writer) Reopen() {
	select {
	case w.reopen <- struct{}{}:
	default: // it was not done since it was last asked for
	}
}

// Lost is the number of events that were not written.
func (w *Writer) Lost() uint64 { return w.failed.Load() + w.sub.Dropped() }

// complainEvery is how often the daemon's own log tells that events are lost.
const complainEvery = time.Minute

// Run writes until the log is closed, and then closes the sink.
func (w *Writer) Run() {
	defer func() {
		if err := w.sink.Close(); err != nil {
			w.log.Warn("event log is not closed well", "err", err)
		}
	}()
	var told uint64
	var complained time.Time
	complain := func(what string, err error) {
		if time.Since(complained) >= complainEvery {
			complained = time.Now()
			w.log.Warn(what, "err", err, "lost", w.Lost())
		}
	}
	for {
		select {
		case <-w.reopen:
			if err := w.sink.Reopen(); err != nil {
				complain("event log is not opened again", err)
			}
		case ev, open := <-w.sub.C:
			if !open {
				return
			}
			if err := w.write(ev, &told); err != nil {
				complain("events are not written", err)
			}
		}
	}
}

// write writes an event and, if there is a gap before it, how large that is.
func (w *Writer) write(ev policy.Event, told *uint64) error {
	if lost := w.Lost(); lost > *told {
		gap := policy.Event{At: ev.At, Kind: EventLost, Count: lost - *told, Detail: fmt.Sprintf("%d events were not written", lost-*told)}
		if err := w.sink.Write(gap); err != nil {
			w.failed.Add(1)
			return err
		}
		*told = lost
	}
	if err := w.sink.Write(ev); err != nil {
		w.failed.Add(1)
		return err
	}
	return nil
}

// EventLost is the kind of the line that stands for events which were not
// written. It is no event of the daemon.
const EventLost policy.EventKind = "lost"
