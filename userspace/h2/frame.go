// SPDX-License-Identifier: Apache-2.0

package h2

import "encoding/binary"

// FrameType is the type of a frame (RFC 9113 §6).
type FrameType uint8

// Types of frames. Others exist and are to be passed over (RFC 9113 §4.1).
const (
	Data FrameType = iota
	Headers
	Priority
	RSTStream
	Settings
	PushPromise
	Ping
	GoAway
	WindowUpdate
	Continuation
)

// Flags are the flags of a frame. What a bit means depends on the type.
type Flags uint8

// Flags of frames.
const (
	EndStream    Flags = 0x1  // Data, Headers
	Ack          Flags = 0x1  // Settings, Ping
	EndHeaders   Flags = 0x4  // Headers, PushPromise, Continuation
	Padded       Flags = 0x8  // Data, Headers, PushPromise
	PriorityFlag Flags = 0x20 // Headers
)

// FrameHeaderLen is the size of a frame's header in bytes.
const FrameHeaderLen = 9

// Sizes in bytes that a frame's payload may have (RFC 9113 §4.2).
const (
	DefaultMaxFrameSize = 1 << 14
	HardMaxFrameSize    = 1<<24 - 1
)

// FrameHeader is the header of a frame.
type FrameHeader struct {
	Length uint32 // bytes of payload that follow
	Stream uint32 // 31 bits; the reserved one is dropped
	Type   FrameType
	Flags  Flags
}

// Has reports whether all of the flags f are set.
func (h FrameHeader) Has(f Flags) bool { return h.Flags&f == f }

// EndsStream reports whether the sender's half of the stream ends with this
// frame, or with the header block that it begins.
func (h FrameHeader) EndsStream() bool {
	return (h.Type == Data || h.Type == Headers) && h.Has(EndStream)
}

// ParseFrameHeader reads the header of a frame. b has at least FrameHeaderLen
// bytes.
func ParseFrameHeader(b []byte) FrameHeader {
	_ = b[FrameHeaderLen-1]
	return FrameHeader{
		Length: uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]),
		Type:   FrameType(b[3]),
		Flags:  Flags(b[4]),
		Stream: binary.BigEndian.Uint32(b[5:]) &^ (1 << 31),
	}
}

// AppendFrameHeader appends the header h. Its length must fit 24 bits.
func AppendFrameHeader(dst []byte, h FrameHeader) []byte {
	dst = append(dst, byte(h.Length>>16), byte(h.Length>>8), byte(h.Length), byte(h.Type), byte(h.Flags))
	return binary.BigEndian.AppendUint32(dst, h.Stream)
}

// check judges a header by itself: what RFC 9113 §6 makes an error of the whole
// connection.
func (h FrameHeader) check() error {
	switch h.Type {
	case Data, Headers, Continuation:
		if h.Stream == 0 {
			return ErrStream
		}
	case Priority: // a wrong length is an error of the stream only
		if h.Stream == 0 {
			return ErrStream
		}
	case RSTStream:
		if h.Stream == 0 {
			return ErrStream
		}
		if h.Length != 4 {
			return ErrFrameSize
		}
	case PushPromise:
		if h.Stream == 0 {
			return ErrStream
		}
		if h.Length < 4 {
			return ErrFrameSize
		}
	case Settings:
		if h.Stream != 0 {
			return ErrStream
		}
		if h.Length%6 != 0 || h.Has(Ack) && h.Length != 0 {
			return ErrFrameSize
		}
	case Ping:
		if h.Stream != 0 {
			return ErrStream
		}
		if h.Length != 8 {
			return ErrFrameSize
		}
	case GoAway:
		if h.Stream != 0 {
			return ErrStream
		}
		if h.Length < 8 {
			return ErrFrameSize
		}
	case WindowUpdate:
		if h.Length != 4 {
			return ErrFrameSize
		}
	}
	return nil
}

// Setting names a parameter of a SETTINGS frame (RFC 9113 §6.5.2).
type Setting uint16

// Settings that matter to who relays frames.
const (
	HeaderTableSize      Setting = 1
	EnablePush           Setting = 2
	MaxConcurrentStreams Setting = 3
	InitialWindowSize    Setting = 4
	MaxFrameSize         Setting = 5
	MaxHeaderListSize    Setting = 6
	EnableConnect        Setting = 8 // RFC 8441 §3
)

// ParseSettings calls yield for every parameter in the payload of a SETTINGS
// frame, in order, until it returns false.
func ParseSettings(payload []byte, yield func(s Setting, value uint32) bool) {
	for ; len(payload) >= 6; payload = payload[6:] {
		if !yield(Setting(binary.BigEndian.Uint16(payload)), binary.BigEndian.Uint32(payload[2:])) {
			return
		}
	}
}
