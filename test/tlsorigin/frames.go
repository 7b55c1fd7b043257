// SPDX-License-Identifier: Apache-2.0

package tlsorigin

import (
	"encoding/binary"
	"fmt"
	"io"
)

// Types and flags of frames (RFC 9113 §6).
const (
	frameData         = 0
	frameHeaders      = 1
	framePriority     = 2
	frameReset        = 3
	frameSettings     = 4
	framePing         = 6
	frameGoAway       = 7
	frameWindowUpdate = 8
	frameContinuation = 9

	flagAck        = 1 // SETTINGS, PING
	flagEndStream  = 1 // DATA, HEADERS
	flagEndHeaders = 4 // HEADERS, CONTINUATION
	flagPadded     = 8 // DATA, HEADERS
	flagPriority   = 0x20

	frameHeader = 9
	maxFrame    = 1 << 14 // as long as we say nothing else

	preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
)

// frame is a frame of HTTP/2.
type frame struct {
	kind, flags uint8
	stream      uint32
	payload     []byte
}

func (f *frame) has(flag uint8) bool { return f.flags&flag != 0 }

// readFrame reads the next frame. It is io.EOF if nothing came any more.
func readFrame(in io.Reader) (f frame, err error) {
	var head [frameHeader]byte
	if _, err := io.ReadFull(in, head[:]); err != nil {
		return f, err
	}
	n := int(head[0])<<16 | int(head[1])<<8 | int(head[2])
	f.kind, f.flags, f.stream = head[3], head[4], binary.BigEndian.Uint32(head[5:])&^(1<<31)
	if n > maxFrame {
		return f, fmt.Errorf("a frame of %d bytes", n)
	}
	f.payload = make([]byte, n)
	if _, err := io.ReadFull(in, f.payload); err != nil {
		return f, fmt.Errorf("read a frame: %w", err)
	}
	return f, nil
}

// appendFrame appends a frame with the payload.
func appendFrame(b []byte, kind, flags uint8, stream uint32, payload []byte) []byte {
	n := len(payload)
	b = append(b, byte(n>>16), byte(n>>8), byte(n), kind, flags)
	return append(binary.BigEndian.AppendUint32(b, stream), payload...)
}

// unpadded takes the padding off a frame that may have some (RFC 9113 §6.1).
func (f *frame) unpadded() ([]byte, error) {
	p := f.payload
	if !f.has(flagPadded) {
		return p, nil
	}
	if len(p) == 0 || int(p[0]) > len(p)-1 {
		return nil, fmt.Errorf("frame of stream %d: more padding than frame", f.stream)
	}
	return p[1 : len(p)-int(p[0])], nil
}

// readPriority reads the five bytes of a priority.
func readPriority(stream uint32, b []byte) (p Priority, err error) {
	if len(b) < 5 {
		return p, fmt.Errorf("stream %d: a priority of %d bytes", stream, len(b))
	}
	word := binary.BigEndian.Uint32(b)
	return Priority{Stream: stream, Exclusive: word>>31 == 1, DependsOn: word &^ (1 << 31), Weight: int(b[4]) + 1}, nil
}

// readSettings reads the payload of a SETTINGS frame.
func readSettings(b []byte) (all []Setting, err error) {
	if len(b)%6 != 0 {
		return nil, fmt.Errorf("a SETTINGS frame of %d bytes", len(b))
	}
	for ; len(b) > 0; b = b[6:] {
		all = append(all, Setting{binary.BigEndian.Uint16(b), binary.BigEndian.Uint32(b[2:])})
	}
	return all, nil
}
