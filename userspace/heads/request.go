// SPDX-License-Identifier: Apache-2.0

package heads

import (
	"bytes"

	"github.com/egressd/egressd/userspace/h2"
	"github.com/egressd/egressd/userspace/http1"
)

// read1 fills the request from the head of HTTP/1 that was parsed.
func (c *Client) read1(head []byte) {
	h := &c.parsed
	r := &c.request
	*r = Request{Kind: h.Kind(), End: h.Body.Done(), list: fieldList{head: head}}
	var protocol []byte
	http1.Fields(head, func(name, value []byte) bool {
		switch {
		case http1.EqualFold(name, "upgrade"):
			if h.Upgrade && protocol == nil {
				protocol = value
			}
		case http1.EqualFold(name, "idempotency-key"):
			r.IdempotencyKey = len(value) > 0
		}
		return true
	})
	c.keep(h.Method, h.Path, h.Authority, h.Scheme, protocol)
}

// keep sets the strings of the request.
func (c *Client) keep(method, path, host, scheme, protocol []byte) {
	t := &c.text
	t.method = same(t.method, method)
	t.path = same(t.path, path)
	t.host = same(t.host, host)
	t.scheme = same(t.scheme, scheme)
	t.protocol = same(t.protocol, protocol)
	r := &c.request
	r.Method, r.Path, r.Host, r.Scheme, r.Protocol = t.method, t.path, t.host, t.scheme, t.protocol
}

// pseudo is the pseudo-header fields of a request (RFC 9113 §8.3.1).
type pseudo struct {
	method, path, authority, scheme, protocol []byte
	host                                      []byte // the field Host
	malformed                                 bool
}

// read2 fills the request from a block of HTTP/2.
func (c *Client) read2(block *h2.HeaderBlock) {
	r := &c.request
	fields := c.two.fields.Fields
	*r = Request{
		Stream:  block.Frame.Stream,
		End:     block.Frame.EndsStream(),
		Partial: c.two.fields.Partial,
		list:    fieldList{block: fields},
	}
	var p pseudo
	regular := false
	for i := range fields {
		f := &fields[i]
		switch {
		case f.Unknown:
		case len(f.Name) > 0 && f.Name[0] == ':':
			p.malformed = p.malformed || regular
			p.add(f.Name, f.Value)
		default:
			regular = true
			p.malformed = p.malformed || !allowed(f.Name, f.Value)
			r.IdempotencyKey = r.IdempotencyKey || string(f.Name) == "idempotency-key" && len(f.Value) > 0
			if string(f.Name) == "host" {
				p.malformed = p.malformed || p.host != nil && !bytes.EqualFold(p.host, f.Value)
				p.host = f.Value
			}
		}
	}
	connect := string(p.method) == "CONNECT"
	if p.host != nil && p.authority != nil && !bytes.EqualFold(p.host, p.authority) {
		p.malformed = true
	}
	if !r.Partial {
		switch {
		case p.method == nil, connect && p.authority == nil:
			p.malformed = true
		case connect && p.protocol == nil:
			p.malformed = p.malformed || p.path != nil || p.scheme != nil
		case p.path == nil || p.scheme == nil || len(p.path) == 0:
			p.malformed = true
		}
	}
	if p.authority == nil {
		p.authority = p.host
	}
	switch {
	case string(p.method) == "HEAD":
		r.Kind = http1.ForHEAD
	case connect:
		r.Kind = http1.ForCONNECT
	}
	r.Malformed = p.malformed
	c.keep(p.method, pathOf(p.path), p.authority, p.scheme, p.protocol)
}

// add takes one pseudo-header field.
func (p *pseudo) add(name, value []byte) {
	var at *[]byte
	switch string(name) {
	case ":method":
		at = &p.method
	case ":path":
		at = &p.path
	case ":authority":
		at = &p.authority
	case ":scheme":
		at = &p.scheme
	case ":protocol":
		at = &p.protocol
	}
	if at == nil || *at != nil {
		p.malformed = true
		return
	}
	*at = value[:len(value):len(value)]
	if *at == nil {
		*at = empty
	}
}

var empty = []byte{}

// allowed reports whether a request of HTTP/2 may have that field: its name is in
// lower case (RFC 9113 §8.2.1), and it does not speak of a connection (§8.2.2).
func allowed(name, value []byte) bool {
	for _, c := range name {
		if c <= ' ' || 'A' <= c && c <= 'Z' || c == ':' || c >= 0x7f {
			return false
		}
	}
	switch string(name) {
	case "", "connection", "proxy-connection", "keep-alive", "transfer-encoding", "upgrade":
		return false
	case "te":
		return string(value) == "trailers"
	}
	return true
}

// pathOf cuts the query off :path, and what is no path at all: "*".
func pathOf(b []byte) []byte {
	if len(b) == 0 || b[0] != '/' {
		return nil
	}
	for i, c := range b {
		if c == '?' || c == '#' {
			return b[:i]
		}
	}
	return b
}
