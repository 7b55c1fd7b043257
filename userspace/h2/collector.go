// SPDX-License-Identifier: Apache-2.0

package h2

import "encoding/binary"

// HeaderBlock is a header block and what the frame that began it says.
type HeaderBlock struct {
	Frame    FrameHeader // of the Headers or PushPromise that began the block
	Promised uint32      // the stream that a PushPromise announces
	Priority [5]byte     // of a Headers with PriorityFlag: as sent
	// Block is the compressed fields, without padding, of all the frames.
	Block []byte
}

// maxExtra is what a Headers frame may have beside a piece of the block: padding
// with its length, and priority.
const maxExtra = 1 + 255 + 5

// Collector puts the frames of header blocks together. It is told of every
// Headers, PushPromise and Continuation frame that a Framer found, and only of
// these. The zero value is ready. What it returns is valid until the next call.
type Collector struct {
	block   HeaderBlock
	frame   FrameHeader
	payload []byte // of the frame that is being read
	first   bool   // that frame began the block
	whole   []byte // fragments of a block of several frames
	several bool
}

// Begin starts a frame.
func (c *Collector) Begin(h FrameHeader) error {
	c.frame, c.payload = h, reuse(c.payload)
	c.first = h.Type != Continuation
	if c.first {
		c.block, c.whole, c.several = HeaderBlock{Frame: h}, reuse(c.whole), false
	}
	if h.Length > MaxBlock+maxExtra {
		return ErrBlockTooLong
	}
	return nil
}

// Add takes the next piece of the frame's payload, of which left bytes are
// still to come. With the last piece of the last frame, done is true and Block
// returns the header block. A frame without payload gets one empty piece.
//
// The piece is looked at where it is if it is the whole payload of a block's
// only frame; then the header block is a view into it.
func (c *Collector) Add(piece []byte, left uint32) (done bool, err error) {
	if left > 0 || len(c.payload) > 0 {
		c.payload = append(c.payload, piece...)
		piece = c.payload
	}
	if left > 0 {
		return false, nil
	}
	if c.first {
		if piece, err = c.block.open(piece); err != nil {
			return false, err
		}
	}
	end := c.frame.Has(EndHeaders)
	if end && !c.several {
		c.block.Block = piece
	} else {
		c.several = true
		c.whole = append(c.whole, piece...)
		c.block.Block = c.whole
	}
	if len(c.block.Block) > MaxBlock {
		return false, ErrBlockTooLong
	}
	return end, nil
}

// Block returns the header block that Add completed.
func (c *Collector) Block() *HeaderBlock { return &c.block }

// open takes padding, priority and promised stream off the payload of the frame
// that begins a block (RFC 9113 §6.2, §6.6).
func (b *HeaderBlock) open(payload []byte) ([]byte, error) {
	pad := 0
	if b.Frame.Has(Padded) {
		if len(payload) == 0 {
			return nil, ErrFrameSize
		}
		pad, payload = int(payload[0]), payload[1:]
	}
	switch {
	case b.Frame.Type == PushPromise:
		if len(payload) < 4 {
			return nil, ErrFrameSize
		}
		b.Promised = binary.BigEndian.Uint32(payload) &^ (1 << 31)
		payload = payload[4:]
	case b.Frame.Has(PriorityFlag):
		if len(payload) < len(b.Priority) {
			return nil, ErrFrameSize
		}
		payload = payload[copy(b.Priority[:], payload):]
	}
	if pad > len(payload) {
		return nil, ErrPadding
	}
	return payload[:len(payload)-pad], nil
}
