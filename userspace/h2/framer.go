// SPDX-License-Identifier: Apache-2.0

package h2

// Part says what Framer.Next found.
type Part uint8

// Parts of a frame.
const (
	PartNone    Part = iota // a piece of a header, not its last one
	PartHeader              // the header is complete: Frame describes it
	PartPayload             // a piece of the payload
)

// Framer follows the frames of one direction of a connection, after the
// client's preface. The zero value is before the first frame and takes frames
// of DefaultMaxFrameSize.
type Framer struct {
	head  [FrameHeaderLen]byte
	have  uint8       // bytes of head
	frame FrameHeader // the frame whose header came last
	left  uint32      // bytes of its payload still to come
	block uint32      // stream of the header block that is not complete, or 0
	limit uint32      // size that a payload may have; 0: the default
	err   error
}

// SetMaxFrameSize sets the size in bytes that the payload of a frame may have:
// what the receiver said in its SETTINGS, or HardMaxFrameSize for who cannot
// know that.
func (f *Framer) SetMaxFrameSize(n uint32) { f.limit = min(n, HardMaxFrameSize) }

// Frame returns the header of the frame that Next is in or has just finished.
func (f *Framer) Frame() FrameHeader { return f.frame }

// Left returns how many bytes of the frame's payload are still to come: 0
// between two frames and within a header.
func (f *Framer) Left() uint32 { return f.left }

// Between reports whether the next byte is the first of a frame.
func (f *Framer) Between() bool { return f.have == 0 && f.left == 0 }

// InBlock reports whether a header block has begun and is not complete.
func (f *Framer) InBlock() bool { return f.block != 0 }

// Peek returns the header of the next frame if b, the next bytes, completes it,
// and consumes nothing. Up to FrameHeaderLen-1 of its bytes may have been
// consumed before.
func (f *Framer) Peek(b []byte) (FrameHeader, bool) {
	if f.left > 0 || int(f.have)+len(b) < FrameHeaderLen {
		return FrameHeader{}, false
	}
	if f.have == 0 {
		return ParseFrameHeader(b), true
	}
	head := f.head
	copy(head[f.have:], b)
	return ParseFrameHeader(head[:]), true
}

// Next looks at b, the next bytes of the stream, which are not empty, and
// consumes n of them, at least one: the rest of a header or what there is of
// the payload, never both. A frame is over when Left is 0 after its header or
// a piece of its payload. An error is an Error and stays.
func (f *Framer) Next(b []byte) (n int, part Part, err error) {
	switch {
	case f.err != nil:
		return 0, PartNone, f.err
	case f.left > 0:
		n = int(min(uint64(f.left), uint64(len(b))))
		f.Skip(uint32(n))
		return n, PartPayload, nil
	}
	n = copy(f.head[f.have:], b)
	if f.have += uint8(n); f.have < FrameHeaderLen {
		return n, PartNone, nil
	}
	f.have = 0
	if f.err = f.begin(ParseFrameHeader(f.head[:])); f.err != nil {
		return 0, PartNone, f.err
	}
	return n, PartHeader, nil
}

// Skip says that n bytes of the payload, at most Left, went by unseen.
func (f *Framer) Skip(n uint32) { f.left -= min(n, f.left) }

// begin takes the header of a new frame.
func (f *Framer) begin(h FrameHeader) error {
	limit := f.limit
	if limit == 0 {
		limit = DefaultMaxFrameSize
	}
	if h.Length > limit {
		return ErrFrameTooLong
	}
	// RFC 9113 §6.10: nothing may come between the frames of a header block.
	if h.Type == Continuation {
		if f.block == 0 || f.block != h.Stream {
			return ErrContinuation
		}
	} else if f.block != 0 {
		return ErrContinuation
	}
	if err := h.check(); err != nil {
		return err
	}
	switch h.Type {
	case Headers, PushPromise, Continuation:
		f.block = h.Stream
		if h.Has(EndHeaders) {
			f.block = 0
		}
	}
	f.frame, f.left = h, h.Length
	return nil
}
