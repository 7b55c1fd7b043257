// SPDX-License-Identifier: Apache-2.0

// Package frame is the language in which the init of a test machine tells the
// host what happens inside: one JSON object per line of a serial port that
// carries nothing else. The kernel's own messages have another port, so that
// neither can tear a line of the other.
//
// Frames are numbered. A reader that misses a number, or reads a line that is
// no frame, has lost something, and says so: what was lost may have been a
// failure.
package frame

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// Kind says what a frame tells.
type Kind string

// The kinds of frames, in the order in which a good machine sends them.
const (
	Boot   Kind = "boot"   // init runs; Text is the kernel's release
	Begin  Kind = "begin"  // the run Run starts
	Output Kind = "output" // Text is a part of what Run printed, with its newlines
	End    Kind = "end"    // Run ended with status Code after Elapsed
	Fault  Kind = "fault"  // something is wrong that no test tells: Text says what; Run is empty outside of runs
	Done   Kind = "done"   // nothing more comes; the machine powers off
)

// Frame is one message. Which fields mean something depends on its kind.
type Frame struct {
	N       int           `json:"n"` // counts from 0
	Kind    Kind          `json:"kind"`
	Run     string        `json:"run,omitempty"`
	Text    string        `json:"text,omitempty"`
	Code    int           `json:"code,omitempty"`    // exit status, or 128 and the signal
	Elapsed time.Duration `json:"elapsed,omitempty"` // ns
}

// Writer sends frames. It is safe for concurrent use.
type Writer struct {
	mu  sync.Mutex
	out io.Writer
	n   int
}

// NewWriter returns a Writer to out, the number of whose first frame is 0.
func NewWriter(out io.Writer) *Writer { return &Writer{out: out} }

// Send numbers f and writes it with a single call.
func (w *Writer) Send(f Frame) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	f.N = w.n
	w.n++
	line, err := json.Marshal(f)
	if err != nil {
		return fmt.Errorf("encode frame: %w", err)
	}
	_, err = w.out.Write(append(line, '\n'))
	return err
}

// maxLine bounds a line. Init sends at most a few KiB at once.
const maxLine = 1 << 20

// Read calls each with every frame of in, until in ends. What is no frame, or
// not the next one, becomes a frame of kind Fault with the reason as its text:
// whoever counts faults cannot overlook it. The error is one of reading.
func Read(in io.Reader, each func(Frame)) error {
	lines := bufio.NewReaderSize(in, 64<<10)
	next := 0
	for {
		line, err := readLine(lines)
		if text := bytes.TrimSpace(line); len(text) > 0 {
			f, bad := parse(text)
			switch {
			case bad != nil:
				each(Frame{N: next, Kind: Fault, Text: bad.Error()})
			case f.N != next:
				each(Frame{N: next, Kind: Fault, Text: fmt.Sprintf("frame %d came where %d was due: something was lost", f.N, next)})
				fallthrough
			default:
				next = f.N + 1
				each(f)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read frames: %w", err)
		}
	}
}

// readLine reads to the next newline, and no more than maxLine bytes of it.
func readLine(in *bufio.Reader) (line []byte, err error) {
	for {
		part, err := in.ReadSlice('\n')
		if room := maxLine - len(line); len(part) > room {
			line = append(line, part[:room]...)
		} else {
			line = append(line, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
	}
}

// parse reads one frame.
func parse(line []byte) (Frame, error) {
	var f Frame
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&f); err != nil || dec.More() {
		return Frame{}, fmt.Errorf("a line that is no frame: %.200q", line)
	}
	switch f.Kind {
	case Boot, Begin, Output, End, Fault, Done:
	default:
		return Frame{}, fmt.Errorf("a frame of unknown kind %.40q", f.Kind)
	}
	if f.N < 0 {
		return Frame{}, fmt.Errorf("a frame numbered %d", f.N)
	}
	return f, nil
}
