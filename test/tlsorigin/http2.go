// SPDX-License-Identifier: Apache-2.0

package tlsorigin

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"golang.org/x/net/http2/hpack"
)

const (
	settingTableSize     = 1
	settingMaxStreams    = 3
	settingInitialWindow = 4

	// ownWindow is what clients may send before they are told to go on, both by
	// connection and by stream (RFC 9113 §6.9.2).
	ownWindow = 65535
	// ownStreams bounds the requests that a client has open at a time.
	ownStreams = 250
)

// http2Conn is an HTTP/2 connection from the server's side. One goroutine does
// it all: it reads a frame, does what follows from it, and writes.
type http2Conn struct {
	*link
	in     *bufio.Reader
	fields *hpack.Decoder
	block  bytes.Buffer
	encode *hpack.Encoder

	begin   HTTP2 // what came before the first request
	begun   bool
	window  int64 // what the client takes from now on
	initial int64 // window of its new streams
	streams map[uint32]*stream
	out     []byte // to be written
}

// stream is a request that is not answered in full.
type stream struct {
	request Request
	ended   bool // the request is complete
	window  int64
	body    []byte // what of the answer is to be sent
	sending bool
}

// serveHTTP2 answers requests until the client goes.
func (k *link) serveHTTP2() error {
	c := &http2Conn{
		link: k, in: bufio.NewReader(k.conn), window: ownWindow, initial: ownWindow,
		streams: map[uint32]*stream{}, fields: hpack.NewDecoder(4096, nil),
	}
	c.encode = hpack.NewEncoder(&c.block)
	var limit [6]byte
	binary.BigEndian.PutUint16(limit[:], settingMaxStreams)
	binary.BigEndian.PutUint32(limit[2:], ownStreams)
	c.out = appendFrame(c.out, frameSettings, 0, 0, limit[:])
	if err := c.flush(); err != nil {
		return err
	}
	first := make([]byte, len(preface))
	if _, err := io.ReadFull(c.in, first); err != nil {
		return err
	}
	if string(first) != preface {
		return fmt.Errorf("got %q in the place of the preface", first)
	}
	for {
		f, err := readFrame(c.in)
		if err != nil {
			return err
		}
		if err := c.take(f); err != nil {
			return err
		}
		if err := c.flush(); err != nil {
			return err
		}
	}
}

func (c *http2Conn) flush() error {
	if len(c.out) == 0 {
		return nil
	}
	_, err := c.conn.Write(c.out)
	c.out = c.out[:0]
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// take does what follows from a frame.
func (c *http2Conn) take(f frame) error {
	switch f.kind {
	case frameHeaders:
		return c.headers(f)
	case frameData:
		return c.data(f)
	case frameSettings:
		return c.settings(f)
	case frameWindowUpdate:
		return c.windowUpdate(f)
	case framePriority:
		p, err := readPriority(f.stream, f.payload)
		if err == nil && !c.begun {
			c.begin.Priorities = append(c.begin.Priorities, p)
		}
		return err
	case framePing:
		if !f.has(flagAck) {
			c.out = appendFrame(c.out, framePing, flagAck, 0, f.payload)
		}
	case frameReset:
		delete(c.streams, f.stream)
	case frameContinuation:
		return errors.New("a CONTINUATION frame that continues nothing")
	case frameGoAway: // the client closes when it has its answers
	}
	return nil
}

func (c *http2Conn) settings(f frame) error {
	if f.has(flagAck) {
		return nil
	}
	all, err := readSettings(f.payload)
	if err != nil {
		return err
	}
	for _, s := range all {
		switch s.ID {
		case settingTableSize:
			c.encode.SetMaxDynamicTableSizeLimit(min(s.Value, 4096))
		case settingInitialWindow:
			for _, st := range c.streams {
				st.window += int64(s.Value) - c.initial
			}
			c.initial = int64(s.Value)
		}
	}
	if !c.begun {
		c.begin.Settings = append(c.begin.Settings, all...)
	}
	c.out = appendFrame(c.out, frameSettings, flagAck, 0, nil)
	c.send()
	return nil
}

func (c *http2Conn) windowUpdate(f frame) error {
	if len(f.payload) != 4 {
		return fmt.Errorf("a WINDOW_UPDATE frame of %d bytes", len(f.payload))
	}
	more := binary.BigEndian.Uint32(f.payload) &^ (1 << 31)
	if f.stream != 0 {
		if st := c.streams[f.stream]; st != nil {
			st.window += int64(more)
		}
	} else {
		c.window += int64(more)
		if !c.begun {
			c.begin.WindowUpdate += more
		}
	}
	c.send()
	return nil
}

// data reads over the body of a request.
func (c *http2Conn) data(f frame) error {
	if n := len(f.payload); n > 0 {
		var more [4]byte
		binary.BigEndian.PutUint32(more[:], uint32(n))
		c.out = appendFrame(c.out, frameWindowUpdate, 0, 0, more[:])
		if st := c.streams[f.stream]; st != nil && !f.has(flagEndStream) {
			c.out = appendFrame(c.out, frameWindowUpdate, 0, f.stream, more[:])
		}
	}
	if f.has(flagEndStream) {
		c.ended(f.stream)
	}
	return nil
}

// headers reads the head of a request, or the trailers of one.
func (c *http2Conn) headers(f frame) error {
	block, err := f.unpadded()
	if err != nil {
		return err
	}
	var priority *Priority
	if f.has(flagPriority) {
		p, err := readPriority(f.stream, block)
		if err != nil {
			return err
		}
		priority, block = &p, block[5:]
	}
	block = slices.Clone(block)
	for last := f; !last.has(flagEndHeaders); {
		if last, err = readFrame(c.in); err != nil {
			return err
		}
		if last.kind != frameContinuation || last.stream != f.stream || len(block) > maxHead {
			return fmt.Errorf("stream %d: a head that does not end", f.stream)
		}
		block = append(block, last.payload...)
	}
	at := int64(c.origin.clock.Now())
	decoded, err := c.fields.DecodeFull(block)
	if err != nil {
		return fmt.Errorf("stream %d: %w", f.stream, err)
	}
	if c.streams[f.stream] == nil {
		c.open(f.stream, at, decoded, priority)
	}
	if f.has(flagEndStream) {
		c.ended(f.stream)
	}
	return nil
}

func (c *http2Conn) open(id uint32, at int64, decoded []hpack.HeaderField, priority *Priority) {
	r := Request{Stream: id, At: at, Priority: priority}
	var pseudo []string
	for _, f := range decoded {
		r.Fields = append(r.Fields, Field{f.Name, f.Value})
		switch f.Name {
		case ":method":
			r.Method = f.Value
		case ":path":
			r.Path = f.Value
		}
		if f.IsPseudo() && len(f.Name) > 1 {
			pseudo = append(pseudo, f.Name[1:2])
		}
	}
	if !c.begun {
		c.begun = true
		c.begin.Pseudo = strings.Join(pseudo, ",")
		c.note(func(entry *Connection) { entry.HTTP2 = &c.begin })
	}
	c.streams[id] = &stream{request: r, window: c.initial}
}

// ended answers a request that is complete.
func (c *http2Conn) ended(id uint32) {
	st := c.streams[id]
	if st == nil || st.ended {
		return
	}
	st.ended = true
	a := c.decide(st.request)
	c.block.Reset()
	c.field(":status", fmt.Sprint(a.status))
	for _, f := range a.fields {
		c.field(f.Name, f.Value)
	}
	flags := uint8(flagEndHeaders)
	if st.request.Method == "HEAD" || a.body == "" {
		flags |= flagEndStream
		delete(c.streams, id)
	} else {
		st.body, st.sending = []byte(a.body), true
	}
	c.out = appendFrame(c.out, frameHeaders, flags, id, c.block.Bytes())
	c.send()
}

func (c *http2Conn) field(name, value string) {
	if err := c.encode.WriteField(hpack.HeaderField{Name: name, Value: value}); err != nil {
		panic(err) // the encoder writes to memory
	}
}

// send sends as much of the bodies as the client takes, older streams first.
func (c *http2Conn) send() {
	for _, id := range sortedStreams(c.streams) {
		st := c.streams[id]
		for st.sending {
			n := min(int64(len(st.body)), maxFrame, c.window, st.window)
			if n <= 0 {
				break
			}
			flags := uint8(0)
			if n == int64(len(st.body)) {
				flags, st.sending = flagEndStream, false
				delete(c.streams, id)
			}
			c.out = appendFrame(c.out, frameData, flags, id, st.body[:n])
			st.body = st.body[n:]
			c.window -= n
			st.window -= n
		}
	}
}

func sortedStreams(all map[uint32]*stream) []uint32 {
	ids := make([]uint32, 0, len(all))
	for id := range all {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}
