// SPDX-License-Identifier: Apache-2.0

package heads

import (
	"encoding/binary"

	"github.com/egressd/egressd/userspace/h2"
)

// two follows one direction of HTTP/2, after the preface.
type two struct {
	framer  h2.Framer
	headers h2.Collector
	decoder *h2.Decoder
	started bool // the first frame has come
	small   [8]byte
	have    int // bytes of small
	fields  h2.Block
}

// found is what a frame meant.
type found uint8

const (
	nothing    found = iota
	headers          // a block of Headers is complete: headers.Block, fields
	promise          // a block of PushPromise is complete
	dataEnd          // Data that ended its stream is complete
	resetFrame       // RSTStream is complete: its code
	goAway           // GoAway: last stream and code
)

// init makes the value ready; late is for a connection that is joined between
// two frames.
func (t *two) init(late bool) {
	t.framer.SetMaxFrameSize(h2.HardMaxFrameSize) // the other direction knows it
	if late {
		t.decoder, t.started = h2.LateJoin(tableLimit), true
	} else {
		t.decoder = h2.NewDecoder(tableLimit)
	}
}

// step consumes n bytes of b, which is not empty: at most to the end of a
// frame's header or payload.
func (t *two) step(b []byte) (n int, what found, err error) {
	n, part, err := t.framer.Next(b)
	if err != nil || part == h2.PartNone {
		return n, nothing, err
	}
	frame := t.framer.Frame()
	if part == h2.PartHeader {
		if !t.started {
			if frame.Type != h2.Settings || frame.Has(h2.Ack) {
				return 0, nothing, errSettings
			}
			t.started = true
		}
		t.have = 0
		switch frame.Type {
		case h2.Headers, h2.PushPromise, h2.Continuation:
			if err := t.headers.Begin(frame); err != nil {
				return 0, nothing, err
			}
		}
		if frame.Length > 0 {
			return n, nothing, nil
		}
		b = b[n:n]
	} else {
		b = b[:n]
	}
	what, err = t.payload(frame, b, t.framer.Left())
	return n, what, err
}

// payload takes a piece of a frame's payload; left bytes are still to come.
func (t *two) payload(frame h2.FrameHeader, piece []byte, left uint32) (found, error) {
	switch frame.Type {
	case h2.Headers, h2.PushPromise, h2.Continuation:
		done, err := t.headers.Add(piece, left)
		if err != nil || !done {
			return nothing, err
		}
		block := t.headers.Block()
		if t.fields, err = t.decoder.Decode(block.Block); err != nil {
			return nothing, err
		}
		if block.Frame.Type == h2.PushPromise {
			return promise, nil
		}
		return headers, nil
	case h2.Data:
		if left == 0 && frame.EndsStream() {
			return dataEnd, nil
		}
	case h2.RSTStream, h2.GoAway:
		t.have += copy(t.small[t.have:], piece)
		if left > 0 {
			return nothing, nil
		}
		if frame.Type == h2.GoAway {
			return goAway, nil
		}
		return resetFrame, nil
	}
	return nothing, nil
}

// reset and away give the events of the frames that step found.
func (t *two) reset() Event {
	return Event{Kind: Reset, Stream: t.framer.Frame().Stream, Code: binary.BigEndian.Uint32(t.small[:])}
}

func (t *two) away() Event {
	return Event{
		Kind:   GoAway,
		Stream: binary.BigEndian.Uint32(t.small[:]) &^ (1 << 31),
		Code:   binary.BigEndian.Uint32(t.small[4:]),
	}
}

// skippable returns how many bytes of the frame may pass unseen. The last byte
// of Data that ends its stream is an event.
func (t *two) skippable() int64 {
	frame, left := t.framer.Frame(), int64(t.framer.Left())
	switch frame.Type {
	case h2.Headers, h2.PushPromise, h2.Continuation, h2.RSTStream, h2.GoAway:
		return 0
	}
	if left > 0 && frame.EndsStream() {
		left--
	}
	return left
}
