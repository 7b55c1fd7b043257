// SPDX-License-Identifier: Apache-2.0

package events

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
)

// Encode writes an event as one line of JSON, without its end.
type Encode func(policy.Event) ([]byte, error)

// stream is a sink that others own: it is neither opened nor closed.
type stream struct {
	w      io.Writer
	encode Encode
	torn   bool // the last line has no end
}

// NewStream returns a sink of lines into w, which stays the caller's.
func NewStream(w io.Writer, encode Encode) Sink { return &stream{w: w, encode: encode} }

// Write implements Sink. A line is one write, so that several processes may
// append to one file.
func (s *stream) Write(ev policy.Event) error {
	line, err := s.encode(ev)
	if err != nil {
		return fmt.Errorf("encode event: %w", err)
	}
	if s.torn {
		line = append([]byte{'\n'}, line...)
	}
	n, err := s.w.Write(append(line, '\n'))
	if n > 0 {
		s.torn = n <= len(line)
	}
	return err
}

// Reopen implements Sink.
func (s *stream) Reopen() error { return nil }

// Close implements Sink.
func (s *stream) Close() error { return nil }

// file is a sink with a name.
type file struct {
	stream
	name string
	open *os.File
}

// NewFile returns a sink of lines at the end of a file, which is made if it is
// not there. Who rotates it calls Writer.Reopen, or empties it in place.
func NewFile(name string, encode Encode) (Sink, error) {
	f := &file{name: name, stream: stream{encode: encode}}
	if err := f.Reopen(); err != nil {
		return nil, err
	}
	return f, nil
}

// Reopen implements Sink. If the name cannot be opened, the file from before
// stays.
func (f *file) Reopen() error {
	// Not to wait for a reader, if it is a pipe.
	next, err := os.OpenFile(f.name, os.O_WRONLY|os.O_APPEND|os.O_CREATE|unix.O_NONBLOCK, 0o640)
	if err != nil {
		return err
	}
	old := f.open
	f.open, f.w, f.torn = next, next, false
	if old != nil {
		return old.Close()
	}
	return nil
}

// Close implements Sink.
func (f *file) Close() error { return f.open.Close() }
