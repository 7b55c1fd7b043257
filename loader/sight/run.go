// SPDX-License-Identifier: Apache-2.0

package sight

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cilium/ebpf/ringbuf"
)

const (
	// poll is how often the ring is read while there is traffic. The probes
	// wake nobody then, which would cost more than they do themselves.
	poll = 5 * time.Millisecond
	// idle is how long there is none before Run asks to be woken.
	idle = 100 * time.Millisecond
	// sweepEvery is how often what processes left behind is removed.
	sweepEvery = 5 * time.Second
)

// Run hands the events to handle, one by one, until ctx ends; then it returns
// nil. Events are some milliseconds old. Handle must not block: while it does,
// the ring fills, and what finds no room is lost and counted.
func (s *Sight) Run(ctx context.Context, handle func(Event)) error {
	stop := context.AfterFunc(ctx, func() { _ = s.reader.Flush() })
	defer stop()
	var record ringbuf.Record
	last, swept := time.Now(), time.Now()
	for ctx.Err() == nil {
		wait := poll
		if time.Since(last) > idle {
			wait = sweepEvery
			atomic.StoreUint32(&s.control.Asleep, 1)
			if s.reader.AvailableBytes() > 0 {
				wait = 0
			}
		}
		s.reader.SetDeadline(time.Now().Add(wait))
		// Once the deadline has passed, and not before, this gives all that
		// is there.
		for {
			err := s.reader.ReadInto(&record)
			if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, ringbuf.ErrFlushed) {
				break
			}
			if err != nil {
				return fmt.Errorf("read events: %w", err)
			}
			if ev, ok := decode(record.RawSample); ok {
				handle(ev)
			}
			last = time.Now()
			if wait > poll {
				// Woken: nobody does that again.
				wait = poll
				s.reader.SetDeadline(last.Add(wait))
			}
		}
		atomic.StoreUint32(&s.control.Asleep, 0)
		if time.Since(swept) > sweepEvery {
			if err := s.sweep(handle); err != nil {
				return err
			}
			swept = time.Now()
		}
	}
	return nil
}

// decode reads a record of the ring. The data stay where they are.
func decode(raw []byte) (ev Event, ok bool) {
	const size = int(unsafe.Sizeof(sightEvent{}))
	if len(raw) < size {
		return Event{}, false
	}
	var e sightEvent
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&e)), size), raw)
	if int(e.Len) > len(raw)-size {
		return Event{}, false
	}
	ev = Event{
		Kind:         Kind(e.Kind),
		Dir:          Dir(e.Dir),
		HTTP2:        e.Http2 != 0,
		Library:      Library(e.Library),
		Time:         e.Time,
		Began:        e.Began,
		PID:          e.Pid,
		TID:          e.Tid,
		Conn:         e.Conn,
		Source:       Source(e.CookieSource),
		Cookie:       e.Cookie,
		CookieSource: Source(e.CookieSource),
		HasRandom:    e.HasRandom != 0,
		Random:       e.Random,
		Seq:          e.Seq,
		Offset:       e.Offset,
		Total:        int(e.Total),
		Data:         raw[size : size+int(e.Len)],
	}
	if ev.HasRandom {
		ev.Source = SourceRandom
	}
	return ev, true
}
