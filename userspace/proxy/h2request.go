// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"

	"github.com/egressd/egressd/userspace/h2"
	"github.com/egressd/egressd/userspace/heads"
	"github.com/egressd/egressd/userspace/http1"
)

// requestOf reads what a header block asks for. It reports false if two
// readers could take it for different requests: a pseudo-header field comes twice, or
// Host names another host than :authority (RFC 9113 §8.3, §8.3.1). What else is
// wrong with it is for the origin to say.
func requestOf(b *h2.HeaderBlock, fields []h2.Field) (_ *heads.Request, ok bool) {
	var method, path, authority, scheme, protocol, host []byte
	ok = true
	set := func(to *[]byte, value []byte) {
		ok = ok && *to == nil
		*to = value[:len(value):len(value)]
		if *to == nil {
			*to = []byte{}
		}
	}
	for i := range fields {
		f := &fields[i]
		switch string(f.Name) {
		case ":method":
			set(&method, f.Value)
		case ":path":
			set(&path, f.Value)
		case ":authority":
			set(&authority, f.Value)
		case ":scheme":
			set(&scheme, f.Value)
		case ":protocol":
			set(&protocol, f.Value)
		case "host":
			set(&host, f.Value)
		}
	}
	ok = ok && (host == nil || authority == nil || bytes.EqualFold(host, authority))
	if authority == nil {
		authority = host
	}
	r := &heads.Request{
		Stream:   b.Frame.Stream,
		Method:   string(method),
		Host:     string(authority),
		Scheme:   string(scheme),
		Protocol: string(protocol),
		End:      b.Frame.EndsStream(),
	}
	if len(path) > 0 && path[0] == '/' {
		if i := bytes.IndexAny(path, "?#"); i >= 0 {
			path = path[:i]
		}
		r.Path = string(path)
	}
	switch r.Method {
	case "HEAD":
		r.Kind = http1.ForHEAD
	case "CONNECT":
		r.Kind = http1.ForCONNECT
	}
	return r, ok
}

// appendBlock appends a header block in the place of the one in b: with the same
// priority and end, and without padding.
func appendBlock(dst []byte, b *h2.HeaderBlock, block []byte) []byte {
	f := h2.FrameHeader{Type: h2.Headers, Stream: b.Frame.Stream, Flags: b.Frame.Flags & (h2.EndStream | h2.PriorityFlag)}
	room := h2.DefaultMaxFrameSize // which any receiver takes
	var priority []byte
	if f.Has(h2.PriorityFlag) {
		priority = b.Priority[:]
	}
	for {
		n := min(len(block), room-len(priority))
		f.Length = uint32(n + len(priority))
		if n == len(block) {
			f.Flags |= h2.EndHeaders
		}
		dst = append(append(h2.AppendFrameHeader(dst, f), priority...), block[:n]...)
		if block = block[n:]; len(block) == 0 {
			return dst
		}
		f, priority = h2.FrameHeader{Type: h2.Continuation, Stream: f.Stream}, nil
	}
}
